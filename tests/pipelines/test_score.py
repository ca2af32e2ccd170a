"""`bytelm score`: log-probabilities of texts as `transformers` gives them, words, choices and hostile input."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bytelm
from lm.text_statistics.kernels import hash_words
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.decoded_text import white_space
from pipelines.evaluation.windows import decoder_windows
from pipelines.run.folder import Run
from pipelines.scoring.word_probabilities import word_starts
from pipelines.training.batch_objectives import NextToken
from pipelines.verbs.export_hf import export_hf
from tests.pipelines.exchange_cases import AUTO
from tests.pipelines.test_cli import assert_refused

TEXT = "import os\n\ndef main(naïve):\n    return 0  # 漢 🙂\n"
LONG = "import os\nfrom pathlib import Path\n\ndef walk(folder):\n    for path in folder:\n" * 4
NATS = math.log(2.0)


@pytest.fixture(scope="module")
def exported(peers, tmp_path_factory):
    """Return get(kind): it returns a loaded run, and its export opened by `transformers` as a model and a tokenizer."""
    transformers = pytest.importorskip("transformers")

    def get(kind):
        folder = export_hf(peers(kind)[2], out=tmp_path_factory.mktemp("hf") / kind)
        tok = transformers.AutoTokenizer.from_pretrained(folder)
        return bytelm.load_run(peers(kind)[2], device="cpu"), AUTO[kind].from_pretrained(folder).eval(), tok

    return get


def assert_predictions(score, logits):
    """Assert that the scored tokens have the numbers of `logits` (N, V), one row for each."""
    log_p = torch.log_softmax(logits.detach().double(), dim=-1)
    made, scored = score.predictions, score.scored
    ids = torch.from_numpy(score.ids[scored])
    own = log_p.gather(-1, ids[:, None]).squeeze(-1)
    np.testing.assert_allclose(made.log_probabilities[scored], own, atol=1e-4)
    np.testing.assert_allclose(made.entropies[scored], -(log_p.exp() * log_p).sum(-1), atol=1e-4)
    # A rank may differ where two tokens are equally probable up to rounding.
    low = 1 + (log_p > own[:, None] + 1e-4).sum(-1).numpy()
    high = 1 + (log_p > own[:, None] - 1e-4).sum(-1).numpy()
    assert ((low <= made.ranks[scored]) & (made.ranks[scored] <= high)).all()
    best = log_p.topk(made.top_ids.shape[1], dim=-1)
    np.testing.assert_allclose(made.top_log_probabilities[scored], best.values, atol=1e-4)
    listed = log_p.gather(-1, torch.from_numpy(made.top_ids[scored]))
    np.testing.assert_allclose(listed, best.values, atol=1e-4)
    assert score.log_probability == pytest.approx(float(own.sum()), abs=1e-3)
    assert score.perplexity == pytest.approx(float((-own.mean()).exp()), rel=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("start", [True, False])
def test_a_decoders_scores_are_those_of_transformers(kind, start, exported):
    run, peer, tok = exported(kind)
    run.around = replace(run.around, before=(0,))  # <|endoftext|>, as in our own runs
    ids = tok(TEXT, add_special_tokens=False)["input_ids"]
    score = bytelm.score_text(run, TEXT, start=start)
    assert score.ids.tolist() == ids
    assert score.scored.tolist() == [start, *[True] * (len(ids) - 1)]
    read = [0, *ids] if start else ids
    assert_predictions(score, peer(torch.tensor([read])).logits[0, :-1])
    assert score.bits_per_byte == pytest.approx(
        -score.log_probability / NATS / (len(TEXT.encode()) - (not start) * score.byte_lengths[0])
    )


@pytest.mark.parametrize("stride", [None, 1, 5, 34])
def test_each_token_of_a_long_text_is_scored_in_the_first_window_that_predicts_it(stride, exported):
    run, peer, tok = exported("gpt2")
    ids = tok(LONG)["input_ids"]
    length, step = run.config.model.context_length, stride or 17
    assert len(ids) > 2 * length
    rows = []
    for target in range(1, len(ids)):
        window = max(0, math.ceil((target - length) / step))
        rows.append(peer(torch.tensor([ids[window * step : target]])).logits[0, -1])
    score = bytelm.score_text(run, LONG, stride=stride)
    assert_predictions(score, torch.stack(rows))
    assert (score.window, score.stride) == (34, step)


def lm_eval_windows(tokens, prefix, length):
    """Return (read, predicted) of each window of lm-evaluation-harness 0.4.13's loglikelihood_rolling.

    Every window predicts `length` tokens after one token of context. The last one predicts the rest, after as many
    tokens of context as fit.
    """
    windows = []
    for start in range(0, len(tokens), length):
        predicted = tokens[start : start + length]
        room = length - len(predicted) + 1 if start else 1
        context = [prefix, *tokens][start + 1 - room : start + 1]
        windows.append(([*context, *predicted][:-1], predicted))
    return windows


@given(st.integers(1, 60), st.integers(1, 20))
def test_rolling_windows_are_those_of_lm_eval(count, length):
    tokens = list(range(100, 100 + count))
    ids = np.array([7, *tokens])
    stream, found, indices = TokenStream([ids], length), [], []
    for windows in decoder_windows(stream, NextToken(length), length, rolling=True):
        for inputs, targets, scored, places in zip(
            windows.batch.inputs, windows.batch.targets, windows.scored, windows.indices, strict=True
        ):
            columns = np.flatnonzero(scored)
            found.append((inputs[: columns[-1] + 1].tolist(), targets[scored].tolist()))
            indices += places[scored].tolist()
            assert columns.tolist() == list(range(columns[-1] + 1))[-len(columns) :]
    assert found == lm_eval_windows(tokens, 7, length)
    assert indices == list(range(1, count + 1))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_rolling_scores_are_those_of_lm_eval(kind, exported, in_process, tmp_path):
    run, peer, tok = exported(kind)
    run.around = replace(run.around, before=(0,))
    rows = []
    for read, predicted in lm_eval_windows(tok(LONG)["input_ids"], 0, run.config.model.context_length):
        rows.append(peer(torch.tensor([read])).logits[0, -len(predicted) :])
    score = bytelm.score_text(run, LONG, rolling=True)
    assert_predictions(score, torch.cat(rows))
    assert score.scored.all() and (score.window, score.stride, score.rolling) == (34, 34, True)
    assert score.log_probability != pytest.approx(bytelm.score_text(run, LONG, stride=34).log_probability, abs=1e-3)


def test_rolling_windows_are_named_beside_the_totals(in_process, trained_gpt, tmp_path):
    (tmp_path / "text").write_text(LONG)
    done = in_process("score", trained_gpt, "--file", "text", "--rolling")
    assert "; windows of 32 tokens, 32 apart, the last one moved back to a full context" in done.stdout
    totals = json.loads(in_process("score", trained_gpt, "--file", "text", "--rolling", "--json").stdout)["totals"]
    assert (totals["rolling"], totals["stride"]) == (True, 32)


def masked_rows(peer, tok, run, ids, masked_to, starts):
    """Return the logits (N, V) of each token, with the tokens from it to `masked_to` masked."""
    special, length = run.around.special, run.config.model.context_length - 2
    rows = []
    for token, end in enumerate(masked_to):
        begin = min(starts, key=lambda start: (abs(token - start - (length - 1) / 2), start))
        read = [special["<|mask|>"] if token <= i < end else ids[i] for i in range(len(ids))][begin : begin + length]
        read = [special["<|cls|>"], *read, special["<|sep|>"]]
        rows.append(peer(torch.tensor([read])).logits[0, token - begin + 1])
    return torch.stack(rows)


@pytest.mark.parametrize("masking", ["token", "word"])
def test_an_encoders_scores_are_pseudo_log_likelihoods_of_transformers(masking, exported):
    run, peer, tok = exported("bert")
    ids = tok("import os, pathlib\nfolder = pathlib", add_special_tokens=False)["input_ids"]
    text = tok.decode(ids)
    score = bytelm.score_text(run, text, masking=masking)
    assert score.ids.tolist() == ids
    later = [tok.decode(i)[0].isspace() or tok.decode(ids[n])[-1].isspace() for n, i in enumerate(ids[1:])]
    edges = [0, *(n for n, new in enumerate(later, 1) if new), len(ids)]
    ends = [min(edge for edge in edges if edge > n) if masking == "word" else n + 1 for n in range(len(ids))]
    assert masking == "token" or max(end - n for n, end in enumerate(ends)) > 2
    assert_predictions(score, masked_rows(peer, tok, run, ids, ends, [0]))
    assert score.measure == "pseudo-log-likelihood" and score.bits_per_byte is None


@pytest.mark.parametrize("masking", ["token", "word"])
def test_an_encoder_scores_each_token_of_a_long_text_in_the_window_with_the_nearest_centre(masking, exported):
    run, peer, tok = exported("bert")
    ids = tok(LONG, add_special_tokens=False)["input_ids"]
    starts = [*range(0, len(ids) - 32, 10), len(ids) - 32]
    score = bytelm.score_text(run, LONG, stride=10, masking=masking, words=True)
    word_ends = np.repeat(score.words.ends, score.words.ends - score.words.starts)
    ends = word_ends if masking == "word" else range(1, len(ids) + 1)
    assert_predictions(score, masked_rows(peer, tok, run, ids, ends, starts))


def test_an_encoder_decoders_scores_are_those_of_transformers(exported):
    run, peer, tok = exported("t5")
    target = "def main():\n    return 0"
    source = tok(TEXT, return_tensors="pt")["input_ids"]
    labels = tok(target, return_tensors="pt")["input_ids"]  # ends with the end token
    score = bytelm.score_text(run, TEXT, target=target)
    assert score.ids.tolist() == labels[0].tolist()
    found = peer(input_ids=source, labels=labels)
    assert_predictions(score, found.logits[0])
    assert score.log_probability == pytest.approx(-float(found.loss.detach()) * labels.shape[1], rel=1e-4)
    assert score.bytes == len(target.encode())


def test_a_text_of_the_validation_split_has_the_loss_of_evaluate(trained_gpt, dataset_folder):
    """The stream of the split repeats <|endoftext|> and a document. The first document is the text."""
    run = bytelm.load_run(trained_gpt, device="cpu")
    from pipelines.dataset.reader import TokenDataset

    stream = TokenDataset(dataset_folder).split("validation")
    ids = stream.read(0, stream.tokens)
    end = int(np.flatnonzero(ids == ids[0])[1])
    text = run.tokenizer.decode(ids[1:end].tolist())
    score = bytelm.score_text(run, text, stride=32)
    assert score.ids.tolist() == ids[1:end].tolist()
    expected = []
    for start in range(0, end - 1, 32):
        block = torch.from_numpy(ids[start : min(start + 33, end)].astype(np.int64))
        logits = run.model.logits(run.model(block[None, :-1]))[0]
        expected.append(torch.nn.functional.cross_entropy(logits, block[1:], reduction="none").detach())
    np.testing.assert_allclose(-score.predictions.log_probabilities, torch.cat(expected), atol=1e-4)


def test_word_probabilities_multiply_to_the_probability_of_the_text_and_its_end(trained_gpt):
    """Only the last word adds the probability that it ends: the others cancel."""
    run = bytelm.load_run(trained_gpt, device="cpu")
    for text in ("import os", "import os\n", "for path in folder:\n    print(path)", " a", "x"):
        score = bytelm.score_text(run, text, words=True)
        words = score.words
        logits = run.logits(text)
        p = torch.softmax(logits.double(), dim=-1)
        white = np.array([run.tokenizer.token_bytes(i).decode(errors="replace")[:1].isspace() for i in range(512)])
        white[list(run.tokenizer.special_tokens.values())] = True
        ends = p[:, white].sum(-1).log().detach().numpy()  # row t: a word ends before token t
        assert words.log_probabilities.sum() == pytest.approx(
            score.log_probability + (0.0 if text[-1].isspace() else ends[-1]), abs=1e-4
        )
        pieces = [b"".join(score.pieces[a:b]) for a, b in zip(words.starts, words.ends, strict=True)]
        assert b"".join(pieces) == text.encode()
        for piece, a, b, value in zip(pieces, words.starts, words.ends, words.log_probabilities, strict=True):
            certain_before = a == 0 or score.pieces[a - 1][-1:].isspace()
            expected = score.predictions.log_probabilities[a:b].sum()
            expected += (0.0 if piece[-1:].isspace() else ends[b]) - (0.0 if certain_before else ends[a])
            assert value == pytest.approx(expected, abs=1e-4)
            assert value < 1e-9  # a probability


def test_word_probabilities_sum_to_one_over_all_words_of_a_small_language():
    """Tokens are bytes: after each letter a or b, the word continues or ends, and nothing counts twice."""
    from pipelines.scoring.word_probabilities import words_of

    # p(a) = 0.3, p(b) = 0.2, p(space) = 0.5 at every place, whatever came before.
    p = {b"a": 0.3, b"b": 0.2, b" ": 0.5}
    total = 0.0
    for length in range(1, 12):
        for number in range(2**length):
            letters = [b"ab"[number >> i & 1 :][:1] for i in range(length)]
            pieces = [b"x", b" ", *letters]
            log_p = np.log([1.0, p[b" "], *(p[letter] for letter in letters)])
            words = words_of(pieces, np.zeros(len(pieces), bool), log_p, np.full(len(pieces) + 1, math.log(p[b" "])))
            total += math.exp(words.log_probabilities[-1])
    # A word is 1 to 11 letters; the rest, of 12 and more letters or of none, is left.
    assert total == pytest.approx(0.5 - 0.5**12)


def test_words_of_an_encoder_and_of_a_target_are_listed(trained_bert, trained_translator):
    score = bytelm.score_text(bytelm.load_run(trained_bert), "import os, sys", words=True)
    assert score.words.log_probabilities.tolist() == score.words.token_sums.tolist()
    assert math.fsum(score.words.log_probabilities) == pytest.approx(score.log_probability)
    target = bytelm.score_text(bytelm.load_run(trained_translator), "the number 3", target="die Zahl 3", words=True)
    # The end token ends the last word, so the words multiply to the target.
    assert math.fsum(target.words.log_probabilities) == pytest.approx(target.log_probability)
    assert [b - a for a, b in zip(target.words.starts, target.words.ends, strict=True)][-1] == 1


def lm_eval_pair(tok, context, continuation):
    """Return the ids of a pair as lm-evaluation-harness 0.4.13 documents them for causal models."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    read = tok(context)["input_ids"]
    return read, tok(context + continuation)["input_ids"][len(read) :]


