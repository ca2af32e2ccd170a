"""Generation and mask filling: cache, preparation and batch size do not change the tokens."""

from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.decoding.cache import KVCache
from lm.decoding.generation import fill_masks, generate, stream
from lm.decoding.packed import PackedLinear, SplitLinear, packing_works, prepare
from lm.decoding.state import DecodeState, pad_left
from lm.masks import Mask
from lm.model import LanguageModel

SHAPE = {"vocab_size": 53, "context_length": 16, "layers": 2, "width": 32, "heads": 4}
DECODERS = {
    "rotary": {},
    "gpt-neox": {"rotary_width": 4, "residual": "parallel"},
    "learned": {"positions": "learned"},
    "sinusoidal-post": {"positions": "sinusoidal", "norm_position": "post"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "tied_head": False, "kv_heads": 2},
    "wide heads": {"head_width": 12, "kv_heads": 2},
    "relative": {"positions": "relative", "scaled_attention": False, "kv_heads": 1},
    "window": {"window": 5, "positions": "none"},
    "relative keys": {"positions": "relative-keys", "relative_distance": 3},
    "relative-window": {"window": 6, "positions": "relative", "relative_distance": 20},
    "modern": {
        "layers": 3,
        "norm": "rmsnorm",
        "qk_norm": True,
        "activation": "relu2",
        "soft_cap": 15.0,
        "value_embeddings": 2,
        "embedding_skips": True,
        "bias": False,
        "attention": "reference",
    },
    "attention-only": {"mlp": False, "attention": "blocked"},
}
ENCODER_DECODERS = {
    "t5": {
        "positions": "relative",
        "norm": "rmsnorm",
        "activation": "geglu",
        "bias": False,
        "scaled_attention": False,
        "scaled_head": True,
        "decoder_layers": 3,
    },
    "original": {"positions": "sinusoidal", "norm_position": "post", "activation": "relu", "kv_heads": 2},
}


def random_model(config):
    """Return a model with weights so large that its output depends on every input."""
    model = LanguageModel(config, seed=0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture(scope="module", params=sorted(DECODERS))
def decoder(request):
    return random_model(ModelConfig(**SHAPE | DECODERS[request.param]))


@pytest.fixture(scope="module", params=sorted(ENCODER_DECODERS))
def encoder_decoder(request):
    return random_model(ModelConfig(**SHAPE | ENCODER_DECODERS[request.param], architecture="encoder-decoder"))


def encoder():
    return random_model(ModelConfig(**SHAPE, architecture="encoder", positions="learned", norm_position="post"))


def prompts(batch=3, length=5):
    return torch.randint(0, 53, (batch, length), generator=torch.Generator().manual_seed(2))


def sources():
    """Return three sources of 7, 2 and 4 tokens, padded on the right."""
    ids = torch.randint(0, 53, (3, 7), generator=torch.Generator().manual_seed(5))
    return ids, torch.arange(7) < torch.tensor([[7], [2], [4]])


def seeded():
    return torch.Generator().manual_seed(3)


def test_cached_logits_equal_those_of_the_whole_sequence(decoder):
    decoder.eval()
    ids = prompts(length=16)
    stack = decoder.decoder
    with torch.no_grad():
        expected = decoder.logits(decoder(ids))
        cache = KVCache(stack, 3, 16, dtype=torch.float32, device=ids.device)
        for piece in (ids[:, :4], ids[:, 4:5], ids[:, 5:12], ids[:, 12:13], ids[:, 13:]):
            tokens = piece.shape[1]
            hidden = stack(
                decoder.embed(piece),
                piece,
                dtype=torch.float32,
                mask=Mask(),
                positions=cache.positions(tokens),
                mixes=cache.mixes(tokens),
            )
            got = decoder.logits(hidden)
            torch.testing.assert_close(got, expected[:, cache.length : cache.length + tokens], atol=1e-4, rtol=1e-4)
            cache.advance(tokens)


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_prepared_model_gives_the_logits_of_the_model(decoder, dtype, sequences):
    if dtype == torch.float64:
        decoder = random_model(decoder.config).double()
    decoder.eval()
    decoder.compute_dtype = dtype
    try:
        ready = prepare(decoder, sequences)
        ids = prompts(length=9)
        with torch.no_grad():
            expected, got = decoder.logits(decoder(ids)), ready.logits(ready.model(ids))
    finally:
        decoder.compute_dtype = torch.float32
    assert got.dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    assert ((got - expected).abs().max() / expected.abs().max()).item() < tolerance


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("outputs", "parts"), [(30, 2), (31, 2), (31, 3), (5, 4)])
def test_a_split_linear_equals_one_product(outputs, parts, bias):
    whole = torch.nn.Linear(7, outputs, bias=bias)
    split = SplitLinear(whole.weight, whole.bias, parts)
    for shape in ((7,), (3, 7), (2, 3, 7)):
        x = torch.randn(shape, generator=seeded())
        torch.testing.assert_close(split(x), whole(x))


