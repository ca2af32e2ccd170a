"""`bytelm evaluate`: what a trained model is worth, in the numbers that people quote.

evaluation.json has, per split: `tokens` and `bytes` scored (special tokens weigh 0 bytes), `cross_entropy` (nats
per token), `cross_entropy_bits`, `perplexity`, `bits_per_byte` (null for masked models: theirs is no code length),
`entropy_bits`, `accuracy`, `calibration_error`, `unigram_cross_entropy_bits`, `bigram_cross_entropy_bits`,
`unigram_entropy_bits`, `kl_unigram_bits`; with another run `kl_bits`, `reverse_kl_bits`, `js_bits`; on synthetic
sources `entropy_rate_bits`, `kl_true_bits`; for masked models `pseudo_perplexity`; and always `window`, `stride`,
`min_context`, `document_mask`, `dtype`. `curves` has the loss by position (nats) and the reliability diagram.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.arguments import Device, Dtype, RunFolder, parse
from pipelines.files import write_json


def evaluate(
    run: RunFolder,
    *,
    data: Path | None = None,
    against: Path | None = None,
    splits: tuple[str, ...] = ("validation",),
    stride: int | None = None,
    min_context: int = 1,
    compressors: bool = False,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> dict[str, Any]:
    """Measure a run on held-out text; write evaluation.json into its folder and return it.

    Args:
        data: Folder of a dataset; by default the one that the run was trained on.
        against: Folder of another run with the same tokenizer and objective, to measure the divergence from.
        splits: Splits of the dataset to score.
        stride: Tokens between two windows; the window itself by default, so that every block has fresh context.
        min_context: Positions with fewer tokens of context than this are left out.
        compressors: Whether to add what xz and zstd need for the same text: minutes for a large corpus.
    """
    from pipelines.dataset import TokenDataset
    from pipelines.loading import load_trained
    from pipelines.scoring import fit_baselines
    from pipelines.training.loader import make_objective
    from pipelines.training.run import Run

    if not splits:
        raise ValueError("--splits names no split: leave it out, or name some, such as validation test")
    this = Run(run)
    tok = this.tokenizer()
    dataset = TokenDataset(_existing(data or this.data, given=data is not None))
    if dataset.tokenizer_fingerprint != tok.fingerprint:
        raise ValueError(
            f"{dataset.folder} was built with another tokenizer than that of {run} "
            f"({dataset.tokenizer_fingerprint[:16]} and {tok.fingerprint[:16]}): build a dataset with the run's"
        )
    window, stride = _window(this, dataset, stride, min_context)
    streams = {split: dataset.split(split) for split in splits}
    other_run = _comparable(Run(against), this, tok.fingerprint) if against else None
    trained = load_trained(this, device, dtype)
    other = load_trained(other_run, device, dtype) if other_run else None
    scorer = _Scorer(
        trained.model,
        other.model if other else None,
        make_objective(this.recipe.objective, window, tok),
        tok,
        fit_baselines(dataset),
        dataset.info["corpus"].get("synthetic"),
        {
            "window": window,
            "stride": stride,
            "min_context": min_context,
            "document_mask": False,
            "dtype": trained.machine.dtype_name,
        },
    )
    result: dict[str, Any] = {
        "run": this.name,
        "checkpoint": trained.checkpoint.name,
        "data": str(dataset.folder),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": tok.fingerprint,
        "against": str(against) if against else None,
        "splits": {split: scorer.score(stream, split) for split, stream in streams.items()},
    }
    if compressors:
        for split in splits:
            result["splits"][split]["compressors"] = _compressed(dataset, tok, split)
    write_json(this.folder / "evaluation.json", result)
    return result


@dataclass(frozen=True)
class _Scorer:
    """All that the numbers of a split depend on but the split; the types are those of `pipelines.scoring`, which
    imports torch."""

    model: Any
    other: Any
    objective: Any
    tokenizer: Any
    baselines: tuple[Any, Any]
    synthetic: dict[str, Any] | None
    settings: dict[str, Any]

    def score(self, stream: Any, name: str) -> dict[str, Any]:
        """The entry of evaluation.json for the split `name`, whose tokens are `stream`."""
        from pipelines.display import Bar
        from pipelines.scoring import PSEUDO_POSITIONS, decoder_windows, encoder_windows, pseudo_perplexity, score
        from pipelines.training.loader import MaskedToken

        masked = isinstance(self.objective, MaskedToken)
        if masked:
            windows, total = encoder_windows(stream, self.objective), None
        else:
            settings = (self.settings[key] for key in ("window", "stride", "min_context"))
            windows, total = decoder_windows(stream, *settings), stream.tokens
        with Bar(f"scoring {name}", total, "tok") as bar:
            numbers = score(
                self.model,
                windows,
                stream,
                self.tokenizer,
                self.baselines,
                window=self.objective.positions,
                other=self.other,
                synthetic=self.synthetic,
                bar=bar,
            )
        if masked:
            with Bar("masking one by one", PSEUDO_POSITIONS, "tok") as bar:
                numbers |= pseudo_perplexity(self.model, stream, self.objective, self.tokenizer, self.baselines[0], bar)
            numbers["bits_per_byte"] = None
        return numbers | self.settings


def _window(run: Any, dataset: Any, stride: int | None, min_context: int) -> tuple[int, int]:
    """(window, stride) in tokens; ValueError for settings that mean nothing to the run or the dataset."""
    positions = run.recipe.model.context_length
    masked = run.recipe.objective == "masked-token"
    window = positions - 2 if masked else positions
    if masked and (stride is not None or min_context != 1):
        raise ValueError(
            f"{run.folder} is a masked model: it sees whole blocks, so --stride and --min-context mean nothing to it"
        )
    if masked and dataset.context_length != window:
        raise ValueError(
            f"{run.folder} reads blocks of {window} tokens, but {dataset.folder} has blocks of "
            f"{dataset.context_length}: build a dataset with --context-length {window}"
        )
    stride = window if stride is None else stride
    for name, value in (("--stride", stride), ("--min-context", min_context)):
        if not 1 <= value <= window:
            raise ValueError(f"{name} is {value}, but must be from 1 to the window of {window} tokens")
    return window, stride


def _existing(folder: Path, given: bool) -> Path:
    if not given and not folder.exists():
        raise ValueError(f"the dataset of the run, {folder}, is not there any more: say where one is with --data")
    return folder


def _compressed(dataset: Any, tok: Any, split: str) -> dict[str, dict[str, float]]:
    from pipelines.compressors import compressed_bits_per_byte
    from pipelines.display import Bar

    with Bar("compressing", None, "B") as bar:
        return compressed_bits_per_byte(dataset, tok, split, progress=bar.update)


def _comparable(other: Any, this: Any, fingerprint: str) -> Any:
    if other.facts.get("tokenizer_fingerprint") != fingerprint:
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
    return other


def show(result: dict[str, Any]) -> None:
    """Print an evaluation as a table, a row a number, a column a split."""
    from pipelines.display import table

    splits = result["splits"]
    names = dict.fromkeys(key for numbers in splits.values() for key in numbers if key not in ("curves", "compressors"))
    table(
        (result["run"], *splits),
        [(name, *(_cell(numbers.get(name)) for numbers in splits.values())) for name in names],
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main(arguments: list[str]) -> None:
    show(parse(evaluate, arguments, "evaluate"))
