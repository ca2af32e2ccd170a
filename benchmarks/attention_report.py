"""Format the result of benchmarks.attention as Markdown: the targets, then every measurement."""

import statistics

from benchmarks.report import duration

# Targets: closed_form's share of the reference's bytes and time; the relative cost of earlier attention maps.
BYTES, TIME, INSIDE = 0.6, 0.8, 0.01


def markdown(result: dict) -> str:
    device, inside = result["device"], result["inside"]
    where = device["accelerator"] or f"{device['processor']}, {device['cores']} cores, {device['memory_gb']} GB"
    lines = [
        "# Attention backends",
        "",
        f"`{result['command']}` on {where}; {device['system']}, Python {device['python']}, torch {result['torch']}, "
        f"{result['threads']} threads.",
        "",
        "Backends take turns in one process and are compared by their minimum. Kept MB is the memory that autograd "
        "holds between forward and backward, each buffer counted once. The difference is the largest from the "
        "reference in float64. Compilation (flex) is not timed.",
        "",
        "## Targets",
        "",
        "| case | target | measured | verdict |",
        "|---|---|---|---|",
        *(line for case in result["cases"] if _is_promised(case["shape"]) for line in _verdicts(case)),
        _verdict(
            "a model after attention maps", "costs under 1 % more", inside["cost"], INSIDE, f"{inside['cost']:+.2%}"
        ),
        "",
        "The last row times forward passes of 4 layers of width 256 over 256 positions. They alternate between a model "
        f"and a copy after attention maps, {inside['rounds']} turns each: minima "
        f"{duration(inside['minimum']['untouched'])} and {duration(inside['minimum']['inspected'])}, medians "
        f"{duration(inside['median']['untouched'])} and {duration(inside['median']['inspected'])}.",
        "",
        "## Measurements",
    ]
    for case in result["cases"]:
        lines += ["", f"### {_title(case['shape'])}", "", *_table(case["rows"])]
    return "\n".join(lines) + "\n"


def _is_promised(shape: dict) -> bool:
    return shape["dtype"] == "float32" and not shape["window"]


def _title(shape: dict) -> str:
    heads = f"{shape['heads']} heads of {shape['width']}"
    if shape["kv_heads"] != shape["heads"]:
        heads += f" over {shape['kv_heads']} of keys"
    mask = "causal" if shape["causal"] else "bidirectional"
    window = f", window {shape['window']}" if shape["window"] else ""
    return f"{shape['dtype']}, {mask}{window}: batch {shape['batch']}, {heads}, T = {shape['length']}"


def _verdicts(case: dict) -> list[str]:
    rows = {row["backend"]: row for row in case["rows"]}
    ours, theirs = rows["closed_form"], rows["reference"]
    kept, taken = ours["kept"] / theirs["kept"], min(ours["step"]) / min(theirs["step"])
    name = f"closed_form, {'causal' if case['shape']['causal'] else 'bidirectional'}, {case['shape']['dtype']}"
    return [
        _verdict(name, f"keeps at most {BYTES:.0%} of the reference's bytes", kept, BYTES, f"{kept:.0%}"),
        _verdict(name, f"takes at most {TIME:.0%} of its time", taken, TIME, f"{taken:.0%}"),
    ]


def _verdict(name: str, target: str, value: float, most: float, found: str) -> str:
    return f"| {name} | {target} | {found} | {'met' if value <= most else '**missed**'} |"


def _table(rows: list[dict]) -> list[str]:
    lines = [
        "| backend | forward and backward, minimum | median | kept MB | forward alone, minimum | median | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: min(row["step"], default=float("inf"))):
        kept = "" if row["kept"] is None else f"{row['kept'] / 1e6:.1f}"
        times = [_least_and_median(row[key]) for key in ("step", "forward")]
        lines.append(f"| {row['backend']} | {times[0]} | {kept} | {times[1]} | {row['difference']:.1g} |")
    return lines


def _least_and_median(seconds: list[float]) -> str:
    if not seconds:
        return " | "
    return f"{duration(min(seconds))} | {duration(statistics.median(seconds))}"
