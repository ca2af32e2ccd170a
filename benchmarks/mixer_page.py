"""The page of benchmarks.mixers."""

import math
import statistics
from collections.abc import Sequence

from benchmarks.harness import heading, table
from benchmarks.mixer_training import KEYS, PAIRS, POINTS, RECALL, TEXT, VALUES
from lm.config import ModelConfig
from lm.metrics.intervals import t_quantile

TITLES = {
    "speed": "Speed and memory",
    "recall": "Associative recall",
    "quality": "Quality",
    "long": "Quality, longer training",
}
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
SHOWN = (POINTS // 4, POINTS // 2, POINTS)  # points of a learning curve


def page(results: dict) -> str:
    """Return the page of all parts that are measured, by part and device."""
    writers = {"speed": speed_lines, "recall": recall_lines, "quality": quality_lines, "long": quality_lines}
    lines = ["# Sequence mixers", ""]
    lines += [
        "All models have the parameters of the model with attention, to 1 %: the width of the MLP makes up for the "
        "mixer's.",
        "",
    ]
    for part, write in writers.items():
        for device, name in DEVICES.items():
            if (result := results.get(f"{part} {device}")) is not None:
                facts = f"{result['machine']}, PyTorch {result['torch']}; {result['seconds'] / 60:.1f} minutes."
                title, *rest = heading(f"{TITLES[part]}, {name}", result["command"], facts)
                lines += [f"#{title}", *rest, *write(result), ""]
    return "\n".join(lines[:-1]) + "\n"


def speed_lines(result: dict) -> list[str]:
    lines = [
        "Medians of turns that alternate between the mixers, uncompiled"
        + on_cpu(result)
        + ". A training step reads texts of T tokens, "
        "forward and backward, and updates the weights. Prompts have T tokens; generation continues them by single "
        "tokens. Kept is what autograd keeps for a step; the state is that of one text after T tokens.",
    ]
    head = ("mixer", "parameters", "MFLOP/token", "training, tokens/s", "prompts, tokens/s", "generation, tokens/s")
    for length in dict.fromkeys(row["length"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["length"] == length]
        cells = (
            (
                row["mixer"],
                f"{row['parameters']:,}",
                f"{row['flops_per_token'] / 1e6:.1f}",
                *(f"{row[f'{what}_tokens_per_s']:,.0f}" for what in ("training", "prompt", "generated")),
                f"{row['kept_bytes'] / 1e6:,.0f}",
                f"{row['state_bytes'] / 1e3:,.0f}",
            )
            for row in rows
        )
        lines += ["", f"### T = {length:,}", "", *table((*head, "kept MB", "state kB"), cells)]
    return lines


def recall_lines(result: dict) -> list[str]:
    options, rows = result["options"], by_mixer(result["rows"])
    seeds, cells = max(map(len, rows.values())), []
    for mixer, jobs in rows.items():
        ends = [job["accuracy"] if "accuracy" in job else job["curve"][-1]["accuracy"] for job in jobs if job["curve"]]
        means = [f"{statistics.mean(end[str(pairs)] for end in ends):.1%}" if ends else "" for pairs in PAIRS]
        cells.append((mixer, *means, *costs(jobs, result["machine"])))
    return [
        f"A text names 8 to 64 keys with their values, then asks for the values in another order. There are {KEYS} "
        f"keys and {VALUES} values, so chance is {1 / VALUES:.1%}. Models have {shape(RECALL)} and are trained on "
        f"{options['recall_tokens']:,} tokens, with all numbers of pairs in turns, and "
        f"{seeds} seed{'s' * (seeds > 1)}. Columns are the accuracy by number of "
        f"pairs, on new texts. The column `seconds` is the training time on this machine{on_cpu(result)}.",
        "",
        *table(("mixer", *(f"{pairs} pairs" for pairs in PAIRS), *COSTS), cells),
    ]


def quality_lines(result: dict) -> list[str]:
    options, rows = result["options"], by_mixer(result["rows"])
    text = f"Python {result['python']}'s standard library" if options["text"] == "stdlib" else "the text"
    cells = []
    for mixer, jobs in rows.items():
        bits = [job["bits"] for job in jobs if "bits" in job]
        curve = [f"{mean:.3f}" if (mean := mean_point(jobs, point)) else "" for point in SHOWN]
        cells.append(
            (
                statistics.mean(bits) if bits else math.inf,
                (mixer, *interval_cells(bits), *curve, *costs(jobs, result["machine"])),
            )
        )
    cells.sort(key=lambda row: row[0])
    head = ("mixer", "bits per byte", "± 95 %", "seeds", *(f"at {point / POINTS:.0%}" for point in SHOWN))
    return [
        f"Models have {shape(TEXT)} and read {result['rows'][0]['job']['tokens']:,} bytes of {text}, in batches of "
        f"{options['batch_tokens']:,}, with AdamW at {options['lr']}, warm-up and a cosine. Bits per byte are of "
        f"held-out text, in blocks of {TEXT.context_length}; the interval is over seeds. The columns after that are "
        "points of the learning curve, on a part of the held-out text: all models have the same batches and rates "
        f"there. The column `seconds` is the training time on this machine{on_cpu(result)}, with "
        f"{options['processes']} trainings at a time.",
        "",
        *table((*head, *COSTS), (row for _, row in cells)),
    ]


COSTS = ("parameters", "MFLOP/token", "seconds", "remarks")


def costs(jobs: Sequence[dict], machine: str) -> tuple[str, ...]:
    """Return the cells of COSTS, with the mean seconds of the trainings on one machine."""
    done = [job for job in jobs if "seconds" in job]
    stopped = (
        (job["job"]["seed"], job["curve"][-1]["tokens"] if job["curve"] else 0) for job in jobs if "error" in job
    )
    remarks = "; ".join(f"seed {seed} stopped after {tokens:,} tokens" for seed, tokens in stopped)
    if not done:
        return "", "", "", remarks
    timed = [job["seconds"] for job in done if job["machine"] == machine]
    seconds = f"{statistics.mean(timed):.0f}" if timed else ""
    return f"{done[0]['parameters']:,}", f"{done[0]['flops_per_token'] / 1e6:.2f}", seconds, remarks


def by_mixer(rows: Sequence[dict]) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["job"]["mixers"], []).append(row)
    return found


def mean_point(jobs: Sequence[dict], point: int) -> float | None:
    """Return the mean bits at a point of the learning curves that reach it."""
    bits = [job["curve"][point - 1]["bits"] for job in jobs if len(job["curve"]) >= point]
    return statistics.mean(bits) if bits else None


def interval_cells(bits: Sequence[float]) -> tuple[str, str, str]:
    """Return the mean, half the width of its 95 % interval by Student's t, and the number of seeds."""
    if len(bits) < 2:
        return "".join(f"{each:.3f}" for each in bits), "", f"{len(bits)}"
    half = t_quantile(len(bits) - 1) * statistics.stdev(bits) / math.sqrt(len(bits))
    return f"{statistics.mean(bits):.3f}", f"{half:.3f}", f"{len(bits)}"


def on_cpu(result: dict) -> str:
    """Return words about the clock: other processes of the machine change CPU time little."""
    return ", in CPU seconds" if result["options"]["device"] == "cpu" else ""


def shape(config: ModelConfig) -> str:
    return f"{config.layers} layers of width {config.width}"
