"""The wheel holds the four packages with their data and the module bytelm, and works from an empty folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_only_the_four_packages_and_bytelm(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"tokenizer", "lm", "corpora", "pipelines", "bytelm.py"}
    for needed in (
        "corpora/cards/stdlib.toml",
        "pipelines/recipes/gpt-tiny.toml",
        "pipelines/reporting/report.css.j2",
        "pipelines/reporting/report.html.j2",
        *(f"pipelines/serving/page/{path.name}" for path in (ROOT / "pipelines" / "serving" / "page").iterdir()),
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
        "from pipelines.run.recipe import load_recipe; load_recipe('gpt-tiny'); "
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
