"""Small models of every mixer, and formulas of the mixers position by position: sums over the past, and no state."""

from dataclasses import replace
from functools import partial
from typing import get_args

import torch
import torch.nn.functional as F  # noqa: N812

from lm.config import MixerKind, ModelConfig
from lm.decoding.hybrid_state import state_class
from lm.masks import Mask
from lm.mixers.mixer import mixer_class
from lm.mixers.recurrent import RecurrentMixer, merge_heads, split_heads
from lm.model import LanguageModel

VOCABULARY = 31
SMALL = ModelConfig(layers=2, width=24, heads=3, context_length=300, vocab_size=VOCABULARY, norm_eps=0.01)
MIXERS = [mixer for mixer in get_args(MixerKind) if mixer != "attention"]
RECURRENT = [mixer for mixer in MIXERS if issubclass(mixer_class(mixer), RecurrentMixer)]
HYBRIDS = ["mamba2 + attention", "hopfield + attention"]


def random_model(mixer, dtype=torch.float64, seed=0, **options):
    """Return a model with all parameters random, so that a missing bias or gate changes its outputs.

    `mixer`: a mixer, or a pattern such as those in HYBRIDS.
    """
    pattern = tuple(mixer.split(" + "))
    model = LanguageModel(replace(SMALL, mixers=pattern, **options), seed=0).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data += 0.2 * noise.to(dtype)
    model.compute_dtype = dtype
    return model.eval()


def random_ids(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def read_pieces(model, ids, pieces, present=None):
    """Return the hidden states of ids (B, T), read piece by piece through a decoding state."""
    padding = None if present is None else (~present).sum(-1)
    kind = state_class(model.stack)
    cache = kind(model.stack, *ids.shape, dtype=model.compute_dtype, device=ids.device, padding=padding)
    hidden = []
    for piece in ids.split(pieces, dim=1):
        tokens = piece.shape[1]
        rows = {"positions": cache.positions(tokens), "mixes": cache.mixes(tokens)}
        hidden.append(model.stack(model.embed(piece), piece, dtype=model.compute_dtype, mask=Mask(), **rows))
        cache.advance(tokens)
    return torch.cat(hidden, dim=1)


def projected(mixer, x):
    """Return q, k and v (B, H, T, D) of x (B, T, width)."""
    return (split_heads(layer(x), mixer.heads) for layer in (mixer.query, mixer.key, mixer.value))


def average(mixer, x):
    means = [mixer.value(x[:, : t + 1]).mean(1) for t in range(x.shape[1])]
    return mixer.output(torch.stack(means, dim=1))


def linear(mixer, x):
    q, k, v = projected(mixer, x)
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-1, -2)).tril()
    return mixer.output(merge_heads(weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)))


def decayed(q, k, v, decay):
    """Return the sum over s <= t of (q_t k_s) a_(s+1) ... a_t v_s, for decays a (H, T) or (B, H, T)."""
    length = q.shape[-2]
    product = torch.zeros(*decay.shape, length, dtype=q.dtype)
    for t in range(length):
        for s in range(t + 1):
            product[..., t, s] = decay[..., s + 1 : t + 1].prod(-1)
    return (q @ k.transpose(-1, -2) * product) @ v


def normed(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def gated_output(mixer, x, mixed):
    gate = mixer.gate(x)
    mixed = normed(mixed, mixer.norm.weight, mixer.norm.eps)
    return mixer.output(gate * gate.sigmoid() * merge_heads(mixed))


def retention(mixer, x):
    q, k, v = projected(mixer, x)
    decay = torch.tensor([[1 - 2 ** (-5 - h)] for h in range(mixer.heads)], dtype=x.dtype).expand(-1, x.shape[1])
    return gated_output(mixer, x, decayed(q, k / mixer.features**0.5, v, decay))


def gated_linear(mixer, x):
    q, k, v = projected(mixer, x)
    decay = torch.sigmoid(x @ mixer.decay.weight.T + mixer.decay_bias).transpose(1, 2)
    return gated_output(mixer, x, decayed(q, k / mixer.features**0.5, v, decay))


def mamba2(mixer, x):
    """One state (N, P) a head, updated position by position."""
    inputs = F.pad(mixer.input(x), (0, 0, 3, 0))
    channels = F.conv1d(inputs.transpose(1, 2), mixer.kernel, mixer.kernel_bias, groups=mixer.channels)
    u, b, c = F.silu(channels.transpose(1, 2)).split((mixer.inner, mixer.features, mixer.features), dim=-1)
    u = u.unflatten(-1, (mixer.heads, -1))
    dt = F.softplus(mixer.step(x) + mixer.step_bias)
    state, read = 0.0, []
    for t in range(x.shape[1]):
        kept = torch.exp(-mixer.log_rate.exp() * dt[:, t])[..., None, None]
        state = kept * state + torch.einsum("bn,bhp,bh->bhnp", b[:, t], u[:, t], dt[:, t])
        read.append(torch.einsum("bn,bhnp->bhp", c[:, t], state) + mixer.skip[:, None] * u[:, t])
    mixed = torch.stack(read, dim=1).flatten(-2) * F.silu(mixer.gate(x))
    return mixer.output(normed(mixed, mixer.norm.weight, mixer.norm.eps))


def mingru(mixer, x):
    z, candidate = torch.sigmoid(mixer.gate(x)), mixer.candidate(x)
    positive = torch.where(candidate >= 0, candidate + 0.5, torch.sigmoid(candidate))
    state, read = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = (1 - z[:, t]) * state + z[:, t] * positive[:, t]
        read.append(state)
    return mixer.output(torch.stack(read, dim=1))


def torch_cells(cell, mixer, x):
    """Step a cell of `torch.nn` with the mixer's weights."""
    cell = cell(mixer.width, mixer.width, dtype=x.dtype)
    for name, layer in (("ih", mixer.input), ("hh", mixer.recurrent)):
        getattr(cell, f"weight_{name}").data, getattr(cell, f"bias_{name}").data = layer.weight.data, layer.bias.data
    state, read = None, []
    for t in range(x.shape[1]):
        state = cell(x[:, t], state)
        read.append(state[0] if isinstance(state, tuple) else state)
    return mixer.output(torch.stack(read, dim=1))


def hopfield(mixer, x):
    q, k, v = (split_heads(layer(x), mixer.heads) for layer in (mixer.query, mixer.key, mixer.value))
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    for values in (k, v):
        scores = mixer.inverse_temperature[:, None, None] * q @ k.transpose(-1, -2)
        q = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
    return mixer.output(merge_heads(q))


def performer(mixer, x):
    q, k, v = projected(mixer, x)
    q, k = q / mixer.features**0.25, k / mixer.features**0.25
    q, k = (each @ mixer.directions.T - each.square().sum(-1, keepdim=True) / 2 for each in (q, k))
    q, k = torch.exp(q - q.max(-1, keepdim=True).values) + 1e-4, torch.exp(k) + 1e-4
    weights = (q @ k.transpose(-1, -2)).tril()
    return mixer.output(merge_heads(weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)))


FORMULAS = {
    "average": average,
    "linear": linear,
    "performer": performer,
    "retention": retention,
    "gated-linear": gated_linear,
    "mamba2": mamba2,
    "gru": partial(torch_cells, torch.nn.GRUCell),
    "lstm": partial(torch_cells, torch.nn.LSTMCell),
    "mingru": mingru,
    "hopfield": hopfield,
}
