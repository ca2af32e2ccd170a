"""The benchmark of fixed budgets: splits, windows, schedules of peers, verdicts, resuming."""

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.budget import GOAL, ROWS, SEEDS, difference, disturbed, main, page
from benchmarks.budget_peers import PEERS, UNICODE_BITS, Characters, Setting, tokens_of
from benchmarks.budget_texts import passages, split_of, written
from benchmarks.budget_worker import Training, nats_of, scored, windows

TEXT = "".join(f"line {i} of a small text, {i * i}\n" for i in range(4000))
TINY = Setting(
    name="tiny", vocabulary="bpe", entries=300, layers=1, width=32, heads=2, context=16, batch=4, lr=1e-3, final=0.0
)


class Counts:
    """The bytes of a text as tokens, with a start token."""

    size, start = 257, 256

    def encode(self, texts):
        return [list(text.encode()) for text in texts]

    def decode(self, ids):
        return bytes(ids).decode()

    def extra_bits(self, text):
        return 0.0


def uniform(ids, last):
    return torch.zeros(len(ids), last, 256)


@pytest.mark.parametrize("context", [4, 5, 64])
@pytest.mark.parametrize("targets", [1, 3, 4, 5, 6, 7, 63, 64, 65, 200])
def test_windows_score_every_token_once_with_half_a_context_before_it(targets, context):
    done = []
    for start, first in windows(targets, context):
        assert first == len(done)
        assert start == 0 or first - start >= context // 2
        done += range(first, min(targets, start + context))
    assert done == list(range(targets))


def test_a_context_as_long_as_the_text_gives_the_loss_of_one_pass():
    torch.manual_seed(0)
    table, stream = torch.randn(50, 50), torch.randint(50, (40,)).tolist()
    expected = F.cross_entropy(table[stream[:-1]], torch.tensor(stream[1:]), reduction="sum")
    for context in (7, 39, 100):  # a model that reads one token does not notice its window
        assert nats_of(lambda ids, last: table[ids[:, -last:]], stream, context) == pytest.approx(
            float(expected), rel=1e-5
        )


def test_the_uniform_model_needs_eight_bits_for_each_byte_of_any_text():
    found = scored(uniform, Counts(), ["abc", "déjà vu", "文字" * 40], context=16)
    assert found["bits_per_byte"] == pytest.approx(8.0, rel=1e-6)
    assert found["bytes"] == [3, 9, 240]
    assert found["bits"] == pytest.approx([24, 72, 1920], rel=1e-6)


def test_ids_that_do_not_give_the_text_back_are_refused():
    class Lossy(Counts):
        def decode(self, ids):
            return bytes(ids).decode().lower()

    with pytest.raises(ValueError, match="do not decode"):
        scored(uniform, Lossy(), ["Upper"], context=16)


def test_characters_outside_the_training_text_cost_the_choice_among_all_characters():
    tokens = Characters(["abc\n"])
    assert tokens.encode(["cab文"]) == [[3, 1, 2, 4]] and tokens.size == 5
    assert tokens.decode([3, 1, 2]) == "cab"
    assert tokens.extra_bits("cab文字") == 2 * UNICODE_BITS == pytest.approx(40.17, abs=0.01)


def test_every_passage_is_in_one_split_and_the_same_one_everywhere(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 20)  # each passage once per repetition at the same place or shifted
    text = written("books", [str(tmp_path / "text.txt")], tmp_path / "a")
    found = {split: passages(text.path(split)) for split in ("train", "validation", "test")}
    assert sum(len(each) for each in found.values()) > 100
    assert all(split_of(passage) == split for split, each in found.items() for passage in each)
    assert sorted("".join(chain.from_iterable(found.values()))) == sorted(TEXT * 20)
    again = written("books", [str(tmp_path / "text.txt")], tmp_path / "b")
    assert again.fingerprint() == text.fingerprint()
    assert not Path(text.corpus).parent.samefile(text.path("test").parent)


def test_a_peer_learns_and_its_schedule_follows_the_share_of_the_time():
    tokens = tokens_of(TINY, [TEXT], None)
    training = Training(TINY, tokens, [TEXT], seed=0)
    model = training.model

    def bits():
        return scored(lambda ids, last: model(ids).logits[:, -last:], tokens, [TEXT[:2000]], 16)["bits_per_byte"]

    before = bits()
    for step in range(60):
        assert training.step(step / 60, 1 / 60) == 64
    assert bits() < 0.8 * before
    assert training._optimizer.param_groups[0]["lr"] < 0.01 * TINY.lr


def test_each_peer_has_four_settings_of_which_the_first_is_as_published():
    for peer in PEERS:
        assert len({setting.name for setting in peer.settings}) == 4
        assert "as published" in peer.settings[0].name


