"""Progress and times of the phases of training a tokenizer."""

import time

from pipelines.cli.display import Bar

# Names of the phases, and the units that they count.
PHASES = {
    "start": ("starting Ray", ""),
    "count": ("counting", "B"),
    "combine": ("combining", ""),
    "search": ("choosing the least frequency", ""),
    "merge": ("merging", ""),
    "prune": ("fitting", " dropped"),
}


class Phases:
    """Measures and displays the phases of the training."""

    def __init__(self, bar: Bar | None, text_bytes: int | None) -> None:
        self.seconds: dict[str, float] = {}
        self._bar, self._text_bytes = bar, text_bytes
        self._phase: str | None = None

    def begin(self, phase: str | None) -> None:
        self.end()
        self._phase, self._started = phase, time.monotonic()
        self._show(0, None)

    def end(self) -> None:
        if self._phase is not None:
            spent = self.seconds.get(self._phase, 0.0) + time.monotonic() - self._started
            self.seconds[self._phase] = round(spent, 2)
        self._phase = None

    def __call__(self, phase: str, done: int, total: int | None, note: str = "") -> None:
        if phase != self._phase:
            self.begin(phase)
        self._show(done, total, note)

    def _show(self, done: int, total: int | None, note: str = "") -> None:
        if self._bar is not None and self._phase is not None:
            label, unit = PHASES[self._phase]
            self._bar.phase(label, done, self._text_bytes if self._phase == "count" else total, unit, note)
