"""Relative keys (Shaw et al. 2018): every query also reads a key of the distance, which all heads share."""

from dataclasses import replace

import pytest
import torch

from lm.attention.backends import BACKENDS
from lm.backward import block_backward
from lm.config import ModelConfig
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.exchange import to_hugging_face
from lm.exchange.gguf import to_gguf
from lm.longer_context import with_context
from lm.masks import Mask
from lm.mixers.attention import Attention
from lm.model import LanguageModel
from lm.task_model import reconfigured

SMALL = ModelConfig(
    vocab_size=29, context_length=12, layers=2, width=16, heads=4, positions="relative-keys", relative_distance=3
)


def filled(module, seed=0):
    """Return the module in float64 with random parameters."""
    generator = torch.Generator().manual_seed(seed)
    module.double().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5, generator=generator)
    return module


def model_of(config, seed=0):
    model = filled(LanguageModel(config), seed)
    model.compute_dtype = torch.float64
    return model


def some_ids(shape=(2, 12), seed=1):
    return torch.randint(SMALL.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_attention_and_its_gradients_are_those_of_wav2vec2_bert(architecture):
    transformers = pytest.importorskip("transformers")
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

    causal = architecture == "decoder"
    ours = filled(Attention(replace(SMALL, architecture=architecture)))
    peer = Wav2Vec2BertSelfAttention(
        transformers.Wav2Vec2BertConfig(
            hidden_size=16,
            num_attention_heads=4,
            position_embeddings_type="relative_key",
            left_max_position_embeddings=3,
            right_max_position_embeddings=0 if causal else 3,
            attn_implementation="eager",
        )
    ).double()
    pairs = {"linear_q": "query", "linear_k": "key", "linear_v": "value", "linear_out": "output"}
    weights = {
        f"{theirs}.{part}": getattr(getattr(ours, name), part)
        for theirs, name in pairs.items()
        for part in ("weight", "bias")
    }
    peer.load_state_dict(weights | {"distance_embedding.weight": ours.relative_keys.weight})
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    hidden = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1)[None, None] if causal else None
    expected = peer.eval()(x, attention_mask=hidden)[0]
    got = ours(x, None, ours.parallel_form(Mask(causal=causal)))
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)
    for output in (expected, got):
        output.square().sum().backward()
    theirs = peer.distance_embedding.weight.grad
    torch.testing.assert_close(ours.relative_keys.weight.grad, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours.query.weight.grad, peer.linear_q.weight.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"architecture": "encoder"}, {"kv_heads": 2, "qk_norm": True}])
def test_all_backends_give_the_same_logits_and_gradients(options):
    found = {}
    for name in BACKENDS:
        model = model_of(replace(SMALL, attention=name, **options))
        logits = model.logits(model(some_ids()))
        logits.square().mean().backward()
        found[name] = logits.detach(), [parameter.grad for parameter in model.parameters()]
    for logits, gradients in found.values():
        torch.testing.assert_close(logits, found["reference"][0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradients, found["reference"][1], rtol=1e-8, atol=1e-10)


def test_a_later_token_changes_no_earlier_output():
    model, ids = model_of(SMALL), some_ids()
    with torch.no_grad():
        before = model(ids)
        for place in (1, 5, 11):
            changed = ids.clone()
            changed[:, place] = (changed[:, place] + 1) % SMALL.vocab_size
            after = model(changed)
            assert torch.equal(after[:, :place], before[:, :place])
            assert not torch.allclose(after[:, place], before[:, place])


def test_scores_depend_on_distances_alone_and_all_far_ones_share_a_key():
    attention = filled(Attention(SMALL))
    q = torch.randn(1, 4, 1, 4, dtype=torch.float64).expand(-1, -1, 9, -1)  # the same query everywhere
    scores = attention.biased(Mask(causal=True), q, 9).bias[0]
    for distance in range(9):
        diagonal = scores.diagonal(-distance, dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal))
        assert torch.allclose(diagonal[:, 0], scores[:, 8, 8 - min(distance, 3)])
    assert not torch.allclose(scores[:, 8, 5], scores[:, 8, 6])


def test_texts_beyond_the_trained_length_are_read_with_the_same_weights():
    model = model_of(replace(SMALL, layers=1, window=5))
    longer = reconfigured(model, with_context(model.config, 40))
    ids = some_ids((1, 40))
    with torch.no_grad():
        whole = longer.logits(longer(ids))
        last = model.logits(model(ids[:, -12:]))
    # Queries whose window is within the last 12 tokens; `reconfigured` makes a float32 copy.
    torch.testing.assert_close(whole[:, -8:], last[:, -8:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 4},
        {"kv_heads": 1, "scaled_attention": False},
        {"attention_pattern": "dilated", "pattern_size": 2},
        {"mixers": ("hopfield", "attention")},
        {"mixers": ("mamba2", "attention")},
        {"layer_groups": 1},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_of_keys_gives_the_tokens_of_whole_texts(options, dtype):
    model = model_of(replace(SMALL, **options)).to(dtype)
    model.compute_dtype = dtype
    prompts = some_ids((3, 4))
    wanted = 20 if dtype == torch.float32 else 1
    for each in (model, prepare(model, 1)):
        cached = generate(each, prompts, max_new_tokens=wanted, temperature=0.0)
        assert torch.equal(cached, generate(each, prompts, max_new_tokens=wanted, temperature=0.0, use_cache=False))


def test_only_self_attention_has_relative_keys_and_a_decoder_has_none_ahead():
    both = LanguageModel(replace(SMALL, architecture="encoder-decoder"))
    assert {n.split(".")[3] for n, _ in both.named_parameters() if "relative_keys" in n} == {"attention"}
    for architecture, rows in (("decoder", 4), ("encoder", 7)):
        attention = LanguageModel(replace(SMALL, architecture=architecture)).stack.blocks[0].mixer
        assert attention.relative_keys.weight.shape == (rows, 4)


def test_what_cannot_have_relative_keys_refuses_them_by_name():
    model = model_of(SMALL)
    for export in (to_hugging_face, to_gguf):
        with pytest.raises(ValueError, match=r"model\.positions = .*, not 'relative-keys'"):
            export(SMALL, model.state_dict())
    x = torch.zeros(1, 3, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"without model\.positions='relative-keys'"):
        block_backward(model.stack.blocks[0], x, None, Mask(causal=True), x)
    with pytest.raises(ValueError, match=r"model\.relative_distance is 0: relative keys need 1 to"):
        replace(SMALL, relative_distance=0)
