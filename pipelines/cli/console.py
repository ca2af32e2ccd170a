"""Consoles of rich for messages and results. Only what prints imports this module: `--help` needs no rich."""

import sys
from collections.abc import Iterable
from typing import IO, TextIO, cast

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pipelines.cli.process import Stdout
from pipelines.cli.waiting import preparation


class _Messages(Stdout):
    """The stream of messages. After a failed write, this message and all later ones are dropped."""

    on_stderr = False

    def stream(self) -> TextIO:
        return sys.stderr if self.on_stderr else sys.stdout

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            messages.quiet = True
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            messages.quiet = True


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error, which `pipelines.cli.dispatch` handles: the reader has left, as after `| head`."""
        raise


# Nothing is printed until `show` is called: verbs called from Python return their results.
message_stream, result_stream = _Messages(), Stdout()
messages = _Console(file=cast(IO[str], message_stream), highlight=False, emoji=False, quiet=True)
results = _Console(file=cast(IO[str], result_stream), highlight=False, emoji=False, quiet=True)


def print_on(console: Console, content: str | Table, markup: bool = True, wrap: bool = True) -> None:
    """Print to `console`. Lines wrap only on a terminal, and only with `wrap`."""
    console.print(content, soft_wrap=not (wrap and console.is_terminal), markup=markup)


class _Progress(Progress):
    """Bars, and below them the import or compilation that the work waits for."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if what := preparation():
            yield Text(f"{what} ...")


def progress() -> Progress:
    """Return the display of bars with the fields `rate` and `note`."""
    return _Progress(
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[note]}", markup=False),
        console=messages,
    )
