"""Models with sparse attention: every backend, cache and batch gives the same; nothing leaks; others refuse by name."""

from dataclasses import replace

import pytest
import torch

from lm.attention.backends import BACKENDS
from lm.attention.patterns import drawn_blocks
from lm.config import ModelConfig
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.decoding.state import DecodeState, pad_left
from lm.decoding.static import StaticCache
from lm.masks import Mask
from lm.mixers.mixer import check_mixers
from lm.model import LanguageModel
from tests.lm.attention_cases import in_pattern

PATTERNS = {
    "dilated": {"pattern_size": 3},
    "strided": {"pattern_size": 5},
    "fixed": {"pattern_size": 5, "pattern_count": 2},
    "global": {"pattern_size": 3, "pattern_count": 2},
    "random": {"pattern_size": 3, "pattern_count": 2},
    "fixed in a window": {"attention_pattern": "fixed", "pattern_size": 4, "window": 9},
    "random in a window": {"attention_pattern": "random", "pattern_size": 2, "window": 7, "positions": "alibi"},
}
CONTEXT = 32


def config_of(name, **changes):
    fields = {"attention_pattern": name, **PATTERNS[name]}
    return ModelConfig(vocab_size=41, context_length=CONTEXT, layers=2, width=32, heads=2, **fields | changes)


def random_model(config):
    model = LanguageModel(config, seed=1).eval().double()
    model.compute_dtype = torch.float64
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def ids_of(rows, tokens):
    return torch.randint(41, (rows, tokens), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("name", sorted(PATTERNS))
@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_a_model_equals_one_with_a_dense_mask_made_entry_by_entry(name, backend, architecture):
    config = config_of(name, architecture=architecture, attention=backend)
    sparse, ids, positions = random_model(config), ids_of(2, CONTEXT), range(CONTEXT)
    plain = random_model(
        replace(config, attention="reference", attention_pattern="none", pattern_size=16, pattern_count=1)
    )
    seen = torch.tensor([[in_pattern(sparse.stack.pattern, i, j) for j in positions] for i in positions])
    bias = torch.zeros(1, 2, CONTEXT, CONTEXT).masked_fill(~seen, -1e9)
    if plain.stack.relative is not None:
        bias = bias + plain.stack.bias(slice(0, CONTEXT), CONTEXT, torch.float64)
    mask = Mask(causal=architecture == "decoder", window=config.window, bias=bias)
    mixes = [block.mixer.parallel_form(mask) for block in plain.stack.blocks]
    with torch.no_grad():
        expected = plain.stack(plain.embed(ids), ids, dtype=torch.float64, mask=Mask(), mixes=mixes)
        torch.testing.assert_close(sparse(ids), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_a_changed_token_moves_the_outputs_that_see_it_and_no_other(name):
    model = random_model(replace(config_of(name), layers=1, positions="none"))
    ids = ids_of(1, CONTEXT)
    with torch.no_grad():
        before = model(ids)[0]
        for j in range(CONTEXT):
            changed = ids.clone()
            changed[0, j] = (changed[0, j] + 1) % 41
            moved = (model(changed)[0] != before).any(dim=-1)
            window = model.config.window or CONTEXT
            sees = [j <= i < j + window and in_pattern(model.stack.pattern, i, j) for i in range(CONTEXT)]
            assert moved.tolist() == sees


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_the_cache_gives_the_logits_of_whole_sequences(name):
    model = random_model(config_of(name))
    rows = [row[:length].tolist() for row, length in zip(ids_of(3, 9), (9, 2, 5), strict=True)]
    ids, present = pad_left(rows)
    more = ids_of(3, CONTEXT)[:, : CONTEXT - 9]
    states = [DecodeState(prepare(model), ids, room=99, present=present, use_cache=use_cache) for use_cache in (1, 0)]
    for step in range(CONTEXT - 9):
        cached, whole = (state.logits() for state in states)
        torch.testing.assert_close(cached, whole, rtol=1e-9, atol=1e-9)
        for row, prompt in enumerate(rows):
            text = torch.cat((torch.tensor(prompt), more[row, :step]))[None]
            with torch.no_grad():
                alone = model.logits(model(text))[0, -1]
            torch.testing.assert_close(cached[row], alone, rtol=1e-9, atol=1e-9)
        for state in states:
            state.append(more[:, step])


def test_an_encoder_decoder_attends_sparsely_to_itself_and_densely_to_its_source():
    model = random_model(config_of("strided", architecture="encoder-decoder"))
    ids, source = ids_of(1, 20), ids_of(2, 20)[1:]
    with torch.no_grad():
        before = model(ids, source)[0]
        changed = source.clone()
        changed[0, 3] += 1 if int(changed[0, 3]) < 40 else -1
        assert bool((model(ids, changed)[0] != before).any(dim=-1).all())
    assert generate(model, ids[:, :3], 6, source=source, temperature=0.0).tolist() == (
        generate(model, ids[:, :3], 6, source=source, temperature=0.0, use_cache=False).tolist()
    )


def test_every_block_draws_its_number_of_earlier_blocks_whatever_the_length():
    long = drawn_blocks(40, 3)
    assert torch.equal(long, long.T)
    assert not long.diagonal().any()
    assert torch.equal(long[:12, :12], drawn_blocks(12, 3))
    assert long.tril().sum(dim=1).tolist() == [min(3, block) for block in range(40)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pattern_size": 4}, "model.pattern_size is 4, but model.attention_pattern is 'none'"),
        ({"attention_pattern": "strided", "pattern_count": 2}, "model.pattern_count is 2, but .* 'strided'"),
        ({"attention_pattern": "fixed", "pattern_size": 4, "pattern_count": 5}, "give at most model.pattern_count=4"),
        ({"attention_pattern": "dilated", "pattern_size": 0}, "model.pattern_size is 0: give at least 1"),
        ({"attention_pattern": "sparse"}, "model.attention_pattern is 'sparse'"),
    ],
)
def test_patterns_that_cannot_be_are_refused_by_name(fields, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(**fields)


@pytest.mark.parametrize("mixer", ["gru", "retention", "hopfield"])
def test_other_mixers_refuse_a_pattern(mixer):
    config = ModelConfig(mixer=mixer, attention_pattern="strided")
    with pytest.raises(ValueError, match=r"does not support model\.attention_pattern='strided'"):
        check_mixers(config)


def test_caches_that_ignore_patterns_refuse_them():
    model = random_model(config_of("strided"))
    with pytest.raises(ValueError, match="without attention windows and patterns"):
        StaticCache(model.stack, 1, 8, dtype=torch.float64, device=torch.device("cpu"))
    with pytest.raises(ValueError, match=r"model\.attention_pattern='strided'"):
        generate(model, ids_of(1, 3), 2, sinks=2)
