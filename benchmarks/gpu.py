"""Check and measure everything on a GPU, in five stages of less than nine minutes.

    python -m benchmarks.gpu [check] [speed] [peers] [train] [learn] [--texts FOLDER] [--out FOLDER]

Each part runs in fresh processes with a time limit. A part that fails is listed with its error, and the next one runs.
Results go to gpu.json and gpu.md after each part, beside the results of the benchmarks that the parts run. A part
replaces its own earlier result on this device and no other. `--parts NAME...` runs only these parts of the stages.

`--device cpu --tiny` runs the same parts with tiny shapes on a CPU, where no target is judged. `benchmarks/gpu.sh`
calls this module without a virtual environment, and takes missing packages from the wheels in $BYTELM_WHEELS.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_checks import CHECKS
from benchmarks.gpu_session import Finding, Part, Session, Skipped
from benchmarks.harness import RESULTS, command_line, device_name, heading, met, record, say, table
from benchmarks.recipe_variants import SWEEP
from benchmarks.texts import SHARED
from pipelines.run.folder import Run

Rows = dict[str, dict]
GPT2, SPEED = "gpt2-124m", 550_000  # tokens/s on an H200; plain PyTorch reaches 490,000
TOGETHER = 2  # models that compile at the same time: they fit into 80 GB
BERT, BERT_SPEED = "bert-base", 700_000
TO_GPT2, TO_BERT, TO_GENERATION = 1.1, 1.5, 2.0  # times the speed of compiled transformers
MFU = 0.5  # of a measured matrix product
NATS, TRAINING_SECONDS = 1.42, 60
DEMO_SECONDS = 120
BOOKS = "books.jsonl.xz"
FIRST_BITS = 1.5  # bits per byte of books after a minute of `bytelm train`; two cores of a CPU reach 1.82
TOKENS, SOONER, SOONEST = 20_000_000, 10_000_000, 6_700_000  # of GPT-2, and of `modern` for the same loss
PROCESSES = 8  # small models trained at once: a single one does not fill a GPU
CPU_PATIENCE = 5  # factor of the time limits on a CPU
MODERN = ("modern", "modern, batches of 4,096")


def memory_and_products(session: Session) -> list[Finding]:
    """Measure memory bandwidth and matrix products, which bound all other speeds."""
    found = session.module("benchmarks.limits", session.device)
    return [
        Finding("memory bandwidth", f"{found['bytes_per_s'] / 1e9:,.0f} GB/s"),
        Finding("bfloat16 products", f"{found['flops'] / 1e12:,.1f} TFLOP/s"),
    ]


def trained(session: Session, models: Sequence[str], *options: str, steps: int = 40) -> dict[str, Rows]:
    """Return the rows of compiled contestants that train models, by the model and the name of the contestant."""
    tiny = {model: "tiny-bert" if model.startswith("bert") else "tiny-gpt2" for model in models}
    names, steps, warm_up = (tiny, 4, 2) if session.tiny else (dict(zip(models, models, strict=True)), steps, 15)
    dtype = "bfloat16" if session.device == "cuda" else "float32"
    where = ("--text", session.text(), "--device", session.device, "--dtype", dtype, "--out", session.out)
    length = ("--steps", steps, "--warm-up", min(warm_up, steps // 2), "--rise", steps // 4, "--together", TOGETHER)
    compiled = "--no-compiled" if session.tiny else "--only-compiled"
    session.run("benchmarks.pretrain", *where, *length, compiled, "--models", *dict.fromkeys(names.values()), *options)
    file = session.out / f"{'gpu' if session.device == 'cuda' else 'cpu'}-{dtype}.json"
    cases = {case["model"]: case["rows"] for case in json.loads(file.read_text())["models"]}
    return {
        model: {row["contestant"].replace(", compiled", ""): row for row in cases[names[model]]} for model in models
    }


def training(session: Session) -> list[Finding]:
    """Measure the training speed of GPT-2 and BERT beside compiled transformers."""
    peers = ["transformers"] if find_spec("transformers") else []
    found = trained(session, [GPT2, BERT], "--peers", *peers)
    findings = [_speed(session, GPT2, found[GPT2], SPEED), _speed(session, BERT, found[BERT], BERT_SPEED)]
    for model, target in ((GPT2, TO_GPT2), (BERT, TO_BERT)) if peers else ():
        findings.append(_beside(session, model, found[model], target))
    return findings


def gpt2_accumulated(session: Session) -> list[Finding]:
    model = f"{GPT2}-524k"
    return [_speed(session, model, trained(session, [model], "--peers", steps=30)[model], SPEED)]


def larger(model: str) -> Callable[[Session], list[Finding]]:
    """Return the function that measures a model's training speed as a share of the speed of a matrix product."""

    def measure(session: Session) -> list[Finding]:
        row = _checked(trained(session, [model], "--peers", steps=30)[model]["bytelm"])
        share = row["share_of_matrix_peak"]
        found = f"{share:.0%} ({row['tokens_per_s']:,.0f} tokens/s, {row['peak_bytes'] / 1e9:.0f} GB)"
        return [session.judged(f"{MFU:.0%} of the speed of a matrix product", found, share >= MFU)]

    return measure


