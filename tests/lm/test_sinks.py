"""A cache with attention sinks equals a forward pass over the tokens that it keeps, with positions from 0."""

import math

import pytest
import torch

from lm.config import ModelConfig
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.decoding.sinks import SinkCache
from lm.decoding.state import DecodeState, pad_left, read
from lm.masks import Mask
from lm.model import LanguageModel

CAPACITY, TOKENS = 8, 21
KINDS = {
    "rotary": {},
    "partly rotary": {"rotary_width": 4, "kv_heads": 1, "qk_norm": True},
    "yarn": {"rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_original_length": 4},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative", "relative_buckets": 8, "relative_distance": 6, "scaled_attention": False},
    "relative keys": {"positions": "relative-keys", "relative_distance": 3},
    "none": {"positions": "none", "value_embeddings": 1},
}


def random_model(layers, **kind):
    config = ModelConfig(vocab_size=31, context_length=CAPACITY, layers=layers, width=32, heads=2, **kind)
    model = LanguageModel(config, seed=1).eval().double()
    model.compute_dtype = torch.float64
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def texts(rows=3):
    return torch.randint(31, (rows, TOKENS), generator=torch.Generator().manual_seed(7))


def cached_logits(model, ids, sinks, first, padding=None):
    """Return the logits after each token from `first` on: (steps, B, V)."""
    prepared = prepare(model, len(ids))
    cache = SinkCache(
        prepared.stack, len(ids), CAPACITY, dtype=torch.float64, device=ids.device, padding=padding, sinks=sinks
    )
    pieces = [ids[:, :first], *ids[:, first:].split(1, dim=1)]
    with torch.inference_mode():
        return torch.stack([prepared.logits(read(prepared, cache, piece)) for piece in pieces])


def kept(step, sinks):
    """Return the tokens that the cache holds after reading token `step`."""
    return [i for i in range(step + 1) if i < sinks or i > step - (CAPACITY - sinks) or step < CAPACITY]


@pytest.mark.parametrize("sinks", [0, 1, 4, 7])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_one_layer_predicts_as_a_whole_pass_over_the_kept_tokens(kind, sinks):
    model, ids = random_model(1, **KINDS[kind]), texts()
    found = cached_logits(model, ids, sinks, first=3)
    for step, logits in enumerate(found, 2):
        with torch.no_grad():
            expected = model.logits(model(ids[:, kept(step, sinks)]))[:, -1]
        torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)


