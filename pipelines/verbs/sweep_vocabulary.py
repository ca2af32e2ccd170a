"""Measurement: compare kinds and sizes of vocabularies in bits per byte at equal compute.

Examples:
    bytelm sweep-vocabulary my-text/ --out sweep --dry-run
    bytelm sweep-vocabulary stdlib --kinds bpe unigram --sizes 1k 4k --out sweep
"""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import tyro

from lm.warn import warn
from pipelines.cli.arguments import AsJson, DryRun, SweptKind
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, check_text
from pipelines.cli.dry_run import check_dry_run
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.files import write_json
from tokenizer.kinds.registry import KINDS

if TYPE_CHECKING:
    from corpora import Corpus
    from pipelines.sweep.plan import Budget, SweepRun, Vocabulary
    from pipelines.sweep.sweep_runs import Work
    from pipelines.sweep.sweep_summary import SweepSummary

ENVIRONMENT = PASSIVE_THREADS
OUT_OF_MEMORY = "lower `workers`, or choose a smaller `recipe`"

PICTURE = "bits-per-byte.png"
SIZES = tuple(2**power for power in range(9, 17))  # 512 to 65,536

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Corpus": ("corpus split", ""),
    "Reading files": READING,
    "Runs": ("kinds sizes seeds recipe", "flops workers"),
    "Output": ("out dry_run json", ""),
}


# Without BPE over characters, which differs little from byte-level BPE.
DIFFERENT_KINDS: tuple[SweptKind, ...] = ("bpe", "wordpiece", "unigram")


@verb
def sweep_vocabulary(
    corpus: CorpusNames,
    *,
    out: Path,
    kinds: Annotated[tuple[SweptKind, ...], tyro.conf.arg(metavar="KIND ...")] = DIFFERENT_KINDS,
    sizes: tuple[int, ...] = (),
    seeds: int = 3,
    flops: float | None = None,
    recipe: str = "gpt-tiny",
    workers: int | None = None,
    split: SplitRule = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    **reading: Unpack[ReadingOptions],
) -> "SweepSummary | None":
    """Train one model for each kind and size of vocabulary at equal FLOPs, and compare their bits per byte on held-out
    text; return the summary.

    All runs have the same architecture, training text and held-out text. The FLOPs include the output matrix, so
    a model with a larger vocabulary trains on fewer tokens. The same command resumes an interrupted sweep, and adds
    seeds, sizes or kinds.

    Args:
        out: Folder for the vocabularies, results.json and bits-per-byte.png. An existing sweep is resumed.
        kinds: Kinds of vocabulary: bpe, wordpiece, unigram, character-bpe, characters, words or superwords, which is
            bpe whose last tenth of tokens may hold several words. bpe splits as cl100k, wordpiece as bert-cased,
            unigram at white space; words are letters and digits, or other visible characters.
        sizes: Numbers of entries; default: powers of two from 512 to 65536 that suit the text.
        seeds: Number of runs per vocabulary, with the seeds 0, 1 and so on. One seed gives no intervals and no test.
        flops: FLOPs of each run; by default those of the sweep in `out`. In a new sweep, all runs together take about
            an hour on 2 cores.
        recipe: Recipe of a decoder, by name or .toml file. It decides the model, batches and learning rate.
        workers: Number of runs to train at a time, each in one thread; default: one per core.
        as_json: Print the summary as JSON, and nothing else.
    """
    check_dry_run(dry_run, as_json)
    _check(kinds, sizes, seeds, workers)
    check_text(corpus, out, split, reading, "the sweep")
    from corpora import open_corpus
    from pipelines.cli.display import quantity, say_on_stderr, write
    from pipelines.cli.process import resumable
    from pipelines.recipes.recipe import load_recipe
    from pipelines.run.folder import lock
    from tokenizer.workers import thread_count

    chosen, source = load_recipe(recipe), open_corpus(corpus, split=split, **reading)
    workers = thread_count(workers)
    from pipelines.sweep.plan import (
        HOUR_FLOPS,
        Budget,
        Vocabulary,
        check_settings,
        read_settings,
        record_settings,
        settings_of,
    )

    if as_json:
        say_on_stderr()
    wanted = [Vocabulary(kind, size) for kind in dict.fromkeys(kinds) for size in sorted({*(sizes or SIZES)})]
    share = HOUR_FLOPS / (len(wanted) * seeds)
    earlier = read_settings(out)
    budget = Budget(chosen, (earlier["flops"] if earlier else share) if flops is None else flops)
    for vocabulary in wanted:
        budget.tokens(vocabulary.size)  # refuses a budget of less than one step
    _warn_of_schedules(budget, wanted)
    if dry_run:
        if earlier:
            check_settings(out, settings_of(_on_this_machine(budget, earlier), source.split_rule, None))
        _print_plan(budget, wanted, seeds, workers, source, out, strict=bool(sizes))
        return None
    from pipelines.sweep.sweep_runs import Work
    from pipelines.sweep.vocabularies import held_out_documents, train_vocabularies, write_datasets

    budget = _on_this_machine(budget, earlier)
    held_out = held_out_documents(source)
    settings = settings_of(budget, source.split_rule, held_out)
    with resumable(out, "vocabularies and runs"), lock(out):
        check_settings(out, settings)
        trained = train_vocabularies(out / "vocabularies", source, wanted, strict=bool(sizes))
        record_settings(out, settings)
        made = write_datasets(out / "vocabularies", source, wanted, trained, budget.recipe.model.context_length)
        work = Work(out, budget, held_out)
        _train(work, made, seeds, workers)
        summary = _summary(work, made, seeds)
        write_json(out / "results.json", summary.to_json())
    from pipelines.sweep.picture import draw

    draw(summary, f"{source.name}: {Path(recipe).stem}, {quantity(budget.flops, 'FLOP')} per run", out / PICTURE)
    if as_json:
        write(json.dumps(summary.to_json()))
    else:
        _show(summary, out)
    return summary