def _checked(row: dict) -> dict:
    if "tokens_per_s" not in row:
        raise RuntimeError(f"{row['contestant']}: {row['error']}")
    return row


def _speed(session: Session, model: str, rows: Rows, target: float) -> Finding:
    row, target = _checked(rows["bytelm"]), session.scaled(target)
    share = f"{row['share_of_matrix_peak']:.0%} of a matrix product's speed, {row['peak_bytes'] / 1e9:.0f} GB"
    found = f"{row['tokens_per_s']:,.0f} tokens/s ({share}, loss {row['loss']:.3f})"
    return session.judged(f"{model}: {target:,.0f} tokens/s", found, row["tokens_per_s"] >= target)


def _beside(session: Session, model: str, rows: Rows, target: float) -> Finding:
    ours, theirs = (_checked(rows[name]) for name in ("bytelm", "transformers"))
    ratio = ours["tokens_per_s"] / theirs["tokens_per_s"]
    same = "" if theirs["same_loss"] else "; **the losses differ**"
    found = f"{ratio:.2f} (transformers {theirs['tokens_per_s']:,.0f} tokens/s{same})"
    return session.judged(f"{model}: {target} times compiled transformers", found, ratio >= target and not same)


def generation(session: Session) -> list[Finding]:
    session.require("transformers")
    size = ("--tokens", 4, "--prompt", 4, "--rounds", 1) if session.tiny else ("--tokens", 256, "--rounds", 3)
    dtype = "bfloat16" if session.device == "cuda" else "float32"
    where = ("--device", session.device, "--dtypes", dtype, "--cache", "static", "--out", session.out)
    session.run("benchmarks.generate", *where, *size)
    cases = json.loads((session.out / f"{session.device}.json").read_text())["cases"]
    return [
        session.judged(
            f"{TO_GENERATION:g} times transformers with a static cache, batch {case['batch']}",
            f"{case['ratio']:.2f} ({case['tokens_per_s']['bytelm']['best']:,.0f} tokens/s)",
            case["ratio"] >= TO_GENERATION,
        )
        for case in cases
    ]


def shakespeare(session: Session) -> list[Finding]:
    recipe = "bytes-tiny" if session.tiny else "bytes-small"
    size = ("--tokens", 20_000, "--stride", 64) if session.tiny else ()
    where = ("--text", session.given("tinyshakespeare.txt"), "--runs", 1, "--out", session.out)
    session.run("benchmarks.shakespeare", *where, "--recipe", recipe, *size)
    (run,) = json.loads((session.out / f"{recipe}.json").read_text())["runs"]
    nats, seconds = run["nats_per_byte"], run["seconds_without_compilation"]
    return [
        session.judged(f"{NATS} nats per character", f"{nats:.4f}", nats <= NATS),
        session.judged(f"within {TRAINING_SECONDS} s, compilation excluded", f"{seconds:.0f} s", seconds <= 60),
    ]


def demo(session: Session) -> list[Finding]:
    length = ("--minutes", 0.02) if session.tiny else ()
    seconds = session.run("pipelines", "demo", "--out", session.work / "demo", *length)["seconds"]
    return [session.judged(f"make demo in {DEMO_SECONDS} s", f"{seconds:.0f} s", seconds < DEMO_SECONDS)]


