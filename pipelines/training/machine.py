"""What the machine at hand is good at: the device, and the dtype of activations and matrix products."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from lm.attention.backends import fastest
from lm.config import ModelConfig
from pipelines.training.config import TrainConfig

# Dense operations a second of the matrix units in bfloat16 (float16 where there is no bfloat16), by the makers' data
# sheets, under the names that the devices give themselves.
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
# Parts of a GPU, and those with more or fewer cores, or less power, than what their names begin with.
OTHERS = re.compile(r"\b(Laptop|Max-Q|MIG|Ti|SUPER|D)\b")

TENSOR_CORES = (7, 0)  # the compute capability from which GPUs have matrix units for float16

PATIENCE = 0.1  # seconds of one matrix product that a measurement is worth

# bf16 must be this much faster than float32 before its rounding is worth it.
WORTHWHILE = 1.3


@dataclass(frozen=True)
class Machine:
    """Where a model runs and in which dtype; `why` says how that was chosen, in a line."""

    device: torch.device
    dtype: torch.dtype
    why: str
    peak_flops: float | None = None
    """Floating-point operations a second that its maker tabulates, dense, for the dtype; None where not known."""
    measured_flops: float | None = None
    """What a large matrix product reaches on it."""

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def choose_machine(device: str = "auto", dtype: str = "auto", half: bool = False) -> Machine:
    """The device and dtype asked for; for "auto", a GPU if there is one, and bfloat16 where it is faster.

    `half`: whether "auto" may be float16, on a GPU that has matrix units for it and no bfloat16 (Volta, Turing); who
    trains in it must scale the loss. Raises ValueError when "cuda" is asked for where there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but PyTorch sees no GPU here: give cpu or auto")
    chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    if dtype != "auto":
        return Machine(chosen, getattr(torch, dtype), f"{_describe(chosen)}, {dtype} as asked")
    if chosen.type == "cuda":
        best, why = _best_on_gpu(chosen, half)
        return Machine(chosen, best, f"{_describe(chosen)}, {why}")
    fast, plain = _core_flops(torch.bfloat16), _core_flops(torch.float32)
    best = torch.bfloat16 if fast > WORTHWHILE * plain else torch.float32
    name = str(best).removeprefix("torch.")
    why = f"{name} (measured {fast / 1e9:.0f} GFLOP/s in bfloat16, {plain / 1e9:.0f} in float32, a core)"
    return Machine(chosen, best, f"{_describe(chosen)}, {why}")


def with_peaks(machine: Machine) -> Machine:
    """`machine` with what its matrix products are said and seen to reach: some milliseconds of work."""
    on_gpu = machine.device.type == "cuda"
    name = torch.cuda.get_device_name(machine.device) if on_gpu else ""
    tabulated = tabulated_flops(name)
    if machine.dtype == torch.float32:
        tabulated = None  # what tables say of it leaves out tensor cores, or means tf32
    # On a busy CPU one measurement in a dozen is a small part of what it reaches.
    tries, size = (1, 8192) if on_gpu else (3, 1024)
    measured = max(matmul_flops(machine.dtype, size, machine.device) for _ in range(tries))
    return replace(machine, peak_flops=tabulated, measured_flops=measured)


def tabulated_flops(name: str) -> float | None:
    """What TABULATED has for the device of that name; None for others, whose names may hold one of its."""
    if OTHERS.search(name):
        return None
    return next((flops for part, flops in TABULATED.items() if re.search(rf"\b{re.escape(part)}\b", name)), None)


def matmul_flops(dtype: torch.dtype, size: int = 512, device: torch.device | str = "cpu") -> float:
    """Floating-point operations a second of products of square matrices: the best of some of 128, 256 ... `size` rows.

    Where a processor has no instructions for a dtype, a large product takes seconds; so sizes stop before one that
    would take more than PATIENCE.
    """
    best, rows, generator = 0.0, 128, torch.Generator(device).manual_seed(0)
    while True:
        # Random, since a GPU multiplies constants in less power and so faster than anything real.
        a, b = (torch.randn(rows, rows, generator=generator, device=device).to(dtype) for _ in range(2))
        seconds = min(_product_seconds(a, b) for _ in range(5))
        best = max(best, 2 * rows**3 / seconds)
        rows *= 2
        if rows > size or 8 * seconds > PATIENCE:
            return best


def _core_flops(dtype: torch.dtype) -> float:
    """`matmul_flops` of one core of the CPU. Several that share a product wait for each other, on a busy machine so
    long that float32 has been measured slower than a bfloat16 that is emulated."""
    with cores_a_product(1):
        return matmul_flops(dtype)


@contextmanager
def cores_a_product(count: int) -> Iterator[None]:
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
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - started


def precision_line(machine: Machine, model: ModelConfig, train: TrainConfig) -> str:
    """Device, dtype, attention and matmul precision of a training, each with why it is that."""
    attention = f"{model.attention} as asked"
    if model.attention == "auto":
        length = model.context_length
        chosen = fastest(
            machine.device.type, machine.dtype, length, length, model.window, model.dropout > 0.0, train.compile
        )
        why = f"the fastest measured for that at {length:,} positions" if machine.device.type == "cpu" else "fused"
        attention = f"{chosen}, {why}"
    products = {"highest": "in full", "high": "in TF32 or three of bfloat16", "medium": "in bfloat16"}
    exact = f"matmul precision {train.matmul_precision} (float32 products {products[train.matmul_precision]})"
    order = "; kernels that add up in a fixed order" if train.deterministic else ""
    return f"{machine.why}; attention {attention}; {exact}{order}"


@contextmanager
def without_subnormals() -> Iterator[None]:
    """For a time, numbers of float32 below 1.2e-38 are 0 on a CPU. What large activations leave of GELU and softmax is
    full of them, and some processors take a hundred times as long for each: a step became twice as long.

    It is a mode of a thread, which those have that it starts: so enter it before the first operation that several
    threads share, from which torch's own remain.
    """
    before = bool(torch.tensor(1e-39) * 1.0 == 0.0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def kernels(train: TrainConfig) -> Iterator[None]:
    """For a time, products of float32 matrices at `matmul_precision` of torch.set_float32_matmul_precision, and where
    `deterministic` only kernels that add up in a fixed order; ValueError where torch has none for an operation."""
    precision, deterministic = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.set_float32_matmul_precision(train.matmul_precision)
    if train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first product
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # all that is read has been written
    try:
        yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        what = str(error).split(" does not have", 1)[0]
        raise ValueError(
            f"train.deterministic is true, but {what} has no kernel that adds up in a fixed order: give "
            "--model.attention closed_form, or train without it"
        ) from error
    finally:
        torch.set_float32_matmul_precision(precision)
        if train.deterministic:  # the call imports torch.compile, which takes 2 s of CPU time
            torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def _best_on_gpu(device: torch.device, half: bool) -> tuple[torch.dtype, str]:
    """The dtype for "auto" and why."""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16, "bfloat16"
    if half and torch.cuda.get_device_capability(device) >= TENSOR_CORES:
        return torch.float16, "float16 with a scaled loss, since it has no bfloat16"
    return torch.float32, "float32, since it has no bfloat16"


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} of {os.cpu_count()} cores"
