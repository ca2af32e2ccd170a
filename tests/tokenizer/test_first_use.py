"""The first use on a machine: new processes with an empty cache of kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Prints the kernels that this process compiles.
LISTEN = """
import sys
from pathlib import Path
from numba.core import event

class Names(event.Listener):
    def on_start(self, event):
        print("compiled", event.data["dispatcher"].__name__)
    def on_end(self, event):
        pass

event.register("numba:compile", Names())
"""


def run(code: str, cache) -> list[str]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", LISTEN + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def text(text_folder):
    return max(text_folder.glob("*.txt"), key=lambda path: path.stat().st_size)


def test_a_small_file_is_encoded_before_kernels_are_compiled_with_the_same_ids(tmp_path, text, tokenizer_folder):
    from tokenizer import Tokenizer

    code = f"""
from tokenizer import Tokenizer
tok = Tokenizer.load({str(tokenizer_folder)!r})
print(tok.encode_file({str(text)!r}).tolist())
print(tok.encode_batch(["one", "", "zwei \\u00e9"]))
"""
    file_ids, batch_ids = run(code, tmp_path)
    tok = Tokenizer.load(tokenizer_folder)
    tok.warm_up(1)
    assert file_ids == str(tok.encode_file(text).tolist())
    assert batch_ids == str(tok.encode_batch(["one", "", "zwei é"]))


def test_pretokens_of_a_small_text_are_counted_before_kernels_are_compiled(tmp_path, text):
    from tokenizer import count_pretokens

    code = f"""
from pathlib import Path
from tokenizer import count_pretokens
for pattern in ("cl100k", r"\\w+|\\W"):
    print(sorted(count_pretokens([Path({str(text)!r}), b"not utf-8: \\xff"], pattern).items()))
"""
    lines = run(code, tmp_path)
    for line, pattern in zip(lines, ("cl100k", r"\w+|\W"), strict=True):
        assert line == str(sorted(count_pretokens([text, b"not utf-8: \xff"], pattern).items()))


@pytest.mark.slow
def test_a_larger_text_is_counted_by_plain_python_and_kernels_together(tmp_path, text):
    from tokenizer import count_pretokens

    code = f"""
from pathlib import Path
from tokenizer import count_pretokens
documents = [Path({str(text)!r}).read_bytes()] * 250 + [b"a last one"]
counts = count_pretokens(documents, "gpt2")
print(sorted(counts.items()))
"""
    *compiled, counts = run(code, tmp_path)
    assert "compiled scan" in compiled
    assert counts == str(sorted(count_pretokens([text.read_bytes()] * 250 + [b"a last one"], "gpt2").items()))


def test_the_merge_loop_is_compiled_by_another_process(tmp_path):
    code = """
from tokenizer import first_use
from tokenizer.kernels.merge_loop import merge
print(first_use.is_compiled(merge))
first_use.begin("merging")
print("is compiling", first_use.is_compiling())
first_use.wait("merging")
print("is compiling", first_use.is_compiling())
print(first_use.is_compiled(merge))
"""
    assert run(code, tmp_path) == ["False", "is compiling True", "is compiling False", "True"]


@pytest.mark.parametrize(
    "kind", ["wordpiece", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("character-bpe", "integers"))]
)
def test_pairs_of_characters_are_merged_by_a_kernel_that_another_process_compiled(tmp_path, kind):
    call = "train_ids([[1, 2, 1, 2]]" if kind == "integers" else "train(['low lower']"
    code = f"from tokenizer import Tokenizer; Tokenizer.{call} * 3, 300, kind={kind!r})"
    assert "compiled merge_and_find" not in run(code, tmp_path)


@pytest.mark.slow
def test_precompilation_covers_all_kernels_of_training_and_encoding(tmp_path, text):
    run("from tokenizer.compilation import compile_kernels; compile_kernels()", tmp_path)
    code = f"""
from pathlib import Path
from tokenizer import Tokenizer
text = Path({str(text)!r}).read_bytes()
tok = Tokenizer.train([text] * 300, vocab_size=600)
tok.encode_batch([text] * 300)
"""
    assert set(run(code, tmp_path)) <= {"compiled move_short", "compiled move_long", "compiled tidy"}


def test_kernels_are_compiled_again_after_a_change_in_any_module_that_they_are_made_of(tmp_path):
    import tokenizer

    folder = tmp_path / "tokenizer"
    shutil.copytree(Path(tokenizer.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"""
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np
from tokenizer.kernels.decode import measure
measure(np.array([0], np.uint32), np.array([0, 1]), 0, 1)
"""
    assert run(code, tmp_path / "cache") == ["compiled measure"]
    assert run(code, tmp_path / "cache") == []
    for changed in ("kernels/tools.py", "splitting/automata.py"):
        with (folder / changed).open("a", encoding="utf-8") as file:
            file.write("ANOTHER_CONSTANT = 1\n")
        assert run(code, tmp_path / "cache") == ["compiled measure"], changed


def test_kernels_are_compiled_again_after_a_module_of_their_arguments_has_moved(tmp_path):
    import tokenizer

    folder = tmp_path / "tokenizer"
    shutil.copytree(Path(tokenizer.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = "from tokenizer.kernels.tools import kernel\n@kernel\ndef first(pair): return pair.left\n"
    (folder / "kernels" / "toy.py").write_text(kernel)
    for name, places in (("places", "Places"), ("moved", "Places"), ("moved", "Pair")):
        for old in folder.glob("kernels/types_*.py"):
            old.unlink()
        types = f"from typing import NamedTuple\nclass {places}(NamedTuple):\n    left: int\n    right: int\n"
        (folder / "kernels" / f"types_{name}.py").write_text(types)
        code = f"""
sys.path.insert(0, {str(tmp_path)!r})
from tokenizer.kernels.toy import first
from tokenizer.kernels.types_{name} import {places}
print(first({places}(1, 2)))
"""
        assert run(code, tmp_path / "cache") == ["compiled first", "1"], (name, places)
        assert run(code, tmp_path / "cache") == ["1"]
