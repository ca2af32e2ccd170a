"""`bytelm evaluate`: what a trained model is worth, in the numbers that people quote.

evaluation.json has, per split: `tokens` and `bytes` scored (special tokens weigh 0 bytes), `cross_entropy` (nats
per token), `cross_entropy_bits`, `perplexity`, `bits_per_byte` (null for masked models and span corruption: theirs is
no code length),
`entropy_bits`, `accuracy`, `calibration_error`, `unigram_cross_entropy_bits`, `bigram_cross_entropy_bits`,
`unigram_entropy_bits`, `kl_unigram_bits`; with another run `kl_bits`, `reverse_kl_bits`, `js_bits`; on synthetic
sources `entropy_rate_bits`, `kl_true_bits`; for masked models `pseudo_perplexity`; for pairs, whose targets are scored
given their sources, `cut` (how many pairs are longer than the model reads), `bleu`, `bleu_signature`, `exact_match`,
`beams`, `length_penalty` and `examples`; and always `window`, `stride`, `min_context`, `document_mask`, `dtype`.
`curves` has the loss by position (nats) and the reliability diagram.
"""

from pathlib import Path
from typing import Any

from pipelines.arguments import Device, Dtype, RunFolder, check_beams, check_length_penalty, parse
from pipelines.files import write_json


def evaluate(
    run: RunFolder,
    *,
    data: Path | None = None,
    against: Path | None = None,
    splits: tuple[str, ...] = ("validation",),
    stride: int | None = None,
    min_context: int = 1,
    beams: int = 4,
    length_penalty: float = 1.0,
    compressors: bool = False,
    checkpoint: str = "newest",
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
        beams: Of pairs: targets that beam search for BLEU follows side by side; 0 leaves the search out.
        length_penalty: Of pairs: a target's log-probability is divided by its length to this power.
        compressors: Whether to add what xz and zstd need for the same text: minutes for a large corpus.
        checkpoint: Which one of the run: newest, best (the lowest validation loss), or the number of a step.
    """
    if not splits:
        raise ValueError("--splits names no split: leave it out, or name some, such as validation test")
    check_beams(beams, "to leave the search out")
    check_length_penalty(length_penalty)
    from pipelines.evaluation import SplitScorer, comparable, dataset_of, windows_of
    from pipelines.loading import load_trained
    from pipelines.training.run import Run

    this = Run(run)
    if compressors and this.recipe.objective == "sequence-pairs":
        raise ValueError(f"{run} was trained on pairs, and --compressors is about a text: leave it out")
    dataset = dataset_of(this, data)
    windows = windows_of(this, dataset, stride, min_context)
    streams = {split: dataset.split(split) for split in splits}
    other = comparable(Run(against), this) if against else None
    trained = load_trained(this, device, dtype, checkpoint)
    scorer = SplitScorer(
        this,
        trained,
        dataset,
        windows,
        search={"beams": beams, "length_penalty": length_penalty},
        other=load_trained(other, device, dtype).model if other else None,
    )
    result: dict[str, Any] = {
        "run": this.name,
        "checkpoint": trained.checkpoint.name,
        "data": str(dataset.folder),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": dataset.tokenizer_fingerprint,
        "against": str(against) if against else None,
        "splits": {split: scorer.score(stream, split) for split, stream in streams.items()},
    }
    if compressors:
        for split in splits:
            result["splits"][split]["compressors"] = scorer.compressed(split)
    write_json(this.folder / "evaluation.json", result)
    return result


NOT_NUMBERS = ("curves", "compressors", "examples", "bleu_signature")


def show(result: dict[str, Any]) -> None:
    """Print an evaluation as a table, a row a number, a column a split."""
    from pipelines.display import say, table

    splits = result["splits"]
    names = dict.fromkeys(key for numbers in splits.values() for key in numbers if key not in NOT_NUMBERS)
    table(
        (result["run"], *splits),
        [(name, *(_cell(numbers.get(name)) for numbers in splits.values())) for name in names],
    )
    signatures = {numbers["bleu_signature"] for numbers in splits.values() if numbers.get("bleu_signature")}
    for signature in signatures:
        say(f"BLEU: {signature}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main(arguments: list[str]) -> None:
    show(parse(evaluate, arguments, "evaluate"))
