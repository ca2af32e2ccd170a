"""Settings of fine-tuning. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lm.optim.schedules import ends_at_peak
from lm.values import check_fields, check_ranges
from pipelines.recipes.config import Device, Dtype, TrainConfig
from pipelines.recipes.field_checks import require, require_not_negative, require_positive, require_seed


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Settings of fine-tuning. `train` converts them to a TrainConfig."""

    epochs: int = 10
    """Passes over the training examples. A higher number extends a run"""
    batch_size: int = 16
    """Examples per optimizer step"""
    lr: float = 1e-3
    """Peak learning rate for small models; a model of 100 M parameters needs 5e-5 or less"""
    warmup: float = 0.1
    """Share of the steps for warm-up. Then the learning rate falls to 0 as a cosine"""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices"""
    dropout: float = 0.1
    """Dropout probability in the model and before the output matrix; it replaces the dropout of the run"""
    label_smoothing: float = 0.0
    """Probability that is spread evenly over all labels in training targets"""
    grad_clip: float = 1.0
    """Maximum L2 norm of the whole gradient; 0: none"""
    layer_decay: float = 1.0
    """Factor of the learning rate from each block to the block below, such as 0.8; 1: none. The head has the full rate,
    the embedding the lowest"""
    freeze: int | Literal["all"] = 0
    """Number of lowest blocks to freeze, with the embedding; 0: none; all: only the head trains"""
    reinit: int = 0
    """Number of highest blocks that start from random weights"""
    patience: int = 0
    """Epochs without improvement after which training stops; 0: none. The first number of the task must
    improve. With patience, the run uses its best checkpoint, otherwise its last"""
    seed: int = 0
    """Seed of the new weights, the order of the examples and dropout"""
    device: Device = "auto"
    """Device. auto: a GPU if there is one"""
    dtype: Dtype = "auto"
    """Dtype of activations and products in training; weights and optimizer state are float32"""
    micro_batch: int = 16
    """Examples in one forward pass; gradients accumulate over a batch"""
    tensorboard: bool = False
    """Also write metrics.jsonl's numbers for TensorBoard, into the run's folder tensorboard/"""

    def __post_init__(self) -> None:
        check_fields(self, "")
        require_positive(self, "epochs", "batch_size", "lr", "micro_batch", option=True)
        require_not_negative(self, "weight_decay", "grad_clip", "seed", "reinit", "patience", option=True)
        require(self, ("layer_decay",), lambda value: 0 < value <= 1, "be above 0 and at most 1", option=True)
        if self.freeze != "all":
            require_not_negative(self, "freeze", option=True)
        require_seed(self.seed, "`seed`")
        for name in ("warmup", "dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}: give a share from 0 to below 1")
        check_ranges(self, "`{}`")

    def unfinished_schedules(self, train: TrainConfig) -> list[str]:
        """Return a sentence if the warm-up lasts until the end of `train`, made from these settings; otherwise none."""
        if not ends_at_peak(warmup=train.warmup_tokens, total=train.tokens, stride=train.batch_tokens):
            return []
        return [
            f"`warmup={self.warmup:g}` lasts until the last step, so the learning rate ends at its peak: lower "
            "`warmup`, or raise `epochs`"
        ]

    def train(self, examples: int, tokens: int) -> TrainConfig:
        """Return the settings for training on `examples` examples with `tokens` tokens.

        AdamW's beta2 and eps are as in RoBERTa (Liu et al. 2019). Every epoch ends with a validation and a
        checkpoint.
        """
        return TrainConfig(
            tokens=self.epochs * tokens,
            batch_tokens=max(1, round(self.batch_size * tokens / examples)),
            micro_batch=self.micro_batch,
            seed=self.seed,
            lr=self.lr,
            warmup_tokens=round(self.warmup * self.epochs * tokens),
            min_lr_ratio=0.0,
            weight_decay=self.weight_decay,
            beta2=0.98,
            eps=1e-6,
            label_smoothing=self.label_smoothing,
            grad_clip=self.grad_clip,
            layer_decay=self.layer_decay,
            patience=self.patience,
            validate_every_tokens=tokens,
            checkpoint_every_tokens=tokens,
            keep_checkpoints=1,
            keep_best=True,
            tensorboard=self.tensorboard,
            device=self.device,
            dtype=self.dtype,
        )
