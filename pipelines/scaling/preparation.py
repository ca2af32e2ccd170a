"""The preparation of `bytelm scale`: the vocabulary, the dataset, the speed of this machine and the layout."""

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corpora import Corpus
from pipelines.cli.display import answer, count_text, duration, quantity, say, table
from pipelines.dataset.reader import TokenDataset
from pipelines.machine import choose_machine, cores_per_operation
from pipelines.recipes.recipe import Recipe
from pipelines.scaling.plan import (
    EPOCHS,
    MULTIPLES,
    Family,
    Layout,
    Machine,
    ScaleRun,
    Text,
    affine_times,
    check_settings,
    filled,
    lay_out,
    most_tokens,
    on_device,
    read_settings,
    record_settings,
    seconds_of,
    settings_of,
    text_settings,
    vocabulary_for,
)
from pipelines.scaling.scale_runs import Work
from pipelines.sweep.plan import Vocabulary
from pipelines.sweep.vocabularies import held_out_documents, train_vocabularies, write_datasets
from pipelines.training.mixture import Mixture
from pipelines.training.timing import training_flops, training_speed
from tokenizer.workers import thread_count

# Share of the remaining time for training and measuring. Validation and checkpoints take the rest.
RUNS_SHARE = 0.9
START_SECONDS = 1.0  # of each run, before its training
RUNS = 21  # at most: 15 for the law, 2 more seeds and 4 more learning rates


@dataclass(frozen=True)
class Asked:
    """The arguments of `bytelm scale`."""

    recipe: Recipe
    source: Corpus
    budget: str
    seconds: float
    """The budget in seconds"""
    started: float
    """`time.monotonic()` when the budget began"""
    vocab_size: int | None
    workers: int | None

    def processes(self, recipe: Recipe) -> int:
        """Return the number of runs that train at a time on the device of `recipe`."""
        if self.workers is None:
            return thread_count(None) if recipe.train.device == "cpu" else 1
        return self.workers

    def machine(self, seconds_per_token: Callable[[int], float], workers: int) -> Machine:
        """Return the machine with the remaining time for training and measuring."""
        left = self.seconds - (time.monotonic() - self.started)
        seconds = RUNS_SHARE * (left - START_SECONDS * RUNS)
        return Machine(seconds, self.seconds - seconds, seconds_per_token, workers)


def prepare(asked: Asked, out: Path) -> Work:
    """Return the work on the runs in `out`, with the vocabulary, dataset and layout of any earlier call.

    Raises ValueError if the earlier call had other arguments, or if the budget or the text is too small.
    """
    earlier = read_settings(out)
    family, settings = _begin(asked, out, earlier)
    wanted, folder = Vocabulary("bpe", family.recipe.model.vocab_size), out / "vocabularies"
    held_out = held_out_documents(asked.source)
    settings |= text_settings(held_out)
    if earlier is None:
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted call, which may have read another text
    else:
        check_settings(out, earlier, settings)
    trained = train_vocabularies(folder, asked.source, [wanted], strict=True, option="vocab_size")
    write_datasets(folder, asked.source, [wanted], trained, family.recipe.model.context_length)
    dataset = TokenDataset(folder / wanted.name)
    split = dataset.info["splits"]["train"]
    if earlier is None:
        held_out_tokens = sum(map(len, held_out)) * split["encoded_tokens"] / split["bytes"]
        layout = _measured_layout(asked, family, dataset, Text(split["tokens"], held_out_tokens))
        record_settings(out, settings | asdict(layout))
    else:
        layout = _layout_in(earlier)
    return Work(out, family, layout, dataset.folder, held_out, split["tokens"])


def _begin(asked: Asked, out: Path, earlier: dict[str, Any] | None) -> tuple[Family, dict[str, Any]]:
    """Return the models with their vocabulary, device and dtype, and the settings that the arguments decide.

    `earlier`: the settings in `out`. Raises ValueError if they differ from the arguments.
    """
    train = asked.recipe.train
    if earlier is None:
        machine = choose_machine(train.device, train.dtype, half=True)
        entries = asked.vocab_size or vocabulary_for(asked.seconds * training_flops(machine), asked.recipe)
        recipe = on_device(asked.recipe, entries, device=machine.device_name, dtype=machine.dtype_name)
    else:
        made_with = {name: earlier["recipe"]["train"][name] for name in ("device", "dtype")}
        recipe = on_device(asked.recipe, asked.vocab_size or earlier["vocabulary"], **made_with)
    family, settings = Family(recipe), settings_of(asked.seconds, recipe, asked.source.split_rule)
    if earlier is not None:
        check_settings(out, earlier, settings)
    return family, settings


