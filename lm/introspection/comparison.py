"""How two readings of a token diverge: the distance of its states by layer, and what each part adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm.introspection.activations import activation_names
from lm.introspection.inference import inference_mode
from lm.introspection.trace import Trace
from lm.model import LanguageModel


@dataclass(frozen=True)
class ReadingsAtLayer:
    """Two states x and y of the stream after a layer, at one position of each text."""

    distance: float
    """1 - cosine of x and y"""
    parts: dict[str, float]
    """Shares of the difference d = x - y: (c_x - c_y) . d / |d|^2 of what each part writes, such as "head 3.1" and
    "mlp 3"; "before" is the difference before the layer. They add up to 1. Empty if x and y are equal, or if the
    stream is not a sum of outputs"""


def compare_readings(
    model: LanguageModel, first: Tensor, position: int, second: Tensor, other: int
) -> list[ReadingsAtLayer]:
    """Return the comparison of the token at `position` of ids (T,) with that at `other` of ids (S,), in float64.

    The first entry is the input of the first layer, and the next ones are the layers. Raises ValueError for an
    encoder-decoder.
    """
    config = model.config
    if config.architecture == "encoder-decoder":
        raise ValueError("model.architecture is 'encoder-decoder', but a comparison needs a decoder or an encoder")
    sums = (
        config.norm_position == "pre" and config.residual in ("sequential", "parallel") and not config.embedding_skips
    )
    ends = ("hook_resid_pre", "hook_resid_post", "attn.hook_result", "hook_attn_out", "hook_mlp_out")
    names = [name for name in activation_names(model) if name.startswith("blocks.") and name.endswith(ends)]
    with inference_mode(model):
        traces = [Trace(model, ids[None]).record(*names) for ids in (first, second)]
    states = [
        {name: trace[name][0, at].double() for name in names}
        for trace, at in zip(traces, (position, other), strict=True)
    ]
    x, y = states

    def distance(name: str) -> float:
        return max(0.0, 1 - float(torch.cosine_similarity(x[name], y[name], dim=0)))

    found = [ReadingsAtLayer(distance("blocks.0.hook_resid_pre"), {})]
    for layer in range(len(model.stack.blocks)):
        prefix = f"blocks.{layer}."
        d = x[f"{prefix}hook_resid_post"] - y[f"{prefix}hook_resid_post"]
        size, parts = float(d @ d), dict[str, float]()
        if sums and size > 0:
            shares: dict[str, Any] = {
                name: ((x[name] - y[name]) @ d / size).tolist() for name in names if name.startswith(prefix)
            }
            parts["before"] = shares[f"{prefix}hook_resid_pre"]
            if f"{prefix}attn.hook_result" in shares:
                heads = shares[f"{prefix}attn.hook_result"]
                parts |= {f"head {layer}.{head}": share for head, share in enumerate(heads)}
            else:
                parts[f"mixer {layer}"] = shares[f"{prefix}hook_attn_out"]
            if f"{prefix}hook_mlp_out" in shares:
                parts[f"mlp {layer}"] = shares[f"{prefix}hook_mlp_out"]
        found.append(ReadingsAtLayer(distance(f"{prefix}hook_resid_post"), parts))
    return found
