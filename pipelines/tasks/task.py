"""A task of fine-tuning: what it reads, how a model sees it, and how its results are measured and shown.

Each module of `pipelines.tasks` defines one Task. Its fields are options of `bytelm finetune` and the table [task] of
the run's config.toml. If `head` returns a head, this head replaces the head of the language model. Otherwise the task
trains the language model itself. The code for training, evaluation and prediction is the same for all tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import tyro

from lm.config import ModelConfig
from lm.head_config import HeadConfig
from lm.values import check_fields
from pipelines.evaluation.measurement import Result, number
from pipelines.recipes.finetune_config import FinetuneConfig

if TYPE_CHECKING:
    from torch import Tensor

    from corpora.rows import Row
    from lm.task_model import TrainedModel
    from pipelines.run.folder import Run
    from pipelines.run.predictor import Predictor
    from pipelines.tasks.examples import Encoded
    from pipelines.tasks.text_reader import TextReader
    from tokenizer import Tokenizer

T = TypeVar("T")
Learned: Any = tyro.conf.Suppress
"""Marks a field that `learn` sets. The field is not an option"""
Architecture = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class Example:
    """A row, and the inputs and target that a task takes from the row."""

    row: "Row"
    inputs: Any
    """Input of the model: a text, several texts, or words"""
    target: Any = None
    """Target of the model: a label, a number or tags; None if the row has no target"""


@dataclass(frozen=True)
class TaskSettings(Result):
    """The task of an evaluation, and the number of its examples."""

    task: str = number("task", "The task that the run was fine-tuned for.", setting=True)
    examples: int = number("examples", "Examples that were scored.", 0)
    cut_examples: int = number("examples cut", "Examples whose text is longer than the model reads.", 0)
    dtype: str = number("dtype", "Number format of activations and matrix products.", setting=True)


@dataclass(frozen=True)
class Adapted(Generic[T]):
    """A task for a run, with the facts and the tokenizer of the new run."""

    task: T
    facts: dict[str, Any]
    """Entries of the table [run] of config.toml"""
    tokenizer: "Tokenizer"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task. Its fields are options, or facts that `learn` takes from the training examples."""

    name: ClassVar[str]
    architectures: ClassVar[tuple[Architecture, ...]] = ("encoder", "decoder", "encoder-decoder")
    usual: ClassVar[tuple[tuple[str, ...], ...]] = (("text", "label"),)
    """Common names of the columns; the last is the target. The first tuple whose names a row has is used."""
    kinds: ClassVar[tuple[type[Result], ...]] = ()
    """Types of the results of an evaluation; the first has the headline numbers"""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of file formats that only this task has, and that `as_text` writes"""
    better: ClassVar[Literal["highest", "lowest"]] = "highest"
    """Whether a higher or a lower first number of the results is better"""
    empty: ClassVar[str] = "is empty: fill it in"
    """What is wrong with the first text of an example if `example` returns None, and what to do"""
    used_by: ClassVar[str] = "predict"
    """Verb for using a run of the task"""
    compared_with: ClassVar[tuple[Literal["before", "scratch"], ...]] = ("scratch",)
    """Models to compare with the fine-tuned run: the run before fine-tuning, and the same model from random weights"""
    settings: ClassVar[FinetuneConfig] = FinetuneConfig()
    """Default settings of the training"""

    columns: tuple[str, ...] = ()
    """Columns of a row, inputs first and the target last, also nested (doc.text); by default common names"""
    truncate: Literal["right", "left", "middle"] = "right"
    """Where a text that is longer than the context is cut"""

    def __post_init__(self) -> None:
        check_fields(self, "task.")
        counts = {len(names): " ".join(names) for names in reversed(self.usual)}
        if self.columns and len(self.columns) not in counts:
            reads = " or ".join(f"{count}, such as {names}" for count, names in sorted(counts.items()))
            raise ValueError(f"`columns` names {len(self.columns)}, but the task {self.name} reads {reads}")

    # Reading

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that the task reads, inputs first."""
        return self.columns or self.usual[0]

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the columns that a prediction reads."""
        return self.names[:-1]

    def choose_columns(self, fields: Mapping[str, Any]) -> Self:
        """Return the task with the common `columns` that are in `fields`. Columns that are already set stay."""
        if self.columns:
            return self
        nested = ((name, inner) for name, inner in fields.items() if isinstance(inner, Mapping))
        present = {*fields, *(f"{name}.{field}" for name, inner in nested for field in inner)}
        usual = next((names for names in self.usual if present.issuperset(names)), self.usual[0])
        return replace(self, columns=usual)

    def read(self, path: Path) -> Iterator["Row"]:
        """Yield the rows of a file of examples."""
        from corpora.rows import read_rows  # imports pyarrow, which --help does not need

        yield from read_rows(path)

    def example(self, row: "Row", labelled: bool = True) -> Example | None:
        """Return the example in a row, or None for an empty row. The example has no target unless `labelled`.

        Raises ValueError with file, line and field for a value of the wrong type.
        """
        raise NotImplementedError

    def rows_of_texts(self, texts: Sequence[str]) -> list["Row"]:
        """Return rows of `texts`. Each row has as many texts as an example has inputs."""
        from corpora.rows import Row

        names = self.input_names
        if len(texts) % len(names):
            raise ValueError(f"{len(texts)} texts are given, but an example has {len(names)}: {' and '.join(names)}")
        groups = zip(*[iter(texts)] * len(names), strict=True)
        return [Row(f"text {number}", dict(zip(names, group, strict=True))) for number, group in enumerate(groups, 1)]

    def examples(self, files: Iterable[Path]) -> list[Example]:
        """Return the examples of all files; ValueError if there is none."""
        files = list(files)
        found = [example for path in files for row in self.read(path) if (example := self.example(row))]
        if not found:
            named = " and ".join(map(str, files))
            raise ValueError(f"{named} holds no example: give rows with {' and '.join(self.names)}")
        return found

    def key(self, example: Example) -> str:
        """Return the text whose hash decides whether an example is held out. Examples with equal keys stay together."""
        return repr(example.inputs)

    def classes(self, example: Example) -> tuple[Any, ...]:
        """Return the classes of an example, which `learn` stores as the field `labels`.

        Training needs at least one example of each class.
        """
        return ()

    def learn(self, examples: Sequence[Example]) -> Self:
        """Return the task with the facts that it takes from the training examples, such as labels."""
        return self

    def check(self, examples: Sequence[Example]) -> None:
        """Raise ValueError for an example with a class that the task has not learned."""
        known = getattr(self, "labels", ())
        for example in examples:
            for label in self.classes(example):
                if label not in known:
                    raise ValueError(
                        f"{example.row.place} has the label {label!r}, which no training example has: remove it, or "
                        "add training examples with it"
                    )

    # The model

    def adapt(self, run: "Run", tok: "Tokenizer") -> "Adapted[Self]":
        """Return the task for training `run`, whose tokenizer is `tok`. Raises ValueError if the run does not fit.

        A task may add facts and special tokens. The embeddings of new tokens start as the mean of all others.
        """
        return Adapted(self, {}, tok)

    def head(self, architecture: str) -> HeadConfig | None:
        """Return the head that replaces the head of the language model; None keeps the language model."""
        return None

    def encode(self, examples: Sequence[Example], reader: "TextReader") -> list["Encoded"]:
        """Return the examples as a model reads them. `origin` is the index of the example."""
        raise NotImplementedError

    def arrange(self, encoded: list["Encoded"], model: ModelConfig) -> list["Encoded"]:
        """Return the rows of training batches. A row may hold several examples."""
        return encoded

    def prepare(self, encoded: list["Encoded"], start: "Callable[[], TrainedModel]") -> list["Encoded"]:
        """Return the examples with values that the loss needs from the initial model. `start` returns this model."""
        return encoded

    def loss(self, reader: "TextReader") -> "Callable[..., Tensor] | None":
        """Return a function for the summed loss of a batch, called like `summed_loss`; None: the loss of the model.

        `reader`: the reader of the model that is trained.
        """
        return None

    # Results

    def tuned(self, results: Sequence[Result]) -> Self:
        """Return the task with settings chosen from its `results` on the held-out examples, such as a threshold."""
        return self

    def outputs(
        self,
        predictor: "Predictor",
        encoded: Sequence["Encoded"],
        labelled: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> Sequence[Any]:
        """Return one object for each encoded example: the input of `results` and `predictions`.

        By default they are the arrays of `task_outputs`. `labelled`: whether the examples have targets. `progress` is
        called with the number of examples so far.
        """
        from pipelines.run.task_outputs import task_outputs  # imports torch

        return task_outputs(predictor.model, encoded, progress)

    def results(
        self, outputs: Sequence[Any], encoded: Sequence["Encoded"], examples: Sequence[Example]
    ) -> list[Result]:
        """Return the results of examples. By default `outputs` are arrays (P, L) float32."""
        raise NotImplementedError

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: "TextReader"
    ) -> dict[str, Result]:
        """Return the first result of each baseline by name. Baselines are fitted on the training examples."""
        return {}

    def predictions(
        self, outputs: Sequence[Any], encoded: Sequence["Encoded"], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        """Return the fields that `bytelm predict` adds to the row of each example.

        `bytelm predict` refuses runs of a task without this method, and names the verb `used_by`.
        """
        raise NotImplementedError

    def as_text(self, example: Example, fields: dict[str, Any]) -> str:
        """Return an example with its predicted fields in the format of `suffixes`, with a line end."""
        raise NotImplementedError

    def summary(self, example: Example, fields: dict[str, Any]) -> str:
        """Return an example and its predicted fields as one readable line."""
        inputs = example.inputs if isinstance(example.inputs, str) else " | ".join(map(str, example.inputs))
        prediction, chances = fields.get("prediction"), fields.get("probabilities")
        if isinstance(chances, dict) and not isinstance(prediction, list):
            said = ", ".join(f"{label} {chance:.0%}" for label, chance in list(chances.items())[:3])
        else:
            said = ", ".join(map(str, prediction)) if isinstance(prediction, list) else str(prediction)
        return f"{said}: {' '.join(inputs.split())[:60]}"

    # config.toml

    def as_table(self) -> dict[str, Any]:
        """Return the table [task] of config.toml."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {"name": self.name, **values}
