"""Intervals of an evaluation: over documents, or over blocks of contexts of a few documents."""

import math

import numpy as np
import pytest

from lm.metrics.intervals import block_length
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.confidence import draw, sampling_of
from pipelines.evaluation.documents import text_of_stream
from pipelines.evaluation.measurements.intervals import Intervals
from pipelines.evaluation.measurements.predictions import intervals
from pipelines.evaluation.windows import TokenScores
from pipelines.verbs.evaluate import evaluate
from tokenizer import Tokenizer


def scores_of_stream(stream, nats, correct):
    """Return the scores of all tokens of a stream but the first."""
    ids, indices = stream.read(0, stream.tokens).astype(np.int32), np.arange(1, stream.tokens)
    columns = (indices - 1) % 32
    return TokenScores(ids[1:], ids[:-1], columns, (indices - 1) // 32, indices, nats, correct)


def test_intervals_are_those_of_the_sums_of_documents(dataset_folder, tokenizer_folder):
    """The split train has 57 documents or so; a loop over documents gives the same sums."""
    stream, tok = TokenDataset(dataset_folder).split("train"), Tokenizer.load(tokenizer_folder)
    generator = np.random.default_rng(0)
    nats, correct = generator.gamma(2, 1, stream.tokens - 1), generator.random(stream.tokens - 1) < 0.3
    scores = scores_of_stream(stream, nats, correct)
    text = text_of_stream(stream, tok, tok.special_tokens["<|endoftext|>"])
    sampling = sampling_of(scores, text, 32)
    assert sampling.block is None and sampling.documents >= 30
    sums, document = [], -1
    for token, cost in zip(stream.read(0, stream.tokens).tolist(), [0.0, *nats], strict=True):
        if token == tok.special_tokens["<|endoftext|>"]:
            sums.append(0.0)
            document += 1
        sums[document] += cost
    np.testing.assert_allclose(sampling.sums(nats), sums)
    lengths = np.asarray(tok.token_byte_lengths)
    found = intervals(scores, sampling, lengths[scores.targets])
    low, high = found["cross_entropy"]
    assert low < nats.mean() < high
    assert found["perplexity"] == (math.exp(low), math.exp(high))
    assert found["cross_entropy_bits"] == pytest.approx((low / math.log(2), high / math.log(2)))
    assert found["accuracy"][0] < correct.mean() < found["accuracy"][1]
    bits = nats.sum() / math.log(2) / lengths[scores.targets].sum()
    assert found["bits_per_byte"][0] < bits < found["bits_per_byte"][1]


def test_a_few_documents_are_cut_into_blocks_of_contexts(trained_gpt):
    numbers = evaluate(trained_gpt).to_json()["splits"]["validation"]
    found = numbers["intervals"]
    assert (found["resampled"], found["draws"]) == ("blocks", 2000)
    assert found["contexts_per_block"] >= 4
    assert found["documents"] < 30 < found["contexts"]
    for key in ("cross_entropy", "cross_entropy_bits", "perplexity", "bits_per_byte", "accuracy"):
        assert found[key][0] < numbers[key] < found[key][1]


def test_a_text_of_one_context_has_no_interval():
    scores = TokenScores(*(np.zeros(3, np.int64) for _ in range(5)), np.ones(3), np.ones(3, bool))
    assert sampling_of(scores, None, 32) is None
    assert intervals(scores, None, None) == {}


def scores_of_contexts(losses):
    """Return the scores of contexts of one token each."""
    numbers = np.arange(len(losses))
    return TokenScores(*[numbers] * 5, losses, np.ones(len(losses), bool))


@pytest.mark.parametrize("contexts", [2, 10, 19])
def test_a_text_of_few_contexts_has_no_interval(contexts):
    """Their bootstrap covers the mean in far fewer than 95 % of texts."""
    assert sampling_of(scores_of_contexts(np.ones(contexts)), None, 32) is None


def test_an_interval_of_the_shortest_text_that_has_one_covers_the_mean():
    generator, covered = np.random.default_rng(0), []
    for _ in range(150):
        scores = scores_of_contexts(generator.gamma(4, 1, 20))
        low, high = intervals(scores, sampling_of(scores, None, 32), None)["cross_entropy"]
        covered.append(low < 4 < high)
    assert np.mean(covered) > 0.75


@pytest.mark.parametrize("units", [20, 21, 29, 100])
def test_samples_of_blocks_have_the_size_of_the_text(units):
    drawn = draw(np.ones((units, 1)), block_length(units))
    assert drawn == pytest.approx(np.full(drawn.shape, units))


def test_blocks_that_mix_documents_are_the_reason_for_blocks_of_contexts():
    mixed, few = (Intervals("blocks", documents, 50, 5, 2000, 0, {}).sentences(0)[0] for documents in (1000, 3))
    assert "the 50 contexts, because each mixes documents." in mixed
    assert "the 50 contexts, because the text has only 3 documents." in few


def test_models_without_a_code_length_have_no_interval_of_bits_per_byte(trained_bert, trained_t5, trained_translator):
    for run in (trained_bert, trained_t5, trained_translator):
        numbers = evaluate(run, beams=0).to_json()["splits"]["validation"]
        low, high = numbers["intervals"]["cross_entropy"]
        assert low < numbers["cross_entropy"] < high
        assert (numbers["intervals"]["bits_per_byte"] is None) == (numbers["bits_per_byte"] is None)


def test_the_table_shows_intervals_and_says_what_was_drawn(in_process, trained_gpt):
    done = in_process("evaluate", trained_gpt)
    assert done.returncode == 0, done.stderr
    found = evaluate(trained_gpt).to_json()["splits"]["validation"]
    low, high = found["intervals"]["bits_per_byte"]
    assert f"{found['bits_per_byte']:.4f} ({low:.4f} to {high:.4f})" in done.stdout
    assert f"contexts, because the text has only {found['intervals']['documents']} documents." in done.stdout
