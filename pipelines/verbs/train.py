"""Training: train and evaluate a model on your text with one command, from the vocabulary to a report.

Examples:
    bytelm train my-text/
    bytelm train book.txt --out book --kind gpt bert --minutes 3
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pipelines.cli.arguments import DryRun
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, check_text
from pipelines.cli.errors import UsageError
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.shell import command
from pipelines.cli.verbs import verb

if TYPE_CHECKING:
    from pipelines.evaluation.results import Evaluation

ENVIRONMENT = PASSIVE_THREADS
OUT_OF_MEMORY = "lower `max_document`"

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("corpus split", ""),
    "Reading files": READING,
    "Training": ("kind minutes flops tokens seed", ""),
    "Output": ("out dry_run", ""),
}


@verb
def train(
    corpus: CorpusNames,
    *,
    out: Path = Path("my"),
    kind: tuple[Literal["gpt", "bert"], ...] = ("gpt",),
    minutes: float | None = None,
    flops: float | None = None,
    tokens: int | None = None,
    seed: int | None = None,
    split: SplitRule = None,
    dry_run: DryRun = False,
    **reading: Unpack[ReadingOptions],
) -> "dict[str, Evaluation]":
    """Choose a vocabulary, a context and a model for a text and this machine, train the model, evaluate it, and write
    a report.

    Returns the evaluation of each model by its kind: `train("my-text")["gpt"].validation.bits_per_byte`.

    Prints what it chooses, how long each step takes, and the command that does each step alone. The same command
    resumes after an interruption. With more minutes, FLOPs or tokens it trains the models longer.

    Args:
        out: Folder for the vocabulary, the dataset, the models and report.html.
        kind: Models to train. gpt predicts the next token, bert masked tokens.
        minutes: Training time of each model; 10 by default. It does not include the other steps. Training ends
            earlier after about 8 epochs of the text for a GPT, 32 for a BERT.
        flops: Floating-point operations of the training of each model, such as 1e13, instead of a time.
        tokens: Tokens to train each model on, instead of a time.
        seed: Seed of the initial weights and the order of the text; 0 by default.
    """
    if not kind:
        raise ValueError("`kind` names no model: leave it out, or give gpt, bert or both")
    lengths = {"`minutes`": minutes, "`flops`": flops, "`tokens`": tokens}
    given = {option: value for option, value in lengths.items() if value is not None}
    if len(given) > 1:
        raise UsageError(f"{' and '.join([*given][:2])} both say how long to train: give one of them")
    for option, value in given.items():
        check_length(option, value)
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"`seed` is {seed}, but must be between 0 and 2^63")
    if (out / "config.toml").exists():
        raise ValueError(f"`out='{out}'` is a run: give a folder for runs, such as {out.parent}")
    check_text(corpus, out, split, reading, "the evaluation")
    options: dict[str, Any] = ({"split": split} if split else {}) | reading
    from corpora import open_corpus

    source = open_corpus(corpus, **options)
    from pipelines.first_model.steps import Job, run  # imports PyTorch, which takes seconds

    kinds = tuple(dict.fromkeys(kind))
    job = Job(
        corpus=corpus, out=out, kinds=kinds, minutes=minutes, tokens=tokens, flops=flops, seed=seed, reading=options
    )
    return run(job, source, dry_run)


def check_length(option: str, value: float) -> None:
    """Raise ValueError unless the length of a training, the value of `option`, is above 0 and finite."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{option} is {value:g}, but must be above 0")


def next_step(given: Mapping[str, Any], evaluations: "dict[str, Evaluation]") -> str:
    """Return the command that follows: it lets the model write, or fill a mask."""
    kind, evaluation = next(iter(evaluations.items()))
    step = int(evaluation.validation.measured.checkpoint.removeprefix("step-"))
    prompt = "The" if kind == "gpt" else "The <|mask|> of"
    return command("generate", given["out"] / kind, checkpoint=step, prompt=prompt)
