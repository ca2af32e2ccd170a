"""The predictions of a larger run on a text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np

from corpora.input_files import file_format
from corpora.rows import Row, read_rows, read_text_rows
from lm.metrics.units import bits_per_byte, perplexity
from lm.position_checks import UNBOUNDED
from pipelines.cli.display import say
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.documents import known_byte_lengths
from pipelines.evaluation.measurement import Result, number
from pipelines.run.folder import Run, opened
from pipelines.run.manifest import manifest_sha256
from pipelines.tasks.examples import Encoded
from pipelines.tasks.shared_boundaries import Reading, comparable_by_bytes, with_teacher
from pipelines.tasks.task import Adapted, Example, Learned, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch_objectives import MaskedToken, SpanCorruption, require_special_tokens
from tokenizer import END_OF_TEXT, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.run.predictor import Predictor
    from pipelines.run.teacher_scores import WindowScores


@dataclass(frozen=True, kw_only=True)
class DistillationNumbers(Result):
    """The numbers of a student and its teacher on the held-out texts."""

    cross_entropy: float = number(
        "cross-entropy, nats per token",
        "Mean of -ln p over the scored tokens, where p is the probability that the model gave to the correct token.",
        4,
        headline=True,
    )
    perplexity: float | None = number(
        "perplexity", "exp of the cross-entropy in nats.", 2, exp_of="cross_entropy", default=None
    )
    bits_per_byte: float | None = number(
        "bits per byte",
        "Total bits of the scored tokens, divided by their bytes. For decoders only.",
        4,
        headline=True,
        default=None,
    )
    teacher_cross_entropy: float | None = number(
        "cross-entropy of the teacher",
        "The same of the teacher, with the same vocabulary.",
        4,
        headline=True,
        default=None,
    )
    teacher_bits_per_byte: float | None = number(
        "bits per byte of the teacher", "The same of the teacher.", 4, headline=True, default=None
    )
    teacher_kl_bits: float | None = number(
        "KL from the teacher, bits per token",
        "Mean of D(teacher || model) over the scored tokens, at temperature 1.",
        4,
        headline=True,
        default=None,
    )
    teacher_byte_kl_bits: float | None = number(
        "KL from the teacher, bits per byte",
        "For different vocabularies: mean of D(teacher || model) of the next byte, over the places in the text where "
        "tokens of both models end.",
        4,
        headline=True,
        default=None,
    )
    shared_boundaries: float | None = number(
        "shared boundaries",
        "For different vocabularies: share of scored tokens that begin where a token of the teacher begins.",
        4,
        default=None,
    )
    tokens: int = number("tokens scored", "Tokens that the model predicted and that were scored.", 0)
    bytes: int | None = number("bytes scored", "Bytes of text in the scored tokens.", 0, default=None)


@dataclass(frozen=True, kw_only=True)
class Distillation(Task):
    """Predictions of a larger run, the teacher, on a text. Decoders may have different vocabularies."""

    name = "distillation"
    usual = (("text",), ("content",))
    kinds = (DistillationNumbers,)
    better = "lowest"
    used_by = "generate"

    teacher: str = ""
    """Folder of the run to learn from"""
    alpha: float = 0.5
    """Share of the teacher's predictions in the loss; the rest is the cross-entropy of the text"""
    temperature: float = 0.0
    """Divisor of the logits of both models in the loss; 0: 2, or 1 if the vocabularies differ. A higher temperature
    gives unlikely tokens more weight"""
    by_bytes: Annotated[bool, Learned] = False
    """Whether the vocabularies differ"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"`alpha` is {self.alpha}: give a share from 0 to 1")
        if self.temperature and not 0.1 <= self.temperature <= 100:
            raise ValueError(f"`temperature` is {self.temperature}: give 0.1 to 100, or 0 for the default")

    # Reading

    def read(self, path: Path) -> Iterator[Row]:
        is_text = not path.is_dir() and file_format(path, (".csv", ".tsv")) == ".txt"
        yield from read_text_rows(path) if is_text else read_rows(path)

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        [name] = self.names
        text = row.text(name)
        return Example(row, text) if text else None

    def learn(self, examples: Sequence[Example]) -> Self:
        """Return the task with the absolute path of the teacher, so evaluations work from any folder."""
        return replace(self, teacher=str(Path(self.teacher).resolve()))

    # The model

    def adapt(self, run: Run, tok: Tokenizer) -> Adapted[Self]:
        if not self.teacher:
            raise ValueError("`teacher` is missing: name the folder of the run to learn from")
        teacher = opened(self.teacher)
        ours, theirs = run.recipe.model, teacher.recipe.model
        if ours.architecture != theirs.architecture:
            raise ValueError(
                f"the architecture of {run.folder} is {ours.architecture!r} and that of {teacher.folder} "
                f"{theirs.architecture!r}, so they predict different tokens: give a teacher of the same architecture"
            )
        differ = (run.facts["tokenizer_fingerprint"], ours.vocab_size) != (
            teacher.facts["tokenizer_fingerprint"],
            theirs.vocab_size,
        )
        if differ and not (ours.architecture == "decoder" and comparable_by_bytes(tok, teacher.tokenizer())):
            raise ValueError(
                f"{run.folder} and {teacher.folder} have different vocabularies. Only decoders with byte-level "
                f"vocabularies can be compared by bytes: let {teacher.folder} write a text with bytelm generate, and "
                "train on it"
            )
        if not differ and theirs.context_length < ours.context_length and theirs.positions not in UNBOUNDED:
            raise ValueError(
                f"{teacher.folder} reads {theirs.context_length:,} tokens, fewer than the {ours.context_length:,} of "
                f"{run.folder}: give a teacher that reads as many"
            )
        from pipelines.run.checkpoint_reader import AVERAGE, MODEL, whole_checkpoint  # imports torch

        learned_from = whole_checkpoint(teacher.folder, teacher.settings, "auto", MODEL, AVERAGE).folder
        facts = {"teacher_sha256": manifest_sha256(learned_from)}
        return Adapted(replace(self, by_bytes=differ), facts, tok)

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        """Return the windows of all texts. Masks and spans are a function of the indices of text and window."""
        window = _decoder_windows if reader.model.architecture == "decoder" else _corrupted_windows
        texts = [example.inputs for example in examples]
        encoded = [one for origin, ids in enumerate(reader.ids(texts)) for one in window(reader, ids, origin)]
        if self.by_bytes and (teacher := self._teacher_reader()):
            encoded = _beside_the_teacher(encoded, texts, reader, teacher)
        if not encoded:
            raise ValueError("the texts are too short to predict a token of them: give longer texts")
        return encoded

    def loss(self, reader: TextReader) -> "Callable[..., Tensor]":
        from pipelines.run.teacher_scores import load_byte_teacher, load_teacher  # imports torch
        from pipelines.training.byte_losses import summed_byte_distillation_loss
        from pipelines.training.logit_losses import summed_distillation_loss

        temperature = self.temperature or (1.0 if self.by_bytes else 2.0)
        options: dict[str, Any] = {"alpha": self.alpha, "temperature": temperature}
        if not self.by_bytes:
            return partial(summed_distillation_loss, teacher=load_teacher(self.teacher), **options)
        teacher = load_byte_teacher(self.teacher, reader.tokenizer, reader.model.vocab_size)
        return partial(summed_byte_distillation_loss, teacher=teacher, **options)

    # Results

    def outputs(
        self,
        predictor: "Predictor",
        encoded: Sequence[Encoded],
        labelled: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> list["WindowScores"]:
        from lm.model import LanguageModel
        from pipelines.run.teacher_scores import load_byte_teacher, load_teacher, window_scores  # imports torch

        model, teacher, tok = predictor.model, None, predictor.reader.tokenizer
        assert isinstance(model, LanguageModel)
        entries, device = model.config.vocab_size, model.embedding.weight.device
        try:
            if not self.by_bytes and Run(self.teacher).facts["tokenizer_fingerprint"] != tok.fingerprint:
                raise ValueError(f"{self.teacher} has another vocabulary")
            found = load_byte_teacher(self.teacher, tok, entries) if self.by_bytes else load_teacher(self.teacher)
            teacher = found.to(device)
        except ValueError as error:
            say(f"numbers of the teacher are left out: {error}")
        lengths = np.zeros(entries)
        if model.config.architecture == "decoder":
            lengths[: tok.vocab_size] = known_byte_lengths(tok)
        return window_scores(model, teacher, encoded, lengths, progress)

    def results(
        self, outputs: Sequence["WindowScores"], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        tokens, size = sum(one.tokens for one in outputs), sum(one.bytes for one in outputs)
        nats = sum(one.nats for one in outputs)
        numbers = DistillationNumbers(
            cross_entropy=nats / tokens,
            perplexity=perplexity(nats / tokens),
            bits_per_byte=bits_per_byte(nats, size),
            tokens=tokens,
            bytes=size or None,
        )
        theirs = [one.teacher for one in outputs if one.teacher is not None]
        if not theirs:
            return [numbers]
        nats, compared = sum(one.nats for one in theirs), sum(one.compared for one in theirs)
        kl = sum(one.kl_bits for one in theirs) / compared if compared else None
        numbers = replace(numbers, teacher_bits_per_byte=bits_per_byte(nats, sum(one.bytes for one in theirs)))
        if self.by_bytes:
            return [replace(numbers, teacher_byte_kl_bits=kl, shared_boundaries=compared / tokens)]
        return [replace(numbers, teacher_cross_entropy=nats / tokens, teacher_kl_bits=kl)]

    def _teacher_reader(self) -> TextReader | None:
        """Return the reader of the teacher; None if the run no longer exists."""
        from pipelines.tasks.data import reader_of

        return reader_of(Run(self.teacher), self) if (Path(self.teacher) / "config.toml").exists() else None


def _beside_the_teacher(
    windows: list[Encoded], texts: Sequence[str], reader: TextReader, teacher: TextReader
) -> list[Encoded]:
    """Return the windows of texts with the ids that the teacher reads; see `with_teacher`."""
    of_text: dict[int, list[Encoded]] = {}
    for one in windows:
        of_text.setdefault(one.origin, []).append(one)
    readings = [[Reading.of(each, ids) for ids in each.ids(texts)] for each in (reader, teacher)]
    context = teacher.model.context_length
    return [
        one
        for origin, parts in of_text.items()
        for one in with_teacher(parts, readings[0][origin], readings[1][origin], context)
    ]


def _decoder_windows(reader: TextReader, ids: list[int], origin: int) -> list[Encoded]:
    """Return windows of the context length. Every token of a text, and its end, is a target in one window."""
    around, length = reader.around, reader.model.context_length
    joined = np.array([*around.before, *ids, *around.stops[:1]], np.int64)
    inputs, targets = joined[:-1], joined[1:]
    starts = range(0, len(targets), length)
    return [Encoded(ids=inputs[i : i + length], targets=targets[i : i + length], origin=origin) for i in starts]


def _corrupted_windows(reader: TextReader, ids: list[int], origin: int) -> list[Encoded]:
    """Return windows with masked tokens for an encoder, or with removed spans for an encoder-decoder."""
    around, length = reader.around, reader.model.context_length
    encoder = reader.model.architecture == "encoder"
    if not encoder and (around.start is None or not around.stops):
        require_special_tokens("the task distillation", (END_OF_TEXT,), around.special)
    length -= 2 if encoder else 0
    encoded = []
    for place, start in enumerate(range(0, len(ids), length)):
        window = np.array(ids[start : start + length])
        if len(window) < 2:
            continue
        objective: MaskedToken | SpanCorruption
        if encoder:
            objective = MaskedToken(len(window), around.special, reader.tokenizer.vocab_size)
        else:
            objective = SpanCorruption(len(window), around.special, around.start, around.stops[0])
        draw = np.array([[0, origin, place]])
        batch = objective.batch(TokenStream([window], len(window)), np.array([0]), draw)
        if batch.weights.any():
            source = None if batch.source is None else batch.source[0]
            made = Encoded(
                ids=batch.inputs[0], targets=batch.targets[0], weights=batch.weights[0], source=source, origin=origin
            )
            encoded.append(made)
    return encoded


TASK = Distillation
