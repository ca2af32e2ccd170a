"""Compare variants of a recipe for a small model on the same tokens: decoders in bits per byte, encoders in nats per
masked token.

    python -m benchmarks.recipes --text CORPUS... [--tokens 1M] [--variants NAME...] [--seeds 1]

    python -m benchmarks.recipes --text CORPUS... --group small-data --text-bytes 500k --epochs 8 [--seeds 1]

This adds rows to benchmarks/results/recipes/recipes.json and recipes.md. Rows of the same text, tokens, shape,
seed and device are not trained again. The same command resumes after an interruption, with --folder within a training.
With --text-bytes, the training text is that short and is read several times (benchmarks/small_data.py).
benchmarks/recipes.md has the conclusions.
"""

import fcntl
import json
import math
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import tyro

from benchmarks.harness import RESULTS, table
from benchmarks.recipe_variants import CONTEXT, GROUPS, SHAPES, SWEEP, TRAIN, VARIANTS
from benchmarks.small_data import SmallText, write_small_text
from corpora import open_corpus
from lm.config import ModelConfig
from lm.costs import count_parameters, meta_model
from lm.metrics.baselines import Unigram
from pipelines.cli.display import say
from pipelines.cli.parsing import parse
from pipelines.dataset.reader import TokenDataset
from pipelines.files import write_whole
from pipelines.machine import Machine, choose_machine
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

PASSAGE = 20_000  # characters

Row = dict[str, Any]
"""The recorded result of one training."""
Groups = dict[str, list[Row]]
"""Rows by variant."""
MEASURES = {"bits_per_byte": "bits per byte", "nats": "nats per masked token"}  # a row has one


@dataclass(frozen=True)
class Settings:
    """The settings that all variants share."""

    data: Path
    tokens: int
    shape: str
    machine: Machine
    results: Path
    small: SmallText | None = None
    """The text that is read several times; otherwise `data` is read"""

    def key(self, variant: str, seed: int) -> dict[str, Any]:
        """Return the fields that identify a training."""
        fingerprint = TokenDataset(self.data).fingerprint[:16]
        return {
            "variant": variant,
            "seed": seed,
            "tokens": self.tokens,
            "shape": self.shape,
            "data": fingerprint,
            "device": _device(self.machine),
            **({"epochs": self.small.epochs} if self.small else {}),
        }

    def read_by(self, name: str) -> tuple[Path, int]:
        """Return the dataset that a variant reads, and the number of its tokens to train on."""
        return self.small.dataset(VARIANTS[name].data) if self.small else (self.data, self.tokens)


def recipes(
    *,
    text: Sequence[str],
    tokens: int = 1_000_000,
    group: Literal[
        "all", "sweep", "preset", "optimizers", "masked", "masks", "small-data", "small-data-masked"
    ] = "all",
    variants: Annotated[Sequence[str], tyro.conf.arg(metavar="NAME")] = (),
    seeds: int = 1,
    shape: Literal["tiny", "small", "medium"] = "small",
    vocab_size: int = 8192,
    text_bytes: int = 0,
    epochs: int = 8,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    folder: Path | None = None,
    results: Path = RESULTS / "recipes",
) -> None:
    """Train the variants and compare them.

    Args:
        text: Training corpora; 1 % of their passages are held out for validation, or 200 kB with `text_bytes`.
        tokens: Training tokens per variant.
        group: Group of variants: all, rates and decays of GPT-2, features of the preset modern, optimizers, encoders,
            masks of the recipe bert-tiny, or ideas for a small text, for decoders or for encoders.
        variants: Names of variants, instead of a group.
        seeds: Number of trainings per variant, with seeds 0, 1, ...
        shape: Model shape: tiny has 2 layers of width 128, small 4 of width 192, medium 6 of width 320.
        vocab_size: Entries of the tokenizer, unless the folder has one.
        text_bytes: Size of the training text, such as 500k, read `epochs` times instead of `tokens`; 0: the whole text.
        epochs: Number of times that a text of `text_bytes` is read.
        dtype: dtype of activations and matrix products; auto: bfloat16 if it is faster.
        folder: Folder that keeps the tokenizer, the dataset and interrupted trainings; default: a temporary folder.
        results: Folder of recipes.json and recipes.md.
    """
    names = variants or GROUPS[group]
    if unknown := [name for name in names if name not in VARIANTS]:
        raise SystemExit(f"there is no variant {unknown[0]!r}; choose from {'; '.join(VARIANTS)}")
    if drawn := [name for name in names if VARIANTS[name].data and not text_bytes]:
        raise SystemExit(f"the variant {drawn[0]!r} makes its own dataset of a small text: give --text-bytes")
    with tempfile.TemporaryDirectory() as temporary:
        where, machine = folder or Path(temporary), choose_machine(dtype=dtype)
        if text_bytes:
            if not (where / "text").exists():
                write_small_text(_passages(text), where / "text", text_bytes)
            small = SmallText(where, vocab_size, epochs)
            data, tokens = small.dataset({})
            settings = Settings(data, tokens, shape, machine, results, small)
        else:
            settings = Settings(_dataset(text, where, vocab_size), tokens, shape, machine, results)
        for seed in range(seeds):
            for name in names:
                key = settings.key(name, seed)
                if any(key.items() <= row.items() for row in _rows(results)):
                    say(f"{name}, seed {seed}: there already")
                else:
                    run = where / "runs" / re.sub(r"[^\w.-]+", "-", "_".join(map(str, key.values())))
                    _record(key | _trained(name, seed, settings, run), results)
                    shutil.rmtree(run)