@pytest.mark.filterwarnings("ignore:the text and choice", "ignore:choice . of 4 joins")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_choices_have_the_log_likelihoods_of_lm_eval(kind, exported):
    run, peer, tok = exported(kind)
    choices = ["os", "sys, pathlib", "漢字", "\n"]
    for context in ("import ", "import", "from x import \n ", LONG):
        ranked = bytelm.rank_choices(run, context, choices, start=False)
        for number, choice in enumerate(choices):
            read, added = lm_eval_pair(tok, context, choice)
            ids = [*read, *added][-35:]
            log_p = torch.log_softmax(peer(torch.tensor([ids[:-1]])).logits[0, -len(added) :].detach(), dim=-1)
            own = log_p.gather(-1, torch.tensor(added)[:, None]).sum()
            assert ranked.log_probabilities[number] == pytest.approx(float(own), abs=1e-3)
            assert ranked.greedy[number] == (log_p.argmax(-1).tolist() == added)
            assert ranked.ids[number].tolist() == added
            assert ranked.per_token[number] == pytest.approx(float(own) / len(added), abs=1e-3)
            assert ranked.per_byte[number] == pytest.approx(float(own) / len(choice.encode()), abs=1e-3)


def test_choices_of_an_encoder_decoder_are_targets_without_an_end(exported):
    run, peer, tok = exported("t5")
    ranked = bytelm.rank_choices(run, "import", ["os", "sys"])
    for choice, value in zip(ranked.choices, ranked.log_probabilities, strict=True):
        labels = tok(choice, return_tensors="pt", add_special_tokens=False)["input_ids"]
        loss = peer(input_ids=tok("import", return_tensors="pt")["input_ids"], labels=labels).loss.detach()
        assert value == pytest.approx(-float(loss) * labels.shape[1], abs=1e-3)


