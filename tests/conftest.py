"""Shared fixtures: small real data made of the standard library's sources, and ways to run commands."""

import contextlib
import gc
import io
import itertools
import os
import resource
import signal
import subprocess
import sys
import sysconfig
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

# Tests must not use the network, a GPU, or files of the home directory.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A shell makes background processes and their children ignore Ctrl-C. Restore the handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The models are tiny. A second thread would only wait for the first, and for long on a busy machine.
# Child processes inherit the setting, so runs compare bit for bit.
os.environ["OMP_NUM_THREADS"] = "1"
# Child processes load compiled bytecode, which takes a third of a second less than compiling our modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# This process does not wait until the disk has its files. Child processes do, and tests/faults cuts their power.
os.fsync = lambda descriptor: None
# No deadline for examples: on a busy machine they are slow whatever the code does. The examples are the same in every
# run, so a failure of `make test` is due to the change under test. They are few: `make test-slow` draws more.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50)
# `make test-slow` runs the tests of the marker hypothesis with this number of new examples.
settings.register_profile("thorough", deadline=None, max_examples=600)
settings.load_profile("repeatable")

# A prefix for programs that a test runs with `python -c`. `ru_maxrss` of a new process starts at the peak of its
# parent, which in these tests can be gigabytes.
PEAK_MEMORY = """
import re, resource, sys
def peak_memory():
    'Return the peak of this process in bytes.'
    if sys.platform == "linux":
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
"""

# The slowest files come first, so that no worker of `make test` starts one of them at the end.
LONGEST = (
    "test_readme.py",
    "test_doors.py",
    "test_scale.py",
    "test_report.py",
    "test_one_graph.py",
    "test_train.py",
    "test_wheel.py",
    "test_output.py",
    "test_exchange.py",
    "test_ray.py",
    "test_counting.py",
    "test_other_numbas.py",
    "test_first_use.py",
    "test_unigram.py",
)

BYTELM = Path(sys.executable).with_name("bytelm")
REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_xdist_auto_num_workers():
    """Return one process more than there are cores, because some tests wait for servers and child processes."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_collection_modifyitems(items):
    """Move the tests of LONGEST to the front."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish():
    """Freeze the modules and tests: scanning them takes the garbage collector half a second a run."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    """Skip tests that need a GPU where there is none, and undo a number of threads that an earlier test has set."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
    if "torch" in sys.modules and sys.modules["torch"].get_num_threads() != 1:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def cpu_unless_a_gpu_is_needed(request, monkeypatch):
    """Make the device "auto" the CPU, here and in child processes, unless the test needs a GPU.

    With $BYTELM_TEST_GPU it is the GPU, which some tests are not made for.
    """
    if request.node.get_closest_marker("gpu") or os.environ.get("BYTELM_TEST_GPU"):
        return
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if "torch" in sys.modules:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture(scope="session")
def shared():
    """Return the folder of shared material. Tests that need it are skipped if it is absent."""
    folder = Path(os.environ.get("BYTELM_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared material at {folder}")
    return folder


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """Return a folder of 60 .txt documents (0.6 MB): the first 10 kB, in whole lines, of standard library modules."""
    folder = tmp_path_factory.mktemp("text") / "my-text"
    folder.mkdir()
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    for source in [path for path in sources if path.stat().st_size > 8000][:60]:
        text = source.read_bytes()[:10_000]
        (folder / f"{source.stem}.txt").write_bytes(text[: text.rindex(b"\n") + 1])
    return folder


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory, text_folder):
    """Return a tokenizer of 512 entries trained on `text_folder`."""
    from pipelines.verbs.train_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer") / "tok"
    train_tokenizer([str(text_folder)], vocab_size=512, out=folder)
    return folder


@pytest.fixture(scope="session")
def dataset_folder(tmp_path_factory, text_folder, tokenizer_folder):
    """Return a dataset of `text_folder` in blocks of 32 tokens."""
    from pipelines.verbs.build_dataset import build_dataset

    folder = tmp_path_factory.mktemp("dataset") / "data"
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=folder)
    return folder


