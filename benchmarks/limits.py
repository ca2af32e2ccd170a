"""What the machine allows: the time in which memory could be read, and in which it answers at a random place."""

import time
from pathlib import Path

import numpy as np

LINE = 16  # uint32 in a cache line


def read_bandwidth(path: Path) -> float:
    """Bytes per second at which one thread sums a file that lies in memory: the best of five."""
    data = np.fromfile(path, dtype=np.uint8)
    data = np.tile(data, -(-(1 << 27) // len(data))) if len(data) < 1 << 27 else data  # caches are smaller than that
    words = data[: len(data) // 8 * 8].view(np.uint64)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        words.sum()
        seconds.append(time.perf_counter() - started)
    return words.nbytes / min(seconds)


def device_bandwidth(device: str) -> float:
    """Bytes per second at which all threads of a torch device together add up 256 MB: the best of twenty."""
    import torch

    block = torch.ones(1 << 26, device=device)
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        block.sum().item()
        seconds.append(time.perf_counter() - started)
    return block.nbytes / min(seconds)


def access_latency(size: int = 1 << 28, steps: int = 1 << 18) -> float:
    """Seconds until memory answers, where each answer says where to ask next: a random ring through `size` bytes.

    The best of five.
    """
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