def test_choices_after_no_text_follow_the_start_token(trained_gpt):
    run = bytelm.load_run(trained_gpt, device="cpu")
    ranked = bytelm.rank_choices(run, "", ["import os", "x"])
    for choice, value in zip(ranked.choices, ranked.log_probabilities, strict=True):
        assert value == pytest.approx(bytelm.score_text(run, choice).log_probability, abs=1e-4)
    with pytest.raises(ValueError, match="the text has no tokens, and no start token precedes the choices"):
        bytelm.rank_choices(run, "", ["x"], start=False)


def test_a_choice_that_joins_the_last_token_is_scored_as_lm_eval_does_with_a_warning(trained_gpt):
    run = bytelm.load_run(trained_gpt, device="cpu")
    pieces = (run.tokenizer.token_bytes(i).decode(errors="replace") for i in range(512))
    token = max((piece for piece in pieces if piece.isalpha()), key=len)
    with pytest.raises(ValueError, match="choice 2 of 2 adds no token to the text: end the text at a word's end"):
        bytelm.rank_choices(run, token[:-1], [" x", token[-1]])
    with pytest.warns(UserWarning, match="first characters of choice 1 of 1 merge into the last token"):
        bytelm.rank_choices(run, token[:-1], [token[-1] + " os, sys"])


