"""Plain functions as tasks on a Ray cluster, which schedules and retries them."""

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pipelines.cli import process
from pipelines.cli.display import count_text, say
from pipelines.cli.waiting import doing
from pipelines.run.code_fingerprint import code_fingerprint

A = TypeVar("A")
R = TypeVar("R")

POLL_SECONDS = 1.0
ANSWER_SECONDS = 10.0
# RFC 9113, 3.4: the client's preface with empty settings, and the type of the frame with the server's settings.
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_SETTINGS = b"\x04"
OBJECT_STORE_BYTES = 100_000_000  # results are small: tasks write files
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray sends usage statistics by default
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # workers run at the command's priority, not at Ray's niceness of 15
    # Skip every line: Ray prints a paragraph for each lost worker. The progress line counts restarted tasks.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}

_alive: set[str] = set()  # nodes at the last look; Ray may notice a lost node after the phase in which it was lost
_running: set[Any] = set()  # references of tasks


@contextmanager
def cluster(address: str | None, workers: int | None = None) -> Iterator[None]:
    """Join the Ray cluster at `address`, or start one on this machine if it is None; leave or stop it at the end.

    workers: processes of a local cluster, by default one per core. A process that has already joined a cluster keeps
    it. Raises ValueError if Ray is not installed, and ConnectionError if no cluster answers or starts.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with process.handle(signal.SIGTERM, process.interrupt):
        doing("importing Ray")
        ray = _ray()
        joined = ray.is_initialized()
        if not joined:
            _join(ray, address, workers)
        # Ray has replaced the handler by its own, which ends the process with a dump of the stack.
        with process.handle(signal.SIGTERM, process.interrupt):
            try:
                yield
            finally:
                _leave(ray, joined)


def _leave(ray: Any, keep: bool) -> None:
    """Leave the cluster, or cancel the tasks if the process is to `keep` it."""
    if keep:
        for reference in _running:
            with suppress(Exception):  # the cluster may be gone
                ray.cancel(reference, force=True)
    else:
        ray.shutdown()  # also ends the tasks; cancelling them first was seen to crash Ray
    _running.clear()


def _join(ray: Any, address: str | None, workers: int | None) -> None:
    """Join or start a cluster, as `cluster` does."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "num_cpus": workers}
    doing(f"joining the Ray cluster at {address}" if address else "starting Ray")
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if port.isdigit():
            _check_server(host, int(port))
        ray.init(address or "local", **options)
    except Exception as error:  # Ray raises a plain Exception if starting takes more than 30 s
        reason = " ".join(str(error).split())[:300]
        if not address:
            raise ConnectionError(
                f"Ray did not start on this machine ({reason}): try again when it is less busy"
            ) from None
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({reason}): give `address` the one that `ray start --head` prints, "
            "and the token of the cluster in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        ) from None
    except SystemExit:  # raised by Ray's handler of SIGTERM
        process.interrupt(signal.SIGTERM, None)


def _check_server(host: str, port: int) -> None:
    """Raise OSError unless a server speaks HTTP/2, as Ray's does. Ray itself would wait for minutes."""
    with socket.create_connection((host, port), timeout=ANSWER_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connection.sendall(HTTP2_GREETING)
        with connection.makefile("rb") as answer:
            frame = answer.read(4)  # three bytes of length, then the type
        if frame[3:] != HTTP2_SETTINGS:
            raise ConnectionError("the server there is not Ray")


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("`engine='ray'` needs Ray: pip install 'bytelm[ray]'") from None
    return ray


def prepare_nodes(function: Callable[[A], None], argument: A) -> None:
    """Call `function` once on each node, for example to compile kernels."""
    ray = _ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    doing("preparing the nodes: compiling kernels once on each")
    task = ray.remote(num_cpus=1, max_retries=-1)(_same_code)
    with _explain(ray):
        nodes = [node["NodeID"] for node in _nodes(ray) if node["Alive"] and node["Resources"].get("CPU")]
    # Soft: if the node is lost, its task runs on another one.
    tasks = [task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)) for node in nodes]
    if not tasks:
        say("no node of the Ray cluster has a CPU yet: waiting for one")
    _gather(ray, [each.remote(code_fingerprint(), function, argument) for each in tasks or [task]])


