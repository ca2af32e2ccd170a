"""Settings, processes and texts that the parts of benchmarks.gpu share."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import ROOT, run_command
from benchmarks.texts import code

TEXT_BYTES, TINY_BYTES = 20_000_000, 300_000


class Skipped(Exception):  # noqa: N818
    """A part cannot run here."""


@dataclass(frozen=True)
class Finding:
    """A target, the measured result in words, and whether the target is met; None if there is no judgement."""

    target: str
    found: str
    met: bool | None = None


class Part(NamedTuple):
    """A part of a stage: its name, its time limit in seconds, and the function that measures it."""

    name: str
    limit: float
    measure: "Callable[[Session], list[Finding]]"


@dataclass
class Session:
    """The settings of all parts. `deadline`: the time by time.monotonic() at which the running part must end."""

    device: str
    tiny: bool
    out: Path
    work: Path
    texts: Path
    device_name: str
    deadline: float = 0.0

    @property
    def seconds_left(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    def scaled(self, speed: float) -> float:
        """Return the target on this device of a speed on an H200: nine tenths on an H100."""
        return 0.9 * speed if "H100" in self.device_name else speed

    def judged(self, target: str, found: str, met: bool) -> Finding:
        """Return a finding whose target is judged, except with tiny shapes or on a CPU."""
        return Finding(target, found, None if self.tiny or self.device == "cpu" else bool(met))

    def run(self, module: str, *arguments: object, threads: int = 0, may_fail: bool = False) -> dict:
        """Run a Python module until its end or the deadline; RuntimeError if it fails."""
        environment = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        ran = run_command([sys.executable, "-m", module, *arguments], environment, ROOT, self.seconds_left)
        if ran["error"] and not may_fail:
            sys.stderr.write(ran["messages"][-4000:])
            raise RuntimeError(ran["error"])
        return ran

    def module(self, module: str, *arguments: object) -> dict:
        """Return the JSON that a module prints."""
        return json.loads(self.run(module, *arguments)["output"])

    def require(self, package: str) -> None:
        if find_spec(package) is None:
            raise Skipped(f"{package} is not installed")

    def given(self, name: str) -> Path:
        """Return a file of the folder of texts."""
        if not (self.texts / name).is_file():
            raise Skipped(f"{self.texts / name} does not exist: give its folder with --texts")
        return self.texts / name

    def text(self, size: int = 0) -> Path:
        """Return a file of Python's own sources, at most `size` bytes of them."""
        size = size or (TINY_BYTES if self.tiny else TEXT_BYTES)
        path = self.work / f"code-{size}.txt"
        if not path.exists():
            path.write_text(code(size), encoding="utf-8")
        return path
