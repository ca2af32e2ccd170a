"""After a failed write or an out-of-memory error, the files on disk are the complete old ones or the complete new ones.

Real processes run with limits on file size and memory, on a full file system, and with failing system calls. A command
succeeds, or prints one sentence and exits with status 1. Repeated without the fault, it gives the usual result.
"""

import re
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import BYTELM

LEVELS = 10
STRACE = shutil.which("strace")
LIBC_OUT_OF_MEMORY = "cannot allocate memory for thread-local data: ABORT"
CPP_OUT_OF_MEMORY = "terminate called after throwing an instance of "  # std::bad_alloc, or its mangled name
MODEL = (
    "--model.layers", "1", "--model.width", "32", "--model.heads", "2", "--model.context-length", "32",
    "--train.tokens", "5120", "--train.batch-tokens", "256", "--train.validation-tokens", "640",
    "--train.validate-every-tokens", "1280", "--train.checkpoint-every-tokens", "1280",
    "--train.warmup-tokens", "1024", "--train.log-every-steps", "1",
    "--train.device", "cpu", "--train.dtype", "float32",
)  # fmt: skip


def contents(folder):
    """Return the contents of all files below a folder by name, except lock files."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Work:
    """A command to run under faults, with its initial files and a check of its results."""

    address_space = 0


class BuildDataset(Work):
    """Replaces a dataset. Afterwards the files equal the old or the new dataset."""

    def __init__(self, text, tokenizer, home):
        self.arguments = ["build-dataset", text, "--tokenizer", tokenizer, "--out", "data", "--overwrite"]
        self.home = home
        self.old = self._made("old", "16")
        self.new = self._made("new", "32")
        self.arguments += ["--context-length", "32"]

    def _made(self, name, context_length):
        (self.home / name).mkdir()
        finish([*self.arguments, "--context-length", context_length], self.home / name)
        return contents(self.home / name)

    def prepare(self, folder):
        shutil.copytree(self.home / "old" / "data", folder / "data")

    def state(self, folder):
        from pipelines.dataset.reader import TokenDataset

        found = contents(folder / "data")
        assert TokenDataset(folder / "data").split("train").tokens
        states = [
            {f"data/{name}": content for name, content in found.items()} == known for known in (self.old, self.new)
        ]
        assert any(states)
        return "new" if states[1] else "old"


class TrainTokenizer(Work):
    """Replaces a tokenizer and saves its counts, with so little memory that counting spills to disk."""

    def __init__(self, home):
        rng = np.random.default_rng(0)
        letters = rng.integers(97, 123, size=3_000_000, dtype=np.uint8)
        letters[rng.random(len(letters)) < 0.14] = ord(" ")
        self.text = home / "words.txt"
        self.text.write_bytes(letters.tobytes())
        self.arguments = ["train-tokenizer", self.text, "--vocab-size", "300", "--out", "tok", "--overwrite"]
        self.arguments += ["--threads", "1"]
        self.home = home
        for name, vocab_size in (("old", "280"), ("new", "300")):
            (home / name).mkdir()
            command = [*self.arguments, "--save-counts", "counts"]
            command[command.index("300")] = vocab_size
            finish(command, home / name)
        refused = subprocess.run(
            [BYTELM, *self.arguments, "--memory", "1M"], cwd=home, capture_output=True, text=True, check=False
        )
        self.arguments += ["--memory", re.search(r"give at least (\d+M)", refused.stderr)[1], "--save-counts", "counts"]

    def prepare(self, folder):
        shutil.copytree(self.home / "old", folder, dirs_exist_ok=True)

    def state(self, folder):
        from tokenizer import PretokenCounts, Tokenizer

        assert len(PretokenCounts.load(folder / "counts")) > 100_000
        assert (folder / "counts").read_bytes() == (self.home / "new" / "counts").read_bytes()
        size = Tokenizer.load(folder / "tok").vocab_size
        assert size in (280, 300)
        saved = (folder / "tok" / "tokenizer.json").read_bytes()
        assert saved == (self.home / ("new" if size == 300 else "old") / "tok" / "tokenizer.json").read_bytes()
        return "new" if size == 300 else "old"


class Pretrain(Work):
    """Trains with a checkpoint every few steps. A run that a fault ended resumes to the same weights."""

    def __init__(self, dataset, home):
        self.arguments = ["pretrain", "gpt-tiny", "--data", dataset, "--out", "run", *MODEL]
        (home / "new").mkdir()
        finish(self.arguments, home / "new")
        self.weights = self._weights(home / "new")

    def prepare(self, folder):
        pass

    def _weights(self, folder):
        from pipelines.run.folder import Run
        from pipelines.run.loaded_run import load_trained

        return load_trained(Run(folder / "run"), "cpu").model.state_dict()

    def state(self, folder):
        if not (folder / "run" / "config.toml").exists():
            return "old"
        from pipelines.run.folder import Run
        from pipelines.run.retention import checkpoint_folders

        run = Run(folder / "run")
        steps = [line["tokens"] for line in run.metrics() if line["split"] == "train"]
        if not checkpoint_folders(run.folder):
            return "old"
        weights = self._weights(folder)
        whole = all(weights[name].equal(value) for name, value in self.weights.items())
        return "new" if whole and steps[-1] >= 5120 else "old"


def finish(arguments, folder, status=0):
    """Run a command without a fault and check its exit status."""
    done = subprocess.run([BYTELM, *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def works(tmp_path_factory, text_folder, tokenizer_folder, dataset_folder):
    """Return works(name), which prepares each kind of work on first use."""
    made = {}
    kinds = {
        "build-dataset": lambda home: BuildDataset(text_folder, tokenizer_folder, home),
        "train-tokenizer": TrainTokenizer,
        "pretrain": lambda home: Pretrain(dataset_folder, home),
    }

    def get(name):
        if name not in made:
            made[name] = kinds[name](tmp_path_factory.mktemp(name))
        return made[name]

    return get


def survive(work, folder, prefix=(), limits=None, prepare=True, free=lambda: None):
    """Run `work` in `folder` with a fault, check the files, remove the fault with `free`, and run it again."""
    folder.mkdir(exist_ok=True)
    if prepare:
        work.prepare(folder)
    words = [*prefix, str(BYTELM), *map(str, work.arguments)]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=300, preexec_fn=limits
    )
    state = work.state(folder)
    if done.returncode == 0:
        assert state == "new", done.stdout + done.stderr
    else:
        # On a slow machine, a line such as "loading PyTorch ..." comes first.
        said = [line for line in done.stderr.splitlines() if line and not line.endswith((" ...", "std::bad_alloc"))]
        assert len(said) == 1, done.stderr
        # The C library, the C++ runtime and OpenBLAS end the process themselves if a library that is being loaded, or a
        # new thread, gets no memory. No Python code runs after that, so the files must be right without it.
        messages = {
            1: (f"bytelm {work.arguments[0]}: ", "OpenBLAS error: Memory allocation"),
            127: (LIBC_OUT_OF_MEMORY,),
            -signal.SIGABRT: (CPP_OUT_OF_MEMORY,),
        }
        assert said[0].startswith(messages.get(done.returncode, ())), (done.returncode, done.stderr)
    free()
    finish(work.arguments, folder)
    assert work.state(folder) == "new"
    left = [path.name for path in folder.rglob("*") if path.name.endswith((".partial", ".old", ".lock", ".spill"))]
    assert [name for name in left if name != ".lock"] == []
    return done


def cases(levels, sample=None, more=((),)):
    """Return parameters (work, level, *more). All are slow, except `sample`, which the normal suite runs."""
    works = ("build-dataset", "train-tokenizer", "pretrain")
    found = [(work, level, *others) for work in works for level in range(levels) for others in more]
    return [pytest.param(*case, marks=() if case == sample else pytest.mark.slow) for case in found]


@pytest.mark.parametrize(("name", "level"), cases(LEVELS, ("build-dataset", 4)))
def test_a_file_size_limit_leaves_the_old_files_or_the_new_ones(works, tmp_path, name, level):
    work = works(name)
    size = int(256 * 4000 ** (level / (LEVELS - 1)))  # 256 bytes to 1 MB, evenly spaced on a logarithmic scale
    survive(work, tmp_path, limits=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))


def address_space(work, folder):
    """Return the peak address space of `work` in bytes."""
    work.prepare(folder)
    process = subprocess.Popen([BYTELM, *map(str, work.arguments)], cwd=folder, stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        with suppress(OSError, IndexError, TypeError):
            most = max(most, int(re.search(r"VmPeak:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]))
        time.sleep(0.01)
    assert process.returncode == 0
    return most * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize(("name", "level"), cases(LEVELS))
def test_a_memory_limit_leaves_the_old_files_or_the_new_ones(works, tmp_path, name, level):
    work = works(name)
    if not work.address_space:
        (tmp_path / "measured").mkdir()
        work.address_space = address_space(work, tmp_path / "measured")
    size = int(work.address_space * (0.1 + 0.1 * level))
    survive(work, tmp_path / "work", limits=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size)))


@pytest.fixture
def small_file_system(tmp_path):
    """Return small_file_system(size), which mounts a tmpfs of that size; skips if mounting is not permitted."""
    mounted = []

    def mount(size):
        folder = tmp_path / "small"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a tmpfs is not permitted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(("name", "level"), cases(6, ("build-dataset", 3)))
def test_a_full_file_system_leaves_the_old_files_or_the_new_ones(works, small_file_system, name, level):
    """The file system has room for the old files, and for none to most of the new ones."""
    work = works(name)
    folder = small_file_system("64M")
    work.prepare(folder)
    free = [0, 20_000, 60_000, 200_000, 600_000, 1_500_000][level]
    left = shutil.disk_usage(folder).free
    (folder / "filler").write_bytes(bytes(left - free))
    survive(work, folder, prepare=False, free=lambda: (folder / "filler").unlink())


@pytest.mark.skipif(STRACE is None, reason="needs strace")
@pytest.mark.parametrize(
    ("name", "level", "call"), cases(8, ("build-dataset", 2, "rename"), [("write",), ("fsync",), ("rename",)])
)
def test_a_failed_system_call_leaves_the_old_files_or_the_new_ones(works, tmp_path, name, level, call):
    work = works(name)
    nth = [1, 2, 3, 4, 6, 9, 14, 30][level]
    prefix = [STRACE, "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    survive(work, tmp_path, prefix=[*prefix, "-e", f"inject={call}:error=ENOSPC:when={nth}"])
