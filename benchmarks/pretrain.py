"""Compare pretraining with its peers: the same model, weights, batches and optimizer, in alternating turns of steps.

    python -m benchmarks.pretrain --text FILE.jsonl.xz [--models gpt2 llama bert] [--litgpt-python PYTHON]

Each contestant runs in its own process and waits while the others train. This writes
benchmarks/results/pretrain/DEVICE-DTYPE.json and .md, such as cpu-float32.json, in the fastest dtype of the device.
Recorded models that are not measured again stay. litgpt and transformers need different versions of huggingface_hub, so
`make bench-pretrain` gives litgpt a separate environment. A contestant that cannot run is listed with its error.
"""

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import RESULTS, Worker, command_line, device_name, record, say, turns
from benchmarks.limits import device_bandwidth
from benchmarks.training_models import CASES, ON_A_CPU, ON_A_GPU, OURS, PEERS, Case, peers_of
from benchmarks.training_report import markdown, verdict
from benchmarks.training_worker import Job
from corpora import open_corpus
from lm.costs import count_parameters, flops_per_token, meta_model
from pipelines.machine import choose_machine, matmul_flops, tabulated_flops
from tokenizer import DEFAULT_SPECIAL_TOKENS, Tokenizer

VOCABULARY = 8192  # the most entries in use; a model with a larger vocabulary leaves the rest unused
SAME_LOSS, LAST_STEPS = 0.01, 10
PROFILED_STEPS = 3
# Float32 traffic per parameter and step: forward and backward read the weight, the gradient is written and read, and
# AdamW reads and writes the weight and both moments.
BYTES_A_PARAMETER = 4 * (2 + 2 + 6)


class Contestant:
    """A process that trains one peer's model on request, some steps at a time."""

    def __init__(self, job: Job, worker: Worker) -> None:
        self.job = job
        self.name = ", ".join([job.peer, *["compiled"] * job.compiled])
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.peak, self.profile = 0, {}
        self._worker = worker
        self.ready = worker.answer()
        self.error = self.ready.get("error", "")

    def train(self, steps: int) -> None:
        """Train for `steps` steps and record their times and losses."""
        if answer := self._ask(f"train {steps}"):
            self.seconds += answer["seconds"]
            self.losses += answer["losses"]
            self.peak = answer["peak"]

    def rest(self) -> None:
        """Give back the memory that the steps do not hold."""
        self._ask("rest")

    def profiled(self, steps: int) -> None:
        """Train for `steps` steps under the profiler and record the profile."""
        self.profile = self._ask(f"profile {steps}")

    def _ask(self, order: str) -> dict:
        answer = {"error": self.error} if self.error else self._worker.ask(order)
        self.error = answer.pop("error", "")
        return answer


def encoded(text: Path, vocab_size: int, folder: Path) -> Path:
    """Train a vocabulary on a corpus, encode it, and return a file of uint16 ids."""
    file = folder / f"{vocab_size}.bin"
    if file.exists():
        return file
    texts = [batch.column("text") for batch in open_corpus([str(text)]).batches("train")]
    tok = Tokenizer.train(
        (document.as_py() for column in texts for document in column),
        vocab_size=vocab_size,
        special_tokens=DEFAULT_SPECIAL_TOKENS,
    )
    ids = np.concatenate([tok.encode_arrow(column).flatten().to_numpy() for column in texts])
    ids.astype(np.uint16).tofile(file)
    return file


def jobs_of(model: str, options: argparse.Namespace, folder: Path) -> list[Job]:
    """Return a job for each contestant of a model."""
    case = CASES[model]
    tokens = encoded(options.text, min(VOCABULARY, case.config.vocab_size), folder)
    contestants = [OURS, *(peer for peer in peers_of(case) if peer in options.peers)]
    return [
        Job(peer, model, options.device, options.dtype, compiled, str(tokens), options.steps, options.rise)
        for compiled in options.compiled
        for peer in contestants
    ]


def start(job: Job, options: argparse.Namespace) -> Worker:
    say(f"{job.model}: starting {job.peer}{', compiled' if job.compiled else ''}")
    python = str(options.litgpt_python) if job.peer == "litgpt" else sys.executable
    return Worker("benchmarks.training_worker", asdict(job), python)


def measure(model: str, options: argparse.Namespace, folder: Path) -> dict:
    """Return the result of all contestants for one model."""
    jobs, peak = jobs_of(model, options, folder), 0.0
    if options.turn:
        field, peak = _by_turns(model, jobs, options)
    else:
        field = []
        for job in jobs:
            peak = max(peak, _matrix_flops(options))
            field += _by_turns(model, [job], options)[0]
    return _result(model, CASES[model], field, peak, options)


