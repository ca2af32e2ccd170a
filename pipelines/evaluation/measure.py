"""The evaluation of a run: it is planned, scored split by split, and added to evaluation.json."""

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from corpora.splits import TRAIN
from lm.metrics.predictions import bits, perplexity
from pipelines.cli.display import Bar
from pipelines.cli.waiting import doing
from pipelines.dataset.document_records import RecordedDocuments, read_documents
from pipelines.dataset.pairs import Pairs
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.confidence import describe, intervals, sampling_of
from pipelines.evaluation.core import Difference
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.difference import (
    NO_DIVERGENCE,
    UNITS,
    Gap,
    ScoredText,
    difference,
    difference_per_byte,
    reservations,
    sentence,
)
from pipelines.evaluation.documents import StreamText, document_keys, text_of_stream
from pipelines.evaluation.evaluation_file import Evaluation, read_evaluation, with_evaluations
from pipelines.evaluation.inputs import objective_of
from pipelines.evaluation.measurement import entry_of
from pipelines.evaluation.ngrams import Baselines
from pipelines.evaluation.numbers import not_held_out, with_overflow
from pipelines.evaluation.planning import Plan
from pipelines.evaluation.scoring import DIVERGENCES, score
from pipelines.evaluation.split import ScoredSplit, Split
from pipelines.evaluation.token_scores import TokenScores
from pipelines.evaluation.trained_text import TrainingText
from pipelines.evaluation.windows import Stream, windows_over
from pipelines.files import distinct_names, write_json
from pipelines.run.folder import Run
from pipelines.run.loaded_run import Trained, load_trained
from pipelines.run.manifest import manifest_sha256
from pipelines.run.provenance import provenance
from pipelines.training.objectives import MaskedToken, PairObjective, SpanCorruption


def measure(*plans: Plan) -> dict[str, Any]:
    """Score the splits of the plans of one run, add them to evaluation.json, and return its contents."""
    run = plans[0].run
    trained_on = TrainingText.of(run, [each for plan in plans for each in (plan.dataset, plan.training)])
    scored = [_score(plan, trained_on) for plan in plans]
    added = [each for evaluations in scored for each in evaluations]
    if len(plans) > 1:
        shares = [plan.share for plan in plans]
        of_splits = zip(plans[0].splits, zip(*scored, strict=True), strict=True)
        added = [*(mean_evaluation(run, split, shares, sources) for split, sources in of_splits), *added]
    result = with_evaluations(_earlier(run), run.name, added)
    write_json(run.folder / "evaluation.json", result)
    return result


def _score(plan: Plan, trained_on: TrainingText) -> list[Evaluation]:
    """Return the evaluation of each split of a plan."""
    run, dataset, options = plan.run, plan.dataset, plan.options
    trained = load_trained(run, options.device, options.dtype, options.checkpoint, needs="float64")
    other = plan.other_run
    opponent = load_trained(other, options.device, options.dtype, needs="float64") if other else None
    scorer = SplitScorer(plan, trained, opponent, trained_on)
    sources = {
        "checkpoint": trained.checkpoint.name,
        "checkpoint_sha256": manifest_sha256(trained.checkpoint),
        "data": dataset.source if isinstance(dataset, CorpusText) else str(dataset.place.resolve()),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": dataset.tokenizer_fingerprint,
        "against": str(other.folder) if other else None,
    }
    added = []
    for split, stream in plan.splits.items():
        started = time.perf_counter()
        numbers = scorer.score(split, stream)
        seconds = round(time.perf_counter() - started, 3)
        measured = sources | provenance(trained.machine.device) | {"seconds": seconds}
        added.append(Evaluation(plan.entry(split), numbers, measured))
    return added


def _earlier(run: Run) -> dict[str, Any] | None:
    """Return the contents of the run's evaluation.json; rename a damaged file and return None."""
    try:
        return read_evaluation(run.folder)
    except ValueError:
        path = run.folder / "evaluation.json"
        aside = path.replace(path.with_name("evaluation.json.damaged"))
        warnings.warn(f"{path} is damaged: renamed to {aside.name}, and a new file begun", stacklevel=2)
        return None


