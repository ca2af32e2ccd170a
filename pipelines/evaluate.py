"""`bytelm evaluate`: what a trained model is worth, in the numbers that people quote.

evaluation.json has, per split: `tokens` and `bytes` scored (special tokens weigh 0 bytes), `cross_entropy` (nats
per token), `cross_entropy_bits`, `perplexity`, `bits_per_byte` (null for masked models: theirs is no code length),
`entropy_bits`, `accuracy`, `calibration_error`, `unigram_cross_entropy_bits`, `bigram_cross_entropy_bits`,
`unigram_entropy_bits`, `kl_unigram_bits`; with another run `kl_bits`, `reverse_kl_bits`, `js_bits`; on synthetic
sources `entropy_rate_bits`, `kl_true_bits`; for masked models `pseudo_perplexity`; and always `window`, `stride`,
`min_context`, `document_mask`, `dtype`. `curves` has the loss by position (nats) and the reliability diagram.
"""

import json
from pathlib import Path
from typing import Any

from pipelines.arguments import Device, Dtype, RunFolder, parse


def evaluate(
    run: RunFolder,
    *,
    data: Path | None = None,
    against: Path | None = None,
    splits: tuple[str, ...] = ("validation",),
    stride: int | None = None,
    min_context: int = 1,
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
    """
    from pipelines.dataset import TokenDataset
    from pipelines.loading import load_trained
    from pipelines.scoring import fit_baselines
    from pipelines.training.checkpoints import latest_checkpoint
    from pipelines.training.loader import make_objective
    from pipelines.training.run import Run

    this = Run(run)
    tok = this.tokenizer()
    dataset = TokenDataset(data or this.data)
    if dataset.tokenizer_fingerprint != tok.fingerprint:
        raise ValueError(
            f"{dataset.folder} was built with another tokenizer than that of {run} "
            f"({dataset.tokenizer_fingerprint[:16]} and {tok.fingerprint[:16]}): build a dataset with the run's"
        )
    other_run = _comparable(Run(against), this, tok.fingerprint) if against else None
    model, machine = load_trained(this, device, dtype)
    other = load_trained(other_run, device, dtype)[0] if other_run else None
    positions = this.recipe.model.context_length
    if this.recipe.objective == "masked-token":
        if stride is not None:
            raise ValueError(f"{run} is a masked model: its blocks do not overlap, so --stride means nothing to it")
        if dataset.context_length != positions - 2:
            raise ValueError(
                f"{run} reads blocks of {positions - 2} tokens, but {dataset.folder} has blocks of "
                f"{dataset.context_length}: build a dataset with --context-length {positions - 2}"
            )
    length = positions if this.recipe.objective == "next-token" else dataset.context_length
    stride = stride or length
    if not 1 <= stride <= length:
        raise ValueError(f"--stride is {stride}, but must be from 1 to the window of {length} tokens")
    objective = make_objective(this.recipe.objective, length, tok)
    baselines = fit_baselines(dataset)
    synthetic = dataset.info["corpus"].get("synthetic")
    result: dict[str, Any] = {
        "run": this.name,
        "checkpoint": latest_checkpoint(this.folder).name,
        "data": str(dataset.folder),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": tok.fingerprint,
        "against": str(against) if against else None,
        "splits": {},
    }
    for split in splits:
        settings = {"window": length, "stride": stride, "min_context": min_context, "document_mask": False}
        settings["dtype"] = machine.dtype_name
        numbers = _score_split(
            model, other, dataset.split(split), split, objective, tok, baselines, synthetic, settings
        )
        result["splits"][split] = numbers | settings
    partial = this.folder / "evaluation.json.partial"
    partial.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    partial.rename(this.folder / "evaluation.json")
    return result


def _score_split(model, other, stream, name, objective, tok, baselines, synthetic, settings) -> dict[str, Any]:
    from pipelines.display import Bar
    from pipelines.scoring import PSEUDO_POSITIONS, decoder_windows, encoder_windows, pseudo_perplexity, score
    from pipelines.training.loader import MaskedToken

    masked = isinstance(objective, MaskedToken)
    if masked:
        windows, total = encoder_windows(stream, objective), None
    else:
        windows = decoder_windows(stream, settings["window"], settings["stride"], settings["min_context"])
        total = stream.tokens
    with Bar(f"scoring {name}", total, "tok") as bar:
        numbers = score(
            model,
            windows,
            stream,
            tok,
            baselines,
            window=objective.positions,
            other=other,
            synthetic=synthetic,
            bar=bar,
        )
    if not masked:
        return numbers
    with Bar("masking one by one", PSEUDO_POSITIONS, "tok") as bar:
        numbers |= pseudo_perplexity(model, stream, objective, tok, baselines[0], bar)
    return numbers | {"bits_per_byte": None}


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
    names = dict.fromkeys(key for numbers in splits.values() for key in numbers if key != "curves")
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
