"""Format the result of the tokenizer benchmark as Markdown: the targets, then every measurement."""

import statistics

from benchmarks.cases import EQUAL, REFERENCE
from benchmarks.harness import duration, heading, least_and_median, met, table
from benchmarks.peers import OURS


def markdown(result: dict) -> str:
    device = result["device"]
    facts = (
        f"{device['processor']}, {device['cores']} cores, {device['memory_gb']} GB; {device['system']}, "
        f"Python {device['python']}. One thread reads {device['read_gb_per_s']} GB/s from memory; a random access "
        f"takes {device['access_ns']} ns."
    )
    verdicts = [
        (case["work"], case["name"], verdict["target"], verdict["found"], met(verdict["met"]))
        for case in result["cases"]
        for verdict in case["verdicts"]
    ]
    by_processor = ""
    if any(case.get("by_processor") for case in result["cases"]):
        by_processor = " Tables with MB per CPU second are judged by CPU seconds on one thread, and have no limit."
    lines = [
        *heading("The tokenizer compared with its peers", result["command"], facts),
        ", ".join(f"{peer} {version or 'not installed'}" for peer, version in result["versions"].items()) + ".",
        "",
        "Contestants take turns, each turn in a fresh process. The clock starts after imports, with kernels loaded "
        "from their cache and the vocabulary loaded. It includes reading the file. A time counts only if the result "
        "is *equal* to ours (the *reference*). Contestants are compared by their minimum. The limit is the time that "
        "one thread needs for memory accesses alone." + by_processor,
        "",
        *_texts(result["texts"]),
        "## Targets",
        "",
        *table(("workload", "text", "target", "measured", "verdict"), verdicts),
        "",
        "## Measurements",
    ]
    for case in result["cases"]:
        lines += ["", f"### {case['work'][0].upper()}{case['work'][1:]}: {case['name']}", "", *_case(case)]
    return "\n".join(lines) + "\n"


def _texts(texts: list[dict]) -> list[str]:
    line = "- {name}: {bytes:,} bytes, {source}, SHA-256 {sha256:.12}"
    return [*(line.format(**text) for text in texts), ""]


def _case(case: dict) -> list[str]:
    """Return the table of a case, fastest first and without empty columns, then its limit and notes."""
    columns = {
        "contestant": lambda row: f"{row['peer']}, {row['way']}" if row["way"] else row["peer"],
        "threads": lambda row: str(row["threads"]) if any(r["threads"] > 1 for r in case["rows"]) else "",
        "minimum": lambda row: least_and_median(_values(row, "seconds"))[0],
        "median": lambda row: least_and_median(_values(row, "seconds"))[1],
        "runs": lambda row: str(len(row["runs"])),
        "MB/s": lambda row: f"{case['size'] / min(_values(row, 'seconds')) / 1e6:,.0f}" if case["size"] else "",
        "MB per CPU second": lambda row: _rate(case, row, "processor"),
        "MB per CPU second, later passes": lambda row: _rate(case, row, "again_processor"),
        "second pass": lambda row: duration(min(_values(row, "again"))),
        "speed relative to tiktoken": lambda row: f"{statistics.median(_ratios(row)):.2f}",
        "cores busy": lambda row: f"{statistics.median(_ratios(row, 'processor')):.1f}",
        "loading": lambda row: duration(min(_values(row, "loading"))),
        "peak MB": lambda row: f"{statistics.median(_values(row, 'peak')) / 1e6:,.0f}",
        "MB before": lambda row: f"{statistics.median(_values(row, 'before')) / 1e6:,.0f}",
        "result": lambda row: row["result"],
    }
    rows = sorted(case["rows"], key=lambda row: min(_values(row, "seconds"), default=float("inf")))
    cells = {name: [_cell(cell, row) for row in rows] for name, cell in columns.items()}
    cells = {name: column for name, column in cells.items() if any(column)}
    lines = table([*cells], zip(*cells.values(), strict=True)) if rows else []
    if case["limit"] is not None:
        ours = [row for row in rows if row["peer"] == OURS and row["threads"] == 1 and row["runs"]]
        ours = [min(_values(row, "seconds")) for row in ours if row["result"] in (REFERENCE, EQUAL)]
        times = f"; ours on one thread takes {min(ours) / case['limit']:,.1f} times that" if ours else ""
        lines += ["", f"Limit: {duration(case['limit'])} ({case['limit_says']}){times}."]
    return lines + [line for note in case["notes"] for line in ("", note[0].upper() + note[1:] + ".")]


def _cell(cell, row: dict) -> str:
    try:
        return cell(row)
    except ValueError:  # of an empty sequence: not measured
        return ""


def _rate(case: dict, row: dict, key: str) -> str:
    """Return MB per CPU second; empty for a case that is not judged by CPU seconds."""
    return f"{case['size'] / min(_values(row, key)) / 1e6:,.1f}" if case.get("by_processor") else ""


def _values(row: dict, key: str) -> list[float]:
    return [run[key] for run in row["runs"] if run.get(key) is not None]


def _ratios(row: dict, key: str = "beside") -> list[float]:
    return [run[key] / run["seconds"] for run in row["runs"] if run.get(key) is not None]