def test_without_likeliest_tokens_the_table_has_no_column_for_them(in_process, trained_gpt):
    heads = [in_process("score", trained_gpt, TEXT, "--top", top).stdout for top in ("0", "1")]
    assert ["likeliest" in each and "entropy" in each for each in heads] == [False, True]
    assert "entropy" in heads[0]


def test_json_and_parquet_have_the_same_rows(in_process, trained_gpt, tmp_path):
    done = in_process("score", trained_gpt, TEXT, "--json", "--parquet", "rows.parquet", "--top", "3", "--no-start")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    rows = table.to_pylist()
    assert [{**row, "bytes": list(row["bytes"])} for row in rows] == content["tokens"]
    assert json.loads(table.schema.metadata[b"bytelm"]) == content["totals"]
    assert b"".join(row["bytes"] for row in rows) == TEXT.encode()
    first, *others = rows
    assert [first[name] for name in ("surprisal_bits", "entropy_bits", "rank", "probability", "top")] == [None] * 5
    for row in others:
        assert row["surprisal_bits"] == pytest.approx(-math.log2(row["probability"]))
        assert len(row["top"]) == 3 and row["top"][0]["probability"] >= row["probability"]
        assert (row["rank"] == 1) == (row["top"][0]["id"] == row["id"])
    totals = content["totals"]
    assert totals["log_probability_bits"] == pytest.approx(-sum(row["surprisal_bits"] for row in others))
    assert totals["bits_per_byte"] == pytest.approx(-totals["log_probability_bits"] / totals["bytes"])
    assert totals["tokens"] == len(others)


