"""`bytelm demo`: the whole main job on the built-in corpus, from text to a report, in minutes on 2 cores."""

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.run.recipe import Recipe, load_recipe

CORPUS = "stdlib"
VOCAB_SIZE = 8192
CONTEXT_LENGTH = 256
# Seconds of training; the numbers of tokens follow from the speed measured first. A token costs the GPT more.
SECONDS = 160
SHARES = {"gpt": 0.6, "bert": 0.4}
# No model passes over the training text more often than this, however fast the machine.
MAX_EPOCHS = 6


@verb
def demo(out: Path = Path("bytelm-demo"), *, seconds: float = SECONDS, fresh: bool = False) -> dict[str, Any]:
    """Train a tokenizer, a small GPT and a small BERT on Python's standard library, evaluate them, write report.html.

    What is in the folder already is used again; what was interrupted goes on.

    Args:
        out: Folder for everything that is made.
        seconds: Training time for both models together, about.
        fresh: Whether to throw away what is there and start again.
    """
    from pipelines.cli.display import say

    started = time.monotonic()
    if fresh and out.exists():
        if not (out / "tokenizer").exists():
            raise ValueError(f"{out} is not a folder of this demo: remove it yourself, or choose another --out")
        shutil.rmtree(out)
    _heading(1, f"vocabulary: {VOCAB_SIZE:,} entries from the standard library of Python {sys.version.split()[0]}")
    _tokenizer(out)
    data = _dataset(out)
    _heading(3, "a GPT: predicts the next token")
    status = _train(load_recipe("gpt-tiny"), data, out / "gpt", SHARES["gpt"] * seconds)
    if not status:
        _heading(4, "a BERT: predicts masked tokens")
        status = _train(load_recipe("bert-tiny"), data, out / "bert", SHARES["bert"] * seconds)
    if status:
        raise KeyboardInterrupt
    _heading(5, "what they are worth on text they have not seen")
    results = {"gpt": _evaluation(out / "gpt", compressors=True), "bert": _evaluation(out / "bert", compressors=False)}
    _heading(6, "report")
    _show(out, results)
    say(f"\n{out / 'report.html'} has the plots; everything is in {out}/ ({time.monotonic() - started:.0f} s)")
    return results


def _heading(number: int, text: str) -> None:
    from pipelines.cli.display import messages

    messages.print(f"\n[bold]{number}/6[/bold] {text}")


def _tokenizer(out: Path) -> None:
    from pipelines.cli.display import say
    from pipelines.train_tokenizer import train_tokenizer

    folder = out / "tokenizer"
    if (folder / "tokenizer.json").exists():
        say(f"{folder} is there already")
    else:
        train_tokenizer([CORPUS], vocab_size=VOCAB_SIZE, out=folder)


def _dataset(out: Path) -> Path:
    from pipelines.build_dataset import build_dataset
    from pipelines.cli.display import say

    _heading(2, f"dataset: blocks of {CONTEXT_LENGTH} tokens")
    folder = out / "data"
    if (folder / "dataset.json").exists():
        say(f"{folder} is there already")
    else:
        build_dataset([CORPUS], tokenizer=out / "tokenizer", context_length=CONTEXT_LENGTH, out=folder)
    return folder


def _train(recipe: Recipe, data: Path, folder: Path, seconds: float) -> int:
    from pipelines.pretrain import pretrain
    from pipelines.run.folder import Run

    there = (folder / "config.toml").exists()
    recipe = Run(folder).recipe if there else _sized(recipe, data, seconds)
    return pretrain(recipe, data=data, out=folder)


