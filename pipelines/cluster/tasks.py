"""Plain functions as tasks on a Ray cluster, which schedules and retries them."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pipelines.cli.display import say
from pipelines.cli.waiting import doing
from pipelines.dataset.outputs import Output
from pipelines.run.code_fingerprint import code_fingerprint

A = TypeVar("A")
R = TypeVar("R")

POLL_SECONDS = 1.0
ANSWER_SECONDS = 10.0
OBJECT_STORE_BYTES = 100_000_000  # results are small: tasks write files
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray sends usage statistics by default
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # workers run at the command's priority, not at Ray's niceness of 15
    # Fatal only: Ray dumps the state of the driver to standard error when a node is lost.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    # Skip every line: Ray prints a paragraph for each lost worker. The progress line counts restarted tasks.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}


@contextmanager
def cluster(address: str | None, workers: int | None = None) -> Iterator[None]:
    """Join the Ray cluster at `address`, or start one on this machine if it is None; leave or stop it at the end.

    workers: processes of a local cluster, by default one per core. A process that has already joined a cluster keeps
    it. Raises ValueError if Ray is not installed, and ConnectionError if no cluster answers or starts.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    doing("importing Ray")
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "num_cpus": workers}
    doing(f"joining the Ray cluster at {address}" if address else "starting Ray")
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if port.isdigit():  # Ray would wait for minutes
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        ray.init(address or "local", **options)
    except Exception as error:  # Ray raises a plain Exception if starting takes more than 30 s
        reason = " ".join(str(error).split())[:300]
        if not address:
            raise ConnectionError(
                f"Ray did not start on this machine ({reason}): try again when it is less busy"
            ) from None
        raise ConnectionError(
            f"no Ray cluster answers at {address} ({reason}): give --address the one that `ray start --head` prints, "
            "and the token of the cluster in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray needs Ray: pip install 'bytelm[ray]'") from None
    return ray


def prepare_nodes(function: Callable[[A], None], argument: A) -> None:
    """Call `function` once on each node, for example to compile kernels."""
    ray = _ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    doing("preparing the nodes: compiling kernels once on each")
    task = ray.remote(num_cpus=1, max_retries=-1)(_same_code)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    # Soft: if the node is lost, its task runs on another one.
    tasks = [task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True)) for node in nodes]
    if not tasks:
        say("no node of the Ray cluster has a CPU yet: waiting for one")
    _results(ray, [each.remote(code_fingerprint(), function, argument) for each in tasks or [task]])


def collect(
    function: Callable[[A], R], arguments: Sequence[A], report: Callable[[list[R]], None] = lambda done: None
) -> list[R]:
    """Return the results of `function` on each argument, in order. Results must be small: large ones go to files.

    A task whose process or node is lost runs again, without limit. The first exception in a task is raised unchanged
    and not retried. After an exception or Ctrl-C, the remaining tasks are cancelled. `report` is called about every
    second with the results so far, in any order.
    """
    ray = _ray()
    task = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=False)(_same_code)
    pending = {task.remote(code_fingerprint(), function, argument): i for i, argument in enumerate(arguments)}
    results: dict[int, R] = {}
    alive: set[str] = set()
    try:
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=POLL_SECONDS)
            alive = _say_lost(ray.nodes(), alive)
            for reference, result in zip(ready, _results(ray, ready), strict=True):
                results[pending.pop(reference)] = result
            report(list(results.values()))
    finally:
        for reference in pending:
            with suppress(Exception):  # the cluster may be gone
                ray.cancel(reference, force=True)
    return [results[index] for index in range(len(arguments))]


def note(done: Sequence[Output], tasks: Sequence[Any]) -> str:
    """Return the note of a progress line: how many ranges are done, and how many tasks were restarted."""
    restarts = sum(output.restarts for output in done)
    return f"{len(done):,} of {len(tasks):,} ranges" + (f", {restarts:,} restarted" if restarts else "")


def _results(ray: Any, references: Sequence[Any]) -> list[Any]:
    try:
        return list(ray.get(list(references)))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _say_lost(nodes: list[dict[str, Any]], before: set[str]) -> set[str]:
    """Print one line for each node of `before` that is lost, and return the ids of the nodes that are alive."""
    for node in nodes:
        if node["NodeID"] in before and not node["Alive"]:
            say(f"lost the node {node['NodeManagerAddress']}: its tasks run again on the others")
    return {node["NodeID"] for node in nodes if node["Alive"]}


def _same_code(expected: str, function: Callable[[A], R], argument: A) -> R:
    """Return function(argument) on a worker. ValueError if the worker's code is not the `expected` one."""
    if code_fingerprint() != expected:
        import platform

        raise ValueError(
            f"the node {platform.node()} has another version of bytelm, numpy, pyarrow or regex than this machine: "
            "install the same versions on every node"
        )
    return function(argument)
