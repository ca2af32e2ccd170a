"""Use: predict what a fine-tuned run learned: labels of texts and more.

Examples:
    bytelm predict runs/reviews "A fine film."
    bytelm predict runs/reviews --file reviews.csv --out labelled.jsonl
"""

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from lm.warn import warn
from pipelines.cli.arguments import Adapter, Checkpoint, Device, Dtype, RunFolder
from pipelines.cli.display import count_text, say, write
from pipelines.cli.errors import complain
from pipelines.cli.process import read_standard_input
from pipelines.cli.text_input import without_line_end
from pipelines.cli.verbs import verb
from pipelines.run.folder import Run, opened
from pipelines.tasks.task import Task

if TYPE_CHECKING:
    from corpora.rows import Row
    from pipelines.run.predictor import Predictor
    from pipelines.tasks.task import Example

SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Texts": ("run text file", ""),
    "Model": ("checkpoint adapter device dtype", ""),
    "Output": ("out json", ""),
}


@verb
def predict(
    run: RunFolder,
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")] = (),
    *,
    file: Path | None = None,
    out: Path | None = None,
    checkpoint: Checkpoint = "auto",
    adapter: Adapter = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> list[dict[str, Any]]:
    """Predict what a fine-tuned run learned, such as the label of each text; return a dict for each example.

    The fields depend on the task, such as `prediction` and `probability`. An empty text in `text` or on standard input
    is an error. Rows of `file` without a text are skipped with a warning. With `out`, the predictions are in that file
    and the list is empty.

    Args:
        run: Folder of a run that bytelm finetune made.
        text: Texts: one or several for each example, as the task reads. By default, the lines of standard input.
        file: File of examples, in any format that bytelm finetune reads. Targets are ignored.
        out: File to write: .jsonl, .csv, .tsv or .parquet, with the fields of each example and its prediction, or a
            format of the task, such as .conll.
        as_json: Print one JSON object per example, each on its own line.
    """
    found = opened(run, checkpoint, device, dtype, any_task=True, adapter=adapter)
    task = found.recipe.task
    if task is None:
        raise ValueError(f"{found.folder} is not fine-tuned for a task: make such a run with bytelm finetune")
    if type(task).predictions is Task.predictions:
        raise ValueError(f"{found.folder} is fine-tuned for the task {task.name}: use bytelm {task.used_by}")
    if text and file:
        raise ValueError("`text` and `file` both name what to predict for: give one of them")
    if out is not None and as_json:
        raise ValueError("`as_json` prints the predictions, but `out` writes them to a file: leave one of them out")
    if out is not None and out.suffix not in (*SUFFIXES, *task.suffixes):
        raise ValueError(f"`out` is {out}: give a file that ends in {', '.join((*SUFFIXES, *task.suffixes))}")
    if file is not None and not file.exists():
        raise ValueError(f"there is no {file}: name a file of examples")
    empty: list[Row] = []
    examples: Iterable[Example] = (
        _of_file(task, file, empty) if file else _of_texts(task, list(text) or _lines_of_standard_input())
    )
    if out is not None and file:
        from pipelines.run.predictions_file import check_fields

        check_fields(out, _of_file(task, file, []), task)
    predictor = _predictor(found, checkpoint, device, dtype)
    if out is None:
        predicted = list(_shown(task, predictor.predictions(examples), as_json))
        if not predicted:
            raise ValueError(f"there is no text in {file or 'the arguments'}: give one or several")
        _warn(predictor, empty)
        return predicted
    from pipelines.run.predictions_file import write_predictions

    count = write_predictions(out, predictor.predictions(examples), task)
    _warn(predictor, empty)
    say(f"{count_text(count, 'prediction')} in {out}")
    return []


def _of_file(task: Task, file: Path, empty: "list[Row]") -> "Iterator[Example]":
    """Yield the examples in a file. Rows without a text are added to `empty`."""
    for row in task.read(file):
        if example := task.example(row, labelled=False):
            yield example
        else:
            empty.append(row)


def _of_texts(task: Task, texts: Sequence[str]) -> "list[Example]":
    """Return the examples in texts. Raises ValueError for texts that make no example, such as an empty one."""
    examples = []
    for number, row in enumerate(task.rows_of_texts(texts)):
        if not (example := task.example(row, labelled=False)):
            first = 1 + number * len(task.input_names)
            raise ValueError(f"text {first} {task.empty}, or leave its example out")
        examples.append(example)
    return examples


def _predictor(run: Run, checkpoint: str, device: str, dtype: str) -> "Predictor":
    from pipelines.run.loaded_run import load_model  # imports PyTorch, which takes seconds
    from pipelines.run.predictor import Predictor

    return Predictor.of(run, load_model(run, device, dtype, checkpoint))


def _warn(predictor: "Predictor", empty: "Sequence[Row]") -> None:
    """Warn of texts that were cut, and of rows without a text."""
    if empty:
        more = f" and {len(empty) - 1:,} more" if len(empty) > 1 else ""
        warn(f"no prediction for rows without a text: {empty[0].place}{more}")
    if count := predictor.cut:
        verbs = ("is", "it was") if count == 1 else ("are", "they were")
        warn(f"{count:,} of {predictor.examples:,} examples {verbs[0]} longer than the model reads: {verbs[1]} cut")


def _shown(
    task: "Task", predicted: "Iterator[tuple[Example, dict[str, Any]]]", as_json: bool
) -> Iterator[dict[str, Any]]:
    """Yield the fields of each prediction after printing them."""
    for example, fields in predicted:
        write(json.dumps(fields, ensure_ascii=False) if as_json else task.summary(example, fields))
        yield fields


def _lines_of_standard_input() -> Sequence[str]:
    if sys.stdin.isatty():
        complain("predict", "reading texts, one per line; Ctrl-D ends the input")
    lines = []
    for number, line in enumerate(io.BytesIO(read_standard_input()), 1):
        try:
            lines.append(without_line_end(line.decode()))
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of standard input is not UTF-8 ({error.reason}): convert it") from None
    if not lines:
        raise ValueError("there are no texts: give one or several, or lines on standard input")
    return lines