def _check(kinds: tuple[SweptKind, ...], sizes: tuple[int, ...], seeds: int, workers: int | None) -> None:
    """Raise ValueError for options out of range."""
    known = (*KINDS, "superwords")
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"`kinds` has {kind!r}, but the kinds are {', '.join(known)}")
    if not kinds:
        raise ValueError(f"`kinds` names no kind: leave it out, or choose from {', '.join(known)}")
    for size in sizes:
        if size < 1:
            raise ValueError(f"`sizes` has {size}, but a vocabulary has at least one entry")
    if seeds < 1:
        raise ValueError(f"`seeds` is {seeds}, but must be at least 1")
    if workers is not None and workers < 1:
        raise ValueError(f"`workers` is {workers}, but must be at least 1")


def _warn_of_schedules(budget: "Budget", wanted: "list[Vocabulary]") -> None:
    """Warn of the first run in which the warm-up or the growth of the batches lasts until the end."""
    from pipelines.sweep.plan import SweepRun

    for run in (SweepRun(vocabulary, 0) for vocabulary in wanted):
        if sentences := budget.recipe_of(run).train.unfinished_schedules():
            warn(f"{run.name}: {sentences[0]}")
            return


def _on_this_machine(budget: "Budget", earlier: dict[str, Any] | None) -> "Budget":
    """Return the budget with one device and dtype for all runs, those of the `earlier` sweep if it is resumed.

    Otherwise each run would choose its own, and could choose differently on a busy machine.
    """
    train = budget.recipe.train
    if earlier is None:
        from pipelines.machine import choose_machine

        machine = choose_machine(train.device, train.dtype, half=True)
        train = replace(train, device=machine.device_name, dtype=machine.dtype_name)
    else:
        train = replace(train, device=earlier["recipe"]["train"]["device"], dtype=earlier["recipe"]["train"]["dtype"])
    return replace(budget, recipe=replace(budget.recipe, train=train))


