"""Write the table of docs/gpu-step.md: the estimated time of a GPT-2 124M training step on one H200, by part.

`python docs/gpu_step.py` updates the page. Nothing here is measured on a GPU. FLOPs and bytes follow from the model;
the constants below are assumptions.
"""

from dataclasses import dataclass
from pathlib import Path

from lm.config import ModelConfig
from lm.presets import preset

PAGE = Path(__file__).with_name("gpu-step.md")
BEGIN, END = "<!-- begin: written by python docs/gpu_step.py -->", "<!-- end -->"
TOKENS = 64 * 1024  # per micro-batch

# Assumed rates of one H200 in bfloat16, in FLOP/s, for the shapes of this model. The data sheet says 989e12.
# NARROW_RATE is for width x width products, which have too few tiles for 132 streaming multiprocessors.
BLOCK_RATE, NARROW_RATE, HEAD_RATE = 620e12, 500e12, 660e12
FLOAT8_RATE = 1_150e12
ATTENTION_RATE = {64: 205e12, 128: 285e12}  # by head width; FLOPs of the causal half only
BANDWIDTH = 4.3e12  # bytes/s of a copy

UNFUSED_BYTES, FUSED_BYTES, FLOAT8_BYTES = 38, 12, 15  # per logit: eager, compiled, compiled with 8-bit products
ELEMENTWISE_BYTES = 80e3  # per token and layer: norms, activations, residuals, casts; forward and backward
OPTIMIZER_SECONDS = 4e-3  # per micro-batch, an eighth of a step: AdamW, clipping, casts and the embedding
GAP_SECONDS, QUEUED_GAP_SECONDS = 2.5e-3, 0.5e-3  # per micro-batch: the GPU waits for the host


@dataclass(frozen=True, kw_only=True)
class Code:
    """Options that distinguish the variants of the code in the table."""

    fused_loss: bool = True
    one_product: bool = True
    """Whether one product computes queries, keys and values."""
    queued: bool = True
    """Whether the host prepares the next batch and queues all work before it waits."""
    float8_head: bool = False
    heads_of_128: bool = False


VARIANTS = {
    "before": Code(fused_loss=False, one_product=False, queued=False),
    "now": Code(),
    "now, `--train.fp8-head`": Code(float8_head=True),
    "now, `--train.fp8-head`, `--model.head-width 128`": Code(float8_head=True, heads_of_128=True),
}


def seconds(config: ModelConfig, code: Code) -> dict[str, float]:
    """Return the seconds of each part of a micro-batch, forward and backward."""
    width, layers = config.width, config.layers
    assert config.hidden_width == 4 * width
    entries = -(-config.vocab_size // 64) * 64
    projections = 6 * TOKENS * layers * 3 * width**2  # to queries, keys and values
    others = 6 * TOKENS * layers * 9 * width**2
    head = 6 * TOKENS * entries * width
    logit_bytes = FLOAT8_BYTES if code.float8_head else FUSED_BYTES if code.fused_loss else UNFUSED_BYTES
    attention = 6 * TOKENS * layers * width * config.context_length  # half of the full count
    return {
        "products of the blocks": others / BLOCK_RATE + projections / (BLOCK_RATE if code.one_product else NARROW_RATE),
        "products of the head": head / (FLOAT8_RATE if code.float8_head else HEAD_RATE),
        "attention": attention / ATTENTION_RATE[128 if code.heads_of_128 else 64],
        "passes over the logits": logit_bytes * TOKENS * entries / BANDWIDTH,
        "fused elementwise": ELEMENTWISE_BYTES * TOKENS * layers / BANDWIDTH,
        "optimizer, clipping, casts, embedding": OPTIMIZER_SECONDS,
        "waiting for the host": QUEUED_GAP_SECONDS if code.queued else GAP_SECONDS,
    }


def table() -> str:
    """Return the table as Markdown."""
    columns = [seconds(preset("gpt2"), code) for code in VARIANTS.values()]
    rows = [("ms per micro-batch", *VARIANTS), ("---",) * (1 + len(columns))]
    rows += [(part, *(f"{1e3 * column[part]:.1f}" for column in columns)) for part in columns[0]]
    totals = [sum(column.values()) for column in columns]
    rows.append(("sum", *(f"{1e3 * total:.0f}" for total in totals)))
    rows.append(("tokens/s", *(f"{TOKENS / total:,.0f}" for total in totals)))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def page(text: str) -> str:
    """Return the page `text` with its table replaced."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table())
