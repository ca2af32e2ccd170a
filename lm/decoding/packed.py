"""A copy of a model that only predicts: the same numbers to rounding, in less time.

A decoder that reads one token multiplies every matrix by one vector a sequence: what takes time is the cast of a
weight, a matrix in an order that is slow to read, a core that waits. In the copy, weights have the dtype that is
computed in, queries, keys and values come from one product, and on the CPU matrices are laid out for as many rows as
will be read at once (`benchmarks/generate.py` has the times).
"""

from __future__ import annotations

import copy
import functools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.blocks import Attention
from lm.layers import LayerNorm, Linear
from lm.model import LanguageModel, Stack


class InferenceModel:
    """What generation asks of a model, of which it is a copy without dropout and gradients. Made by `prepare`."""

    def __init__(self, model: LanguageModel, sequences: int) -> None:
        self.config = model.config
        self.dtype = model.compute_dtype
        self.model = copy.deepcopy(model).to(self.dtype).eval().requires_grad_(False)
        self.output = fastest_linear(self.model.head.output_weight, self.model.head.bias, sequences)
        _replace_layers(self.model, sequences)

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    @property
    def stack(self) -> Stack:
        """The stack whose hidden states the head reads."""
        return self.model.stack

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., width) to unnormalised log-probabilities (..., V), as `LanguageModel.logits`."""
        return self.model.head.cap(self.output(self.model.head(hidden)))


def prepare(model: LanguageModel | InferenceModel, sequences: int = 2) -> InferenceModel:
    """The model made ready to predict, which takes a copy of its weights: do it once where many texts follow.

    It computes in the model's `compute_dtype`. With any number of sequences it gives the same; it is fastest with about
    as many as `sequences`, where one alone differs most from several. One that is ready is given back as it is.
    """
    return model if isinstance(model, InferenceModel) else InferenceModel(model, sequences)


class JointAttention(Attention):
    """`Attention` whose queries, keys and values are one matrix product."""

    def __init__(self, attention: Attention, sequences: int) -> None:
        nn.Module.__init__(self)  # with the layers of `attention`, not new ones
        layers = (attention.query, attention.key, attention.value)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.heads, self.kv_heads = attention.heads, attention.kv_heads
        weight = torch.cat([layer.weight for layer in layers])
        self.joint = fastest_linear(weight, torch.cat(biases) if biases else None, sequences)
        self.output = fastest_linear(attention.output.weight, attention.output.bias, sequences)
        self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        self.value_scale = attention.value_scale

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Attention.queries_keys_values`."""
        parts = (self.heads, self.kv_heads, self.kv_heads)
        joint = self.joint(x).unflatten(-1, (sum(parts), -1)).transpose(1, 2)  # (B, H + 2G, T, D)
        q, k, v = joint.split(parts, dim=1)
        return self.query_norm(q), self.key_norm(k), v


class PackedLinear(nn.Module):
    """x (..., inputs) to x W^T + b (..., outputs), the matrix laid out once in the blocks that oneDNN reads."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")


class SplitLinear(nn.Module):
    """x (..., inputs) to x W^T + b (..., outputs), the outputs in one part for each thread.

    A product with a single vector is done by one thread: a batch of them, one a part, by all. Each part lies along its
    longer side, in which order such a product reads it up to twice as fast.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, parts: int) -> None:
        super().__init__()
        self.outputs, inputs = weight.shape
        self.parts = parts
        missing = -self.outputs % parts
        padded = F.pad(weight.detach(), (0, 0, 0, missing)).view(parts, -1, inputs).transpose(1, 2)
        self.matrices = padded.contiguous() if padded.shape[2] > inputs else padded  # (parts, inputs, outputs / parts)
        bias = weight.new_zeros(self.outputs) if bias is None else bias.detach()
        self.bias = F.pad(bias, (0, missing)).view(parts, 1, -1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(1, -1, x.shape[-1])
        out = torch.baddbmm(self.bias, rows.expand(self.parts, -1, -1), self.matrices)
        return out.transpose(0, 1).reshape(*x.shape[:-1], -1)[..., : self.outputs]


class SameDtypeLayerNorm(nn.Module):
    """`LayerNorm` whose weights have the dtype of x, so that nothing is cast."""

    def __init__(self, norm: LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@functools.cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether `PackedLinear` gives in `dtype` what the plain product gives.

    It is made of operators that PyTorch keeps to itself: another version may lack them, want other arguments, or mean
    something else by them, and not every CPU has bfloat16's instructions, without which they are slow.
    """
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    numbers = torch.linspace(-1.0, 1.0, 63, dtype=dtype)
    weight, bias, x = numbers[:35].view(5, 7), numbers[35:40], numbers[42:].view(3, 7)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        got = [PackedLinear(weight, each)(rows) for each in (bias, None) for rows in (x, x[:1], x.view(1, 3, 7))]
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = [F.linear(rows, weight, each) for each in (bias, None) for rows in (x, x[:1], x.view(1, 3, 7))]
    return all(
        one.shape == other.shape and torch.allclose(one.float(), other.float(), atol=0.02, rtol=0.02)
        for one, other in zip(got, expected, strict=True)
    )


def fastest_linear(weight: Tensor, bias: Tensor | None, rows: int) -> nn.Module:
    """weight (outputs, inputs) and bias (outputs,) as the layer that multiplies so many rows by them fastest."""
    if weight.device.type == "cpu":
        if weight.dtype == torch.float32 and rows == 1:
            return SplitLinear(weight, bias, torch.get_num_threads())
        if packing_works(weight.dtype):
            return PackedLinear(weight, bias)
    layer = Linear(0, 0, bias=False)
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _replace_layers(module: nn.Module, sequences: int) -> None:
    for name, child in module.named_children():
        if isinstance(child, Attention) and name == "attention":
            setattr(module, name, JointAttention(child, sequences))
        elif isinstance(child, Linear):
            setattr(module, name, fastest_linear(child.weight, child.bias, sequences))
        elif isinstance(child, LayerNorm):
            setattr(module, name, SameDtypeLayerNorm(child))
        elif isinstance(child, nn.Dropout):
            setattr(module, name, nn.Identity())
        else:
            _replace_layers(child, sequences)
