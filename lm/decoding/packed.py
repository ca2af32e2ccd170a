"""A copy of a model for inference: the same numbers to rounding, in less time.

A decoder that reads one token multiplies every matrix by one vector a sequence. Time goes into casts of weights,
matrices in an order that is slow to read, and idle cores. The copy holds its weights in the compute dtype and gets
queries, keys and values from one product. On the CPU it lays matrices out for the number of rows in a batch
(`benchmarks/generate.py` measures it).
"""

from __future__ import annotations

import copy
import functools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.layers import LayerNorm, Linear
from lm.lora import LoraLinear
from lm.mixers.attention import Attend, Attention
from lm.mixers.recurrent import RecurrentMixer
from lm.model import LanguageModel, Stack
from lm.positions import Rotary


class InferenceModel:
    """A copy of a model without dropout and gradients, for generation; adapters are merged. Made by `prepare`."""

    def __init__(self, model: LanguageModel, sequences: int) -> None:
        self.config = model.config
        self.dtype = model.compute_dtype
        self.model = copy.deepcopy(model)
        for layer in [module for module in self.model.modules() if isinstance(module, LoraLinear)]:
            layer.merge()
        self.model.to(self.dtype).eval().requires_grad_(False)
        _restore_mixers(self.model, model)
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
    """Return a copy of the model for inference in its `compute_dtype`. Idempotent.

    Copying takes time and memory: prepare once for many prompts. The copy is fastest with about `sequences` sequences
    at once; the layouts for one and for several differ most. It gives the same with any number.
    """
    return model if isinstance(model, InferenceModel) else InferenceModel(model, sequences)


class JointAttention(Attention):
    """`Attention` that gets queries, keys and values from one matrix product."""

    def __init__(self, attention: Attention, sequences: int) -> None:
        nn.Module.__init__(self)  # skips Attention's, which would allocate new layers
        layers = (attention.query, attention.key, attention.value)
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        self.train(attention.training)
        self.config = attention.config
        self.heads, self.kv_heads = attention.heads, attention.kv_heads
        weight = torch.cat([layer.weight for layer in layers])
        self.widths = [len(layer.weight) for layer in layers]
        self.joint = fastest_linear(weight, torch.cat(biases) if biases else None, sequences)
        output = fastest_linear(attention.output.weight, attention.output.bias, sequences)
        self.output = output  # type: ignore[assignment]  # every layer with the signature of Linear serves
        self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        self.value_scale, self.relative_keys = attention.value_scale, attention.relative_keys

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Attend,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        q, k, v = self.joint(x).split(self.widths, dim=-1)
        return self.attend(q, k, v, rotary, mix, value_embedding, rows)


class PackedLinear(nn.Module):
    """x (..., inputs) to x W^T + b (..., outputs), with the matrix in oneDNN's blocked layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")
        return out


class SplitLinear(nn.Module):
    """x (..., inputs) to x W^T + b (..., outputs), with the outputs in one part per thread.

    PyTorch runs a matrix-vector product on one thread, but a batch of them on all. Each part is stored along its longer
    side, which makes the product up to twice as fast.
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
    """`LayerNorm` with weights in the dtype of x, which need no cast."""

    def __init__(self, norm: LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@functools.cache
def packing_works(dtype: torch.dtype) -> bool:
    """Return whether `PackedLinear` agrees with the plain product in `dtype` on this machine.

    It uses private operators of PyTorch, which another version may lack or change. Not every CPU has instructions for
    bfloat16, without which they are slow.
    """
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    values = torch.linspace(-1.0, 1.0, 63, dtype=dtype)
    weight, bias, x = values[:35].view(5, 7), values[35:40], values[42:].view(3, 7)
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
    """Return the fastest layer with `weight` (outputs, inputs) and `bias` (outputs,) for inputs of `rows` rows."""
    if weight.device.type == "cpu":
        if weight.dtype == torch.float32 and rows == 1:
            return SplitLinear(weight, bias, torch.get_num_threads())
        if packing_works(weight.dtype):
            return PackedLinear(weight, bias)
    layer = Linear(0, 0, bias=False)
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _restore_mixers(model: LanguageModel, source: LanguageModel) -> None:
    """Give recurrent mixers their own tensors, such as decays, back from `source`: scans read them in float32."""
    for module, other in zip(model.modules(), source.modules(), strict=True):
        if isinstance(module, RecurrentMixer):
            tensors = [*other.named_parameters(recurse=False), *other.named_buffers(recurse=False)]
            for name, tensor in tensors:
                getattr(module, name).data = tensor.detach().clone()


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
