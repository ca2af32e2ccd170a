"""Random attention problems, and a plain loop over the textbook formula as the reference for all backends."""

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

from lm.attention.patterns import AttentionPattern
from lm.config import ModelConfig
from lm.masks import Mask

PATTERNS = {
    kind: AttentionPattern(
        ModelConfig(
            context_length=64,
            attention_pattern=kind,
            pattern_size=size,
            pattern_count=1 if kind in ("dilated", "strided") else 2,
        )
    )
    for kind, size in {"dilated": 3, "strided": 4, "fixed": 5, "global": 3, "random": 4}.items()
}


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
        mask = {name: getattr(self.mask, name) is not None for name in ("causal_rows", "segments", "present", "bias")}
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
        pattern=draw(st.sampled_from([None, *PATTERNS.values()])),
        shift=draw(st.sampled_from([None, torch.arange(batch)])),
        causal=draw(st.booleans()),
        causal_rows=draw(st.sampled_from([None, torch.arange(batch) % 2 == 0, torch.ones(batch, dtype=torch.bool)])),
        window=draw(st.sampled_from([0, 0, 1, 3, 17, 1000])),
        segments=segments if draw(st.booleans()) else None,
        present=present if draw(st.booleans()) else None,
        bias=normal(draw(st.sampled_from([1, batch])), heads, queries, keys) if draw(st.booleans()) else None,
    )
    q, upstream = normal(batch, heads, queries, width), normal(batch, heads, queries, width)
    k, v = normal(batch, groups, keys, width), normal(batch, groups, keys, width)
    return Case(q, k, v, upstream, mask, draw(st.sampled_from([None, 1.0])))


def in_pattern(pattern, i, j):
    """Return whether a query at `i` sees a key at `j`: the published definitions, with the merged heads of Child."""
    size, count, near, far = pattern.size, pattern.count, min(i, j), max(i, j)
    if pattern.kind == "dilated":
        return far in range(near, far + 1, size)
    if pattern.kind == "strided":
        return far - near < size or far in range(near, far + 1, size)
    block, of_key = math.floor(i / size), math.floor(j / size)
    if pattern.kind == "fixed":
        return block == of_key or j in range((of_key + 1) * size - count, (of_key + 1) * size)
    if pattern.kind == "global":
        return i - size < j < i + size or near < count
    if 0 in (block, of_key) or abs(block - of_key) <= 1:
        return True
    low, high = (min(max(0, each), len(pattern.joined) - 1) for each in sorted((block, of_key)))
    return low in torch.randperm(high, generator=torch.Generator().manual_seed(high))[:count].tolist()


def sees(mask, b, query, key):
    """Return whether position `query` of sequence b may attend to position `key`."""
    if (mask.causal or (mask.causal_rows is not None and mask.causal_rows[b])) and key > query:
        return False
    if mask.window and abs(query - key) >= mask.window:
        return False
    if mask.pattern is not None:
        shift = 0 if mask.shift is None else int(mask.shift[b % len(mask.shift)])
        if not in_pattern(mask.pattern, query - shift, key - shift):
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
        mask = replace(mask, bias=inputs[3])
    out = backend(*inputs[:3], mask, scale=case.scale)
    return [out.detach(), *torch.autograd.grad(out, inputs, case.upstream.to(dtype))]
