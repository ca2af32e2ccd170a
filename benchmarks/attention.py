"""Compare the attention backends: speed, memory kept for the backward pass, and the cost of attention maps.

    python -m benchmarks.attention [--rounds 15] [--threads 1] [--quick]

Backends take turns in one process. Results go to `benchmarks/results/attention/` as JSON and as Markdown.
"""

import copy
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console
from torch import Tensor

from benchmarks.harness import (
    RESULTS,
    Clock,
    command_line,
    duration,
    heading,
    least_and_median,
    machine,
    met,
    record,
    table,
    turns,
)
from lm.attention import flex
from lm.attention.backends import BACKENDS, reference
from lm.config import ModelConfig
from lm.introspection.attention_maps import attention_maps
from lm.masks import Mask
from lm.model import LanguageModel

# Targets: closed_form's share of the reference's bytes and time; the relative cost of earlier attention maps.
BYTES, TIME, INSIDE = 0.6, 0.8, 0.01
NAMES = tuple(name for name in BACKENDS if name != "auto")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare the attention backends."""

    rounds: int = 15
    """Turns of each backend."""
    threads: int = 0
    """Number of threads; 0: PyTorch's default. On a busy machine one thread gives steadier ratios."""
    quick: bool = False
    """Smoke test: short sequences, two rounds."""
    out: Path | None = None
    """Results folder."""


@dataclass(frozen=True)
class Shape:
    """One attention problem: batch, query heads, key heads, positions, components a head."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    width: int
    causal: bool
    window: int
    dtype: str

    @property
    def mask(self) -> Mask:
        return Mask(causal=self.causal, window=self.window)


PROMISED = (8, 8, 8, 512, 64)
SHAPES = (
    *(Shape(*PROMISED, causal, 0, dtype) for dtype in ("float32", "bfloat16") for causal in (True, False)),
    Shape(16, 6, 6, 256, 64, True, 0, "bfloat16"),
    Shape(8, 8, 2, 512, 64, True, 0, "bfloat16"),
    Shape(2, 8, 8, 2048, 64, True, 128, "float32"),
)


def main(options: Options) -> int:
    console = Console(stderr=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    target = "cuda" if torch.cuda.is_available() else "cpu"
    rounds = 2 if options.quick else options.rounds
    cases = []
    for shape in SHAPES:
        if options.quick:
            shape = Shape(**asdict(shape) | {"batch": 2, "length": 130})
        with console.status(str(shape)):
            cases.append({"shape": asdict(shape), "rows": measure(shape, target, rounds)})
    with console.status("looking inside"):
        inside = looking_inside(target, 2 if options.quick else 40 * rounds)
    result = {
        "command": command_line("benchmarks.attention", sys.argv[1:]),
        "device": machine() | {"accelerator": torch.cuda.get_device_name() if target == "cuda" else None},
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cases": cases,
        "inside": inside,
    }
    out = options.out or (Path(tempfile.gettempdir()) / "bytelm-benchmarks" if options.quick else RESULTS / "attention")
    record(out, "attention", result, markdown(result))
    console.print(f"{out / 'attention.json'}\n{out / 'attention.md'}", soft_wrap=True)
    return 0


def measure(shape: Shape, target: str, rounds: int) -> list[dict]:
    """Return for each backend the seconds of forward plus backward and of forward alone, bytes kept, and error.

    `flex` is skipped if it does not support the case: on the CPU it has no backward pass.
    """
    torch.manual_seed(0)
    dtype, n = getattr(torch, shape.dtype), (shape.batch, shape.length)
    # The memory layout of the model: (B, T, H, D), seen as (B, H, T, D).
    leaves = [
        torch.randn(*n, heads, shape.width, device=target).to(dtype).requires_grad_()
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    ]
    upstream = torch.randn(*n, shape.heads, shape.width, device=target).to(dtype).transpose(1, 2)
    with torch.no_grad():
        exact = reference(*(x.double().transpose(1, 2) for x in leaves), shape.mask)

    def forward(name: str) -> Tensor:
        return BACKENDS[name](*(x.transpose(1, 2) for x in leaves), shape.mask)

    def step(name: str) -> None:
        torch.autograd.grad(forward(name), leaves, upstream)

    def runs(name: str) -> bool:
        return name != "flex" or flex.is_supported(*(x.transpose(1, 2) for x in leaves), shape.mask)

    both = [name for name in NAMES if runs(name)]
    steps = alternately({name: lambda name=name: step(name) for name in both}, rounds, target)
    with torch.no_grad():
        alone = [name for name in NAMES if runs(name)]
        forwards = alternately({name: lambda name=name: forward(name) for name in alone}, rounds, target)
        differences = {name: (forward(name).double() - exact).abs().max().item() for name in alone}
    return [
        {
            "backend": name,
            "kept": bytes_kept(lambda name=name: forward(name)) if name in both else None,
            "difference": differences[name],
            "step": steps.get(name, []),
            "forward": forwards[name],
        }
        for name in alone
    ]


def alternately(contestants: dict[str, Callable[[], object]], rounds: int, target: str) -> dict[str, list[float]]:
    """Return the seconds of each turn, after an untimed one."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number, name in turns([*contestants], rounds, warm_up=1):
        clock = Clock(target)
        contestants[name]()
        clock.mark()
        (passed,) = clock.seconds()
        if number >= 0:
            seconds[name].append(passed)
    return seconds


