"""`bytelm demo` runs the whole pipeline, here with seconds of training instead of minutes."""

import contextlib
import io
import json
import shutil
import subprocess

import pytest

from pipelines.cli.dispatch import main
from pipelines.dataset.reader import TokenDataset
from pipelines.reporting import demo_steps
from tests.conftest import BYTELM


@pytest.fixture(scope="module", params=["text", pytest.param("stdlib", marks=pytest.mark.slow)])
def demo(request, tmp_path_factory, text_folder):
    """Return run(), which runs the demo in one folder, and the folder.

    The ordinary suite runs it on `text_folder`, in this process. The slow tests run the installed command on the
    built-in corpus, which takes more than a minute.
    """
    folder = tmp_path_factory.mktemp("demo")

    def installed():
        words = [str(BYTELM), "demo", "--seconds", "2"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def in_this_process():
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
            patch.chdir(folder)
            patch.setattr(demo_steps, "CORPUS", str(text_folder))
            patch.setattr(demo_steps, "MEASURED_SECONDS", 0.5)
            assert main(["demo", "--seconds", "2"]) == 0
        return output.getvalue()

    return (installed if request.param == "stdlib" else in_this_process), folder


@pytest.fixture(scope="module")
def first(demo):
    """Return the folder of a demo and its output."""
    run, folder = demo
    return folder, run()


def test_the_demo_makes_everything_and_prints_the_table(first):
    folder, output = first
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


def test_a_repeated_demo_reuses_its_files(first, demo):
    run, folder = demo
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    assert len(before) >= 4
    assert "exists already" in run()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before


def test_fresh_refuses_a_folder_that_is_not_a_demo(tmp_path, bytelm):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    done = bytelm("demo", "--out", "mine", "--fresh")
    assert done.returncode == 1
    assert "is not a folder of this demo" in done.stderr
    assert (tmp_path / "mine" / "precious").exists()
    shutil.rmtree(tmp_path / "mine")
