"""The machine that trains: its device, dtype, speed and memory."""

import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import torch

from lm.attention.backends import fastest
from lm.config import ModelConfig
from lm.warn import warn
from pipelines.cli.display import quantity, say
from pipelines.process_memory import peak_bytes
from pipelines.recipes.config import Device, Dtype, TrainConfig

# Dense operations per second of the matrix units in bfloat16 (float16 without bfloat16), from data sheets, by the names
# that devices report.
TABULATED = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100-PCIE": 112e12,
    "V100": 125e12,
    "T4": 65e12,
}
# Parts of a GPU, and variants with other numbers of cores or less power than the tabulated device.
VARIANTS = re.compile(r"\b(Laptop|Max-Q|MIG|Ti|SUPER|D)\b")

TENSOR_CORES = (7, 0)  # compute capability of the first GPUs with matrix units for float16

MOST_SECONDS = 0.1  # of one matrix product in a measurement

GPUS = ("cuda", "mps")  # in the order of preference
GPU_NAMES = {"cuda": "GPU", "mps": "Apple GPU"}

# bfloat16 must be this much faster than float32 to be worth its rounding.
WORTHWHILE = 1.3

# Parameters of mallopt(3), from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
NEVER = 2**31 - 1
# Values that glibc adapts to in a process that frees large blocks, and its default number of mapped blocks.
ADAPTED_TRIM, ADAPTED_MMAP, MMAP_MAX = 64 << 20, 32 << 20, 65536


@dataclass(frozen=True)
class Machine:
    """The device and dtype of a model; `why` is a line about how they were chosen."""

    device: torch.device
    dtype: torch.dtype
    why: str
    peak_flops: float | None = None
    """Tabulated dense operations per second for the dtype; None if unknown."""
    measured_flops: float | None = None
    """Operations per second of a large matrix product."""

    @property
    def device_name(self) -> Device:
        return cast(Device, self.device.type)

    @property
    def dtype_name(self) -> Dtype:
        return cast(Dtype, str(self.dtype).removeprefix("torch."))

    def utilisation(self, flops: float) -> dict[str, float]:
        """Return the shares of the peaks that `flops` operations per second reach (Chowdhery et al. 2023, appendix B).

        `mfu` is the share of the tabulated peak, `mfu_measured` that of a measured matrix product. Unknown peaks are
        left out.
        """
        peaks = {"mfu": self.peak_flops, "mfu_measured": self.measured_flops}
        return {name: round(flops / peak, 4) for name, peak in peaks.items() if peak}


def choose_machine(device: str = "auto", dtype: str = "auto", half: bool = False, needs: str = "") -> Machine:
    """Return the requested device and dtype; "auto" is a GPU if there is one, and bfloat16 if it is faster.

    `half`: whether "auto" may be float16 on a GPU with matrix units for it but no bfloat16 (Volta, Turing); training in
    float16 must scale the loss. `needs` names a feature that the caller needs and Apple GPUs ("mps") lack, if any.
    Raises ValueError for a GPU that is missing or lacks this feature. Warns if a CPU is slow in the requested dtype.
    """
    if device == "auto":
        device = next(kind for kind in (*GPUS, "cpu") if is_available(kind) and not (needs and kind == "mps"))
    if not is_available(device):
        raise ValueError(f"device is '{device}', but PyTorch sees no {GPU_NAMES[device]} here: give cpu or auto")
    if device == "mps" and needs:
        raise ValueError(f"device is 'mps', but this needs {needs}, which Apple GPUs lack: give cpu or auto")
    chosen = torch.device(device)
    if dtype != "auto":
        if chosen.type == "cpu" and dtype != "float32":
            _warn_if_slow(getattr(torch, dtype))
        return Machine(chosen, getattr(torch, dtype), f"{_describe(chosen)}, {dtype} as asked")
    if chosen.type in GPUS:
        best, why = _best_on_gpu(chosen, half)
        return Machine(chosen, best, f"{_describe(chosen)}, {why}")
    fast, plain = _core_flops(torch.bfloat16), _core_flops(torch.float32)
    best = torch.bfloat16 if fast > WORTHWHILE * plain else torch.float32
    name = str(best).removeprefix("torch.")
    why = f"{name} (measured {fast / 1e9:.0f} GFLOP/s in bfloat16, {plain / 1e9:.0f} in float32, a core)"
    return Machine(chosen, best, f"{_describe(chosen)}, {why}")


