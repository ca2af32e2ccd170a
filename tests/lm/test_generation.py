"""Continuing a text and filling masks: the cache changes speed, never tokens."""

import pytest
import torch

from lm.config import ModelConfig
from lm.generation import KVCache, fill_masks, generate, stream
from lm.model import build_model

SHAPE = {"vocab_size": 53, "context_length": 16, "layers": 2, "width": 32, "heads": 4}
DECODERS = {
    "rotary": {},
    "learned": {"positions": "learned"},
    "sinusoidal-post": {"positions": "sinusoidal", "norm_position": "post"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "tied_head": False},
}


def lively(config):
    """A model with weights large enough that what it says depends on all that it reads."""
    model = build_model(config, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture(params=sorted(DECODERS))
def decoder(request):
    return lively(ModelConfig(**SHAPE, **DECODERS[request.param]))


def prompts(batch=3, length=5):
    return torch.randint(0, 53, (batch, length), generator=torch.Generator().manual_seed(2))


def seeded():
    return torch.Generator().manual_seed(3)


def test_cached_logits_equal_those_of_the_whole_sequence(decoder):
    decoder.eval()
    ids = prompts(length=16)
    expected = decoder.logits(decoder(ids))
    cache = KVCache(decoder.config, batch=3, dtype=torch.float32, device=ids.device)
    with torch.no_grad():
        for piece in (ids[:, :4], ids[:, 4:5], ids[:, 5:12], ids[:, 12:13], ids[:, 13:]):
            got = decoder.logits(decoder(piece, start=cache.length, attends=cache.attends()))
            stop = cache.length + piece.shape[1]
            torch.testing.assert_close(got, expected[:, cache.length : stop], atol=1e-4, rtol=1e-4)
            cache.advance(piece.shape[1])


@pytest.mark.parametrize("length", [1, 5, 16, 23])
def test_cache_changes_no_token_even_past_the_context(decoder, length):
    options = {"max_new_tokens": 40, "top_k": 10, "top_p": 0.9}
    cached = generate(decoder, prompts(length=length), generator=seeded(), **options)
    plain = generate(decoder, prompts(length=length), generator=seeded(), use_cache=False, **options)
    assert cached.shape == (3, 40)
    assert torch.equal(cached, plain)


def test_greedy_tokens_are_the_likeliest_after_all_before(decoder):
    new = generate(decoder, prompts(), 11, temperature=0)
    read = torch.cat((prompts(), new), dim=1)
    predicted = decoder.eval().logits(decoder(read)).argmax(dim=-1)
    assert torch.equal(predicted[:, 4:-1], new)


def test_a_prompt_longer_than_the_context_is_read_from_its_end(decoder):
    long = prompts(length=30)
    first = generate(decoder, long, 1, temperature=0)
    assert torch.equal(first, generate(decoder, long[:, -16:], 1, temperature=0))


def test_the_same_seed_says_the_same_and_another_does_not(decoder):
    first, second = (generate(decoder, prompts(), 11, generator=seeded()) for _ in range(2))
    other = generate(decoder, prompts(), 11, generator=torch.Generator().manual_seed(4))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_sequence_ends_with_its_stop_token_and_waits_for_the_others(decoder):
    free = generate(decoder, prompts(), 30, generator=seeded())
    stop = free[0, 7].item()
    stopped = generate(decoder, prompts(), 30, generator=seeded(), stop_ids=[stop])
    for mine, theirs in zip(stopped.tolist(), free.tolist(), strict=True):
        end = theirs.index(stop) + 1 if stop in theirs else len(theirs)
        assert mine[:end] == theirs[:end][: len(mine)]
        assert all(token == stop for token in mine[end:])
    alone = generate(decoder, prompts()[0], 30, temperature=0, stop_ids=range(53))
    assert alone.shape == (1,)


def test_streamed_tokens_are_those_of_generate(decoder):
    tokens = stream(decoder, prompts(), 9)
    assert torch.equal(torch.stack(list(tokens), dim=1), generate(decoder, prompts(), 9, temperature=0))


def test_generation_leaves_the_model_as_it_was(decoder):
    decoder.compute_dtype = torch.bfloat16
    before = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    assert decoder.training
    generate(decoder, prompts(), 5, temperature=0)
    assert decoder.training
    for name, parameter in decoder.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.requires_grad
        assert torch.equal(parameter, before[name])


def test_no_new_tokens_is_an_empty_answer(decoder):
    assert generate(decoder, prompts(), 0).shape == (3, 0)


def encoder():
    return lively(ModelConfig(**SHAPE, architecture="encoder", positions="learned", norm_position="post"))


def test_masks_are_filled_with_the_likeliest_tokens_and_their_probabilities():
    model, mask = encoder(), 2
    ids = torch.tensor([3, 10, mask, 12, mask, 4])
    filled = fill_masks(model, ids, mask_id=mask, top=4)
    p = torch.softmax(model.eval().logits(model(ids[None])), dim=-1)[0]
    assert [mask.position for mask in filled] == [2, 4]
    for mask in filled:
        values, tokens = p[mask.position].topk(4)
        assert mask.ids == tokens.tolist()
        assert mask.probabilities == pytest.approx(values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: generate(encoder(), prompts(), 3), "an encoder does not continue"),
        (lambda: fill_masks(encoder(), torch.tensor([3, 4]), mask_id=2), "no position holds the mask id 2"),
        (lambda: fill_masks(lively(ModelConfig(**SHAPE)), torch.tensor([2]), mask_id=2), "a decoder does not"),
        (lambda: generate(lively(ModelConfig(**SHAPE)), torch.empty(0, dtype=torch.int64), 3), "T at least 1"),
    ],
)
def test_what_cannot_be_generated_is_refused(attempt, words):
    with pytest.raises(ValueError, match=words):
        attempt()
