"""Files appear whole or not at all, whoever writes them and whatever ends the writer."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tokenizer import Tokenizer
from tokenizer.formats.whole_files import whole_file

WRITER = """
import sys
from pathlib import Path
from tokenizer.formats.whole_files import whole_file
letter = sys.argv[2].encode()
for size in range(1, 60):
    with whole_file(Path(sys.argv[1])) as partial, partial.open("wb", buffering=1000) as file:
        for _ in range(20):
            file.write(letter * 1000 * size)
"""


def test_processes_that_write_the_same_file_leave_whole_files_of_one_of_them(tmp_path):
    path = tmp_path / "out"
    words = [sys.executable, "-c", WRITER, path]
    writers = [subprocess.Popen([*words, letter], cwd=REPOSITORY, stderr=subprocess.PIPE) for letter in "abc"]
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            content = path.read_bytes()
            assert content == content[:1] * len(content)
            assert len(content) in range(20_000, 20_000 * 60, 20_000)
    assert [(writer.returncode, writer.stderr.read()) for writer in writers] == [(0, b"")] * 3
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    assert len(path.read_bytes()) == 20_000 * 59


def test_leftovers_of_a_killed_process_are_gone_after_the_next_write(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from tokenizer.formats.whole_files import whole_file\n"
        "with whole_file(Path('tokenizer.json')) as partial: partial.write_bytes(b'x' * 100_000); os._exit(1)"
    )
    environment = {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".partial")
    Tokenizer.train(["a small lamp"], vocab_size=257, special_tokens=()).save(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["tokenizer.json"]
    Tokenizer.load(tmp_path)


def test_an_error_inside_leaves_the_old_file_and_keeps_its_own_message(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(FileNotFoundError, match="another"), whole_file(path) as partial:
        partial.write_text("new")
        (tmp_path / "another").read_text()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), whole_file(tmp_path / "file" / "out"):
        pytest.fail("the block must not begin")
