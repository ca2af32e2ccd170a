"""One transformer block, its parts and its options."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm.blocks import MLP, Block
from lm.config import ModelConfig
from lm.layers import ACTIVATIONS
from lm.masks import Mask
from lm.mixers.attention import Attention
from lm.model import LanguageModel
from tests.lm.test_model import read, some_ids, tiny


def filled(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("relu", lambda x: torch.maximum(x, torch.zeros(()))),
        ("relu2", lambda x: torch.maximum(x, torch.zeros(())) ** 2),
        ("swiglu", lambda x: x / (1 + torch.exp(-x))),
        ("geglu", lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5))),
        ("geglu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
    ],
)
def test_mlp_computes_its_formula(name, formula):
    mlp, x = filled(MLP(ModelConfig(width=12, heads=2, activation=name))), torch.randn(3, 12)
    up = x @ mlp.up.weight.T + mlp.up.bias
    gated = name in ("swiglu", "geglu", "geglu_tanh")
    inner = formula(x @ mlp.gate.weight.T + mlp.gate.bias) * up if gated else formula(up)
    torch.testing.assert_close(mlp(x), inner @ mlp.down.weight.T + mlp.down.bias, atol=1e-4, rtol=1e-4)
    assert name in ACTIVATIONS


def test_grouped_heads_equal_plain_heads_with_repeated_keys_and_values():
    grouped = LanguageModel(tiny("llama", kv_heads=2), seed=0)
    plain = LanguageModel(tiny("llama"), seed=0)
    state = grouped.state_dict()
    for name, weight in state.items():
        if ".key." in name or ".value." in name:
            state[name] = weight.view(2, 8, 32).repeat_interleave(2, dim=0).flatten(0, 1)
    plain.load_state_dict(state)
    torch.testing.assert_close(grouped(some_ids()), plain(some_ids()), atol=1e-5, rtol=1e-5)


def test_qk_norm_makes_scores_independent_of_the_scale_of_queries_and_keys():
    model = LanguageModel(tiny("gpt2", qk_norm=True, bias=False), seed=0)
    before = model(some_ids())
    with torch.no_grad():
        for block in model.stack.blocks:
            block.attention.query.weight *= 50
            block.attention.key.weight *= 0.5
    torch.testing.assert_close(model(some_ids()), before, atol=1e-3, rtol=1e-3)


def test_value_embeddings_are_added_to_the_values():
    config = ModelConfig(width=16, heads=2)
    attention, x, extra = filled(Attention(config, value_embedding=True)), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    seen = []

    def attend(q, k, v):
        seen.append(v)
        return v

    attention(x, None, attend)
    attention(x, None, attend, extra)
    added = (seen[1] - seen[0]).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(added, attention.value_scale * extra, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_stochastic_depth_skips_whole_sublayers_of_some_sequences_and_keeps_the_mean(name):
    config = tiny(name)
    block = filled(Block(config, causal=True, cross=False, skip=0.4, value_embedding=False))
    block.mlp = None
    x = torch.randn(1, 6, 32).expand(4000, -1, -1)
    attend = lambda q, k, v: v  # noqa: E731
    with torch.no_grad():
        out = block(x, None, attend)
        block.eval()
        expected = block(x[:1], None, attend)[0]
    if config.norm_position == "pre":
        updates = out - x
        skipped = (updates == 0).flatten(1).all(dim=1)
        assert skipped.double().mean().item() == pytest.approx(0.4, abs=0.04)
        torch.testing.assert_close(updates[~skipped][0], (expected - x[0]) / 0.6, atol=1e-4, rtol=1e-4)
    assert len(out.flatten(1).unique(dim=0)) == 2


def test_dropout_zeroes_its_share_of_embeddings_weights_and_updates_in_training_only():
    model = LanguageModel(tiny("gpt2", dropout=0.25, hidden_dropout=0.25), seed=0)
    zeroed = []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda _, __, out: zeroed.append((out == 0).double().mean().item()))
    torch.manual_seed(0)
    model(some_ids(batch=60))
    assert len(zeroed) == 1 + 3 * len(model.stack.blocks)
    assert zeroed == pytest.approx([0.25] * len(zeroed), abs=0.02)
    assert model.stack.blocks[0].mixer.parallel_form(Mask()).keywords["dropout"] == 0.25
    plain = LanguageModel(tiny("gpt2"), seed=0)
    assert torch.equal(model.eval()(some_ids()), plain(some_ids()))
    assert model.stack.blocks[0].mixer.parallel_form(Mask()).keywords["dropout"] == 0.0


def test_stochastic_depth_grows_from_the_first_block_to_the_last():
    model = LanguageModel(tiny("gpt2", layers=4, stochastic_depth=0.4), seed=0)
    assert [block.skip for block in model.stack.blocks] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_an_attention_only_model_has_no_mlp():
    model = LanguageModel(tiny("llama", mlp=False), seed=0)
    assert not [name for name, _ in model.named_parameters() if "mlp" in name]
    assert read(model, some_ids()).shape == (3, 24, 32)


def test_embedding_skips_give_every_block_the_embedding():
    plain, skipping = (LanguageModel(tiny("llama", embedding_skips=on), seed=0) for on in (False, True))
    torch.testing.assert_close(skipping(some_ids()), plain(some_ids()), atol=1e-6, rtol=0)
    with torch.no_grad():  # a last block that forgets the stream and reads the embedding is a one-block model
        skipping.stack.residual_scales[1], skipping.stack.embedding_scales[1] = 0.0, 1.0
        shallow = LanguageModel(tiny("llama", layers=1), seed=0)
        state = {
            name.replace("blocks.1", "blocks.0"): w
            for name, w in skipping.state_dict().items()
            if "blocks.0" not in name
        }
        shallow.load_state_dict({name: w for name, w in state.items() if "scales" not in name})
    torch.testing.assert_close(skipping(some_ids()), shallow(some_ids()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kv_heads": 2, "qk_norm": True}, {"head_width": 6}], ids=str)
def test_one_product_gives_the_queries_keys_values_and_gradients_of_three(options):
    attention = LanguageModel(tiny("gpt2", **options), seed=0).double().stack.blocks[0].attention
    x = torch.randn(2, 5, attention.query.weight.shape[1], dtype=torch.float64)
    found = []
    for one_product in (False, True):
        attention.one_product = one_product
        results = projections(attention, x)
        cotangents = [torch.sin(torch.arange(r.numel(), dtype=torch.float64)).view_as(r) for r in results]
        parameters = [p for name, p in attention.named_parameters() if "output" not in name]
        found.append((*results, *torch.autograd.grad(results, parameters, cotangents)))
    for separate, joint in zip(*found, strict=True):
        torch.testing.assert_close(joint, separate, atol=1e-12, rtol=1e-12)


def projections(attention, x):
    """Return the queries, keys and values of x."""
    seen = []

    def mix(q, k, v):
        seen.extend((q, k, v))
        return q

    attention(x, None, mix)
    return seen


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += "mm" in function.name()
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("device", "products"), [("cpu", 4), ("meta", 2)])
def test_only_a_gpu_takes_queries_keys_and_values_from_one_product(device, products):
    """The meta device stands in for a GPU. One more product is the output's."""
    attention = LanguageModel(tiny("gpt2"), seed=0).to(device).stack.blocks[0].attention
    with Products() as counter:
        attention(torch.zeros(2, 5, attention.query.weight.shape[1], device=device), None, lambda q, k, v: q)
    assert counter.count == products
