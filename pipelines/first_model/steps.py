"""The steps of `bytelm train` and `bytelm demo`: each calls a verb, and prints the command that does the step alone."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from corpora import Corpus
from lm.costs import flops_per_token, meta_model
from pipelines.cli.corpus_arguments import left_out_is_said, say_left_out
from pipelines.cli.display import Bar, say
from pipelines.cli.process import resumable
from pipelines.cli.shell import command
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.measure import measure
from pipelines.evaluation.planning import EvaluationOptions, plan
from pipelines.evaluation.results import Evaluation, SplitEvaluation
from pipelines.first_model.choices import (
    EPOCHS,
    GPU_BATCHES,
    PARAMETERS_PER_TOKEN,
    SIZES,
    Budget,
    Choice,
    Kind,
    Setting,
    check_enough,
    choose,
    measured_budget,
    recipe_batch,
    recipe_for,
    recipe_name,
    with_decay,
    with_length,
    with_rates,
)
from pipelines.first_model.record import Asked, Record, Source
from pipelines.first_model.summary import MOST_COMPRESSED_BYTES, print_choice, print_results
from pipelines.first_model.text_facts import TextFacts, facts_of
from pipelines.machine import choose_machine
from pipelines.recipes.recipe import Recipe, load_recipe
from pipelines.reporting.page import write_page
from pipelines.reporting.subject import subject_of
from pipelines.run.folder import Run
from pipelines.run.manifest import flat
from pipelines.run.retention import best_checkpoint
from pipelines.training.mixture import Mixture, fit_to_data
from pipelines.training.timing import speed_without_data, training_flops, training_speed
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer

MINUTES = 10.0
PREDICTS: dict[Kind, str] = {"gpt": "predicts the next token", "bert": "predicts masked tokens"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """The arguments of `bytelm train`."""

    corpus: Sequence[str]
    out: Path
    kinds: Sequence[Kind]
    minutes: float | None
    tokens: int | None
    flops: float | None
    seed: int | None
    reading: Mapping[str, Any]
    """Options of `corpora.open_corpus`, such as `split`"""

    def minutes_of(self, before: Asked | None) -> float:
        """Return the training time of a model in minutes; `before` is what the last call asked for."""
        return self.minutes or (before and before.minutes) or MINUTES


def run(job: Job, source: Corpus, dry_run: bool = False) -> dict[str, Evaluation]:
    """Do the steps on the corpus `source` that are left; return the evaluation of each model, {} for a dry run."""
    started = time.monotonic()
    with Bar("reading", source.text_bytes_estimate, "B") as bar:
        text = facts_of(source, bar.update)
    say_left_out(source.dropped, source.skipped_files)
    check_enough(text, source.name)
    record = Record.read(job.out)
    described = Source.of(job.corpus, job.reading, text)
    record.check_text(job.out, described)
    _check_dataset(job.out / "data", text)
    for kind in job.kinds:
        record.check_budget(job.out, kind, job.minutes, job.tokens, job.flops)
    budget = _budget(job, record, text)
    choice = _with_existing(job, choose(text, budget))
    print_choice(source.name, text, choice, budget, job.kinds)
    if dry_run:
        return {}
    if record.text != described:
        record.text = described
        record.write(job.out)
    with resumable(job.out, "steps"), left_out_is_said():
        _make_tokenizer(job, choice)
        dataset = _make_dataset(job, choice)
        trained = sum(_train(job, kind, choice, record, dataset) for kind in job.kinds)
        compressors = text.bytes <= MOST_COMPRESSED_BYTES
        evaluations: dict[str, Evaluation] = {
            kind: _evaluate(job.out / kind, compressors and kind == "gpt") for kind in job.kinds
        }
        _report(job, evaluations)
    other = time.monotonic() - started - trained
    say(f"\n{job.out / 'report.html'} has the plots; everything is in {job.out}/")
    say(f"{trained:.0f} s of training, {other:.0f} s of other work: setup, vocabulary, dataset, validation, report")
    return evaluations


def _check_dataset(folder: Path, text: TextFacts) -> None:
    """Raise ValueError if there is a dataset in `folder` of another text, or of other splits of it."""
    if not (folder / "dataset.json").exists():
        return
    corpus = TokenDataset(folder).info["corpus"]
    if corpus["fingerprint"] != text.fingerprint:
        raise ValueError(
            f"{folder} was made from another text or split ({corpus['name']}, {corpus['split_rule']}): choose another "
            "`out`, or remove the folder"
        )


def _step(title: str, alone: str) -> None:
    """Print the title of a step, and the command that does it alone."""
    from pipelines.cli.console import messages

    messages.print(f"\n[bold]{title}[/bold]")
    say(f"$ {alone}")


def _budget(job: Job, record: Record, text: TextFacts) -> Budget:
    """Return the budget of each model.

    If a time limits the training, speeds are measured. On a GPU larger batches may be chosen, too.
    """
    asked = [record.models[kind] for kind in job.kinds if kind in record.models]
    minutes, tokens = max(map(job.minutes_of, asked), default=job.minutes_of(None)), job.tokens
    if not (job.minutes or job.tokens or job.flops) and len(asked) == len(job.kinds):  # a new kind trains for minutes
        tokens = max((before.tokens for before in asked if not before.minutes), default=None)
    machine = choose_machine(half=True)
    flops = training_flops(machine)
    per_token = min(PARAMETERS_PER_TOKEN[kind] for kind in job.kinds)
    budget = Budget(60 * minutes, flops, tokens=tokens, flops=job.flops, parameters_per_token=per_token)
    if tokens or job.flops or any((job.out / kind / "config.toml").exists() for kind in job.kinds):
        return budget
    if machine.device.type != "cpu":
        budget = replace(budget, batch_factors=GPU_BATCHES)
    return measured_budget(text, budget, _measured_flops)


def _measured_flops(choice: Choice) -> float:
    """Return the speed of training a decoder in FLOP/s; 0 if the decoder does not fit in memory.

    Raises torch.OutOfMemoryError if even the smallest decoder does not fit.
    """
    recipe = recipe_for("gpt", choice)
    recipe = replace(recipe, model=replace(recipe.model, vocab_size=choice.vocab_size))
    try:
        return 6 * choice.parameters * speed_without_data(recipe).tokens_per_second
    except torch.OutOfMemoryError:
        if choice.setting == Setting(SIZES[0]):
            raise  # nothing fits
        return 0.0


def _with_existing(job: Job, choice: Choice) -> Choice:
    """Return the choice with the size, vocabulary and context of finished steps."""
    out = job.out
    for kind in job.kinds:
        if (out / kind / "config.toml").exists():
            recipe = Run(out / kind).recipe
            model = recipe.model
            sizes = [size for size in SIZES if (size.layers, size.width) == (model.layers, model.width)]
            size = (sizes or [choice.size])[0]
            factor = recipe.train.batch_tokens // recipe_batch(getattr(size, kind))
            choice = replace(choice, setting=Setting(size, max(1, factor)))
            break
    if (out / "tokenizer" / "tokenizer.json").exists():
        choice = replace(choice, vocab_size=Tokenizer.load(out / "tokenizer").vocab_size)
    if (out / "data" / "dataset.json").exists():
        choice = replace(choice, context_length=TokenDataset(out / "data").context_length)
    return choice


def _make_tokenizer(job: Job, choice: Choice) -> None:
    folder = job.out / "tokenizer"
    options = {"vocab_size": choice.vocab_size, "out": folder}
    _step("vocabulary", command("train-tokenizer", *job.corpus, **job.reading, **options))
    if (folder / "tokenizer.json").exists():
        say(f"{folder} exists already")
    else:
        train_tokenizer(job.corpus, **job.reading, **options)


def _make_dataset(job: Job, choice: Choice) -> TokenDataset:
    folder = job.out / "data"
    options = {"tokenizer": job.out / "tokenizer", "context_length": choice.context_length, "out": folder}
    _step("dataset", command("build-dataset", *job.corpus, **job.reading, **options))
    if (folder / "dataset.json").exists():
        say(f"{folder} exists already")
    else:
        build_dataset(job.corpus, **job.reading, **options)
    return TokenDataset(folder)


def _train(job: Job, kind: Kind, choice: Choice, record: Record, dataset: TokenDataset) -> float:
    """Train a model, or resume or extend its run; return the seconds of training.

    Raises KeyboardInterrupt if a signal stops it.
    """
    folder, before = job.out / kind, record.models.get(kind)
    seed: dict[str, Any] = {} if job.seed is None else {"seed": job.seed}
    name = recipe_name(kind, choice)
    if (folder / "config.toml").exists():
        recipe = Run(folder).recipe
        tokens, minutes = _length(job, kind, before, recipe, dataset)
        longer = with_length(recipe, max(recipe.train.tokens, tokens), minutes).train
        recipe = replace(recipe, train=replace(longer, warmup_tokens=recipe.train.warmup_tokens, **seed))
    else:
        recipe = recipe_for(kind, choice)
        recipe = replace(recipe, train=replace(recipe.train, **seed))
        recipe = with_rates(with_length(recipe, *_length(job, kind, before, recipe, dataset)), name)
        recipe = with_decay(recipe, dataset.split("train").tokens)
    # A call without a length keeps the length of the last call, also if it was in tokens or FLOPs.
    timed = not (job.tokens or job.flops) and (job.minutes or before is None or before.minutes)
    asked_minutes = job.minutes_of(before) if timed else None
    record.models[kind] = Asked(asked_minutes, recipe.train.tokens, job.flops or (before.flops if before else None))
    record.write(job.out)
    _step(f"{kind}: {PREDICTS[kind]}", pretrain_command(name, recipe, data=job.out / "data", out=folder))
    trained = Run(folder).seconds() if (folder / "config.toml").exists() else 0.0
    try:
        pretrain(recipe, data=job.out / "data", out=folder)
    except ValueError:  # without the earlier entry, the next call would train to the refused length
        if before:
            record.models[kind] = before
            record.write(job.out)
        raise
    return Run(folder).seconds() - trained


def pretrain_command(name: str, recipe: Recipe, data: Path, out: Path) -> str:
    """Return the command that trains `recipe`, a variant of the recipe `name`."""
    base, changed = flat(asdict(load_recipe(name))), flat(asdict(recipe))
    changes = {field: value for field, value in changed.items() if value != base[field]}
    return command("pretrain", name, data=data, out=out, **changes)


def _length(job: Job, kind: Kind, before: Asked | None, recipe: Recipe, dataset: TokenDataset) -> tuple[int, float]:
    """Return the tokens to train on and the minutes that end the training; 0 minutes if the tokens end it.
    The tokens are those asked for, those of the last call, or as many as the time allows.
    """
    most = EPOCHS[kind] * dataset.split("train").tokens
    if job.tokens:
        return job.tokens, 0.0
    fitted = fit_to_data(recipe, dataset)
    if job.flops:
        return round(min(job.flops / flops_per_token(meta_model(fitted.model)), most)), 0.0
    minutes = job.minutes_of(before)
    if before and job.minutes in (None, before.minutes):
        tokens = before.tokens
    else:
        tokens = round(min(60 * minutes * training_speed(fitted, Mixture([dataset])).tokens_per_second, most))
    if before and before.minutes is None and job.minutes is None:
        return tokens, 0.0
    # A run that already has the most tokens ends by them, even on a machine that has become slower.
    longest = max(tokens, before.tokens if before else 0)
    return tokens, minutes if longest < most else 0.0


def _evaluate(folder: Path, compressors: bool) -> Evaluation:
    """Return the evaluation of the best checkpoint of a run; an earlier one is reused if it measured the same."""
    options: dict[str, Any] = {"checkpoint": "best", "dtype": "auto"}
    more = {"compressors": True} if compressors else {}
    _step(f"evaluation of {folder.name}", command("evaluate", folder, **options, **more))
    earlier = Evaluation.read(folder)
    known = earlier.splits.get("validation") if earlier else None
    if earlier and known and _is_current(known, folder) and (known.compressors is not None) >= compressors:
        say(f"{folder / 'evaluation.json'} exists already")
        return earlier
    evaluation, failures = measure(plan(Run(folder), EvaluationOptions(**options, measuring=more)))
    if failures:
        raise ValueError("; ".join(map(str, failures)))
    return evaluation


def _is_current(known: SplitEvaluation, folder: Path) -> bool:
    """Return whether an evaluation has the best checkpoint, the dataset of the run, and windows without overlap."""
    measured = known.measured
    same_text = measured.dataset_fingerprint == Run(folder).facts["dataset_fingerprint"]
    same_weights = measured.checkpoint == best_checkpoint(folder).name
    same_windows = known.window == known.stride and known.min_context == 1 and known.trained_length is None
    return same_text and same_weights and same_windows


def _report(job: Job, evaluations: Mapping[str, Evaluation]) -> None:
    """Write report.html, and print its main numbers and samples."""
    path = job.out / "report.html"
    folders = [job.out / kind for kind in evaluations]
    _step("report", command("report", *folders, out=path))
    subjects = [subject_of(Run(folder)) for folder in folders]
    write_page(subjects, path)
    print_results(subjects, evaluations)
