"""Measurement: write a self-contained HTML page about one or several runs.

Examples:
    bytelm report runs/gpt
    bytelm report runs --out comparison.html
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from pipelines.cli.arguments import check_writable
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import doing
from pipelines.files import distinct_names
from pipelines.verbs.runs import run_folders

ENVIRONMENT = PASSIVE_THREADS


@verb
def report(
    runs: Annotated[Sequence[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")],
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
    if not runs:
        raise ValueError("name at least one run folder")
    path = out or runs[0] / "report.html"
    if path.is_dir():
        raise ValueError(f"`out='{path}'` is a folder: name the file to write")
    check_writable("`out`", path, "choose another `out`")
    from pipelines.cli.display import say
    from pipelines.reporting.page import write_page
    from pipelines.reporting.subject import subject_of

    # A folder without runs is left for `subject_of` to refuse.
    folders = list(
        dict.fromkeys(run for folder in runs for run in (folder.is_dir() and run_folders(folder)) or [folder])
    )
    names = distinct_names(folders)
    subjects = [subject_of(folder, samples, inside, name) for folder, name in zip(folders, names, strict=True)]
    doing("drawing the figures")
    write_page(subjects, path)
    say(f"{path}")
    return path
