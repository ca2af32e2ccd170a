"""Profile a training step: time by group of operations, such as attention or norms."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# The first group that matches the name of an operation or of one of its parents. Innermost names are tried first.
GROUPS = (
    ("head and loss", re.compile(r"_LinearCrossEntropy|log_softmax|nll_loss|cross_entropy")),
    ("optimizer and clipping", re.compile(r"Optimizer\.|fused_adam|_foreach_|linalg_vector_norm")),
    ("attention", re.compile(r"scaled_dot_product|flash|bmm|softmax", re.IGNORECASE)),
    ("matrix products of the layers", re.compile(r"^aten::(mm|addmm|linear|matmul)$|mkldnn|onednn|gemm|nvjet|cutlass")),
    ("norms", re.compile(r"(layer|rms)_?norm", re.IGNORECASE)),
    ("activations", re.compile(r"gelu|silu|relu", re.IGNORECASE)),
    ("embeddings", re.compile(r"embedding|index", re.IGNORECASE)),
    ("fused elementwise kernels", re.compile(r"cpp_fused|triton|CompiledFunction|Torch-Compiled")),
    ("copies and casts", re.compile(r"copy_|aten::(to|_to_copy|cat|clone|contiguous|empty|zero_|fill_)|Memcpy|Memset")),
    ("sums", re.compile(r"aten::(add|add_|mul|mul_|sum|sub|div)$|AccumulateGrad")),
)
REST, BETWEEN = "other operations", "between operations"
SHORT_IDLE = 20  # microseconds between kernels that count as no idle time
KERNELS, NAME = 40, 120  # kernels and idle times in a result, at most, and characters of their names


def seconds_by_group(step: Callable[[], object], steps: int, device: str) -> dict:
    """Return the mean seconds per step of each group and of the whole step; on a GPU, of its kernels."""
    on_gpu = device == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    if on_gpu:
        torch.cuda.synchronize()  # earlier steps may still be queued
    with profile(activities=activities, acc_events=True) as profiler:
        started = time.perf_counter()
        for _ in range(steps):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        whole = time.perf_counter() - started
    groups: dict[str, float] = defaultdict(float)
    for names, seconds in _spent(profiler.events(), on_gpu):
        groups[group_of(names)] += seconds / steps
    groups[BETWEEN] = max(0.0, whole / steps - sum(groups.values()))
    of = "the GPU's kernels" if on_gpu else "the main thread"
    found = {"step": whole / steps, "groups": dict(groups), "of": of}
    return found | (gpu_details(profiler.events(), steps) if on_gpu else {})


def gpu_details(events: list, steps: int) -> dict:
    """Return the kernels that take longest, in seconds per step, and the longest idle times of the GPU."""
    kernels = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    kernels.sort(key=lambda event: event.time_range.start)
    seconds: dict[str, float] = defaultdict(float)
    idle, busy_until, before = [], 0.0, ""
    for kernel in kernels:
        start, end = kernel.time_range.start, kernel.time_range.end
        seconds[kernel.name] += (end - start) / 1e6 / steps
        if before and start - busy_until > SHORT_IDLE:
            idle.append({"seconds": (start - busy_until) / 1e6, "after": before[:NAME], "before": kernel.name[:NAME]})
        if end > busy_until:
            busy_until, before = end, kernel.name
    longest = sorted(seconds.items(), key=lambda pair: -pair[1])[:KERNELS]
    return {
        "kernels": {name[:NAME]: taken for name, taken in longest},
        "idle_seconds": sum(each["seconds"] for each in idle) / steps,
        "idle": sorted(idle, key=lambda each: -each["seconds"])[:KERNELS],
    }


def group_of(names: list[str]) -> str:
    """Return the group of an operation from its name and its parents' names, innermost first."""
    for group, pattern in GROUPS:
        if any(pattern.search(name) for name in names):
            return group
    return REST


def _spent(events: list, on_gpu: bool) -> Iterator[tuple[list[str], float]]:
    """Yield (names, innermost first; seconds without children) of each operation in the main thread or on the GPU."""
    for event in events:
        names, parent = [], event
        while parent is not None:
            names.append(parent.name)
            parent = parent.cpu_parent
        if on_gpu:
            for kernel in event.kernels:
                yield [kernel.name, *names], kernel.duration / 1e6
        elif event.self_cpu_time_total > 0:
            yield names, event.self_cpu_time_total / 1e6
