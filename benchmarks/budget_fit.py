"""Train the recipe of `bytelm train` at other sizes, vocabularies, batches and learning rates for equal FLOPs, and fit
the best learning rate by width and tokens, and the law of bits per byte by weights and tokens.

    python -m benchmarks.budget_fit --text FILE [--shapes 2x128 3x192] [--tflop 4 16] [--rates 0.002 0.004 0.008]

FLOPs end the trainings, so other work on the machine does not change the results. Every combination of the options is
trained, one after the other. Each result is appended to budget_fit.jsonl at once, and budget_fit.md is written again,
with the commands that train its rows. Recorded trainings are left out. With --folder, the same command resumes an
interrupted training. Several commands may run at once, also in one folder when its dataset exists: small models leave
most of a GPU idle.

`--predict` trains nothing: it records what the law predicts for the shapes and FLOPs, before anyone measures them. The
predictions for 4.2M and 8.6M weights are recorded. These commands test them, each in less than an hour of two cores:

    python -m benchmarks.budget_fit --text books.jsonl.xz --shapes 4x256 --tflop 150 --threads 2 --folder FOLDER
    python -m benchmarks.budget_fit --text books.jsonl.xz --shapes 4x384 --tflop 300 --threads 2 --folder FOLDER
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import torch

from benchmarks.budget_fit_page import Row, law_runs, measured, page, predicted
from benchmarks.budget_texts import Text, written
from benchmarks.harness import RESULTS, device_name, say
from lm.costs import flops_per_token, meta_model
from pipelines.dataset.reader import TokenDataset
from pipelines.first_model.choices import (
    SIZES,
    Choice,
    Setting,
    Size,
    recipe_for,
    with_batch,
    with_decay,
    with_length,
    with_rates,
)
from pipelines.machine import choose_machine
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

CONTEXT = 256
HEAD_WIDTH = 64


@dataclass(frozen=True)
class Trial:
    """The settings of a training that the benchmark varies."""

    layers: int
    width: int
    vocab_size: int
    tflop: float
    rate: float | None
    """Muon's learning rate, with AdamW's in the same proportion; None: that of `bytelm train`"""
    batch_tokens: int | None
    """None: that of `bytelm train`"""
    seed: int

    @property
    def size(self) -> Size:
        """The size of `bytelm train`, or another one with its smallest recipe."""
        heads = max(1, self.width // HEAD_WIDTH)
        other = replace(SIZES[0], layers=self.layers, width=self.width, heads=heads)
        same = [size for size in SIZES if (size.layers, size.width) == (self.layers, self.width)]
        return replace((same or [other])[0], context=CONTEXT)

    def size_and_tokens(self, recipe: Recipe) -> Row:
        """Return the weights and tokens by which the law predicts the bits per byte."""
        return {"weights": self.size.parameters(self.vocab_size), "tokens": recipe.train.tokens}

    def recipe(self, dtype: str, text_tokens: int) -> Recipe:
        """Return the recipe of `bytelm train` with these settings, validated once, at the end.

        `text_tokens`: tokens of the text, which decide about the weight decay.
        """
        base = recipe_for("gpt", Choice(self.vocab_size, CONTEXT, Setting(self.size), 0))
        if self.batch_tokens:
            base = with_batch(base, self.batch_tokens / base.train.batch_tokens)
        per_token = flops_per_token(meta_model(replace(base.model, vocab_size=self.vocab_size)))
        recipe = with_rates(with_length(base, round(self.tflop * 1e12 / per_token)), self.size.gpt)
        recipe = with_decay(recipe, text_tokens)
        train, never = recipe.train, 2 * recipe.train.tokens
        rates = {} if self.rate is None else {"muon_lr": self.rate, "lr": self.rate * train.lr / train.muon_lr}
        single = {"dtype": dtype, "threads": torch.get_num_threads(), "seed": self.seed, "keep_best": False}
        rare = {"validate_every_tokens": never, "checkpoint_every_tokens": never}
        return replace(recipe, train=replace(train, **rates, **single, **rare))


class Measurement:
    """The folder of the texts, vocabularies and datasets, and the rows so far."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.name = options.text if options.text == "stdlib" else Path(options.text).name.split(".")[0]
        self.text: Text = written(self.name, [options.text], folder / "texts")
        self._file = options.out / "budget_fit.jsonl"
        self.rows = rows_of(self._file)
        machine = choose_machine(dtype=options.dtype)
        self.dtype, self.device = machine.dtype_name, machine.device_name

    def data(self, vocab_size: int) -> TokenDataset:
        """Return the dataset with a vocabulary of the text. Make both unless they exist."""
        tokenizer, data = (self.folder / f"{self.name}-{part}-{vocab_size}" for part in ("tokenizer", "data"))
        if not (tokenizer / "tokenizer.json").exists():
            train_tokenizer([self.text.corpus], vocab_size=vocab_size, out=tokenizer)
        if not (data / "dataset.json").exists():
            build_dataset([self.text.corpus], tokenizer=tokenizer, context_length=CONTEXT, out=data)
        return TokenDataset(data)

    def key(self, trial: Trial, recipe: Recipe) -> Row:
        """Return the fields that identify a training."""
        train = recipe.train
        return {
            "text": self.name,
            "passages": self.text.fingerprint()["train"],
            "layers": trial.layers,
            "width": trial.width,
            "entries": trial.vocab_size,
            "tflop": trial.tflop,
            "batch_tokens": train.batch_tokens,
            "muon_lr": round(train.muon_lr, 8),
            "lr": round(train.lr, 8),
            "beta2": train.beta2,
            "weight_decay": train.weight_decay,
            "seed": trial.seed,
            "dtype": train.dtype,
        }

    def run(self, trial: Trial) -> None:
        """Run a trial and record the result, unless it is recorded. An interrupted training resumes."""
        dataset = self.data(trial.vocab_size)
        held_out = dataset.info["splits"]["validation"]
        recipe = trial.recipe(self.dtype, dataset.split("train").tokens)
        recipe = replace(recipe, train=replace(recipe.train, validation_tokens=held_out["tokens"]))
        key = self.key(trial, recipe)
        if any(key.items() <= row.items() for row in measured(self.rows)):
            return
        say(" ".join(f"{name}={value}" for name, value in key.items()))
        run = self.folder / "runs" / "-".join(map(str, key.values()))
        resumed, on_gpu, started = run.exists(), self.device != "cpu", time.process_time()
        try:
            pretrain(recipe, data=dataset.folder, out=run)
        except KeyboardInterrupt:
            raise SystemExit("interrupted: the same command with the same --folder resumes the training") from None
        last = Run(run).metrics()[-1]  # the last line is a validation
        result = {
            "bytes_per_token": held_out["bytes"] / held_out["tokens"],
            "bits_per_byte": last["loss"] * held_out["tokens"] / held_out["bytes"] / math.log(2),
            "seconds": last["time_s"],
            "processor_seconds": None if resumed or on_gpu else time.process_time() - started,
            **({"gpu": device_name(self.device)} if on_gpu else {}),
        }
        self.record(key | trial.size_and_tokens(recipe) | result)
        say(f"{result['bits_per_byte']:.4f} bits per byte")
        shutil.rmtree(run)

    def predict(self, trial: Trial) -> None:
        """Record what the law predicts for a trial, unless a prediction is recorded."""
        recipe = trial.recipe(self.dtype, self.data(trial.vocab_size).split("train").tokens)
        key = self.key(trial, recipe)
        if any(key.items() <= row.items() for row in self.rows):
            return
        sized = trial.size_and_tokens(recipe)
        found, low, high = predicted(law_runs(self.rows), sized["weights"], sized["tokens"])
        self.record(key | sized | {"predicted": found, "low": low, "high": high})

    def record(self, row: Row) -> None:
        """Append a row to the file with the name of the corpus, and write the page again."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"corpus": Path(self.options.text).name}) + "\n")
        self.rows = rows_of(self._file)  # other processes may have appended rows, too
        text = page(self.rows, f"{device_name('cpu')}, beside other work")
        self._file.with_suffix(".md").write_text(text, encoding="utf-8")


def rows_of(file: Path) -> list[Row]:
    """Return the rows recorded so far."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def trials(options: argparse.Namespace) -> Iterator[Trial]:
    """Yield every combination of the options."""
    for tflop, (layers, width), entries, rate, batch, seed in product(
        options.tflop, options.shapes, options.entries, options.rates, options.batches, options.seeds
    ):
        yield Trial(layers, width, entries, tflop, rate, batch, seed)