def collect(
    function: Callable[[A], R],
    arguments: Sequence[A],
    unit: str = "task",
    report: Callable[[list[R], str], None] = lambda done, note: None,
) -> list[R]:
    """Return the results of `function` on each argument, in order. Results must be small: large ones go to files.

    A task whose process or node is lost runs again, without limit. The first exception in a task is raised unchanged
    and not retried. After an exception or Ctrl-C, `cluster` ends the remaining tasks. `report` is called about every
    second with the results so far, in any order, and a note such as "3 of 64 ranges, 1 restarted" for the `unit` range.
    """
    ray = _ray()
    task = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(_same_code)
    return _gather(ray, [task.remote(code_fingerprint(), function, argument) for argument in arguments], unit, report)


def _gather(
    ray: Any,
    references: Sequence[Any],
    unit: str = "task",
    report: Callable[[list[Any], str], None] = lambda done, note: None,
) -> list[Any]:
    """Return the results of `_same_code` in order, as `collect` does."""
    pending = {reference: index for index, reference in enumerate(references)}
    results: dict[int, Any] = {}
    restarts = 0
    report([], f"0 of {count_text(len(references), unit)}")
    _running.update(pending)
    while pending:
        with _explain(ray):
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=POLL_SECONDS)
            _say_lost(_nodes(ray))
            found = ray.get(ready)
        _running.difference_update(ready)
        for reference, (restarted, result) in zip(ready, found, strict=True):
            results[pending.pop(reference)] = result
            restarts += restarted
        note = f"{len(results):,} of {count_text(len(references), unit)}"
        report(list(results.values()), note + (f", {restarts:,} restarted" if restarts else ""))
    return [results[index] for index in range(len(references))]


@contextmanager
def _explain(ray: Any) -> Iterator[None]:
    """Raise an exception in a task unchanged, and every error of Ray as a ConnectionError."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise _gone(f"{type(error).__name__}: {error}") from None


def _gone(reason: str) -> ConnectionError:
    return ConnectionError(
        f"the Ray cluster is gone ({' '.join(reason.split())[:300]}): the same command resumes from the finished ranges"
    )


def _nodes(ray: Any) -> list[dict[str, Any]]:
    """Return the nodes of the cluster; ConnectionError if its head node is lost, for which Ray would wait."""
    if not ray.util.client.ray.is_connected():  # with ray:// only the head node's proxy may be reachable
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            raise _gone(f"its head node does not answer: {error}") from None
    return list(ray.nodes())


def _say_lost(nodes: list[dict[str, Any]]) -> None:
    """Print one line for each node that was lost since the last call, unless it was the only one."""
    alive = {node["NodeID"] for node in nodes if node["Alive"]}
    for node in nodes:
        if node["NodeID"] in _alive - alive and alive:
            say(f"lost the node {node['NodeManagerAddress']}: its tasks run again on the others")
    _alive.clear()
    _alive.update(alive)


def _same_code(expected: str, function: Callable[[A], R], argument: A) -> tuple[int, R]:
    """Return how often this task was restarted, and function(argument).

    Raises ValueError if the worker's code is not the `expected` one.
    """
    if code_fingerprint() != expected:
        import platform

        raise ValueError(
            f"the node {platform.node()} has another version of bytelm, numpy, pyarrow or regex than this machine: "
            "install the same versions on every node"
        )
    restarts = 0
    with suppress(AttributeError):  # no public function of Ray returns it
        restarts = _ray().get_runtime_context().worker.core_worker.get_current_task_attempt_number()
    return restarts, function(argument)