def test_words_and_choices_in_json_and_parquet(in_process, trained_gpt, tmp_path):
    done = in_process("score", trained_gpt, "import os", "--by", "word", "--json", "--parquet", "words.parquet")
    content = json.loads(done.stdout)
    words, totals = content["words"], content["totals"]
    assert [word["text"] for word in words] == ["import", " os"]
    assert sum(word["tokens"] for word in words) == totals["tokens"]
    of_words, of_end = sum(word["surprisal_bits"] for word in words), totals["end_of_last_word_bits"]
    assert of_words == pytest.approx(of_end - totals["log_probability_bits"]) and of_end > 0
    shown = in_process("score", trained_gpt, "import os", "--by", "word").stdout.splitlines()[-1]
    of_tokens = f"{-totals['log_probability_bits']:.4f} of the tokens"
    assert shown == f"2 words, {of_words:.4f} bits: {of_tokens}, and {of_end:.4f} because the last word ends"
    assert pyarrow.parquet.read_table(tmp_path / "words.parquet")["surprisal_bits"].to_pylist() == [
        word["surprisal_bits"] for word in words
    ]
    done = in_process("score", trained_gpt, "import", "--choices", " os", " x", "--json", "--parquet", "c.parquet")
    choices = json.loads(done.stdout)["choices"]
    assert [row["choice"] for row in choices] == [" os", " x"]
    assert pyarrow.parquet.read_table(tmp_path / "c.parquet").to_pylist() == choices


