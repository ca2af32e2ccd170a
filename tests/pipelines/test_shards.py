"""Sharded datasets hold the blocks of the dataset in one file, and their builds resume after a kill."""

import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import datasets
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from corpora.readers import file_identity
from pipelines.dataset.block_dataset import write_blocks
from pipelines.dataset.document_records import DOCUMENTS_FILE
from pipelines.dataset.encoded_range import EncodedSplit, encode_range
from pipelines.dataset.outputs import output_prefix
from pipelines.dataset.reader import TokenDataset, data_files, write_info
from pipelines.dataset.shards import assemble, cut, write_shards
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.test_blocks import files_of
from tokenizer import Tokenizer

TEXTS = st.lists(st.text(max_size=60), max_size=30).map(lambda texts: ["one text, and an empty one", "", *texts] * 2)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture(scope="module")
def sharded_folder(tmp_path_factory, text_folder, tokenizer_folder):
    """Return the dataset of `dataset_folder` in shards of 10 kB."""
    folder = tmp_path_factory.mktemp("sharded") / "data"
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=folder, shard_size=10_000)
    return folder


def streams(folder):
    """Return the tokens of each split."""
    dataset = TokenDataset(folder)
    return {name: stream.read(0, stream.tokens).tolist() for name, stream in dataset.splits.items()}


def facts(info):
    """Return what dataset.json says of each split, without its files and the fingerprint of its text."""
    names = ("documents", "bytes", "encoded_tokens", "tokens", "blocks")
    return {split: {name: entry[name] for name in names} for split, entry in info["splits"].items()}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, st.integers(50, 700), st.integers(10, 400), st.integers(2, 9), st.sampled_from(["hash:0.4", "tail:0.3"]))