def first_model(session: Session) -> list[Finding]:
    """Train for a minute with `bytelm train`, which chooses the vocabulary, the model and the batch."""
    books, folder = session.texts / BOOKS, session.work / "first"
    text = books if books.is_file() and not session.tiny else session.text()
    session.run("pipelines", "train", text, "--minutes", 0.02 if session.tiny else 1, "--out", folder)
    run = Run(folder / "gpt")
    model, last = run.recipe.model, run.metrics()[-1]
    bits = json.loads((run.folder / "evaluation.json").read_text())["splits"]["validation"]["bits_per_byte"]
    shape = f"{model.layers} layers of width {model.width}, batches of {run.recipe.train.batch_tokens:,} tokens"
    speed = f"{last['tokens'] / last['time_s']:,.0f} tokens/s"
    return [first_bits(session, text, bits, f"{shape}, {speed}")]


def first_bits(session: Session, text: Path, bits: float, facts: str) -> Finding:
    """Return the finding of `first_model`. Only books are judged: code takes fewer bits per byte."""
    found = f"{bits:.3f}: {facts}"
    if text.name != BOOKS:
        return Finding("bits per byte of Python's own sources", found)
    return session.judged(f"{FIRST_BITS} bits per byte of books", found, bits <= FIRST_BITS)


def modern(session: Session) -> list[Finding]:
    """Train GPT-2 with all settings of the sweep, and `modern` on fewer tokens, several runs at a time."""
    whole, sooner, soonest = (4096, 2048, 1024) if session.tiny else (TOKENS, SOONER, SOONEST)
    corpora = [session.texts / f"{name}.jsonl.xz" for name in ("books", "enwiki")]
    texts = [path for path in corpora if path.is_file() and not session.tiny] or [session.text(8_000_000)]
    shared = ("--text", *texts, "--folder", session.work / "recipes", "--results", session.out)

    def train(variant: str, tokens: int) -> str:
        try:
            session.run("benchmarks.recipes", *shared, "--variants", variant, "--tokens", tokens, threads=1)
        except RuntimeError as error:
            return f"{variant}, {tokens:,} tokens: {error}"
        return ""

    swept = [name for name in SWEEP if "8e-3" not in name][: 2 if session.tiny else None]
    jobs = [(MODERN[1], soonest), *((name, whole) for name in swept), (MODERN[0], soonest), (MODERN[0], sooner)]
    failed = [train(MODERN[1], sooner)]  # makes the dataset, too
    with ThreadPoolExecutor(PROCESSES) as pool:
        failed += pool.map(lambda job: train(*job), jobs)
    reached: dict[tuple[str, int], float] = {}
    for row in json.loads((session.out / "recipes.json").read_text()):
        reached[row["variant"], row["tokens"]] = row["bits_per_byte"]
    sweep = {name: reached[name, whole] for name in swept if (name, whole) in reached}
    if not sweep:
        raise RuntimeError("; ".join(filter(None, failed)))
    best = min(sweep, key=sweep.__getitem__)
    findings = [
        Finding(f"the best of {len(sweep)} settings of GPT-2 on {whole:,} tokens", f"{best}: {sweep[best]:.4f}")
    ]
    for tokens in (sooner, soonest):
        name, bits = min(((n, reached.get((n, tokens), float("inf"))) for n in MODERN), key=lambda pair: pair[1])
        target = f"modern reaches that in {tokens:,}"
        findings.append(session.judged(target, f"{name}: {bits:.4f} bits per byte", bits <= sweep[best]))
    return findings + [Finding("not trained", error) for error in failed if error]


STAGES: dict[str, tuple[Part, ...]] = {
    "check": CHECKS,
    "speed": (
        Part("limits", 30, memory_and_products),
        Part("training", 240, training),
        Part("GPT-2 350M", 90, larger("gpt2-350m")),
        Part("GPT-2 124M, 524,288 tokens a step", 75, gpt2_accumulated),
        Part("GPT-3 1.3B", 95, larger("gpt3-1.3b")),
    ),
    "peers": (Part("generation", 165, generation),),
    "train": (Part("demo", 115, demo), Part("bytelm train", 150, first_model)),
    "learn": (
        Part("bytes of tinyshakespeare", 145, shakespeare),
        Part("modern and GPT-2", 380, modern),
    ),
}