def test_the_terminal_shows_text_bars_legend_and_totals_without_colour(in_process, trained_gpt):
    done = in_process("score", trained_gpt, "import os\nxyzzy")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "import os⏎" and lines[2] == "xyzzy"
    run = bytelm.load_run(trained_gpt, device="cpu")
    score = bytelm.score_text(run, "import os\nxyzzy")
    bars = ""
    for piece, bits in zip(score.pieces, score.surprisal_bits, strict=True):
        bars += " ▁▂▄▆█"[sum(bits >= level for level in (1, 2, 4, 8, 12))] * len(piece)
    assert (lines[1] + " " * 20)[:10] + lines[3] == bars.rstrip()
    assert "bits" in lines[4] and "12+" in lines[4]
    assert f"log p {score.log_probability:.4f} nats ({score.log_probability_bits:.4f} bits)" in done.stdout
    assert "read after <|endoftext|>" in done.stdout
    worst = int(score.surprisal_bits.argmax())
    row = next(line for line in lines if line.startswith(f"{worst + 1} "))
    assert f"{score.surprisal_bits[worst]:.2f}" in row


def test_choices_are_listed_by_rank(in_process, trained_gpt):
    done = in_process("score", trained_gpt, "import ", "--choices", "zqz", "os", "sys")
    assert done.returncode == 0, done.stderr
    ranked = bytelm.rank_choices(bytelm.load_run(trained_gpt), "import ", ["zqz", "os", "sys"])
    order = (-ranked.log_probabilities).argsort()
    rows = done.stdout.splitlines()[1:4]
    assert [row.split()[0] for row in rows] == [ranked.choices[i] for i in order]
    assert [row.split()[2] for row in rows] == ["(1)", "(2)", "(3)"]


