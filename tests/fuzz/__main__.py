"""Coverage-guided fuzzing of the readers: `make fuzz RUNS=1000000`, which runs `python -m tests.fuzz --runs N`.

Each reader runs in its own process under atheris (libFuzzer), which mutates inputs that reach new code further. The
limits are 10 seconds per input and 2 GB per process. Inputs that break the promise are saved in the folder `--found`.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import platform
import random
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.readers import READERS, Reader, mutated, mutated_json, write_files

RESULTS = Path(__file__).with_name("README.md")
OWN = ("tokenizer", "corpora", "pipelines")
# Kernels are machine code and cannot be instrumented. atheris excludes modules by their full names.
KERNELS = [
    f"tokenizer.kernels.{path.stem}" for path in (Path(__file__).parents[2] / "tokenizer" / "kernels").glob("*.py")
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.fuzz")
    parser.add_argument("--runs", type=int, default=12_000, help="total inputs, divided among the readers")
    parser.add_argument(
        "--found", type=Path, default=Path("fuzz-found"), help="folder for inputs that break the promise"
    )
    parser.add_argument("--reader", choices=READERS, help="fuzz this reader only, in this process")
    parser.add_argument("--record", action="store_true", help=f"write the table of {RESULTS.name}")
    options = parser.parse_args()
    options.found.mkdir(parents=True, exist_ok=True)
    if options.reader:
        fuzz(options.reader, options.runs, options.found)
    each = -(-options.runs // len(READERS))
    rows, failed = [], []
    for name in READERS:
        started = time.monotonic()
        command = [sys.executable, "-m", "tests.fuzz", "--reader", name, "--runs", str(each), "--found", options.found]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
        seconds = time.monotonic() - started
        failed += [name] if done.returncode else []
        outcome = "kept" if not done.returncode else "BROKEN"
        rows.append(f"| {name} | `{Path(READERS[name][0]).name}` | {each:,} | {each / seconds:,.0f} | {outcome} |")
        print(rows[-1], flush=True)
        if done.returncode:
            print(done.stderr[-3000:], file=sys.stderr)
    if options.record:
        record(rows, each * len(READERS))
    return bool(failed)


def fuzz(name: str, runs: int, found: Path) -> None:
    """Fuzz one reader in this process. libFuzzer ends the process, so this never returns."""
    import atheris

    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        # Another process writes the files, because modules that are imported before this block are not instrumented.
        # Reading the seed imports the reader's modules.
        writer = get_context("spawn").Process(target=write_files, args=(name, Path(folder) / "files"))
        writer.start()
        writer.join()
        with atheris.instrument_imports(include=OWN, exclude=KERNELS):
            reader = Reader(Path(folder) / "files", name)
            reader.check(reader.seed)
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        (seeds / "whole").write_bytes(reader.seed)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            chance = random.Random(seed)
            if chance.random() < 0.3:
                return atheris.Mutate(data, most)
            return chance.choice((mutated, mutated_json))(data or reader.seed, chance)[:most]

        limits = ["-timeout=10", "-rss_limit_mb=2048", f"-max_len={2 * len(reader.seed) + 8192}"]

        def check(data: bytes) -> None:
            try:
                reader.check_quietly(data)
            except BaseException:  # libFuzzer saves inputs that crash or hang, but not inputs that raise
                (found / f"{name}-exception-{hashlib.sha1(data).hexdigest()}").write_bytes(data)
                raise

        atheris.Setup(
            [sys.argv[0], f"-runs={runs}", "-seed=1", *limits, f"-artifact_prefix={found}/{name}-", str(seeds)],
            check,
            custom_mutator=mutate,
        )
        atheris.Fuzz()


def record(rows: list[str], inputs: int) -> None:
    """Write the results to README.md in this folder, after its introduction."""
    introduction = RESULTS.read_text().partition("\n## Results")[0]
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    table = "\n".join(["| reader | file | inputs | inputs/s | promise |", "|---|---|---:|---:|---|", *rows])
    RESULTS.write_text(f"{introduction}\n## Results\n\n{inputs:,} inputs on {machine}.\n\n{table}\n")


if __name__ == "__main__":
    sys.exit(main())
