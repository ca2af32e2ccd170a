"""Beam search agrees with exhaustive search and with transformers."""

import itertools
import math

import pytest
import torch

from lm.config import ModelConfig
from lm.decoding.beam import beam_search
from lm.decoding.generation import generate
from lm.exchange import to_hugging_face
from lm.model import LanguageModel

START, END = 0, 1
T5 = {
    "architecture": "encoder-decoder",
    "context_length": 32,
    "layers": 2,
    "width": 32,
    "heads": 4,
    "positions": "relative",
    "norm": "rmsnorm",
    "activation": "relu",
    "bias": False,
    "scaled_attention": False,
    "scaled_head": True,
}
ORIGINAL = {
    "architecture": "encoder-decoder",
    "context_length": 32,
    "layers": 2,
    "width": 32,
    "heads": 4,
    "positions": "sinusoidal",
    "norm_position": "post",
    "activation": "relu",
}


def random_model(vocab_size, shape=T5, seed=0, spread=0.4):
    """Return a model whose next token depends on every input, and which sometimes ends a target."""
    model = LanguageModel(ModelConfig(vocab_size=vocab_size, **shape), seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    return model.eval()


def sources(vocab_size, seed=3):
    ids = torch.randint(2, vocab_size, (5, 9), generator=torch.Generator().manual_seed(seed))
    return ids, torch.arange(9) < torch.tensor([[9], [4], [7], [1], [6]])


def search(model, source, present=None, ends=(END,), **options):
    found = beam_search(
        model, source, start_id=START, end_ids=ends, source_present=present, **{"max_new_tokens": 12} | options
    )
    return [[(hypothesis.ids, hypothesis.score) for hypothesis in row] for row in found]


def log_probability(model, source, ids):
    with torch.no_grad():
        read = torch.tensor([[START, *ids[:-1]]])
        logs = torch.log_softmax(model.logits(model(read, source[None])), dim=-1)[0]
    return sum(logs[step, token].item() for step, token in enumerate(ids))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -0.5])
def test_enough_beams_find_the_best_target_of_all(length_penalty):
    model, source = random_model(5), sources(5)[0][0]
    longest = 3
    everything = {
        (*body, last)
        for length in range(1, longest + 1)
        for body in itertools.product([0, 2, 3, 4], repeat=length - 1)
        for last in (range(5) if length == longest else [END])
    }
    ranked = sorted((log_probability(model, source, ids) / len(ids) ** length_penalty, ids) for ids in everything)
    found = search(
        model, source[None], beams=130, max_new_tokens=longest, length_penalty=length_penalty, early_stop=False
    )[0]
    assert len(found) == len(everything)
    assert [ids for ids, _ in found[:10]] == [ids for _, ids in ranked[::-1][:10]]
    assert [score for _, score in found] == pytest.approx([score for score, _ in ranked[::-1]], abs=1e-4)