def with_peaks(machine: Machine) -> Machine:
    """Return `machine` with its tabulated and measured peaks."""
    on_gpu = machine.device.type == "cuda"
    name = torch.cuda.get_device_name(machine.device) if on_gpu else ""
    tabulated = tabulated_flops(name)
    if machine.dtype == torch.float32:
        tabulated = None  # tabulated float32 leaves out tensor cores, or means TF32
    measured = None
    try:
        settings = torch.get_num_threads(), torch.get_float32_matmul_precision()
        measured = measured_flops(machine.device, machine.dtype, *settings)
    except torch.OutOfMemoryError:
        say(f"{_describe(machine.device)} has too little free memory to measure its speed: no mfu_measured")
    if on_gpu:
        torch.cuda.empty_cache()  # training and other processes need the memory
    return replace(machine, peak_flops=tabulated, measured_flops=measured)


@cache
def measured_flops(device: torch.device, dtype: torch.dtype, threads: int, precision: str) -> float:
    """Return the operations per second of a large matrix product.

    A process measures it once per device, dtype, number of CPU threads and precision of float32 products (both torch's
    settings), because it takes half a second on a CPU.
    """
    if device.type == "cuda":
        return matmul_flops(dtype, 8192, device)
    # On a busy CPU one measurement in a dozen is far too low.
    return max(matmul_flops(dtype, 1024, device) for _ in range(3))


def tabulated_flops(name: str) -> float | None:
    """Return the entry of TABULATED for a device; None for other devices, whose names may contain an entry's."""
    if VARIANTS.search(name):
        return None
    return next((flops for part, flops in TABULATED.items() if re.search(rf"\b{re.escape(part)}\b", name)), None)


def matmul_flops(dtype: torch.dtype, size: int = 512, device: torch.device | str = "cpu") -> float:
    """Return the operations per second of products of square matrices: the best of 128, 256 ... `size` rows.

    Stops before a size whose product would take more than MOST_SECONDS: without instructions for the dtype, a large
    product takes seconds.
    """
    best, rows, generator = 0.0, 128, torch.Generator(device).manual_seed(0)
    while True:
        # Random, because a GPU multiplies constants with less power, and so faster than real data.
        a, b = (torch.randn(rows, rows, generator=generator, device=device).to(dtype) for _ in range(2))
        seconds = min(_product_seconds(a, b) for _ in range(5))
        best = max(best, 2 * rows**3 / seconds)
        rows *= 2
        if rows > size or 8 * seconds > MOST_SECONDS:
            return best


def _core_flops(dtype: torch.dtype) -> float:
    """Return `matmul_flops` of one CPU core.

    Cores that share a product wait for each other. On a busy machine float32 has been measured slower than emulated
    bfloat16.
    """
    with cores_per_operation(1):
        return matmul_flops(dtype)


def _warn_if_slow(dtype: torch.dtype) -> None:
    """Warn if matrix products in `dtype` are slower on this CPU than in float32."""
    fast, plain = _core_flops(dtype), _core_flops(torch.float32)
    if fast * WORTHWHILE < plain:
        warn(
            f"matrix products in {str(dtype).removeprefix('torch.')} take {plain / fast:,.1f} times as long as in "
            f"float32 on this CPU (measured {quantity(fast, 'FLOP/s')} against {quantity(plain, 'FLOP/s')}, a core): "
            "give float32 or auto"
        )


