"""What benchmarks/attention.py found, as Markdown: what was aimed at first, then every measurement."""

import statistics

from benchmarks.report import duration

BYTES, TIME, INSIDE = 0.6, 0.8, 0.01  # the most that closed_form may keep and take of reference; and looking inside


def markdown(result: dict) -> str:
    device, inside = result["device"], result["inside"]
    where = device["accelerator"] or f"{device['processor']}, {device['cores']} cores, {device['memory_gb']} GB"
    lines = [
        "# Attention's backends beside each other",
        "",
        f"`{result['command']}` on {where}; {device['system']}, Python {device['python']}, torch {result['torch']}, "
        f"{result['threads']} threads.",
        "",
        "Backends take turns in one process, and minima are compared. Kept is what autograd holds between forward and "
        "backward, each piece of memory once. The difference is the largest from the reference in float64. Compilation "
        "(flex) is not counted.",
        "",
        "## Targets",
        "",
        "| | target | found | |",
        "|---|---|---|---|",
        *(line for case in result["cases"] if _is_promised(case["shape"]) for line in _verdicts(case)),
        _verdict(
            "a model that was looked into", "costs under 1 % more", inside["cost"], INSIDE, f"{inside['cost']:+.2%}"
        ),
        "",
        f"The last is a forward pass of 4 layers of width 256 over 256 positions, {inside['rounds']} turns of a model "
        "never looked into and as many of its copy whose attention was mapped before: minima "
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
