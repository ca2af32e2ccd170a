"""The cards at the top of a report: quality, bits per byte, data, time and machine."""

from typing import NamedTuple

from corpora.object_store import AnyPath
from pipelines.cli.display import count_text, duration, perplexity_text, quantity, rounded
from pipelines.evaluation.measurements.intervals import Intervals
from pipelines.evaluation.measurements.ngrams import NGrams
from pipelines.evaluation.numbers import value_of
from pipelines.evaluation.results import SPLITS, SplitEvaluation
from pipelines.files import parse_json
from pipelines.reporting.subject import Subject
from pipelines.run.folder import Run
from pipelines.tasks.comparison import Comparison

TARGETS = {"next-token": "", "masked-token": " of masked tokens"}  # title of a perplexity, by objective
SHOWN_BASELINES = 4


class Card(NamedTuple):
    """A number with a title, and lines that explain it."""

    title: str
    value: str
    lines: list[str]


def cards_of(subject: Subject) -> list[Card]:
    """Return the cards of a run, at most four; only data and time if it is not evaluated."""
    main = subject.main
    if main and subject.of_task:
        return [*_of_task(main), _data(subject), _time(subject)]
    measured = [_perplexity(subject, main), _compared(subject, main)] if main else []
    return [*measured, _data(subject), _time(subject)]


def baselines_of(evaluation: SplitEvaluation, per: float) -> dict[str, float]:
    """Return the bits per token of the n-gram baselines, times `per`."""
    known = evaluation.find(NGrams)
    if known is None:
        return {}
    return {
        "a unigram model": known.unigram_cross_entropy_bits * per,
        "a bigram model": known.bigram_cross_entropy_bits * per,
    }


def codes_of(subject: Subject, evaluation: SplitEvaluation, short: bool = False) -> dict[str, float]:
    """Return the bits per byte of baselines and other codes on the text of an evaluation, by name or `short` label."""
    baselines = baselines_of(evaluation, evaluation.tokens / max(1, evaluation.bytes))
    return baselines | {other.label if short else other.name: other.bits_per_byte for other in subject.opponents}


def _of_task(main: SplitEvaluation) -> list[Card]:
    """Return a card with the headline numbers of a task, and one with simpler predictors, if there are any."""
    first, comparison = main.results[0], main.find(Comparison)
    quoted = [(shown.name, value_of(key, main)) for key, shown in first.numbers().items() if shown.headline]
    (title, value), *others = quoted
    lines = [*(f"{name} {text}" for name, text in others), f"{main.examples:,} examples"]
    cards = [Card(f"{title[:1].upper()}{title[1:]}", value, lines)]
    if comparison and comparison.others:
        rows = [f"{name}: {comparison.shown(values)}" for name, values in comparison.others.items()]
        cards.append(Card("Beside simpler predictors", comparison.shown(comparison.own), rows[:SHOWN_BASELINES]))
    return cards


def _perplexity(subject: Subject, main: SplitEvaluation) -> Card:
    of = TARGETS.get(subject.run.recipe.objective, " of targets")
    lines = [f"{main.cross_entropy:.4f} nats per token"]
    bounds = (known := main.find(Intervals)) and known.bounds.get("perplexity")
    if bounds and None not in bounds:
        lines.append(f"95 % interval {bounds[0]:,.2f} to {bounds[1]:,.2f}")
    lines.append(f"{main.tokens:,} tokens scored")
    name = subject.text_name(main)
    title = f"{name.capitalize()} perplexity" if name in SPLITS else f"Perplexity on {name}"
    return Card(f"{title}{of}", perplexity_text(main.cross_entropy, ",.2f"), lines)


def _compared(subject: Subject, main: SplitEvaluation) -> Card:
    """Return the card of the bits per byte, or of the accuracy for a model without them."""
    if subject.run.recipe.objective == "next-token" and main.bits_per_byte is not None:
        least = sorted(codes_of(subject, main, short=True).items(), key=lambda other: other[1])[:SHOWN_BASELINES]
        return Card("Bits per byte", f"{main.bits_per_byte:.3f}", [f"{name}: {bits:.3f}" for name, bits in least])
    lines = [f"{main.cross_entropy_bits:.3f} bits per target"]
    if main.unigram_accuracy is not None:
        lines.append(f"{main.unigram_accuracy:.1%} for the most frequent token")
    lines += [f"{name}: {bits:.3f} bits" for name, bits in baselines_of(main, 1.0).items()]
    return Card("Ranked first", f"{main.accuracy:.1%}", lines)


def _data(subject: Subject) -> Card:
    model = subject.run.recipe.model
    lines = [f"{subject.parameters:,} parameters", f"{model.vocab_size:,} entries, context of {model.context_length:,}"]
    if subject.imported:
        return Card("Model", str(subject.run.facts["imported_from"]), lines)
    texts = [_text(source, subject.run) for source in subject.run.sources]
    return Card("Trained on", rounded(subject.tokens_seen, "tokens"), [*texts, *lines])


def _text(source: AnyPath, run: Run) -> str:
    """Return the corpus of a dataset and the size of its training split; only the folder if the dataset is gone."""
    path = source / "dataset.json"
    try:
        info = parse_json(path.read_bytes(), str(path), "build the dataset again")
        if len(run.sources) > 1 or info["fingerprint"] == run.facts["dataset_fingerprint"]:
            train = info["splits"]["train"]
            size = sum(train.get(key, 0) for key in ("bytes", "source_bytes", "target_bytes"))
            count = (
                count_text(train["pairs"], "pair") if "pairs" in train else count_text(train["documents"], "document")
            )
            return f"{info['corpus']['name']}: {count}, {quantity(size, 'B')}"
    except (ValueError, LookupError, TypeError, OSError):
        pass
    return str(source)


def _time(subject: Subject) -> Card:
    facts = subject.run.facts
    lines = [str(facts["hardware"])] if facts.get("hardware") else []
    if subject.imported or not subject.seconds:
        return Card("Date", str(facts.get("date", "not recorded"))[:10], lines)
    return Card("Training time", duration(subject.seconds), [f"{subject.speed:,.0f} tokens/s", *lines])