def test_shards_hold_the_blocks_of_one_file(
    tmp_path_factory, tokenizer, texts, range_bytes, shard_size, context_length, split
):
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = open_corpus(str(folder / "a.jsonl"), split)
    (folder / "one").mkdir()
    (folder / "many").mkdir()
    try:
        one = write_blocks(corpus, tokenizer, context_length, folder / "one")
    except ValueError as short:
        with pytest.raises(ValueError, match="the split") as refused:
            write_shards(
                corpus, tokenizer, context_length, folder / "many", work=folder / "work", shard_size=shard_size
            )
        assert str(refused.value) == str(short)
        return
    many = write_shards(
        corpus,
        tokenizer,
        context_length,
        folder / "many",
        work=folder / "work",
        shard_size=shard_size,
        range_bytes=range_bytes,
    )
    assert streams(folder / "many") == streams(folder / "one")
    assert facts(many) == facts(one)
    assert many["corpus"]["dropped"] == one["corpus"]["dropped"]
    for name, entry in many["splits"].items():
        sizes = [shard["blocks"] for shard in entry["shards"]]
        assert set(sizes[:-1]) <= {max(1, shard_size // (2 * context_length))}
        assert sum(sizes) == entry["blocks"]
        if name != "train":
            recorded = (folder / kind / name / DOCUMENTS_FILE for kind in ("one", "many"))
            assert len({path.read_bytes() for path in recorded}) == 1


def test_a_damaged_file_that_is_left_out_is_named_once(tmp_path, tokenizer_folder, in_process):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        lines = [json.dumps({"text": f"{number} {line} some text"}) for line in range(200)]
        (folder / f"{number}.jsonl").write_text("\n".join([*lines, "{"]))
    whole = gzip.compress((folder / "0.jsonl").read_bytes())
    (folder / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    build = ["build-dataset", folder, "--tokenizer", tokenizer_folder, "--context-length", 8, "--split", "tail:0.2"]
    for out, more in (("one", ()), ("many", ("--shard-size", "1k"))):
        failed = in_process(*build, "--out", out, *more)
        assert failed.returncode == 1
        assert "line 201 of" in failed.stderr and "0.jsonl is not JSON" in failed.stderr
        done = in_process(*build, "--out", out, *more, "--invalid", "skip")
        assert done.returncode == 0
        assert done.stderr.count("cut.jsonl.gz is damaged or cut short") == 1
        dropped = json.loads((tmp_path / out / "dataset.json").read_text())["corpus"]["dropped"]
        assert dropped == {"empty_documents": 0, "invalid_documents": 3, "damaged_parts": 1}


@pytest.mark.parametrize("order", [1, -1])
def test_files_do_not_depend_on_ranges_threads_and_order(tmp_path, text_folder, tokenizer, sharded_folder, order):
    """The ranges are encoded by `encode_range` and the shards by `write_shard`, first to last or last to first."""
    corpus, work, out = open_corpus([str(text_folder)]), tmp_path / "work", tmp_path / "data"
    work.mkdir()
    out.mkdir()
    tokenizer.save(out)
    ranges = corpus.ranges(100_000)
    assert len(ranges) > 4
    encoded = {
        number: encode_range(each, tokenizer, output_prefix(work, number), threads=1 + number % 3)
        for number, each in list(enumerate(ranges))[::order]
    }

    def run(write, arguments):
        return [write(each) for each in list(arguments)[::order]][::order]

    in_order = [encoded[number] for number in range(len(ranges))]
    assemble(corpus, tokenizer, 32, out, in_order, 10_000, run=run)
    assert files_of(out) == files_of(sharded_folder)


def test_datasets_opens_the_shards_as_one(sharded_folder, dataset_folder):
    opened, expected = (datasets.load_from_disk(str(folder)) for folder in (sharded_folder, dataset_folder))
    assert len(list((sharded_folder / "train").glob("*.arrow"))) > 10
    for split in ("train", "validation"):
        assert opened[split].features == expected[split].features
        assert np.array_equal(np.array(opened[split]["input_ids"]), np.array(expected[split]["input_ids"]))


def test_training_and_evaluation_are_those_of_one_file(tmp_path, trained_gpt, small_recipe, sharded_folder):
    out = tmp_path / "gpt"
    pretrain(small_recipe, data=sharded_folder, out=out)

    def losses(run):
        return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]

    assert losses(out) == losses(trained_gpt)
    ours, theirs = (evaluate(run, data=sharded_folder).to_json()["splits"]["validation"] for run in (out, trained_gpt))
    assert ours["cross_entropy"] == theirs["cross_entropy"]


def test_one_huge_document_crosses_all_shards(tmp_path, text_folder, tokenizer_folder, monkeypatch):
    whole = b"".join(path.read_bytes() for path in sorted(text_folder.iterdir()))
    (tmp_path / "long.txt").write_bytes(whole)
    monkeypatch.setattr("pipelines.dataset.encoding.PIECE_BYTES", 1000)
    monkeypatch.setattr("pipelines.dataset.encoding.GROUP_BYTES", 8000)
    options = {"tokenizer": tokenizer_folder, "context_length": 32}
    build_dataset([str(tmp_path / "long.txt")], out=tmp_path / "one", **options)
    info = build_dataset([str(tmp_path / "long.txt")], out=tmp_path / "many", shard_size=5000, **options)
    assert info.splits["train"].documents == 1
    written = json.loads((tmp_path / "many" / "dataset.json").read_text())
    assert len(written["splits"]["train"]["shards"]) > 20
    assert streams(tmp_path / "many") == streams(tmp_path / "one")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 9), st.integers(1, 9))
