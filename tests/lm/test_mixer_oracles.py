"""Mixers equal the layers of other libraries with the same weights."""

from types import SimpleNamespace

import pytest
import torch

from lm.config import ModelConfig
from lm.masks import Mask
from lm.mixers.gru import GRU
from lm.mixers.lstm import LSTM
from lm.mixers.mamba2 import EXPANSION, KERNEL, Mamba2
from lm.mixers.scan import chunked_scan
from lm.mixers.scan_costs import CHUNK

CONFIG = ModelConfig(width=24, heads=3)
LENGTH = CHUNK + 30


def random_input(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def with_random_weights(mixer):
    generator = torch.Generator().manual_seed(0)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3, generator=generator)
    return mixer.double().eval()


def mixed(mixer, x):
    return mixer(x, None, mixer.parallel_form(Mask(causal=True)))


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_mamba2_equals_the_mixer_of_transformers(bias):
    transformers = pytest.importorskip("transformers")
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = ModelConfig(width=24, heads=3, bias=bias, norm_eps=1e-5)
    own, x = with_random_weights(Mamba2(config)), random_input(2, LENGTH, 24)
    theirs = transformers.Mamba2Config(
        hidden_size=24,
        num_heads=3,
        head_dim=2 * 8,
        state_size=8,
        expand=EXPANSION,
        n_groups=1,
        conv_kernel=KERNEL,
        chunk_size=16,
        use_bias=bias,
        layer_norm_epsilon=1e-5,
        num_hidden_layers=1,
        vocab_size=9,
    )
    peer = Mamba2Mixer(theirs, 0).double()
    names = {"conv1d.weight": own.kernel, "conv1d.bias": own.kernel_bias, "dt_bias": own.step_bias, "D": own.skip}
    names |= {"A_log": own.log_rate, "norm.weight": own.norm.weight, "out_proj.weight": own.output.weight}
    names["in_proj.weight"] = torch.cat((own.gate.weight, own.input.weight, own.step.weight))
    if bias:
        names["in_proj.bias"] = torch.cat((own.gate.bias, own.input.bias, torch.zeros(3)))
        names["out_proj.bias"] = own.output.bias
    peer.load_state_dict(names)
    torch.testing.assert_close(mixed(own, x), peer(x), rtol=1e-5, atol=1e-5)  # they compute in float32


@torch.no_grad()
def test_a_scan_with_fixed_decay_equals_lightning_attention_of_transformers():
    pytest.importorskip("transformers")
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    settings = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 4, "block_size": 32, "head_dim": 8}
    peer = MiniMaxLightningAttention(
        SimpleNamespace(**settings, hidden_act="silu", layer_types=["linear_attention"] * 4), layer_idx=1
    ).double()
    x = random_input(2, LENGTH, 24)
    q, k, v = peer.act_fn(peer.qkv_proj(x)).unflatten(-1, (3, 24)).transpose(1, 2).split(8, dim=-1)
    decay = -peer.slope_rate.flatten()[None, :, None].expand(1, -1, LENGTH)
    merged = chunked_scan(q, k, v, decay)[0].transpose(1, 2).flatten(-2)
    own = peer.out_proj(torch.sigmoid(peer.output_gate(x)) * peer.norm(merged))
    torch.testing.assert_close(own, peer(x, None, None)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("kind", "peer"), [(GRU, torch.nn.GRU), (LSTM, torch.nn.LSTM)])
@torch.no_grad()
def test_gated_recurrences_equal_the_layers_of_pytorch(kind, peer):
    own, theirs, x = with_random_weights(kind(CONFIG)), peer(24, 24, batch_first=True).double(), random_input(2, 40, 24)
    for name, layer in (("ih", own.input), ("hh", own.recurrent)):
        theirs.state_dict()[f"weight_{name}_l0"].copy_(layer.weight)
        theirs.state_dict()[f"bias_{name}_l0"].copy_(layer.bias)
    torch.testing.assert_close(mixed(own, x), own.output(theirs(x)[0]), rtol=1e-12, atol=1e-12)