def gone(*_):
    raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")


def changed(*_):
    raise RuntimeError("_linear_pointwise() is missing value for argument 'algorithm'")


def wrong(layer, x):
    return torch.zeros(*x.shape[:-1], 5, dtype=x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("method", "trouble"), [("__init__", gone), ("forward", changed), ("forward", wrong)])
def test_layers_use_plain_products_if_torch_has_no_packed_products(method, trouble, dtype, monkeypatch):
    model = random_model(ModelConfig(**SHAPE | DECODERS["llama"])).eval()
    model.compute_dtype = dtype
    expected = model.logits(model(prompts())).detach()
    packing_works.cache_clear()
    try:
        with monkeypatch.context() as patch:
            if method == "__init__":
                patch.setattr(PackedLinear, method, trouble)
            else:
                patch.setattr(PackedLinear, "__init__", lambda layer, *_: torch.nn.Module.__init__(layer))
                patch.setattr(PackedLinear, method, trouble)
            assert not packing_works(dtype)
            ready = prepare(model)
        assert not any(isinstance(layer, PackedLinear) for layer in ready.model.modules())
        with torch.no_grad():
            got = ready.logits(ready.model(prompts()))
    finally:
        packing_works.cache_clear()
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert ((got - expected).abs().max() / expected.abs().max()).item() < tolerance


def test_packed_products_are_used_where_they_work():
    layers = list(prepare(plain()).model.modules())
    assert any(isinstance(layer, PackedLinear) for layer in layers) == packing_works(torch.float32)
    assert not packing_works(torch.float64)


@pytest.mark.parametrize("length", [1, 5, 16, 23])
def test_cache_changes_no_token_even_past_the_context(decoder, length):
    options = {"max_new_tokens": 40, "top_k": 10, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1}
    cached = generate(decoder, prompts(length=length), generator=seeded(), **options)
    plain = generate(decoder, prompts(length=length), generator=seeded(), use_cache=False, **options)
    assert cached.shape == (3, 40)
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}])
def test_a_prompt_continues_the_same_in_a_batch_and_alone(decoder, use_cache, options):
    texts = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14], list(range(20, 42))]
    ids, present = pad_left(texts)
    together = generate(decoder, ids, 30, present=present, temperature=0, use_cache=use_cache, **options)
    for text, new in zip(texts, together, strict=True):
        alone = generate(decoder, torch.tensor(text), 30, temperature=0, use_cache=use_cache, **options)
        assert new.tolist() == alone.tolist()


def test_greedy_tokens_are_the_likeliest_after_the_whole_text(decoder):
    new = generate(decoder, prompts(), 11, temperature=0)
    read = torch.cat((prompts(), new), dim=1)
    predicted = decoder.eval().logits(decoder(read)).argmax(dim=-1)
    assert torch.equal(predicted[:, 4:-1], new)


def test_targets_depend_on_their_own_sources_only(encoder_decoder):
    source, present = sources()
    start = torch.full((3, 1), 1)
    options = {"source": source, "source_present": present, "temperature": 0}
    new = generate(encoder_decoder, start, 12, **options)
    assert torch.equal(new, generate(encoder_decoder, start, 12, use_cache=False, **options))
    read = torch.cat((start, new), dim=1)
    encoder_decoder.eval()
    predicted = encoder_decoder.logits(encoder_decoder(read, source, source_present=present)).argmax(dim=-1)
    assert torch.equal(predicted[:, :-1], new)
    assert len({tuple(row) for row in new.tolist()}) == 3
    for row in range(3):
        alone = generate(encoder_decoder, start[0], 12, source=source[row][present[row]], temperature=0)
        assert alone.tolist() == new[row].tolist()


def test_a_prompt_longer_than_the_context_is_cut_to_its_end(decoder):
    long = prompts(length=30)
    first = generate(decoder, long, 1, temperature=0)
    assert torch.equal(first, generate(decoder, long[:, -16:], 1, temperature=0))


def test_the_same_seed_draws_the_same_text_and_another_does_not(decoder):
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


def test_a_high_repetition_penalty_repeats_no_token():
    model = random_model(ModelConfig(**SHAPE))
    new = generate(model, prompts(1), 11, temperature=0, repetition_penalty=1e9)[0].tolist()
    assert len({*new, *prompts(1)[0].tolist()}) == 11 + len(set(prompts(1)[0].tolist()))


def test_a_penalty_does_not_delay_the_end_of_a_text_that_begins_with_an_end_token():
    model = random_model(ModelConfig(**SHAPE))
    pairs = torch.cartesian_prod(torch.arange(53), torch.arange(53))
    ends = generate(model, pairs, 1, temperature=0)[:, 0] == pairs[:, 0]
    end, said = pairs[ends][0].tolist()
    options = {"temperature": 0, "repetition_penalty": 1e9}
    assert generate(model, torch.tensor([end, said]), 9, stop_ids=[end], **options).tolist() == [end]
    ids, present = pad_left([[end, said], [end]])
    assert generate(model, ids, 9, present=present, stop_ids=[end], **options)[0, 0] == end
    assert end not in generate(model, torch.tensor([end, said]), 9, **options)