def plain_mix(model, sinks, number):
    """Return the attention of block `number` with a list of keys, each turned to its place in the list."""
    config, list_of_keys, list_of_values = model.config, [], []
    rotary, relative = model.stack.rotary, model.stack.relative
    by_distance = model.stack.blocks[number].mixer.relative_keys

    def turned(x, place):  # (B, H, D) by complex numbers
        if rotary is None:
            return x
        half = config.rotary_features // 2
        turns = torch.complex(rotary.cosine[place, :half].double(), rotary.sine[place, half:].double())
        pair = torch.complex(x[..., :half], x[..., half : 2 * half]) * turns
        return torch.cat((pair.real, pair.imag, x[..., 2 * half :]), dim=-1)

    def mix(q, k, v):
        list_of_keys.append(k[:, :, 0])
        list_of_values.append(v[:, :, 0])
        if len(list_of_keys) > CAPACITY:
            del list_of_keys[sinks], list_of_values[sinks]
        last = len(list_of_keys) - 1
        group = config.heads // config.key_value_heads
        query = turned(q[:, :, 0], last)
        keys = torch.stack([turned(key, i) for i, key in enumerate(list_of_keys)], dim=2)
        if by_distance is not None:
            farthest = config.relative_distance
            keys = keys + torch.stack(
                [by_distance.weight[farthest + max(i - last, -farthest)] for i in range(last + 1)]
            )
        scores = torch.einsum("bhd,bhsd->bhs", query, keys.repeat_interleave(group, 1))
        scores = scores / math.sqrt(q.shape[-1]) if config.scaled_attention else scores
        if relative is not None:
            scores = scores + relative(slice(last, last + 1), last + 1)[:, :, 0]
        values = torch.stack(list_of_values, dim=2).repeat_interleave(group, 1)
        return torch.einsum("bhs,bhsd->bhd", scores.softmax(-1), values).unsqueeze(2)

    return mix


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_three_layers_predict_as_a_list_of_keys_turned_anew_at_every_step(kind):
    model, ids, sinks = random_model(3, **KINDS[kind]), texts(), 2
    mixes = [plain_mix(model, sinks, number) for number in range(3)]
    found = cached_logits(model, ids, sinks, first=5)
    with torch.no_grad():
        for step in range(TOKENS):
            token = ids[:, step : step + 1]
            hidden = model.stack(
                model.embed(token), token, dtype=torch.float64, mask=Mask(), mixes=mixes, rotated=False
            )
            if step >= 4:
                expected = model.logits(hidden[:, 0])
                torch.testing.assert_close(found[step - 4], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_texts_of_different_lengths_predict_as_each_alone(kind):
    model = random_model(2, **KINDS[kind])
    rows = [row[:length].tolist() for row, length in zip(texts(), (7, 2, 4), strict=True)]
    ids, present = pad_left(rows)
    more = texts()[:, 7:]
    found = cached_logits(model, torch.cat((ids, more), dim=1), 3, first=7, padding=(~present).sum(dim=-1))
    for row, prompt in enumerate(rows):
        alone = torch.cat((torch.tensor([prompt]), more[row : row + 1]), dim=1)
        expected = cached_logits(model, alone, 3, first=len(prompt))
        torch.testing.assert_close(found[:, row], expected[:, 0], rtol=1e-9, atol=1e-9)


def test_a_text_within_the_context_continues_as_without_sinks():
    model, ids = random_model(2), texts()[:, :3]
    assert torch.equal(
        generate(model, ids, 5, temperature=0.0, sinks=2), generate(model, ids, 5, temperature=0.0, use_cache=False)
    )


def test_generation_beyond_the_context_reads_each_token_once():
    model, ids = prepare(random_model(2)), texts()[:, :3]
    state = DecodeState(model, ids, room=100, sinks=2)
    for _ in range(40):
        state.append(state.logits().argmax(dim=-1))
        assert state.unread.shape == (3, 1)
    assert state.window.shape == (3, CAPACITY)
    assert state.cache.length == 42


def test_sequences_can_be_selected_and_forgotten():
    model, ids = prepare(random_model(2)), texts()
    state = DecodeState(model, ids[:, :6], room=100, sinks=2)
    for step in range(6, 12):
        state.logits()
        state.append(ids[:, step])
    expected = state.logits()[[2, 0]]
    state = DecodeState(model, ids[:, :6], room=100, sinks=2)
    for step in range(6, 12):
        state.logits()
        if step == 9:
            state.select(torch.tensor([2, 0]))
        state.append(ids[[2, 0] if step >= 9 else [0, 1, 2], step])
    torch.testing.assert_close(state.logits(), expected)


@pytest.mark.parametrize(
    ("kind", "sinks", "words"),
    [
        ({}, 8, "`sinks` is 8, but must be from 0 to 7"),
        ({"positions": "learned"}, 4, "positions='learned', which are part of the embeddings"),
        ({"positions": "sinusoidal"}, 4, "positions='sinusoidal', which are part of the embeddings"),
        ({"window": 4}, 2, "model.window=4: only a model with model.window=0"),
        ({"mixer": "gru", "positions": "none"}, 4, "model.mixer='gru'"),
        ({"mixers": ("linear", "attention"), "positions": "none"}, 4, r"model\.mixer='linear \+ attention'"),
        ({"architecture": "encoder-decoder"}, 4, "model.architecture='encoder-decoder'"),
    ],
)
def test_models_without_use_for_sinks_are_refused_by_name(kind, sinks, words):
    model = random_model(2, **kind)
    source = {"source": texts()[:, :4]} if kind.get("architecture") else {}
    with pytest.raises(ValueError, match=words):
        generate(model, texts()[:, :2], 3, sinks=sinks, **source)
