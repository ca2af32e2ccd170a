"""Estimate the time and memory of a long training on many GPUs: the tables of docs/scale.md.

`python docs/scale.py` writes the tables into that page. Nothing here is measured. The constants below are
a published measurement, data sheets and assumptions. Everything else follows from them and from what the model costs,
as `bytelm params` counts it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from lm.config import ModelConfig
from lm.config_costs import activation_bytes, flops_per_token, parameters, training_bytes
from lm.losses import CHUNK_ELEMENTS, FUSED_CHUNK
from lm.optim.muon import ROUNDS
from lm.optim.optimizer_settings import OptimizerKind
from lm.presets import preset
from pipelines.machine import TABULATED

PAGE = Path(__file__).with_name("scale.md")
BEGIN, END = "<!-- begin: written by python docs/scale.py -->", "<!-- end -->"

MODEL, TOKENS, BATCH_TOKENS = "gpt3-xl", 100e9, 2**20
MEASURED = ("gpt2", 493_000, "H100")  # model, tokens/s (docs/gpu-step.md), GPU
PEAK = TABULATED["H100"]  # H200 has the same
NVLINK = 450e9  # bytes/s per direction and GPU (NVLink 4, data sheet)
NIC = 50e9  # bytes/s per direction and network card (400 Gb/s)
HBM = 3.35e12  # bytes/s of an H100 (data sheet); H200: 4.8e12
GPU_BYTES = {"H100": 80e9, "H200": 141e9}

# Assumed shares:
LINK_SHARE = 0.8  # of a link's bandwidth, reached by collectives
USABLE_MEMORY = 0.9  # of a GPU's memory; the driver, NCCL and fragmentation take the rest
MUON_SHARE = 0.4  # of peak FLOP/s, reached by batched bfloat16 products of squares of 2,048 and more
OPTIMIZER_SHARE = 0.7  # of the memory bandwidth, reached by the fused optimizer
BF16, FLOAT32 = 2, 4

Kind = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class Cluster:
    """GPUs in nodes of eight, with `cards` network cards per node."""

    gpus: int
    cards: int = 8

    @property
    def bandwidth(self) -> float:
        """Bytes/s of a ring through all GPUs, limited by its narrowest link. Parallel rings use all cards of a node,
        so their bandwidths add up."""
        links = [NVLINK] if self.gpus <= 8 else [NVLINK, self.cards * NIC]
        return LINK_SHARE * min(links)

    @property
    def name(self) -> str:
        if self.gpus <= 8:
            return f"{self.gpus} GPUs, NVLink"
        return f"{self.gpus} GPUs, {self.cards} x 400 Gb/s per node"


CLUSTERS = (Cluster(8), Cluster(64), Cluster(64, cards=1))


class Shape:
    """The parameter counts, FLOPs and bytes of one model."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        counted = list(parameters(config))
        in_blocks = [parameter.shape for parameter in counted if parameter.in_block]
        self.hidden_matrices = [shape for shape in in_blocks if len(shape) == 2]
        self.parameters = sum(math.prod(parameter.shape) for parameter in counted)
        self.in_blocks = sum(map(math.prod, in_blocks))
        self.block = self.in_blocks // config.layers
        self.outside = self.parameters - self.in_blocks
        self.hidden = sum(rows * columns for rows, columns in self.hidden_matrices)
        self.flops_per_token = flops_per_token(config)
        self.activations = activation_bytes(config, "bfloat16")
        self.state_bytes = {kind: training_bytes(config, kind) for kind in get_args(OptimizerKind)}
        self.output = self.config.vocab_size * self.config.width

    def gathered_bytes(self, kind: Kind) -> float:
        """Return the bytes of gathered weights and gradients on each GPU.

        DDP: bfloat16 copies of the blocks' weights, which autograd keeps. FSDP: the weights of two blocks, and one
        block's gradient with its float32 copy; plus float32 weights and gradients outside the blocks.
        """
        if kind == "ddp":
            return BF16 * self.in_blocks
        return (2 * BF16 + BF16 + FLOAT32) * self.block + 2 * FLOAT32 * self.outside

    def head_bytes(self) -> float:
        """Return the bytes of the compiled, chunked loss: logits in bfloat16, the output matrix in bfloat16, and its
        float32 gradient."""
        return BF16 * FUSED_CHUNK * CHUNK_ELEMENTS["cuda"] + (BF16 + FLOAT32) * self.output

    def memory(self, kind: Kind, optimizer: OptimizerKind, gpus: int) -> dict[str, float]:
        """Return the bytes on each GPU by purpose, without activations."""
        shared = gpus if kind == "fsdp" else 1
        state = {name: size / shared for name, size in self.state_bytes[optimizer].items()}
        return {**state, "gathered": self.gathered_bytes(kind), "head": self.head_bytes()}

    def sequences(self, kind: Kind, optimizer: OptimizerKind, cluster: Cluster, gpu: str) -> int:
        """Return the largest micro-batch in sequences that fits into memory and divides the GPU's share of the batch,
        or 0 if none fits."""
        room = USABLE_MEMORY * GPU_BYTES[gpu] - sum(self.memory(kind, optimizer, cluster.gpus).values())
        share = round(BATCH_TOKENS / self.config.context_length / cluster.gpus)
        fitting = [n for n in range(1, share + 1) if share % n == 0 and n * self.activations <= room]
        return max(fitting, default=0)

    def bytes_each_step(self, kind: Kind, gpus: int, micro_batches: int) -> float:
        """Return the bytes of gradients and weights that each GPU sends (and receives) per step.

        A ring all-gather or reduce-scatter sends (gpus - 1) / gpus of the data.
        """
        ring = (gpus - 1) / gpus
        if kind == "ddp":
            return 2 * ring * FLOAT32 * self.parameters
        weights = 2 * BF16 * self.in_blocks + FLOAT32 * self.outside
        return micro_batches * ring * (weights + FLOAT32 * self.parameters)

    def muon_bytes(self, kind: Kind, gpus: int) -> float:
        """Return the bytes that each GPU sends per step to share Muon's work."""
        ring = (gpus - 1) / gpus
        return ring * (BF16 * self.hidden if kind == "ddp" else (FLOAT32 + BF16) * self.hidden / gpus)

    def muon_flops(self) -> float:
        """Return the FLOPs of one step's orthogonalisation: X X^T, its square, and their polynomial times X, in each
        round."""
        sides = [(min(shape), max(shape)) for shape in self.hidden_matrices]
        return ROUNDS * sum(4 * narrow**2 * wide + 2 * narrow**3 for narrow, wide in sides)


