"""What pays in a small model: variants of one recipe, trained on the same tokens and compared: decoders in bits
per byte, encoders in nats a masked token.

    python -m benchmarks.recipes --text CORPUS... [--tokens 1M] [--variants NAME...] [--seeds 1]

writes benchmarks/results/recipes/recipes.json, adding to what is there, and recipes.md. What is there already, of the
same text, tokens, shape, seed and device, is not trained again: the same command goes on after an interruption (with
--folder in the midst of a training), and with more variants, seeds or tokens adds those. What was made of it is told in
benchmarks/recipes.md.
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

from benchmarks.recipe_variants import CONTEXT, GROUPS, SHAPES, SWEEP, TRAIN, VARIANTS
from corpora import open_corpus
from lm.analysis.baselines import Unigram
from lm.analysis.size import count_parameters, meta_model
from lm.config import ModelConfig
from pipelines.build_dataset import build_dataset
from pipelines.cli.display import say
from pipelines.cli.parsing import parse
from pipelines.dataset.reader import TokenDataset
from pipelines.files import write_whole
from pipelines.pretrain import pretrain
from pipelines.run.folder import Run
from pipelines.run.recipe import Recipe
from pipelines.train_tokenizer import train_tokenizer
from pipelines.training.config import TrainConfig
from pipelines.training.machine import Machine, choose_machine

RESULTS = Path(__file__).with_name("results") / "recipes"
PASSAGE = 20_000  # characters

Row = dict[str, Any]
"""What is recorded of one training."""
Groups = dict[str, list[Row]]
"""Rows by variant."""
MEASURES = {"bits_per_byte": "bits per byte", "nats": "nats a masked token"}  # a row has one


@dataclass(frozen=True)
class Settings:
    """What every variant has in common."""

    data: Path
    tokens: int
    shape: str
    machine: Machine
    results: Path

    def key(self, variant: str, seed: int) -> dict[str, Any]:
        """What tells a training from all others."""
        fingerprint = TokenDataset(self.data).fingerprint[:16]
        return {
            "variant": variant,
            "seed": seed,
            "tokens": self.tokens,
            "shape": self.shape,
            "data": fingerprint,
            "device": _device(self.machine),
        }


def recipes(
    *,
    text: Sequence[str],
    tokens: int = 1_000_000,
    group: Literal["all", "sweep", "preset", "optimizers", "masked"] = "all",
    variants: Annotated[Sequence[str], tyro.conf.arg(metavar="NAME")] = (),
    seeds: int = 1,
    shape: Literal["small", "medium"] = "small",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    folder: Path | None = None,
    results: Path = RESULTS,
) -> None:
    """Train the variants and compare them.

    Args:
        text: Corpora to train on; 1 % of their passages are for validation.
        tokens: Tokens that each variant is trained on.
        group: Which variants: all, GPT-2's rates and decays, those of what the preset modern has or might
            have, those of optimizers, or encoders.
        variants: Which by name instead.
        seeds: How many times each is trained, with seeds 0, 1, ...
        shape: 4 layers of width 192, or 6 of 320.
        dtype: Of activations and matrix products; auto: bfloat16 where it is faster.
        folder: Where the tokenizer, the dataset and trainings that were interrupted are found again; by default a
            temporary folder.
        results: Folder of recipes.json and recipes.md.
    """
    names = variants or GROUPS[group]
    if unknown := [name for name in names if name not in VARIANTS]:
        raise SystemExit(f"there is no variant {unknown[0]!r}: give some of {'; '.join(VARIANTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        where = folder or Path(temporary)
        if not (where / "tokenizer").exists():
            train_tokenizer(list(text), vocab_size=8192, out=where / "tokenizer")
        if not (where / "data").exists():
            passages = [str(_write_passages(text, where / "passages.jsonl"))]
            options = {"tokenizer": where / "tokenizer", "context_length": CONTEXT, "split": "hash:0.01"}
            build_dataset(passages, out=where / "data", **options)
        settings = Settings(where / "data", tokens, shape, choose_machine(dtype=dtype), results)
        for seed in range(seeds):
            for name in names:
                key = settings.key(name, seed)
                if any(key.items() <= row.items() for row in _rows(results)):
                    say(f"{name}, seed {seed}: there already")
                else:
                    run = where / "runs" / re.sub(r"[^\w.-]+", "-", "_".join(map(str, key.values())))
                    _record(key | _trained(name, seed, settings, run), results)
                    shutil.rmtree(run)


def _write_passages(text: Sequence[str], path: Path) -> Path:
    """The documents of the corpora, cut at ends of lines: of sixty whole books it might be that none is held out."""
    with path.open("w", encoding="utf-8") as file:
        for _, batch in open_corpus(list(text), split="hash:0.01").routed_batches():
            for document in batch["text"].to_pylist():
                file.writelines(json.dumps({"text": passage}) + "\n" for passage in _passages(document))
    return path


def _passages(document: str, size: int = PASSAGE) -> Iterator[str]:
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
    """What a variant reaches on the validation split, and its seconds, trained in the folder `run` or from there on."""
    variant = VARIANTS[name]
    dataset = TokenDataset(settings.data)
    held_out = dataset.info["splits"]["validation"]
    recipe = Recipe(
        objective=variant.objective,
        model=ModelConfig(**SHAPES[settings.shape] | variant.model),
        train=TrainConfig(
            **TRAIN | variant.train | {"tokens": settings.tokens, "warmup_tokens": settings.tokens // 20, "seed": seed},
            dtype=settings.machine.dtype_name,
            validate_every_tokens=settings.tokens,
            validation_tokens=held_out["tokens"],
            checkpoint_every_tokens=10 * settings.tokens,
        ),
    )
    clock = run / "processor.json"
    earlier = json.loads(clock.read_text()) if clock.exists() else 0.0
    before = time.process_time()
    interrupted = pretrain(recipe, data=settings.data, out=run)
    processor = earlier + time.process_time() - before
    if interrupted:
        write_whole(clock, json.dumps(processor))
        raise SystemExit("interrupted: the same command goes on, with the same --folder from here")
    last = Run(run).metrics()[-1]  # of the validation split
    sized = replace(recipe.model, vocab_size=dataset.vocab_size)
    if recipe.objective == "masked-token":
        reached = {"nats": last["loss"], "unigram_nats": _unigram_nats(dataset)}
    else:
        reached = {"bits_per_byte": last["loss"] * held_out["tokens"] / held_out["bytes"] / math.log(2)}
    return {
        **reached,
        "seconds": last["time_s"],
        "processor_seconds": processor if settings.machine.device.type == "cpu" else None,
        "parameters": count_parameters(meta_model(sized)),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }


def _unigram_nats(dataset: TokenDataset) -> float:
    """What the frequencies of tokens alone reach on the validation split."""
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
    """A table for each dataset and number of tokens, best first; with more than one seed the median."""
    lines = ["# What pays in a small model", "", "`python -m benchmarks.recipes`; lower is better.", ""]
    trials: dict[Trial, Groups] = {}
    for row in rows:
        groups = trials.setdefault(Trial.of(row), {})
        groups.setdefault(row["variant"], []).append(row)
    for trial, groups in sorted(trials.items()):
        lines += [
            f"## {trial.tokens:,} tokens, {trial.shape} shape",
            "",
            f"{trial.device}" + (f"; dataset {trial.data}." if trial.data else ".") + _unigram(groups),
            "",
            f"| variant | {MEASURES[trial.measure]} | seeds | parameters | seconds | of a processor |",
            "|---|---|---|---|---|---|",
        ]
        found = {name: (_median(group, trial.measure), _median(group, "seconds")) for name, group in groups.items()}
        for name in sorted(groups, key=found.__getitem__):
            reached, seconds = found[name]
            parameters, processor = groups[name][0]["parameters"], _processor_seconds(groups[name])
            cells = (f"{reached:.4f}", f"{len(groups[name])}", f"{parameters:,}", f"{seconds:.0f}")
            lines.append(f"| {name} | {' | '.join(cells)} | {f'{processor:.0f}' if processor else '–'} |")
        alike = {one.tokens: found for one, found in trials.items() if one._replace(tokens=trial.tokens) == trial}
        lines += ["", *_with_fewer_tokens(groups, alike, trial.tokens // 2)]
    return "\n".join(lines)


class Trial(NamedTuple):
    """What the variants of one table have in common."""

    data: str
    device: str
    shape: str
    tokens: int
    measure: str

    @classmethod
    def of(cls, row: Row) -> "Trial":
        measure = next(name for name in MEASURES if name in row)
        return cls(row["data"], row["device"], row["shape"], row["tokens"], measure)


def _unigram(groups: Groups) -> str:
    found = {row["unigram_nats"] for rows in groups.values() for row in rows if "unigram_nats" in row}
    return "".join(f" The frequencies of tokens alone reach {nats:.4f}." for nats in found)


def _median(rows: list[Row], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def _processor_seconds(rows: list[Row]) -> float | None:
    """The median of what other work on the machine does not lengthen; None for a GPU, and rows of before it was
    recorded."""
    return _median(rows, "processor_seconds") if all(row.get("processor_seconds") for row in rows) else None


def _with_fewer_tokens(groups: Groups, alike: dict[int, Groups], most: int) -> list[str]:
    """How each `modern` does with at most so many tokens beside the best GPT-2 of the sweep; `alike`: by tokens."""
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
    tried = f"Of {len(swept)} of {len(SWEEP)} rates and decays of GPT-2, {best!r} is best: {bits:.4f}"
    lines = [f"{tried}. With fewer tokens:", ""]
    for (name, tokens), rows in sorted(modern.items()):
        ours, theirs = _processor_seconds(rows), _processor_seconds(groups[best])
        if ours and theirs:
            share, kind = ours / theirs, "processor time"
        else:
            share, kind = _median(rows, "seconds") / _median(groups[best], "seconds"), "time"
        lines.append(f"- {name}, {tokens:,}: {_median(rows, 'bits_per_byte'):.4f}, in {share:.2f} of the {kind}.")
    return [*lines, ""]


if __name__ == "__main__":
    import sys

    parse(recipes, sys.argv[1:], "benchmarks.recipes")