def _sized(recipe: Recipe, data: Path, seconds: float) -> Recipe:
    """`recipe` with as many tokens as this machine trains on in `seconds`."""
    from pipelines.dataset.reader import TokenDataset
    from pipelines.pretrain import fit_to_data
    from pipelines.training.speed import measure_tokens_per_second

    dataset = TokenDataset(data)
    recipe = fit_to_data(recipe, dataset)
    rate = measure_tokens_per_second(recipe, dataset)
    most = MAX_EPOCHS * dataset.split("train").tokens
    tokens = max(recipe.train.batch_tokens, min(most, int(rate * seconds)))
    return replace(recipe, train=replace(recipe.train, tokens=tokens, warmup_tokens=tokens // 20))


def _evaluation(folder: Path, compressors: bool) -> dict[str, Any]:
    """The run's evaluation on the demo's terms: the one that is there, if it was made on these."""
    from pipelines.evaluation.measure import EvaluationOptions, measure, plan
    from pipelines.run.folder import Run
    from pipelines.run.retention import latest_checkpoint

    run = Run(folder)
    there = run.evaluation()
    if there:
        numbers = there["splits"].get("validation", {})
        same = there.get("checkpoint") == latest_checkpoint(folder).name
        same = same and there.get("dataset_fingerprint") == run.facts["dataset_fingerprint"]
        same = same and numbers.get("window") == numbers.get("stride") == CONTEXT_LENGTH
        if same and numbers["min_context"] == 1 and ("compressors" in numbers) >= compressors:
            return there
    return measure(plan(folder, EvaluationOptions(dtype="auto", compressors=compressors)))


def _show(out: Path, evaluations: dict[str, Any]) -> None:
    from pipelines.cli.display import answer, results, table
    from pipelines.cli.escapes import safe
    from pipelines.dataset.reader import TokenDataset
    from pipelines.reporting.page import write_page
    from pipelines.reporting.subject import subject_of

    subjects = {name: subject_of(out / name) for name in evaluations}
    write_page(list(subjects.values()), out / "report.html")
    gpt, bert = (evaluations[name]["splits"]["validation"] for name in ("gpt", "bert"))
    per_byte = gpt["tokens"] / gpt["bytes"]
    dataset = TokenDataset(out / "data")
    answer(f"{dataset.bytes_per_token('validation'):.2f} bytes per token on the validation text\n")
    table(
        ("", "GPT", "BERT"),
        [
            ("parameters", *(f"{each.parameters:,}" for each in subjects.values())),
            ("tokens seen", *(f"{each.tokens_seen:,}" for each in subjects.values())),
            ("tokens/s", *(f"{each.speed:,.0f}" for each in subjects.values())),
        ],
    )
    rows = [("GPT", gpt["cross_entropy_bits"], gpt["perplexity"], gpt["bits_per_byte"])]
    for name in ("bigram", "unigram"):
        bits = gpt[f"{name}_cross_entropy_bits"]
        rows.append((name, bits, 2**bits, bits * per_byte))
    cells = [(name, f"{bits:.3f}", f"{ppl:,.1f}", f"{bpb:.3f}") for name, bits, ppl, bpb in rows]
    for name, bits in gpt["compressors"].items():
        cells.append((name, "-", "-", f"{bits['alone']:.3f}"))
        cells.append((f"{name}, given train", "-", "-", f"{bits['given_train']:.3f}"))
    answer("")
    table(("next token", "cross-entropy (bits)", "perplexity", "bits per byte"), cells)
    answer("")
    table(
        ("masked tokens", "cross-entropy (bits)", "accuracy", "pseudo-perplexity", "bits per byte"),
        [
            (
                "BERT",
                f"{bert['cross_entropy_bits']:.3f}",
                f"{bert['accuracy']:.1%}",
                f"{bert['pseudo_perplexity']:,.1f}",
                "-",
            ),
            (
                "unigram",
                f"{bert['unigram_cross_entropy_bits']:.3f}",
                f"{bert['unigram_accuracy']:.1%}",
                f"{bert['unigram_pseudo_perplexity']:,.1f}",
                "-",
            ),
        ],
    )
    for name, each in subjects.items():
        for sample in each.samples:
            results.print(f"\n[bold]{name}[/bold]: {sample['title']}")
            results.print(safe(sample["before"]), style="dim", markup=False, end="")
            results.print(safe(sample["text"]), markup=False)


def main(arguments: list[str]) -> None:
    parse(demo, arguments, "demo")
