"""Measurement: fit a scaling law to models of several sizes, trained on your text.

Examples:
    bytelm scale my-text/ --budget 2h --out scale --dry-run
    bytelm scale book.txt --budget 45m --out scale --workers 1
"""

import json
import math
import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from pipelines.cli.arguments import AsJson, DryRun
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, check_text
from pipelines.cli.dry_run import check_dry_run
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.files import write_json

if TYPE_CHECKING:
    from pipelines.cli.display import Bar
    from pipelines.scaling.plan import ScaleRun
    from pipelines.scaling.scale_runs import Work
    from pipelines.scaling.scale_summary import ScaleSummary

ENVIRONMENT = PASSIVE_THREADS
OUT_OF_MEMORY = "lower `workers`, or choose a smaller `recipe`"

PICTURES = ("scaling.png", "scaling.svg")

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Corpus": ("corpus split", ""),
    "Reading files": READING,
    "Runs": ("budget recipe vocab_size workers", ""),
    "Output": ("out dry_run json", ""),
}


@verb
def scale(
    corpus: CorpusNames,
    *,
    budget: str,
    out: Path,
    recipe: str = "gpt-tiny",
    vocab_size: int | None = None,
    workers: int | None = None,
    split: SplitRule = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    **reading: Unpack[ReadingOptions],
) -> "ScaleSummary | None":
    """Train models of five sizes on three amounts of a text, fit L = E + A / N^alpha + B / D^beta to their bits per
    byte on held-out text, and return the summary.

    The law predicts the largest run from the others, the best size for other budgets, and what twice the text would
    give. Sizes, which differ in width, and tokens are chosen for the time and the speed of this machine. The same
    command resumes after an interruption.

    Args:
        budget: Time for everything on this machine, such as 90s, 45m, 2h or 1h30m.
        out: Folder for the runs, results.json, scaling.png and scaling.svg. Existing runs are resumed.
        recipe: Recipe of a decoder, by name or .toml file. It decides the layers, batches and learning rate.
        vocab_size: Entries of the BPE vocabulary that all models share; default: a power of two that suits the sizes.
        workers: Number of runs to train at a time, each in one thread; default: one per core, on a GPU 1.
        as_json: Print the summary as JSON, and nothing else.
    """
    started = time.monotonic()
    check_dry_run(dry_run, as_json)
    seconds = seconds_of_budget(budget)
    if workers is not None and workers < 1:
        raise ValueError(f"`workers` is {workers}, but must be at least 1")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"`vocab_size` is {vocab_size}, but a vocabulary has at least one entry")
    check_text(corpus, out, split, reading, "the law")
    from corpora import open_corpus
    from pipelines.cli.display import say_on_stderr, write
    from pipelines.cli.process import resumable
    from pipelines.recipes.recipe import load_recipe
    from pipelines.run.folder import lock
    from pipelines.scaling.plan import Family, read_settings

    family, source = Family(load_recipe(recipe)), open_corpus(corpus, split=split, **reading)
    if as_json:
        say_on_stderr()
    read_settings(out)  # refuses a folder of something else
    from pipelines.scaling.preparation import Asked, prepare, print_plan

    asked = Asked(family.recipe, source, budget, seconds, started, vocab_size, workers)
    if dry_run:
        print_plan(asked, out)
        return None
    with resumable(out, "runs"), lock(out):
        work = prepare(asked, out)
        summary = _summary(work, _train(work, asked.processes(work.family.recipe)))
        write_json(out / "results.json", summary.to_json())
    from pipelines.scaling.picture import draw

    for name in PICTURES:
        draw(summary, f"{source.name}: {Path(recipe).stem}, {budget}", out / name)
    if as_json:
        write(json.dumps(summary.to_json()))
    else:
        _show(summary, out)
    return summary


