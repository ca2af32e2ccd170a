"""Compare the attention backends: speed, memory kept for the backward pass, and the cost of attention maps.

    python -m benchmarks.attention [--rounds 15] [--threads 1] [--quick]

Backends take turns in one process. Results go to `benchmarks/results/attention/` as JSON and as Markdown.
"""

import copy
import itertools
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console
from torch import Tensor

from benchmarks.attention_report import markdown
from benchmarks.machine import device
from lm.analysis.attention_maps import attention_maps
from lm.attention import flex
from lm.attention.backends import BACKENDS, reference
from lm.config import ModelConfig
from lm.masks import Mask
from lm.model import build_model

RESULTS = Path(__file__).parent / "results" / "attention"
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
        "command": shlex.join(["python", "-m", "benchmarks.attention", *sys.argv[1:]]),
        "device": device() | {"accelerator": torch.cuda.get_device_name() if target == "cuda" else None},
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cases": cases,
        "inside": inside,
    }
    out = options.out or (Path(tempfile.gettempdir()) / "bytelm-benchmarks" if options.quick else RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    (out / "attention.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (out / "attention.md").write_text(markdown(result), encoding="utf-8")
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
        return name != "flex" or flex.supported(*(x.transpose(1, 2) for x in leaves), shape.mask)

    both = [name for name in NAMES if runs(name)]
    steps = alternately({name: lambda name=name: step(name) for name in both}, rounds)
    with torch.no_grad():
        alone = [name for name in NAMES if runs(name)]
        forwards = alternately({name: lambda name=name: forward(name) for name in alone}, rounds)
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


def alternately(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each turn, after an untimed one."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn, (name, run) in itertools.product(range(rounds + 1), contestants.items()):
        _wait()
        started = time.perf_counter()
        run()
        _wait()
        if turn:
            seconds[name].append(time.perf_counter() - started)
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
    untouched = build_model(config, seed=0).to(target).eval()
    inspected = copy.deepcopy(untouched)
    ids = torch.randint(config.vocab_size, (1, config.context_length), device=target)
    with torch.no_grad():
        attention_maps(inspected, ids)
        models = {"untouched": lambda: untouched(ids), "inspected": lambda: inspected(ids)}
        seconds = alternately(models, rounds)
    least = {name: min(values) for name, values in seconds.items()}
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "rounds": rounds,
        "minimum": least,
        "median": middle,
        "cost": least["inspected"] / least["untouched"] - 1,
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m benchmarks.attention", description=__doc__)))
