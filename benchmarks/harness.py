"""The shared parts of all benchmarks: fresh processes, turns, clocks, memory, the machine, results and tables."""

import json
import os
import platform
import re
import resource
import selectors
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
Contestant = TypeVar("Contestant")


class Worker:
    """A module in a fresh Python process. It takes a job as JSON and prints its answers with `answers()`."""

    def __init__(self, module: str, job: dict, python: str = sys.executable, environment: dict | None = None) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            [python, "-m", module, json.dumps(job)],
            cwd=ROOT,
            env=os.environ | (environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, order: str, timeout: float | None = None) -> dict:
        """Send an order and return its answer."""
        with suppress(BrokenPipeError):  # the log of a dead process holds its error
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        return self.answer(timeout)

    def answer(self, timeout: float | None = None) -> dict:
        """Return the next answer, or an `error` if the process ended or needed more than `timeout` seconds."""
        timer = threading.Timer(timeout or threading.TIMEOUT_MAX, self._process.kill)
        timer.daemon = True
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if line:
            return json.loads(line)
        status = self._process.wait()
        if timeout and status == -signal.SIGKILL:
            return {"error": f"took more than {timeout:.0f} s"}
        self._log.seek(0)
        return {"error": last_error(self._log.read().decode(errors="replace"), status)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


def answers() -> Callable[[dict], None]:
    """Return the function that answers a `Worker`. All other output of this process now goes to standard error."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lambda fields: print(json.dumps(fields), file=lines, flush=True)


def run_command(
    words: Sequence[object], environment: dict | None = None, cwd: Path | None = None, timeout: float | None = None
) -> dict:
    """Run a program and return its output, time and memory.

    Keys: `output` and `messages` (standard output and error), `first_line` (seconds until its first line of output),
    `silence` (the longest time in seconds without output), `seconds`, `cpu_seconds`, `peak` (bytes of resident memory),
    and `error` (empty if it succeeded). After `timeout` seconds the program is killed with its child processes.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, words)],
        cwd=cwd,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        heard, late = _listen(process, started, timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if late:
        os.killpg(process.pid, signal.SIGKILL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close(), process.stderr.close()
    error = f"took more than {timeout:.0f} s" if late else last_error(heard["messages"], process.returncode)
    return heard | {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "error": error,
    }


def _listen(process: subprocess.Popen, started: float, timeout: float | None) -> tuple[dict, bool]:
    """Read a program's output until its end or the timeout. Return what was heard, and whether it was late."""
    said = {process.stdout: bytearray(), process.stderr: bytearray()}
    first_line, silence, last = None, 0.0, started
    with selectors.DefaultSelector() as selector:
        for stream in said:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(None if timeout is None else max(0.0, started + timeout - time.perf_counter()))
            for key, _ in ready:
                text = os.read(key.fd, 1 << 16)
                now = time.perf_counter()
                silence, last = max(silence, now - last), now
                said[key.fileobj] += text
                if first_line is None and key.fileobj is process.stdout and b"\n" in text:
                    first_line = now - started
                if not text:
                    selector.unregister(key.fileobj)
            if not ready:
                break
        late = bool(selector.get_map())
    output, messages = (text.decode(errors="replace") for text in said.values())
    return {"output": output, "messages": messages, "first_line": first_line, "silence": silence}, late


def last_error(messages: str, status: int) -> str:
    """Return the last error among a program's messages, at most 200 characters, or nothing for exit status 0."""
    if not status:
        return ""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return f"ended with status {status}: {(raised or lines or ['no message'])[-1]}"[:200].replace("|", "/")


def turns(contestants: Sequence[Contestant], rounds: int, warm_up: int = 0) -> Iterator[tuple[int, Contestant]]:
    """Yield (round, contestant) for every contestant in each round; the first contestant rotates.

    Warm-up rounds have negative numbers.
    """
    for number in range(-warm_up, rounds):
        first = number % max(1, len(contestants))
        yield from ((number, each) for each in (*contestants[first:], *contestants[:first]))


class Clock:
    """Measures seconds between marks: by events in a GPU's stream, else by wall-clock time.

    With `cpu_time`, it counts the CPU time of the process instead of wall-clock time.
    """

    def __init__(self, device: str = "cpu", cpu_time: bool = False) -> None:
        self._gpu = device == "cuda"
        self._now = time.process_time if cpu_time else time.perf_counter
        self._marks = []
        self.mark()

    def mark(self) -> None:
        if self._gpu:
            import torch

            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
        else:
            self._marks.append(self._now())

    def seconds(self) -> list[float]:
        """Return the seconds between consecutive marks after all work is done."""
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self._gpu:
            self._marks[-1].synchronize()
            return [before.elapsed_time(after) / 1e3 for before, after in pairs]
        return [after - before for before, after in pairs]


def resident_bytes(field: str = "VmRSS", process: int | str = "self") -> int | None:
    """Return the resident memory of a process in bytes, or its peak for "VmHWM"; None without /proc."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return None


def reset_peak(device: str = "cpu") -> None:
    """Reset the peak memory, if the system supports it."""
    if device == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: str = "cpu") -> int:
    """Return the peak bytes since `reset_peak`: of tensors on a GPU, else of resident memory."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resident_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def processor() -> str:
    """Return the CPU's name, LLVM's name of its generation, and its bfloat16 instructions.

    A virtual machine may lack instructions of its generation.
    """
    import llvmlite.binding  # workers do not need it

    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = named[0] if named else platform.processor() or platform.machine()
    has = llvmlite.binding.get_host_cpu_features()
    narrow = [feature for feature in ("avx512bf16", "amx-bf16") if has.get(feature)]
    return f"{name} ({', '.join([llvmlite.binding.get_host_cpu_name(), *narrow])})"


def cores() -> int | None:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def device_name(device: str) -> str:
    """Return the name of the GPU, or of the CPU with its number of cores."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return f"{cores()} cores of {processor()}"


def machine() -> dict:
    """Return the processor, cores, memory, system and Python version."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": processor(),
        "cores": cores(),
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Return the command that runs a module, with paths shortened to their last part."""
    words = (Path(word).name if "/" in word else word for word in arguments)
    return shlex.join(["python", "-m", module, *words])


def record(folder: Path, name: str, result: object, page: str) -> None:
    """Write a result as `name`.json and its Markdown page as `name`.md."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False, default=float)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(page, encoding="utf-8")


def heading(title: str, command: str, machine: str) -> list[str]:
    """Return the first lines of a page: its title, the command, and the machine with its versions."""
    return [f"# {title}", "", f"`{command}` on {machine}", ""]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def least_and_median(seconds: Sequence[float]) -> tuple[str, str]:
    """Return the cells of the minimum and the median; empty without a measurement."""
    return (duration(min(seconds)), duration(statistics.median(seconds))) if seconds else ("", "")


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def met(target: bool) -> str:
    """Return the table cell for a target: met or missed."""
    return "met" if target else "**missed**"


def say(text: Any) -> None:
    """Print a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)
