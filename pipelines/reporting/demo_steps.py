"""The steps of `bytelm demo`, from the built-in corpus to a report."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from lm.metrics.predictions import NATS_PER_BIT
from lm.model import LanguageModel
from pipelines.cli.console import messages, results
from pipelines.cli.display import answer, perplexity_text, quantity, say, table
from pipelines.cli.escapes import safe
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.measure import measure
from pipelines.evaluation.measurements import measurements
from pipelines.evaluation.numbers import value_of
from pipelines.evaluation.planning import EvaluationOptions, plan
from pipelines.evaluation.results import Evaluation, SplitEvaluation
from pipelines.machine import choose_machine
from pipelines.recipes.recipe import Recipe, load_recipe
from pipelines.reporting.page import write_page
from pipelines.reporting.subject import subject_of
from pipelines.run.folder import Run
from pipelines.run.retention import latest_checkpoint
from pipelines.training.data import open_training_data
from pipelines.training.loop import Trainer
from pipelines.training.mixture import Mixture
from pipelines.training.pretraining import fit_to_data
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer

CORPUS = "stdlib"
VOCAB_SIZE = 8192
CONTEXT_LENGTH = 256
# Shares of the training time. A token of the GPT takes longer.
SHARES = {"gpt": 0.6, "bert": 0.4}
# Maximum epochs of a model, however fast the machine.
MAX_EPOCHS = 6

WARM_UP_STEPS = 2
MEASURED_SECONDS = 4.0


def run_demo(out: Path, seconds: float) -> dict[str, Evaluation]:
    """Run all steps in the folder `out`, and return the evaluations of the two models."""
    started = time.monotonic()
    _heading(1, f"vocabulary: {VOCAB_SIZE:,} entries from the standard library of Python {sys.version.split()[0]}")
    tokenizer, data = out / "tokenizer", out / "data"
    if (tokenizer / "tokenizer.json").exists():
        say(f"{tokenizer} exists already")
    else:
        train_tokenizer([CORPUS], vocab_size=VOCAB_SIZE, out=tokenizer)
    _heading(2, f"dataset: blocks of {CONTEXT_LENGTH} tokens")
    if (data / "dataset.json").exists():
        say(f"{data} exists already")
    else:
        build_dataset([CORPUS], tokenizer=tokenizer, context_length=CONTEXT_LENGTH, out=data)
    _heading(3, "a GPT: predicts the next token")
    _train("gpt-tiny", data, out / "gpt", SHARES["gpt"] * seconds)
    _heading(4, "a BERT: predicts masked tokens")
    _train("bert-tiny", data, out / "bert", SHARES["bert"] * seconds)
    _heading(5, "evaluation on held-out text")
    evaluations = {
        "gpt": _evaluation(out / "gpt", compressors=True),
        "bert": _evaluation(out / "bert", compressors=False),
    }
    _heading(6, "report")
    _print_results(out, evaluations)
    say(f"\n{out / 'report.html'} has the plots; everything is in {out}/ ({time.monotonic() - started:.0f} s)")
    return evaluations


def _heading(number: int, text: str) -> None:
    messages.print(f"\n[bold]{number}/6[/bold] {text}")


def _train(name: str, data: Path, folder: Path, seconds: float) -> None:
    """Train the recipe `name` for about `seconds`, or resume its run; raise KeyboardInterrupt if it is stopped."""
    recipe = Run(folder).recipe if (folder / "config.toml").exists() else _fit_to_time(load_recipe(name), data, seconds)
    pretrain(recipe, data=data, out=folder)


def _fit_to_time(recipe: Recipe, data: Path, seconds: float) -> Recipe:
    """Return `recipe` with the number of tokens that this machine trains on in `seconds`."""
    dataset = TokenDataset(data)
    recipe = fit_to_data(recipe, dataset)
    rate = _tokens_per_second(recipe, dataset)
    most = MAX_EPOCHS * dataset.split("train").tokens
    tokens = max(recipe.train.batch_tokens, min(most, int(rate * seconds)))
    return replace(recipe, train=replace(recipe.train, tokens=tokens, warmup_tokens=tokens // 20))


def _tokens_per_second(recipe: Recipe, dataset: TokenDataset) -> float:
    """Return the training speed of `recipe`, measured for `MEASURED_SECONDS` on a model that is thrown away."""
    machine = choose_machine(recipe.train.device, recipe.train.dtype, half=True)
    model = LanguageModel(recipe.model, recipe.train.seed).to(machine.device)
    model.compute_dtype = machine.dtype
    data = open_training_data(recipe, Mixture([dataset]), Tokenizer.load(dataset.folder))
    trainer = Trainer(None, model, data, recipe.train)

    def step() -> None:
        trainer.step()
        if machine.device.type == "cuda":
            torch.cuda.synchronize(machine.device)

    for _ in range(WARM_UP_STEPS):
        step()
    started, warm = time.perf_counter(), trainer.at.tokens
    while time.perf_counter() - started < MEASURED_SECONDS:
        step()
    rate = (trainer.at.tokens - warm) / (time.perf_counter() - started)
    say(f"this machine trains it at about {quantity(rate, 'tok')}/s")
    return rate


def _evaluation(folder: Path, compressors: bool) -> Evaluation:
    """Return the evaluation of a run; an earlier one is reused if it has the checkpoint and settings of this demo."""
    earlier = Evaluation.read(folder)
    known = earlier.splits.get("validation") if earlier else None
    if earlier and known and _is_current(known, folder) and (known.compressors is not None) >= compressors:
        return earlier
    chosen = measurements({"compressors": compressors})
    evaluation, _ = measure(plan(Run(folder), EvaluationOptions(dtype="auto", measurements=chosen)))
    return evaluation


def _is_current(known: SplitEvaluation, folder: Path) -> bool:
    """Whether an evaluation is of the newest checkpoint, on the dataset of the run and in the windows of the demo."""
    measured = known.measured
    newest = measured.checkpoint == latest_checkpoint(folder).name
    same_text = measured.dataset_fingerprint == Run(folder).facts["dataset_fingerprint"]
    return newest and same_text and known.window == known.stride == CONTEXT_LENGTH and known.min_context == 1


def _print_results(out: Path, evaluations: dict[str, Evaluation]) -> None:
    """Write report.html, and print its main numbers and samples."""
    subjects = {name: subject_of(Run(out / name)) for name in evaluations}
    write_page(list(subjects.values()), out / "report.html")
    gpt, bert = (evaluations[name].validation for name in ("gpt", "bert"))
    per_byte = gpt.tokens / gpt.bytes
    dataset = TokenDataset(out / "data")
    answer(f"{dataset.bytes_per_token('validation'):.2f} bytes per token on the validation text\n")
    table(
        ("", "GPT", "BERT"),
        [
            ("parameters", *(f"{subject.parameters:,}" for subject in subjects.values())),
            ("tokens seen", *(f"{subject.tokens_seen:,}" for subject in subjects.values())),
            ("tokens/s", *(f"{subject.speed:,.0f}" for subject in subjects.values())),
        ],
    )
    rows = [("GPT", gpt.cross_entropy_bits, gpt.bits_per_byte)]
    for name, bits in (("bigram", gpt.bigram_cross_entropy_bits), ("unigram", gpt.unigram_cross_entropy_bits)):
        rows.append((name, bits, bits * per_byte))
    cells = [
        (name, f"{bits:.3f}", perplexity_text(bits * NATS_PER_BIT, ",.1f"), f"{bpb:.3f}") for name, bits, bpb in rows
    ]
    for name, size in gpt.compressors.sizes.items():
        cells.append((name, "-", "-", f"{size.alone:.3f}"))
        cells.append((f"{name}, given train", "-", "-", f"{size.given_train:.3f}"))
    answer("")
    table(("next token", "cross-entropy (bits)", "perplexity", "bits per byte"), cells)
    answer("")
    masked = [
        ("BERT", bert.cross_entropy_bits, bert.accuracy, value_of("pseudo_perplexity", bert)),
        (
            "unigram",
            bert.unigram_cross_entropy_bits,
            bert.unigram_accuracy,
            value_of("unigram_pseudo_perplexity", bert),
        ),
    ]
    table(
        ("masked tokens", "cross-entropy (bits)", "accuracy", "pseudo-perplexity", "bits per byte"),
        [(name, f"{bits:.3f}", f"{right:.1%}", ppl, "-") for name, bits, right, ppl in masked],
    )
    for name, subject in subjects.items():
        for sample in subject.samples:
            results.print(f"\n[bold]{name}[/bold]: {sample.title}")
            results.print(safe(sample.before), style="dim", markup=False, end="")
            results.print(safe(sample.text), markup=False)
