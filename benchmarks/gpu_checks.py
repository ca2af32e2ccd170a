"""The stage `check` of benchmarks.gpu: tests, parallel training, resuming and synchronisation."""

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu_session import Finding, Part, Session
from benchmarks.harness import ROOT, Worker
from benchmarks.pretrain import encoded
from benchmarks.training_models import CASES, OURS
from benchmarks.training_worker import Job
from pipelines.run.retention import checkpoint_folders, latest_checkpoint

TEST_PROCESSES = 6
SAME_LOSS = 0.005  # nats; torchrun may add gradients in another order
STEPS, CHECKPOINT_STEPS = 400, 50


def cuda_tests(session: Session) -> list[Finding]:
    """Run the tests that need a GPU; without one they are skipped."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text("utf-8")]
    processes = TEST_PROCESSES if session.device == "cuda" else 0
    options = ("-m", "gpu", "-p", "no:cacheprovider", "-n", processes, "-rf", "--tb", "short", "--durations", 10)
    ran = session.run("pytest", *options, *sorted(files), may_fail=True)
    sys.stderr.write(ran["output"][-4000:])
    failed = re.findall(r"^FAILED (\S+.*)$", ran["output"], re.M)
    counts = re.findall(r"\d+ (?:passed|skipped|failed|errors?)\b", ran["output"][-200:])
    found = ", ".join(counts) or ran["error"]
    findings = [session.judged("all tests that need a GPU pass", found, bool(counts) and not ran["error"])]
    return findings + [Finding("failed test", name[:200], False) for name in failed[:20]]


def parallel(kind: str) -> Part:
    """Return the part that compares training under torchrun, with one process on the GPU, with a plain run."""

    def measure(session: Session) -> list[Finding]:
        alone, shared = _whole_run(session), session.work / kind
        torchrun = ("--standalone", "--nproc-per-node", 1, "-m", "pipelines")
        session.run("torch.distributed.run", *torchrun, *_training(session, shared), "--parallel", kind)
        one, other = _loss(alone), _loss(shared)
        target = f"the loss of one process to {SAME_LOSS} nats"
        return [session.judged(target, f"{other:.4f}, alone {one:.4f}", abs(one - other) <= SAME_LOSS)]

    return Part(f"{kind} under torchrun", 75, measure)


def resume(session: Session) -> list[Finding]:
    """Kill a deterministic run after a checkpoint, resume it, and compare its weights with an uninterrupted run."""
    whole, killed = _whole_run(session), session.work / "killed"
    words = [sys.executable, "-m", "pipelines", *map(str, _training(session, killed))]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not checkpoint_folders(killed) and process.poll() is None and session.seconds_left > 1:
            time.sleep(0.005)
        process.kill()
    if not checkpoint_folders(killed):
        raise RuntimeError("the run ended before its first checkpoint")
    step = int(latest_checkpoint(killed).name[-7:])
    session.run("pipelines", *_training(session, killed))
    same = _weights(killed) == _weights(whole)
    found = f"{'the same' if same else '**other**'} weights bit for bit, killed after step {step} of {_steps(session)}"
    return [session.judged("a killed run ends as a whole run", found, same and step < _steps(session))]


def queued_steps(session: Session) -> list[Finding]:
    """Queue two steps, with an error for any wait for the GPU; then profile two steps."""
    model = "tiny-gpt2" if session.tiny else "gpt2-124m"
    dtype = "bfloat16" if session.device == "cuda" else "float32"
    tokens = encoded(session.text(), min(8192, CASES[model].config.vocab_size), session.work)
    job = Job(OURS, model, session.device, dtype, not session.tiny, str(tokens), steps=20, rise=2)
    with Worker("benchmarks.training_worker", asdict(job)) as worker:
        answers = [worker.answer(session.seconds_left)]
        answers += [worker.ask(order, session.seconds_left) for order in ("train 3", "queue 2", "profile 2")]
    for answer in answers:
        if "error" in answer:
            raise RuntimeError(answer["error"])
    groups = sorted(answers[-1]["groups"].items(), key=lambda pair: -pair[1])
    spent = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in groups)
    return [
        session.judged("no wait from the batch to the queued optimizer", f"{answers[-2]['queued']} steps queued", True),
        Finding(f"time of a step of {model} by operation, in ms", f"{1e3 * answers[-1]['step']:.1f}: {spent}"),
    ]


CHECKS = (
    Part("tests", 240, cuda_tests),
    parallel("ddp"),
    parallel("fsdp"),
    Part("resuming after SIGKILL", 60, resume),
    Part("queued steps and their profile", 60, queued_steps),
)


def _steps(session: Session) -> int:
    return 40 if session.tiny else STEPS


def _whole_run(session: Session) -> Path:
    """Return the folder of the uninterrupted run of one process, which is trained at the first call."""
    out = session.work / "whole"
    if not out.exists():
        session.run("pipelines", *_training(session, out))
    return out


def _training(session: Session, out: Path) -> list[object]:
    """Return the arguments of `bytelm` that train a small model deterministically."""
    tokenizer, data = session.work / "tokenizer", session.work / "data"
    if not (data / "dataset.json").exists():
        text = session.text(500_000)
        session.run("pipelines", "train-tokenizer", text, "--vocab-size", 512, "--out", tokenizer, "--overwrite")
        where = ("--tokenizer", tokenizer, "--context-length", 64, "--out", data, "--split", "tail:0.1")
        session.run("pipelines", "build-dataset", text, *where)
    batch, steps = 1024, _steps(session)
    model = {"layers": 2, "width": 64 if session.tiny else 256, "heads": 2 if session.tiny else 4, "context-length": 64}
    train = {
        "device": session.device,
        "tokens": batch * steps,
        "warmup-tokens": batch,
        "validate-every-tokens": batch * steps,
        "checkpoint-every-tokens": batch * (10 if session.tiny else CHECKPOINT_STEPS),
    }
    options = [(f"--model.{name}", value) for name, value in model.items()]
    options += [(f"--train.{name}", value) for name, value in train.items()]
    words = [word for pair in options for word in pair]
    return ["pretrain", "gpt-tiny", "--data", data, "--out", out, "--train.deterministic", *words]


def _loss(run: Path) -> float:
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["loss"] for line in lines if line["split"] == "validation"][-1]


def _weights(run: Path) -> bytes:
    return (latest_checkpoint(run) / "model.safetensors").read_bytes()