def test_rows_are_those_of_the_plan():
    assert [str(row) for row in ROWS] == [
        *("books:1", "code:1", "multilingual:1", "books:5", "code:5", "multilingual:5", "books:20")
    ]
    assert SEEDS == {1: 3, 5: 3, 20: 1} and GOAL == 0.97


def run(contestant, seed, level, sizes, minutes=1, machine="p"):
    """Return a recorded run with about `level` bits per byte."""
    bits = [size * (level + 0.01 * seed + 0.1 * np.sin(i)) for i, size in enumerate(sizes)]
    key = {"kind": "row", "contestant": contestant, "text": "books", "minutes": minutes, "seed": seed, "setting": "s"}
    more = {
        "tokens": 1,
        "steps": 1000 + seed,
        "parameters": 1,
        "seconds": 60.0,
        "bits_per_byte": sum(bits) / sum(sizes),
    }
    more["machine"] = machine
    return key | more | {"bits": bits, "bytes": sizes}


def test_the_interval_of_a_constant_difference_is_that_of_the_seeds_alone():
    sizes = [1000 + 10 * i for i in range(50)]
    ours, theirs = ([run(name, seed, level, sizes) for seed in range(3)] for name, level in (("a", 1.5), ("b", 1.7)))
    change, low, high = difference(ours, theirs)
    assert change == pytest.approx(-0.2)
    assert -0.22 <= low < -0.2 < high <= -0.18 + 1e-9
    alone = difference(ours[:1], theirs[:1])
    assert alone == pytest.approx((-0.2, -0.2, -0.2))


def test_a_run_that_other_work_held_up_is_named_and_trained_again():
    seeds = [run("transformers", seed, 2.0, [1000]) for seed in range(3)]
    others = [run("nanoGPT", 0, 2.0, [1000]) | {"steps": 9}, run("transformers", 0, 2.0, [1000], 5)]
    made_with = {"threads": 2, "minute_seconds": 60, "texts": {}}
    assert disturbed({**made_with, "runs": [*seeds, *others]}) == []
    slow = seeds[1] | {"steps": 85}
    result = {**made_with, "runs": [seeds[0], slow, seeds[2], *others]}
    assert disturbed(result) == [slow]
    assert "**transformers, books, 1 minutes, seed 1**: 85 steps" in page(result, "c")


@pytest.mark.parametrize(("level", "verdict"), [(1.5, "won"), (1.69, "**lost**"), (1.9, "**lost**")])
def test_a_row_is_won_only_at_97_percent_of_the_best_peer(level, verdict):
    sizes = [1000] * 50
    runs = [
        run(name, 0, bits, sizes, 20) for name, bits in (("bytelm", level), ("nanoGPT", 2.0), ("transformers", 1.7))
    ]
    faster = [run(name, 0, 1.0, sizes, 20, machine="q") for name in ("bytelm", "nanoGPT")]  # not all contestants yet
    made_with = {"threads": 2, "minute_seconds": 60, "texts": {}}
    lines = page({**made_with, "runs": [*faster, *runs]}, "c").split("\n")
    line = next(line for line in lines if line.startswith("| books | 20 "))
    assert line.endswith(f"| {verdict} | p |") and "of transformers" in line


def test_wrong_arguments_are_one_sentence(capsys, tmp_path):
    for arguments, complaint in (
        ([], "--books is missing"),
        (["--books", str(tmp_path / "absent.txt")], "there is no such file"),
        (["--books", str(tmp_path)], "--multilingual is missing"),
        (["--books", str(tmp_path), "--minute-seconds", "1"], "only for trials: give another --out"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert complaint in capsys.readouterr().err


@pytest.mark.slow
def test_all_contestants_are_trained_once_and_not_again(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("".join(f"line {i} of a text, {i * i}\n" for i in range(60_000)))
    arguments = [
        "--books",
        str(tmp_path / "text.txt"),
        "--rows",
        "books:1",
        "--minute-seconds",
        "0.2",
        "--threads",
        "1",
    ]
    main([*arguments, "--out", str(tmp_path / "out")])
    result = json.loads((tmp_path / "out" / "budget.json").read_text())
    errors = [run["error"] for run in result["runs"] if "error" in run]
    assert len(errors) == 1 and "give --gpt2 FOLDER" in errors[0]
    rows = [run for run in result["runs"] if run["kind"] == "row"]
    assert [run["contestant"] for run in rows] == ["bytelm", "nanoGPT", "transformers"] * 3
    assert all(run["seconds"] >= 0.2 and 0 < run["bits_per_byte"] < 9 for run in rows)
    assert len({tuple(run["bytes"]) for run in rows}) == 1
    capsys.readouterr()
    main([*arguments, "--out", str(tmp_path / "out")])
    assert "row:" not in capsys.readouterr().err