@dataclass(frozen=True)
class Step:
    """Seconds of one optimizer step."""

    compute: float
    exposed: float
    """Communication that does not overlap with computation."""
    communication: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.compute + self.exposed + self.optimizer


def mfu_measured() -> float:
    """Return the model FLOPs utilisation of the measured run, as a fraction."""
    name, tokens_per_s, gpu = MEASURED
    return tokens_per_s * flops_per_token(preset(name)) / TABULATED[gpu]


def step(shape: Shape, kind: Kind, optimizer: OptimizerKind, cluster: Cluster, mfu: float, sequences: int) -> Step:
    """Return the times of one step of `BATCH_TOKENS`, with micro-batches of `sequences` on each GPU.

    DDP's gradients overlap with the backward pass of the last micro-batch, two thirds of its time. FSDP's weights and
    gradients overlap with all computation. Muon's matrices overlap with nothing.
    """
    tokens = BATCH_TOKENS / cluster.gpus
    micro_batches = max(1, round(tokens / shape.config.context_length / sequences))
    compute = tokens * shape.flops_per_token / (mfu * PEAK)
    transfer = shape.bytes_each_step(kind, cluster.gpus, micro_batches) / cluster.bandwidth
    hidden = compute / micro_batches * 2 / 3 if kind == "ddp" else compute
    # Reads weights, gradients and two moments, writes all but gradients.
    updated = shape.parameters / (cluster.gpus if kind == "fsdp" else 1)
    update = 7 * FLOAT32 * updated / (OPTIMIZER_SHARE * HBM)
    muon = 0.0
    if optimizer == "muon":
        update += shape.muon_flops() / cluster.gpus / (MUON_SHARE * PEAK)
        muon = shape.muon_bytes(kind, cluster.gpus) / cluster.bandwidth
    return Step(compute, max(0.0, transfer - hidden) + muon, transfer + muon, update)


def tables() -> str:
    """Return all tables as Markdown."""
    shape = Shape(preset(MODEL))
    mfu = mfu_measured()
    parts = [
        _numbers(shape, mfu),
        _memory_table(shape),
        _step_table(shape, mfu),
        _days_table(shape, mfu),
    ]
    return "\n\n".join(parts)


