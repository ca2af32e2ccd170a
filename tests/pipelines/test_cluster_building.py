"""The tasks that build a dataset on a cluster write the files that one machine writes."""

import os
import pickle
import random

import pytest

from corpora import open_corpus
from pipelines.cluster.dataset_tasks import Encoders, EncodeTask, compile_encoding, encode
from pipelines.dataset.encoding import SamplingEncoder
from pipelines.dataset.outputs import output_prefix, remove_outputs
from pipelines.dataset.shards import assemble, write_shards
from tests.pipelines.test_blocks import files_of
from tokenizer import Tokenizer


def as_elsewhere(function):
    """Return a function that pickles its argument and result, as a cluster does."""
    function = pickle.loads(pickle.dumps(function))
    return lambda argument: pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(argument)))))


@pytest.mark.parametrize("sampling", [(), (("dropout", 0.1), ("seed", 3))])
@pytest.mark.parametrize("separator", [True, False])
def test_tasks_in_any_order_write_the_files_of_one_machine(
    tmp_path, text_folder, tokenizer_folder, sampling, separator
):
    corpus, tok = open_corpus(str(text_folder)), Tokenizer.load(tokenizer_folder)
    sampler = SamplingEncoder(tok, **dict(sampling)) if sampling else None
    for name in ("one", "work", "many"):
        (tmp_path / name).mkdir()
    options = {"shard_size": 20_000, "separator": separator, "sampler": sampler}
    write_shards(corpus, tok, 32, tmp_path / "one", work=tmp_path / "alone", **options)
    encoders = Encoders(tokenizer_folder, tok.fingerprint, sampling)
    tasks = [
        EncodeTask(each, encoders, separator, output_prefix(tmp_path / "work", number))
        for number, each in enumerate(corpus.ranges(100_000))
    ]
    assert len(tasks) > 4

    def shuffled(function, arguments):
        arguments = list(arguments)
        order = random.Random(0).sample(range(len(arguments)), len(arguments))
        results = {number: as_elsewhere(function)(arguments[number]) for number in order}
        return [results[number] for number in range(len(arguments))]

    as_elsewhere(compile_encoding)(encoders)
    encoded = shuffled(encode, tasks)
    assemble(corpus, tok, 32, tmp_path / "many", encoded, run=shuffled, **options)
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")


def test_partial_shards_of_killed_writers_are_not_in_the_dataset(tmp_path, text_folder, tokenizer_folder):
    corpus, tok = open_corpus(str(text_folder)), Tokenizer.load(tokenizer_folder)

    def interrupted(write, tasks):
        tasks = list(tasks)
        written = [write(task) for task in tasks]
        tasks[0].file.with_name(f"{tasks[0].file.name}.0123.partial").write_bytes(b"half a shard")
        return written

    folder, work = tmp_path / "data", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    (one,) = corpus.ranges()
    task = EncodeTask(one, Encoders(tokenizer_folder, tok.fingerprint), True, output_prefix(work, 0))
    assemble(corpus, tok, 32, folder, [encode(task)], 100_000, run=interrupted)
    assert not list(folder.rglob("*.partial"))
    remove_outputs(work)
    assert not work.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "ray", "--context-length", 32], "add --shard-size"),
        (["--engine", "ray", "--pairs", "a", "b"], "--engine ray does not take --pairs"),
        (["--address", "127.0.0.1:1", "--context-length", 32], "add --engine ray"),
    ],
)
def test_options_that_do_not_fit_the_engine_are_refused(in_process, options, message, text_folder, tokenizer_folder):
    done = in_process("build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--out", "data", *options)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.fixture
def large_files(tmp_path):
    """Return a folder of 12 files of 25 MB."""
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").touch()
        os.truncate(folder / f"{number}.txt", 25_000_000)
    return folder


@pytest.mark.parametrize(
    ("where", "time"),
    [
        (["--threads", 3], "would take about 0:30 with 3 workers at 10 MB/s each"),
        (["--address", "host:1"], "would take about 0.0083 worker-hours at 10 MB/s, shared by the cluster's workers"),
    ],
)
def test_a_dry_run_says_what_a_cluster_has_to_do(in_process, large_files, tokenizer_folder, where, time):
    """300 MB of text have at most 600 MB of ids, so 60 shards of 10 MB, and one more for a second split."""
    command = ["build-dataset", large_files, "--tokenizer", tokenizer_folder, "--context-length", 32]
    done = in_process(*command, "--shard-size", "10M", "--out", "data", "--engine", "ray", *where, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "about 300 MB of text" in done.stdout
    assert "would run 12 tasks to encode and at most 61 to write shards on Ray, each with 250 MB" in done.stdout
    assert "would need at most about 600 MB of disk for data.ranges" in done.stdout
    assert time in done.stdout


def test_a_dry_run_says_what_a_cluster_has_to_count(in_process, large_files):
    command = ["train-tokenizer", large_files, "--vocab-size", 300, "--out", "tok", "--engine", "ray"]
    done = in_process(*command, "--threads", 2, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would run 12 tasks to count on Ray, each with 1 GB of memory" in done.stdout
    assert "would need at most about 60 MB of disk for tok.range-counts" in done.stdout
    assert "would take about 0:25 with 2 workers at 30 MB/s each, 20 s of them" in done.stdout
    assert "each with 2 GB of memory" in in_process(*command, "--memory", "2G", "--dry-run").stdout