def run_part(session: Session, stage: str, part: Part) -> dict:
    """Return the findings of a part, or the reason why it was skipped or failed."""
    limit = part.limit if session.device == "cuda" else CPU_PATIENCE * part.limit
    say(f"== {stage}: {part.name} (at most {limit:.0f} s)")
    started = time.monotonic()
    session.deadline = started + limit
    try:
        findings = part.measure(session)
    except Skipped as skipped:
        findings = [Finding("-", f"skipped: {skipped}")]
    except Exception as error:  # whatever it is, the next part runs
        findings = [Finding("-", f"failed: {error}", False)]
    for finding in findings:
        say(f"{finding.target}: {finding.found}")
    seconds = round(time.monotonic() - started, 1)
    return {"stage": stage, "part": part.name, "seconds": seconds, "findings": [asdict(each) for each in findings]}


def markdown(result: dict) -> str:
    rows = [
        (part["stage"], part["part"], *_cells(finding), f"{part['seconds']:.0f} s")
        for part in result["parts"]
        for finding in part["findings"]
    ]
    head = ("stage", "part", "target", "found", "verdict", "the part took")
    facts = f"{result['device']}; {_named(result['versions'])}."
    lines = [*heading("On a GPU", result["command"], facts), *_earlier_runs(result["parts"])]
    return "\n".join([*lines, *table(head, rows), ""])


def _named(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _earlier_runs(parts: Sequence[dict]) -> list[str]:
    """Return a line for each earlier run that parts are from: its command, its versions and these parts."""
    runs: dict[str, list[str]] = {}
    for part in parts:
        if "command" in part:
            run = f"`{part['command']}` with {_named(part['versions'])}"
            runs.setdefault(run, []).append(part["part"])
    lines = [f"- Parts of an earlier run, {run}: {'; '.join(names)}." for run, names in runs.items()]
    return [*lines, ""] if lines else []


def _cells(finding: dict) -> tuple[str, str, str]:
    verdict = "" if finding["met"] is None else met(finding["met"])
    return finding["target"], finding["found"].replace("|", "/"), verdict


def earlier_parts(file: Path, device: str) -> dict[tuple[str, str], dict]:
    """Return the recorded parts on this device by stage and name, each with the command and versions of its run."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if before.get("device") != device:
        return {}
    run = {"command": before["command"], "versions": before["versions"]}
    return {(part["stage"], part["part"]): run | part for part in before["parts"]}


def versions() -> dict[str, str]:
    import torch

    found = {"Python": sys.version.split()[0], "torch": torch.__version__, "CUDA": torch.version.cuda or "none"}
    for name in ("triton", "numpy", "numba", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}; default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes; no target is judged")
    parser.add_argument("--parts", nargs="+", default=[], metavar="NAME", help="only these parts of the stages")
    parser.add_argument("--texts", type=Path, default=SHARED / "corpora", help="tinyshakespeare.txt, books, enwiki")
    default = Path(os.environ.get("BYTELM_RESULTS", RESULTS / "gpu"))
    parser.add_argument("--out", type=Path, default=default, help="results folder; default: $BYTELM_RESULTS")
    options = parser.parse_args(arguments)
    if unknown := [stage for stage in options.stages if stage not in STAGES]:
        parser.error(f"unknown stage {unknown[0]!r}: choose from {', '.join(STAGES)}")
    result = {
        "command": command_line("benchmarks.gpu", arguments),
        "device": device_name(options.device),
        "versions": versions(),
        "parts": [],
    }
    parts = earlier_parts(options.out / "gpu.json", result["device"])
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        work, out = Path(folder), options.out.resolve()
        session = Session(options.device, options.tiny, out, work, options.texts.resolve(), result["device"])
        for stage in options.stages or STAGES:
            for part in STAGES[stage]:
                if not options.parts or part.name in options.parts:
                    found = run_part(session, stage, part)
                    failed |= any(each["found"].startswith("failed") for each in found["findings"])
                    parts.pop((stage, part.name), None)  # the new one comes last
                    parts[stage, part.name] = found
                    result["parts"] = [*parts.values()]
                    record(out, "gpu", result, markdown(result))
    print(markdown(result))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
