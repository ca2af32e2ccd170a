"""A static cache changes no token, and a CUDA graph can record its step."""

from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.costs import meta_model
from lm.decoding.generation import generate, stream
from lm.decoding.packed import prepare
from lm.decoding.state import DecodeState, pad_left
from lm.decoding.static import FEWEST_TOKENS, StaticCache, static_cache_pays
from lm.model import LanguageModel

SHAPE = {"vocab_size": 53, "context_length": 24, "layers": 2, "width": 32, "heads": 4}
DECODERS = {
    "rotary": {"rotary_scaling": "linear", "rotary_factor": 2.0},
    "gpt-neox": {"rotary_width": 4, "residual": "parallel"},
    "learned": {"positions": "learned", "document_mask": True},
    "sinusoidal-post": {"positions": "sinusoidal", "norm_position": "post"},
    "alibi": {"positions": "alibi", "kv_heads": 2},
    "relative": {"positions": "relative", "scaled_attention": False, "kv_heads": 1},
    "relative keys": {"positions": "relative-keys", "relative_distance": 3, "kv_heads": 2},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "tied_head": False, "kv_heads": 2},
    "modern": {
        "layers": 3,
        "norm": "rmsnorm",
        "qk_norm": True,
        "activation": "relu2",
        "soft_cap": 15.0,
        "value_embeddings": 1,
        "embedding_skips": True,
        "bias": False,
    },
    "attention-only": {"mlp": False, "attention": "blocked", "positions": "none"},
}


def random_model(config, seed=0):
    """Return a float64 model with weights so large that its output depends on every input."""
    model = LanguageModel(config, seed=seed)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.double().compute_dtype = torch.float64
    return model


@pytest.fixture(scope="module", params=sorted(DECODERS))
def decoder(request):
    return prepare(random_model(ModelConfig(**SHAPE | DECODERS[request.param])))


def prompts(batch=3, length=5):
    return torch.randint(0, 53, (batch, length), generator=torch.Generator().manual_seed(2))


def unequal_prompts():
    return pad_left([row[row > skip].tolist() or [1] for row, skip in zip(prompts(4, 9), (0, 10, 30, 45), strict=True)])


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 20)])
def test_a_static_cache_changes_no_token_even_past_the_context(decoder, batch, length):
    new = [generate(decoder, prompts(batch, length), 30, temperature=0.0, static=static) for static in (True, False)]
    assert new[0].tolist() == new[1].tolist()


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 20, "repetition_penalty": 1.2}])
def test_a_static_cache_changes_no_token_of_unequal_prompts(decoder, options):
    ids, present = unequal_prompts()
    assert len(set(present.sum(dim=-1).tolist())) > 2
    new = [
        generate(
            decoder,
            ids,
            30,
            present=present,
            generator=torch.Generator().manual_seed(3),
            stop_ids=[7],
            static=static,
            **options,
        )
        for static in (True, False)
    ]
    assert new[0].tolist() == new[1].tolist()


def test_the_logits_are_those_of_the_whole_text_and_stay_after_the_next_step(decoder):
    ids, present = unequal_prompts()
    static, whole = (
        DecodeState(decoder, ids, room=20, present=present, use_cache=static, static=static) for static in (True, False)
    )
    found, expected = [], []
    for step in range(20):
        found.append(static.logits())
        expected.append(whole.logits())
        for state in (static, whole):
            state.append(torch.arange(4) + step)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), atol=1e-9, rtol=0)


def test_streams_of_one_model_do_not_disturb_each_other(decoder):
    alone = generate(decoder, prompts(2), 20, temperature=0.0, static=True).T.tolist()
    streams = [stream(decoder, prompts(2), 20, static=True) for _ in range(2)]
    first = [next(streams[0]).tolist() for _ in range(7)]
    second = [ids.tolist() for ids in streams[1]]
    assert second == alone
    assert [*first, *(ids.tolist() for ids in streams[0])] == alone


def test_a_step_reads_nothing_of_the_device(decoder):
    """Tensors on `meta` stand in for a GPU's: whatever reads one raises, and a CUDA graph could not record it."""
    model = meta_model(replace(decoder.config, context_length=64))
    model.compute_dtype = torch.bfloat16
    state = DecodeState(prepare(model), prompts().to("meta"), room=50, static=True)
    for _ in range(50):
        state.append(state.logits().argmax(dim=-1))


CUDA, CPU = torch.device("cuda"), torch.device("cpu")
PLAIN = ModelConfig(**SHAPE)


@pytest.mark.parametrize(
    ("config", "device", "tokens", "pays"),
    [
        (PLAIN, CUDA, FEWEST_TOKENS, True),
        (PLAIN, CUDA, FEWEST_TOKENS - 1, False),
        (PLAIN, CPU, 100 * FEWEST_TOKENS, False),
        (replace(PLAIN, window=8), CUDA, FEWEST_TOKENS, False),
        (replace(PLAIN, architecture="encoder-decoder"), CUDA, FEWEST_TOKENS, False),
    ],
)
def test_a_static_cache_is_chosen_for_many_tokens_on_a_gpu(config, device, tokens, pays):
    assert static_cache_pays(config, device, tokens) == pays


def test_a_static_cache_for_another_model_is_refused():
    with pytest.raises(ValueError, match="without attention windows"):
        generate(random_model(replace(PLAIN, window=8)), prompts(), 3, static=True)


def test_capacities_share_few_shapes():
    model = prepare(random_model(PLAIN))
    caches = [DecodeState(model, prompts(), room=room, static=True).cache for room in (3, 19)]
    assert all(isinstance(cache, StaticCache) for cache in caches)
    assert caches[0].columns == caches[1].columns