def seconds_of_budget(text: str) -> float:
    """Return the seconds in a time such as "90s", "45m", "2h" or "1h30m"; ValueError for other text."""
    units = {"h": 3600, "m": 60, "s": 1}
    number = r"(?:(\d{1,9}(?:\.\d{1,6})?)%s)?"
    match = re.fullmatch("".join(number % unit for unit in units), text.strip().lower(), re.ASCII)
    parts = zip(match.groups("0"), units.values(), strict=True) if match else ()
    seconds = math.fsum(float(part) * unit for part, unit in parts)
    if not seconds:
        raise ValueError(f"`budget` is {text!r}, but must be a time above 0 such as 90s, 45m, 2h or 1h30m")
    return seconds


def _train(work: "Work", workers: int) -> float:
    """Train the runs that are not finished; return the multiple of the learning rate that all runs have.

    The search for it comes first, then the longest runs, then the runs that branch off them.
    """
    from pipelines.cli.display import Bar

    runs = work.runs(1.0)
    with Bar("training", sum(map(work.seconds, {*runs, *work.search()})), "s of the plan") as bar:
        bar.begin_at(sum(work.seconds(run) - work.left(run) for run in {*runs, *work.search()}))
        rate = _search(work, workers, bar)
        longest = [run for run in work.runs(rate) if not work.branches(run)]
        for phase in (longest, [run for run in work.runs(rate) if work.branches(run)]):
            _finish(work, phase, workers, bar, {*work.runs(rate), *work.search()})
    return rate


def _search(work: "Work", workers: int, bar: "Bar") -> float:
    """Return the multiple of the recipe's learning rate with the lowest loss at the smallest size.

    While the best rate is the highest or the lowest tried, the search tries one beyond it, up to MOST_RATES rates.
    """
    from pipelines.scaling.plan import MOST_RATES, RATES

    rates: tuple[float, ...] = RATES
    while True:
        runs = work.search(rates)
        _finish(work, runs, workers, bar, {*work.runs(1.0), *runs})
        losses = {run.rate: (work.result(run) or {})["bits_per_byte"] for run in runs}
        best = min(losses, key=lambda rate: losses[rate])
        if best not in (min(rates), max(rates)) or len(rates) == MOST_RATES:
            return best
        rates += (best * 2 if best == max(rates) else best / 2,)


def _finish(work: "Work", runs: "list[ScaleRun]", workers: int, bar: "Bar", everything: "set[ScaleRun]") -> None:
    """Train and measure the runs that are not finished. `everything`: the runs that the bar shows."""
    from pipelines.scaling.scale_runs import finish
    from pipelines.training.run_processes import train_all

    note = ""

    def show() -> None:
        total, left = sum(map(work.seconds, everything)), sum(map(work.left, everything))
        bar.update(total - left, total, note=note)

    def done(run: "ScaleRun") -> None:
        nonlocal note
        note = f"{run.name}: {(work.result(run) or {})['bits_per_byte']:.4f} bits per byte"
        show()

    if todo := [run for run in runs if work.result(run) is None]:
        train_all(partial(finish, work), todo, workers, done, show)


def _summary(work: "Work", rate: float) -> "ScaleSummary":
    """Return the summary of the finished runs."""
    from pipelines.cli.waiting import doing
    from pipelines.scaling.scale_summary import summarize

    doing("fitting the law")
    grid = [run for width in work.layout.widths for run in work.grid(width, rate)]
    groups = grid, work.seeds(rate), work.finished_search()
    results, seeds, search = ([work.result(run) or {} for run in runs] for runs in groups)
    return summarize(results, seeds, search)


def _show(summary: "ScaleSummary", out: Path) -> None:
    """Print the tables and the conclusions."""
    from pipelines.cli.display import answer, say, table
    from pipelines.scaling import scale_summary as shown

    table(shown.RUN_HEADS, shown.run_cells(summary))
    answer("")
    table(shown.LAW_HEADS, shown.law_cells(summary))
    answer("")
    table(shown.BEST_HEADS, shown.best_cells(summary))
    for sentence in shown.sentences(summary):
        answer(sentence)
    say(f"saved in {out / 'results.json'}, {' and '.join(str(out / name) for name in PICTURES)}")
