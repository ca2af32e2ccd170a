"""An editable installation, as from `make setup`, works in a folder that has folders named like the packages."""

import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the interpreter of a new environment with the project installed, its libraries and its sources."""
    folder = tmp_path_factory.mktemp("editable")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("tokenizer", "lm", "corpora", "pipelines", "bytelm", "pyproject.toml", "README.md", "LICENSE"):
        (sources / name).symlink_to(ROOT / name)
    venv.create(folder / "venv")
    here = Path(sysconfig.get_paths()["purelib"])
    # A .pth file would also add this environment's own editable installation.
    python = next((folder / "venv").glob("bin/python"))
    options = ["--no-deps", "--no-build-isolation", "--ignore-installed", "-q", "--editable", sources]
    environment = {"PYTHONPATH": str(here), "PATH": "/usr/bin:/bin"}  # with pip and setuptools
    done = subprocess.run([python, "-m", "pip", "install", *options], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python, here, sources


def test_folders_of_the_demo_do_not_shadow_the_packages(python, tmp_path):
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
