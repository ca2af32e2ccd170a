"""Measure how fast a small byte-level GPT reaches the loss of nanoGPT's small CPU run on tinyshakespeare.

    python -m benchmarks.shakespeare --text tinyshakespeare.txt [--recipe bytes-tiny] [--runs 3]

The recipe bytes-small is for a GPU and is compared with nanoGPT's large run.

The tokenizer has 256 entries (no merges). The recipe trains on the first nine tenths of the text with seeds 0, 1, 2 and
so on. It is evaluated on every target of the last tenth, in blocks of the training length and with a sliding window. If
the recipe keeps the best checkpoint, that one is evaluated, as in nanoGPT. The text is ASCII, so a byte is a character.
Results go to benchmarks/results/shakespeare/. Timed steps of `transformers`' GPT-2 in a plain loop estimate the time of
nanoGPT's small run on this machine, in float32 or bfloat16, whichever is faster.
"""

import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import tyro
from safetensors.torch import load_file

from benchmarks.harness import RESULTS, command_line, device_name, heading, record, table, turns
from benchmarks.training_models import Case
from benchmarks.training_worker import Job, PeerSteps
from lm.config import ModelConfig
from pipelines.cli.display import show
from pipelines.dataset.reader import TokenDataset
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.run.retention import latest_checkpoint
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

# nanoGPT's nats per character on random crops of the last tenth, and the steps of its small run.
SMALL_NATS, SMALL_SECONDS, SMALL_STEPS = 1.886, 97.0, 2000
WARM_UP_STEPS, TIMED_STEPS = 10, 100
SMALL_SHAPE = ModelConfig(
    vocab_size=256, layers=4, width=128, heads=4, context_length=64, positions="learned", activation="gelu_tanh"
)
SMALL_RECIPE, LARGE_RECIPE, LARGE_NATS = "bytes-tiny", "bytes-small", 1.4697


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train on the bytes of tinyshakespeare."""

    text: Path
    """Path of tinyshakespeare.txt."""
    recipe: str = SMALL_RECIPE
    tokens: int = 0
    """Training tokens instead of the recipe's, if above 0."""
    runs: int = 3
    """Number of runs, with seeds 0, 1, 2 and so on."""
    stride: int = 16
    """Stride of the sliding window in bytes."""
    out: Path = RESULTS / "shakespeare"
    """Results folder."""


def nats_per_byte(run: Path, stride: int | None, checkpoint: str) -> float:
    """Return the mean loss over every target of the last tenth; a token is a byte."""
    return evaluate(run, stride=stride, checkpoint=checkpoint).validation.cross_entropy


def one_run(options: Options, data: Path, out: Path, seed: int) -> dict[str, float]:
    """Train once and return the losses in nats per byte, the seconds of the training loop, and the seconds of the run.

    The latter include validation, checkpoints and building the model.
    """
    recipe = load_recipe(options.recipe)
    recipe = replace(recipe, train=replace(recipe.train, seed=seed, tokens=options.tokens or recipe.train.tokens))
    started = time.perf_counter()
    pretrain(recipe, data=data, out=out)
    whole = time.perf_counter() - started
    lines = [line for line in Run(out).metrics() if line["split"] == "train"]
    first, last = lines[0], lines[-1]  # the first logged steps include compilation
    share = 1 - first["tokens"] / last["tokens"]
    which = "best" if recipe.train.keep_best else "newest"
    return {
        "seed": seed,
        "tokens": last["tokens"],
        "training_seconds": last["time_s"],
        "seconds_without_compilation": (last["time_s"] - first["time_s"]) / share if share else None,
        "seconds": round(whole, 2),
        "nats_per_byte": round(nats_per_byte(out, None, which), 4),
        "sliding_nats_per_byte": round(nats_per_byte(out, options.stride, which), 4),
    }


