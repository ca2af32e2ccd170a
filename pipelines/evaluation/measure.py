"""The evaluation of a run: it is planned, scored split by split, and added to evaluation.json."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.cli.waiting import doing
from pipelines.dataset.pairs import Pairs
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.compressors import compressed_bits_per_byte
from pipelines.evaluation.confidence import intervals, sampling_of
from pipelines.evaluation.documents import StreamText, text_of_stream
from pipelines.evaluation.inputs import comparable, dataset_of, objective_of, windows_of
from pipelines.evaluation.ngrams import Baselines
from pipelines.evaluation.scoring import PSEUDO_POSITIONS, SourceDivergence, pseudo_perplexity, score
from pipelines.evaluation.translation import translation_numbers
from pipelines.evaluation.windows import Stream, WindowSettings, windows_over
from pipelines.files import write_json
from pipelines.run.evaluation_file import Evaluation, with_evaluations
from pipelines.run.folder import Run
from pipelines.run.loading import Trained, load_trained
from pipelines.run.manifest import manifest_sha256
from pipelines.run.provenance import provenance
from pipelines.training.data import Dataset
from pipelines.training.objectives import MaskedToken, PairObjective, SpanCorruption


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of `bytelm evaluate` that apply to every run (see `pipelines.evaluate`)."""

    splits: tuple[str, ...] = ("validation",)
    stride: int | None = None
    min_context: int = 1
    beams: int = 4
    length_penalty: float = 1.0
    compressors: bool = False
    checkpoint: str = "newest"
    device: str = "auto"
    dtype: str = "float32"


@dataclass(frozen=True)
class Plan:
    """A run, the splits of a dataset to measure it on, and the run to compare it with."""

    run: Run
    dataset: Dataset
    windows: WindowSettings
    splits: Mapping[str, Stream]
    other: Run | None
    options: EvaluationOptions


def plan(folder: Path, options: EvaluationOptions, data: Path | None = None, against: Path | None = None) -> Plan:
    """Return the plan of one evaluation; ValueError for options that do not fit the run in `folder`."""
    run = Run(folder)
    if options.compressors and run.recipe.objective == "sequence-pairs":
        raise ValueError(f"{folder} was trained on pairs, and --compressors needs a text: leave it out")
    dataset = dataset_of(run, data)
    windows = windows_of(run, dataset, options.stride, options.min_context)
    splits = {split: dataset.split(split) for split in options.splits}
    return Plan(run, dataset, windows, splits, comparable(Run(against), run) if against else None, options)


def measure(plan: Plan) -> dict[str, Any]:
    """Score the splits of a plan, add them to evaluation.json, and return its contents."""
    run, dataset, options = plan.run, plan.dataset, plan.options
    trained = load_trained(run, options.device, options.dtype, options.checkpoint, needs="float64")
    other = load_trained(plan.other, options.device, options.dtype, needs="float64").model if plan.other else None
    scorer = SplitScorer(plan, trained, other)
    sources = {
        "checkpoint": trained.checkpoint.name,
        "checkpoint_sha256": manifest_sha256(trained.checkpoint),
        "data": str(dataset.folder.resolve()),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": dataset.tokenizer_fingerprint,
        "against": str(plan.other.folder) if plan.other else None,
    }
    added = []
    for split, stream in plan.splits.items():
        started = time.perf_counter()
        numbers = scorer.score(split, stream)
        seconds = round(time.perf_counter() - started, 3)
        if options.compressors:
            numbers["compressors"] = scorer.compressed(split)
        measured = sources | provenance(trained.machine.device) | {"seconds": seconds}
        added.append(Evaluation(split, numbers, measured))
    result = with_evaluations(_earlier(run), run.name, added)
    write_json(run.folder / "evaluation.json", result)
    return result


