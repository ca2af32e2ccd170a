"""Pretraining beside its peers: the same model, weights, batches and optimizer; steps in turn, each peer in a process
of its own that waits while the others work.

    python -m benchmarks.pretrain --text FILE.jsonl.xz [--models gpt2 llama bert] [--rounds 10] [--compiled]

writes benchmarks/results/pretrain/DEVICE.json and .md.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from benchmarks.texts import ROOT
from benchmarks.training_models import CASES, OURS, PEERS
from corpora import open_corpus
from lm.counting import flops_per_token, model_without_memory
from pipelines.training.machine import matmul_flops
from tokenizer import DEFAULT_SPECIAL_TOKENS, Tokenizer

RESULTS = Path(__file__).with_name("results") / "pretrain"
VOCABULARY = 8192
SAME_LOSS = 0.01


class Contestant:
    """A process that trains one peer's model, a few steps whenever it is asked."""

    def __init__(self, peer: str, model: str, compiled: bool, tokens: Path, log: Path) -> None:
        self.name = f"{peer}, compiled" if compiled else peer
        self.peer, self.seconds, self.losses, self.peak, self.error = peer, [], [], 0, ""
        job = {"peer": peer, "model": model, "compiled": compiled, "tokens": str(tokens)}
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.training_worker", json.dumps(job)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._log_path = log
        self.ready = self._answer()  # seconds until it can train, a compilation included

    def train(self, steps: int) -> None:
        """So many steps; remembers their time and losses."""
        if self.error:
            return
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer:
            self.seconds.append(answer["seconds"] / steps)
            self.losses += answer["losses"]
            self.peak = answer["peak"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            said = self._log_path.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            self.error = f"ended: {said[0]}"[:200]
            return {}
        return json.loads(line)


def encoded(text: Path, folder: Path) -> Path:
    """The tokens of a corpus under a vocabulary of its own, as a file of uint16."""
    texts = [batch.column("text") for batch in open_corpus([str(text)]).batches("train")]
    tok = Tokenizer.train(
        (document.as_py() for column in texts for document in column),
        vocab_size=VOCABULARY,
        special_tokens=DEFAULT_SPECIAL_TOKENS,
    )
    ids = np.concatenate([tok.encode_arrow(column).flatten().to_numpy() for column in texts])
    ids.astype(np.uint16).tofile(folder / "tokens.bin")
    return folder / "tokens.bin"


def measure(model: str, tokens: Path, arguments: argparse.Namespace, folder: Path) -> dict:
    """All contestants of one model, in turn."""
    case = CASES[model]
    ways = [False, True] if arguments.compiled else [False]
    field = [
        Contestant(peer, model, compiled, tokens, folder / f"{model}-{peer}-{compiled}.log")
        for compiled in ways
        for peer in PEERS[model]
    ]
    matrix = 0.0
    try:
        for each in field:
            each.train(arguments.warm_up)
            each.seconds.clear()
        for number in range(arguments.rounds):
            matrix = max(matrix, matmul_flops(torch.bfloat16, size=2048, repeats=3))
            for each in field[number % len(field) :] + field[: number % len(field)]:
                print(f"{model}: round {number + 1} of {arguments.rounds}, {each.name}", file=sys.stderr, flush=True)
                each.train(arguments.steps)
    finally:
        for each in field:
            each.close()
    flops = flops_per_token(model_without_memory(case.config), case.length)
    batch_tokens = case.batch * case.length
    ours = next(each for each in field if each.name == OURS)
    rows = [_row(each, ours, batch_tokens, flops, matrix) for each in field]
    return {
        "model": model,
        "shape": case.says,
        "flops_per_token": flops,
        "matrix_flops": matrix,
        "steps": arguments.warm_up + arguments.rounds * arguments.steps,
        "rows": rows,
        "floor_tokens_per_s": matrix / flops,
    }


def _row(each: Contestant, ours: Contestant, batch_tokens: int, flops: float, matrix: float) -> dict:
    if each.error or not each.seconds:
        return {"contestant": each.name, "error": each.error}
    last = slice(-10, None)
    loss, own = statistics.fmean(each.losses[last]), statistics.fmean(ours.losses[last])
    median = batch_tokens / statistics.median(each.seconds)
    return {
        "contestant": each.name,
        "tokens_per_s": median,
        "best_tokens_per_s": batch_tokens / min(each.seconds),
        "share_of_matrix_peak": median * flops / matrix,
        "ready_s": each.ready.get("ready"),
        "peak_bytes": each.peak,
        "loss": loss,
        "same_loss": math.isclose(loss, own, rel_tol=SAME_LOSS),
        "seconds_per_step": each.seconds,
    }


def markdown(result: dict) -> str:
    lines = [
        "# Pretraining beside its peers",
        "",
        f"`{result['command']}` on {result['device']}; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ".",
        "",
        "Each contestant trains in a process of its own and they take turns, so that a busy machine is busy for all. "
        "Medians of tokens a second after the warm-up; the loss is the mean of the last ten steps, and counts as the "
        "same within 1 %. The peak is what a 2,048-cubed product in bfloat16 reached during the run.",
    ]
    for case in result["models"]:
        lines += [
            "",
            f"## {case['model']}: {case['shape']}",
            "",
            f"{case['steps']} steps; {case['flops_per_token'] / 1e6:.0f} MFLOP a token, peak "
            f"{case['matrix_flops'] / 1e9:.0f} GFLOP/s: at most {case['floor_tokens_per_s']:,.0f} tokens/s.",
            "",
            "| contestant | tokens/s | best | share of the peak | peak MB | ready after | loss |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in sorted(case["rows"], key=lambda row: -row.get("tokens_per_s", 0)):
            if "tokens_per_s" not in row:
                lines.append(f"| {row['contestant']} | {row['error']} |")
                continue
            same = "" if row["same_loss"] else " (**another**)"
            lines.append(
                f"| {row['contestant']} | {row['tokens_per_s']:,.0f} | {row['best_tokens_per_s']:,.0f} | "
                f"{row['share_of_matrix_peak']:.0%} | {row['peak_bytes'] / 1e6:,.0f} | {row['ready_s']:.0f} s | "
                f"{row['loss']:.3f}{same} |"
            )
    return "\n".join(lines) + "\n"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrain", description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, required=True, help="a corpus to train on, at least 2 MB")
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contestant")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps a turn")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the clock counts")
    parser.add_argument("--compiled", action="store_true", help="each contestant also compiled by torch.compile")
    arguments = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tokens = encoded(arguments.text, Path(folder))
        models = [measure(model, tokens, arguments, Path(folder)) for model in arguments.models]
    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if gpu else f"{os.cpu_count()} cores of {platform.processor() or 'a CPU'}"
    peers = {peer for model in arguments.models for peer in PEERS[model]} - {OURS}
    result = {
        "command": "python -m benchmarks.pretrain " + " ".join(a for a in sys.argv[1:] if "/" not in a),
        "device": device,
        "versions": {name: _version(name) for name in ("torch", *sorted(peers))},
        "models": models,
        "took_s": round(time.perf_counter() - started),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "gpu" if gpu else "cpu"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
