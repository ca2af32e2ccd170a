"""What pays in a small decoder: variants of one recipe, trained on the same tokens and compared in bits per byte.

    python -m benchmarks.recipes --text FILE... [--tokens 1M] [--variants NAME...] [--seeds 1]

writes benchmarks/results/recipes/recipes.json, adding to what is there, and recipes.md. What was made of it is told in
benchmarks/recipes.md.
"""

import json
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from lm.config import ModelConfig
from lm.counting import count_parameters, model_without_memory
from pipelines.arguments import parse
from pipelines.build_dataset import build_dataset
from pipelines.dataset import TokenDataset
from pipelines.pretrain import pretrain
from pipelines.recipe import Recipe
from pipelines.train_tokenizer import train_tokenizer
from pipelines.training.config import TrainConfig
from pipelines.training.run import Run

RESULTS = Path(__file__).with_name("results") / "recipes"
SHAPE = {"context_length": 256, "layers": 4, "width": 192, "heads": 3, "bias": False}
GPT2 = {"positions": "learned", "activation": "gelu_tanh", "bias": True}
MODERN = {"norm": "rmsnorm", "activation": "relu2", "qk_norm": True, "tied_head": False, "zero_projections": True}
TRAIN = {"batch_tokens": 2048, "micro_batch": 8, "weight_decay": 0.1, "beta2": 0.99}
MUON = {"optimizer": "muon", "schedule": "trapezoid", "min_lr_ratio": 0.0, "lr": 2e-3, "muon_lr": 8e-3}
# Each variant: fields of the model, and of the training, that differ from SHAPE and TRAIN.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt2, lr 1e-3": (GPT2, {"lr": 1e-3}),
    "gpt2, lr 2e-3": (GPT2, {"lr": 2e-3}),
    "gpt2, lr 4e-3": (GPT2, {"lr": 4e-3}),
    "gpt2, muon": (GPT2, MUON),
    "modern, adamw": (MODERN, {"lr": 2e-3}),
    "modern": (MODERN, MUON),
    "modern, muon_lr 4e-3": (MODERN, MUON | {"muon_lr": 4e-3}),
    "modern, muon_lr 16e-3": (MODERN, MUON | {"muon_lr": 16e-3}),
    "modern, lr 4e-3": (MODERN, MUON | {"lr": 4e-3}),
    "modern, projections drawn": (MODERN | {"zero_projections": False}, MUON),
    "modern, tied head": (MODERN | {"tied_head": True}, MUON),
    "modern, no qk_norm": (MODERN | {"qk_norm": False}, MUON),
    "modern, swiglu": (MODERN | {"activation": "swiglu"}, MUON),
    "modern, soft cap 15": (MODERN | {"soft_cap": 15.0}, MUON),
    "modern, embedding skips": (MODERN | {"embedding_skips": True}, MUON),
    "modern, value embeddings": (MODERN | {"value_embeddings": 1}, MUON),
    "modern, skips and value embeddings": (MODERN | {"embedding_skips": True, "value_embeddings": 1}, MUON),
    "modern, cosine": (MODERN, MUON | {"schedule": "cosine"}),
}


@dataclass(frozen=True)
class Settings:
    """What every variant has in common."""

    data: Path
    tokens: int
    device: str


def recipes(
    *,
    text: Sequence[str],
    tokens: int = 1_000_000,
    variants: Annotated[Sequence[str], tyro.conf.arg(metavar="NAME")] = tuple(VARIANTS),
    seeds: int = 1,
    folder: Path | None = None,
) -> None:
    """Train the variants and compare them.

    Args:
        text: Corpora to train on; 5 % of their documents are for validation.
        tokens: Tokens that each variant is trained on.
        variants: Which to train; by default all.
        seeds: How many times each is trained, with seeds 0, 1, ...
        folder: Where the tokenizer and the dataset are made and found again; by default a temporary folder.
    """
    with tempfile.TemporaryDirectory() as temporary:
        where = folder or Path(temporary)
        if not (where / "tokenizer").exists():
            train_tokenizer(list(text), vocab_size=8192, out=where / "tokenizer")
        if not (where / "data").exists():
            build_dataset(list(text), tokenizer=where / "tokenizer", context_length=256, out=where / "data")
        settings = Settings(where / "data", tokens, "cuda" if torch.cuda.is_available() else "cpu")
        for name in variants:
            for seed in range(seeds):
                _record(name, seed, _trained(name, seed, settings), settings)


def _trained(name: str, seed: int, settings: Settings) -> dict[str, Any]:
    """Validation bits per byte and seconds of one variant."""
    model, train = VARIANTS[name]
    recipe = Recipe(
        model=ModelConfig(**SHAPE | model),
        train=TrainConfig(
            **TRAIN
            | train
            | {"tokens": settings.tokens, "warmup_tokens": settings.tokens // 20, "seed": seed, "dtype": "bfloat16"},
            validate_every_tokens=max(1, settings.tokens // 4),
            validation_tokens=262_144,
            checkpoint_every_tokens=10 * settings.tokens,
        ),
    )
    dataset = TokenDataset(settings.data)
    held_out = dataset.info["splits"]["validation"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if pretrain(recipe, data=settings.data, out=out):
            raise SystemExit("interrupted: the same command without the variants that are there goes on")
        lines = [line for line in Run(out).metrics() if line["split"] == "validation"]
    per_byte = held_out["tokens"] / held_out["bytes"] / math.log(2)
    sized = replace(recipe.model, vocab_size=dataset.vocab_size)
    return {
        "bits_per_byte": lines[-1]["loss"] * per_byte,
        "curve": [(line["tokens"], line["loss"] * per_byte) for line in lines],
        "seconds": lines[-1]["time_s"],
        "parameters": count_parameters(model_without_memory(sized)),
    }


def _record(name: str, seed: int, numbers: dict[str, Any], settings: Settings) -> None:
    """Add a training to recipes.json, in place of an earlier one of the same variant, seed and tokens."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "recipes.json"
    there = json.loads(path.read_text()) if path.exists() else []
    key = {"variant": name, "seed": seed, "tokens": settings.tokens}
    kept = [row for row in there if any(row[field] != value for field, value in key.items())]
    device = torch.cuda.get_device_name() if settings.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    rows = [*kept, {**key, **numbers, "device": device, "cores": os.cpu_count(), "torch": torch.__version__}]
    path.write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "recipes.md").write_text(markdown(rows))


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["# What pays in a small decoder", "", "`python -m benchmarks.recipes`; lower is better.", ""]
    for tokens in sorted({row["tokens"] for row in rows}):
        lines += [f"## {tokens:,} tokens", ""]
        lines += ["| variant | bits per byte | seeds | parameters | seconds | device |", "|---|---|---|---|---|---|"]
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["tokens"] == tokens:
                groups.setdefault(row["variant"], []).append(row)
        median = {name: statistics.median(row["bits_per_byte"] for row in group) for name, group in groups.items()}
        for name in sorted(groups, key=median.__getitem__):
            group = groups[name]
            seconds = statistics.median(row["seconds"] for row in group)
            lines.append(
                f"| {name} | {median[name]:.4f} | {len(group)} | {group[0]['parameters']:,} | {seconds:.0f} | "
                f"{group[0]['device']} |"
            )
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    parse(recipes, sys.argv[1:], "benchmarks.recipes")