@contextmanager
def cores_per_operation(count: int) -> Iterator[None]:
    """Let `count` CPU cores share each torch operation within the context; 0 changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _product_seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    started = time.perf_counter()
    a @ b
    if a.device.type in GPUS:
        getattr(torch, a.device.type).synchronize()
    return time.perf_counter() - started


def precision_line(machine: Machine, model: ModelConfig, train: TrainConfig) -> str:
    """Return a line with the device, dtype, mixer and matmul precision of a training, and why."""
    mixer = "" if model.attention_only else f"mixer {model.mixer_names}; "
    if "attention" in model.mixer_pattern:
        mixer += f"attention {_attention_backend(machine, model, train)}; "
    products = {"highest": "in full", "high": "in TF32 or three of bfloat16", "medium": "in bfloat16"}
    exact = f"matmul precision {train.matmul_precision} (float32 products {products[train.matmul_precision]})"
    order = "; kernels that add up in a fixed order" if train.deterministic else ""
    return f"{machine.why}; {mixer}{exact}{order}"


def _attention_backend(machine: Machine, model: ModelConfig, train: TrainConfig) -> str:
    """Return the attention backend of a training, and why."""
    if model.attention != "auto":
        return f"{model.attention} as asked"
    length, device = model.context_length, machine.device.type
    chosen = fastest(device, machine.dtype, length, length, model.window, model.dropout > 0.0, train.compile)
    return (
        f"{chosen}, the fastest measured in this dtype at {length:,} positions"
        if device == "cpu"
        else f"{chosen}, fused"
    )


@contextmanager
def without_subnormals() -> Iterator[None]:
    """Round float32 numbers below 1.2e-38 to 0 on a CPU within the context.

    GELU and softmax of large activations produce many of them. On some processors each takes a hundred times as long,
    and a step twice as long. The mode belongs to a thread, and threads that it starts inherit it. torch keeps its
    threads, so enter the context before the first operation that several threads share.
    """
    before = bool(torch.tensor(1e-39) * 1.0 == 0.0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def precision(train: TrainConfig) -> Iterator[None]:
    """Apply `matmul_precision` and `deterministic` within the context.

    Raises ValueError if an operation has no deterministic kernel.
    """
    matmul, deterministic = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    settings: Any = torch.utils.deterministic  # its flag is a property, which type checkers do not see
    filled = settings.fill_uninitialized_memory
    torch.set_float32_matmul_precision(train.matmul_precision)
    if train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first product
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = False  # training writes memory before reading it
    try:
        yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        what = str(error).split(" does not have", 1)[0]
        raise ValueError(
            f"train.deterministic is true, but {what} has no kernel that adds up in a fixed order: give "
            "`model.attention='closed_form'`, or train without it"
        ) from error
    finally:
        torch.set_float32_matmul_precision(matmul)
        if train.deterministic:  # the call imports torch.compile, which takes 2 s of CPU time
            torch.use_deterministic_algorithms(deterministic)
        settings.fill_uninitialized_memory = filled


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for the next step; return whether it does.

    Every step allocates the same large tensors. glibc returns each to the system, which zeroes every page again: a
    sixteenth of the time of a small model's step on the CPU. Other C libraries (musl, macOS, Windows) are unchanged.
    """
    c = _glibc()
    return c is not None and bool(c.mallopt(M_MMAP_MAX, 0)) and bool(c.mallopt(M_TRIM_THRESHOLD, NEVER))


@contextmanager
def freed_memory_returned() -> Iterator[None]:
    """At the end, undo `keep_freed_memory` and return free memory to the system, because a notebook continues."""
    try:
        yield
    finally:
        if c := _glibc():
            c.mallopt(M_MMAP_MAX, MMAP_MAX)
            c.mallopt(M_MMAP_THRESHOLD, ADAPTED_MMAP)
            c.mallopt(M_TRIM_THRESHOLD, ADAPTED_TRIM)
            c.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        c = ctypes.CDLL(None)
        return c if hasattr(c, "mallopt") and hasattr(c, "malloc_trim") else None
    except OSError:
        return None


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory of the GPU if `device` is one, otherwise the peak resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_bytes()


def _best_on_gpu(device: torch.device, half: bool) -> tuple[torch.dtype, str]:
    """Return the dtype for "auto", and why."""
    if device.type == "mps":
        best = torch.bfloat16 if _multiplies(device, torch.bfloat16) else torch.float32
        return best, str(best).removeprefix("torch.")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "bfloat16"
    if half and torch.cuda.get_device_capability(device) >= TENSOR_CORES:
        return torch.float16, "float16 with a scaled loss, since it has no bfloat16"
    return torch.float32, "float32, since it has no bfloat16"


def is_available(kind: str) -> bool:
    """Return whether PyTorch computes on devices of this kind here; "auto" always does."""
    if kind == "mps":
        return torch.backends.mps.is_available()
    return kind != "cuda" or torch.cuda.is_available()


def _multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the device multiplies matrices of this dtype."""
    try:
        ones = torch.ones(2, 2, dtype=dtype, device=device)
        return bool((ones @ ones).float().sum() == 8)
    except (RuntimeError, TypeError):  # torch raises both for dtypes that a device lacks
        return False


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU"
    return f"CPU, {torch.get_num_threads()} of {os.cpu_count()} cores"
