"""The page of a report: its contents by section, rendered by report.html.j2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from pipelines.cli.escapes import safe
from pipelines.files import write_whole
from pipelines.reporting.introspection_plots import inside_plots
from pipelines.reporting.plots import plots
from pipelines.reporting.subject import Subject
from pipelines.reporting.tables import (
    definitions_of,
    measured_sections,
    measured_tables,
    number_tables,
    sentences,
    trained_texts,
    training_table,
    validation_losses,
)
from pipelines.reporting.tokenizer_facts import TokenizerFacts
from pipelines.reporting.verdict import verdict


def write_page(subjects: Sequence[Subject], path: Path) -> None:
    """Write the page to a temporary file first, so that `path` never holds half a page."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write with --out")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(_contents(subjects))
    write_whole(path, safe(page))


def _contents(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Return the variables of the template."""
    return {
        "title": " and ".join(each.name for each in subjects),
        "several": len(subjects) > 1,
        "verdicts": [verdict(each) for each in subjects],
        "results": measured_tables(subjects),
        "above": [*trained_texts(subjects), *sentences(subjects, above=True)],
        "below": sentences(subjects, above=False),
        "training": training_table(subjects),
        "losses": validation_losses(subjects),
        "plots": plots(subjects),
        "sections": measured_sections(subjects),
        "passages": [(each.name, each.passage) for each in subjects if each.passage],
        "samples": [(each.name, each.samples) for each in subjects if each.samples],
        "tokenizers": _tokenizers(subjects),
        "insides": [
            (each.name, each.inside, inside_plots(each.inside, f"inside-{number}"))
            for number, each in enumerate(subjects, 1)
            if each.inside
        ],
        "numbers": number_tables(subjects),
        "definitions": definitions_of(subjects),
        "configurations": [
            (each.name, (each.run.folder / "config.toml").read_text(encoding="utf-8")) for each in subjects
        ],
    }


def _tokenizers(subjects: Sequence[Subject]) -> list[tuple[str, TokenizerFacts]]:
    """Return each tokenizer once, with the names of the runs that use it."""
    facts = {each.tokenizer.fingerprint: each.tokenizer for each in subjects}
    return [
        (", ".join(each.name for each in subjects if each.tokenizer.fingerprint == fingerprint), tokenizer)
        for fingerprint, tokenizer in facts.items()
    ]
