"""What benchmarks.pretrain found, as tables for people."""

from typing import Any


def markdown(result: dict[str, Any]) -> str:
    """`result` of a run as a page of Markdown."""
    dtype = result["dtype"]
    autocast = "" if dtype == "float32" else " under autocast"
    lines = [
        "# Pretraining beside its peers",
        "",
        f"On {result['device']}. Each contestant trains in a process of its own from the same weights on the same "
        f"batches, with AdamW, the same rates, clipping and {dtype} products. Medians of the timed steps; start and "
        "first step, in which compilation happens, apart. `bytelm` is the trainer of `bytelm pretrain`; the peers' "
        f"steps are plain loops{autocast}. Compiled, a peer's model and loss are one graph. The peak is what the best "
        f"product of two square {dtype} matrices reached during the run. The loss is the mean of the last ten steps, "
        f"and is to be within {result['tolerance']:.0%} of ours.",
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
        f"{case['steps']} steps, the last {case['timed_steps']} timed; {case['flops_per_token'] / 1e6:,.0f} MFLOP a "
        f"token, peak {case['matrix_flops'] / 1e9:,.0f} GFLOP/s: at most {case['floor_tokens_per_s']:,.0f} tokens/s, "
        f"or {case['floor_s']:.3g} s a step.{_memory(case)}",
        "",
        *_table(rows),
        "",
        case["verdict"],
    ]
    profiled = [row for row in rows if row.get("profile")]
    if profiled:
        of = profiled[0]["profile"].get("of", "the main thread")
        told = f"Where a step's time goes, in seconds of {of} under the profiler:"
        lines += ["", told, "", *_profile(profiled)]
    return lines


def _memory(case: dict[str, Any]) -> str:
    """What moving the bytes of weights, gradients and moments would take; nothing of cases recorded without."""
    if "floor_bytes_s" not in case:
        return ""
    gigabytes, rate = case["bytes_per_step"] / 1e9, case["read_bytes_per_s"] / 1e9
    return (
        f" Weights, gradients and moments are {gigabytes:.3g} GB to read and write a step: "
        f"{case['floor_bytes_s']:.3g} s at the {rate:,.0f} GB/s at which memory was read."
    )


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = ["tokens/s", "to the best peer", "share of the peak", "s a step", "peak MB", "start", "first", "loss"]
    tabulated = any(row.get("mfu") for row in rows)
    if tabulated:  # for this GPU there is a peak in the tables too
        columns.insert(3, "MFU")
    lines = [f"| contestant | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        if "tokens_per_s" not in row:
            lines.append(f"| {row['contestant']} | failed: {row['error']} |" + " |" * (len(columns) - 1))
            continue
        other = "" if row["same_loss"] else " (**another**)"
        cells = [
            f"{row['tokens_per_s']:,.0f}",
            f"{row['to_best_peer']:.2f}" if row["to_best_peer"] else "",
            f"{row['share_of_matrix_peak']:.0%}",
            *([f"{row['mfu']:.1%}"] if tabulated else []),
            f"{row['step_s']:.3g}",
            f"{row['peak_bytes'] / 1e6:,.0f}",
            f"{row['start_s']:.0f} s",
            f"{row['first_step_s']:.1f} s",
            f"{row['loss']:.3f}{other}",
        ]
        lines.append(f"| {row['contestant']} | {' | '.join(cells)} |")
    return lines


def _profile(rows: list[dict[str, Any]]) -> list[str]:
    groups = {group: None for row in rows for group in row["profile"]["groups"]}
    widest = rows[0]["profile"]["groups"]
    ordered = sorted(groups, key=lambda group: -widest.get(group, 0.0))
    lines = [
        "| | " + " | ".join(row["contestant"] for row in rows) + " |",
        "|---" * (len(rows) + 1) + "|",
    ]
    for group in ordered:
        cells = (row["profile"]["groups"].get(group) for row in rows)
        lines.append(f"| {group} | " + " | ".join("" if cell is None else f"{cell:.3f}" for cell in cells) + " |")
    lines.append("| the step | " + " | ".join(f"{row['profile']['step']:.3f}" for row in rows) + " |")
    return lines


def verdict(case: dict[str, Any]) -> str:
    """A sentence on how the losses compare."""
    told = [row for row in case["rows"] if "loss" in row]
    apart = [row["contestant"] for row in told if not row["same_loss"]]
    if apart:
        return f"**The losses after {case['steps']} steps part from ours: {', '.join(apart)}.**"
    most = max((row["loss_difference"] for row in told), default=0.0)
    return f"All losses agree after {case['steps']} steps: the largest difference from ours is {most:.2%}."
