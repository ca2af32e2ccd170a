"""Text: verify the files of a dataset.

Examples:
    bytelm dataset verify data
    bytelm dataset verify s3://bucket/data --json
"""

import json
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipelines.cli.arguments import AsJson
from pipelines.cli.parsing import parse_second
from pipelines.cli.verbs import verb
from pipelines.files import place


@verb
def verify_dataset(
    folder: Annotated[
        str | Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR | URI", help="Folder or URI of a dataset.")
    ],
    *,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Check every file of a dataset against its manifest, and return the problem of each bad file by name.

    Prints each file that is altered, truncated, missing or extra. The exit status is 1 if there is such a file.

    Args:
        as_json: Print one JSON object.
    """
    from pipelines.cli.display import Bar, answer, count_text, say_on_stderr, write
    from pipelines.dataset.dataset_manifest import MANIFEST, files_in, problems

    there = place(folder)
    if not (there / MANIFEST).is_file() and not (there / "dataset.json").is_file():
        raise ValueError(f"{folder} is not a dataset: it has no {MANIFEST} (bytelm build-dataset makes one)")
    if as_json:
        say_on_stderr()
    size = sum(path.stat().st_size for path in files_in(there).values())
    with Bar("verifying", size, "B") as bar:
        found = problems(there, bar.update)
    if as_json:
        write(json.dumps({"dataset": str(folder), "problems": found}))
        return found
    for name, problem in found.items():
        answer(f"{there / name} is {problem}")
    answer(f"{folder}: {count_text(len(found), 'file')} with problems" if found else f"{folder}: every file is sound")
    return found


def main(arguments: list[str]) -> int:
    """Run `bytelm dataset` with command-line arguments, and return the exit status: 1 if a file is not sound."""
    return int(bool(parse_second({"verify": verify_dataset}, arguments, "dataset")))