def _print_plan(
    budget: "Budget", wanted: "list[Vocabulary]", seeds: int, workers: int, source: "Corpus", out: Path, strict: bool
) -> None:
    """Print the runs, their tokens and an estimate of their time.

    `strict`: whether the sweep refuses sizes that do not suit the text; otherwise it leaves them out.
    """
    from pipelines.cli.display import answer, count_text, duration, quantity, table
    from pipelines.sweep.plan import CORE_FLOPS

    runs = len(wanted) * seeds
    vocabularies = "1 vocabulary" if len(wanted) == 1 else f"{len(wanted)} vocabularies"
    answer(
        f"would train {'' if strict else 'at most '}{count_text(runs, 'run')} of {quantity(budget.flops, 'FLOP')} on "
        f"{source.name}, split by {source.split_rule}: {vocabularies}, {count_text(seeds, 'seed')} each"
    )
    kinds: dict[int, list[str]] = {}
    for vocabulary in wanted:
        kinds.setdefault(vocabulary.size, []).append(vocabulary.kind)
    table(
        ("entries", "tokens of a run", "MFLOPs per token", "embedding", "kinds"),
        [
            (
                f"{size:,}",
                f"{budget.tokens(size):,}",
                f"{budget.size(size).flops_per_token / 1e6:.1f}",
                f"{budget.size(size).embedding / budget.size(size).parameters:.0%}",
                " ".join(names),
            )
            for size, names in kinds.items()
        ],
    )
    if seeds == 1:
        answer("one seed gives no intervals and no test of differences between vocabularies")
    seconds = math.ceil(runs / workers) * budget.flops / CORE_FLOPS
    answer(
        f"training takes about {duration(seconds)} with {count_text(workers, 'run')} at a time, at "
        f"{quantity(CORE_FLOPS, 'FLOP/s')} per core; about half of that in bfloat16"
    )
    answer(
        "a dry run does not check the sizes against the text: in the sweep, a size too small for the alphabet or too "
        f"large for the text is {'an error' if strict else 'left out'}"
    )
    answer(f"would write the folder {out}")


def _train(work: "Work", made: "list[Vocabulary]", seeds: int, workers: int) -> None:
    """Train the runs that are not finished. The first seed of all vocabularies comes first."""
    from pipelines.cli.display import Bar, say
    from pipelines.sweep.plan import SweepRun
    from pipelines.sweep.sweep_runs import finish
    from pipelines.training.run_processes import train_all

    runs = [SweepRun(vocabulary, seed) for seed in range(seeds) for vocabulary in made]
    todo = [run for run in runs if work.result(run) is None]
    if len(todo) < len(runs):
        say(f"{len(runs) - len(todo)} of {len(runs)} runs are finished")
    if not todo:
        return
    with Bar("training", len(runs), "runs") as bar:
        bar.begin_at(len(runs) - len(todo))
        finished = [run for run in runs if run not in todo]

        def done(run: "SweepRun") -> None:
            finished.append(run)
            result = work.result(run) or {}
            bar.update(len(finished), note=f"{run.name}: {result['bits_per_byte']:.4f} bits per byte")

        train_all(partial(finish, work), todo, workers, done)


def _summary(work: "Work", made: "list[Vocabulary]", seeds: int) -> "SweepSummary":
    """Return the summary of the finished runs; bits per byte include the text that a tokenizer loses."""
    from pipelines.cli.waiting import doing
    from pipelines.sweep.lost_text import lost_bits
    from pipelines.sweep.plan import SweepRun
    from pipelines.sweep.sweep_summary import summarize
    from tokenizer import Tokenizer

    doing("measuring lost text")
    size = sum(map(len, work.held_out))
    results = {}
    for vocabulary in made:
        tok = Tokenizer.load(work.vocabulary(SweepRun(vocabulary, 0)))
        lost = {"lost_bits_per_byte": lost_bits(work.held_out, tok) / size}
        results[vocabulary] = [(work.result(SweepRun(vocabulary, seed)) or {}) | lost for seed in range(seeds)]
    return summarize(work.budget, results)


def _show(summary: "SweepSummary", out: Path) -> None:
    """Print the table and the conclusions."""
    from pipelines.cli.display import answer, say, table
    from pipelines.sweep.sweep_summary import HEADS, cells, sentences

    table(HEADS, cells(summary))
    for sentence in sentences(summary):
        answer(sentence)
    say(f"saved in {out / 'results.json'} and {out / PICTURE}")
