"""What a run is measured on, and the numbers of each split (`pipelines.evaluate` says which there are)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.cli.waiting import doing
from pipelines.dataset.pairs import Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.compressors import compressed_bits_per_byte
from pipelines.evaluation.scoring import (
    PSEUDO_POSITIONS,
    Truth,
    Windows,
    decoder_windows,
    encoder_windows,
    fit_baselines,
    pair_windows,
    pseudo_perplexity,
    score,
    span_windows,
)
from pipelines.evaluation.translation import translation_numbers
from pipelines.run.folder import Run
from pipelines.run.loading import Trained
from pipelines.run.text_ids import special_ids, text_ids
from pipelines.training.data import Dataset, make_any_objective, open_dataset
from pipelines.training.loader import MaskedToken, NextToken, SpanCorruption, StreamObjective
from pipelines.training.pair_loader import SequencePairs
from tokenizer import PAD, Tokenizer


@dataclass(frozen=True)
class WindowSettings:
    """How a stream is cut into what the model reads at once, in tokens."""

    window: int
    stride: int
    min_context: int


class SplitScorer:
    """Makes the entry of evaluation.json for a split after the other."""

    def __init__(
        self,
        run: Run,
        trained: Trained,
        dataset: Dataset,
        windows: WindowSettings,
        *,
        search: dict[str, Any],
        other: LanguageModel | None = None,
    ) -> None:
        """`search`: the options of `translation_numbers`. `other`: a model to measure the divergence from."""
        self.model, self.other, self.dataset, self.windows, self.search = trained.model, other, dataset, windows, search
        self.tokenizer = run.tokenizer()
        self.objective = objective_of(run, windows.window, self.tokenizer)
        doing("fitting the baselines")
        self.baselines = fit_baselines(dataset, self.objective)
        self.settings = vars(windows) | {
            "document_mask": run.recipe.model.document_mask,
            "dtype": trained.machine.dtype_name,
        }

    def score(self, stream: TokenStream | Pairs, name: str) -> dict[str, Any]:
        """The entry for the split `name`, whose tokens or pairs are `stream`."""
        windows, total = windows_over(stream, self.objective, self.windows)
        synthetic = self.dataset.info["corpus"].get("synthetic")
        truth = Truth(synthetic, stream, self.tokenizer) if synthetic else None
        with Bar(f"scoring {name}", total, "tok") as bar:
            numbers = score(
                self.model,
                windows,
                self.tokenizer,
                self.baselines,
                window=self.objective.positions,
                other=self.other,
                truth=truth,
                bar=bar,
            )
        return numbers | self._more(stream, name) | self.settings

    def compressed(self, split: str) -> dict[str, dict[str, float]]:
        """What compressors need for the same text."""
        with Bar("compressing", None, "B") as bar:
            return compressed_bits_per_byte(self.dataset, self.tokenizer, split, progress=bar.update)

    def _more(self, stream: TokenStream | Pairs, name: str) -> dict[str, Any]:
        """The numbers that only this kind of model has."""
        match self.objective:
            case NextToken():
                return {}
            case SpanCorruption():
                return {"bits_per_byte": None}
            case MaskedToken():
                with Bar("masking one by one", PSEUDO_POSITIONS, "tok") as bar:
                    unigram = self.baselines[0]
                    found = pseudo_perplexity(self.model, stream, self.objective, self.tokenizer, unigram, bar)
                return found | {"bits_per_byte": None}
        cut = {"cut": self.objective.cut(stream)}
        if not self.search["beams"]:
            return cut
        with Bar(f"searching {name}", len(stream), "pairs") as bar:
            return cut | translation_numbers(self.model, stream, self.objective, self.tokenizer, **self.search, bar=bar)


def windows_over(
    stream: TokenStream | Pairs, objective: StreamObjective | SequencePairs, settings: WindowSettings
) -> tuple[Iterator[Windows], int | None]:
    """Return the windows that are scored of a split, and the number of their tokens where it is known beforehand."""
    match objective:
        case NextToken():
            return decoder_windows(stream, objective, settings.stride, settings.min_context), stream.tokens
        case MaskedToken():
            return encoder_windows(stream, objective), None
        case SpanCorruption():
            return span_windows(stream, objective), stream.blocks * objective.positions
    return pair_windows(stream, objective), int(sum(objective.lengths(stream)[1]))


def objective_of(run: Run, length: int, tokenizer: Tokenizer) -> StreamObjective | SequencePairs:
    """What the run's model predicts, which of an imported one begins, ends and is masked with its own ids."""
    ids, objective = text_ids(run, tokenizer), run.recipe.objective
    if objective == "next-token" or "imported_from" not in run.facts:
        return make_any_objective(run.recipe, length, tokenizer)
    if objective == "masked-token":
        return MaskedToken(length, ids.special, tokenizer.vocab_size)
    if ids.start is None or not ids.stops:
        missing = "decoder_start_token_id" if ids.start is None else "eos_token_id"
        raise ValueError(f"{run.folder} was imported, and its config.json named no {missing}: name it and import again")
    ends = {"start_id": ids.start, "end_id": ids.stops[0]}
    if objective == "span-corruption":
        return SpanCorruption(length, ids.special, **ends)
    pad = special_ids(run, tokenizer)["pad_token_id"]
    pad = ids.special.get(PAD, ids.stops[0]) if pad is None else pad  # any would do: it is not seen
    return SequencePairs(length, pad_id=pad, **ends, before=ids.before, after=ids.after)


