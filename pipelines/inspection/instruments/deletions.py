"""What a run loses without each layer, head and MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from lm.config import ModelConfig
from lm.introspection.activations import observed
from lm.introspection.deletion import all_parts, deletions
from lm.metrics.intervals import interval, resampled_sums
from lm.metrics.units import bits
from pipelines.cli.display import Bar
from pipelines.evaluation.deletion import part_means
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.inspection.own_text import OwnText
from pipelines.reporting.pictures import Bars, HeatMap, Picture
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import target_nats

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

HEADS, RANKED = 8, 10  # columns of heads, and rows of the most costly parts
DRAWN = 20  # bars in the picture


@dataclass(frozen=True)
class Deletion:
    """What a run loses without a part."""

    part: str
    """layers.3, attention.3, heads.3.1 or mlp.3"""
    lost: float
    """Bits per byte, or per token if the tokenizer is not lossless"""
    low: float
    """Lower end of the 95 % interval"""
    high: float
    """Upper end of the 95 % interval"""


@dataclass(frozen=True)
class DeletionsOfRun(Result):
    """What a run loses without each of its parts."""

    key = "deletions"
    section = Section(
        "Deletions",
        "The effect of a part is the loss on the validation split without the part, minus the loss of the whole model. "
        "The output of a deleted part becomes its mean over the training split, or zero with `ablation='zero'`. "
        "Deleting a layer deletes its attention and its MLP. The interval is from a bootstrap over windows. Effects do "
        "not add: later parts make up for a deleted one, and two parts with the same job cost little alone. A loss "
        "cannot tell what a part computes.",
    )

    whole: float
    """Loss of the whole model"""
    unit: str
    """byte or token"""
    deletions: tuple[Deletion, ...]
    ablation: str
    tokens: int
    source: str
    """Folder of the dataset"""

    def pictures(self) -> Sequence[Picture]:
        ranked = sorted(self.deletions, key=lambda one: -one.lost)[:DRAWN]
        per = f"bits per {self.unit} lost"
        bars = Bars(
            title="The most costly parts",
            text=f"{per.capitalize()} without each part, with 95 % intervals. Effects do not add.",
            values={one.part: one.lost for one in ranked},
            intervals={one.part: (one.low, one.high) for one in ranked},
            x=per,
        )
        heads = {one.part.removeprefix("heads."): one.lost for one in self.deletions if one.part.startswith("heads.")}
        if not heads:
            return [bars]
        layers, count = (max(int(name.split(".")[part]) for name in heads) + 1 for part in (0, 1))
        cells = [[heads.get(f"{layer}.{head}", float("nan")) for head in range(count)] for layer in range(layers)]
        rows, columns = [*map(str, range(layers))], [*map(str, range(count))]
        text = "Without a blue head the loss is higher, without a red one lower."
        by_head = HeatMap(
            title=f"{per.capitalize()} without each head", text=text, maps={"": cells}, rows=rows, columns=columns,
            x="head", y="layer", signed=True, digits=4,
        )  # fmt: skip
        return [bars, by_head]

    def parts(self) -> list[Table | str]:
        lost = {one.part: f"{one.lost:+.4f}" for one in self.deletions}
        layers = range(sum(part.startswith("layers.") for part in lost))
        heads = max((int(part.split(".")[2]) + 1 for part in lost if part.startswith("heads.")), default=0)
        kinds = ["layers", "attention", *(["mlp"] if "mlp.0" in lost else [])]
        rows = []
        for layer in layers:
            cells = [lost[f"{kind}.{layer}"] for kind in kinds]
            cells += [lost.get(f"heads.{layer}.{head}", "") for head in range(min(heads, HEADS))]
            rows.append((f"{layer}", cells))
        columns = ["whole", *kinds[1:], *(f"head {head}" for head in range(min(heads, HEADS)))]
        ranked = sorted(self.deletions, key=lambda one: -one.lost)[:RANKED]
        costly = [(one.part, [f"{one.lost:+.4f}", f"{one.low:+.4f} to {one.high:+.4f}"]) for one in ranked]
        per = f"bits per {self.unit}"
        tables: list[Table | str] = [
            Table(f"{per} lost, by layer ({self.ablation} ablation)", "layer", columns, rows),
            Table("the most costly parts", "part", [f"{per} lost", "95 % interval"], costly),
        ]
        few = f" The first {HEADS} of {heads} heads are in the table; `as_json` has all." if heads > HEADS else ""
        said = f"{self.tokens:,} tokens; the whole model needs {self.whole:.4f} {per}. Effects do not add.{few}"
        return [*tables, said]


@dataclass(frozen=True, kw_only=True)
class Deletions(Instrument):
    """Deletion of each part."""

    result = DeletionsOfRun
    reads_text = False
    usual = False

    ablation: Literal["mean", "zero"] = "mean"
    """What the output of a deleted part becomes: its mean over the training split, or zero"""
    deletion_tokens: int = 8192
    """Tokens of the validation split on which each part is deleted"""

    def __post_init__(self) -> None:
        if self.deletion_tokens < 1:
            raise ValueError(f"`deletion_tokens` is {self.deletion_tokens}, but must be at least 1")

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "deletions")

    def look(self, run: LoadedRun, text: str) -> DeletionsOfRun:
        own = OwnText.of(run)
        model, parts = run.model, all_parts(run.model)
        means = part_means(model, parts, own.plan, self.ablation == "zero")
        batches = own.validation(self.deletion_tokens)
        nats = []
        with torch.no_grad(), Bar("deleting parts", len(parts) + 1, "parts") as bar:
            for done, part in enumerate([None, *parts], 1):
                with observed(model, edits={} if part is None else deletions(model, [part], means)):
                    nats.append(np.concatenate([_window_nats(run, batch) for batch in batches]))
                bar.update(done)
        tokens = np.concatenate([(batch.weights > 0).sum(axis=1) for batch in batches])
        lossless = run.tokenizer.is_lossless
        lengths = run.tokenizer.token_byte_lengths if lossless else np.ones(run.tokenizer.vocab_size, np.int64)
        sizes = np.concatenate([((batch.weights > 0) * lengths[batch.targets]).sum(axis=1) for batch in batches])
        differences = bits(1) * (np.stack(nats[1:], axis=1) - nats[0][:, None])  # (windows, parts)
        drawn = resampled_sums(np.column_stack((differences, sizes)))
        lost = differences.sum(axis=0) / sizes.sum()
        rows = [
            Deletion(part, float(lost[i]), *map(float, interval(drawn[:, i] / drawn[:, -1])))
            for i, part in enumerate(parts)
        ]
        whole, unit = bits(float(nats[0].sum() / sizes.sum())), "byte" if lossless else "token"
        return DeletionsOfRun(whole, unit, tuple(rows), self.ablation, int(tokens.sum()), own.source)


INSTRUMENT = Deletions


def _window_nats(run: LoadedRun, batch: Batch) -> np.ndarray:
    """Return the summed loss of each window of a batch, (B,) float64."""
    scored = batch.weights > 0
    nats = target_nats(run.model, batch, scored).cpu().numpy()
    return np.bincount(np.nonzero(scored)[0], nats, len(scored))
