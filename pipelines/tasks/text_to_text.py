"""Texts to texts: summaries, translations, answers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from corpora.rows import Row
from lm.metrics.units import bits_per_byte
from pipelines.evaluation.documents import known_byte_lengths
from pipelines.evaluation.measurement import Result, Section, Table, number
from pipelines.evaluation.text_scores import bleu, chrf
from pipelines.tasks.examples import Encoded
from pipelines.tasks.task import Example, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import END_OF_TEXT

if TYPE_CHECKING:
    from pipelines.run.predictor import Predictor

SHOWN = 12  # texts in the table
_SENTENCE_END = re.compile(r"(?<=[.!?])\s|(?<=[。！？])|\n")


@dataclass(frozen=True, kw_only=True)
class TextNumbers(Result):
    """The numbers of written texts, and of the targets' probabilities."""

    chrf: float | None = number(
        "chrF",
        "chrF2 (0 to 100) of the written texts, by sacrebleu: F-score of sequences of 1 to 6 characters.",
        1,
        headline=True,
        default=None,
    )
    bleu: float | None = number(
        "BLEU", "Cased corpus BLEU (0 to 100) of the written texts, by sacrebleu.", 1, headline=True, default=None
    )
    bleu_signature: str | None = None
    rouge_1: float | None = number(
        "ROUGE-1", "Mean F1 (0 to 100) of the words of a written text and its target.", 2, headline=True, default=None
    )
    rouge_2: float | None = number(
        "ROUGE-2", "Mean F1 (0 to 100) of their pairs of consecutive words.", 2, headline=True, default=None
    )
    rouge_l: float | None = number(
        "ROUGE-L", "Mean F1 (0 to 100) of their longest common subsequence of words.", 2, headline=True, default=None
    )
    rouge_lsum: float | None = number(
        "ROUGE-Lsum", "The same for each line of a target and all lines of a written text.", 2, default=None
    )
    exact_match: float | None = number(
        "exact match", "Share of written texts that equal the target byte for byte.", 4, default=None
    )
    written: int | None = number(
        "texts written", "Examples whose target the model wrote, for the scores of written texts.", 0, default=None
    )
    accuracy: float | None = number(
        "accuracy",
        "Share of target tokens to which the model gave the highest probability.",
        4,
        headline=True,
        default=None,
    )
    cross_entropy: float | None = number(
        "cross-entropy, nats per token",
        "Mean of -ln p over the target tokens and their ends, each after the source and the true tokens before it.",
        4,
        default=None,
    )
    bits_per_byte: float | None = number(
        "bits per byte",
        "Total bits of the target tokens and their ends, divided by the bytes of the targets.",
        4,
        headline=True,
        default=None,
    )
    tokens: int | None = number("tokens scored", "Target tokens, with their ends.", 0, default=None)
    bytes: int | None = number("bytes scored", "Bytes of the targets.", 0, default=None)

    def sentences(self, tokens: int) -> list[str]:
        return [f"BLEU: {self.bleu_signature}"] if self.bleu_signature else []


@dataclass(frozen=True)
class WrittenText:
    """A source, its target and the text that the model wrote."""

    source: str
    target: str
    written: str


@dataclass(frozen=True)
class WrittenTexts(Result):
    """Some of the written texts."""

    key = only = "texts"
    section = Section("Written texts", "Some examples, evenly spread over the held-out ones.")

    texts: tuple[WrittenText, ...]

    def parts(self) -> list[Table | str]:
        rows = [(one.source, [one.target, one.written]) for one in self.texts]
        return [Table("Written texts", "Source", ["target", "written"], rows, text=True)] if rows else []


@dataclass(frozen=True)
class Output:
    """The output of the model for one example."""

    text: str | None
    """Written text, if any"""
    nats: Array | None = None
    """-ln p of each target token, float32 (N,)"""
    first: Array | None = None
    """Whether each target token was ranked first, bool (N,)"""
    bytes: int = 0
    """Bytes of the target tokens; 0 if unknown"""