@pytest.fixture(scope="session")
def small_recipe():
    """Return the recipe of a decoder of 1 layer that trains on a few thousand tokens in a second."""
    from dataclasses import replace

    from pipelines.recipes.recipe import load_recipe

    recipe = load_recipe("gpt-tiny")
    return replace(
        recipe,
        model=replace(recipe.model, layers=1, width=32, heads=2, context_length=32, dropout=0.1),
        train=replace(
            recipe.train,
            tokens=12_800,
            batch_tokens=256,
            micro_batch=8,
            optimizer="adamw",
            schedule="cosine",
            min_lr_ratio=0.02,
            lr=2e-3,
            beta2=0.95,
            warmup_tokens=1024,
            dtype="float32",
            device="cpu",
            validate_every_tokens=2560,
            validation_tokens=640,
            checkpoint_every_tokens=2560,
            log_every_steps=5,
        ),
    )


@pytest.fixture(scope="session")
def trained_gpt(tmp_path_factory, small_recipe, dataset_folder):
    """Return the run folder of the decoder of `small_recipe`."""
    from pipelines.verbs.pretrain import pretrain

    folder = tmp_path_factory.mktemp("runs") / "gpt"
    pretrain(small_recipe, data=dataset_folder, out=folder)
    return folder


@pytest.fixture(scope="session")
def trained_bert(tmp_path_factory, small_recipe, dataset_folder):
    """Return the run folder of an encoder of the same size."""
    from dataclasses import replace

    from pipelines.verbs.pretrain import pretrain

    model = replace(small_recipe.model, architecture="encoder", context_length=34)
    recipe = replace(small_recipe, objective="masked-token", model=model)
    folder = tmp_path_factory.mktemp("runs") / "bert"
    pretrain(recipe, data=dataset_folder, out=folder)
    return folder


@pytest.fixture(scope="session")
def sentinel_dataset(tmp_path_factory, text_folder):
    """Return a dataset of `text_folder` in blocks of 32 tokens, with a tokenizer that has sentinels."""
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.train_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("t5")
    train_tokenizer([str(text_folder)], vocab_size=512, sentinels=20, out=folder / "tok")
    build_dataset([str(text_folder)], tokenizer=folder / "tok", context_length=32, out=folder / "data")
    return folder / "data"


@pytest.fixture(scope="session")
def trained_t5(sentinel_dataset, small_recipe):
    """Return the run folder of a small encoder-decoder for span corruption."""
    from dataclasses import replace

    from pipelines.verbs.pretrain import pretrain

    model = replace(
        small_recipe.model, architecture="encoder-decoder", positions="relative", norm="rmsnorm", bias=False
    )
    recipe = replace(small_recipe, objective="span-corruption", model=model)
    out = sentinel_dataset.with_name("run")
    pretrain(recipe, data=sentinel_dataset, out=out)
    return out


@pytest.fixture(scope="session")
def wordpiece_run(tmp_path_factory, text_folder, small_recipe):
    """Return the run folder of a small decoder on WordPiece; its dataset `data` and tokenizer `tok` are beside it."""
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.pretrain import pretrain
    from pipelines.verbs.train_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("wordpiece")
    train_tokenizer([str(text_folder)], vocab_size=600, kind="wordpiece", out=folder / "tok")
    build_dataset([str(text_folder)], tokenizer=folder / "tok", context_length=32, out=folder / "data")
    pretrain(small_recipe, data=folder / "data", out=folder / "run")
    return folder / "run"