def plain_step_seconds(data: Path) -> dict[str, float]:
    """Return the median seconds of a CPU step of nanoGPT's small run by dtype, measured with `transformers`' GPT-2."""
    case, tokens = Case(SMALL_SHAPE, batch=12), np.concatenate(TokenDataset(data).split("train").chunks())
    settings = {"compiled": False, "tokens": "", "steps": SMALL_STEPS, "rise": 100}
    dtypes = ("float32", "bfloat16")
    peers = {dtype: PeerSteps(Job("transformers", "", "cpu", dtype, **settings), case, tokens) for dtype in dtypes}
    seconds: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    for number, dtype in turns(dtypes, TIMED_STEPS, warm_up=WARM_UP_STEPS):
        started = time.perf_counter()
        float(peers[dtype].train())
        if number >= 0:
            seconds[dtype].append(time.perf_counter() - started)
    return {dtype: statistics.median(each) for dtype, each in seconds.items()}


def weights_of(run: Path) -> list[torch.Tensor]:
    return list(load_file(latest_checkpoint(run) / "model.safetensors").values())


def report(result: dict) -> str:
    """Return the runs as Markdown."""
    head = ("seed", "bytes read", "training seconds", "total seconds", "nats per byte", "with a sliding window")
    rows = [
        (
            f"{run['seed']}",
            f"{run['tokens']:,}",
            *(f"{run[name]:.1f}" for name in ("training_seconds", "seconds")),
            *(f"{run[name]:.4f}" for name in ("nats_per_byte", "sliding_nats_per_byte")),
        )
        for run in result["runs"]
    ]
    seconds = statistics.median(run["seconds"] for run in result["runs"])
    nats = statistics.median(run["nats_per_byte"] for run in result["runs"])
    facts = f"{result['machine']}, PyTorch {result['torch']}, {result['threads']} threads, {result['dtype']}"
    return "\n".join(
        [
            *heading("Bytes of tinyshakespeare", result["command"], f"{facts}; {result['parameters']:,} parameters."),
            *table(head, rows),
            "",
            f"Median: {nats:.4f} nats per byte (perplexity {math.exp(nats):.2f}) in {seconds:.1f} s"
            + _beside(result, seconds)
            + ". Losses cover the whole last tenth, in blocks of the training length. Total seconds include building "
            "the model, validation and checkpoints, but not importing PyTorch.",
            "",
        ]
    )


def _beside(result: dict, seconds: float) -> str:
    """Return the loss and time of nanoGPT with a model of this size."""
    if result["recipe"] == LARGE_RECIPE:
        return f", compared with {LARGE_NATS} for nanoGPT's large run (5,000 steps of 64 x 256)"
    if "plain_step_seconds" not in result:
        return ""
    steps = result["plain_step_seconds"]
    there = SMALL_STEPS * min(steps.values())
    measured = ", ".join(f"{1e3 * step:.1f} ms a step in {dtype}" for dtype, step in steps.items())
    return (
        f", compared with {SMALL_NATS} for nanoGPT's small run: its {SMALL_STEPS:,} steps of 12 x "
        f"64 would take {there:.0f} s "
        f"here by `transformers`' GPT-2 of its shape ({measured}, the median of {TIMED_STEPS}), of "
        f"which this is {seconds / there:.2f}; nanoGPT took {SMALL_SECONDS:.0f} s on two cores of another machine, of "
        f"which this is {seconds / SMALL_SECONDS:.2f}"
    )


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tokenizer, data = work / "tokenizer", work / "data"
        text, context = [str(options.text)], load_recipe(options.recipe).model.context_length
        train_tokenizer(text, vocab_size=256, out=tokenizer, special_tokens=(), split="tail:0.1")
        build_dataset(text, tokenizer=tokenizer, out=data, context_length=context, split="tail:0.1", separator=False)
        runs = [one_run(options, data, work / f"run-{seed}", seed) for seed in range(options.runs)]
        dtype = Run(work / "run-0").recipe.train.dtype
        parameters = sum(weights.numel() for weights in weights_of(work / "run-0"))
        on_a_cpu = options.recipe == SMALL_RECIPE and not torch.cuda.is_available()
        peer = {"plain_step_seconds": plain_step_seconds(data)} if on_a_cpu else {}
    result = {
        "command": command_line("benchmarks.shakespeare", sys.argv[1:]),
        "recipe": options.recipe,
        "machine": device_name("cuda" if torch.cuda.is_available() else "cpu"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "parameters": parameters,
        "runs": runs,
        **peer,
    }
    record(options.out, options.recipe, result, report(result))
    print(report(result))


if __name__ == "__main__":
    with show():
        main(tyro.cli(Options, args=sys.argv[1:]))
