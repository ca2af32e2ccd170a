"""The log of a run: metrics.jsonl, and the same numbers for TensorBoard if the recipe asks for it."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from lm.warn import warn
from pipelines.files import parse_json, read_bytes, write_whole
from tokenizer.formats.whole_files import naming, whole_file

REMEDY = "remove that line"
ABOVE_FLOAT32 = 2.0**128  # losses and gradient norms are float32


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records in a metrics.jsonl.

    Skips a last line that a killed process left half-written. Raises ValueError, naming the first damaged line.
    """
    content = read_bytes(path) if path.exists() else b""
    return [_parse(line, f"line {number} of {path}") for number, line in enumerate(_lines(content), 1)]


def _lines(content: bytes) -> list[bytes]:
    """Return the complete lines of a file."""
    return content.split(b"\n")[:-1]


def _parse(line: bytes, name: str) -> dict[str, Any]:
    record: dict[str, Any] = parse_json(line, name, REMEDY)
    if wrong := _wrong_field(record):
        raise ValueError(f"{name} is damaged (its {wrong[:40]!r} is missing or has an impossible value): {REMEDY}")
    return record


def _wrong_field(record: dict[str, Any]) -> str | None:
    """Return the first field with an impossible value, or None."""

    def fits(name: str, value: Any) -> bool:
        if name == "split":
            return value in ("train", "validation")  # also the names of TensorBoard's folders
        if name in ("step", "tokens"):
            return type(value) is int and 0 <= value < 1 << 63
        if name == "spikes":  # the steps at which the loss jumped
            return isinstance(value, list) and all(fits("step", step) for step in value)
        return type(value) in (int, float) and abs(value) < ABOVE_FLOAT32

    required = dict.fromkeys(("step", "tokens", "split", "loss", "time_s")) | record
    return next((name for name, value in required.items() if not fits(name, value)), None)


class MetricsLog:
    """metrics.jsonl, one JSON object a line.

    `step` is the step of the checkpoint that the run resumes from (-1: none). Opening the log removes later lines,
    because training writes them again. `saved` is the log's `state` in that checkpoint. If earlier lines have been
    altered since, the log warns, keeps the whole lines, and copies the damaged file to metrics.damaged-N.jsonl.
    """

    def __init__(self, folder: Path, step: int, tensorboard: bool = False, saved: dict[str, Any] | None = None) -> None:
        self._path = folder / "metrics.jsonl"
        lines = self._retained_lines(step, saved)
        text = b"".join(line + b"\n" for line in lines)
        write_whole(self._path, text.decode())
        self._bytes, self._digest = len(text), hashlib.sha256(text)
        self._file = self._path.open("a", encoding="utf-8")
        self._events = Events(folder / "tensorboard", [json.loads(line) for line in lines]) if tensorboard else None

    def state(self) -> dict[str, Any]:
        """Return the log's size in bytes and its SHA-256."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def write(self, **record: Any) -> None:
        line = json.dumps(record, allow_nan=False) + "\n"
        with self._name_errors():
            self._file.write(line)
            self._file.flush()
        self._bytes += len(line)
        self._digest.update(line.encode())
        if self._events is not None:
            self._events.write(record)

    def _retained_lines(self, step: int, saved: dict[str, Any] | None) -> list[bytes]:
        content = read_bytes(self._path) if self._path.exists() else b""
        if saved and hashlib.sha256(content[: saved["bytes"]]).hexdigest() == saved["sha256"]:
            return _lines(content[: saved["bytes"]])
        whole, damaged = [], saved is not None
        for line in _lines(content):
            try:
                if _parse(line, "")["step"] <= step:
                    whole.append(line)
            except ValueError:
                damaged = True
        if damaged and step >= 0:
            all_kept = b"".join(line + b"\n" for line in whole) == content
            warn(
                f"{self._path} is truncated or altered before step {step:,}: {len(whole):,} whole lines are kept"
                + ("" if all_kept else f", and the damaged file is copied to {self._set_aside(content).name}")
            )
        return whole

    def _set_aside(self, content: bytes) -> Path:
        """Write the damaged content to a new file beside metrics.jsonl and return its path."""
        names = (self._path.with_name(f"metrics.damaged-{number}.jsonl") for number in count(1))
        path = next(path for path in names if not path.exists())
        with whole_file(path) as partial:
            partial.write_bytes(content)
        return path

    def sync(self) -> None:
        """Write the lines through to the disk, so that no checkpoint outlives its metrics."""
        with self._name_errors():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._name_errors():
            self._file.close()
        if self._events is not None:
            self._events.close()

    @contextmanager
    def _name_errors(self) -> Iterator[None]:
        """Name the file in an OSError, such as that of a full disk."""
        try:
            yield
        except OSError as error:
            raise naming(error, self._path) from None


class Events:
    """The numbers of metrics.jsonl as TensorBoard's scalars by optimizer step.

    Each split has its own folder and the same tags (`loss`, `lr`, ...), so TensorBoard draws the training and the
    validation loss on one chart. Opening a log rewrites all events from metrics.jsonl, and purge_step=0 makes an open
    TensorBoard discard the old ones. So no step appears twice after a kill, and turning TensorBoard on later still
    shows the whole run. Wall times count seconds of training.
    """

    def __init__(self, folder: Path, history: Iterable[dict[str, Any]]) -> None:
        require_tensorboard()
        for old in folder.rglob("events.out.tfevents.*"):
            old.unlink()
        history = list(history)
        self._folder = folder
        self._begun = time.time() - max((record["time_s"] for record in history), default=0.0)
        self._writers: dict[str, Any] = {}
        for record in history:
            self.write(record)

    def write(self, record: dict[str, Any]) -> None:
        """Write every number of a line of metrics.jsonl."""
        writer = self._writer(record["split"])
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                writer.add_scalar(name, value, record["step"], walltime=self._begun + record["time_s"])

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, split: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if split not in self._writers:
            self._writers[split] = SummaryWriter(str(self._folder / split), purge_step=0)
        return self._writers[split]


def require_tensorboard() -> None:
    """Raise ValueError if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ValueError("train.tensorboard needs the package tensorboard: pip install 'bytelm[tensorboard]'")
