"""Direct logit attribution: a logit as the sum of what each part of the model adds to it.

The stream before the head is a sum: embedding, positions, the output of every head and MLP, and biases. Given the scale
of the final norm, the logit is linear in the stream, so each term c gives (W_U[target] - W_U[against]) N(c) / scale. N
is the linear part of the norm, and the scale is that of the whole stream at this position: it is frozen, as in Elhage
et al. 2021 and TransformerLens. Norms on branches and on the stream are frozen in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lm.blocks import Block
from lm.introspection.activations import activation_names, observed
from lm.introspection.inference import inference_mode
from lm.introspection.norms import linear_part
from lm.layers import LayerNorm, RMSNorm
from lm.mixers.attention import Attention
from lm.model import LanguageModel

BIASES, SOFT_CAP = "biases", "soft cap"
Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Attribution:
    """The logit of a token at one position, or the difference of two logits, as a sum of terms."""

    logit: float
    terms: dict[str, float]
    """They add up to the logit, up to rounding: "embedding", "positions", "head 3.1" (layer and head), "mlp 3", "mixer
    3" of a mixer without heads, "biases" of attention and norms, and "soft cap", what the cap subtracts"""
    frozen: tuple[str, ...]
    """Names of the activations that were kept: scales of norms"""


def attribute(
    model: LanguageModel, ids: Tensor, target: int, against: int | None = None, position: int = -1
) -> Attribution:
    """Return what each part of a decoder adds to the logit of `target`, minus that of `against`, after `position`.

    ids (T,) int64. Terms are computed in float64 from activations in the model's compute dtype. Raises ValueError for
    another architecture.
    """
    config = model.config
    if config.architecture != "decoder":
        raise ValueError(f"model.architecture is {config.architecture!r}, but attribution needs a decoder")
    ends = ("hook_embed", "hook_pos_embed", "hook_result", "hook_scale", "hook_attn_out", "hook_mlp_out")
    with inference_mode(model), observed(model, [n for n in activation_names(model) if n.endswith(ends)]) as found:
        logits = model.logits(model(ids[None]))[0, position].double()
        stream = _Stream(model, {name: value[0, position].double() for name, value in found.items()})
        terms = stream.at_the_head()
    weight = model.head.output_weight.detach().double()
    direction = weight[target] - (0 if against is None else weight[against])
    scale = config.width**-0.5 if config.scaled_head else 1.0
    shares = {name: float(scale * direction @ term) for name, term in terms.items()}
    logit = float(logits[target] - (0 if against is None else logits[against]))
    if config.soft_cap:
        shares[SOFT_CAP] = logit - sum(shares.values())
    return Attribution(logit, shares, tuple(stream.frozen))


class _Stream:
    """The residual stream at one position as a sum of terms (width,), float64."""

    def __init__(self, model: LanguageModel, values: Mapping[str, Tensor]) -> None:
        """`values` are activations at the position."""
        self.model, self.values = model, values
        self.frozen: list[str] = []

    def at_the_head(self) -> Terms:
        """Return the terms of what the head reads."""
        stack, values = self.model.stack, self.values
        start = {"embedding": values["hook_embed"]}
        if "hook_pos_embed" in values:
            start["positions"] = values["hook_pos_embed"]
        terms = start | {BIASES: torch.zeros_like(values["hook_embed"])}
        for layer, block in enumerate(stack.blocks):
            if self.model.config.embedding_skips:
                terms = _scaled(terms, stack.residual_scales[layer])
                terms = _sum(terms, _scaled(start, stack.embedding_scales[layer]))
            for number, name in enumerate([block.mixer_name, *(["mlp"] if block.mlp is not None else [])], 1):
                terms = self._after_sublayer(terms, block, layer, name, number)
        return self._after_norm(terms, stack.final_norm, "ln_final")

    def _after_sublayer(self, terms: Terms, block: Block, layer: int, name: str, number: int) -> Terms:
        update = self._update(block, layer, name, number)
        scale = getattr(block, f"{name}_scale")
        update = update if scale is None else _scaled(update, scale)
        kept = 0.0 if block.residual == "none" else block.stream_scale
        terms = _sum({part: kept * term for part, term in terms.items()}, update)
        if block.places.after:
            terms = self._after_norm(terms, getattr(block, f"{name}_norm"), f"blocks.{layer}.ln{number}")
        return terms

    def _update(self, block: Block, layer: int, name: str, number: int) -> Terms:
        """Return the terms that a sub-layer writes, after its branch norm."""
        if name == "mlp":
            return {f"mlp {layer}": self.values[f"blocks.{layer}.hook_mlp_out"]}
        if not isinstance(block.mixer, Attention):
            return {f"mixer {layer}": self.values[f"blocks.{layer}.hook_attn_out"]}
        heads = self.values[f"blocks.{layer}.attn.hook_result"]
        parts = {f"head {layer}.{head}": written for head, written in enumerate(heads)}
        parts |= {BIASES: _bias(block.mixer.output, heads[0])}
        if not block.places.branch:
            return parts
        last = f"{name}_branch_norm" if block.places.before else f"{name}_norm"
        label = f"blocks.{layer}.ln{number}" + ("_post" if block.places.before else "")
        return self._after_norm(parts, getattr(block, last), label)

    def _after_norm(self, terms: Terms, norm: nn.Module, label: str) -> Terms:
        """Return terms after a norm with its scale frozen; its bias goes to the biases."""
        if not isinstance(norm, LayerNorm | RMSNorm):
            return terms
        self.frozen.append(f"{label}.hook_scale")
        scale = self.values[f"{label}.hook_scale"]
        divided = {name: linear_part(norm, term) / scale for name, term in terms.items()}
        return _sum(divided, {BIASES: _bias(norm, scale.expand_as(divided[BIASES]))})


def _sum(terms: Terms, others: Terms) -> Terms:
    return terms | {name: terms[name] + other if name in terms else other for name, other in others.items()}


def _scaled(terms: Terms, scale: Tensor) -> Terms:
    return {name: scale.double() * term for name, term in terms.items()}


def _bias(module: nn.Module, like: Tensor) -> Tensor:
    bias = getattr(module, "bias", None)
    return torch.zeros_like(like) if bias is None else bias.double()