def _numbers(shape: Shape, mfu: float) -> str:
    name, tokens_per_s, gpu = MEASURED
    return _table(
        ("", "", "formula"),
        [
            ("parameters", f"{shape.parameters:,}", f"`bytelm params {MODEL}`"),
            ("parameters in blocks", f"{shape.in_blocks:,}", f"{shape.config.layers} blocks of {shape.block:,}"),
            ("parameters trained by Muon", f"{shape.hidden:,}", "the matrices of the blocks"),
            ("FLOPs per token", f"{shape.flops_per_token / 1e9:.2f} G", f"`bytelm params {MODEL}`"),
            ("total FLOPs", f"{shape.flops_per_token * TOKENS:.3g}", f"times {TOKENS:.0e} tokens"),
            ("steps", f"{TOKENS / BATCH_TOKENS:,.0f}", f"of {BATCH_TOKENS:,} tokens"),
            ("MFU", f"{mfu:.1%}", f"{tokens_per_s:,} tokens/s x FLOPs per token of {name} / peak of {gpu}"),
            ("Muon's FLOPs per step", f"{shape.muon_flops():.3g}", f"{ROUNDS} rounds of 4 m²n + 2 m³, m <= n"),
            (
                "checkpoint",
                f"{_gb(shape.state_bytes['adamw']['weights'] + shape.state_bytes['adamw']['moments'])} (AdamW), "
                f"{_gb(shape.state_bytes['muon']['weights'] + shape.state_bytes['muon']['moments'])} (Muon)",
                "weights and moments",
            ),
        ],
    )


def _memory_table(shape: Shape) -> str:
    rows = []
    for kind, optimizer, gpus in _cases((8, 64)):
        memory = shape.memory(kind, optimizer, gpus)
        fits = [str(shape.sequences(kind, optimizer, Cluster(gpus), gpu)) for gpu in GPU_BYTES]
        rows.append((f"{kind}, {optimizer}", str(gpus), *map(_gb, (*memory.values(), sum(memory.values()))), *fits))
    head = ("", "GPUs", "weights", "gradients", "moments", "gathered", "head", "total")
    title = f"Memory per GPU. Each sequence of a micro-batch adds {_gb(shape.activations)} of activations."
    return f"{title}\n\n" + _table((*head, *(f"micro-batch on {gpu}" for gpu in GPU_BYTES)), rows)


def _step_table(shape: Shape, mfu: float) -> str:
    rows = []
    for cluster in CLUSTERS:
        for kind, optimizer in (("ddp", "adamw"), ("ddp", "muon"), ("fsdp", "adamw"), ("fsdp", "muon")):
            sequences = shape.sequences(kind, optimizer, cluster, "H100")
            if not sequences:
                continue
            one = step(shape, kind, optimizer, cluster, mfu, sequences)
            micro = round(BATCH_TOKENS / cluster.gpus / shape.config.context_length / sequences)
            sent = shape.bytes_each_step(kind, cluster.gpus, micro)
            sent += shape.muon_bytes(kind, cluster.gpus) if optimizer == "muon" else 0.0
            times = (one.compute, one.communication, one.exposed, one.optimizer, one.total)
            days = f"{TOKENS / BATCH_TOKENS * one.total / 86400:.2f}"
            what = cluster.name, f"{kind}, {optimizer}", f"{micro} x {sequences}", _gb(sent)
            rows.append((*what, *map(_ms, times), days))
    head = (
        "",
        "",
        "micro-batches",
        "sent per GPU",
        "compute",
        "communication",
        "exposed communication",
        "optimizer",
        "step",
        "days",
    )
    return f"Time per step at an MFU of {mfu:.1%} on H100 (80 GB), and total days.\n\n" + _table(head, rows)


def _days_table(shape: Shape, measured: float) -> str:
    rows = []
    for mfu in (0.30, measured, 0.50):
        days = []
        for cluster in CLUSTERS:
            sequences = shape.sequences("ddp", "muon", cluster, "H100")
            seconds = step(shape, "ddp", "muon", cluster, mfu, sequences).total * TOKENS / BATCH_TOKENS
            days.append(f"{seconds / 86400:.2f} ({seconds * cluster.gpus / 3600:,.0f} GPU-hours)")
        rows.append((f"{mfu:.1%}", *days))
    return "Total days by MFU (ddp, muon).\n\n" + _table(("MFU", *(cluster.name for cluster in CLUSTERS)), rows)


def _cases(sizes: Iterable[int]) -> list[tuple[Kind, OptimizerKind, int]]:
    fixed: list[tuple[Kind, OptimizerKind, int]] = [("ddp", "adamw", 8), ("ddp", "muon", 8)]
    return fixed + [("fsdp", optimizer, gpus) for gpus in sizes for optimizer in ("adamw", "muon")]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms"


def page(text: str) -> str:
    """Return the page `text` with its tables replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(tables())