def _earlier(run: Run) -> dict[str, Any] | None:
    """Return the contents of the run's evaluation.json; rename a damaged file and return None."""
    try:
        return run.evaluation()
    except ValueError:
        path = run.folder / "evaluation.json"
        aside = path.replace(path.with_name("evaluation.json.damaged"))
        warnings.warn(f"{path} is damaged: renamed to {aside.name}, and a new file begun", stacklevel=2)
        return None


class SplitScorer:
    """Scores splits with one model; each score is an entry of evaluation.json."""

    def __init__(self, plan: Plan, trained: Trained, other: LanguageModel | None) -> None:
        """`other` is a model to measure the divergence from."""
        self._plan, self._model, self._other = plan, trained.model, other
        self._tokenizer = plan.run.tokenizer()
        self._objective = objective_of(plan.run, plan.windows.window, self._tokenizer)
        doing("fitting the baselines")
        self._baselines = Baselines.fit(plan.dataset, self._objective)
        self._settings = vars(plan.windows) | {
            "document_mask": plan.run.recipe.model.document_mask,
            "dtype": trained.machine.dtype_name,
        }

    def score(self, split: str, stream: Stream) -> dict[str, Any]:
        """Return the entry of a split."""
        windows, total = windows_over(stream, self._objective, self._plan.windows)
        synthetic = self._plan.dataset.info["corpus"].get("synthetic")
        source = None
        if synthetic and isinstance(stream, TokenStream):
            source = SourceDivergence(synthetic, stream, self._tokenizer)
        with Bar(f"scoring {split}", total, "tok") as bar:
            numbers, tokens = score(
                self._model,
                windows,
                self._tokenizer,
                self._baselines,
                window=self._objective.positions,
                other=self._other,
                source=source,
                bar=bar,
            )
        numbers |= self._of_objective(split, stream) | self._settings
        doing("drawing documents")
        text = self._text(stream)
        sampling = sampling_of(tokens, text, self._plan.windows.window)
        return numbers | {"intervals": intervals(tokens, sampling, self._byte_lengths(numbers))}

    def _text(self, stream: Stream) -> StreamText | None:
        """Return the documents of a stream, None for pairs."""
        if not isinstance(stream, TokenStream):
            return None
        return text_of_stream(stream, self._tokenizer, self._plan.dataset.info["separator"])

    def _byte_lengths(self, numbers: dict[str, Any]) -> np.ndarray | None:
        """Return the bytes of each token (V,) if the split has bits per byte."""
        return None if numbers["bits_per_byte"] is None else np.asarray(self._tokenizer.token_byte_lengths)

    def compressed(self, split: str) -> dict[str, dict[str, float]]:
        """Return the bits per byte of compressors on the text of a split."""
        assert isinstance(self._plan.dataset, TokenDataset), "only a dataset of blocks has a text to compress"
        with Bar("compressing", None, "B") as bar:
            return compressed_bits_per_byte(self._plan.dataset, self._tokenizer, split, progress=bar.update)

    def _of_objective(self, split: str, stream: Stream) -> dict[str, Any]:
        """Return the numbers that only models of this objective have."""
        match self._objective, stream:
            case SpanCorruption(), _:
                return {"bits_per_byte": None}
            case MaskedToken(), TokenStream():
                with Bar("masking one by one", PSEUDO_POSITIONS, "tok") as bar:
                    unigram = self._baselines.unigram
                    numbers = pseudo_perplexity(self._model, stream, self._objective, self._tokenizer, unigram, bar)
                return {**numbers, "bits_per_byte": None}
            case PairObjective(), Pairs():
                return {"cut": self._objective.cut(stream)} | self._translation(split, stream, self._objective)
        return {}

    def _translation(self, split: str, pairs: Pairs, objective: PairObjective) -> dict[str, Any]:
        options = self._plan.options
        if not options.beams:
            return {}
        with Bar(f"searching {split}", len(pairs), "pairs") as bar:
            return translation_numbers(
                self._model,
                pairs,
                objective,
                self._tokenizer,
                beams=options.beams,
                length_penalty=options.length_penalty,
                bar=bar,
            )
