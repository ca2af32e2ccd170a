"""Counting and encoding on a Ray cluster give what one machine gives, whatever fails on the way."""

import contextlib
import http.server
import json
import lzma
import os
import re
import secrets
import signal
import socketserver
import subprocess
import threading
import time
from importlib.util import find_spec
from itertools import count as count_from
from pathlib import Path

import pytest

from corpora import open_corpus
from pipelines.cli.display import show
from pipelines.cluster import counting_tasks as counting
from pipelines.cluster.counting_tasks import count_corpus
from pipelines.cluster.tasks import SETTINGS, collect, prepare_nodes
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.train_tokenizer import train_tokenizer
from tests.conftest import BYTELM, without_waiting
from tests.pipelines.test_blocks import files_of
from tokenizer import PretokenCounts, count_pretokens

# Ray reads SETTINGS when it is imported, so it is not imported here.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'bytelm[ray]'")

MEMORY = 16_000_000
BLOCKS = {"context_length": 32, "shard_size": 500_000}
WAIT = 600  # seconds; minutes only on a busy machine


class TwoNodes:
    """A cluster on this machine: a head without work, and two nodes of one worker each that tests can kill."""

    def __init__(self):
        os.environ.update(SETTINGS, RAY_health_check_period_ms="1000")  # Ray notices a lost node after five periods
        # `ray start` would write a token to the home folder; `Cluster` does not.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
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

    def all_seem_alive(self):
        """Return whether Ray still considers every node alive."""
        return all(node["Alive"] for node in self.ray.nodes())

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
    """Return the counts of a corpus, counted on the cluster in ranges of `range_bytes`."""
    corpus = open_corpus(source)
    folder.mkdir(exist_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(counting, "LEAST_RANGE", range_bytes)
        done = count_corpus(corpus, "gpt2", cut_at=(), memory=MEMORY, folder=folder, progress=progress)
    return PretokenCounts.merge(done.paths)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--dropout", 0.1, "--seed", 7), ("--deduplicate", "exact"), ("--no-separator",)])
def test_the_command_builds_the_same_dataset(two_nodes, in_process, text_folder, tokenizer_folder, tmp_path, options):
    command = ["build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--context-length", 32]
    command += ["--shard-size", "20k", *options]
    for engine in ("local", "ray"):
        done = in_process(*command, "--out", engine, "--engine", engine)
        assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
    assert not (tmp_path / "ray.ranges").exists()


class Survival:
    """Counts and builds while commands, workers and nodes are killed."""

    def __init__(self, two_nodes, many_files, dataset, monkeypatch):
        self.two_nodes, self.monkeypatch, self.dataset = two_nodes, monkeypatch, dataset
        self.source, self.counts = many_files

    def build(self, out):
        """Build a dataset on the cluster, and compare it with the one built on this machine."""
        build_dataset([self.source], out=out, engine="ray", **BLOCKS, tokenizer=self.dataset)
        assert files_of(out) == files_of(self.dataset)

    def kill_the_command(self, out):
        """Kill the command that builds a dataset once some ranges are encoded. Return their markers."""
        command = [BYTELM, "build-dataset", self.source, "--tokenizer", self.dataset, "--out", out, "--context-length"]
        command += [32, "--shard-size", BLOCKS["shard_size"], "--engine", "ray", "--address", self.two_nodes.address]
        times, errors = killed_with_markers(command, out.with_name(out.name + ".ranges"))
        assert all(line.startswith("bytelm build-dataset: ") for line in errors.splitlines()), errors
        return times

    def survive(self, folder, kills):
        """Count and build again and again until all `kills`, such as "worker node command", succeeded."""
        left = [getattr(self.two_nodes, f"kill_a_{kind}") for kind in kills.split() if kind != "command"]
        commands = kills.split().count("command")
        ended = threading.Event()

        def kill():
            while left and not ended.wait(0.05):
                if left[0]():
                    left.pop(0)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for number in count_from(0):
                out = folder / str(number) / "data"
                finished = self.kill_the_command(out) if number < commands else {}
                with unchanged_until_removed(finished):
                    self.build(out)
                assert count(self.source, folder / str(number), 100_000, self.monkeypatch) == self.counts
                self.two_nodes.mend()
                if not left and number >= commands - 1:
                    break
                assert killer.is_alive() or not left
        finally:
            ended.set()
            killer.join()


@pytest.fixture
def survival(two_nodes, many_files, tokenizer_folder, tmp_path, monkeypatch):
    build_dataset([many_files[0]], out=tmp_path / "expected", tokenizer=tokenizer_folder, **BLOCKS)
    return Survival(two_nodes, many_files, tmp_path / "expected", monkeypatch)


@pytest.mark.slow
def test_a_killed_command_worker_and_node_change_nothing(survival, tmp_path, capfd):
    """One line names the lost node, and Ray prints nothing."""
    with show():
        survival.survive(tmp_path, "command worker")
        survival.survive(tmp_path / "more", "node")
        while survival.two_nodes.all_seem_alive():  # Ray may notice after the last command
            time.sleep(0.1)
        collect(time.sleep, [0])
    messages, errors = capfd.readouterr()
    assert errors == ""
    assert len(re.findall("^lost the node .*: its tasks run again on the others$", messages, re.M)) == 1
    assert "ray" not in messages.lower()


@pytest.mark.parametrize("server", [None, http.server.BaseHTTPRequestHandler, socketserver.BaseRequestHandler])
def test_a_wrong_address_is_an_error_without_a_wait(bytelm, text_folder, server):
    """No server, a web server, and one that closes the connection."""
    with contextlib.ExitStack() as stack:
        address = "127.0.0.1:9"
        if server:
            listening = stack.enter_context(socketserver.TCPServer(("127.0.0.1", 0), server))
            threading.Thread(target=listening.serve_forever).start()
            stack.callback(listening.shutdown)
            address = f"127.0.0.1:{listening.server_address[1]}"
        wrong = ("--engine", "ray", "--address", address)
        done = bytelm("train-tokenizer", text_folder, "--vocab-size", 300, "--out", "tok", *wrong)
    assert done.returncode == 1
    assert f"no Ray cluster answers at {address} (" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "verb"),
    [(signal.SIGINT, "build-dataset"), pytest.param(signal.SIGTERM, "train-tokenizer", marks=pytest.mark.slow)],
)
def test_an_interrupted_command_says_what_it_keeps_and_resumes(
    two_nodes, many_files, tokenizer_folder, tmp_path, number, verb, capfd
):
    options = ["--tokenizer", tokenizer_folder, "--context-length", 32, "--shard-size", BLOCKS["shard_size"]]
    kept = tmp_path / ("out.ranges" if verb == "build-dataset" else "out.range-counts")
    command = [
        BYTELM,
        verb,
        many_files[0],
        "--out",
        tmp_path / "out",
        "--engine",
        "ray",
        "--address",
        two_nodes.address,
    ]
    command += options if verb == "build-dataset" else ["--vocab-size", 600]
    markers, errors = killed_with_markers(command, kept, number)
    said = f"bytelm {verb}: interrupted: {kept} keeps the finished ranges, and the same command resumes from them\n"
    assert without_waiting(errors) == said
    assert all(path.exists() for path in markers)
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]
    if verb == "build-dataset":
        with show(), unchanged_until_removed(markers):
            build_dataset(many_files[:1], tokenizer=tokenizer_folder, out=tmp_path / "out", engine="ray", **BLOCKS)
        messages = capfd.readouterr().out
        assert re.search(r"^encoding: .*, 40 of 40 ranges$", messages, re.M), "a stopped task counts as no failure"
        assert re.search(r"^writing: .*, (\d+) of \1 shards$", messages, re.M)