def bytes_kept(forward: Callable[[], Tensor]) -> int:
    """Return the bytes of distinct memory that autograd keeps between forward and backward."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()
    del out
    return sum(storages.values())


def looking_inside(target: str, rounds: int) -> dict:
    """Time forward passes of a model, and of a copy after its attention maps have been computed."""
    config = ModelConfig(vocab_size=512, context_length=256, layers=4, width=256, heads=4)
    untouched = LanguageModel(config, seed=0).to(target).eval()
    inspected = copy.deepcopy(untouched)
    ids = torch.randint(config.vocab_size, (1, config.context_length), device=target)
    with torch.no_grad():
        attention_maps(inspected, ids)
        models = {"untouched": lambda: untouched(ids), "inspected": lambda: inspected(ids)}
        seconds = alternately(models, rounds, target)
    least = {name: min(values) for name, values in seconds.items()}
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "rounds": rounds,
        "minimum": least,
        "median": middle,
        "cost": least["inspected"] / least["untouched"] - 1,
    }


def markdown(result: dict) -> str:
    device, inside = result["device"], result["inside"]
    where = device["accelerator"] or f"{device['processor']}, {device['cores']} cores, {device['memory_gb']} GB"
    facts = (
        f"{where}; {device['system']}, Python {device['python']}, torch {result['torch']}, {result['threads']} threads."
    )
    found = f"{inside['cost']:+.2%}"
    verdicts = [
        *(line for case in result["cases"] if _is_promised(case["shape"]) for line in _verdicts(case)),
        ("a model after attention maps", "costs under 1 % more", found, met(inside["cost"] <= INSIDE)),
    ]
    lines = [
        *heading("Attention backends", result["command"], facts),
        "Backends take turns in one process and are compared by their minimum. Kept MB is the memory that autograd "
        "holds between forward and backward, each buffer counted once. The difference is the largest from the "
        "reference in float64. Compilation (flex) is not timed.",
        "",
        "## Targets",
        "",
        *table(("case", "target", "measured", "verdict"), verdicts),
        "",
        "The last row times forward passes of 4 layers of width 256 over 256 positions. They alternate between a model "
        f"and a copy after attention maps, {inside['rounds']} turns each: minima "
        f"{duration(inside['minimum']['untouched'])} and {duration(inside['minimum']['inspected'])}, medians "
        f"{duration(inside['median']['untouched'])} and {duration(inside['median']['inspected'])}.",
        "",
        "## Measurements",
    ]
    for case in result["cases"]:
        lines += ["", f"### {_title(case['shape'])}", "", *_table(case["rows"])]
    return "\n".join(lines) + "\n"


def _is_promised(shape: dict) -> bool:
    return shape["dtype"] == "float32" and not shape["window"]


def _title(shape: dict) -> str:
    heads = f"{shape['heads']} heads of {shape['width']}"
    if shape["kv_heads"] != shape["heads"]:
        heads += f" over {shape['kv_heads']} of keys"
    mask = "causal" if shape["causal"] else "bidirectional"
    window = f", window {shape['window']}" if shape["window"] else ""
    return f"{shape['dtype']}, {mask}{window}: batch {shape['batch']}, {heads}, T = {shape['length']}"


def _verdicts(case: dict) -> list[tuple[str, str, str, str]]:
    rows = {row["backend"]: row for row in case["rows"]}
    ours, theirs = rows["closed_form"], rows["reference"]
    kept, taken = ours["kept"] / theirs["kept"], min(ours["step"]) / min(theirs["step"])
    name = f"closed_form, {'causal' if case['shape']['causal'] else 'bidirectional'}, {case['shape']['dtype']}"
    return [
        (name, f"keeps at most {BYTES:.0%} of the reference's bytes", f"{kept:.0%}", met(kept <= BYTES)),
        (name, f"takes at most {TIME:.0%} of its time", f"{taken:.0%}", met(taken <= TIME)),
    ]


def _table(rows: list[dict]) -> list[str]:
    both, alone = ("forward and backward, minimum", "median"), ("forward alone, minimum", "median")
    lines = []
    for row in sorted(rows, key=lambda row: min(row["step"], default=float("inf"))):
        kept = "" if row["kept"] is None else f"{row['kept'] / 1e6:.1f}"
        steps, forwards = least_and_median(row["step"]), least_and_median(row["forward"])
        lines.append((row["backend"], *steps, kept, *forwards, f"{row['difference']:.1g}"))
    return table(("backend", *both, "kept MB", *alone, "difference"), lines)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m benchmarks.attention", description=__doc__)))