class Bucket:
    """A bucket of an object store, as boto3 sees it."""

    def __init__(self, client, endpoint, name):
        self.client, self.endpoint, self.name, self.uri = client, endpoint, name, f"s3://{name}"

    def put(self, key, content):
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def get(self, key):
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def all_keys(self):
        """Return the keys of all objects, without those that stand for folders."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        found = [each["Key"] for page in pages for each in page.get("Contents", [])]
        return [key for key in found if not key.endswith("/")]


@pytest.fixture(scope="session")
def object_store():
    """Return new(), which makes an empty bucket of an S3 server that `pyarrow.fs` finds in the environment."""
    pytest.importorskip("moto")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        client = boto3.client("s3")
        made = itertools.count()

        def new():
            name = f"bucket-{next(made)}"
            client.create_bucket(Bucket=name)
            return Bucket(client, os.environ["AWS_ENDPOINT_URL"], name)

        yield new
    server.stop()


@pytest.fixture
def bucket(object_store):
    """Return an empty bucket."""
    return object_store()


@pytest.fixture
def printed(capsys):
    """Let functions print as on the command line, and return capsys with their output."""
    from pipelines.cli.display import show

    with show():
        yield capsys


@pytest.fixture
def bytelm(tmp_path):
    """Run the installed command in an empty folder; return the finished process with its output as text."""

    def run(*arguments, cwd=tmp_path, **options):
        options.setdefault("timeout", 300)
        words = [str(BYTELM), *map(str, arguments)]
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, **options)
        done.stderr = without_waiting(done.stderr)
        return done

    return run


@pytest.fixture
def in_process(tmp_path, monkeypatch):
    """Run a verb in this process, which has PyTorch loaded, with the output and status of the command.

    The many tests of messages use this fixture. The fixture `bytelm` starts the installed command.
    """
    return runner_in_process(tmp_path, monkeypatch)


def runner_in_process(folder, monkeypatch):
    """Return run(*arguments), which runs a verb in `folder` as the fixture `in_process` does."""
    from pipelines.cli.dispatch import main
    from pipelines.training import timing

    # A dry run names a speed: one step is enough for its words.
    monkeypatch.setattr(timing, "WARM_UP_STEPS", 0)
    monkeypatch.setattr(timing, "MEASURED_STEPS", 1)

    def run(*arguments, cwd=folder, stdin=""):
        out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with (
            monkeypatch.context() as patch,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            patch.chdir(cwd)
            patch.setattr(os, "environ", os.environ.copy())
            patch.setenv("COLUMNS", "80")
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", UserWarning)
            try:
                status = main([*map(str, arguments)])
            except SystemExit as leaving:
                status = leaving.code or 0
        output, said = (stream.buffer.getvalue().decode() for stream in (out, errors))
        return subprocess.CompletedProcess(arguments, status, output, without_waiting(said))

    return run


def is_running(pid):
    """Return whether a process has a thread that has not ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return any(state not in "ZX" for state in states)
    return False


def without_waiting(errors: str) -> str:
    """Remove the line, such as "bytelm evaluate: loading PyTorch ...", that a slow machine prints before the result."""
    return "".join(line for line in errors.splitlines(keepends=True) if not line.endswith(" ...\n"))


@pytest.fixture
def interrupt():
    """Return interrupt(process, after, threads=1), which sends Ctrl-C after `after` CPU seconds and returns stderr.

    The process must end within one CPU second per thread. CPU time is measured because a busy machine also runs
    other processes.
    """

    def cpu_seconds_of(process):
        fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cpu_seconds_of_ended_children():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def run(process, after, threads=1):
        if not Path("/proc/self/stat").exists():
            process.kill()
            pytest.skip("how long a process has worked is read from /proc")
        try:
            others, begun, deadline = cpu_seconds_of_ended_children(), cpu_seconds_of(process), time.monotonic() + 300
            while cpu_seconds_of(process) < begun + after:
                time.sleep(0.01)
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "it does not work"
            process.send_signal(signal.SIGINT)
            worked = cpu_seconds_of(process)
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
        assert cpu_seconds_of_ended_children() - others - worked < threads
        return without_waiting(errors.decode()).encode()

    return run
