"""Training on and encoding a corpus of one long run take memory in proportion to its text."""

import subprocess
import sys

import pytest

from pipelines.dataset.reader import DATA_FILE
from tests.conftest import PEAK_MEMORY

SIZE, TRAINED_SIZE = 32_000_000, 8_000_000
COMMAND = (
    PEAK_MEMORY
    + """
from pipelines.cli.dispatch import main

sys.argv[0] = "bytelm"
assert main() == 0
print(peak_memory())
"""
)


def peak_of(*words):
    """Return the peak memory of a command in bytes."""
    command = [sys.executable, "-c", COMMAND, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return int(done.stdout.split()[-1])


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Return the files of a short text and of a long run of one letter."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "short.txt").write_text("some text " * 10_000)
    (folder / "long.txt").write_text("a" * SIZE)
    return folder / "short.txt", folder / "long.txt"


def test_training_on_a_run_takes_memory_for_the_positions_of_its_bytes(texts, tmp_path):
    (tmp_path / "long.txt").write_text("a" * TRAINED_SIZE)
    files = texts[0], tmp_path / "long.txt"
    peaks = [peak_of("train-tokenizer", text, "--vocab-size", 512, "--out", tmp_path / text.stem) for text in files]
    assert (tmp_path / "long" / "tokenizer.json").stat().st_size > 2 * TRAINED_SIZE
    assert peaks[1] - peaks[0] < 36 * TRAINED_SIZE


def test_a_dataset_of_a_run_takes_three_times_its_text(texts, tmp_path, tokenizer_folder):
    options = ("--tokenizer", tokenizer_folder, "--context-length", 16)
    peaks = [peak_of("build-dataset", text, *options, "--out", tmp_path / text.stem) for text in texts]
    assert (tmp_path / "long" / "train" / DATA_FILE).stat().st_size > SIZE / 2
    assert peaks[1] - peaks[0] < 3 * SIZE