class SplitScorer:
    """Scores splits with one model; each score is an entry of evaluation.json."""

    def __init__(self, plan: Plan, trained: Trained, other: Trained | None, trained_on: TrainingText) -> None:
        """`other` is a model to compare with."""
        self._plan, self._model, self._trained_on = plan, trained.model, trained_on
        self._same_tokens = other.model if other and isinstance(plan.other, Run) else None
        # The text that the other run was trained on.
        self._other_trained_on = TrainingText.of(plan.other_run, [plan.dataset]) if plan.other_run else None
        self._other_tokens = None
        if other and isinstance(plan.other, Plan) and self._other_trained_on:
            self._other_tokens = SplitScorer(plan.other, other, None, self._other_trained_on)
        self._tokenizer = plan.run.tokenizer()
        self._objective = objective_of(plan.run, plan.windows.window, self._tokenizer)
        doing("fitting the baselines")
        self._baselines = Baselines.fit(plan.training, self._objective) if plan.training else None
        self._settings = vars(plan.windows) | {
            "document_mask": plan.run.recipe.model.document_mask,
            "dtype": trained.machine.dtype_name,
        }

    def score(self, split: str, stream: Stream) -> dict[str, Any]:
        """Return the entry of a split."""
        numbers, tokens = self.scored(split, stream)
        numbers |= self._settings
        if isinstance(self._objective, SpanCorruption | MaskedToken):
            numbers["bits_per_byte"] = None
        if isinstance(self._objective, PairObjective) and isinstance(stream, Pairs):
            numbers["cut"] = self._objective.cut(stream)
        doing("drawing documents")
        text, plan = self._text(split, stream), self._plan
        if isinstance(stream, TokenStream) and text:
            numbers |= self._trained_on.share(stream, text)
            asked_for = split == TRAIN and plan.dataset.fingerprint == plan.run.facts["dataset_fingerprint"]
            if not asked_for and (sentence := not_held_out(numbers, plan.run.name)):
                warnings.warn(f"{self._plan.entry(split)}: {sentence}", stacklevel=2)
        key, sizes = self._per_byte(tokens, text)
        is_code = key != "masked_bits_per_byte" and sizes is not None
        if sizes is not None and key != "bits_per_byte":
            numbers[key] = bits(float(tokens.nats.sum() / sizes.sum()))
        if not self._tokenizer.is_lossless:
            numbers |= {"bytes": None, "original_bytes": None if sizes is None else round(float(sizes.sum()))}
        sampling = sampling_of(tokens, text, plan.windows.window)
        bounds = intervals(tokens, sampling, sizes, key)
        whole = self._split(split, stream)
        scored = ScoredSplit(
            **vars(whole), tokens=tokens, text=text, sampling=sampling, is_code=is_code, intervals=bounds
        )
        for measurement in plan.options.measurements:
            if result := measurement.measure(scored):
                numbers |= entry_of(result)
        numbers |= entry_of(describe(sampling, scored.intervals))
        if self._same_tokens:
            gap = difference(tokens, sampling, sizes if is_code else None, UNITS[key])
            numbers |= entry_of(self._difference(gap, numbers, split, stream))
        if self._other_tokens:
            ours = self._scored_text(split, stream, tokens)
            theirs = self._other_tokens.scored_text(split)
            unit = UNITS[key] if key != "bits_per_byte" else UNITS[self._other_tokens.per_byte_key]
            gap = difference_per_byte(ours, theirs, plan.windows.window, unit)
            numbers |= entry_of(self._difference(gap, numbers, split, stream)) | dict.fromkeys(DIVERGENCES)
        return with_overflow(numbers)

    @property
    def per_byte_key(self) -> str:
        """Return the key of the model's bits per byte."""
        if isinstance(self._objective, MaskedToken):
            return "masked_bits_per_byte"
        return "bits_per_byte" if self._tokenizer.is_lossless else "bits_per_original_byte"

    def _per_byte(self, tokens: TokenScores, text: StreamText | None) -> tuple[str, np.ndarray | None]:
        """Return the key of the bits per byte, and the bytes (N,) of the scored tokens or None if unknown."""
        if isinstance(self._objective, SpanCorruption):
            return self.per_byte_key, None
        if text is not None:
            return self.per_byte_key, text.sizes[tokens.indices]
        lossless = self._tokenizer.is_lossless
        return self.per_byte_key, self._tokenizer.token_byte_lengths[tokens.targets] if lossless else None

    def _split(self, name: str, stream: Stream) -> Split:
        return Split(self._plan, name, stream, self._model, self._tokenizer, self._objective, self._baselines)

    def scored(self, split: str, stream: Stream) -> tuple[dict[str, Any], TokenScores]:
        """Return the numbers that are sums over tokens, and the score of each token."""
        windows, total = windows_over(stream, self._objective, self._plan.windows)
        chosen, whole = self._plan.options.measurements, self._split(split, stream)
        observers = [observer for each in chosen if (observer := each.observer(whole))]
        with Bar(f"scoring {split}", total, "tok") as bar:
            numbers, tokens = score(
                self._model,
                windows,
                self._tokenizer,
                self._baselines,
                window=self._objective.positions,
                other=self._same_tokens,
                observers=observers,
                names=(str(self._plan.run.folder), str(self._plan.other_run and self._plan.other_run.folder)),
                bar=bar,
            )
        for observer in observers:
            numbers |= entry_of(observer.result())
        return numbers, tokens

    def scored_text(self, split: str) -> ScoredText:
        """Return the scores of a split with its documents."""
        stream = self._plan.splits[split]
        return self._scored_text(split, stream, self.scored(split, stream)[1])

    def _scored_text(self, split: str, stream: Stream, tokens: TokenScores) -> ScoredText:
        text, recorded = self._text(split, stream), self._record(split)
        assert isinstance(stream, TokenStream) and text, "only runs on blocks have bits per byte"
        keys = document_keys(stream, self._tokenizer, text, recorded)
        return ScoredText(tokens, text, keys)

    def _text(self, split: str, stream: Stream) -> StreamText | None:
        """Return the documents of a stream, None for pairs."""
        if not isinstance(stream, TokenStream):
            return None
        dataset = self._plan.dataset
        separator = dataset.separator if isinstance(dataset, CorpusText) else dataset.info["separator"]
        mean = dataset.bytes_per_token(split) if isinstance(dataset, TokenDataset) else 0.0
        return text_of_stream(stream, self._tokenizer, separator, self._record(split), mean)

    def _record(self, split: str) -> RecordedDocuments | None:
        dataset = self._plan.dataset
        if isinstance(dataset, CorpusText):
            return dataset.splits[split].recorded
        return read_documents(dataset.folder / split, dataset.info["splits"][split])

    def _difference(self, gap: Gap, numbers: dict[str, Any], split: str, stream: Stream) -> Difference:
        """Return the difference with its sentence and with reservations, such as a text that a run was trained on."""
        run, other = self._plan.run, self._plan.other_run
        assert other is not None
        ours, theirs = distinct_names([run.folder, other.folder])
        notes = reservations([run, other], gap.unit) if self._other_tokens else []
        other_numbers = self._other_share(split, stream)
        notes += filter(None, (not_held_out(numbers, ours), not_held_out(other_numbers, theirs)))
        divergence = NO_DIVERGENCE if self._other_tokens else ""
        return Difference(*gap, sentence(gap, ours, theirs), tuple(notes), divergence)

    def _other_share(self, split: str, stream: Stream) -> dict[str, Any]:
        """Return `TrainingText.share` of the other run on a split."""
        scorer = self._other_tokens or self
        if self._other_tokens:
            stream = self._other_tokens._plan.splits[split]
        text = scorer._text(split, stream)
        if self._other_trained_on and isinstance(stream, TokenStream) and text:
            return self._other_trained_on.share(stream, text)
        return {}