def measure_together(options: argparse.Namespace, folder: Path) -> list[dict]:
    """Return the results of all models.

    `options.together` contestants compile at the same time. Then they train one after the other.
    """
    jobs = [job for model in options.models for job in jobs_of(model, options, folder)]
    fields: dict[str, list[Contestant]] = {model: [] for model in options.models}
    peak = 0.0
    for first in range(0, len(jobs), options.together):
        some = jobs[first : first + options.together]
        with ExitStack() as workers, ThreadPoolExecutor(len(some)) as pool:
            there = [workers.enter_context(start(job, options)) for job in some]
            for each in list(pool.map(_warmed_up, some, there, [options.warm_up] * len(some))):
                fields[each.job.model].append(each)
                peak = max(peak, _matrix_flops(options))
                say(f"{each.job.model}: {each.name}")
                each.train(options.steps - options.warm_up)
                if each.job.peer == OURS:
                    each.profiled(PROFILED_STEPS)
                each.rest()
    return [_result(model, CASES[model], field, peak, options) for model, field in fields.items()]


def _warmed_up(job: Job, worker: Worker, steps: int) -> Contestant:
    contestant = Contestant(job, worker)
    contestant.train(steps)
    contestant.rest()
    return contestant


def _by_turns(model: str, jobs: list[Job], options: argparse.Namespace) -> tuple[list[Contestant], float]:
    """Train contestants in turns. Return them and the fastest matrix product between turns in FLOP/s."""
    field, peak = [], 0.0
    turn = options.turn or options.steps - options.warm_up
    with ExitStack() as workers:
        for job in jobs:
            field.append(Contestant(job, workers.enter_context(start(job, options))))
            field[-1].train(options.warm_up)
        for position, (number, each) in enumerate(turns(field, (options.steps - options.warm_up) // turn)):
            if position % len(field) == 0:
                peak = max(peak, _matrix_flops(options))
            say(f"{model}: round {number + 1}, {each.name}")
            each.train(turn)
        for each in field:
            if each.job.peer == OURS:
                each.profiled(PROFILED_STEPS)
    return field, peak


def _matrix_flops(options: argparse.Namespace) -> float:
    size = 8192 if options.device == "cuda" else 2048
    return matmul_flops(getattr(torch, options.dtype), size, options.device)


def _result(model: str, case: Case, field: list[Contestant], peak: float, options: argparse.Namespace) -> dict:
    model_of_case = meta_model(case.config)
    flops = flops_per_token(model_of_case)
    moved, bandwidth = count_parameters(model_of_case) * BYTES_A_PARAMETER, device_bandwidth(options.device)
    rows = [_row(each, case, flops, peak, options) for each in field]
    theirs = [row["tokens_per_s"] for row in rows if "tokens_per_s" in row and row["peer"] != OURS]
    own = next((row["loss"] for row in rows if "loss" in row and row["peer"] == OURS), None)
    for row in rows:
        if "tokens_per_s" in row:
            row["to_best_peer"] = row["tokens_per_s"] / max(theirs) if theirs else None
            row["loss_difference"] = abs(row["loss"] / own - 1.0) if own else 0.0
            row["same_loss"] = row["loss_difference"] <= SAME_LOSS
    by_turns = f"contestants took turns of {options.turn} steps, so other load affects all of them"
    alone = "one contestant after the other"
    alone += f", after {options.together} had compiled at the same time" if options.together else ""
    result = {
        "model": model,
        "shape": case.says,
        "versions": {"torch": torch.__version__} | {row["peer"]: row["version"] for row in rows if row.get("version")},
        "turns": by_turns if options.turn else alone,
        "steps": options.steps,
        "timed_steps": options.steps - options.warm_up,
        "flops_per_token": flops,
        "matrix_flops": peak,
        "floor_tokens_per_s": peak / flops,
        "floor_s": case.tokens * flops / peak,
        "bytes_per_step": moved,
        "read_bytes_per_s": bandwidth,
        "floor_bytes_s": moved / bandwidth,
        "rows": rows,
    }
    return {**result, "verdict": verdict(result)}


def _row(each: Contestant, case: Case, flops: float, peak: float, options: argparse.Namespace) -> dict:
    row = {"contestant": each.name, "peer": each.job.peer}
    timed = each.seconds[options.warm_up :]
    if each.error or not timed:
        return {**row, "error": each.error}
    step = statistics.median(timed)
    tabulated = tabulated_flops(device_name(options.device)) if options.dtype == "bfloat16" else None
    return {
        **row,
        "tokens_per_s": case.tokens / step,
        "share_of_matrix_peak": case.tokens * flops / peak / step,
        "mfu": case.tokens * flops / tabulated / step if tabulated else None,
        "step_s": step,
        "seconds": timed,
        "start_s": each.ready["ready"],
        "first_step_s": each.seconds[0],
        "peak_bytes": each.peak,
        "loss": statistics.fmean(each.losses[-LAST_STEPS:]),
        "losses": each.losses,
        "profile": each.profile,
        "version": each.ready["version"],
    }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pretrain", description=" ".join(__doc__.split("\n\n")[0].split())
    )
    parser.add_argument("--text", type=Path, required=True, help="training corpus, at least 2 MB")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--dtype",
        choices=["auto", "float32", "bfloat16"],
        default="auto",
        help="dtype of activations and matrix products; auto: bfloat16 if it is faster",
    )
    parser.add_argument("--models", nargs="+", choices=CASES, help="default: models that suit the device")
    parser.add_argument("--steps", type=int, default=100, help="number of optimizer steps")
    parser.add_argument("--warm-up", type=int, default=20, help="untimed steps at the start")
    parser.add_argument("--rise", type=int, default=20, help="warm-up steps of the learning rate")
    parser.add_argument(
        "--turn",
        type=int,
        help="steps per turn (default: 5 on a CPU); 0: one contestant after the other, the default on a GPU, whose "
        "memory they cannot share",
    )
    compiled = parser.add_mutually_exclusive_group()
    compiled.add_argument(
        "--no-compiled",
        dest="compiled",
        action="store_const",
        const=[False],
        default=[False, True],
        help="skip contestants with torch.compile",
    )
    compiled.add_argument(
        "--only-compiled", dest="compiled", action="store_const", const=[True], help="skip contestants without it"
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="peers; none: only bytelm")
    parser.add_argument(
        "--together",
        type=int,
        default=0,
        metavar="N",
        help="let N contestants compile at the same time, then train one after the other; saves minutes on a lent GPU",
    )
    parser.add_argument(
        "--litgpt-python", type=Path, default=Path(sys.executable), help="Python interpreter with litgpt"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "pretrain", help="results folder")
    options = parser.parse_args(arguments)
    if options.dtype == "auto":
        options.dtype = choose_machine(options.device).dtype_name
    options.models = options.models or list(ON_A_GPU if options.device == "cuda" else ON_A_CPU)
    if options.turn is None or options.together:
        options.turn = 0 if options.device == "cuda" or options.together else 5
    if not options.text.is_file():
        parser.error(f"--text {options.text}: there is no such file")
    if not options.litgpt_python.is_file():
        parser.error(f"--litgpt-python {options.litgpt_python}: there is no such interpreter")
    timed = options.steps - options.warm_up
    if options.warm_up < 1 or timed < 1 or (options.turn and timed % options.turn):
        parser.error(
            f"--steps {options.steps} minus --warm-up {options.warm_up} is {timed} steps: it must be a positive "
            f"multiple of --turn {options.turn}, and --warm-up at least 1"
        )
    return options


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    command = command_line("benchmarks.pretrain", arguments)
    file = options.out / f"{'gpu' if options.device == 'cuda' else 'cpu'}-{options.dtype}.json"
    with tempfile.TemporaryDirectory() as folder:
        if options.together:
            results = iter(measure_together(options, Path(folder)))
        else:
            results = (measure(model, options, Path(folder)) for model in options.models)
        for result in results:
            _record(file, {**result, "command": command}, options)
    print(file.with_suffix(".md").read_text())


def _record(file: Path, case: dict, options: argparse.Namespace) -> None:
    """Add or replace a model's result in the file of its device and dtype."""
    result = {"device": device_name(options.device), "dtype": options.dtype, "tolerance": SAME_LOSS, "models": []}
    before = json.loads(file.read_text()) if file.is_file() else {}
    cases = {case["model"]: case}
    if (before.get("device"), before.get("dtype")) == (result["device"], result["dtype"]):
        cases = {each["model"]: each for each in before["models"]} | cases
    result["models"] = [cases[model] for model in CASES if model in cases]
    record(file.parent, file.stem, result, markdown(result))


if __name__ == "__main__":
    main(sys.argv[1:])
