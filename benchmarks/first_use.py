"""The first use of a fresh installation, and the longest silence of each verb while it starts.

`python -m benchmarks.first_use --text FILE` trains a tokenizer and encodes a file with an empty cache of kernels, then
with a full one, and times the verbs on a run of seconds. Best on a machine that does nothing else.
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
    """Return the seconds of a command, its processor's seconds, and the longest time without output, from its start."""
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
    parser.add_argument("--text", type=Path, required=True, help="a text of a megabyte or so")
    parser.add_argument("--out", type=Path, help="file for the table, such as benchmarks/results/first_use.md")
    options = parser.parse_args()
    rows = ["| what | kernels | seconds | CPU seconds | longest silence |", "|---|---|---:|---:|---:|"]

    def row(what: str, kernels: str, *arguments: object) -> None:
        numbers = measure([str(COMMAND), *map(str, arguments)], cache)
        rows.append(f"| {what} | {kernels} | " + " | ".join(f"{number:.1f}" for number in numbers) + " |")
        print(rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        work, tok, run = Path(folder), Path(folder) / "tok", Path(folder) / "run"
        for kernels in ("none", "those of before"):
            cache = work / "train"
            training = ("train-tokenizer", options.text, "--vocab-size", 4096, "--out", tok, "--overwrite")
            row("train-tokenizer", kernels, *training)
            cache = work / "encode"
            row("tokenize --file", kernels, "tokenize", "--file", options.text, "--tokenizer", tok)
        data = ("build-dataset", options.text, "--tokenizer", tok, "--context-length", 64, "--out", work / "data")
        row("build-dataset", "none", *data)
        shape = ("--model.layers", 1, "--model.width", 64, "--model.heads", 2, "--model.context-length", 64)
        row(
            "pretrain",
            "-",
            "pretrain",
            "gpt-tiny",
            "--data",
            work / "data",
            "--out",
            run,
            "--train.tokens",
            20480,
            *shape,
        )
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