def _dataset(text: Sequence[str], where: Path, vocab_size: int) -> Path:
    """Return the dataset of the whole text, and build it unless the folder `where` has it."""
    if not (where / "tokenizer").exists():
        train_tokenizer(list(text), vocab_size=vocab_size, out=where / "tokenizer")
    if not (where / "data").exists():
        with (where / "passages.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": passage}) + "\n" for passage in _passages(text))
        options = {"tokenizer": where / "tokenizer", "context_length": CONTEXT, "split": "hash:0.01"}
        build_dataset([str(where / "passages.jsonl")], out=where / "data", **options)
    return where / "data"


def _passages(text: Sequence[str]) -> Iterator[str]:
    """Yield the documents, cut into passages at line ends, so that every corpus has held-out passages."""
    for _, batch in open_corpus(list(text), split="hash:0.01").routed_batches():
        for document in batch["text"].to_pylist():
            yield from cut_at_lines(document)


def cut_at_lines(document: str, size: int = PASSAGE) -> Iterator[str]:
    """Yield a document in passages of up to `size` characters, which end at a line end if they contain one."""
    start = 0
    while start < len(document):
        end = start + size
        if end < len(document):
            end = document.rfind("\n", start, end) + 1 or end
        yield document[start:end]
        start = end


def _device(machine: Machine) -> str:
    on_gpu = machine.device.type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, {machine.dtype_name}"


