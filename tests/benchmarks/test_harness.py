"""The shared parts of the benchmarks: processes, turns and pages."""

import json
import sys

import pytest

from benchmarks import (
    attention,
    contention,
    finetune,
    generate,
    gpu,
    recipes,
    report,
    serve,
    shakespeare,
    training_report,
)
from benchmarks.harness import RESULTS, Clock, Worker, run_command, table, turns

PAGES = {
    "training/tokenizer": report.markdown,
    "training-multilingual/tokenizer": report.markdown,
    "encoding/tokenizer": report.markdown,
    "hard/tokenizer": report.markdown,
    "wordpiece/tokenizer": report.markdown,
    "unigram/tokenizer": report.markdown,
    "character-bpe/tokenizer": report.markdown,
    "pretrain/cpu-float32": training_report.markdown,
    "pretrain/cpu-bfloat16": training_report.markdown,
    "gpu/gpu-bfloat16": training_report.markdown,
    "gpu/cuda": generate.markdown,
    "gpu/gpu": gpu.markdown,
    "attention/attention": attention.markdown,
    "contention/contention": contention.report,
    "generate/cpu": generate.markdown,
    "serve/cpu": serve.markdown,
    "finetune/books": finetune.markdown,
    "recipes/recipes": recipes.markdown,
    "shakespeare/bytes-tiny": shakespeare.report,
    "shakespeare-float32/bytes-tiny": shakespeare.report,
}


@pytest.mark.parametrize("name", PAGES)
def test_recorded_pages_follow_from_the_recorded_numbers(name):
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert PAGES[name](result) == (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def test_every_contestant_has_a_turn_in_each_round_and_starts_one():
    assert [*turns("abc", 2)] == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a")]
    assert [number for number, _ in turns("ab", 1, warm_up=1)] == [-1, -1, 0, 0]
    assert [*turns([], 3)] == []


def test_a_program_that_runs_is_measured():
    source = "import time; print('first', flush=True); time.sleep(0.3); print('last', flush=True)"
    ran = run_command([sys.executable, "-c", source])
    assert (ran["output"], ran["error"]) == ("first\nlast\n", "")
    assert 0 < ran["first_line"] < ran["first_line"] + 0.25 < ran["seconds"]
    assert ran["silence"] > 0.25 and ran["cpu_seconds"] > 0 and ran["peak"] > 1e6


def test_a_program_that_fails_or_takes_too_long_has_an_error():
    failed = run_command([sys.executable, "-c", "print('so far'); import sys; sys.exit('no such text')"])
    assert (failed["output"], failed["error"]) == ("so far\n", "ended with status 1: no such text")
    sleeping = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    late = run_command([sys.executable, "-c", sleeping], timeout=1.0)
    assert late["error"] == "took more than 1 s" and late["seconds"] < 30


def test_a_worker_that_fails_has_an_error():
    with Worker("benchmarks.no_such_module", {}) as worker:
        assert "No module named" in worker.answer()["error"]
        assert "No module named" in worker.ask("train 1")["error"]


def test_a_clock_measures_between_marks():
    clock = Clock()
    clock.mark()
    clock.mark()
    assert len(clock.seconds()) == 2 and min(clock.seconds()) >= 0


def test_all_lines_of_a_table_have_the_same_number_of_cells():
    assert table(("", "b"), [("1", ""), ("3", "4")]) == ["|  | b |", "|---|---|", "| 1 |  |", "| 3 | 4 |"]