MEANS = ("cross_entropy", "cross_entropy_bits", "entropy_bits", "accuracy")
SETTINGS = ("window", "stride", "min_context", "document_mask", "dtype")


def mean_evaluation(run: Run, split: str, shares: Sequence[float], sources: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation of a mixture, from the evaluations of its sources on the same split."""
    first = sources[0].measured
    measured = first | {
        "data": " ".join(run.facts["data"]),
        "dataset_fingerprint": run.facts["dataset_fingerprint"],
        "seconds": round(sum(each.measured["seconds"] for each in sources), 3),
    }
    return Evaluation(split, mean_numbers(shares, [each.numbers for each in sources]), measured)


def mean_numbers(shares: Sequence[float], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a text that mixes its sources by `shares`, fractions of its tokens that add up to 1.

    Tokens and bytes are totals. Bits per byte are the mean bits of a token divided by its mean bytes. Other
    numbers are left out.
    """

    def mean(values: Iterable[float]) -> float:
        return sum(share * value for share, value in zip(shares, values, strict=True))

    def known(*keys: str) -> list[str]:
        return [key for key in keys if all(each.get(key) is not None for each in sources)]

    numbers: dict[str, Any] = {key: sum(each[key] for each in sources) for key in known("tokens", "bytes")}
    numbers |= {key: mean(each[key] for each in sources) for key in known(*MEANS)}
    numbers |= {"perplexity": perplexity(numbers["cross_entropy"]), "bits_per_byte": None}
    if known("bits_per_byte"):
        bytes_per_token = mean(each["bytes"] / each["tokens"] for each in sources)
        numbers["bits_per_byte"] = numbers["cross_entropy_bits"] / bytes_per_token
    return with_overflow(numbers | {key: sources[0][key] for key in SETTINGS if key in sources[0]})
