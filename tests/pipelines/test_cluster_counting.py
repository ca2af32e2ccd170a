"""The functions that the tasks of a cluster call count as one machine does, and reuse only what they may."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from pipelines.cluster.counting_tasks import COUNTS, CountTask, SumTask, add_counts, compile_counting, count_range
from pipelines.dataset.outputs import output_prefix, read_output, remove_outputs, whole_output
from pipelines.files import checksummed_json
from tests.conftest import PEAK_MEMORY
from tokenizer import PretokenCounts, count_pretokens

MEMORY = 16_000_000


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def counted(folder, source, range_bytes, pattern="gpt2", cut_at=()):
    """Return the counts of a corpus by the functions that tasks call, and the outputs of the ranges."""
    folder.mkdir(exist_ok=True)
    outputs = [
        count_range(CountTask(each, pattern, cut_at, MEMORY, output_prefix(folder, number)))
        for number, each in enumerate(open_corpus(source).ranges(range_bytes))
    ]
    halves = outputs[::2], outputs[1::2]
    sums = [
        add_counts(SumTask(tuple(half), MEMORY, output_prefix(folder, len(outputs) + number)))
        for number, half in enumerate(halves)
        if half
    ]
    return PretokenCounts.merge([output.file(COUNTS) for output in sums]), outputs


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text(max_size=40), min_size=2, max_size=30).filter(lambda texts: any(texts)),
    st.integers(1, 300),
    st.sampled_from(["gpt2", "cl100k", "bert-uncased"]),
    st.sampled_from([(), ("<|endoftext|>",), ("a", "é")]),
)
def test_the_sum_of_ranges_counts_as_one_pass_does(tmp_path_factory, texts, range_bytes, pattern, cut_at):
    folder = tmp_path_factory.mktemp("random")
    source = write_jsonl(folder / "a.jsonl", [*texts, "<|endoftext|>\0 NUL", "plain text"])
    expected = count_pretokens(open_corpus(source).batches("train"), pattern, cut_at=cut_at)
    assert counted(folder / "ranges", source, range_bytes, pattern, cut_at)[0] == expected


def test_whole_outputs_are_reused_and_damaged_ones_made_again(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [f"text number {n}" for n in range(100)])
    before, outputs = counted(tmp_path / "ranges", source, 500)
    assert len(outputs) > 3
    times = [output.file(COUNTS).stat().st_mtime_ns for output in outputs]
    content = outputs[1].file(COUNTS).read_bytes()
    outputs[1].file(COUNTS).write_bytes(content[:-5] + bytes(5))
    outputs[2].file(COUNTS).unlink()
    output_prefix(tmp_path / "ranges", 3).with_suffix(".json").write_text("{}")
    after, again = counted(tmp_path / "ranges", source, 500)
    assert after == before
    assert [output.file(COUNTS).read_bytes() for output in again][1] == content
    changed = [output.file(COUNTS).stat().st_mtime_ns != was for output, was in zip(again, times, strict=True)]
    assert changed == [n in (1, 2, 3) for n in range(len(outputs))]


@pytest.mark.parametrize("wrong", [{"files": ["counts"]}, {"facts": 3}, {"key": 1}, {"files": {"counts": 1}}])
def test_a_marker_with_wrong_fields_is_no_output_even_if_its_checksum_matches(tmp_path, wrong):
    source = write_jsonl(tmp_path / "a.jsonl", [f"text number {n}" for n in range(100)])
    before, _ = counted(tmp_path / "ranges", source, 500)
    marker = output_prefix(tmp_path / "ranges", 1).with_suffix(".json")
    marker.write_text(checksummed_json(json.loads(marker.read_text()) | wrong))
    assert read_output(marker.with_suffix("")) is None
    assert counted(tmp_path / "ranges", source, 500)[0] == before


def test_another_plan_reuses_no_output(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [f"text number {n}" for n in range(100)])
    folder = tmp_path / "ranges"
    plans = [
        counted(folder, source, 500),
        counted(folder, source, 700),
        counted(folder, source, 500, pattern="cl100k"),
        counted(folder, source, 500, cut_at=("number",)),
    ]
    write_jsonl(tmp_path / "a.jsonl", [f"text number {n + 1}" for n in range(100)])
    plans.append(counted(folder, source, 500))
    keys = Counter(output.key for _, outputs in plans for output in outputs)
    assert set(keys.values()) == {1}


COUNT_ONE_RANGE = """
from pathlib import Path
from corpora import open_corpus
from pipelines.cluster.counting_tasks import CountTask, compile_counting, count_range
folder, memory = Path(sys.argv[1]), int(sys.argv[2])
(only,) = open_corpus(str(folder / "huge.txt")).ranges(1_000_000)
compile_counting("gpt2")
before = peak_memory()
count_range(CountTask(only, "gpt2", (), memory, folder / f"{memory}"))
print(peak_memory() - before)
"""


def test_one_huge_document_and_one_hot_pretoken_need_little_memory(tmp_path):
    """The table of the worker may take 16 MB; the document alone has 21 MB and 900,000 distinct pretokens."""
    words = " ".join(f"hot {n:x}{n * n % 9973:x}" for n in range(1_500_000))
    (tmp_path / "huge.txt").write_text(words + "\nthe end\n" * 10)
    command = [sys.executable, "-c", PEAK_MEMORY + COUNT_ONE_RANGE, str(tmp_path), str(MEMORY)]
    assert int(subprocess.run(command, check=True, capture_output=True).stdout) < 21e6 + MEMORY + 20e6
    counts, outputs = counted(tmp_path / "ranges", str(tmp_path / "huge.txt"), 1_000_000)
    assert len(outputs) == 1
    assert counts == count_pretokens(open_corpus(str(tmp_path / "huge.txt")).batches("train"), "gpt2")


def test_counting_is_compiled_in_a_folder_with_any_files(tmp_path, monkeypatch):
    (tmp_path / "a b").write_text("")
    monkeypatch.chdir(tmp_path)
    compile_counting("gpt2")


@pytest.mark.parametrize("options", [["--address", "127.0.0.1:1"], ["--engine", "ray", "--counts", "x.parquet"]])
def test_options_that_do_not_fit_the_engine_are_refused(in_process, options, text_folder):
    done = in_process("train-tokenizer", text_folder, "--vocab-size", 300, "--out", "tok", *options)
    assert done.returncode == 2
    assert "--engine ray" in done.stderr


@pytest.mark.parametrize("verb", ["train-tokenizer --vocab-size 300", "build-dataset --context-length 8"])
def test_a_number_of_workers_below_one_is_refused_before_anything_starts(in_process, verb, text_folder, tmp_path):
    (tmp_path / "tok").mkdir()
    options = ["--shard-size", "1M", "--tokenizer", "tok"] if verb.startswith("build") else []
    for threads in (0, -2):
        done = in_process(*verb.split(), text_folder, "--out", "out", "--engine", "ray", "--threads", threads, *options)
        assert done.returncode == 1
        assert done.stderr.endswith(f": threads must be a whole number of at least 1, not {threads}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["tok"]


def test_leftovers_of_a_killed_attempt_are_removed(tmp_path):
    """At every start of a task, as one that runs out of memory again and again must not fill the disk."""

    def killed(new):
        new("ids").write_bytes(bytes(1000))
        os._exit(9)

    for _ in range(2):
        if (child := os.fork()) == 0:
            whole_output(output_prefix(tmp_path, 7), "key", killed)
        os.waitpid(child, 0)
        assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1
    whole_output(output_prefix(tmp_path, 7), "key", lambda new: {})
    assert [path.name for path in tmp_path.iterdir()] == ["000007.json"]


def test_a_task_does_not_list_the_folder_of_all_outputs(tmp_path):
    """A list of 100,000 files takes a quarter of a second, and more on a shared file system."""
    code = f"""
import os, sys
from pathlib import Path
from pipelines.dataset.outputs import output_prefix, whole_output
folder = Path({str(tmp_path)!r})
listed = []
sys.addaudithook(lambda event, given: event in ("os.listdir", "os.scandir") and listed.append(str(given[0])))
whole_output(output_prefix(folder, 7), "key", lambda new: {{}})
assert (folder / "000007.json").exists()
assert str(folder) not in listed, listed
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_files_of_counting_are_removed(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", [f"text number {n}" for n in range(100)])
    folder = tmp_path / "tok.range-counts"
    counted(folder, source, 500)
    (folder / "mine.txt").write_text("mine")
    remove_outputs(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    (folder / "mine.txt").unlink()
    remove_outputs(folder)
    assert not folder.exists()
