"""Kernels run with versions of numba whose undocumented names differ from those of today."""

import json
import os
import subprocess
import sys

import pytest

from tokenizer import Tokenizer

NAMES = (
    "FunctionCache",
    "_guard_against_spurious_io_errors",
    "_load_overload",
    "_cache",
    "_cache_file",
    "_load_index",
    "_compilation_chain_init_hook",
    "_nrt",
    "get_call_template",
)
# Renames an identifier in the sources of numba that have it, as they are imported.
RENAME = """
import importlib.machinery, re, sys

class Renamed(importlib.machinery.SourceFileLoader):
    def get_code(self, module):
        source, found = re.subn(rf"\\b{NAME}\\b", "renamed", self.get_source(module))
        return compile(source, self.path, "exec", dont_inherit=True) if found else super().get_code(module)

class Finder:
    def find_spec(name, path=None, target=None):
        if not name.startswith("numba."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = Renamed(spec.loader.name, spec.loader.path)
        return spec

sys.meta_path.insert(0, Finder)
"""
KERNEL = """
from tokenizer.kernels.tools import kernel, load_8

@kernel
def first(data):
    return load_8(data, 0)
"""


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Without these names all kernels are compiled anew, and must not replace those in the cache of other tests.
COMPILED_ANEW = ("_nrt", "_cache", "_cache_file")


# For the other names, `make test` only runs the next test, which compiles one small kernel.
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "_load_overload")) for n in NAMES])
def test_a_text_is_encoded_by_a_numba_without_the_name(name, tokenizer_folder, text_folder, tmp_path):
    path = sorted(text_folder.glob("*.txt"))[0]
    code = (
        f"NAME = {name!r}\n{RENAME}"
        + """
import json
from pathlib import Path
from tokenizer import Tokenizer
from tokenizer.kernels.encode import encode
from tokenizer.encoding.python_encoder import FIRST_BYTES
text = Path(sys.argv[2]).read_text(encoding="utf-8")
text *= 1 + 2 * FIRST_BYTES // len(text)  # more than is encoded without kernels
print(json.dumps([Tokenizer.load(sys.argv[1]).encode(text), len(encode.overloads), len(text)]))
"""
    )
    own = {"NUMBA_CACHE_DIR": str(tmp_path)} if name in COMPILED_ANEW else {}
    ids, compiled, length = json.loads(run(code, tokenizer_folder, path, **own))
    assert compiled
    text = path.read_text(encoding="utf-8")
    assert ids == Tokenizer.load(tokenizer_folder).encode(text * (length // len(text)))


# Without these names, loading fails in the same place as without _load_overload, so only `make test-slow` tries them.
ALIKE = ("_guard_against_spurious_io_errors", "_load_index")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in NAMES])
def test_a_kernel_is_compiled_once_by_a_numba_without_the_name(name, tmp_path):
    (tmp_path / "mine.py").write_text(KERNEL, encoding="utf-8")
    code = (
        f"NAME = {name!r}\n{RENAME}"
        + """
import numpy as np
sys.path.insert(0, sys.argv[1])
from mine import first
assert first(np.array([1, 2, 0, 0, 0, 0, 0, 0], np.uint8)) == 513
print(sum(first.stats.cache_hits.values()), sum(first.stats.cache_misses.values()))
"""
    )
    counts = [run(code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")).split() for _ in range(2)]
    assert counts == [["0", "1"], ["1", "0"]]
