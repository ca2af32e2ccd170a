"""`score --pairs`: rows of BLiMP and EWoK as published, with the scores of a plain loop over transformers' models."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import torch

import bytelm
from pipelines.scoring.minimal_pairs import read_pairs
from tests.pipelines.exchange_cases import AUTO
from tests.pipelines.test_cli import assert_refused
from tests.tasks.files import write

NOUNS, VERBS = (("cat", "cats"), ("os", "oses"), ("path", "paths")), (("runs", "run"), ("is", "are"))
BLIMP = [
    {
        "sentence_good": f"the {nouns[plural]} {verbs[plural]}.",
        "sentence_bad": f"the {nouns[plural]} {verbs[1 - plural]}.",
        "UID": f"agreement_{'plural' if plural else 'singular'}",
        "field": "morphology",
        "linguistics_term": "subject_verb_agreement",
        "pairID": str(plural),
    }
    for nouns, verbs, plural in itertools.product(NOUNS, VERBS, (0, 1))
]
EWOK = [
    {
        "Domain": domain,
        "ContextType": "direct",
        "Context1": f"{one} is in x.",
        "Context2": f"{two} is in x.",
        "Target1": f"x has {one}.",
        "Target2": f"x has {two}.",
    }
    for domain, one, two in (("paths", "os", "sys"), ("paths", "a", "b"), ("words", "path", "import"))
]


@pytest.fixture(scope="module")
def exported(peers, tmp_path_factory):
    """Return get(kind): it returns a loaded run, and its export opened by `transformers` as a model and a tokenizer."""
    transformers = pytest.importorskip("transformers")

    def get(kind):
        run, folder = peers(kind)[2], tmp_path_factory.mktemp("hf") / kind
        tok = transformers.AutoTokenizer.from_pretrained(bytelm.export_hf(run, out=folder))
        return bytelm.load_run(run, device="cpu"), AUTO[kind].from_pretrained(folder).eval(), tok

    return get


def causal_score(peer, tok, context, target, before):
    """Return ln p of the tokens after the context under a causal model, from a plain loop."""
    read = tok(context, add_special_tokens=False)["input_ids"] if context else []
    ids = [*before, *tok(context + target, add_special_tokens=False)["input_ids"]]
    log_p = torch.log_softmax(peer(torch.tensor([ids])).logits[0].detach().double(), dim=-1)
    return sum(float(log_p[i - 1, ids[i]]) for i in range(max(1, len(before) + len(read)), len(ids)))


def masked_score(peer, tok, run, context, target, within_word):
    """Return the pseudo-log-likelihood of the tokens after the context under a masked model, from a plain loop."""
    special = run.around.special
    first = len(tok(context, add_special_tokens=False)["input_ids"]) if context else 0
    ids, total = tok(context + target, add_special_tokens=False)["input_ids"], 0.0
    for place in range(first, len(ids)):
        end = place + 1
        pieces = [tok.decode(one) for one in ids]
        while within_word and end < len(ids) and not (pieces[end][0].isspace() or pieces[end - 1][-1].isspace()):
            end += 1
        read = [special["<|mask|>"] if place <= i < end else one for i, one in enumerate(ids)]
        logits = peer(torch.tensor([[special["<|cls|>"], *read, special["<|sep|>"]]])).logits[0, place + 1]
        total += float(torch.log_softmax(logits.detach().double(), dim=-1)[ids[place]])
    return total


def texts_of(row, blank=""):
    """Return the (context, target) of the better and of the worse texts of a row."""
    if "UID" in row:
        return [("", blank + row["sentence_good"])], [("", blank + row["sentence_bad"])]
    one, two = blank + row["Context1"], blank + row["Context2"]
    first, second = " " + row["Target1"], " " + row["Target2"]
    return [(one, first), (two, second)], [(two, first), (one, second)]


def assert_scores(found, rows, score, blank=""):
    for good, bad, row in zip(found.good, found.bad, rows, strict=True):
        better, worse = texts_of(row, blank)
        assert good == pytest.approx([score(*text) for text in better], abs=1e-3)
        assert bad == pytest.approx([score(*text) for text in worse], abs=1e-3)


@pytest.mark.parametrize(("start", "blank"), [(True, ""), (False, ""), (True, " "), (False, " ")])
@pytest.mark.parametrize("rows", [BLIMP, EWOK])
def test_a_decoders_scores_are_those_of_transformers_in_each_convention(rows, start, blank, exported, tmp_path):
    run, peer, tok = exported("gpt2")
    run.around = replace(run.around, before=(0,))
    file = write(tmp_path / "rows.jsonl", rows)
    found = bytelm.score_pairs(run, [file], start=start, leading_blank=bool(blank))
    before = (0,) if start else ()
    assert (found.start_ids, found.leading_blank, found.masking) == (before, bool(blank), None)
    assert_scores(found, rows, lambda context, target: causal_score(peer, tok, context, target, before), blank)


@pytest.mark.parametrize("masking", ["token", "word"])
@pytest.mark.parametrize("rows", [BLIMP, EWOK])
def test_an_encoders_scores_are_pseudo_log_likelihoods_of_transformers(rows, masking, exported, tmp_path):
    run, peer, tok = exported("bert")
    found = bytelm.score_pairs(run, [write(tmp_path / "rows.jsonl", rows)], masking=masking)
    assert (found.measure, found.masking, found.start_ids) == ("pseudo-log-likelihood", masking, ())

    def score(context, target):
        return masked_score(peer, tok, run, context, target, masking == "word")

    assert_scores(found, rows, score)


def test_our_run_scores_as_its_export(trained_gpt, tmp_path):
    transformers = pytest.importorskip("transformers")
    out = bytelm.export_hf(trained_gpt, out=tmp_path / "hf")
    tok = transformers.AutoTokenizer.from_pretrained(out)
    peer = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    found = bytelm.score_pairs(bytelm.load_run(trained_gpt), [write(tmp_path / "rows.jsonl", BLIMP)])
    before = tuple(peer.config.bytelm_before_text)
    assert found.start_ids == before
    assert_scores(found, BLIMP, lambda context, target: causal_score(peer, tok, context, target, before))


def test_accuracies_count_pairs_by_paradigm_and_ties_half(trained_gpt, tmp_path):
    tie = {"sentence_good": "the same", "sentence_bad": "the same", "UID": "tie", "field": "none"}
    files = [write(tmp_path / name, rows) for name, rows in (("a.jsonl", [*BLIMP, tie]), ("b.jsonl", EWOK))]
    found = bytelm.score_pairs(bytelm.load_run(trained_gpt), files)
    by_name = {one.name: one for one in found.paradigms}
    assert list(by_name) == ["agreement_plural", "agreement_singular", "paths", "tie", "words"]
    assert (by_name["tie"].accuracy, by_name["tie"].ties, by_name["tie"].pairs) == (0.5, 1, 1)
    right = [np.mean(np.greater(good, bad)) for good, bad in zip(found.good, found.bad, strict=True)]
    plural = [one for one, row in zip(right, BLIMP, strict=False) if row["UID"] == "agreement_plural"]
    assert by_name["agreement_plural"].accuracy == pytest.approx(np.mean(plural))
    assert (
        by_name["paths"].accuracy == pytest.approx(np.mean(right[len(BLIMP) + 1 :][:2])) and by_name["paths"].pairs == 2
    )
    assert found.all.accuracy == pytest.approx((sum(right) + 0.5) / len(right))
    assert found.mean == pytest.approx(np.mean([one.accuracy for one in found.paradigms]))
    assert all(one.low <= one.accuracy <= one.high for one in found.paradigms)
    assert {one.name for one in found.groups} == {"morphology", "none"}


def test_a_file_without_paradigms_names_its_pairs(tmp_path):
    (pair,) = read_pairs([write(tmp_path / "verbs.jsonl", [{"sentence_good": "a", "sentence_bad": "b"}])])
    assert (pair.paradigm, pair.group) == ("verbs", "")


def test_the_command_names_the_convention_and_writes_json_and_parquet(in_process, trained_gpt, trained_bert, tmp_path):
    file = write(tmp_path / "rows.jsonl", BLIMP)
    done = in_process("score", trained_gpt, "--pairs", file)
    assert "agreement_plural" in done.stdout and "morphology" in done.stdout
    assert "score: sum of ln p, after <|endoftext|>, no leading blank; ties count half" in done.stdout
    done = in_process("score", trained_gpt, "--pairs", file, "--no-start", "--leading-blank")
    assert "without a start token or the first token, a leading blank" in done.stdout
    done = in_process("score", trained_bert, "--pairs", file)
    assert "masked with the later tokens of its word (Kauf & Ivanova 2023)" in done.stdout
    done = in_process("score", trained_bert, "--pairs", file, "--masking", "token")
    assert "each token masked alone (Salazar et al. 2020)" in done.stdout
    done = in_process("score", trained_gpt, "--pairs", file, "--json", "--parquet", "pairs.parquet")
    content = json.loads(done.stdout)
    assert content["start_ids"] == [0] and content["leading_blank"] is False and len(content["rows"]) == len(BLIMP)
    assert pyarrow.parquet.read_table(tmp_path / "pairs.parquet").to_pylist() == content["rows"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"sentence_good": "a"}, '"sentence_bad" in line 1 of rows.jsonl is missing; the row has sentence_good'),
        ({"sentence_good": "a", "sentence_bad": 3}, '"sentence_bad" in line 1 of rows.jsonl is 3: give a text'),
        ({"sentence_good": " ", "sentence_bad": "b"}, "\"sentence_good\" in line 1 of rows.jsonl is ' ': give a text"),
        (EWOK[0] | {"Target2": None}, '"Target2" in line 1 of rows.jsonl is None: give a text'),
        ({"sentence_good": "word " * 99, "sentence_bad": "b"}, "line 1 of rows.jsonl is longer than the context of 32"),
    ],
)
def test_rows_that_are_no_pairs_are_refused_by_line(row, words, in_process, trained_gpt, tmp_path):
    write(tmp_path / "rows.jsonl", [row])
    assert_refused(in_process("score", trained_gpt, "--pairs", "rows.jsonl"), words)


@pytest.mark.parametrize(
    ("fixture", "arguments", "words"),
    [
        ("trained_gpt", ["x", "--pairs", "rows.jsonl"], "--pairs reads texts from files: leave a text out"),
        ("trained_gpt", ["--pairs", "rows.jsonl", "--choices", "a"], "leave --choices out"),
        ("trained_gpt", ["--pairs", "rows.jsonl", "--by", "word"], "--pairs scores whole texts: leave --by word out"),
        ("trained_gpt", ["--pairs", "rows.jsonl", "--stride", "3"], "leave --stride out"),
        ("trained_gpt", ["--pairs", "absent.jsonl"], "there is no absent.jsonl: name a file of minimal pairs"),
        ("trained_gpt", ["--pairs", "empty.jsonl"], "empty.jsonl has no pairs"),
        ("trained_gpt", ["x", "--leading-blank"], "--leading-blank is for the texts of --pairs: leave it out"),
        ("trained_gpt", ["--pairs", "rows.jsonl", "--masking", "word"], "--masking needs an encoder"),
        ("trained_bert", ["--pairs", "rows.jsonl", "--no-start"], "--no-start needs a decoder"),
        ("trained_t5", ["--pairs", "rows.jsonl"], "--pairs needs a decoder or an encoder"),
    ],
)
def test_options_that_do_not_go_with_pairs_are_refused(fixture, arguments, words, in_process, request, tmp_path):
    write(tmp_path / "rows.jsonl", BLIMP)
    (tmp_path / "empty.jsonl").touch()
    assert_refused(in_process("score", request.getfixturevalue(fixture), *arguments), words)
