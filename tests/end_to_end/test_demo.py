"""`bytelm demo` runs the whole pipeline, here with seconds of training instead of minutes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.dataset.reader import TokenDataset


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("bytelm")), "demo", "--seconds", "2"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_the_demo_makes_everything_and_prints_the_table(demo_folder):
    folder, output = demo_folder
    out = folder / "bytelm-demo"
    for path in (
        "tokenizer/tokenizer.json",
        "data/dataset.json",
        "gpt/evaluation.json",
        "bert/evaluation.json",
        "report.html",
    ):
        assert (out / path).exists(), path
    assert TokenDataset(out / "data").vocab_size == 8192
    numbers = json.loads((out / "gpt" / "evaluation.json").read_text())["splits"]["validation"]
    for words in (
        "bytes per token",
        "bits per byte",
        "perplexity",
        "unigram",
        "bigram",
        "xz -9",
        "zstd -19, given train",
        "pseudo-perplexity",
        f"{numbers['bits_per_byte']:.3f}",
        f"{numbers['cross_entropy_bits']:.3f}",
    ):
        assert words in output


def test_a_repeated_demo_reuses_its_files(demo_folder, bytelm):
    folder, _ = demo_folder
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    assert len(before) >= 4
    done = bytelm("demo", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "exists already" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before


def test_fresh_refuses_a_folder_that_is_not_a_demo(tmp_path, bytelm):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    done = bytelm("demo", "--out", "mine", "--fresh")
    assert done.returncode == 1
    assert "is not a folder of this demo" in done.stderr
    assert (tmp_path / "mine" / "precious").exists()
    shutil.rmtree(tmp_path / "mine")
