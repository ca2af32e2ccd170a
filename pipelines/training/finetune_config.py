"""How a classifier is trained from an encoder, in words of the field. Imports no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """What fine-tuning does with an encoder and labelled texts."""

    epochs: int = 10
    """Passes over the training texts."""
    batch_size: int = 16
    """Texts of one optimizer step."""
    lr: float = 1e-3
    """Peak learning rate: a small encoder's; one of 100 M parameters wants 5e-5 or less."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate climbs, before it falls to 0 as a cosine."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices."""
    dropout: float = 0.1
    """Probability, in the encoder and before the output matrix, whatever the run was trained with."""
    pooling: Literal["first", "mean"] = "mean"
    """What the head reads: the first position, or the mean of all. Masked tokens teach the first nothing of its own."""
    grad_clip: float = 1.0
    """Largest L2 norm of the whole gradient; 0 for none."""
    seed: int = 0
    """Of the new weights, the order of the texts and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of activations and matrix products in training; weights and optimizer state are float32."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}, but must be above 0")
        for name in ("weight_decay", "grad_clip", "seed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}, but must not be negative")
        if self.seed >= 2**63:
            raise ValueError(f"--seed is {self.seed}, but must be below 2^63")
        for name in ("warmup", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}: give a share from 0 to below 1")
