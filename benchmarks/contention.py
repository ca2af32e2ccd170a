"""Measure the speed of `bytelm pretrain` while zero, one and two other processes keep the cores busy.

    python -m benchmarks.contention

This writes benchmarks/results/contention/contention.json and .md in about five minutes. One run trains while the three
loads alternate. Use an otherwise idle machine.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import RESULTS, command_line, heading, machine, record, say, table, turns
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.train_tokenizer import train_tokenizer

CORPUS, VOCABULARY, CONTEXT = "stdlib", 4096, 256
SHAPES = {
    "gpt-tiny": [],
    "larger": ["--model.layers", "4", "--model.width", "256", "--model.heads", "4", "--train.batch-tokens", "4096"],
}
LOADS = (0, 1, 2)  # busy processes
TARGET = 0.4  # share of the undisturbed speed, with two busy processes on two cores
WARM_UP_STEPS, LEAST_STEPS = 5, 3
NEVER = "1G"  # tokens


class Training:
    """A `bytelm pretrain` process. Its speed is read from its metrics.jsonl."""

    def __init__(self, shape: str, data: Path, run: Path) -> None:
        self._log = run / "metrics.jsonl"
        self._read, self._steps = 0, []
        bytelm = str(Path(sys.executable).with_name("bytelm"))
        command = [bytelm, "pretrain", "gpt-tiny", "--data", str(data), "--out", str(run)]
        never = ["--train.tokens", NEVER, "--train.validate-every-tokens", NEVER]
        never += ["--train.checkpoint-every-tokens", NEVER]
        options = ["--train.log-every-steps", "1", *never, *SHAPES[shape]]
        self._output = run.with_suffix(".log").open("w")
        self._process = subprocess.Popen([*command, *options], stdout=self._output, stderr=subprocess.STDOUT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def steps(self) -> list[dict]:
        """Return the metrics of the training steps so far."""
        if self._log.exists():
            with self._log.open() as file:
                file.seek(self._read)
                whole = file.read().rpartition("\n")[0]
            self._read += len(whole) + 1 if whole else 0
            lines = map(json.loads, whole.splitlines())
            self._steps += [line for line in lines if line["split"] == "train"]
        return self._steps

    def wait_for(self, count: int) -> list[dict]:
        """Wait for at least `count` steps and return the steps so far."""
        while len(self.steps()) < count:
            if self._process.poll() is not None:
                raise RuntimeError(f"training ended: {Path(self._output.name).read_text()[-500:]}")
            time.sleep(0.05)
        return self._steps

    def speed(self, seconds: float) -> float:
        """Return the tokens per second over the next `seconds`, and over at least `LEAST_STEPS` steps."""
        first = len(self.wait_for(len(self.steps()) + 1))  # the step during which the load changed does not count
        time.sleep(seconds)
        steps = self.wait_for(first + LEAST_STEPS)
        tokens, clock = (steps[-1][name] - steps[first - 1][name] for name in ("tokens", "time_s"))
        return tokens / clock


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen]]:
    """Start `count` processes that run a pure Python loop. They begin stopped: SIGCONT and SIGSTOP switch them."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        for process in busy:
            process.send_signal(signal.SIGSTOP)
        yield busy
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measure(shape: str, data: Path, run: Path, rounds: int, seconds: float) -> dict:
    """Return the speeds of one shape under each load; the loads alternate."""
    speeds: dict[int, list[float]] = {load: [] for load in LOADS}
    training = Training(shape, data, run)
    try:
        with busy_processes(max(LOADS)) as busy:
            training.wait_for(WARM_UP_STEPS)
            for number, load in turns(LOADS, rounds):
                for process in busy[:load]:
                    process.send_signal(signal.SIGCONT)
                speeds[load].append(training.speed(seconds))
                for process in busy:
                    process.send_signal(signal.SIGSTOP)
                say(f"{shape}, round {number + 1}, {load} busy: {speeds[load][-1]:,.0f} tokens/s")
    finally:
        training.close()
    quiet = statistics.median(speeds[0])
    rows = [
        {
            "busy_processes": load,
            "tokens_per_s": statistics.median(some),
            "min_tokens_per_s": min(some),
            "to_quiet": statistics.median(some) / quiet,
            "speeds": some,
        }
        for load, some in speeds.items()
    ]
    return {"shape": shape, "options": SHAPES[shape], "rows": rows}


def report(result: dict) -> str:
    """Return the result as a Markdown table."""
    device = result["device"]
    facts = (
        f"{device['cores']} cores of {device['processor']}, PyTorch {result['torch']}; load average "
        f"{result['load_average']:.1f} at the start."
    )
    head = ("shape", "busy processes", "tokens/s (median)", "tokens/s (min)", "share of the quiet speed")
    rows = [
        (
            shape["shape"],
            str(row["busy_processes"]),
            *(f"{row[name]:,.0f}" for name in ("tokens_per_s", "min_tokens_per_s")),
            f"{row['to_quiet']:.2f}",
        )
        for shape in result["shapes"]
        for row in shape["rows"]
    ]
    worst = min(shape["rows"][-1]["to_quiet"] for shape in result["shapes"])
    return "\n".join(
        [
            *heading("Training beside busy processes", result["command"], facts),
            *table(head, rows),
            "",
            f"Beside two busy processes, training keeps at least {worst:.2f} of its undisturbed speed (the target on "
            f"two cores is {TARGET}; a fair share is 0.5).",
            "",
        ]
    )


def main(arguments: list[str]) -> None:
    import torch

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.contention", description=" ".join(__doc__.split("\n\n")[0].split())
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each load")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each measurement in seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "contention", help="folder of the results")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds the stack, which ends the processes below
    result = {
        "command": command_line("benchmarks.contention", arguments),
        "device": machine(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        train_tokenizer([CORPUS], vocab_size=VOCABULARY, out=work / "tokenizer")
        build_dataset([CORPUS], tokenizer=work / "tokenizer", context_length=CONTEXT, out=work / "data")
        result["shapes"] = [
            measure(shape, work / "data", work / shape, options.rounds, options.seconds) for shape in options.shapes
        ]
    record(options.out, "contention", result, report(result))
    print(report(result))


if __name__ == "__main__":
    main(sys.argv[1:])