def _layout_in(settings: dict[str, Any]) -> Layout:
    return Layout(*(tuple(settings[name]) for name in ("widths", "tokens", "seconds_per_token")))


def _measured_layout(asked: Asked, family: Family, dataset: TokenDataset, text: Text) -> Layout:
    """Return the layout for the remaining time, from the measured speed of each size. Print it."""
    workers = asked.processes(family.recipe)

    def seconds_per_token(width: int) -> float:
        recipe = family.recipe_of(ScaleRun(width, family.recipe.train.tokens), family.recipe.train.tokens)
        with cores_per_operation(recipe.train.threads):
            return 1 / training_speed(recipe, Mixture([dataset])).tokens_per_second

    ends = family.unit, max(2 * family.unit, family.recipe.model.width)
    times = affine_times([family.size(width) for width in ends], [seconds_per_token(width) for width in ends])
    machine = asked.machine(lambda width: times(family.size(width)), workers)
    layout = lay_out(family, machine, text, asked.budget)
    measured = {width: seconds_per_token(width) for width in layout.widths}
    machine = asked.machine(measured.__getitem__, workers)
    layout = filled(family, layout, machine, text)
    for line in plan_in_words(family, layout, machine, text):
        say(line)
    return layout


def plan_in_words(family: Family, layout: Layout, machine: Machine, text: Text) -> list[str]:
    """Return the sizes, tokens and time of a layout as text."""
    sizes = [quantity(family.size(width), "") for width in layout.widths]
    tokens = [quantity(each, "") for each in layout.tokens]
    lines = [
        f"{len(sizes)} sizes of {', '.join(sizes)} parameters as applied; their shortest runs train on "
        f"{', '.join(tokens)} tokens, the others on 2 and 4 times as many",
        f"training and measuring take about {duration(seconds_of(layout, machine, text))}, with "
        f"{count_text(machine.workers, 'run')} at a time",
    ]
    if max(layout.tokens) == most_tokens(family, text):
        lines.append(
            f"the text has {quantity(text.train, 'tok')}, and no run reads it more than {EPOCHS} times, because "
            "repeated text bends the law: a longer text would use the budget better"
        )
    return lines


def print_plan(asked: Asked, out: Path) -> None:
    """Print the plan of the runs in `out`, or of new ones. Nothing is trained or written.

    The plan of new runs is estimated from the speed of large matrix products.
    """
    earlier = read_settings(out)
    family, _ = _begin(asked, out, earlier)
    workers = asked.processes(family.recipe)
    entries = family.recipe.model.vocab_size
    if earlier is not None:
        answer(f"would resume the runs in {out}: BPE with {entries:,} entries and these sizes:")
        _print_sizes(family, _layout_in(earlier))
        return
    speed = training_flops(choose_machine(family.recipe.train.device, family.recipe.train.dtype, half=True))
    if family.recipe.train.device == "cpu":
        speed /= thread_count(None)
    machine = asked.machine(lambda width: 6 * family.size(width) / speed, workers)
    train_tokens = round((asked.source.text_bytes_estimate or 1e12) / 3)
    layout = lay_out(family, machine, Text(train_tokens, 0), asked.budget)
    answer(f"would train BPE with {entries:,} entries and five sizes on {asked.source.name} in {asked.budget}:")
    _print_sizes(family, layout)
    answer(
        f"estimated for {count_text(workers, 'run')} at a time, each at {quantity(speed, 'FLOP/s')}; a real run "
        "measures the speed first, and small models are slower"
    )
    answer(f"would write the folder {out}")


def _print_sizes(family: Family, layout: Layout) -> None:
    table(
        ("width", "parameters as applied", "tokens of its runs"),
        [
            (f"{width:,}", quantity(family.size(width), ""), ", ".join(quantity(k * tokens, "") for k in MULTIPLES))
            for width, tokens in zip(layout.widths, layout.tokens, strict=True)
        ],
    )