def note_node(folder):
    """Write an empty file named after this node."""
    import ray

    (folder / ray.get_runtime_context().get_node_id()).touch(exist_ok=False)


def test_each_node_is_prepared_once(two_nodes, tmp_path):
    prepare_nodes(note_node, tmp_path)
    workers = {node["NodeID"] for node in two_nodes.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
    assert len(workers) == 2
    assert {path.name for path in tmp_path.iterdir()} == workers


def killed_once(path):
    """Kill this process unless `path` exists."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_progress_counts_tasks_and_restarts(two_nodes, tmp_path):
    notes = []
    collect(killed_once, [tmp_path / "1", tmp_path / "2"], "range", lambda done, note: notes.append(note))
    assert notes[0] == "0 of 2 ranges"
    assert notes[-1] == "2 of 2 ranges, 2 restarted"


@pytest.mark.slow
def test_twenty_killed_commands_workers_and_nodes_change_nothing(survival, tmp_path):
    survival.survive(tmp_path, "command worker node worker " * 5)


def killed_with_markers(command, folder, number=signal.SIGKILL):
    """Send a signal to a command once it has written a marker in `folder`.

    Return the modification time of each marker by path, and the text on standard error.
    """
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    markers = wait_for_markers(process, folder)
    process.send_signal(number)
    _, errors = process.communicate()
    assert markers, errors
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), errors
    return {path: path.stat().st_mtime_ns for path in markers}, errors


def wait_for_markers(process, folder):
    """Wait for a marker in `folder`, and return all; none if the process ends or takes too long."""
    until = time.monotonic() + WAIT
    while not (markers := list(folder.glob("*.json"))) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    return markers


@contextlib.contextmanager
def unchanged_until_removed(times):
    """Check that files keep their times until they are removed."""
    seen = {}

    def watch():
        while not ended.wait(0.01):
            with contextlib.suppress(FileNotFoundError):
                seen.update({path: path.stat().st_mtime_ns for path in times if path.exists()})

    ended = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    ended.set()
    watcher.join()
    assert seen == times


@pytest.mark.slow
def test_the_command_resumes_after_its_process_is_killed(two_nodes, many_files, tmp_path):
    source, expected = many_files
    out = tmp_path / "tok"
    command = [BYTELM, "train-tokenizer", source, "--vocab-size", "600", "--pattern", "gpt2", "--out", out]
    command += ["--engine", "ray", "--address", two_nodes.address]
    times, _ = killed_with_markers(command, tmp_path / "tok.range-counts")
    with unchanged_until_removed(times):
        tok = train_tokenizer([source], vocab_size=600, pattern="gpt2", out=out, engine="ray")
    assert tok.merges == type(tok).train_from_counts(expected, 600).merges


@pytest.mark.slow
def test_broken_lines_and_files_are_left_out_as_on_one_machine(two_nodes, in_process, tokenizer_folder, tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    for number in range(4):
        lines = [json.dumps({"text": f"{number} {line} some text"}) for line in range(200)]
        lines[50] = lines[50][:-2]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    whole = lzma.compress((folder / "0.jsonl").read_bytes())
    (folder / "cut.jsonl.xz").write_bytes(whole[: len(whole) // 2])
    build = ["build-dataset", folder, "--tokenizer", tokenizer_folder, "--context-length", 8, "--shard-size", "1k"]
    build += ["--invalid", "skip"]
    for out, engine in (("one", "local"), ("many", "ray")):
        done = in_process(*build, "--out", out, "--engine", engine)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("cut.jsonl.xz is damaged or cut short") == 1
    dropped = json.loads((tmp_path / "one" / "dataset.json").read_text())["corpus"]["dropped"]
    assert dropped == {"empty_documents": 0, "invalid_documents": 4, "damaged_parts": 1}
    assert (tmp_path / "many" / "manifest.json").read_bytes() == (tmp_path / "one" / "manifest.json").read_bytes()


@pytest.mark.slow
def test_a_bad_document_is_named_once_or_skipped(two_nodes, in_process, many_files, tokenizer_folder, tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_bytes(b"\xff\xfe\xfd" if number == 2 else b"some text " * 30)
    train = ["train-tokenizer", folder, "--vocab-size", 300, "--out", "tok", "--engine", "ray"]
    build = ["build-dataset", folder, "--tokenizer", tokenizer_folder, "--context-length", 8, "--shard-size", "1k"]
    build += ["--split", "tail:0.3", "--out", "data", "--engine", "ray"]
    for command in (train, build):
        failed = in_process(*command)
        assert failed.returncode == 1
        assert failed.stderr.count("2.txt is not UTF-8") == 1
        assert "Traceback" not in failed.stderr
        assert in_process(*command, "--invalid", "skip").returncode == 0
    too_long = in_process(*train[:-3], "other", *train[-2:], "--invalid", "replace", "--max-document", 100)
    assert too_long.returncode == 1
    assert "above the limit of 100 bytes" in too_long.stderr


def fail(path):
    """Record the call in a file, and raise."""
    with Path(path).open("a") as file:
        file.write("called\n")
    raise ValueError(f"a mistake in {path}")


@pytest.mark.slow
def test_an_exception_is_raised_unchanged_and_never_retried(two_nodes, tmp_path):
    path = tmp_path / "calls"
    with pytest.raises(ValueError, match=f"^a mistake in {path}$"):
        collect(fail, [str(path)])
    assert path.read_text() == "called\n"


def check_security(process):
    """Check that the processes of a local cluster use a token, send no usage statistics and show no dashboard."""
    listed = subprocess.run(["pgrep", "-P", str(process)], check=True, capture_output=True, text=True).stdout.split()
    lines = {Path(f"/proc/{each}/cmdline").read_bytes() for each in listed}
    settings = [Path(f"/proc/{each}/environ").read_bytes().split(b"\0") for each in listed]
    assert any(b"raylet/raylet" in line for line in lines)
    served = [line for line in lines if b"dashboard/dashboard.py" in line]
    assert all(b"--disable-frontend" in line for line in served)  # Ray starts the process in any case
    assert all({b"RAY_AUTH_MODE=token", b"RAY_USAGE_STATS_ENABLED=0"} <= {*each} for each in settings)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["raylet", "gcs_server"])
def test_a_lost_cluster_is_one_sentence(lost, many_files, tokenizer_folder, tmp_path):
    command = [BYTELM, "build-dataset", many_files[0], "--tokenizer", tokenizer_folder, "--out", tmp_path / "data"]
    command += ["--context-length", "32", "--shard-size", "1M", "--engine", "ray", "-q"]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
    wait_for_markers(process, tmp_path / "data.ranges")
    check_security(process.pid)
    subprocess.run(["pkill", "-KILL", "-P", str(process.pid), lost], check=True)
    _, errors = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert errors.startswith("bytelm build-dataset: the Ray cluster is gone (")
    assert errors.endswith("): the same command resumes from the finished ranges\n")
    assert errors.count("\n") == 1
