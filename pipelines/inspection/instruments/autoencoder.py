"""A sparse autoencoder of a layer (takes a minute)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.introspection.activations import observed
from lm.introspection.inference import inference_mode
from lm.introspection.sparse_autoencoder import AutoencoderTraining, SparseAutoencoder
from lm.introspection.unit_activity import UnitActivity
from lm.metrics.units import bits
from lm.model import LanguageModel
from pipelines.cli.waiting import doing
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.bounded_training import check_bounds, extent, train
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.inspection.own_text import OwnText, model_arguments, scored
from pipelines.inspection.triggers import Trigger, trigger_table, triggers_of
from pipelines.inspection.words import Words
from pipelines.reporting.pictures import Bars, Picture
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import target_nats

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

SEED, STEP_TOKENS, TRIGGERS, SHOWN = 0, 1024, 5, 5
LEAST_VARIANCE, LEAST_LOSS = 1e-12, 1e-6  # shares of the squared activations and of the loss; less is rounding


@dataclass(frozen=True)
class Feature:
    """A feature of the autoencoder."""

    feature: int
    fires: float
    """Share of positions at which it fires"""
    triggers: tuple[Trigger, ...]
    """The positions at which it is strongest"""


@dataclass(frozen=True)
class Quality:
    """How well an autoencoder reconstructs a layer, on validation tokens."""

    explained_variance: float | None
    """1 - sum |x - x'|^2 / sum |x - mean|^2, both over all tokens; None if the activations are constant"""
    dead: int
    """Features that fire nowhere"""
    mean_active: float
    """Mean number of features that fire at a position"""
    loss_bits: float
    """Loss of the model, bits per token"""
    spliced_bits: float
    """Loss with the reconstruction in place of the layer's output"""
    zero_bits: float
    """Loss with zeros in place of the output"""
    mean_bits: float
    """Loss with the mean over the tokens in place of the output"""
    loss_recovered: float | None
    """(zero - spliced) / (zero - loss): 1 is the whole model, 0 is as bad as zeros; None if zeros keep the loss"""


@dataclass(frozen=True)
class AutoencoderOfRun(Result):
    """A sparse autoencoder of one layer."""

    key = "autoencoder"
    section = Section(
        "Sparse autoencoder",
        "The autoencoder approximates the output of a layer by a weighted sum of a few of many features (TopK, Gao et "
        "al. 2024). It is trained on the training split and measured on the validation split. Explained variance is 1 "
        "- sum |x - x'|^2 / sum |x - mean|^2, both summed over all tokens. Dead features fire nowhere. Spliced: loss "
        "of the model with the reconstruction in place of the layer's output. Mean and zeros: loss with the mean "
        "output or with zeros in its place. Loss recovered is (zeros - spliced) / (zeros - model). Explained variance "
        "and loss recovered are undefined where their divisor is 0. Zeros are a low bar: compare with the mean, too. "
        "The features depend on their number, on how many are active, on the seed and on the length of training. The "
        "autoencoder cannot tell whether the model itself uses these features, and the strongest examples alone do "
        "not tell what a feature means.",
    )

    layer: int
    features: int
    active: int
    """Features that may be active at a position"""
    quality: Quality
    shown: tuple[Feature, ...]
    steps: int
    """Steps of training"""
    trained_tokens: int
    tokens: int
    """Validation tokens"""
    source: str
    """Folder of the dataset"""

    def parts(self) -> list[Table | str]:
        found = self.quality
        rows = [
            ("explained variance", [_or_undefined(found.explained_variance)]),
            ("dead features", [f"{found.dead:,} of {self.features:,}"]),
            ("active features at a position", [f"{found.mean_active:.1f} of {self.active}"]),
            ("loss, bits per token", [f"{found.loss_bits:.3f}"]),
            ("loss, spliced", [f"{found.spliced_bits:.3f}"]),
            ("loss, mean", [f"{found.mean_bits:.3f}"]),
            ("loss, zeros", [f"{found.zero_bits:.3f}"]),
            ("loss recovered", [_or_undefined(found.loss_recovered)]),
        ]
        return [
            Table(f"layer {self.layer}", "on the validation split", [""], rows),
            *(
                trigger_table(f"feature {one.feature}, at {one.fires:.2%} of positions", one.triggers)
                for one in self.shown
            ),
            extent(self.steps, self.trained_tokens, self.tokens),
        ]

    def pictures(self) -> Sequence[Picture]:
        found = self.quality
        losses = {
            "the layer's output": found.loss_bits,
            "its reconstruction": found.spliced_bits,
            "its mean": found.mean_bits,
            "zeros": found.zero_bits,
        }
        text = "Loss of the model when the next layer reads each of these."
        return [Bars(title=f"Loss with layer {self.layer} replaced", text=text, values=losses, x="bits per token")]


