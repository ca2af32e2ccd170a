"""Compare greedy generation with `transformers` and its KV cache: the same weights, prompts and dtype.

    python -m benchmarks.generate [--tokens 256] [--rounds 5] [--threads 2] [--device cpu]

Contestants take turns in one process and generate a whole text per turn. A float32 time counts only if both generate
the same ids. In bfloat16, rounding differs and the share of equal ids is recorded. Results go to
`benchmarks/results/generate/`.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.streamers import BaseStreamer

from benchmarks.harness import RESULTS, command_line, device_name, heading, machine, met, record, table, turns
from benchmarks.limits import device_bandwidth
from lm.config import ModelConfig
from lm.decoding.generation import stream
from lm.decoding.packed import prepare
from lm.exchange import to_hugging_face
from lm.model import LanguageModel

SHAPE = ModelConfig(
    vocab_size=8192,
    context_length=512,
    layers=6,
    width=384,
    heads=6,
    positions="learned",
    activation="gelu_tanh",
)
TARGETS = {("cpu", "float32"): 1.3, ("cpu", "bfloat16"): 2.0, ("cuda", "float32"): 2.0, ("cuda", "bfloat16"): 2.0}
SPREAD = 0.05  # standard deviation of noise on the initial weights, so that outputs depend on the prompt
OURS, PEER = "bytelm", "transformers"

Turn = Callable[[], tuple[list[float], Tensor]]
"""Generates a text and returns the seconds of each token and the new ids (B, N)."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare generation with transformers."""

    tokens: int = 256
    """New tokens per text."""
    prompt: int = 32
    """Tokens per prompt."""
    batches: tuple[int, ...] = (1, 16)
    """Batch sizes."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    rounds: int = 5
    """Turns of each contestant."""
    threads: int = 2
    device: str = "cpu"
    cache: Literal["dynamic", "static"] = "dynamic"
    """KV cache; with a static one on a GPU, both launch a step as a CUDA graph. On a CPU, only transformers has one."""
    out: Path = RESULTS / "generate"
    """Results folder."""


class _Clock(BaseStreamer):
    """A streamer for transformers, which calls it with the prompt and then with the ids of each step."""

    def __init__(self) -> None:
        self.times = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def main(arguments: list[str]) -> None:
    options = tyro.cli(Options, args=arguments, prog="python -m benchmarks.generate")
    torch.set_num_threads(options.threads)
    model = lively_model()
    bandwidth = device_bandwidth(options.device)
    cases = []
    # transformers compiles the model with a static cache, which it does without gradients, not in inference mode.
    with torch.no_grad() if options.cache == "static" else torch.inference_mode():
        for dtype in options.dtypes:
            for batch in options.batches:
                cases.append(measure(model, options, getattr(torch, dtype), batch, bandwidth))
                print(line(cases[-1]), flush=True)
    result = {
        "command": command_line("benchmarks.generate", arguments),
        "device": device_facts(options),
        "read_gb_per_s": bandwidth / 1e9,
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "model": asdict(SHAPE),
        "cases": cases,
    }
    record(options.out, options.device, result, markdown(result))


@torch.no_grad()
def lively_model() -> LanguageModel:
    model = LanguageModel(SHAPE, seed=0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * SPREAD)
    return model


def measure(model: LanguageModel, options: Options, dtype: torch.dtype, batch: int, bandwidth: float) -> dict:
    """Time alternating turns of both contestants, after one untimed turn of each."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(0, SHAPE.vocab_size, (batch, options.prompt), generator=generator).to(options.device)
    contestants = {OURS: ours(model, ids, options, dtype), PEER: peer(model, ids, options, dtype)}
    generated = {name: turn()[1] for name, turn in contestants.items()}
    seconds: dict[str, list[list[float]]] = {name: [] for name in contestants}
    for _, name in turns([*contestants], options.rounds):
        seconds[name].append(contestants[name]()[0])
    weights = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    agreement = (generated[OURS] == generated[PEER]).float().mean().item()
    rates = {name: rate(runs, batch) for name, runs in seconds.items()}
    name = str(dtype).removeprefix("torch.")
    ratio = rates[OURS]["best"] / rates[PEER]["best"]
    return {
        "dtype": name,
        "batch": batch,
        "tokens_per_s": rates,
        "ratio": ratio,
        "target": TARGETS[options.device, name],
        "counts": agreement == 1.0 or dtype == torch.bfloat16,
        "same_ids": agreement,
        "floor_tokens_per_s": batch * bandwidth / weights,
        "weight_bytes": weights,
    }


