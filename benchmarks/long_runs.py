"""Measure the CPU time and memory of training and encoding on corpora that are one long run of a character.

`python -m benchmarks.long_runs` takes 64 MB of each text. Memory is the peak above that of the same command on a text
of 60 kB. Kernels are compiled first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.machine import device

COMMAND = Path(sys.executable).with_name("bytelm")
TEXTS = {"a letter": "a", "spaces": " ", "two letters in turn": "ab", "a Han letter": "中"}
ENTRIES = 4096
TITLE = ("command", "text", "CPU seconds", "seconds", "peak MB more", "times the text", "")


def measure(*words: object) -> dict:
    """Return a command's CPU and wall-clock seconds and its peak memory in bytes, or its error."""
    started = time.monotonic()
    process = subprocess.Popen([COMMAND, *map(str, words), "--quiet"], stderr=subprocess.PIPE, text=True)
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "seconds": time.monotonic() - started,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "error": " ".join(said.split()) if process.returncode else None,
    }


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
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/long_runs", help="results folder")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_all(Path(folder), options.size)
    machine = device()
    lines = ["| " + " | ".join(line) + " |" for line in (TITLE, ["---"] * len(TITLE), *map(cells, rows))]
    facts = f"`python -m benchmarks.long_runs` on {machine['processor']}, {machine['cores']} cores; "
    facts += f"{options.size:,} bytes of each text, {ENTRIES:,} entries requested."
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"device": machine, "rows": rows}
    (options.out / "long_runs.json").write_text(
        json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    text = "\n".join(["# Corpora that are one long run", "", facts, "", *lines])
    (options.out / "long_runs.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
