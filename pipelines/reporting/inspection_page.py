"""Write the page of `bytelm inspect`: the pictures, tables and definition of each instrument."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from pipelines.cli.escapes import message, safe
from pipelines.evaluation.measurement import Result
from pipelines.files import write_whole
from pipelines.reporting.svg import Plot, draw_svg, style


def write_inspection_page(name: str, found: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Write the page about what instruments found in the run `name` to `path`, whole or not at all."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    sections = [section_of(key, results) for key, results in found.items()]
    write_whole(path, safe(environment.get_template("inspection.html.j2").render(name=name, sections=sections)))


def section_of(key: str, results: Sequence[Result]) -> dict[str, Any]:
    """Return the section of an instrument: its heading, its note, and the plots and parts of each result."""
    section = results[0].section
    assert section is not None, "an instrument's result has a section"
    shown = [
        {
            "text": getattr(result, "text", ""),
            "plots": _plots(result, f"{key}-{number}"),
            "parts": [message(part) if isinstance(part, str) else part for part in result.parts()],
        }
        for number, result in enumerate(results, 1)
    ]
    return {"key": key, "heading": section.heading, "note": message(section.note), "results": shown}


def _plots(result: Result, prefix: str) -> list[Plot]:
    """Return the pictures of a result as SVG, with ids that begin with `prefix`."""
    with style():
        return [
            Plot(f"{prefix}-{number}", each.title, each.text, draw_svg(each.figure(), f"{prefix}-{number}", each.title))
            for number, each in enumerate(result.pictures(), 1)
        ]
