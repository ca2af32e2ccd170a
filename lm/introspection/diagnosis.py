"""Health of training: numbers by layer that show saturated attention, vanishing gradients and dead units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from lm.introspection.activations import Edit, activation_names, observed
from lm.introspection.inference import inference_mode
from lm.layer_groups import first_of_group
from lm.model import LanguageModel

SATURATED = 0.99  # a row of attention is saturated if one key has more than this weight
DEAD = 0.01  # a dead unit stays below this share of the root mean square of its layer's units

Reading = tuple[Mapping[str, Tensor], Tensor, Tensor]
"""Arguments of the model by name, and the targets and weights of its loss"""


@dataclass(frozen=True)
class LayerHealth:
    """The numbers of a layer."""

    score_deviation: float | None
    """Standard deviation of the raw scores of a query over the keys that it may attend to, mean over queries and heads;
    None for a mixer without scores"""
    saturated: float | None
    """Share of attention rows with a weight above SATURATED; rows with one visible key do not count"""
    gradient_norm: float
    """Euclidean norm of the gradient of the mean loss, nats per token, with respect to the layer's parameters, which
    other layers may share"""
    stream_variance: float
    """Variance of the stream's features after the layer, mean over positions"""
    dead_units: float | None
    """Share of the MLP's units whose size never exceeds DEAD times the root mean square of all; None without an MLP"""


@dataclass(frozen=True)
class Diagnosis:
    """The health of a decoder."""

    loss: float
    """Nats per token"""
    layers: tuple[LayerHealth, ...]
    embedding_variance: float
    """Variance of the features of the first layer's input, mean over positions"""
    embedding_gradient_norm: float
    embedding_rank: float
    """Effective rank: see `effective_rank`"""
    output_rank: float | None
    """Effective rank of the output matrix; None if it is the embedding"""


def effective_rank(matrix: Tensor) -> float:
    """Return exp of the entropy of a matrix's singular values divided by their sum (Roy and Vetterli 2007).

    It is n for n equal singular values, and 1 if only one is not zero. A matrix of zeros has rank 0.
    """
    x = matrix.detach().double()
    values = torch.linalg.eigvalsh(x.T @ x if x.shape[0] > x.shape[1] else x @ x.T).clamp(min=0).sqrt()
    if values.sum() == 0:
        return 0.0
    shares = values / values.sum()
    return float(torch.special.entr(shares).sum().exp())


def diagnose(model: LanguageModel, readings: Iterable[Reading]) -> Diagnosis:
    """Return the health of a decoder on some text.

    Each reading takes a forward and a backward pass for gradients, and a forward pass for scores and activations.
    """
    readings = list(readings)
    loss, norms = _gradient_norms(model, readings)
    names = set(activation_names(model))
    seen = _Seen()
    edits: dict[str, Edit] = {"blocks.0.hook_resid_pre": partial(seen.stream, "embedding")}
    for layer in range(len(model.stack.blocks)):
        for hook, see in (
            ("hook_resid_post", seen.stream),
            ("attn.hook_attn_scores", seen.scores),
            ("mlp.hook_post", seen.units),
        ):
            if (name := f"blocks.{layer}.{hook}") in names:
                edits[name] = partial(see, f"{layer}")
    with inference_mode(model), observed(model, edits=edits):
        for inputs, _, _ in readings:
            model(**inputs)
    layers = tuple(
        LayerHealth(
            seen.mean(f"{layer} deviation"),
            seen.mean(f"{layer} saturated"),
            norms[f"blocks.{layer}."],
            seen.sums[f"{layer} stream"] / seen.counts[f"{layer} stream"],
            seen.dead_share(f"{layer}"),
        )
        for layer in range(len(model.stack.blocks))
    )
    tied = model.config.tied_head
    return Diagnosis(
        loss,
        layers,
        seen.sums["embedding stream"] / seen.counts["embedding stream"],
        norms["embedding."],
        effective_rank(model.embedding.weight),
        None if tied else effective_rank(model.head.output_weight),
    )


def _gradient_norms(model: LanguageModel, readings: Iterable[Reading]) -> tuple[float, dict[str, float]]:
    """Return the mean loss, and the norms of its gradient by part of the model. `grad` stays unchanged."""
    training = model.training
    model.eval()
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    sums = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in named.items()}
    total = count = 0.0
    try:
        for inputs, targets, weights in readings:
            with torch.enable_grad():
                loss = model.loss(model(**inputs).flatten(0, -2), targets, weights)
            gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for summed, gradient in zip(sums.values(), gradients, strict=True):
                if gradient is not None:
                    summed += gradient
            total, count = total + loss.item(), count + weights.sum().item()
    finally:
        model.train(training)
    stack = "decoder." if model.decoder is not None else "encoder."
    layers = len(model.stack.blocks)
    first = {layer: first_of_group(model.config, layer, layers) for layer in range(layers)}
    parts = {f"blocks.{layer}.": f"{stack}blocks.{named}." for layer, named in first.items()}
    parts["embedding."] = "embedding."
    norms = {
        part: sum(one.square().sum().item() for name, one in sums.items() if name.startswith(prefix)) ** 0.5 / count
        for part, prefix in parts.items()
    }
    return total / count, norms


@dataclass
class _Seen:
    """Sums over observed activations. Each method is an edit that returns its argument unchanged."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[str, Tensor] = field(default_factory=dict)

    def stream(self, name: str, x: Tensor) -> Tensor:
        self._add(f"{name} stream", x.double().var(dim=-1, correction=0))
        return x

    def scores(self, name: str, x: Tensor) -> Tensor:
        """See scores (B, H, T, S), minus infinity at hidden keys."""
        visible = x.isfinite()
        keys = visible.sum(dim=-1)
        several = keys > 1
        known = x.double().masked_fill(~visible, 0.0)
        mean = known.sum(dim=-1, keepdim=True) / keys.clamp(min=1)[..., None]
        variance = (known - mean).square().masked_fill(~visible, 0.0).sum(dim=-1) / keys.clamp(min=1)
        largest_weight = (x.amax(dim=-1).double() - x.double().logsumexp(dim=-1)).exp()
        self._add(f"{name} deviation", variance[several].sqrt())
        self._add(f"{name} saturated", (largest_weight[several] > SATURATED).double())
        return x

    def units(self, name: str, x: Tensor) -> Tensor:
        """See activations (B, T, hidden) of an MLP's units."""
        most = x.abs().amax(dim=(0, 1))
        self.largest[name] = most.maximum(self.largest[name]) if name in self.largest else most
        self._add(f"{name} squares", x.double().square())
        return x

    def mean(self, name: str) -> float | None:
        return self.sums[name] / self.counts[name] if self.counts.get(name) else None

    def dead_share(self, name: str) -> float | None:
        square = self.mean(f"{name} squares")
        return None if square is None else float((self.largest[name] <= DEAD * square**0.5).double().mean())

    def _add(self, name: str, values: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + values.sum().item()
        self.counts[name] = self.counts.get(name, 0) + values.numel()