@dataclass(frozen=True, kw_only=True)
class TextToText(Task):
    """A text for each text: summaries, translations, answers."""

    name = "text-to-text"
    architectures = ("encoder-decoder", "decoder")
    usual = (
        ("source", "target"),
        ("article", "summary"),
        ("article", "highlights"),
        ("document", "summary"),
        ("text", "summary"),
        ("question", "answer"),
        ("text", "target"),
        ("translation.en", "translation.de"),
        ("en", "de"),
    )
    kinds = (TextNumbers, WrittenTexts)

    target_length: int = 0
    """Maximum tokens of a target, with its end; 0: the context of an encoder-decoder, half the context of a decoder"""
    write: int = 200
    """Number of held-out examples, evenly spread, for which an evaluation generates the target; 0: none"""
    beams: int = 1
    """Beam width of beam search, for encoder-decoders; 1: greedy decoding"""
    length_penalty: float = 1.0
    """Beam search divides the log-probability of a target by its length to this power"""
    words: Literal["unicode", "english"] = "unicode"
    """Words of ROUGE. unicode: words of all scripts. english: runs of a-z and 0-9, as in the package rouge-score"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("target_length", 0), ("write", 0), ("beams", 1), ("length_penalty", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"`{name}` is {getattr(self, name)}, but must be at least {least}")

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        source, target = self.names
        text = row.text(source)
        if not labelled:
            return Example(row, text) if text else None
        wanted = row.text(target)
        return Example(row, text, wanted) if text and wanted else None

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        around, decoder = reader.around, reader.model.architecture == "decoder"
        if not around.stops or not (decoder or around.start is not None):
            require_special_tokens(f"the task {self.name}", (END_OF_TEXT,), around.special)
        if decoder and self.beams > 1:
            raise ValueError(f"`beams` is {self.beams}, but only an encoder-decoder is searched: leave it out")
        room, end = self._room(reader), around.stops[0]
        encoded = []
        texts = reader.ids_of_each([(example.inputs, example.target or "") for example in examples])
        for number_, (source, target) in enumerate(texts):
            written = [*target, end][: room[1]]
            cut = len(source) > room[0] or len(target) + 1 > room[1]
            make = _after_the_source if decoder else _beside_the_source
            encoded.append(make(reader, list(reader.cut(source, room[0])), written, number_, cut))
        return encoded

    def _room(self, reader: TextReader) -> tuple[int, int]:
        """Return the maximum tokens of a source, and of a target with its end."""
        context = reader.model.context_length
        if reader.model.architecture == "encoder-decoder":
            source, most = reader.room(), context
            target = self.target_length or most
        else:  # both share the context; the last token of the target is not read
            both = reader.room(2) + 1
            most, target = both - 1, self.target_length or both // 2
            source = both - target
        if target > most:
            raise ValueError(f"`target_length` is {target}, but the model reads {context} tokens: give at most {most}")
        return source, target

    def outputs(
        self,
        predictor: "Predictor",
        encoded: Sequence[Encoded],
        labelled: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> list[Output]:
        from pipelines.run.task_outputs import task_outputs  # imports torch

        if not labelled:
            return [Output(text) for text in self._written(predictor, encoded, progress)]
        texts: list[str | None] = [None] * len(encoded)
        chosen = self._chosen(len(encoded))
        for i, text in zip(chosen, self._written(predictor, [encoded[i] for i in chosen]), strict=True):
            texts[i] = text
        lengths = known_byte_lengths(predictor.reader.tokenizer)
        outputs = []
        scores = task_outputs(predictor.model, encoded, progress)
        for one, score, written in zip(encoded, scores, texts, strict=True):
            here = np.ones(len(one.targets), bool) if one.weights is None else one.weights > 0
            size = int(lengths[one.targets[here]].sum())
            outputs.append(Output(written, score[here, 0], score[here, 1] > 0, size))
        return outputs

    def _chosen(self, count: int) -> list[int]:
        """Return the indices of the examples for which an evaluation generates the target."""
        numbers: list[int] = np.linspace(0, count - 1, min(self.write, count)).astype(int).tolist()
        return numbers

    def _written(
        self, predictor: "Predictor", encoded: Sequence[Encoded], progress: Callable[[int], None] | None = None
    ) -> list[str]:
        """Return the text that the model writes for each example."""
        from lm.model import LanguageModel
        from pipelines.generation.targets import continued_prompts, searched_targets
        from pipelines.run.text_ids import known_ids

        model, reader = predictor.model, predictor.reader
        assert isinstance(model, LanguageModel)
        tok, allowed, tokens = reader.tokenizer, known_ids(reader.tokenizer, model), self._room(reader)[1]
        if model.encoder is None:
            prompts = [one.prompt for one in encoded]
            found = continued_prompts(model, prompts, reader.around, allowed, tokens=tokens, progress=progress)
        else:
            found = searched_targets(
                model,
                [one.source.tolist() for one in encoded if one.source is not None],
                reader.around,
                allowed,
                tokens=tokens,
                beams=self.beams,
                length_penalty=self.length_penalty,
                progress=progress,
            )
        return [tok.decode(ids) for ids in found]

    def results(
        self, outputs: Sequence[Output], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        nats = np.concatenate([one.nats for one in outputs if one.nats is not None]).astype(np.float64)
        first = np.concatenate([one.first for one in outputs if one.first is not None])
        size = sum(one.bytes for one in outputs)
        texts = [
            WrittenText(example.inputs, example.target, one.text)
            for example, one in zip(examples, outputs, strict=True)
            if one.text is not None
        ]
        probabilities: dict[str, Any] = {
            "accuracy": float(first.mean()),
            "cross_entropy": float(nats.mean()),
            "bits_per_byte": bits_per_byte(float(nats.sum()), size),
            "tokens": len(nats),
            "bytes": size or None,
        }
        scores = self._scores([one.written for one in texts], [one.target for one in texts])
        shown = np.unique(np.linspace(0, len(texts) - 1, SHOWN).astype(int)).tolist() if texts else []
        return [TextNumbers(**scores, **probabilities), WrittenTexts(tuple(texts[i] for i in shown))]

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: TextReader
    ) -> dict[str, Result]:
        chosen = [examples[i] for i in self._chosen(len(examples))]
        if not chosen:
            return {}
        targets = [example.target for example in chosen]
        leads = [_SENTENCE_END.split(example.inputs.strip(), maxsplit=1)[0] for example in chosen]
        return {
            "the source itself": TextNumbers(**self._scores([example.inputs for example in chosen], targets)),
            "the first sentence of the source": TextNumbers(**self._scores(leads, targets)),
        }

    def predictions(
        self, outputs: Sequence[Output], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        return [{"prediction": one.text} for one in outputs]

    def _scores(self, written: list[str], targets: list[str]) -> dict[str, Any]:
        """Return the scores of written texts, by field of TextNumbers."""
        from lm.metrics.rouge import ROUGE_WORDS, mean_rouge

        if not written:
            return {}
        score, signature = bleu(written, targets)
        means = mean_rouge(written, targets, ROUGE_WORDS[self.words])
        return {
            "chrf": chrf(written, targets),
            "bleu": score,
            "bleu_signature": signature,
            **{name: 100 * mean for name, mean in means._asdict().items()},
            "exact_match": float(np.mean([text == target for text, target in zip(written, targets, strict=True)])),
            "written": len(written),
        }


def _beside_the_source(reader: TextReader, source: list[int], target: list[int], origin: int, cut: bool) -> Encoded:
    """Return the example of an encoder-decoder: the encoder reads the source, the decoder the target."""
    before, _, after = reader.edges
    start = reader.around.start
    return Encoded(
        ids=np.array([start, *target[:-1]], np.int64),
        source=np.array([*before, *source, *after], np.int64),
        targets=np.array(target, np.int64),
        origin=origin,
        cut=cut,
    )


def _after_the_source(reader: TextReader, source: list[int], target: list[int], origin: int, cut: bool) -> Encoded:
    """Return the example of a decoder, which reads source, separator and target, and predicts the target."""
    before, between, _ = reader.edges
    prompt = [*before, *source, *between]
    joined = np.array([*prompt, *target], np.int64)
    weights = np.zeros(len(joined) - 1, np.float32)
    weights[len(prompt) - 1 :] = 1
    return Encoded(ids=joined[:-1], targets=joined[1:], weights=weights, origin=origin, cut=cut)


TASK = TextToText