def test_the_cut_takes_every_token_once_and_in_order(lengths, context_length, shard_blocks):
    parts = [EncodedSplit(1, length, length, n, f"hash {n}", n) for n, length in enumerate(lengths)]
    shards = cut(parts, context_length, shard_blocks)
    taken = [(each.path, token) for shard in shards for each in shard.slices for token in range(each.start, each.stop)]
    every = [(n, token) for n, length in enumerate(lengths) for token in range(length)]
    assert taken == every[: len(every) // context_length * context_length]
    sizes = [sum(each.stop - each.start for each in shard.slices) for shard in shards]
    assert set(sizes[:-1]) <= {shard_blocks * context_length}
    assert sizes == [shard.blocks * context_length for shard in shards]
    assert all(each.stop > each.start for shard in shards for each in shard.slices)


def test_an_encoded_range_is_kept_and_a_damaged_one_is_encoded_again(tmp_path, text_folder, tokenizer):
    (each,) = open_corpus([str(text_folder)]).ranges()
    first = encode_range(each, tokenizer, tmp_path / "0")
    before, times = files_of(tmp_path), {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert encode_range(each, tokenizer, tmp_path / "0") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    for path in sorted(tmp_path.iterdir()):
        for damage in (lambda content: content[:-1], lambda content: content[:-2] + b"xx", lambda content: None):
            content = damage(path.read_bytes())
            path.write_bytes(content) if content is not None else path.unlink()
            assert encode_range(each, tokenizer, tmp_path / "0") == first
            assert files_of(tmp_path) == before


def test_a_full_disk_is_an_error_even_at_the_last_tokens(tmp_path, tokenizer):
    """A limit on file sizes makes writing fail, as on a full disk."""
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(1000)))
    (each,) = open_corpus(str(tmp_path / "a.txt"), "none").ranges()
    size = encode_range(each, tokenizer, tmp_path / "whole").splits["train"].ids.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 2, before[1]))
    try:
        with pytest.raises(OSError, match=rf"File too large.*{tmp_path}/cut"):
            encode_range(each, tokenizer, tmp_path / "cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.glob("cut*"))


def test_another_plan_or_tokenizer_reuses_nothing(tmp_path, text_folder, tokenizer):
    other = Tokenizer.train(["another text"], vocab_size=261)
    corpus = open_corpus([str(text_folder)])
    first = encode_range(corpus.ranges()[0], tokenizer, tmp_path / "0")
    others = [
        (corpus.ranges(100_000)[0], tokenizer, True),
        (open_corpus([str(text_folder)], "hash:0.5").ranges()[0], tokenizer, True),
        (corpus.ranges()[0], tokenizer, False),
        (corpus.ranges()[0], other, True),
    ]
    found = [encode_range(each, tok, tmp_path / "0", separator=separator) for each, tok, separator in others]
    assert len({each.output.key for each in [first, *found]}) == 5
    assert len({each.output.files["train.ids"] for each in [first, *found]}) == 5


def test_a_file_edited_within_the_same_size_and_time_is_encoded_again(tmp_path, text_folder, tokenizer):
    folder = shutil.copytree(text_folder, tmp_path / "text")
    path = sorted(folder.iterdir())[0]

    def encoded():
        return encode_range(open_corpus(str(folder)).ranges()[0], tokenizer, tmp_path / "0").output

    first, times = encoded(), path.stat()
    assert encoded() == first
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    assert encoded().files != first.files


@pytest.mark.parametrize("place", [0, 4095, -4096, -1])
def test_an_edit_at_the_ends_of_a_file_changes_its_identity_whatever_its_times(tmp_path, place):
    path, content = tmp_path / "text", bytearray(100_000)
    path.write_bytes(content)
    before = file_identity(path)
    content[place] ^= 1
    path.write_bytes(content)
    assert file_identity(path)[-1] != before[-1]


@pytest.mark.parametrize("phase", ["encoding", "writing"])
def test_a_killed_build_resumes_from_its_complete_ranges_and_shards(
    tmp_path, text_folder, tokenizer, sharded_folder, phase
):
    work, out, corpus = tmp_path / "work", tmp_path / "data", open_corpus(str(text_folder))
    whole = 2 if phase == "encoding" else len(corpus.ranges(10_000)) + 3
    code = (
        "from pathlib import Path; from corpora import open_corpus; from tokenizer import Tokenizer; "
        "from pipelines.dataset.shards import write_shards; "
        f"folder = Path({str(tmp_path)!r}); (folder / 'killed').mkdir(); "
        f"write_shards(open_corpus({str(text_folder)!r}), Tokenizer.load({str(sharded_folder)!r}), 32, "
        "folder / 'killed', work=folder / 'work', shard_size=10_000, range_bytes=10_000)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 300
    while len(list(work.glob("*.json"))) < whole and time.monotonic() < deadline:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in work.iterdir() if path.name < f"{whole:06}"}
    assert len(kept) >= (6 if phase == "encoding" else 3 * whole - 12)
    out.mkdir()
    tokenizer.save(out)
    write_shards(corpus, tokenizer, 32, out, work=work, shard_size=10_000, range_bytes=10_000)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert files_of(out) == files_of(sharded_folder)


def test_a_build_in_one_file_removes_what_an_interrupted_build_in_shards_left(tmp_path, text_folder, tokenizer_folder):
    left = tmp_path / "data.ranges"
    left.mkdir()
    (left / "000000.json").write_text("{}")
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=tmp_path / "data")
    assert not left.exists()


