"""Measure the first use of a fresh installation, and each command's longest time without output.

`python -m benchmarks.first_use --text FILE` trains a tokenizer and encodes a file, first with an empty kernel cache and
then with a full one. It also times the other commands on a run of a few seconds. Use an idle machine.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import command_line, heading, run_command, table

COMMAND = Path(sys.executable).with_name("bytelm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.first_use")
    parser.add_argument("--text", type=Path, required=True, help="text file of about 1 MB")
    parser.add_argument("--out", type=Path, help="file for the table, such as benchmarks/results/first_use.md")
    options = parser.parse_args()
    rows = []

    def row(what: str, kernels: str, *arguments: object) -> None:
        ran = run_command([COMMAND, *arguments], {"NUMBA_CACHE_DIR": str(cache)})
        if ran["error"]:
            raise SystemExit(f"{' '.join(map(str, arguments))}: {ran['error']}")
        rows.append((what, kernels, *(f"{ran[name]:.1f}" for name in ("seconds", "cpu_seconds", "silence"))))
        print(*rows[-1], sep=" | ", flush=True)

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
        facts = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}. Output goes to a pipe."
        head = ("command", "kernel cache", "seconds", "CPU seconds", "longest silence (s)")
        command = command_line("benchmarks.first_use", ["--text", str(options.text)])
        lines = [*heading("First use and start-up", command, facts), *table(head, rows), ""]
        options.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
