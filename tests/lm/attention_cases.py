"""Random attention problems, and a plain loop over the textbook formula as the reference for all backends."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from lm.masks import Mask


@dataclass
class Case:
    """Queries, keys, values, a gradient of the output, and a mask with its bias, all float64."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    upstream: torch.Tensor
    mask: Mask
    scale: float | None

    def __repr__(self):
        mask = {name: getattr(self.mask, name) is not None for name in ("segments", "present", "bias")}
        shapes = f"q {tuple(self.q.shape)}, k {tuple(self.k.shape)}"
        return f"{shapes}, causal {self.mask.causal}, window {self.mask.window}, {mask}, scale {self.scale}"


@st.composite
def cases(draw, longest=40, most_past=20, width=8):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    batch, groups, group = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    heads, queries = groups * group, draw(st.integers(1, longest))
    keys = queries + draw(st.integers(0, most_past))

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    segments = torch.randint(0, 3, (batch, keys), generator=generator).sort(dim=1).values
    present = torch.rand(batch, keys, generator=generator) < 0.6
    mask = Mask(
        causal=draw(st.booleans()),
        window=draw(st.sampled_from([0, 0, 1, 3, 17, 1000])),
        segments=segments if draw(st.booleans()) else None,
        present=present if draw(st.booleans()) else None,
        bias=normal(draw(st.sampled_from([1, batch])), heads, queries, keys) if draw(st.booleans()) else None,
    )
    q, upstream = normal(batch, heads, queries, width), normal(batch, heads, queries, width)
    k, v = normal(batch, groups, keys, width), normal(batch, groups, keys, width)
    return Case(q, k, v, upstream, mask, draw(st.sampled_from([None, 1.0])))


def sees(mask, b, query, key):
    """Return whether position `query` of sequence b may attend to position `key`."""
    if mask.causal and key > query:
        return False
    if mask.window and abs(query - key) >= mask.window:
        return False
    if mask.segments is not None and mask.segments[b, query] != mask.segments[b, key]:
        return False
    return mask.present is None or bool(mask.present[b, key])


def textbook(q, k, v, mask, scale):
    """Return the softmax-weighted means over the visible keys, one query at a time."""
    group, past = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out = torch.zeros_like(q)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).reshape(-1, 3).tolist():
        seen = [s for s in range(k.shape[2]) if sees(mask, b, past + t, s)]
        if seen:
            scores = k[b, h // group, seen] @ q[b, h, t] * scale
            if mask.bias is not None:
                scores = scores + mask.bias[b % len(mask.bias), h, t, seen]
            out[b, h, t] = torch.softmax(scores, dim=0) @ v[b, h // group, seen]
    return out


def with_gradients(backend, case, dtype):
    """Return the output and the gradients of q, k, v (and the bias), all computed in `dtype`."""
    inputs = [x.to(dtype).requires_grad_() for x in (case.q, case.k, case.v)]
    mask = case.mask
    if mask.bias is not None:
        inputs.append(mask.bias.to(dtype).requires_grad_())
        mask = Mask(
            causal=mask.causal, window=mask.window, segments=mask.segments, present=mask.present, bias=inputs[3]
        )
    out = backend(*inputs[:3], mask, scale=case.scale)
    return [out.detach(), *torch.autograd.grad(out, inputs, case.upstream.to(dtype))]