def dataset_of(run: Run, data: Path | None) -> Dataset:
    """The dataset in `data`, or else the one that the run was trained on.

    Raises ValueError where there is none, since the run was imported or its dataset is gone, and for one that was built
    with another tokenizer.
    """
    dataset = open_dataset(data or _own_dataset(run), run.recipe.objective)
    fingerprint = run.tokenizer().fingerprint
    if dataset.tokenizer_fingerprint != fingerprint:
        raise ValueError(
            f"{dataset.folder} was built with another tokenizer than that of {run.folder} "
            f"({dataset.tokenizer_fingerprint[:16]} and {fingerprint[:16]}): build a dataset with the run's"
        )
    return dataset


def _own_dataset(run: Run) -> Path:
    if not run.facts["data"]:
        raise ValueError(f"{run.folder} was imported and has no dataset: say which one to measure it on with --data")
    if not run.data.exists():
        raise ValueError(f"the dataset of the run, {run.data}, is not there any more: say where one is with --data")
    return run.data


def windows_of(run: Run, dataset: Dataset, stride: int | None, min_context: int) -> WindowSettings:
    """The windows of a run; ValueError for settings that mean nothing to it or to the dataset."""
    positions, objective = run.recipe.model.context_length, run.recipe.objective
    window = positions - 2 if objective == "masked-token" else positions
    if objective != "next-token" and (stride is not None or min_context != 1):
        raise ValueError(
            f"{run.folder} was trained on {objective}: it reads whole blocks or pairs, so --stride and --min-context "
            "mean nothing to it"
        )
    if objective in ("masked-token", "span-corruption") and dataset.context_length != window:
        raise ValueError(
            f"{run.folder} reads blocks of {window} tokens, but {dataset.folder} has blocks of "
            f"{dataset.context_length}: build a dataset with --context-length {window}"
        )
    stride = window if stride is None else stride
    for name, value in (("--stride", stride), ("--min-context", min_context)):
        if not 1 <= value <= window:
            raise ValueError(f"{name} is {value}, but must be from 1 to the window of {window} tokens")
    return WindowSettings(window, stride, min_context)


def comparable(other: Run, this: Run) -> Run:
    """`other`, if it predicts the same positions over the same tokens from the same context; else ValueError."""
    if other.facts["tokenizer_fingerprint"] != this.tokenizer().fingerprint:
        raise ValueError(
            f"{other.folder} and {this.folder} have different tokenizers: their predictions are over different "
            "tokens and have no divergence"
        )
    theirs, ours = ((r.recipe.objective, r.recipe.model.context_length) for r in (other, this))
    if theirs != ours:
        raise ValueError(
            f"{other.folder} and {this.folder} do not predict the same positions: "
            f"{theirs[0]} with a context of {theirs[1]}, and {ours[0]} with {ours[1]}"
        )
    masks = [r.recipe.model.document_mask for r in (other, this)]
    if masks[0] != masks[1]:
        with_mask, without = (other, this) if masks[0] else (this, other)
        raise ValueError(
            f"{with_mask.folder} has model.document_mask and {without.folder} has not: they do not "
            "predict from the same context; evaluate each by itself"
        )
    return other
