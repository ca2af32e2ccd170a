"""Measure the gain from pretraining: classify which of 60 books a passage is from, with and without pretraining.

    python -m benchmarks.finetune --books books.jsonl.xz [--minutes 10] [--quick]

The books are cut into passages (benchmarks/passages.py). A vocabulary of 8,192 entries is trained on the unlabelled
rest, and an encoder is pretrained on it. The pretrained encoder and one with random weights are then fine-tuned. Each
uses its best learning rate on a held-out fifth of the training passages, and trains again on all of them.
"""

import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from benchmarks.harness import RESULTS, command_line, heading, machine, record, table
from benchmarks.passages import A_BOOK, CHARACTERS, Trial, cut_passages, read_books
from lm.metrics.labels import share_interval
from pipelines.cli.display import show
from pipelines.evaluation.results import Evaluation
from pipelines.recipes.recipe import Recipe, load_recipe
from pipelines.run.folder import Run
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.finetune import finetune
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

VOCABULARY = 8192
CONTEXT = 320  # tokens: 99 % of the passages have fewer
CHOOSING = 4  # passages per book held out to choose learning rates
SPEED_TOKENS = 300_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fine-tune a pretrained encoder to classify books, and the same encoder from scratch."""

    books: Path
    """.jsonl.xz file of books: title, text."""
    minutes: float = 10.0
    """Minutes of pretraining, without validation and checkpoints; a short run measures the speed first."""
    tokens: int = 0
    """Pretraining tokens instead of minutes, if above 0."""
    layers: int = 2
    width: int = 128
    heads: int = 2
    pretraining_lr: float = 1e-3
    muon_lr: float = 3e-3
    batch_tokens: int = 1024
    epochs: int = 20
    """Epochs of fine-tuning, for both models."""
    lrs: tuple[float, ...] = (5e-4, 1e-3, 2e-3, 4e-3)
    """Learning rates to try in fine-tuning, for both models."""
    seed: int = 0
    """Seed of the passages, the weights and the order."""
    folder: Path | None = None
    """Work folder; existing parts are reused; default: a temporary folder."""
    out: Path = RESULTS / "finetune"
    """Results folder."""
    quick: bool = False
    """Smoke test: a few books, about a minute per step."""


def main(options: Options) -> None:
    """Make what is missing, fine-tune, and write books.json and books.md."""
    if options.quick:
        options = replace(options, tokens=100_000, epochs=2, lrs=(1e-3, 2e-3))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        books = read_books(options.books)
        trial = cut_passages(dict(list(books.items())[:6]) if options.quick else books, options.seed)
        trial.write(folder)
        _choosing(trial).write(_made(folder / "choosing"))
        run = _pretrained(folder, options)
        chosen = {start: _best_lr(run, folder, options, start == "scratch") for start in ("pretrained", "scratch")}
        result = _result(options, trial, run, chosen)
        for start, (lr, _) in chosen.items():
            result[start] |= _finetuned(run, folder, folder / start, lr, options, start == "scratch")
    result["command"] = command_line("benchmarks.finetune", sys.argv[1:])
    record(options.out, "books", result, markdown(result))
    print(markdown(result))


def _choosing(trial: Trial) -> Trial:
    """Return the training passages with the last 4 of each book held out."""
    places: dict[str, int] = {}
    parts: tuple[list, list] = ([], [])
    for row in trial.train:
        place = places[row["label"]] = places.get(row["label"], 0) + 1
        parts[place > A_BOOK - CHOOSING].append(row)
    return Trial(*parts, rest=[])


def _pretrained(folder: Path, options: Options) -> Path:
    """Return the run of an encoder pretrained on the rest of the books."""
    rest = [str(folder / "rest.jsonl")]
    tok, data, run = folder / "tokenizer", folder / "data", folder / "run"
    if not tok.exists():
        train_tokenizer(rest, vocab_size=VOCABULARY, out=tok)
    if not data.exists():
        build_dataset(rest, tokenizer=tok, context_length=CONTEXT, out=data)
    if run.exists():
        tokens = Run(run).recipe.train.tokens
    else:
        tokens = options.tokens or _affordable_tokens(data, folder / "speed", options)
    pretrain(_recipe(options, tokens), data=data, out=run)
    return run


def _affordable_tokens(data: Path, run: Path, options: Options) -> int:
    """Return the number of tokens that fit into `options.minutes`, from the speed of a short run."""
    pretrain(_recipe(options, SPEED_TOKENS), data=data, out=run)
    lines = [line for line in Run(run).metrics() if line["split"] == "train"]
    tokens, seconds = (lines[-1][name] - lines[0][name] for name in ("tokens", "time_s"))
    return round(60 * options.minutes * tokens / seconds)


def _recipe(options: Options, tokens: int) -> Recipe:
    recipe = load_recipe("bert-tiny")
    shape = {"layers": options.layers, "width": options.width, "heads": options.heads, "context_length": CONTEXT + 2}
    shape |= {"mlp_width": 0}  # the default for the width
    train = {
        "tokens": tokens,
        "lr": options.pretraining_lr,
        "muon_lr": options.muon_lr,
        "batch_tokens": options.batch_tokens,
        "warmup_tokens": tokens // 50,
        "validate_every_tokens": max(1, tokens // 10),
        "checkpoint_every_tokens": max(1, tokens // 3),
        "seed": options.seed,
    }
    return replace(recipe, model=replace(recipe.model, **shape), train=replace(recipe.train, **train))


def _best_lr(run: Path, folder: Path, options: Options, scratch: bool) -> tuple[float, list[dict[str, float]]]:
    """Return the learning rate with the highest accuracy on the held-out passages, and the results of all rates."""
    tried = []
    for lr in options.lrs:
        numbers = _finetuned(run, folder / "choosing", folder / "trial", lr, options, scratch)
        tried.append({"lr": lr, "accuracy": numbers["accuracy"], "cross_entropy": numbers["cross_entropy"]})
    return max(tried, key=lambda numbers: (numbers["accuracy"], -numbers["cross_entropy"]))["lr"], tried


def _finetuned(run: Path, texts: Path, out: Path, lr: float, options: Options, scratch: bool) -> dict[str, Any]:
    started = time.perf_counter()
    shutil.rmtree(out, ignore_errors=True)
    made = finetune(
        run,
        data=texts / "train.jsonl",
        test=texts / "test.jsonl",
        out=out,
        from_scratch=scratch,
        compare_scratch=False,
        train={"epochs": options.epochs, "lr": lr, "seed": options.seed},
    )
    numbers = Evaluation.read(made.path).to_json()["splits"]["validation"]
    bayes = numbers["comparison"]["others"]["naive Bayes"]
    return {
        **{name: numbers[name] for name in ("accuracy", "macro_f1")},
        "cross_entropy": numbers["label_nats"],
        "labels": len(numbers["labels"]),
        "naive_bayes": {"accuracy": bayes["accuracy"], "macro_f1": bayes["macro F1"]},
        "seconds": round(time.perf_counter() - started, 1),
    }


def _result(options: Options, trial: Trial, run: Path, chosen: dict[str, tuple[float, list]]) -> dict[str, Any]:
    lines = Run(run).metrics()
    validation = [line for line in lines if line["split"] == "validation"]
    shown = {name: value for name, value in asdict(options).items() if name not in ("books", "folder", "out")}
    return {
        "options": shown,
        "machine": {
            **machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        "passages": {name: len(getattr(trial, name)) for name in ("train", "test")},
        "unlabelled_characters": sum(len(row["text"]) for row in trial.rest),
        "pretraining": {
            "tokens": validation[-1]["tokens"],
            "seconds": validation[-1]["time_s"],
            "validation_loss": [(line["tokens"], line["loss"]) for line in validation],
        },
        **{start: {"lr": lr, "lrs_tried": tried} for start, (lr, tried) in chosen.items()},
    }


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a Markdown page."""
    pretrained, scratch, device = result["pretrained"], result["scratch"], result["machine"]
    labels, before = pretrained["labels"], result["pretraining"]
    rows = {
        f"pretrained, fine-tuned at {pretrained['lr']:g}": pretrained,
        f"the same from scratch at {scratch['lr']:g}": scratch,
        "naive Bayes over the tokens": pretrained["naive_bayes"],
        "chance": {"accuracy": 1 / labels},
    }
    options, passages = result["options"], result["passages"]
    facts = (
        f"{device['processor']}, {device['threads']} threads of {device['cores']} cores; Python {device['python']}, "
        f"PyTorch {device['torch']}."
    )
    tried = [
        (name, *(f"{tried['accuracy']:.1%}" for tried in numbers["lrs_tried"]))
        for name, numbers in (("pretrained", pretrained), ("from scratch", scratch))
    ]
    return "\n".join(
        [
            *heading("Which book is a passage from?", result["command"], facts),
            f"{labels} books; passages of {CHARACTERS:,} characters: {A_BOOK} per book for training "
            f"({passages['train']:,}) and as many for testing, fewer of the shortest books ({passages['test']:,}). "
            f"An encoder of {options['layers']} layers of width {options['width']} was pretrained on "
            f"{before['tokens']:,} tokens of the other {result['unlabelled_characters'] / 1e6:.1f} M characters, "
            f"in {before['seconds'] / 60:.1f} minutes, to {before['validation_loss'][-1][1]:.3f} "
            f"nats per masked token. "
            f"Both models were fine-tuned once, for {options['epochs']} epochs, each at its best learning rate "
            f"on {CHOOSING} held-out training passages per book.",
            "",
            *table(
                ("", "accuracy", "95 % interval over the test passages", "macro F1", "cross-entropy (nats)"),
                (_row(name, numbers, passages["test"]) for name, numbers in rows.items()),
            ),
            "",
            "Learning rates tried, and their accuracy on the held-out training passages:",
            "",
            *table(("", *(f"{tried['lr']:g}" for tried in pretrained["lrs_tried"])), tried),
            "",
        ]
    )


def _row(name: str, numbers: dict[str, float], passages: int) -> tuple[str, ...]:
    accuracy = numbers["accuracy"]
    if "macro_f1" not in numbers:
        return name, f"{accuracy:.1%}", "", "", ""
    low, high = share_interval(accuracy, passages)
    return (
        name,
        f"{accuracy:.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{numbers['macro_f1']:.3f}",
        f"{numbers['cross_entropy']:.3f}" if "cross_entropy" in numbers else "",
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    with show():
        main(tyro.cli(Options, prog="python -m benchmarks.finetune", description=__doc__))
