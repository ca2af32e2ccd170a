"""The wheel holds bytelm and the four packages, with data and types, and works from an empty folder."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, ROOT]
    # Not the folder build/, which may hold files that the sources no longer have.
    (folder / "options.cfg").write_text(f"[build]\nbuild_base = {folder / 'build'}\n")
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(folder / "options.cfg")}
    subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_only_the_four_packages_and_bytelm(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"tokenizer", "lm", "corpora", "pipelines", "bytelm"}
    for needed in (
        *(f"{package}/py.typed" for package in top),
        "corpora/cards/stdlib.toml",
        "pipelines/recipes/gpt-tiny.toml",
        "pipelines/reporting/report.css.j2",
        "pipelines/reporting/report.html.j2",
        *(f"pipelines/serving/page/{path.name}" for path in (ROOT / "pipelines" / "serving" / "page").iterdir()),
        "tokenizer/splitting/automata.bin",
        "tokenizer/splitting/unicode_classes.bin",
        "tokenizer/splitting/unicode_properties.bin",
    ):
        assert needed in names


def test_the_installed_wheel_imports_and_runs_from_an_empty_folder(wheel, tokenizer_folder, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "empty").mkdir()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import bytelm, corpora, lm.model, pipelines.cli.dispatch, tokenizer; "
        "modules = (bytelm, corpora, lm.model, pipelines.cli.dispatch, tokenizer); "
        "assert all(module.__file__.startswith(sys.argv[1]) for module in modules); "
        "from pipelines.recipes.recipe import load_recipe; load_recipe('gpt-tiny'); "
        "tok = tokenizer.Tokenizer.load(sys.argv[2]); "
        "assert len(tokenizer.count_pretokens(['some text'], 'cl100k')) == 2; "
        "assert bytelm.Tokenizer is tokenizer.Tokenizer and bytelm.__version__; "
        "assert tok.decode(tok.encode('some text')) == 'some text'; "
        "sys.exit(pipelines.cli.dispatch.main(['corpus', 'list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(site), str(tokenizer_folder)],
        cwd=tmp_path / "empty",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "stdlib" in done.stdout


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return the interpreter of a new environment with the wheel, and without the libraries that it needs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def checked(python, tmp_path_factory):
    """Return what `mypy --strict` prints about two programs of someone who has installed the wheel, by program."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", "--python-executable", python]
    done = subprocess.run(
        [*command, "right.py", "wrong.py"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    assert lines[-1].startswith("Found 5 errors in 1 file"), lines
    names = ("right.py:", "wrong.py:")
    return [[line.removeprefix(name) for line in lines if line.startswith(name)] for name in names]


RIGHT = """
import bytelm
from bytelm import Tokenizer
from corpora.corpus import Corpus
from lm.config import ModelConfig
from pipelines.recipes.recipe import Recipe

tok = Tokenizer.train("a.txt", vocab_size=1000)
reveal_type(tok.encode("text"))
run = bytelm.load_run("runs/gpt", device="cpu")
reveal_type(run)
reveal_type(bytelm.score_text(run, "text", top=2).perplexity)
reveal_type(bytelm.load_recipe("gpt-tiny"))
reveal_type(bytelm.train_tokenizer("a.txt", vocab_size=1000, out="tok"))
reveal_type(bytelm.pretrain("gpt-tiny", data="data", out="runs/gpt", train={"tokens": 100_000}))
reveal_type(run.score("text").bits_per_byte)
reveal_type(run.evaluate().splits["validation"])
reveal_type(ModelConfig(layers=2).head_features)
reveal_type(run.generate("text", tokens=20))
reveal_type(run.generate(["a", "b"]))
reveal_type(run.generate("text", probabilities=True)["text"])
reveal_type(run.generate(("a", "b"), probabilities=True)[0]["steps"][0]["candidates"][0]["probability"])
reveal_type(run.fill_masks("The <|mask|> fox")[0]["tokens"])
"""


def test_type_checkers_find_the_types_of_an_installed_wheel(checked):
    lines, _ = checked
    types = [line.split("is ")[1].strip('"') for line in lines]
    assert types == [
        "list[int]",
        "pipelines.run.loaded_run.LoadedRun",
        "float | None",
        "pipelines.recipes.recipe.Recipe",
        "tokenizer.tokenizer.Tokenizer | None",
        "pipelines.run.loaded_run.LoadedRun",
        "float | None",
        "pipelines.evaluation.results.SplitEvaluation",
        "int",
        "str",
        "list[str]",
        "str",
        "float",
        "list[str]",
    ], lines


WRONG = """
import bytelm
from lm.config import ModelConfig

bytelm.load_run("runs/gpt", device="gpu")
bytelm.load_run("runs/gpt", dtype="fp16")
bytelm.Tokenizer.train("a.txt", vocab_size="8k")
ModelConfig(layers="two")
bytelm.load_rnu("runs/gpt")
"""


def test_type_checkers_refuse_wrong_arguments_of_an_installed_wheel(checked):
    _, lines = checked
    for number, words in enumerate(('"device"', '"dtype"', '"vocab_size"', '"layers"', '"load_rnu"'), 5):
        assert any(line.startswith(f"{number}: error") and words in line for line in lines), (words, lines)
