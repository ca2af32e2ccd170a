"""Write the tables of docs/what-fits.md: `python docs/what_fits.py`. Memory and FLOPs are those of `bytelm params`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm.config import ModelConfig
from lm.presets import preset
from pipelines.recipes.recipe import load_recipe, recipe_names
from pipelines.training.model_costs import model_costs

PAGE = Path(__file__).with_name("what-fits.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "pretrain"
BEGIN, END = "<!-- begin: written by python docs/what_fits.py -->", "<!-- end -->"
ENTRIES = 8192
OTHER_ENTRIES = {
    "bert-base": 30_522,
    "bytes-small": 256,
    "bytes-tiny": 256,
    "gpt2-124m": 50_257,
    "t5-small": 32_128,
    "transformer-base": 37_000,
}
GPU_TOKENS = {"gpt2": 567_000, "bert-base": 730_000}  # tokens/s of a preset on one H200 (docs/gpu-step.md)
BATCH = 16  # sequences of a micro-batch, where the recipe leaves it to the device
SIZES = {128: 2, 256: 4, 384: 6, 512: 8, 768: 12, 1024: 16}  # layers by width
BATCHES = (1, 16, 64)
NARROW = 384  # narrower models are slower, because each operation has a fixed cost
MACHINES = ("2 cores, float32", "2 cores, bfloat16", "one H200 (estimate)")
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022


def measured_rate(dtype: str) -> float:
    """Return the FLOP/s at which a GPT of 14M parameters trained on two cores."""
    results = json.loads((RESULTS / f"cpu-{dtype}.json").read_text(encoding="utf-8"))
    (model,) = (model for model in results["models"] if model["model"] == "gpt2")
    tokens = max(row["tokens_per_s"] for row in model["rows"] if row["peer"] == "bytelm")
    return float(tokens * model["flops_per_token"])


def speeds(model: ModelConfig, costs: Any) -> list[float | None]:
    """Return the tokens/s on each of MACHINES; None where nothing like it was measured."""
    flops, cpu = costs["flops_per_token"], [measured_rate("float32"), measured_rate("bfloat16")]
    if model.width < NARROW:
        cpu = [min(rate, small_rate(model.causal)) for rate in cpu]
    name = "gpt2" if model.causal else "bert-base"
    published = preset(name)
    gpu = GPU_TOKENS[name] * model_costs(published, "bfloat16", "adamw")["flops_per_token"]
    return [*(rate / flops for rate in cpu), gpu / flops if model.width >= published.width else None]


def small_rate(causal: bool) -> float:
    """Return the FLOP/s of the GPT or BERT of an earlier demo, with ENTRIES entries."""
    name, tokens = ("gpt-tiny", 16_317) if causal else ("bert-tiny", 22_776)  # docs/pictures/demo.svg in c2e6c94b
    model = replace(load_recipe(name).model, vocab_size=ENTRIES)
    return tokens * model_costs(model, "bfloat16", "muon")["flops_per_token"]


def memory(costs: Any, batch: int) -> float:
    """Return the bytes of training with micro-batches of `batch` sequences."""
    sizes = costs["training_bytes"]
    return float(sum(sizes.values()) + (batch - 1) * sizes["activations"])


def recipes_table() -> list[tuple[str, ...]]:
    """Return the table of recipes."""
    rows = [("recipe", "parameters", "micro-batch", "memory", "tokens", *MACHINES)]
    for name in recipe_names():
        recipe = load_recipe(name)
        model = replace(recipe.model, vocab_size=OTHER_ENTRIES.get(name, ENTRIES))
        costs = model_costs(model, "bfloat16", recipe.train.optimizer)
        batch, tokens = recipe.train.micro_batch or BATCH, recipe.train.tokens
        times = ["-" if speed is None else _time(tokens / speed) for speed in speeds(model, costs)]
        total = costs["parameters"]["total"]
        rows.append((f"`{name}`", _number(total), f"{batch}", _bytes(memory(costs, batch)), _number(tokens), *times))
    return rows


def sizes_table() -> list[tuple[str, ...]]:
    """Return the table of widths and batches."""
    batches = [f"memory, {batch}" for batch in BATCHES]
    rows = [("width", "layers", "parameters", *batches, *(f"tokens/s, {machine}" for machine in MACHINES), "tokens")]
    for width, layers in SIZES.items():
        model = ModelConfig(vocab_size=ENTRIES, layers=layers, width=width, heads=width // 64)
        costs = model_costs(model, "bfloat16", "adamw")
        total = costs["parameters"]["total"]
        sizes = [_bytes(memory(costs, batch)) for batch in BATCHES]
        fast = ["-" if speed is None else _number(speed) for speed in speeds(model, costs)]
        rows.append((f"{width}", f"{layers}", _number(total), *sizes, *fast, _number(TOKENS_PER_PARAMETER * total)))
    return rows


def tables() -> str:
    """Return both tables as Markdown."""
    titled = {"By recipe": recipes_table(), "By width and batch": sizes_table()}
    return "\n\n".join(f"## {title}\n\n{_markdown(rows)}" for title, rows in titled.items())


def _markdown(rows: list[tuple[str, ...]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _number(value: float) -> str:
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _bytes(value: float) -> str:
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def _time(seconds: float) -> str:
    for unit, factor in (("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"


def page(text: str) -> str:
    """Return the page `text` with its tables replaced."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(tables())
