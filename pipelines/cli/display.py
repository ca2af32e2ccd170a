"""Messages, results, tables and progress bars. Importing this module does not import rich."""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from lm.metrics.units import perplexity
from pipelines.cli.escapes import message, safe
from pipelines.cli.waiting import doing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

# Without a terminal: seconds between two lines of progress, and until the first line, which has the time left.
PLAIN_INTERVAL, FIRST_LINE = 10.0, 2.0
NATURAL = 10_000  # wider than any table
LABEL = 24  # the first column folds only beyond this width, if a table is too wide


class show:  # noqa: N801 - reads as a function
    """Print messages, progress and results from here on, or inside a `with` block; `quiet` prints only results.

    In a notebook: `with show(): pretrain(...)`. A message that cannot be written, as after `| head`, does not stop the
    work. A result that cannot be written raises OSError.
    """

    def __init__(self, quiet: bool = False) -> None:
        from lm.values import check_value
        from pipelines.cli.console import message_stream, messages, results

        quiet = check_value(quiet, bool, "quiet")
        self._before = messages.quiet, message_stream.on_stderr, results.quiet
        messages.quiet, message_stream.on_stderr, results.quiet = quiet, False, False

    def __enter__(self) -> "show":
        return self

    def __exit__(self, *error: object) -> None:
        from pipelines.cli.console import message_stream, messages, results

        messages.quiet, message_stream.on_stderr, results.quiet = self._before


def say(text: str) -> None:
    """Print a message on one line, without interpreting markup."""
    from pipelines.cli.console import messages, print_on

    print_on(messages, message(text), markup=False)


def say_on_stderr() -> None:
    """Send messages to standard error from here on, so that standard output has only results."""
    from pipelines.cli.console import message_stream

    message_stream.on_stderr = True


def answer(text: str) -> None:
    """Print a line of a result, without interpreting markup."""
    from pipelines.cli.console import print_on, results

    print_on(results, message(text), markup=False)


def write(text: str, end: str = "\n") -> None:
    """Write a result for programs, such as JSON or generated text: unchanged in a pipe, escaped on a terminal."""
    from pipelines.cli.console import result_stream, results

    if not results.quiet:
        result_stream.write((safe(text) if result_stream.isatty() else text) + end)
        result_stream.flush()


def perplexity_text(nats: float, digits: str) -> str:
    """Return exp(nats) in the format `digits`, such as ",.2f"; a power of e if no float holds it: "e^1,234.5"."""
    value = perplexity(nats)
    return f"e^{nats:,.1f}" if value is None else format(value, digits)


def count_text(count: int, unit: str) -> str:
    """Return a count and its unit, such as "1 token" or "2,000 tokens"."""
    return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], text: bool = False, to: "Console | None" = None
) -> None:
    """Print an aligned table. Columns after the first are right-aligned numbers, or with `text` left-aligned words.

    Without `columns`, the table has no header. It is printed as a result, or on the console `to`. Numbers are never
    cut: a table that does not fit is printed wider than the terminal.
    """
    from rich.cells import cell_len
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table

    from pipelines.cli.console import print_on, results

    rows = list(rows)
    out = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    columns = columns or [""] * max(map(len, rows))
    for index, column in enumerate(columns):
        numbers = index > 0 and not text
        fixed = 0 < index < len(columns) - text
        out.add_column(escape(column), justify="right" if numbers else "left", no_wrap=fixed, overflow="fold")
    for row in rows:
        out.add_row(*(escape(safe(cell)) for cell in row))
    console = to or results
    fits = True
    if rows and not text:
        natural = Measurement.get(console, console.options.update(max_width=NATURAL), out).maximum
        least = natural - max(0, max(cell_len(safe(row[0])) for row in rows) - LABEL)
        fits = least <= console.width
        out.width = None if fits else least
    print_on(console, out, wrap=fits)


def quantity(value: float, unit: str) -> str:
    """Return `value` with a decimal prefix, such as "12.3 kB" or "4.56 Mtok"."""
    shown = abs(float(f"{value:.3g}"))  # 999.9 is 1 k, not 1e+03
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if shown >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def rounded(count: float, unit: str) -> str:
    """Return a count to three digits and its unit, such as "1.12M characters"."""
    return f"{quantity(count, '').replace(' ', '')} {unit}"


def duration(seconds: float) -> str:
    """Return seconds as 0:07, 3:25 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Bar:
    """Progress of a task: amount done, rate, time left and a note such as the loss.

    A bar on a terminal; elsewhere a line after `FIRST_LINE` seconds and every `PLAIN_INTERVAL` seconds.
    """

    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self.label, self.total, self.unit = label, total, unit
        self._started = self._printed = time.monotonic()
        self._begun_at = 0.0
        self._done = 0.0
        self._note = ""
        self._rich: Progress | None = None

    def __enter__(self) -> "Bar":
        from pipelines.cli.console import messages, progress

        doing(self.label or "working")
        if messages.is_terminal and not messages.quiet:
            self._rich = progress()
            self._rich.start()
            self._task = self._rich.add_task(self.label, total=self.total, rate="", note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end(complete=self.total is None)
        if self._rich is not None:
            self._rich.stop()

    def _end(self, complete: bool) -> None:
        """Print the last line of the task; on a terminal leave its bar, full if `complete`."""
        if self._rich is None:
            seconds = time.monotonic() - self._started
            say(f"{self.label}: {quantity(self._done, self.unit)} in {duration(seconds)}{self._note_text()}")
        elif complete:
            self._rich.update(self._task, total=self._done, completed=self._done)

    def begin_at(self, done: float) -> None:
        """Count `done` as the work of an earlier process, which the rate leaves out."""
        self._begun_at = done
        self.update(done)

    def update(self, done: float, total: float | None = None, note: str = "") -> None:
        """Set the amount done so far, and the total if it is only known now."""
        self._done, self._note = float(done), note
        self.total = self.total if total is None else total
        now = time.monotonic()
        rate = f"{quantity((self._done - self._begun_at) / max(1e-9, now - self._started), self.unit)}/s"
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, total=self.total, rate=rate, note=note)
        elif now - self._printed >= (PLAIN_INTERVAL if self._printed > self._started or not self.total else FIRST_LINE):
            self._printed = now
            share = f"{min(1.0, self._done / self.total):4.0%} " if self.total else ""  # the total may be an estimate
            say(f"{self.label}: {share}{quantity(self._done, self.unit)}, {rate}{self._left(now)}{self._note_text()}")

    def phase(self, label: str, done: float, total: float | None, unit: str | None = None, note: str = "") -> None:
        """Set the progress of the phase `label`; a new phase completes the previous one and gets a new bar."""
        if label != self.label:
            if self._done:
                self._end(complete=True)
            elif self._rich is not None:
                self._rich.remove_task(self._task)
            self.label, self.total, self.unit = label, total, self.unit if unit is None else unit
            doing(label)
            self._started = self._printed = time.monotonic()
            self._done = 0.0
            if self._rich is not None:
                self._task = self._rich.add_task(label, total=total, rate="", note="")
        self.update(done, total, note)

    def _left(self, now: float) -> str:
        worked = self._done - self._begun_at
        if not self.total or worked <= 0:
            return ""
        return f", {duration(max(0.0, self.total - self._done) / worked * (now - self._started))} left"

    def _note_text(self) -> str:
        return f", {self._note}" if self._note else ""