@pytest.mark.parametrize("shape", [T5, ORIGINAL])
def test_one_beam_is_greedy(shape):
    model, (source, present) = random_model(40, shape), sources(40)
    starts = torch.full((len(source), 1), START)
    options = {"source": source, "source_present": present, "temperature": 0, "stop_ids": [END]}
    greedy = generate(model, starts, 12, **options).tolist()
    for row, found in zip(greedy, search(model, source, present, beams=1), strict=True):
        ids = list(found[0][0])
        assert ids == row[: len(ids)]
        assert ids[-1] == END or len(ids) == 12


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 2])
def test_hypotheses_and_scores_are_those_of_transformers(early_stop, length_penalty, seed):
    from transformers import T5Config, T5ForConditionalGeneration

    model, (source, present) = random_model(7, seed=seed), sources(7)
    settings, tensors = to_hugging_face(model.config, model.state_dict())
    peer = T5ForConditionalGeneration(T5Config(**settings)).eval()
    peer.load_state_dict(tensors, strict=False)
    theirs = peer.generate(
        source,
        attention_mask=present.long(),
        num_beams=3,
        num_return_sequences=3,
        max_new_tokens=12,
        do_sample=False,
        early_stopping=True if early_stop else "never",
        length_penalty=length_penalty,
        decoder_start_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ours = search(model, source, present, beams=3, early_stop=early_stop, length_penalty=length_penalty)
    ended = 0
    for row, found in enumerate(ours):
        assert len(found) == 3
        for rank, (ids, score) in enumerate(found):
            said = theirs.sequences[3 * row + rank, 1:].tolist()
            assert list(ids) == said[: len(ids)]
            assert set(said[len(ids) :]) <= {END}
            assert score == pytest.approx(theirs.sequences_scores[3 * row + rank].item(), abs=1e-4)
            ended += ids[-1] == END
    assert ended > 3 or not early_stop


@pytest.mark.parametrize("shape", [T5, ORIGINAL, {**T5, "window": 3}, {**ORIGINAL, "window": 5}])
@pytest.mark.parametrize("early_stop", [True, False])
def test_cache_and_other_sources_do_not_change_the_result(shape, early_stop):
    model, (source, present) = random_model(24, shape), sources(24)
    together = search(model, source, present, early_stop=early_stop)
    for use_cache in (True, False):
        for row, expected in enumerate(together):
            alone = search(model, source[row][present[row]][None], early_stop=early_stop, use_cache=use_cache)[0]
            assert [ids for ids, _ in alone] == [ids for ids, _ in expected]
            assert [score for _, score in alone] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("shape", [T5, ORIGINAL])
def test_targets_contain_allowed_entries_only(shape):
    model, (source, present) = random_model(24, shape), sources(24)
    likeliest = {token for row in search(model, source, present) for token in row[0][0]} - {END}
    allowed = torch.ones(24, dtype=torch.bool)
    allowed[list(likeliest)] = False
    for row in search(model, source, present, allowed=allowed):
        assert len(row) == 4
        for ids, score in row:
            assert allowed[list(ids)].all()
            assert -math.inf < score <= 0


def test_scores_are_log_probabilities_over_length_best_first():
    model, (source, _) = random_model(24), sources(24)
    found = search(model, source[:1], length_penalty=0.6)[0]
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    for ids, score in found:
        assert score == pytest.approx(log_probability(model, source[0], ids) / len(ids) ** 0.6, abs=1e-4)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: search(random_model(8), sources(8)[0], beams=0), "beams is 0"),
        (lambda: search(random_model(8), sources(8)[0], max_new_tokens=0), "max_new_tokens is 0"),
        (
            lambda: search(random_model(8, {"width": 16, "heads": 2}), sources(8)[0]),
            "'decoder', and a source was given",
        ),
    ],
)
def test_invalid_searches_are_refused(attempt, words):
    with pytest.raises(ValueError, match=words):
        attempt()


@pytest.mark.parametrize("beams", [1, 3])
def test_each_of_several_end_ids_ends_a_target(beams):
    from transformers import T5Config, T5ForConditionalGeneration

    model, (source, present) = random_model(7), sources(7)
    settings, tensors = to_hugging_face(model.config, model.state_dict())
    peer = T5ForConditionalGeneration(T5Config(**settings)).eval()
    peer.load_state_dict(tensors, strict=False)
    options = {"num_beams": beams, "max_new_tokens": 12, "do_sample": False, "early_stopping": beams > 1}
    ids = {"eos_token_id": [END, 3], "decoder_start_token_id": START, "pad_token_id": START}
    theirs = peer.generate(source, attention_mask=present.long(), **options, **ids)
    ended = set()
    for row, found in zip(theirs.tolist(), search(model, source, present, (END, 3), beams=beams), strict=True):
        best = list(found[0][0])
        assert best == row[1 : len(best) + 1]
        ended.add(best[-1])
    assert {END, 3} <= ended


def chain(probabilities):
    """Return a model whose next token depends on the last one alone, with these probabilities (V, V)."""
    entries = len(probabilities)
    shape = {"context_length": 16, "layers": 1, "width": entries, "heads": 1, "positions": "none", "norm": "rmsnorm"}
    config = ModelConfig(
        vocab_size=entries, architecture="encoder-decoder", **shape, zero_projections=True, tied_head=False
    )
    model = LanguageModel(config, seed=0).eval()
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(entries))
        # length 1, which the norm turns into sqrt(entries)
        model.head.output_weight.copy_(torch.tensor(probabilities).log().T / entries**0.5)
    return model


def test_without_an_early_stop_a_likely_end_does_not_hide_a_longer_target_that_scores_better():
    # After START an end is likelier than 2, but the mean of 2, 3, 3 is higher.
    tiny = 1e-6
    model = chain([[tiny, 0.5, 0.4, 0.1], [0.25] * 4, [tiny, 0.02, tiny, 0.98], [tiny, 0.5, tiny, 0.5]])
    source = torch.tensor([[2, 3]])
    ((first, first_score),) = search(model, source, beams=1, early_stop=True, max_new_tokens=4)[0]
    assert first == (END,)
    assert first_score == pytest.approx(math.log(0.5), abs=1e-4)
    ((best, score),) = search(model, source, beams=1, early_stop=False, max_new_tokens=4)[0]
    assert best[:2] == (2, 3)
    assert score > first_score + 0.1
