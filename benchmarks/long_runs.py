"""Measure the CPU time and memory of training and encoding on corpora that are one long run of a character.

`python -m benchmarks.long_runs` takes 64 MB of each text. Memory is the peak above that of the same command on a text
of 60 kB. Kernels are compiled first.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import RESULTS, heading, machine, record, run_command, table

COMMAND = Path(sys.executable).with_name("bytelm")
TEXTS = {"a letter": "a", "spaces": " ", "two letters in turn": "ab", "a Han letter": "中"}
ENTRIES = 4096
TITLE = ("command", "text", "CPU seconds", "seconds", "peak MB more", "times the text", "")


def measure(*words: object) -> dict:
    """Return a command's CPU and wall-clock seconds and its peak memory in bytes, or its error."""
    ran = run_command([COMMAND, *words, "--quiet"])
    ran["error"] = " ".join(ran["messages"].split()) if ran["error"] else None
    return {name: ran[name] for name in ("seconds", "cpu_seconds", "peak", "error")}


def measure_all(folder: Path, size: int) -> list[dict]:
    """Return a row for each command and text."""
    ordinary, short = folder / "ordinary", folder / "short.txt"
    short.write_text("some text " * 6000)
    learn = ("--vocab-size", ENTRIES, "--out")
    failed = measure("train-tokenizer", "stdlib", *learn, ordinary)["error"]
    if failed:
        raise SystemExit(failed)

    def commands(text: Path) -> dict[str, tuple]:
        own, data = folder / f"{text.stem}-tokenizer", folder / f"{text.stem}-data"
        return {
            "train-tokenizer": (text, *learn, own),
            "build-dataset, ordinary tokenizer": (text, "--tokenizer", ordinary, "--context-length", 64, "--out", data),
            "build-dataset, the text's tokenizer": (
                text,
                "--tokenizer",
                own,
                "--context-length",
                2,
                "--out",
                f"{data}-own",
            ),
        }

    def rows_of(text: Path) -> dict[str, dict]:
        return {name: measure(name.split(",")[0], *words) for name, words in commands(text).items()}

    rows_of(short)  # compiles the kernels
    (folder / "again.txt").write_bytes(short.read_bytes())
    least, rows = rows_of(folder / "again.txt"), []
    for number, (name, unit) in enumerate(TEXTS.items()):
        text = folder / f"long-{number}.txt"
        text.write_text(unit * (size // len(unit.encode())), encoding="utf-8")
        for command, row in rows_of(text).items():
            row["error"] = row["error"] and row["error"].replace(f"{folder}/", "")
            more = row["peak"] - least[command]["peak"]
            rows.append({"command": command, "text": name, "bytes": size, "peak_more": more, **row})
            print(" | ".join(cells(rows[-1])), flush=True)
        text.unlink()
    return rows


def cells(row: dict) -> list[str]:
    """Return a row of the table."""
    times = f"{row['cpu_seconds']:.1f}", f"{row['seconds']:.1f}"
    memory = f"{row['peak_more'] / 1e6:.0f}", f"{row['peak_more'] / row['bytes']:.1f}"
    return [row["command"], row["text"], *times, *memory, row["error"] or ""]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.long_runs")
    parser.add_argument("--size", type=int, default=64_000_000, help="bytes of each text")
    parser.add_argument("--out", type=Path, default=RESULTS / "long_runs", help="results folder")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_all(Path(folder), options.size)
    result = {"device": machine(), "rows": rows}
    facts = f"{result['device']['processor']}, {result['device']['cores']} cores; {options.size:,} bytes of each text, "
    lines = heading(
        "Corpora that are one long run", "python -m benchmarks.long_runs", f"{facts}{ENTRIES:,} entries requested."
    )
    record(options.out, "long_runs", result, "\n".join([*lines, *table(TITLE, map(cells, rows)), ""]))


if __name__ == "__main__":
    main()
