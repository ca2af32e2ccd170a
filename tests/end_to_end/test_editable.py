"""The editable installation that `make setup` makes, from a folder with folders of the same names as the packages."""

import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment, which has the project installed and its libraries from this one."""
    folder = tmp_path_factory.mktemp("editable")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("tokenizer", "lm", "corpora", "pipelines", "bytelm.py", "pyproject.toml", "README.md", "LICENSE"):
        (sources / name).symlink_to(ROOT / name)
    venv.create(folder / "venv", with_pip=True)
    here = Path(sysconfig.get_paths()["purelib"])
    # Not as a .pth file: our own editable installation must not come along.
    python = next((folder / "venv").glob("bin/python"))
    options = ["--no-deps", "--no-build-isolation", "--ignore-installed", "-q", "--editable", sources]
    environment = {"PYTHONPATH": str(here), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([python, "-m", "pip", "install", *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python, here, sources


def test_folders_of_a_demo_do_not_hide_the_packages(python, tmp_path):
    python, libraries, sources = python
    for name in ("tokenizer", "lm", "corpora", "pipelines", "bytelm"):
        (tmp_path / name).mkdir()
    code = (
        f"import sys; sys.path.append({str(libraries)!r});"
        "from tokenizer import Tokenizer; import tokenizer, bytelm, lm;"
        f"assert tokenizer.__file__.startswith({str(sources)!r}), tokenizer.__file__;"
        "assert bytelm.Tokenizer is Tokenizer"
    )
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
