"""Format the result of benchmarks.pretrain as Markdown."""

from typing import Any

from benchmarks.harness import table


def markdown(result: dict[str, Any]) -> str:
    """Return the Markdown page of a result."""
    dtype = result["dtype"]
    autocast = "" if dtype == "float32" else " under autocast"
    lines = [
        "# Pretraining compared with its peers",
        "",
        f"On {result['device']}. Each contestant trains in its own process, from the same weights on the same batches, "
        f"with AdamW, the same learning rates, clipping and {dtype} products. Times are medians of the timed steps; "
        "start-up and the first step, which compiles, are listed separately. `bytelm` is the trainer of `bytelm "
        f"pretrain`; the peers' steps are plain loops{autocast}. A compiled peer's model and loss are one graph. The "
        f"peak is the speed of the fastest product of two square {dtype} matrices during the run. The loss is the mean "
        f"of the last ten steps; the target is to be within {result['tolerance']:.0%} of ours.",
    ]
    for case in result["models"]:
        lines += ["", f"## {case['model']}: {case['shape']}", "", *_case(case)]
    return "\n".join(lines) + "\n"


def _case(case: dict[str, Any]) -> list[str]:
    rows = sorted(case["rows"], key=lambda row: -row.get("tokens_per_s", 0))
    versions = ", ".join(f"{name} {version}" for name, version in case["versions"].items())
    lines = [
        f"`{case['command']}`, {versions}; {case['turns']}.",
        "",
        f"{case['steps']} steps, the last {case['timed_steps']} timed; {case['flops_per_token'] / 1e6:,.0f} MFLOP per "
        f"token, peak {case['matrix_flops'] / 1e9:,.0f} GFLOP/s: at most {case['floor_tokens_per_s']:,.0f} tokens/s, "
        f"or {case['floor_s']:.3g} s per step.{_memory(case)}",
        "",
        *_table(rows),
        "",
        case["verdict"],
    ]
    profiled = [row for row in rows if row.get("profile")]
    if profiled:
        of = profiled[0]["profile"].get("of", "the main thread")
        lines += ["", f"Time per step by operation, in seconds of {of} under the profiler:", "", *_profile(profiled)]
    return lines


def _memory(case: dict[str, Any]) -> str:
    """Return the time to move weights, gradients and moments, or nothing if the case does not record it."""
    if "floor_bytes_s" not in case:
        return ""
    gigabytes, rate = case["bytes_per_step"] / 1e9, case["read_bytes_per_s"] / 1e9
    return (
        f" Each step reads and writes {gigabytes:.3g} GB of weights, gradients and moments: "
        f"{case['floor_bytes_s']:.3g} s at the measured read bandwidth of {rate:,.0f} GB/s."
    )


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = ["tokens/s", "to the best peer", "share of peak", "s/step", "peak MB", "start", "first step", "loss"]
    tabulated = any(row.get("mfu") for row in rows)
    if tabulated:  # for this GPU there is a peak in the tables too
        columns.insert(3, "MFU")
    lines = []
    for row in rows:
        if "tokens_per_s" not in row:
            lines.append((row["contestant"], f"failed: {row['error']}", *[""] * (len(columns) - 1)))
            continue
        other = "" if row["same_loss"] else " (**differs**)"
        cells = (
            f"{row['tokens_per_s']:,.0f}",
            f"{row['to_best_peer']:.2f}" if row["to_best_peer"] else "",
            f"{row['share_of_matrix_peak']:.0%}",
            *([f"{row['mfu']:.1%}"] if tabulated else []),
            f"{row['step_s']:.3g}",
            f"{row['peak_bytes'] / 1e6:,.0f}",
            f"{row['start_s']:.0f} s",
            f"{row['first_step_s']:.1f} s",
            f"{row['loss']:.3f}{other}",
        )
        lines.append((row["contestant"], *cells))
    return table(("contestant", *columns), lines)


def _profile(rows: list[dict[str, Any]]) -> list[str]:
    groups = {group: None for row in rows for group in row["profile"]["groups"]}
    widest = rows[0]["profile"]["groups"]
    lines = []
    for group in sorted(groups, key=lambda group: -widest.get(group, 0.0)):
        cells = (row["profile"]["groups"].get(group) for row in rows)
        lines.append((group, *("" if cell is None else f"{cell:.3f}" for cell in cells)))
    lines.append(("the step", *(f"{row['profile']['step']:.3f}" for row in rows)))
    return table(("", *(row["contestant"] for row in rows)), lines)


def verdict(case: dict[str, Any]) -> str:
    """Return a sentence that compares the losses."""
    trained = [row for row in case["rows"] if "loss" in row]
    different = [row["contestant"] for row in trained if not row["same_loss"]]
    if different:
        return f"**The losses after {case['steps']} steps differ from ours: {', '.join(different)}.**"
    most = max((row["loss_difference"] for row in trained), default=0.0)
    return f"All losses agree after {case['steps']} steps: the largest difference from ours is {most:.2%}."
