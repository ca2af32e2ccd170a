"""Health of training: attention, gradients, units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lm.config import ModelConfig
from lm.introspection.diagnosis import LayerHealth, Reading, diagnose
from lm.metrics.units import bits
from lm.model import LanguageModel
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.inspection.own_text import OwnText
from pipelines.reporting.pictures import Curves, Picture
from pipelines.training.batch import Batch, loss_inputs, model_inputs
from pipelines.training.batch_loss import to_device

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

SCORES = 2**24  # maximum number of attention scores of a layer in memory
NAMES = {
    "score_deviation": "score sd",
    "saturated": "saturated",
    "gradient_norm": "gradient norm",
    "stream_variance": "stream variance",
    "dead_units": "dead units",
}


@dataclass(frozen=True)
class HealthOfRun(Result):
    """The health of a run's layers."""

    key = "diagnosis"
    section = Section(
        "Diagnosis",
        "The numbers are from tokens of the validation split. Score sd: standard deviation of the raw attention scores "
        "of a query over its keys, mean over queries and heads. Saturated: share of queries that give one key more "
        "than 99 % of their weight. Queries that see one key do not count. Gradient norm: norm of the gradient of the "
        "mean loss, in nats per token, with respect to the layer's parameters. Stream variance: variance of the "
        "features after the layer, mean over positions. Dead units: share of the MLP's units whose absolute activation "
        "never exceeds 1 % of the root mean square of all units. Effective rank: exp of the entropy of the normalised "
        "singular values (Roy and Vetterli 2007). The numbers cannot tell a fault from a useful habit: a head that "
        "looks at the previous token is saturated too, and a dead unit may fire on other text. Compare with the run at "
        "initialisation, and with earlier checkpoints.",
    )

    state: str
    """Name of the checkpoint, or "initialisation" """
    loss_bits: float
    """Bits per token"""
    layers: tuple[LayerHealth, ...]
    embedding_variance: float
    embedding_gradient_norm: float
    embedding_rank: float
    output_rank: float | None
    """None if the output matrix is the embedding"""
    largest_rank: int
    """Largest possible effective rank of the embedding"""
    tokens: int

    def parts(self) -> list[Table | str]:
        layers = self.layers
        shown = {name: title for name, title in NAMES.items() if any(getattr(one, name) is not None for one in layers)}
        rows = [
            (f"{number}", [_cell(name, value) for name, value in asdict(layer).items() if name in shown])
            for number, layer in enumerate(layers)
        ]
        start = {"gradient_norm": self.embedding_gradient_norm, "stream_variance": self.embedding_variance}
        rows.insert(0, ("embedding", [_cell(name, start[name]) if name in start else "" for name in shown]))
        output = "" if self.output_rank is None else f", of the output matrix {self.output_rank:.1f}"
        said = f"effective rank of the embedding {self.embedding_rank:.1f}{output}, of at most {self.largest_rank}"
        title = f"health by layer, {self.state}"
        return [
            Table(title, "layer", list(shown.values()), rows),
            f"{said}; {self.loss_bits:.3f} bits per token on {self.tokens:,} tokens",
        ]

    def pictures(self) -> Sequence[Picture]:
        lines = {title: [getattr(layer, name) for layer in self.layers] for name, title in NAMES.items()}
        panels = {
            title: {title: [math.nan if value is None else value for value in values]}
            for title, values in lines.items()
            if values.count(None) < len(values)
        }
        return [Curves(title=f"Health by layer, {self.state}", x=range(len(self.layers)), panels=panels, label="layer")]


@dataclass(frozen=True, kw_only=True)
class DiagnosisInstrument(Instrument):
    """The health of training."""

    result = HealthOfRun
    reads_text = False
    usual = False

    initial: bool = False
    """Diagnose the model as initialised from the run's seed, instead of the checkpoint"""
    validation_tokens: int = 8192
    """Tokens of the validation split that an instrument reads"""

    def __post_init__(self) -> None:
        if self.validation_tokens < 1:
            raise ValueError(f"`validation_tokens` is {self.validation_tokens}, but must be at least 1")

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "diagnosis")

    def look(self, run: LoadedRun, text: str) -> HealthOfRun:
        trained = run.trained
        model, state = trained.model, trained.checkpoint.name
        if self.initial:
            facts = run.run.facts
            if origin := facts.get("init_from") or facts.get("imported_from"):
                other = f", or diagnose {origin}" if "init_from" in facts else ""
                raise ValueError(
                    f"`initial` makes random weights from the seed, but {run.path} started from the weights of "
                    f"{origin}: leave out `initial`{other}"
                )
            fresh = LanguageModel(run.config.model, run.config.train.seed)
            fresh.compute_dtype = model.compute_dtype
            model, state = fresh.to(model.embedding.weight.device), "initialisation"
        batches = OwnText.of(run).validation(self.validation_tokens)
        found = diagnose(model, _readings(model, batches))
        return HealthOfRun(
            state,
            bits(found.loss),
            found.layers,
            found.embedding_variance,
            found.embedding_gradient_norm,
            found.embedding_rank,
            found.output_rank,
            min(model.embedding.weight.shape),
            sum(int((batch.weights > 0).sum()) for batch in batches),
        )


INSTRUMENT = DiagnosisInstrument


def _readings(model: LanguageModel, batches: Sequence[Batch]) -> Iterator[Reading]:
    """Yield batches as tensors, split so that at most SCORES attention scores are in memory."""
    for batch in batches:
        length = batch.weights.shape[1]
        for part in batch.split(max(1, SCORES // (model.config.heads * length**2))):
            tensors = to_device(model_inputs(part) | loss_inputs(part, False), model.embedding.weight.device)
            targets, weights = tensors.pop("targets"), tensors.pop("weights")
            yield tensors, targets, weights


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1%}" if name in ("saturated", "dead_units") else f"{value:#.3g}"
