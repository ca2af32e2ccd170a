"""Linear probes: how well a linear classifier predicts labels from activations, and random labels of types.

A probe is multinomial logistic regression on standardised activations, with the penalty l2 / 2 |W|^2 beside the mean
cross-entropy: the optimum is unique. A probe with high accuracy may have learned the task itself, word by word. A
control task has a random label for each type, such as each word, so it can only be learned by heart. Selectivity is the
accuracy minus that of the control task (Hewitt and Liang 2019, arXiv 1909.03368).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

ITERATIONS = 200


class Probe:
    """A linear classifier of activations (N, width) into classes."""

    def __init__(self, x: Tensor, labels: Tensor, classes: int, l2: float) -> None:
        """Fit `labels` (N,) int64 of x (N, width), with L-BFGS in float64."""
        x = x.double()
        self.mean, self.scale = x.mean(dim=0), x.std(dim=0, correction=0)
        self.scale[self.scale < 1e-9 * (1 + self.mean.abs())] = 1.0  # constant features
        x = (x - self.mean) / self.scale
        weight = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device, requires_grad=True)
        bias = torch.zeros(classes, dtype=x.dtype, device=x.device, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [weight, bias],
            max_iter=ITERATIONS,
            tolerance_grad=1e-6,
            tolerance_change=1e-10,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(F.linear(x, weight, bias), labels) + l2 / 2 * weight.square().sum()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimizer.step(closure)
        self.weight, self.bias = weight.detach(), bias.detach()

    def logits(self, x: Tensor) -> Tensor:
        """Return (N, classes) float64 of x (N, width)."""
        return F.linear((x.double() - self.mean) / self.scale, self.weight, self.bias)

    def accuracy(self, x: Tensor, labels: Tensor) -> float:
        """Return the share of x (N, width) whose likeliest class is their label (N,)."""
        return float((self.logits(x).argmax(dim=-1) == labels).double().mean())


def control_labels(types: Sequence[str], labels: np.ndarray, seed: int) -> np.ndarray:
    """Return a random label for each of N examples, the same for all examples of a type: (N,) int64.

    A type's label is drawn from `labels` (M,), so that control labels have about the same frequencies.
    """
    generator = np.random.default_rng(seed)
    drawn = {one: int(generator.choice(labels)) for one in sorted(set(types))}
    return np.array([drawn[one] for one in types], np.int64)


def majority_by_type(types: Sequence[str], labels: np.ndarray, held_out: np.ndarray) -> tuple[float, float]:
    """Return the accuracies, on held-out examples, of the most frequent label and of the most frequent one by type.

    types (N,), labels (N,) int64, held_out (N,) bool. A type that occurs only in held-out examples gets the most
    frequent label.
    """
    common = int(np.bincount(labels[~held_out]).argmax())
    counts: dict[str, dict[int, int]] = {}
    for place in np.flatnonzero(~held_out).tolist():
        of_type = counts.setdefault(types[place], {})
        of_type[int(labels[place])] = of_type.get(int(labels[place]), 0) + 1
    best = {one: max(sorted(found), key=found.__getitem__) for one, found in counts.items()}
    tested = np.flatnonzero(held_out).tolist()
    said = np.array([best.get(types[place], common) for place in tested])
    return float((labels[held_out] == common).mean()), float((labels[held_out] == said).mean())
