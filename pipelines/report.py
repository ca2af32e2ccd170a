"""`bytelm report`: one self-contained HTML page about one run or several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipelines.cli.escapes import safe
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import doing
from pipelines.files import distinct_names, write_whole
from pipelines.reporting.plots import plots
from pipelines.reporting.subject import Subject
from pipelines.reporting.tables import definitions_of, measured_tables, number_tables, training_table, validation_losses
from pipelines.reporting.verdict import verdict
from pipelines.run.evaluation_file import evaluations_of
from pipelines.run.folder import Run
from pipelines.runs import run_folders


@verb
def report(
    runs: Annotated[Sequence[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    out: Path | None = None,
    samples: bool = True,
    inside: bool = True,
) -> Path:
    """Write a self-contained HTML page about one run or several; return its path.

    Args:
        runs: Folders of runs, or folders that contain runs.
        out: File to write; by default report.html in the first folder.
        samples: Whether the page has samples of the models, and a passage with the bits of each token.
        inside: Whether the page looks inside the models: attention, circuits of heads, the embedding.
    """
    named = [Path(runs)] if isinstance(runs, str | Path) else list(map(Path, runs))
    if not named:
        raise ValueError("name at least one run folder")
    # A folder without runs is left for Run to refuse.
    folders = list(dict.fromkeys(run for each in named for run in (each.is_dir() and run_folders(each)) or [each]))
    names = distinct_names(folders)
    subjects = [subject(folder, samples, inside, name) for folder, name in zip(folders, names, strict=True)]
    path = Path(out) if out else named[0] / "report.html"
    doing("drawing the figures")
    write_page(subjects, path)
    from pipelines.cli.display import say

    say(f"{path}")
    return path


def subject(folder: Path, samples: bool = True, inside: bool = True, name: str | None = None) -> Subject:
    """Return the contents of the page about the run in `folder`, under its own name or `name`."""
    from pipelines.reporting.inside import look_inside
    from pipelines.reporting.passage import passage_of
    from pipelines.reporting.samples import samples_of
    from pipelines.reporting.vocabulary_facts import vocabulary_facts
    from pipelines.run.loading import load_trained

    run = Run(folder)
    # Reports damaged files before the model is loaded.
    metrics, evaluations = run.metrics(), evaluations_of(run.evaluation())
    model = load_trained(run).model
    doing(f"looking at {run.name}")
    return Subject(
        run,
        name or run.name,
        metrics,
        evaluations,
        sum(p.numel() for p in model.parameters()),
        samples_of(run, model) if samples else [],
        passage_of(run, model) if samples else None,
        vocabulary_facts(run),
        look_inside(run, model) if inside else None,
    )


def write_page(subjects: Sequence[Subject], path: Path) -> None:
    """Write the page; it appears whole or not at all."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write with --out")
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(_contents(subjects))
    write_whole(path, safe(page))


def _contents(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Return what the template shows, by section."""
    from pipelines.reporting.pictures import pictures

    return {
        "title": " and ".join(each.name for each in subjects),
        "several": len(subjects) > 1,
        "verdicts": [verdict(each) for each in subjects],
        "results": measured_tables(subjects),
        "training": training_table(subjects),
        "losses": validation_losses(subjects),
        "plots": plots(subjects),
        "passages": [(each.name, each.passage) for each in subjects if each.passage],
        "samples": [(each.name, each.samples) for each in subjects if each.samples],
        "translations": [
            (each.name, evaluation.split, evaluation.numbers)
            for each in subjects
            for evaluation in each.evaluations
            if "examples" in evaluation.numbers
        ],
        "vocabularies": _vocabularies(subjects),
        "insides": [
            (each.name, each.inside, pictures(each.inside, f"inside-{number}"))
            for number, each in enumerate(subjects, 1)
            if each.inside
        ],
        "numbers": number_tables(subjects),
        "definitions": definitions_of(subjects),
        "configurations": [
            (each.name, (each.run.folder / "config.toml").read_text(encoding="utf-8")) for each in subjects
        ],
    }


def _vocabularies(subjects: Sequence[Subject]) -> list[tuple[str, Any]]:
    """Return each tokenizer once, with the names of the runs that use it."""
    found = {each.tokenizer.fingerprint: each.tokenizer for each in subjects if each.tokenizer}
    return [
        (", ".join(each.name for each in subjects if each.tokenizer.fingerprint == fingerprint), facts)
        for fingerprint, facts in found.items()
    ]


def main(arguments: list[str]) -> None:
    parse(report, arguments, "report")