def test_a_complete_shard_is_reused_and_a_damaged_or_changed_one_is_written_again(tmp_path, text_folder, tokenizer):
    corpus, work = open_corpus(str(text_folder)), tmp_path / "work"
    work.mkdir()
    encoded = [encode_range(each, tokenizer, output_prefix(work, 0)) for each in corpus.ranges()]

    def build(name, context_length=32, shard_size=100_000):
        (tmp_path / name).mkdir()
        assemble(corpus, tokenizer, context_length, tmp_path / name, encoded, shard_size)
        files = files_of(tmp_path / name)
        shards = (tmp_path / name).rglob("data-*.arrow")
        times = {path.relative_to(tmp_path / name): path.stat().st_mtime_ns for path in shards}
        shutil.rmtree(tmp_path / name)
        return files, times

    first = build("first")
    assert build("again") == first
    for number, damage in enumerate((lambda content: content[:-1], lambda content: content[:-2] + b"xx", None)):
        path = work / "000002.arrow"
        content = path.read_bytes()
        path.unlink()
        if damage:
            path.write_bytes(damage(content))
        mended = build(f"mended-{number}")
        assert mended[0] == first[0]
        assert len({*mended[1].items()} - {*first[1].items()}) == 1
        first = mended
    for name, options in (("longer", {"context_length": 64}), ("smaller", {"shard_size": 50_000})):
        _, times = build(name, **options)
        assert not {*times.values()} & {*first[1].values()}
    assert build("first")[0] == first[0]


def test_a_refused_build_leaves_only_its_ranges_and_the_next_one_removes_them(
    tmp_path, text_folder, tokenizer_folder, sharded_folder
):
    options = {"tokenizer": tokenizer_folder, "out": tmp_path / "data", "shard_size": 10_000}
    with pytest.raises(ValueError, match="context of 1000000 tokens is longer than the split"):
        build_dataset([str(text_folder)], context_length=1_000_000, **options)
    work = tmp_path / "data.ranges"
    assert {path.name for path in tmp_path.iterdir()} == {work.name}
    build_dataset([str(text_folder)], context_length=32, **options)
    assert files_of(tmp_path / "data") == files_of(sharded_folder)
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def test_files_of_others_beside_the_ranges_stay(tmp_path, text_folder, tokenizer_folder):
    mine = tmp_path / "data.ranges" / "mine"
    mine.mkdir(parents=True)
    options = {"tokenizer": tokenizer_folder, "context_length": 32, "overwrite": True, "out": tmp_path / "data"}
    build_dataset([str(text_folder)], **options)
    build_dataset([str(text_folder)], shard_size=100_000, **options)
    assert list(mine.parent.iterdir()) == [mine]


def test_a_shard_outside_the_folder_is_refused(sharded_folder, tmp_path):
    folder = shutil.copytree(sharded_folder, tmp_path / "data")
    info = json.loads((folder / "dataset.json").read_text())
    shard = info["splits"]["train"]["shards"][0]
    (folder / "elsewhere").write_bytes((folder / "train" / shard["name"]).read_bytes())
    shard["name"] = "../elsewhere"
    del info["fingerprint"]
    write_info(folder, info)
    with pytest.raises(ValueError, match=r"dataset\.json is damaged"):
        TokenDataset(folder)


def test_a_dry_run_names_the_size_of_the_files(tmp_path, text_folder, tokenizer_folder, in_process):
    options = ("--tokenizer", tokenizer_folder, "--context-length", 32, "--shard-size", "1.5G", "--dry-run")
    done = in_process("build-dataset", text_folder, "--out", tmp_path / "data", *options)
    assert done.returncode == 0
    assert "in files of 1.5 GB" in done.stdout
    assert not (tmp_path / "data").exists()


def test_an_altered_shard_is_named(sharded_folder, tmp_path):
    for number, damage in enumerate((lambda content: content[:-8], lambda content: content[:-1] + b"x", None)):
        folder = shutil.copytree(sharded_folder, tmp_path / str(number))
        path = folder / "train" / data_files(TokenDataset(folder).info["splits"]["train"])[3].name
        path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
        with pytest.raises(ValueError, match=r"train/data-00003-of-000\d\d\.arrow is (truncated|altered|missing)"):
            TokenDataset(folder)


def test_unusable_shard_sizes_are_refused(tmp_path, text_folder, tokenizer_folder):
    options = {"tokenizer": tokenizer_folder, "out": tmp_path / "data"}
    with pytest.raises(ValueError, match="`shard_size` is 0, but must be a positive number of bytes"):
        build_dataset([str(text_folder)], context_length=32, shard_size=0, **options)
    with pytest.raises(ValueError, match="`shard_size` is for blocks"):
        build_dataset([str(text_folder)], pairs=("a", "b"), shard_size=10, **options)
    assert list(tmp_path.iterdir()) == []
