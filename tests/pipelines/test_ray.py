"""Counting on a Ray cluster gives what one machine gives, whatever fails on the way."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from itertools import count as count_from
from pathlib import Path

import pytest

from corpora import open_corpus
from pipelines.cluster import counting
from pipelines.cluster.counting import count_corpus
from pipelines.cluster.tasks import SETTINGS, collect
from pipelines.train_tokenizer import train_tokenizer
from tests.conftest import BYTELM
from tokenizer import PretokenCounts, count_pretokens

pytestmark = pytest.mark.slow  # a cluster takes a minute to start on a busy machine

MEMORY = 16_000_000
WAIT = 600  # seconds; minutes only on a busy machine


class TwoNodes:
    """A cluster on this machine: a head without work, and two nodes of one worker each that tests can kill."""

    def __init__(self):
        os.environ.update(SETTINGS)
        import ray
        from ray.cluster_utils import Cluster

        self.ray = ray
        self.cluster = Cluster()
        self.add(0)
        self.address = self.cluster.address
        self.nodes = [self.add(1) for _ in range(2)]
        ray.init(self.address, log_to_driver=False, logging_level="ERROR")

    def add(self, workers, attempts=5):
        try:
            return self.cluster.add_node(num_cpus=workers, object_store_memory=80_000_000, include_dashboard=False)
        except Exception:  # Ray gives a node 30 s to start, too short for a busy machine
            if attempts == 1:
                raise
        return self.add(workers, attempts - 1)

    def running(self):
        """Return the process of a running task of this cluster, None if there is none."""
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if status.read_bytes().startswith(b"ray::_same_code"):
                    parent = status.with_name("stat").read_text().rpartition(")")[2].split()[1]
                    if self.address.encode() in Path(f"/proc/{parent}/cmdline").read_bytes():
                        return int(status.parent.name)
        return None

    def kill_a_worker(self):
        """Kill the process of a running task. Return whether there is one."""
        process = self.running()
        if process:
            os.kill(process, signal.SIGKILL)
        return bool(process)

    def kill_a_node(self):
        """Kill one of two nodes while a task runs. Return whether it was possible; `mend` replaces the node."""
        if len(self.nodes) < 2 or not self.running():
            return False
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
        return True

    def mend(self):
        """Replace a killed node, from the main thread: Ray sets signal handlers."""
        if len(self.nodes) < 2:
            self.nodes.append(self.add(1))

    def end(self):
        self.ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def two_nodes():
    cluster = TwoNodes()
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def many_files(tmp_path_factory, text_folder):
    """Return a folder of 40 JSONL files of 0.4 MB, one range each, and its counts on one machine."""
    folder = tmp_path_factory.mktemp("many") / "files"
    folder.mkdir()
    texts = [path.read_text() for path in sorted(text_folder.glob("*.txt"))]
    for number in range(40):
        lines = [json.dumps({"text": f"# {number}\n{text}"}) + "\n" for text in texts[number % 9 :: 2]]
        (folder / f"{number:02}.jsonl").write_text("".join(lines * 2))
    return str(folder), count_pretokens(open_corpus(str(folder)).batches("train"), "gpt2")


def count(source, folder, range_bytes, monkeypatch, progress=lambda *_: None):
    """Count on the cluster, in ranges of `range_bytes`; return the counts and what was left out."""
    monkeypatch.setattr(counting, "LEAST_RANGE", range_bytes)
    corpus = open_corpus(source)
    folder.mkdir(exist_ok=True)
    done = count_corpus(corpus, "gpt2", cut_at=(), memory=MEMORY, folder=folder, progress=progress)
    return PretokenCounts.merge(done.paths)


def test_the_command_gives_the_same_tokenizer_and_summary(two_nodes, in_process, text_folder, tmp_path):
    summaries = []
    for engine in ("local", "ray"):
        done = in_process(
            "train-tokenizer", text_folder, "--vocab-size", 700, "--out", engine, "--engine", engine, "--json"
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert summary.pop("tokenizer") == engine
        summary.pop("seconds")
        summaries.append(summary)
    assert summaries[0] == summaries[1]
    assert (tmp_path / "local/tokenizer.json").read_bytes() == (tmp_path / "ray/tokenizer.json").read_bytes()
    assert not (tmp_path / "ray.range-counts").exists()


def survive(two_nodes, many_files, tmp_path, monkeypatch, kills):
    """Count again and again while workers and nodes are killed, `kills` times; each count must be right."""
    source, expected = many_files
    left = [two_nodes.kill_a_node if number % 3 == 1 else two_nodes.kill_a_worker for number in range(kills)]
    ended = threading.Event()

    def kill():
        while left and not ended.wait(0.05):
            if left[0]():
                left.pop(0)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for number in count_from(0):
            assert count(source, tmp_path / str(number), 100_000, monkeypatch) == expected
            two_nodes.mend()
            if not left:
                break
            assert killer.is_alive()
    finally:
        ended.set()
        killer.join()


def test_three_lost_workers_and_nodes_change_nothing(two_nodes, many_files, tmp_path, monkeypatch):
    survive(two_nodes, many_files, tmp_path, monkeypatch, 3)


def test_twenty_lost_workers_and_nodes_change_nothing(two_nodes, many_files, tmp_path, monkeypatch):
    survive(two_nodes, many_files, tmp_path, monkeypatch, 20)


def test_the_command_resumes_after_its_process_is_killed(two_nodes, many_files, tmp_path):
    source, expected = many_files
    out = tmp_path / "tok"
    command = [BYTELM, "train-tokenizer", source, "--vocab-size", "600", "--pattern", "gpt2", "--out", out]
    command += ["--engine", "ray", "--address", two_nodes.address]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    shards = tmp_path / "tok.range-counts"
    until = time.monotonic() + WAIT
    while not (markers := list(shards.glob("*.json"))) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert markers, process.stderr.read()
    times = {path: path.stat().st_mtime_ns for path in markers}
    seen = {}

    def watch():
        while not ended.wait(0.01):
            seen.update({path: path.stat().st_mtime_ns for path in times if path.exists()})

    ended = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    tok = train_tokenizer([source], vocab_size=600, pattern="gpt2", out=out, engine="ray")
    ended.set()
    watcher.join()
    assert seen == times
    assert tok.merges == type(tok).train_from_counts(expected, 600).merges


def test_a_bad_document_is_named_once_or_skipped(two_nodes, in_process, many_files, tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_bytes(b"\xff\xfe\xfd" if number == 2 else b"some text " * 30)
    command = ["train-tokenizer", folder, "--vocab-size", 300, "--out", "tok", "--engine", "ray"]
    failed = in_process(*command)
    assert failed.returncode == 1
    assert failed.stderr.count("2.txt is not UTF-8") == 1
    assert "Traceback" not in failed.stderr
    assert in_process(*command, "--invalid", "skip").returncode == 0
    too_long = in_process(*command[:-3], "other", *command[-2:], "--invalid", "replace", "--max-document", 100)
    assert too_long.returncode == 1
    assert "above the limit of 100 bytes" in too_long.stderr


def fail_once(path):
    """Raise the first time."""
    with Path(path).open("a") as file:
        file.write("called\n")
    raise ValueError(f"a mistake in {path}")


def test_an_exception_is_raised_as_it_is_and_never_retried(two_nodes, tmp_path):
    path = tmp_path / "calls"
    with pytest.raises(ValueError, match=f"^a mistake in {path}$"):
        collect(fail_once, [str(path)])
    assert path.read_text() == "called\n"