HOSTILE = [
    "x",
    "\0",
    "a\0b",
    "<|endoftext|>",
    "<|mask|> <|cls|>",
    "\x1b[31mred\x1b[0m\r\x9b2J",
    "\u202eabc",
    " ",
    "\n",
    "\ufeff",
    "́",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_data_and_do_not_reach_the_terminal(text, in_process, trained_gpt, trained_bert, tmp_path):
    (tmp_path / "text").write_bytes(text.encode())
    for run in (trained_gpt, trained_bert):
        tok = Run(run).tokenizer()
        done = in_process("score", run, "--file", "text", "--json")
        assert done.returncode == 0, done.stderr
        content = json.loads(done.stdout)
        assert [row["id"] for row in content["tokens"]] == tok.encode_ordinary(text)
        assert content["totals"]["bytes"] == len(text.encode())
        for options in ((), ("--by", "word"), ("--limit", "1")):
            shown = in_process("score", run, "--file", "text", *options)
            assert shown.returncode == 0, shown.stderr
            assert not set("\0\x1b\r\x9b\u202e") & set(shown.stdout)
    if "\0" not in text:
        assert (
            in_process("score", trained_gpt, "--json", "--", text).stdout
            == in_process("score", trained_gpt, "--file", "text", "--json").stdout
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], "the text is empty: give at least one character"),
        (["--file", "empty"], "the text is empty: give at least one character"),
        (["--file", "latin-1"], "latin-1 is not UTF-8 at byte 3: convert it"),
        ([b"na\xefve"], "the text is not UTF-8 at byte 2: convert it"),
        (["x", "--choices", b"na\xefve"], "--choices is not UTF-8 at byte 2: convert it"),
        (["--file", "absent"], "No such file or directory: absent"),
        (["--file", "."], "Is a directory: ."),
        ([], "give either a text or --file"),
        (["x", "--file", "empty"], "give either a text or --file"),
        (["x", "--choices", "a", ""], "choice 2 of 2 is empty: give at least one character, or leave it out"),
        (["x", "--choices", "a", "--target", "b"], "--choices cannot be combined with --target: leave one of them out"),
        (["x", "--choices", "a", "--by", "word"], "combined with --by word"),
        (["x", "--choices", "a", "--stride", "4"], "combined with --stride"),
        (["x", "--choices", "a", "--masking", "word"], "combined with --masking word"),
        (["", "--no-start", "--choices", "a"], "no start token precedes the choices"),
        (["x", "--choices", " word" * 100], "tokens, and the model reads at most 32: shorten it"),
        (
            ["x", "--target", "b"],
            "--target needs an encoder-decoder, and this run's architecture is decoder: leave it out",
        ),
        (
            ["x", "--masking", "word"],
            "--masking needs an encoder, and this run's architecture is decoder: leave it out",
        ),
        (["x", "--stride", "0"], "--stride is 0, but must be from 1 to the window of 32 tokens"),
        (["x", "--stride", "33"], "--stride is 33, but must be from 1 to the window of 32 tokens"),
        (["x", "--rolling", "--stride", "4"], "--rolling sets the stride to the context: leave --stride out"),
        (["x", "--rolling", "--by", "word"], "--rolling scores tokens and not words: leave --by word out"),
        (["x", "--rolling", "--choices", "a"], "--choices cannot be combined with --rolling"),
        (["x", "--top", "-1"], "--top is -1, but must not be negative"),
        (["x", "--limit", "-1"], "--limit is -1, but must not be negative"),
        (["x", "--parquet", "."], "--parquet . is a folder: name a file"),
    ],
)
def test_mistakes_are_one_clear_sentence(arguments, words, in_process, trained_gpt, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "latin-1").write_bytes("caf\xe9".encode("latin-1"))
    arguments = [a.decode("utf-8", "surrogateescape") if isinstance(a, bytes) else a for a in arguments]
    assert_refused(in_process("score", trained_gpt, *arguments), words)


@pytest.mark.parametrize(
    ("fixture", "arguments", "words"),
    [
        ("trained_bert", ["x", "--no-start"], "--no-start needs a decoder"),
        ("trained_bert", ["x", "--rolling"], "--rolling needs a decoder, and this run's architecture is encoder"),
        ("trained_t5", ["x", "--target", "a", "--rolling"], "--rolling needs a decoder"),
        ("trained_bert", ["x", "--choices", "a"], "--choices needs a decoder or an encoder-decoder"),
        ("trained_bert", ["x", "--target", "a"], "--target needs an encoder-decoder"),
        ("trained_bert", ["x", "--stride", "33"], "from 1 to the window of 32 tokens"),
        ("trained_t5", ["x"], "the run's model is an encoder-decoder: give the target to score with --target"),
        ("trained_t5", ["x", "--target", ""], "the target is empty"),
        ("trained_t5", ["x", "--target", "a", "--stride", "2"], "--stride is for windows"),
        ("trained_t5", ["x", "--target", "a", "--no-start"], "--no-start needs a decoder"),
        ("trained_t5", ["x", "--choices", "a", "--no-start"], "--no-start needs a decoder"),
        ("trained_t5", ["", "--choices", "a"], "the text is empty: give the source of the choices"),
        ("trained_translator", ["x", "--target", "Zahl " * 90], "the model writes at most 32: shorten it"),
    ],
)
def test_options_of_other_architectures_are_refused(fixture, arguments, words, in_process, request):
    assert_refused(in_process("score", request.getfixturevalue(fixture), *arguments), words)


