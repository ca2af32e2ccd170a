"""`bytelm report`: one self-contained HTML page about a run, or several side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipelines.arguments import parse
from pipelines.files import write_whole
from pipelines.numbers import NOT_NUMBERS
from pipelines.plots import Subject, plots
from pipelines.training.run import Run

TEMPLATE = Path(__file__).with_name("report.html.j2")


def report(
    runs: Annotated[Sequence[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    out: Path | None = None,
    samples: bool = True,
    inside: bool = True,
) -> Path:
    """Write a self-contained HTML page about one run or several; return its path.

    Args:
        runs: Folders of runs.
        out: File to write; by default report.html in the folder of the first run.
        samples: Whether the models write samples for the page.
        inside: Whether the page looks inside the models: attention, circuits of heads, the embedding.
    """
    if not runs:
        raise ValueError("name at least one run folder")
    subjects = [subject(Path(folder), samples, inside) for folder in runs]
    path = out or Path(runs[0]) / "report.html"
    write_page(subjects, path)
    from pipelines.display import say

    say(f"{path}")
    return path


def subject(folder: Path, samples: bool = True, inside: bool = True) -> Subject:
    """All that the page tells of the run in `folder`."""
    from pipelines.inside import look_inside
    from pipelines.loading import load_trained
    from pipelines.samples import samples_of

    run = Run(folder)
    model = load_trained(run).model
    texts = samples_of(run, model) if samples else []
    parameters = sum(p.numel() for p in model.parameters())
    within = look_inside(run, model) if inside else None
    return Subject(run, run.metrics(), run.evaluation(), texts, parameters, within)


def write_page(subjects: Sequence[Subject], path: Path) -> None:
    """Write the page; it appears whole or not at all."""
    import jinja2

    from pipelines.pictures import pictures

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=" and ".join(each.run.name for each in subjects),
        subjects=subjects,
        summary=_summary(subjects),
        plots=plots(subjects),
        configurations=[
            (each.run.name, (each.run.folder / "config.toml").read_text(encoding="utf-8")) for each in subjects
        ],
        numbers=_all_numbers(subjects),
        samples=[(each.run.name, each.samples) for each in subjects if each.samples],
        translations=[
            (each.run.name, split, numbers)
            for each in subjects
            for split, numbers in (each.evaluation or {}).get("splits", {}).items()
            if "examples" in numbers
        ],
        insides=[(each.run.name, each.inside, pictures(each.inside)) for each in subjects if each.inside],
    )
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write with --out")
    write_whole(path, page)


def _summary(subjects: Sequence[Subject]) -> list[tuple[str, list[str]]]:
    """Rows of (label, a cell for each run)."""

    def row(label: str, cell: Any) -> tuple[str, list[str]]:
        return label, [cell(each) for each in subjects]

    def number(key: str, digits: int = 3) -> Any:
        return lambda each: "–" if each.numbers.get(key) is None else f"{each.numbers[key]:,.{digits}f}"

    return [
        row("objective", lambda each: each.run.recipe.objective),
        row("parameters", lambda each: f"{each.parameters:,}"),
        row("tokens seen", lambda each: f"{each.tokens_seen:,}"),
        row("tokens/s", lambda each: f"{each.speed:,.0f}"),
        row("cross-entropy, bits per token", number("cross_entropy_bits")),
        row("perplexity", number("perplexity", 2)),
        row("bits per byte", number("bits_per_byte")),
        row("BLEU", number("bleu", 1)),
        row("accuracy", number("accuracy")),
        row("unigram, bits per token", number("unigram_cross_entropy_bits")),
        row("bigram, bits per token", number("bigram_cross_entropy_bits")),
        row("pseudo-perplexity", number("pseudo_perplexity", 2)),
    ]


def _all_numbers(subjects: Sequence[Subject]) -> list[tuple[str, list[str]]]:
    """Every number of evaluation.json: (name, a cell for each run)."""
    names = dict.fromkeys(key for each in subjects for key in each.numbers if key not in NOT_NUMBERS)
    return [(name, [_cell(each.numbers.get(name)) for each in subjects]) for name in names]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.5g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def main(arguments: list[str]) -> None:
    parse(report, arguments, "report")
