"""Measurement: write a self-contained HTML page about one or several runs.

Examples:
    bytelm report runs/gpt
    bytelm report runs --out comparison.html
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.cli.arguments import RunFolders, check_writable
from pipelines.cli.display import say
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import doing
from pipelines.files import distinct_names
from pipelines.run.folder import Run
from pipelines.verbs.runs import run_folders

if TYPE_CHECKING:
    from pipelines.cli.arguments import AnyRun

ENVIRONMENT = PASSIVE_THREADS


@verb
def report(
    runs: RunFolders,
    *,
    out: Path | None = None,
    samples: bool = True,
    inside: bool = True,
) -> Path:
    """Write a self-contained HTML page about one run or several; return its path.

    Args:
        runs: Folders of runs, or folders that contain runs.
        out: File to write; by default report.html in the first folder.
        samples: Show samples of the models, and a passage with the bits of each token.
        inside: Show the inside of the models: attention, circuits of heads, the embedding.
    """
    named = list(runs) if isinstance(runs, Sequence) else [runs]
    if not named:
        raise ValueError("name at least one run folder")
    path = out or Path(named[0]) / "report.html"
    if path.is_dir():
        raise ValueError(f"`out='{path}'` is a folder: name the file to write")
    check_writable("`out`", path, "choose another `out`")
    found = dict.fromkeys(run for each in named for run in _runs_in(each))
    opened = [Run.of(run) for run in found]
    names = distinct_names([run.folder for run in opened])
    from pipelines.reporting.page import write_page
    from pipelines.reporting.subject import subject_of

    subjects = [subject_of(run, samples, inside, name) for run, name in zip(opened, names, strict=True)]
    doing("drawing the figures")
    write_page(subjects, path)
    say(f"{path}")
    return path


def _runs_in(run: "AnyRun") -> "Sequence[AnyRun]":
    """Return the runs in a folder, or the run itself. A folder without runs is returned too, and refused later."""
    return (isinstance(run, Path) and run.is_dir() and run_folders(run)) or [run]