def test_stream_yields_the_tokens_of_generate(decoder):
    tokens = stream(decoder, prompts(), 9)
    assert torch.equal(torch.stack(list(tokens), dim=1), generate(decoder, prompts(), 9, temperature=0))


def test_a_prepared_model_can_be_reused(decoder):
    ready = prepare(decoder)
    assert prepare(ready) is ready
    assert torch.equal(generate(ready, prompts(), 9, temperature=0), generate(decoder, prompts(), 9, temperature=0))


def test_generation_does_not_change_the_model():
    model = random_model(ModelConfig(**SHAPE))
    model.compute_dtype = torch.bfloat16
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert model.training
    generate(model, prompts(), 5, temperature=0)
    assert model.training
    assert [name for name, _ in model.named_parameters()] == list(before)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.requires_grad
        assert torch.equal(parameter, before[name])


def test_zero_new_tokens_give_an_empty_result(decoder):
    assert generate(decoder, prompts(), 0).shape == (3, 0)


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


def cut(model, entries):
    """Return the same model with only the first entries of its vocabulary."""
    smaller = LanguageModel(replace(model.config, vocab_size=entries), seed=0)
    shapes = {name: tensor.shape for name, tensor in smaller.state_dict().items()}
    weights = {name: tensor[: shapes[name][0]] for name, tensor in model.state_dict().items()}
    smaller.load_state_dict(weights)
    return smaller


def test_disallowed_entries_act_as_missing():
    allowed, ids = torch.arange(53) < 40, prompts() % 40
    model = random_model(ModelConfig(**SHAPE))
    assert (generate(model, ids, 30, generator=seeded()) >= 40).any()
    for options in ({"temperature": 0, "repetition_penalty": 1.2}, {"generator": seeded()}):
        new = generate(model, ids, 30, allowed=allowed, **options)
        assert (new < 40).all()
    assert torch.equal(
        generate(model, ids, 30, temperature=0, allowed=allowed), generate(cut(model, 40), ids, 30, temperature=0)
    )
    masked = torch.tensor([3, 10, 2, 12, 4])
    for expected, got in zip(
        fill_masks(cut(encoder(), 40), masked, mask_id=2),
        fill_masks(encoder(), masked, mask_id=2, allowed=allowed),
        strict=True,
    ):
        assert got.ids == expected.ids
        assert got.probabilities == pytest.approx(expected.probabilities, rel=1e-4)


def test_a_full_window_drops_a_quarter_and_reads_the_rest_once():
    model = prepare(random_model(ModelConfig(**SHAPE)))
    context = model.config.context_length
    for use_cache in (True, False):
        state = DecodeState(model, prompts()[:, :1], room=3 * context, use_cache=use_cache)
        lengths = []
        for step in range(3 * context):
            state.logits()
            state.append(torch.full((len(state.window),), step % 7))
            lengths.append(state.window.shape[1])
        assert max(lengths) == context
        after = context + 1 - context // 4
        cycle = [*range(after, context + 1)]
        assert lengths[: context - 1] == [*range(2, context + 1)]
        rest = lengths[context - 1 :]
        assert rest == (cycle * len(rest))[: len(rest)]
        assert state.window[0, -5:].tolist() == [step % 7 for step in range(3 * context - 5, 3 * context)]


def plain():
    return random_model(ModelConfig(**SHAPE))


def t5():
    return random_model(ModelConfig(**SHAPE, **ENCODER_DECODERS["t5"], architecture="encoder-decoder"))


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: generate(encoder(), prompts(), 3), "an encoder does not continue"),
        (lambda: fill_masks(encoder(), torch.tensor([3, 4]), mask_id=2), "no position holds the mask id 2"),
        (lambda: fill_masks(plain(), torch.tensor([2]), mask_id=2), "a decoder does not"),
        (lambda: generate(plain(), torch.empty(0, dtype=torch.int64), 3), "T at least 1"),
        (lambda: generate(plain(), prompts(), 3, present=prompts() >= torch.tensor([0, 0, 0, 0, 99])), "on the left"),
        (lambda: generate(plain(), prompts(), 3, present=torch.ones(3, 4, dtype=torch.bool)), r"shape \(3, 4\)"),
        (lambda: generate(plain(), prompts(), 3, source=prompts()), "'decoder', and a source was given"),
        (lambda: generate(t5(), prompts(), 3), "'encoder-decoder', and a source was not given"),
        (lambda: generate(t5(), prompts(), 3, source=prompts(), source_present=prompts() > 99), "a token in every row"),
        (lambda: pad_left([[1], []]), "text 2 of 2 has no token"),
        (lambda: pad_left([]), "there is no text to read"),
    ],
)
def test_invalid_calls_are_refused(attempt, words):
    with pytest.raises(ValueError, match=words):
        attempt()