def ours(model: LanguageModel, ids: Tensor, options: Options, dtype: torch.dtype) -> Turn:
    model = model.to(options.device)
    model.compute_dtype = dtype
    ready = prepare(model, len(ids))
    static = options.cache == "static" and options.device != "cpu"

    def turn() -> tuple[list[float], Tensor]:
        chosen, times = [], [time.perf_counter()]
        for step in stream(ready, ids, options.tokens, static=static):
            chosen.append(step.cpu())
            times.append(time.perf_counter())
        return between(times), torch.stack(chosen, dim=-1)

    return turn


def peer(model: LanguageModel, ids: Tensor, options: Options, dtype: torch.dtype) -> Turn:
    settings, tensors = to_hugging_face(model.config, model.state_dict())
    theirs = GPT2LMHeadModel(GPT2Config(**settings))
    theirs.load_state_dict(tensors, strict=False)
    theirs = theirs.to(options.device, dtype).eval()
    fixed = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False, "use_cache": True}
    if options.cache == "static":
        fixed["cache_implementation"] = "static"
    theirs.generation_config.eos_token_id = theirs.generation_config.pad_token_id = None

    def turn() -> tuple[list[float], Tensor]:
        clock, start = _Clock(), time.perf_counter()
        whole = theirs.generate(ids, attention_mask=torch.ones_like(ids), streamer=clock, **fixed)
        # the first call passes the prompt, before it is processed
        return between([start, *clock.times[1:]]), whole[:, ids.shape[1] :].cpu()

    return turn


def between(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def rate(runs: list[list[float]], batch: int) -> dict[str, float]:
    """Return tokens/s. best: from each token's least time of all rounds, which other load affects least."""
    tokens = len(runs[0]) * batch
    return {
        "best": tokens / sum(min(times) for times in zip(*runs, strict=True)),
        "fastest_run": tokens / min(sum(run) for run in runs),
        "median_run": tokens / statistics.median(sum(run) for run in runs),
    }


def device_facts(options: Options) -> dict:
    facts = machine() if options.device == "cpu" else {"processor": device_name(options.device)}
    return facts | {"threads": options.threads}


def line(case: dict) -> str:
    rates = {name: f"{values['best']:,.0f}" for name, values in case["tokens_per_s"].items()}
    return f"{case['dtype']} x {case['batch']}: {rates} tokens/s, {case['ratio']:.2f} x, ids {case['same_ids']:.1%}"


def markdown(result: dict) -> str:
    device = result["device"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    facts = f"{device['processor']}, {device['threads']} threads; {versions}"
    head = ("dtype", "batch", OURS, PEER, "ratio", "target", "verdict", "bound (tokens/s)", "same ids")
    return "\n".join(
        [
            *heading("Generation compared with transformers", result["command"], facts),
            "Both have the same weights (GPT-2's architecture, 6 layers of width 384, 8,192 entries), read the same "
            "prompts, keep a KV cache and decode greedily. They take turns. Times include the prompt but not the "
            "preparation of the model. Tokens/s are computed from each token's least time in any round; the median run "
            f"is in brackets. The bound reads every weight once per step at {result['read_gb_per_s']:.0f} GB/s.",
            "",
            *table(head, map(_cells, result["cases"])),
            "",
        ]
    )


def _cells(case: dict) -> list[str]:
    rates = [
        f"{case['tokens_per_s'][name]['best']:,.0f} ({case['tokens_per_s'][name]['median_run']:,.0f})"
        for name in (OURS, PEER)
    ]
    reached = met(case["ratio"] >= case["target"] and case["counts"])
    ratio, bound = f"{case['ratio']:.2f}", f"{case['floor_tokens_per_s']:,.0f}"
    return [
        case["dtype"],
        str(case["batch"]),
        *rates,
        ratio,
        str(case["target"]),
        reached,
        bound,
        f"{case['same_ids']:.1%}",
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
