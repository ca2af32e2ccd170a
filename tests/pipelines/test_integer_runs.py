"""A model of sequences of integers: from .npy and Parquet to bits per integer."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer

INTEGERS = 12


@pytest.fixture(scope="module")
def songs():
    """Return sequences in which the next integer is one of two, with equal probability: 1 bit per integer."""
    rng = np.random.default_rng(0)
    steps = rng.integers(1, 3, (1000, 40))
    return np.cumsum(steps, axis=1) % INTEGERS


@pytest.fixture(scope="module")
def files(songs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("songs")
    np.save(folder / "songs.npy", songs.astype(np.uint8))
    pq.write_table(pa.table({"notes": songs.tolist()}), folder / "songs.parquet")
    return folder


@pytest.fixture(scope="module")
def tokenizer(files):
    options = {"kind": "integers", "vocab_size": 60, "split": "tail:0.1", "suffix": ".npy"}
    train_tokenizer([str(files / "songs.npy")], out=files / "tok", **options)
    return files / "tok"


def test_both_formats_give_the_vocabulary_of_train_ids(files, songs, tokenizer, tmp_path):
    train_tokenizer([str(files / "songs.parquet")], kind="integers", vocab_size=60, split="tail:0.1", out=tmp_path)
    expected = Tokenizer.train_ids(songs[:900], 60)
    assert Tokenizer.load(tokenizer).fingerprint == Tokenizer.load(tmp_path).fingerprint == expected.fingerprint


@pytest.fixture(scope="module")
def run(files, tokenizer, small_recipe):
    from pipelines.verbs.pretrain import pretrain

    options = {"tokenizer": tokenizer, "context_length": 32, "split": "tail:0.1"}
    build_dataset([str(files / "songs.parquet")], out=files / "data", **options)
    pretrain(small_recipe, data=str(files / "data"), out=files / "run")
    return files / "run"


def test_bits_per_integer_are_all_bits_over_all_integers(run, songs):
    result = evaluate(run).splits["validation"]
    tok = Tokenizer.load(run)
    assert result.bits_per_integer == pytest.approx(4 * result.bits_per_byte)
    bits, integers = result.cross_entropy_bits * result.tokens, result.bytes / 4
    assert result.bits_per_integer == pytest.approx(bits / integers)
    assert result.bits_per_integer > 1
    ids = [i for row in songs[900:] for i in tok.encode_ids(row).tolist()]
    assert result.tokens <= len(ids) + 100  # and a separator before each sequence


def test_a_prompt_and_what_follows_are_texts_of_integers(run):
    from bytelm import load_run

    tok = Tokenizer.load(run)
    prompt = tok.decode(tok.encode_ids([3, 4, 6]))
    written = load_run(run).generate(prompt, tokens=5, seed=1)
    assert (tok.decode_ids(tok.encode(written)) < INTEGERS).all()


def test_rare_sequences_are_left_out(tmp_path):
    rows = np.array([[1, 2, 1, 2]] * 4 + [[3, 1, 3, 1]], np.uint8)
    np.save(tmp_path / "rows.npy", rows)
    options = {"kind": "integers", "vocab_size": 10, "base": 4, "min_count": 2, "split": "none", "suffix": ".npy"}
    tok = train_tokenizer([str(tmp_path / "rows.npy")], out=tmp_path / "tok", **options)
    assert tok == Tokenizer.train_ids(rows[:4], 10, base=4)


def test_the_command_shows_integers_and_refuses_texts(files, tokenizer, in_process):
    options = ["--suffix", ".npy", "--kind", "integers", "--vocab-size", 60, "--base", 20, "--out", files / "again"]
    done = in_process("train-tokenizer", files / "songs.npy", *options)
    assert done.returncode == 0, done.stderr
    assert "20 integers, 35 merges" in done.stdout + done.stderr
    assert "⟨" in done.stdout + done.stderr
    refused = in_process("tokenize", "hello", "--tokenizer", tokenizer)
    assert refused.returncode and "the text is no sequence of integers" in refused.stderr
    few = in_process("train-tokenizer", files / "songs.npy", *options[:-4], "--base", 5, "--out", files / "few")
    assert few.returncode and "11, but" in few.stderr
    counted = in_process("inspect-vocabulary", tokenizer, files / "songs.npy", "--suffix", ".npy", "--json")
    assert json.loads(counted.stdout)["kind"] == "integers"