def shape(word: str) -> tuple[int, int]:
    """Return the layers and the width of a word such as 2x128."""
    layers, _, width = word.partition("x")
    return int(layers), int(width)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget_fit", description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True, help="corpus of the trainings")
    parser.add_argument("--shapes", nargs="+", type=shape, default=[(2, 128)], help="layers x width, such as 2x128")
    parser.add_argument("--tflop", nargs="+", type=float, default=[4.0], help="10^12 FLOPs of a training")
    parser.add_argument("--entries", nargs="+", type=int, default=[4096], help="entries of the vocabulary")
    parser.add_argument("--rates", nargs="+", type=float, default=[None], help="Muon's rate; AdamW's in proportion")
    parser.add_argument("--batches", nargs="+", type=int, default=[None], help="tokens of a batch")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--dtype", default="bfloat16", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--predict", action="store_true", help="record predictions, and train nothing")
    parser.add_argument("--folder", type=Path, help="folder of texts, datasets and interrupted trainings")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results folder")
    options = parser.parse_args(arguments)
    if options.text != "stdlib" and not Path(options.text).exists():
        parser.error(f"--text {options.text}: there is no such file or folder")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(options, options.folder or Path(folder))
        for trial in trials(options):
            if options.predict:
                measurement.predict(trial)
            else:
                measurement.run(trial)


if __name__ == "__main__":
    main(sys.argv[1:])