def _trained(name: str, seed: int, settings: Settings, run: Path) -> dict[str, Any]:
    """Train a variant in the folder `run`, or resume it, and return its validation loss and times."""
    variant = VARIANTS[name]
    data, tokens = settings.read_by(name)
    dataset = TokenDataset(data)
    held_out = dataset.info["splits"]["validation"]
    recipe = Recipe(
        objective=variant.objective,
        model=ModelConfig(**SHAPES[settings.shape] | variant.model),
        train=TrainConfig(
            **TRAIN | variant.train | {"tokens": tokens, "warmup_tokens": tokens // 20, "seed": seed},
            dtype=settings.machine.dtype_name,
            validate_every_tokens=tokens,
            validation_tokens=held_out["tokens"],
            checkpoint_every_tokens=10 * tokens,
        ),
    )
    clock = run / "processor.json"
    earlier = json.loads(clock.read_text()) if clock.exists() else 0.0
    before = time.process_time()
    try:
        pretrain(recipe, data=data, out=run)
    except KeyboardInterrupt:
        write_whole(clock, json.dumps(earlier + time.process_time() - before))
        raise SystemExit("interrupted: the same command with the same --folder resumes the training") from None
    processor = earlier + time.process_time() - before
    last = Run(run).metrics()[-1]  # the last line is a validation
    sized = replace(recipe.model, vocab_size=dataset.vocab_size)
    if recipe.objective == "masked-token":
        reached = {"nats": last["loss"], "unigram_nats": _unigram_nats(dataset)}
    else:
        reached = {"bits_per_byte": last["loss"] * held_out["tokens"] / held_out["bytes"] / math.log(2)}
    return {
        **reached,
        **({"read_tokens": tokens} if settings.small else {}),
        "seconds": last["time_s"],
        "processor_seconds": processor if settings.machine.device.type == "cpu" else None,
        "parameters": count_parameters(meta_model(sized)),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }


def _unigram_nats(dataset: TokenDataset) -> float:
    """Return the loss of a unigram model on the validation split."""
    unigram = Unigram.fit(dataset.split("train").chunks(), dataset.vocab_size)
    return float(np.mean(np.concatenate([unigram.nll(chunk) for chunk in dataset.split("validation").chunks()])))


def _rows(results: Path) -> list[Row]:
    path = results / "recipes.json"
    return json.loads(path.read_text()) if path.exists() else []


def _record(row: Row, results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    folder = os.open(results, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # other processes add theirs
        rows = [*_rows(results), row]
        write_whole(results / "recipes.json", json.dumps(rows, indent=1) + "\n")
        write_whole(results / "recipes.md", markdown(rows))
    finally:
        os.close(folder)


def markdown(rows: list[Row]) -> str:
    """Return a table for each dataset and number of tokens, best first. Several seeds give their median."""
    lines = ["# Variants of recipes for a small model", "", "`python -m benchmarks.recipes`; lower is better.", ""]
    trials: dict[Trial, Groups] = {}
    for row in rows:
        groups = trials.setdefault(Trial.of(row), {})
        groups.setdefault(row["variant"], []).append(row)
    for trial, groups in sorted(trials.items()):
        lines += [
            f"## {trial.tokens:,} tokens"
            + (f" in {trial.epochs} epochs" if trial.epochs else "")
            + f", {trial.shape} shape",
            "",
            f"{trial.device}" + (f"; dataset {trial.data}." if trial.data else ".") + _unigram(groups),
            "",
        ]
        found = {name: (_median(group, trial.measure), _median(group, "seconds")) for name, group in groups.items()}
        rows_of_trial = []
        for name in sorted(groups, key=found.__getitem__):
            reached, seconds = found[name]
            parameters, processor = groups[name][0]["parameters"], _processor_seconds(groups[name])
            cells = (f"{reached:.4f}", f"{len(groups[name])}", f"{parameters:,}", f"{seconds:.0f}")
            rows_of_trial.append((name, *cells, f"{processor:.0f}" if processor else "–"))
        head = ("variant", MEASURES[trial.measure], "seeds", "parameters", "seconds", "CPU seconds")
        lines += table(head, rows_of_trial)
        alike = {one.tokens: found for one, found in trials.items() if one._replace(tokens=trial.tokens) == trial}
        lines += ["", *_with_fewer_tokens(groups, alike, trial.tokens // 2)]
    return "\n".join(lines)


class Trial(NamedTuple):
    """The settings that the variants of one table share."""

    data: str
    device: str
    shape: str
    tokens: int
    measure: str
    epochs: int
    """0 unless a small text was read several times"""

    @classmethod
    def of(cls, row: Row) -> "Trial":
        measure = next(name for name in MEASURES if name in row)
        return cls(row["data"], row["device"], row["shape"], row["tokens"], measure, row.get("epochs", 0))


def _unigram(groups: Groups) -> str:
    found = {row["unigram_nats"] for rows in groups.values() for row in rows if "unigram_nats" in row}
    return "".join(f" A unigram model reaches {nats:.4f}." for nats in found)


def _median(rows: list[Row], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def _processor_seconds(rows: list[Row]) -> float | None:
    """Return the median CPU seconds, which other load does not lengthen. None on a GPU and for rows without them."""
    return _median(rows, "processor_seconds") if all(row.get("processor_seconds") for row in rows) else None


def _with_fewer_tokens(groups: Groups, alike: dict[int, Groups], most: int) -> list[str]:
    """Return lines that compare each `modern` variant of at most `most` tokens with the best GPT-2 of the sweep.

    `alike` maps numbers of tokens to the groups of otherwise equal trials.
    """
    swept = [name for name in SWEEP if name in groups]
    modern = {
        (name, tokens): rows
        for tokens, found in alike.items()
        for name, rows in found.items()
        if tokens <= most and name.startswith("modern")
    }
    if not swept or not modern:
        return []
    best = min(swept, key=lambda name: _median(groups[name], "bits_per_byte"))
    bits = _median(groups[best], "bits_per_byte")
    tried = f"The best of {len(swept)} (of {len(SWEEP)}) rates and decays of GPT-2 is {best!r}: {bits:.4f}"
    lines = [f"{tried}. With fewer tokens:", ""]
    for (name, tokens), rows in sorted(modern.items()):
        ours, theirs = _processor_seconds(rows), _processor_seconds(groups[best])
        if ours and theirs:
            share, kind = ours / theirs, "CPU time"
        else:
            share, kind = _median(rows, "seconds") / _median(groups[best], "seconds"), "time"
        lines.append(f"- {name}, {tokens:,}: {_median(rows, 'bits_per_byte'):.4f}, in {share:.2f} of the {kind}.")
    return [*lines, ""]


if __name__ == "__main__":
    import sys

    parse(recipes, sys.argv[1:], "benchmarks.recipes")
