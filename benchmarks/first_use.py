"""Measure the first use of a fresh installation, and each command's longest time without output.

`python -m benchmarks.first_use --text FILE` trains a tokenizer and encodes a file, first with an empty kernel cache and
then with a full one. It also times the other commands on a run of a few seconds. Use an idle machine.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = Path(sys.executable).with_name("bytelm")


def measure(arguments: list[str], cache: Path) -> tuple[float, float, float]:
    """Return a command's wall-clock seconds, CPU seconds, and longest time in seconds without output."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = last = time.monotonic()
    silence = 0.0
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while os.read(process.stdout.fileno(), 1 << 16):
        silence, last = max(silence, time.monotonic() - last), time.monotonic()
    if process.wait():
        raise SystemExit(f"{' '.join(map(str, arguments))} failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - started, used, max(silence, time.monotonic() - last)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.first_use")
    parser.add_argument("--text", type=Path, required=True, help="text file of about 1 MB")
    parser.add_argument("--out", type=Path, help="file for the table, such as benchmarks/results/first_use.md")
    options = parser.parse_args()
    rows = ["| command | kernel cache | seconds | CPU seconds | longest silence (s) |", "|---|---|---:|---:|---:|"]

    def row(what: str, kernels: str, *arguments: object) -> None:
        numbers = measure([str(COMMAND), *map(str, arguments)], cache)
        rows.append(f"| {what} | {kernels} | " + " | ".join(f"{number:.1f}" for number in numbers) + " |")
        print(rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        work, tok, run = Path(folder), Path(folder) / "tok", Path(folder) / "run"
        for kernels in ("empty", "full"):
            cache = work / "train"
            learning = ("train-tokenizer", options.text, "--vocab-size", 4096, "--out", tok, "--overwrite")
            row("train-tokenizer", kernels, *learning)
            cache = work / "encode"
            row("tokenize --file", kernels, "tokenize", "--file", options.text, "--tokenizer", tok)
        data = ("build-dataset", options.text, "--tokenizer", tok, "--context-length", 64, "--out", work / "data")
        row("build-dataset", "empty", *data)
        shape = ("--model.layers", 1, "--model.width", 64, "--model.heads", 2, "--model.context-length", 64)
        training = ("pretrain", "gpt-tiny", "--data", work / "data", "--out", run, "--train.tokens", 20480)
        row("pretrain", "-", *training, *shape)
        for verb in ("evaluate", "report", "generate"):
            row(verb, "-", verb, run, *(["--prompt", "The"] if verb == "generate" else []))
        row("params", "-", "params", "gpt2")
        row("export-onnx", "-", "export-onnx", run, "--out", work / "model.onnx")
    if options.out:
        title = f"# First use and start-up\n\n`python -m benchmarks.first_use --text {options.text.name}`, "
        facts = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}. Output goes to a pipe.\n\n"
        options.out.write_text(title + facts + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
