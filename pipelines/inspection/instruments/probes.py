"""How well linear probes of layers predict your labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from lm.config import ModelConfig
from lm.introspection.probes import Probe, control_labels, majority_by_type
from pipelines.cli.display import Bar
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument
from pipelines.inspection.labelled_activations import read_labelled
from pipelines.reporting.pictures import Curves, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

SEED = 0


@dataclass(frozen=True)
class ProbeOfLayer:
    """The probe of a layer, scored on held-out documents."""

    name: str
    """ "embedding", the input of the first layer, or the number of the layer"""
    accuracy: float
    control: float
    """Accuracy of a probe that is trained on the control labels"""
    selectivity: float
    """Accuracy minus that of the control labels"""


@dataclass(frozen=True)
class ProbesOfRun(Result):
    """The probes of all layers."""

    key = "probes"
    section = Section(
        "Probes",
        "A linear classifier (logistic regression) for each layer, trained on the activations of labelled words or "
        "texts, and scored on the fifth of the documents that is held out. The activation of a word is that of its "
        "last token (of its first in an encoder), and that of a text is the mean over its tokens. The control task has "
        "a random label for each word, or for each first word of a text, so it can only be learned by heart. "
        "Selectivity is the accuracy minus that of the control task (Hewitt and Liang 2019). The line below the table "
        "has the accuracies of the most frequent label, and of the most frequent label of each word. A probe cannot "
        "tell whether the model uses what the probe finds. The accuracy depends on the number of examples and on the "
        "penalty. Labels within a document depend on each other, so differences of about a percentage point between "
        "layers may be chance.",
    )

    layers: tuple[ProbeOfLayer, ...]
    of: str
    """Kind of example: word or text"""
    labels: int
    """Number of different labels"""
    trained: int
    """Words or texts that the probes were trained on"""
    held_out: int
    """Words or texts that the probes were scored on"""
    held_out_documents: int
    frequent: float
    """Accuracy of the most frequent label"""
    by_type: float
    """Accuracy of the most frequent label of each word, or of each first word of texts"""

    def parts(self) -> list[Table | str]:
        rows = [
            (one.name, [f"{one.accuracy:.1%}", f"{one.control:.1%}", f"{100 * one.selectivity:+.1f}"])
            for one in self.layers
        ]
        return [
            Table(
                f"accuracy on held-out documents, {self.labels} labels",
                "layer",
                ["probe", "control", "selectivity"],
                rows,
            ),
            f"most frequent label {self.frequent:.1%}, most frequent label of {self._type} {self.by_type:.1%}; trained "
            f"on {self.trained:,} {self.of}s, scored on {self.held_out:,} from {self.held_out_documents:,} documents",
        ]

    @property
    def _type(self) -> str:
        return "each word" if self.of == "word" else "each first word"

    def pictures(self) -> Sequence[Picture]:
        accuracies = {name: [getattr(one, name) for one in self.layers] for name in ("accuracy", "control")}
        constant = {f"most frequent label of {self._type}": [self.by_type] * len(self.layers)}
        return [
            Curves(
                title="Accuracy of the probes by layer",
                text="0 is the embedding. The selectivity is the distance between accuracy and control.",
                x=range(len(self.layers)),
                panels={"accuracy, held out": accuracies | constant},
                label="layers passed",
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Probes(Instrument):
    """Linear probes."""

    result = ProbesOfRun
    reads_text = False
    usual = False

    labels: str | None = None
    """File of labelled words or texts for the probes, in a format of the tasks tokens and classes, such as JSONL"""
    probe_examples: int = 10_000
    """Maximum number of labelled words or texts that the probes read"""
    probe_penalty: float = 1e-3
    """L2 penalty of the probes: half of it times the sum of squared weights is added to the mean loss"""

    def __post_init__(self) -> None:
        if self.probe_examples < 1:
            raise ValueError(f"`probe_examples` is {self.probe_examples}, but must be at least 1")
        if not self.probe_penalty > 0:
            raise ValueError(f"`probe_penalty` is {self.probe_penalty}, but must be above 0")

    def check(self, config: ModelConfig) -> None:
        if config.architecture == "encoder-decoder":
            raise ValueError("model.architecture is 'encoder-decoder', but probes need a decoder or an encoder")
        if self.labels is None:
            raise ValueError("probes need labels: give a file of labelled words or texts with `labels`")

    def look(self, run: LoadedRun, text: str) -> ProbesOfRun:
        assert self.labels is not None, "it is checked"
        read = read_labelled(run, Path(self.labels), self.probe_examples)
        test, train = torch.from_numpy(read.held_out), torch.from_numpy(~read.held_out)
        control = control_labels(read.types, read.labels[~read.held_out], SEED)
        targets = [torch.from_numpy(one) for one in (read.labels, control)]
        layers = []
        with Bar("training probes", len(read.layers), "layers") as bar:
            for done, (name, x) in enumerate(read.layers.items(), 1):
                fitted = [Probe(x[train], y[train], len(read.names), self.probe_penalty) for y in targets]
                own, by_heart = (probe.accuracy(x[test], y[test]) for probe, y in zip(fitted, targets, strict=True))
                layers.append(ProbeOfLayer(name, own, by_heart, own - by_heart))
                bar.update(done)
        frequent, by_type = majority_by_type(read.types, read.labels, read.held_out)
        return ProbesOfRun(
            tuple(layers),
            read.kind,
            len(read.names),
            int(train.sum()),
            int(test.sum()),
            len(np.unique(read.documents[read.held_out])),
            frequent,
            by_type,
        )


INSTRUMENT = Probes