def test_one_token_without_a_start_has_no_score(in_process, trained_gpt):
    done = in_process("score", trained_gpt, "x", "--no-start", "--json")
    totals = json.loads(done.stdout)["totals"]
    assert (totals["tokens"], totals["perplexity"], totals["bits_per_byte"]) == (0, None, None)
    done = in_process("score", trained_gpt, "x", "--no-start")
    assert done.returncode == 0, done.stderr
    assert "not scored" in done.stdout


def test_a_model_whose_logits_are_not_finite_has_no_score(trained_gpt):
    run = bytelm.load_run(trained_gpt, device="cpu")
    with torch.no_grad():
        run.model.stack.final_norm.weight[0] = math.nan
    with pytest.raises(ValueError, match="logits are not finite: its training diverged, choose an earlier `checkp"):
        bytelm.score_text(run, "import os")


def test_sentinels_of_span_corruption_are_sentinels(trained_t5):
    run = bytelm.load_run(trained_t5)
    score = bytelm.score_text(run, "import <|sentinel_0|>\n", target="<|sentinel_0|> os <|endoftext|>")
    sentinel = run.tokenizer.special_tokens["<|sentinel_0|>"]
    end = run.tokenizer.special_tokens["<|endoftext|>"]
    assert score.ids[0] == sentinel and score.ids[-1] == end
    assert end not in score.ids[:-1]  # its spelling in the target is text


def test_standard_input_is_a_text(in_process, trained_gpt):
    done = in_process("score", trained_gpt, "-", "--json", stdin="import os\n")
    assert done.returncode == 0, done.stderr
    assert "".join(row["text"] for row in json.loads(done.stdout)["tokens"]) == "import os\n"
    named = in_process("score", trained_gpt, "--file", "-", "--json", stdin="import os\n")
    assert named.stdout == done.stdout


@pytest.mark.parametrize("text", ["import os\r", "a\rb\u2028", "\x0b"])
def test_every_character_of_a_text_is_scored_whatever_ends_lines_elsewhere(in_process, trained_gpt, tmp_path, text):
    (tmp_path / "text.txt").write_bytes(text.encode())
    done = in_process("score", trained_gpt, "--file", tmp_path / "text.txt", "--json")
    assert bytelm.score_text(bytelm.load_run(trained_gpt), text).ids.tolist() == [
        row["id"] for row in json.loads(done.stdout)["tokens"]
    ]
    assert json.loads(done.stdout)["totals"]["bytes"] == len(text.encode())


def test_verbs_and_functions_agree(trained_gpt, capsys):
    score = bytelm.score(str(trained_gpt), "import os", device="cpu")
    again = bytelm.score_text(bytelm.load_run(trained_gpt, device="cpu"), "import os")
    assert score.predictions.log_probabilities.tolist() == again.predictions.log_probabilities.tolist()
    assert bytelm.score(trained_gpt, "import", choices=" os").choices == (" os",)
    assert capsys.readouterr().out == ""


@given(st.text(st.sampled_from("ab\t\n\x1c \x85\xa0\u1680\u2003\u2028\u3000é漢"), min_size=1))
def test_unicode_white_space_separates_words_in_every_verb(text):
    words, data = text.split(), np.frombuffer(text.encode(), np.uint8)
    pieces = [character.encode() for character in text]
    starts = word_starts(pieces, np.zeros(len(pieces), bool))
    assert sum(not text[start].isspace() for start in starts.tolist()) == len(words)
    hashes, offsets = np.empty(len(data), np.uint64), np.array([0, len(data)])
    assert hash_words(data, offsets, white_space(data), hashes) == len(words)
    assert len(set(hashes[: len(words)].tolist())) == len(set(words))
