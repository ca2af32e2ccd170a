"""Measure the memory bandwidth and the latency of random accesses.

`python -m benchmarks.limits DEVICE` prints the bandwidth and the speed of a bfloat16 matrix product as JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import Clock

LINE = 16  # uint32 in a cache line


def read_bandwidth(path: Path) -> float:
    """Return the bytes per second at which one thread sums a file in memory, the best of five."""
    data = np.fromfile(path, dtype=np.uint8)
    data = np.tile(data, -(-(1 << 27) // len(data))) if len(data) < 1 << 27 else data  # larger than the caches
    words = data[: len(data) // 8 * 8].view(np.uint64)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        words.sum()
        seconds.append(time.perf_counter() - started)
    return words.nbytes / min(seconds)


def device_bandwidth(device: str) -> float:
    """Return the bytes per second that a torch device moves, the best of twenty turns.

    A CPU sums 256 MB. A GPU copies 4 GB, or less if less is free, and both reads and writes count.
    """
    import torch

    if device == "cuda":
        source = torch.ones(min(1 << 32, torch.cuda.mem_get_info()[0] // 4) // 4, device=device)
        target, moved = torch.empty_like(source), 2 * source.nbytes
    else:
        source = torch.ones(1 << 26)
        moved = source.nbytes
    clock = Clock(device)
    for _ in range(20):
        target.copy_(source) if device == "cuda" else source.sum()
        clock.mark()
    return moved / min(clock.seconds())


def access_latency(size: int = 1 << 28, steps: int = 1 << 18) -> float:
    """Return the seconds per dependent random access, the best of five: a walk along a random ring of `size` bytes."""
    import numba

    lines = size // (4 * LINE)
    order = np.random.default_rng(0).permutation(lines).astype(np.uint32)
    ring = np.zeros((lines, LINE), dtype=np.uint32)
    ring[order, 0] = np.roll(order, -1)

    @numba.njit
    def follow(ring, place, steps):
        for _ in range(steps):
            place = ring[place, 0]
        return place

    place = follow(ring, np.uint32(0), 1)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        place = follow(ring, place, steps)
        seconds.append(time.perf_counter() - started)
    return min(seconds) / steps


def main(device: str) -> None:
    import torch

    from pipelines.machine import matmul_flops

    flops = matmul_flops(torch.bfloat16, 8192 if device == "cuda" else 512, device)
    print(json.dumps({"bytes_per_s": device_bandwidth(device), "flops": flops}))


if __name__ == "__main__":
    main(sys.argv[1])