@dataclass(frozen=True, kw_only=True)
class Autoencoder(Instrument):
    """A sparse autoencoder."""

    result = AutoencoderOfRun
    reads_text = False
    usual = False

    sae_layer: int | None = None
    """Layer of the sparse autoencoder, from 0; by default the middle one"""
    sae_features: int | None = None
    """Number of features of the sparse autoencoder; by default four times the width of the model"""
    sae_active: int = 32
    """Maximum number of features of the sparse autoencoder that are active at a position"""
    sae_show: tuple[int, ...] = ()
    """Features of the sparse autoencoder to show, from 0; by default the strongest that fire at several positions"""
    steps: int = 1000
    """Maximum training steps of the tuned lens or the autoencoder"""
    seconds: float = 60.0
    """Maximum training time of the tuned lens or the autoencoder, in seconds; Ctrl-C ends it early"""
    validation_tokens: int = 8192
    """Tokens of the validation split that an instrument reads"""

    def __post_init__(self) -> None:
        check_bounds(self.steps, self.seconds)
        if self.validation_tokens < 1:
            raise ValueError(f"`validation_tokens` is {self.validation_tokens}, but must be at least 1")

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "the autoencoder")
        features = self._features(config)
        if not 0 <= self._layer(config) < config.layers:
            raise ValueError(f"`sae_layer` is {self.sae_layer}, but the model has the layers 0 to {config.layers - 1}")
        if not 1 <= self.sae_active <= features:
            raise ValueError(
                f"`sae_active` is {self.sae_active}, but must be from 1 to the number of features, {features:,}"
            )
        for feature in self.sae_show:
            if not 0 <= feature < features:
                raise ValueError(f"`sae_show` names {feature}, but features are 0 to {features - 1}")

    def _layer(self, config: ModelConfig) -> int:
        return (config.layers - 1) // 2 if self.sae_layer is None else self.sae_layer

    def _features(self, config: ModelConfig) -> int:
        return 4 * config.width if self.sae_features is None else self.sae_features

    def look(self, run: LoadedRun, text: str) -> AutoencoderOfRun:
        own, model, config = OwnText.of(run), run.model, run.config.model
        layer, features, device = self._layer(config), self._features(config), model.embedding.weight.device
        name = f"blocks.{layer}.hook_resid_post"
        made = SparseAutoencoder(config.width, features, self.sae_active, torch.Generator().manual_seed(SEED)).to(
            device
        )
        training, generator, read = AutoencoderTraining(made), np.random.default_rng(SEED), 0

        def step(done: float) -> float:
            nonlocal read
            x = _activations(model, name, own.training(generator, STEP_TOKENS))
            read += len(x)
            return training.step(x, done)

        steps = train("training the autoencoder", step, steps=self.steps, seconds=self.seconds)
        batches = own.validation(self.validation_tokens)
        doing("measuring the autoencoder")
        quality, activity = measured(model, made, name, batches)
        shown = self._shown(activity, batches, Words(run))
        return AutoencoderOfRun(
            layer, features, self.sae_active, quality, shown, steps, read, activity.tokens, own.source
        )

    def _shown(self, activity: UnitActivity, batches: list[Batch], words: Words) -> tuple[Feature, ...]:
        inputs, following = (np.concatenate([getattr(b, name) for b in batches]) for name in ("inputs", "targets"))
        strength = activity.strongest[0] * (activity.fired >= min(TRIGGERS, activity.tokens))
        strongest = strength.topk(min(SHOWN, len(strength))).indices.tolist()
        return tuple(
            Feature(
                one,
                float(activity.fired[one]) / activity.tokens,
                triggers_of(activity, one, inputs, following, words),
            )
            for one in self.sae_show or [feature for feature in strongest if strength[feature] > 0]
        )


INSTRUMENT = Autoencoder


def _or_undefined(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _activations(model: LanguageModel, name: str, batch: Batch) -> Tensor:
    """Return an activation at all positions of a batch, (N, width) float32."""
    with inference_mode(model), observed(model, [name]) as found:
        model(**model_arguments(batch, model.embedding.weight.device))
    return found[name].flatten(0, -2).float()


@torch.no_grad()
def measured(
    model: LanguageModel, autoencoder: SparseAutoencoder, name: str, batches: list[Batch]
) -> tuple[Quality, UnitActivity]:
    """Return how well an autoencoder reconstructs the activation `name` of batches, and where its features fire."""
    total = torch.zeros(model.config.width, dtype=torch.float64, device=model.embedding.weight.device)
    squares, errors = 0.0, 0.0
    activity: UnitActivity | None = None
    for batch in batches:
        x = _activations(model, name, batch)
        z = autoencoder.encode(x)
        new = UnitActivity.of(z, z > 0, TRIGGERS)
        activity = new if activity is None else activity.joined(new, TRIGGERS)
        total += x.double().sum(dim=0)
        squares += x.double().square().sum().item()
        errors += (x - autoencoder.decode(z)).double().square().sum().item()
    assert activity is not None, "a split has a window"
    mean = total / activity.tokens
    distances = squares - activity.tokens * mean.square().sum().item()
    zeros, means = torch.zeros((), device=total.device), mean.float()
    whole, spliced, zero, average = (_loss(model, name, edit, batches) for edit in (None, autoencoder, zeros, means))
    active = float(activity.fired.sum()) / activity.tokens
    dead = int((activity.fired == 0).sum())
    explained = 1 - errors / distances if distances > LEAST_VARIANCE * squares else None
    recovered = (zero - spliced) / (zero - whole) if abs(zero - whole) > LEAST_LOSS * whole else None
    return Quality(explained, dead, active, whole, spliced, zero, average, recovered), activity


def _loss(
    model: LanguageModel, name: str, edit: Tensor | Callable[[Tensor], Tensor] | None, batches: list[Batch]
) -> float:
    """Return the mean loss in bits per token with an edited activation."""
    nats, tokens = 0.0, 0
    with inference_mode(model), observed(model, edits={} if edit is None else {name: edit}):
        for batch in batches:
            of_batch = target_nats(model, batch, scored(batch, torch.device("cpu")).numpy())
            nats, tokens = nats + of_batch.sum().item(), tokens + len(of_batch)
    return bits(nats / tokens)
