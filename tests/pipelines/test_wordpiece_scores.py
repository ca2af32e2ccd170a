"""`bytelm score` with a tokenizer that loses text: surprisals are exact, and the bytes of tokens are null."""

import json

import numpy as np
import pytest
import torch

import bytelm
from tests.pipelines.test_cli import assert_refused

TEXT = 'José "Naïve" IMPORTED\tos, and ☃ sys'


@pytest.fixture(scope="module")
def run(wordpiece_run):
    return bytelm.load_run(wordpiece_run, device="cpu")


def test_each_token_has_the_surprisal_of_the_models_logits(run):
    score = bytelm.score_text(run, TEXT)
    log_p = torch.log_softmax(run.logits(TEXT).double(), dim=-1)[:-1]
    expected = log_p.gather(-1, torch.from_numpy(score.ids)[:, None]).squeeze(-1)
    np.testing.assert_allclose(score.predictions.log_probabilities, expected, atol=1e-4)
    assert b"".join(score.pieces) == run.tokenizer.decode_bytes(score.ids)


def test_totals_count_the_original_bytes_and_are_no_code_length(run):
    score = bytelm.score_text(run, TEXT)
    assert (score.byte_lengths, score.bits_per_byte) == (None, None)
    assert score.bytes == len(TEXT.encode()) != len(b"".join(score.pieces))
    assert score.bits_per_original_byte == -score.log_probability_bits / score.bytes
    without_start = bytelm.score_text(run, TEXT, start=False)
    assert (without_start.bytes, without_start.bits_per_original_byte) == (None, None)


def test_the_probability_of_a_word_includes_that_the_next_token_begins_a_word(run):
    tok, score = run.tokenizer, bytelm.score_text(run, TEXT, words=True)
    before = score.ids[:1].tolist()
    size = len(tok.decode(before))
    added = [tok.decode([*before, i])[size:] for i in range(tok.vocab_size)]
    beginnings = [not own or text[:1] == " " for own, text in zip(tok.ordinary, added, strict=True)]
    log_p = torch.log_softmax(run.logits(TEXT).double(), dim=-1)
    ends = log_p[:, torch.tensor(beginnings)].logsumexp(dim=-1).numpy()
    words = score.words
    texts = [b"".join(score.pieces[start:end]) for start, end in zip(words.starts, words.ends, strict=True)]
    assert [text.strip() for text in texts] == tok.decode_bytes(score.ids).split()
    # A word certainly begins at the start, and after the special token [UNK].
    certain = [start == 0 or not tok.ordinary[score.ids[start - 1]] for start in [*words.starts, len(score.ids)]]
    borders = np.where(certain, 0.0, ends[[*words.starts, len(score.ids)]])
    np.testing.assert_allclose(words.log_probabilities, words.token_sums + np.diff(borders), atol=1e-4)
    assert sum(certain) == 2


def test_choices_are_ranked_by_their_log_probability_per_byte_as_given(run):
    ranked = bytelm.rank_choices(run, "Import", [" os", " OS", "  sýs"])
    assert ranked.bytes.tolist() == [3, 3, 6]
    assert ranked.log_probabilities[0] == ranked.log_probabilities[1]
    np.testing.assert_array_equal(ranked.per_byte, ranked.log_probabilities / [3, 3, 6])


def test_choices_after_a_text_that_the_tokenizer_deletes_follow_the_start_token(run):
    ranked, alone = (bytelm.rank_choices(run, text, ["import", "os"]) for text in ("\x07", ""))
    np.testing.assert_array_equal(ranked.log_probabilities, alone.log_probabilities)
    with pytest.raises(ValueError, match="the text has no tokens, and no start token precedes the choices: add a word"):
        bytelm.rank_choices(run, "\x07", ["import", "os"], start=False)


def test_the_command_says_that_byte_lengths_are_unknown(in_process, wordpiece_run, tmp_path):
    done = in_process("score", wordpiece_run, TEXT, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "the byte length of a token is unknown" in " ".join(done.stdout.split())
    assert "bits per byte of the original" in " ".join(done.stdout.split())
    done = in_process("score", wordpiece_run, TEXT, "--json", "--by", "word", "--device", "cpu")
    found = json.loads(done.stdout)
    assert {row["bytes"] for row in found["tokens"] + found["words"]} == {None}
    assert (found["totals"]["bytes"], found["totals"]["bits_per_byte"]) == (len(TEXT.encode()), None)
    assert found["totals"]["bits_per_original_byte"] > 0
    assert_refused(in_process("score", wordpiece_run, "\t \u200b"), "the text has no tokens")
