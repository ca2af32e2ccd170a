"""After a command ends with status 0, a power loss takes none of its output.

The system calls of real processes run on a model of a disk that promises the least: the content of a file survives
from its fsync on, and the names in a folder from the fsync of the folder on. A file or folder is whole before it gets
its final name.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import BYTELM
from tests.faults.test_faults import MODEL

STRACE = shutil.which("strace")
CALLS = (
    *("open", "openat", "creat", "write", "pwrite64", "writev", "ftruncate", "fallocate", "sendfile"),
    *("copy_file_range", "fsync", "fdatasync", "mkdir", "mkdirat", "link", "linkat"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"),
)
CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)(?:<(.*?)>)?(?: .*)?")
PARTIAL = re.compile(r"\.(partial|old|lock)(/|$)|/partial-\d+(/|$)")

pytestmark = pytest.mark.skipif(STRACE is None, reason="needs strace")


@dataclass
class Disk:
    """What the system calls below `root` have left in memory only."""

    root: Path
    contents: set[Path] = field(default_factory=set)
    names: set[Path] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    final: set[Path] = field(default_factory=set)
    """all files and folders that were given a final name"""

    def call(self, name, words, paths, flags):
        """Apply a successful call. `paths`: of the descriptors and names in its arguments, in order."""
        path = paths[-1]
        if not path.is_relative_to(self.root):
            return
        if name in ("open", "openat", "creat"):
            if "O_CREAT" in flags and path not in self.known:
                self._named(path)
            if "O_TRUNC" in flags or "O_CREAT" in flags:
                self.contents.add(path)
        elif name in ("fsync", "fdatasync"):
            self.contents.discard(path)
            self.names = {each for each in self.names if each.parent != path}
        elif name in ("mkdir", "mkdirat"):
            self._named(path)
        elif name in ("link", "linkat"):
            self._named(path)
            if paths[0] in self.contents:
                self.contents.add(path)
        elif name.startswith("rename"):
            self._rename(paths[0], path)
        elif name in ("unlink", "unlinkat", "rmdir"):
            self.contents.discard(path)
            self.names.discard(path)
            self.known.discard(path)
        else:  # writes to the file of the first descriptor
            self.contents.add(path)

    def __post_init__(self):
        self.known = {self.root, *self.root.rglob("*")}

    def _named(self, path):
        self.names.add(path)
        self.known.add(path)

    def _rename(self, old, new):
        def moved(path):
            return new / path.relative_to(old) if path.is_relative_to(old) else path

        if not PARTIAL.search(str(new)):
            self.final.add(new)
            early = sorted(each for each in self.contents | (self.names - {old}) if each.is_relative_to(old))
            self.faults += [f"{each} was not flushed before it became {moved(each)}" for each in early]
        self.contents = {moved(each) for each in self.contents}
        self.names = {moved(each) for each in self.names - {old}} | {new}
        self.known = {moved(each) for each in self.known}

    def lost(self):
        """Return the output that a power loss would take now."""
        kept = {
            each for each in self.root.rglob("*") if not PARTIAL.search(str(each)) and "tensorboard" not in str(each)
        }
        return sorted(kept & self.contents), sorted(kept & self.names)


def traced(arguments, folder, trace):
    """Run a command in `folder`, and return the disk after it."""
    folder = folder.resolve()
    disk = Disk(folder)
    command = [STRACE, "-f", "-y", "--seccomp-bpf", "-qq", "-s", "4096", "-e", "signal=none", "-o", trace]
    command += ["-e", f"trace={','.join(CALLS)}", BYTELM, *arguments]
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    begun = {}
    for line in trace.read_text(errors="replace").splitlines():
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>").rstrip()
            continue
        if match := re.match(r"\d+ +<\.\.\. \w+ resumed>(.*)", line):
            line = begun.pop(pid) + match[1]
        found = CALL.fullmatch(line)
        if found is None or int(found[4]) < 0:
            continue
        name, words = found[2], found[3]
        bare = re.sub(r'"(?:[^"\\]|\\.)*"(\.\.\.)?', '""', words)
        if name in ("open", "openat", "creat") and not re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", bare):
            continue
        disk.call(name, words, paths_in(name, words, found[5], folder), bare)
    return disk


def paths_in(name, words, result, folder):
    """Return the paths in the arguments of a call: its file by descriptor, or its names below their folders."""
    if name in ("open", "openat", "creat"):
        return [Path(result)]
    if name in ("write", "pwrite64", "writev", "ftruncate", "fallocate", "fsync", "fdatasync"):
        return [Path(re.match(r"\d+<(.*?)>", words)[1])]
    if name in ("sendfile", "copy_file_range"):
        found = re.findall(r"\d+<(.*?)>", words)
        return [Path(found[0 if name == "sendfile" else 1])]
    found = re.findall(r'(?:(?:AT_FDCWD|\d+)<(.*?)>, )?"((?:[^"\\]|\\.)*)"', words)
    return [Path(base or folder) / path for base, path in found]


def check(disk, *outputs):
    contents, names = disk.lost()
    assert not contents, f"a power loss empties {contents}"
    assert not names, f"a power loss removes {names}"
    assert not disk.faults, disk.faults
    for output in outputs:
        assert (disk.root / output).exists()
    left = [path for path in disk.root.rglob("*") if path.name.endswith((".partial", ".old"))]
    assert not left


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_a_tokenizer_and_its_counts_outlive_a_power_loss(work, tmp_path, text_folder):
    words = ["train-tokenizer", text_folder, "--vocab-size", 300, "--out", "new/tok", "--save-counts", "counts"]
    check(traced(words, work, tmp_path / "trace"), "new/tok/tokenizer.json", "counts")


@pytest.mark.parametrize("shards", [[], pytest.param(["--shard-size", "20k"], marks=pytest.mark.slow)])
def test_a_dataset_outlives_a_power_loss(work, tmp_path, text_folder, tokenizer_folder, shards):
    words = ["build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--context-length", 32, "--out", "new/data"]
    check(traced([*words, *shards], work, tmp_path / "trace"), "new/data/manifest.json")
    check(traced([*words, *shards, "--overwrite"], work, tmp_path / "trace"), "new/data/manifest.json")


@pytest.mark.slow
def test_a_run_and_its_evaluation_outlive_a_power_loss(work, tmp_path, dataset_folder):
    words = ["pretrain", "gpt-tiny", "--data", dataset_folder, "--out", "new/run", *MODEL]
    check(traced(words, work, tmp_path / "trace"), "new/run/config.toml", "new/run/checkpoints")
    words = ["evaluate", "new/run"]
    check(traced(words, work, tmp_path / "trace"), "new/run/evaluation.json")
    words = ["score", "new/run", "a lamp", "--parquet", "more/scores.parquet"]
    check(traced(words, work, tmp_path / "trace"), "more/scores.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "out"),
    [("report", "new/page.html"), ("export-hf", "new/hf/config.json"), ("export-onnx", "new/model.onnx")],
)
def test_output_made_from_a_run_outlives_a_power_loss(work, tmp_path, trained_gpt, verb, out):
    to = Path(out).parent if verb == "export-hf" else out
    check(traced([verb, trained_gpt, "--out", to], work, tmp_path / "trace"), out)


@pytest.mark.slow
def test_a_fine_tuned_run_outlives_a_power_loss(work, tmp_path, trained_bert):
    rows = "".join(f'{{"text": "a word {i}", "label": "{i % 2}"}}\n' for i in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    words = ["finetune", trained_bert, "--data", tmp_path / "rows.jsonl", "--out", "new/run", "--epochs", 1]
    check(traced(words, work, tmp_path / "trace"), "new/run/evaluation.json")


@pytest.mark.slow
def test_a_sweep_outlives_a_power_loss(work, tmp_path, text_folder):
    words = ["sweep-vocabulary", text_folder, "--kinds", "bpe", "--sizes", 300, "--seeds", 1, "--flops", "1e10"]
    check(traced([*words, "--out", "new/sweep"], work, tmp_path / "trace"), "new/sweep/bits-per-byte.png")


@pytest.mark.slow
def test_figures_outlive_a_power_loss(work, tmp_path):
    check(traced(["figures", "masks", "--out", "new/figures"], work, tmp_path / "trace"), "new/figures/masks.png")
