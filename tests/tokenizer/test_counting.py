"""Counts are exact for any number of threads and shards and any memory budget."""

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenizer import PretokenCounts, Tokenizer, count_pretokens, resolve_pattern
from tokenizer.splitting.pretokenize import split
from tokenizer.training import spilling
from tokenizer.training.count_table import Counted
from tokenizer.training.counting import LEAST_MEMORY
from tokenizer.training.counts_file import write_counts
from tokenizer.training.forecast import forecast_for, merge_bytes

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")

# A corpus above the least memory limit: about 500,000 distinct words of up to 24 letters, and their number.
WORDS = """
import numpy as np

def random_words(megabytes, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(megabytes):
        text = rng.integers(97, 123, size=1 << 20, dtype=np.uint8)
        text[rng.random(1 << 20, dtype=np.float32) < 0.14] = 32
        yield text.tobytes()
"""
exec(WORDS)


@pytest.fixture(scope="module")
def words():
    return list(random_words(5))  # noqa: F821 - from WORDS, which is also a part of scripts for other processes


@pytest.fixture(scope="module")
def counts_in_memory(words):
    """Return the counts of `words`, made in memory."""
    return count_pretokens(words, "gpt2", threads=1)


def test_a_large_document_has_the_same_counts_on_any_number_of_threads(stdlib_texts, tmp_path):
    path = tmp_path / "large.txt"
    path.write_bytes("".join(stdlib_texts).encode() * 4)
    one = count_pretokens(path, "cl100k", threads=1)
    assert one == count_pretokens(path, "cl100k", threads=4)
    assert one == count_pretokens([path.read_bytes()], "cl100k", threads=1)
    assert one.total_bytes == path.stat().st_size


def test_counts_equal_those_of_one_pretoken_at_a_time(stdlib_texts):
    texts = [*stdlib_texts[:40], "x" * 15, "y" * 16, "z" * 17, "\x00", "\x00\x00", "q" * 100_000]
    expected = Counter(pretoken for text in texts for pretoken in split(text, resolve_pattern("gpt2")))
    assert dict(count_pretokens(texts, "gpt2").items()) == expected


def test_many_distinct_pretokens_are_all_counted():
    words = [f"w{'abcdefghij'[i % 10]}{i:x}".replace("0", "o") * (1 + i % 3) for i in range(120_000)]
    expected = len({f" {''.join(c if c.isalpha() else chr(ord(c) + 60) for c in word)}" for word in words})
    text = "".join(f" {''.join(c if c.isalpha() else chr(ord(c) + 60) for c in word)}" for word in words)
    counts = count_pretokens([text], "gpt2", threads=2)
    assert len(counts) == expected
    assert counts.total_bytes == len(text)


def test_counts_add_up_and_train_like_the_whole(stdlib_texts, tmp_path):
    half = len(stdlib_texts) // 2
    first, second = count_pretokens(stdlib_texts[:half]), count_pretokens(stdlib_texts[half:])
    counts_in_memory = count_pretokens(stdlib_texts)
    assert first + second == counts_in_memory == second + first
    first.save(tmp_path / "first.parquet")
    loaded = PretokenCounts.load(tmp_path / "first.parquet")
    assert loaded == first
    tok = Tokenizer.train_from_counts(loaded + second, 2000)
    assert tok.fingerprint == Tokenizer.train(stdlib_texts, 2000).fingerprint
    with pytest.raises(ValueError, match="do not add up"):
        first + count_pretokens(["a"], "gpt2")


def test_the_same_counts_give_the_same_file(stdlib_texts, tmp_path):
    for name, texts in (("a", stdlib_texts[:50]), ("b", stdlib_texts[:50][::-1])):
        count_pretokens(texts, threads=2).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.fixture(scope="module")
def counts_file(stdlib_texts, tmp_path_factory):
    path = tmp_path_factory.mktemp("counts") / "counts.parquet"
    count_pretokens(stdlib_texts[:20], "gpt2").save(path)
    return path


@given(data=st.data())
def test_every_damage_of_a_counts_file_is_refused_in_one_sentence(counts_file, data):
    whole = counts_file.read_bytes()
    damaged, place = bytearray(whole), data.draw(st.integers(0, len(whole) - 1))
    match data.draw(st.sampled_from(["flip", "flip", "cut", "insert", "overwrite"])):
        case "flip":
            damaged[place] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del damaged[place : place + data.draw(st.integers(1, 100))]
        case "insert":
            damaged[place:place] = data.draw(st.binary(min_size=1, max_size=100))
        case "overwrite":
            damaged[place : place + 50] = data.draw(st.binary(min_size=50, max_size=50))
    assume(damaged != whole)
    path = counts_file.with_name("damaged.parquet")
    path.write_bytes(damaged)
    for read in (PretokenCounts.load, lambda path: PretokenCounts.merge([path, counts_file])):
        with pytest.raises(ValueError, match=r"damaged\.parquet") as refused:
            read(path)
        assert "\n" not in str(refused.value)


def test_counts_without_a_checksum_are_refused(counts_file, tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(PretokenCounts.load(counts_file).to_table(), path)
    with pytest.raises(ValueError, match=r"table\.parquet has no checksum: count the corpus again"):
        PretokenCounts.load(path)


def test_saved_counts_are_a_parquet_file_for_other_programs(counts_file):
    table = pq.read_table(counts_file)
    assert table.column_names == ["pretoken", "count"]
    found = dict(zip(table["pretoken"].to_pylist(), table["count"].to_pylist(), strict=True))
    assert found == dict(PretokenCounts.load(counts_file).items())


def test_counts_beyond_32_bits_do_not_wrap():
    counts = count_pretokens(["ab ab ab cd cd"], "gpt2")
    counts.counts *= 3_000_000_000
    both = counts + counts
    assert both.total == 2 * 5 * 3_000_000_000
    tok = Tokenizer.train_from_counts(both, 256 + 3, special_tokens=(), min_frequency=5_999_999_999)
    assert tok.merges[0] == (b"a", b"b")
    assert len(tok.merges) == 3


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_counts_within_a_budget_are_the_same_to_the_byte(threads, words, counts_in_memory, tmp_path):
    calls = []
    counts = count_pretokens(
        words, "gpt2", threads, memory=LEAST_MEMORY, spill_folder=tmp_path, progress=lambda *call: calls.append(call)
    )
    assert counts.spilled_runs > 1
    assert counts == counts_in_memory
    phases = [phase for phase, *_ in calls]
    assert phases == sorted(phases, key=["count", "combine"].index)  # one after the other
    done = [done for phase, done, _ in calls if phase == "combine"]
    assert done == sorted(done)
    assert done[-1] == calls[-1][2]
    assert list(tmp_path.iterdir()) == []
    for name, each in (("spilled", counts), ("whole", counts_in_memory)):
        each.save(tmp_path / name)
    assert (tmp_path / "spilled").read_bytes() == (tmp_path / "whole").read_bytes()
    few = count_pretokens(["a few words"], "gpt2", memory=LEAST_MEMORY)
    assert few.spilled_runs == 0
    assert dict(few.items()) == {b"a": 1, b" few": 1, b" words": 1}


def test_a_vocabulary_trained_within_a_budget_is_the_same(words, counts_in_memory):
    expected = Tokenizer.train_from_counts(counts_in_memory, 1000, special_tokens=()).fingerprint
    counts = count_pretokens(words, "gpt2", memory=LEAST_MEMORY)
    assert Tokenizer.train_from_counts(counts, 1000, special_tokens=()).fingerprint == expected
    start = merge_bytes(len(counts_in_memory), len(counts_in_memory.data))
    assert Tokenizer.train(words, 1000, "gpt2", special_tokens=(), memory=start + 30_000_000).fingerprint == expected
    with pytest.raises(
        ValueError, match=r"after \d+ merges the next one takes [\d,]+ bytes more than the memory allows"
    ):
        Tokenizer.train(words, 1000, "gpt2", special_tokens=(), memory=start)


def test_training_refuses_in_advance_if_merging_does_not_fit(words, counts_in_memory):
    with pytest.raises(
        ValueError, match=r"takes at least about [\d,]+ bytes, more than the memory of 16,000,000.*at_least"
    ):
        Tokenizer.train(words, 1000, "gpt2", memory=LEAST_MEMORY)
    frequent = counts_in_memory.at_least(2)
    assert dict(frequent.items()) == {pretoken: n for pretoken, n in counts_in_memory.items() if n >= 2}
    assert Tokenizer.train_from_counts(frequent, 400, memory=LEAST_MEMORY).vocab_size == 400


def test_a_kind_that_only_counts_trains_within_the_least_memory(words):
    within = Tokenizer.train(words, 1000, kind="words", memory=LEAST_MEMORY)
    assert within == Tokenizer.train(words, 1000, kind="words")


def test_the_forecast_for_merging_characters_goes_by_their_number():
    letters = np.empty((300_000, 6, 3), dtype=np.uint8)  # words of Georgian letters, which have three bytes
    letters[..., :2] = list("ა".encode())[:2]
    letters[..., 2] = np.random.default_rng(0).integers(0x90, 0xB0, size=letters.shape[:2])
    counted = Counted(letters.reshape(-1), np.arange(0, letters.size + 1, 18), np.ones(len(letters), dtype=np.int64))
    forecast_for("wordpiece", 80_000_000).add(counted)
    for kind, memory in (("bpe", 80_000_000), ("wordpiece", 40_000_000)):
        with pytest.raises(ValueError, match="merging takes at least about"):
            forecast_for(kind, memory).add(counted)


PEAK = """
import re

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
"""
reads_peak = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")


@reads_peak
@pytest.mark.parametrize(("letters", "merges", "slack"), [(26, 200, 1.2), (26, 200_000, 1.35), (2, 200, 1.6)])
def test_merging_stays_within_its_limit_and_accepts_a_limit_near_its_peak(letters, merges, slack):
    """The least sufficient limit, found in steps of 5 %, is between the peak and `slack` times the peak."""
    script = PEAK + (
        "import numpy as np\n"
        "from tokenizer import Tokenizer, count_pretokens\n"
        "rng = np.random.default_rng(0)\n"
        f"text = rng.integers(97, {97 + letters}, size=4 << 20, dtype=np.uint8)\n"
        f"text[rng.random(len(text)) < {0.14 if letters == 26 else 0.014}] = 32\n"
        "counts = count_pretokens([text.tobytes()], 'gpt2', threads=1)\n"
        "del text\n"
        "held = counts.data.nbytes + counts.offsets.nbytes + counts.counts.nbytes\n"
        "Tokenizer.train_from_counts(count_pretokens(['a bc de fg'] * 3, 'gpt2'), 258, special_tokens=())\n"
        "memory = 40_000_000\n"
        "while True:\n"
        "    open('/proc/self/clear_refs', 'w').write('5')\n"
        "    before = peak()\n"
        "    try:\n"
        f"        Tokenizer.train_from_counts(counts, {256 + merges}, special_tokens=(), memory=memory)\n"
        "        break\n"
        "    except ValueError:\n"
        "        memory = memory * 21 // 20\n"
        "print(memory, held + peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    memory, taken = map(int, done.stdout.split())
    assert taken <= memory <= slack * taken


@reads_peak
def test_memory_stays_within_the_budget():
    def grown(memory):
        script = (
            WORDS
            + PEAK
            + (
                "from tokenizer import count_pretokens\n"
                f"count_pretokens(random_words(2), 'gpt2', threads=2, memory={LEAST_MEMORY})\nbefore = peak()\n"
                f"count_pretokens(random_words(20), 'gpt2', threads=2, memory={memory})\nprint(peak() - before)\n"
            )
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return int(done.stdout)

    # The text and the 40 MB of the result, which are mapped from disk, come on top of the budget.
    assert grown(60_000_000) < 60_000_000 + 60_000_000 < 150_000_000 < grown(None)


@reads_peak
def test_a_file_is_read_without_being_held_in_memory(tmp_path):
    (tmp_path / "large.txt").write_bytes(b"a few words, again and again\n" * 5_000_000)
    script = PEAK + (
        "from tokenizer import count_pretokens\ncount_pretokens(['a'])\nbefore = peak()\n"
        f"count_pretokens({str(tmp_path / 'large.txt')!r}, threads=2)\nprint(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 75_000_000  # of 145


PRETOKENS = st.binary(max_size=3) | st.sampled_from([b"12345678", b"1234567\0", b"1234567", b"12345678\0", b"x" * 300])


@settings(max_examples=80, deadline=None)
@given(
    runs=st.lists(st.dictionaries(PRETOKENS | st.binary(min_size=7, max_size=20), st.integers(1, 2**40)), max_size=9)
)
def test_merging_runs_adds_the_counts_of_equal_pretokens(runs):
    def counted(items):
        data = b"".join(pretoken for pretoken, _ in items)
        offsets = np.cumsum([0, *(len(pretoken) for pretoken, _ in items)])
        counts = np.array([count for _, count in items], dtype=np.int64)
        return Counted(np.frombuffer(data, dtype=np.uint8), offsets, counts)

    expected = sum((Counter(run) for run in runs), Counter())
    with pytest.MonkeyPatch.context() as patch:  # small enough for several batches, windows and rounds
        for name, value in {"BATCH_ROWS": 3, "BATCH_BYTES": 40, "WINDOW_ROWS": 4, "MOST_RUNS": 3}.items():
            patch.setattr(spilling, name, value)
        with spilling.RunFile() as file:
            for run in runs:
                file.write(spilling.batches(spilling.in_order(counted(list(run.items())))))
            merged = spilling.merge_on_disk(file.runs())
    rows = [(merged.pretoken(i), int(count)) for i, count in enumerate(merged.counts)]
    assert rows == sorted(expected.items())


def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path):
    script = WORDS + (
        "import resource, signal\nfrom tokenizer import count_pretokens\n"
        "count_pretokens(['a'], 'gpt2', memory=16_000_000)\n"  # caches of kernels do not count here
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        f"count_pretokens(random_words(5), 'gpt2', threads=2, memory=16_000_000, spill_folder={str(tmp_path)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("OSError")
    assert str(tmp_path) in last
    assert "choose another spill folder" in last
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="nowhere"):
        count_pretokens(["a"], memory=LEAST_MEMORY, spill_folder=tmp_path / "nowhere")


def test_an_error_in_the_corpus_leaves_no_files(words, tmp_path):
    def documents():
        yield from words
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        count_pretokens(documents(), "gpt2", 2, memory=LEAST_MEMORY, spill_folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("count_pretokens(random_words(10**9), 'gpt2', threads=1)", marks=pytest.mark.slow),
        "count_pretokens(random_words(10**9), 'gpt2', threads=2, memory=400_000_000, spill_folder=folder)",
        "while True: PretokenCounts.merge([saved, saved], spill_folder=folder)",
        pytest.param("while True: (counts + counts).save(saved + '.again')", marks=pytest.mark.slow),
        "while True: Tokenizer.train_from_counts(counts, 30_000)",
    ],
)
def test_ctrl_c_stops_within_a_second_and_leaves_no_files(program, counts_in_memory, tmp_path, interrupt):
    counts_in_memory.save(tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    script = WORDS + (
        "from tokenizer import PretokenCounts, Tokenizer, count_pretokens\n"
        f"folder, saved = {str(tmp_path / 'folder')!r}, {str(tmp_path / 'saved')!r}\n"
        "counts = PretokenCounts.load(saved)\ncounts + counts\n"
        f"print('ready', flush=True)\n{program}\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    errors = interrupt(process, after=0.5 + random.random(), threads=2)
    assert errors.strip().endswith(b"KeyboardInterrupt")
    assert {path.name for path in tmp_path.iterdir()} <= {"saved", "saved.again", "folder"}
    assert list((tmp_path / "folder").iterdir()) == []


def test_saved_counts_of_shards_add_up(words, counts_in_memory, tmp_path):
    shards = [count_pretokens(words[i::3], "gpt2") for i in range(3)]
    assert PretokenCounts.sum(shards) == counts_in_memory
    paths = [tmp_path / f"{i}.parquet" for i in range(3)]
    for shard, path in zip(shards, paths, strict=True):
        shard.save(path)
    merged = PretokenCounts.merge(paths, memory=LEAST_MEMORY, spill_folder=tmp_path)
    assert merged == counts_in_memory
    assert sorted(tmp_path.iterdir()) == paths
    merged.save(paths[0])  # also over one of its own source files
    assert PretokenCounts.load(paths[0]) == counts_in_memory


def test_incompatible_counts_are_refused(tmp_path):
    count_pretokens(["a b"], "gpt2").save(tmp_path / "gpt2")
    count_pretokens(["a b"], "cl100k").save(tmp_path / "cl100k")
    for refused in (
        lambda: PretokenCounts.sum(PretokenCounts.load(tmp_path / name) for name in ("gpt2", "cl100k")),
        lambda: PretokenCounts.merge([tmp_path / "gpt2", tmp_path / "cl100k"]),
    ):
        with pytest.raises(ValueError, match="patterns gpt2 and cl100k do not add up"):
            refused()
    for nothing in (PretokenCounts.sum, PretokenCounts.merge):
        with pytest.raises(ValueError, match="no counts"):
            nothing([])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        PretokenCounts.merge([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("pretokens", "counts", "said"),
    [
        ([b"b", b"a"], [1, 1], "not in order"),
        ([b"a", b"a"], [1, 1], "not in order"),
        ([b"a", b"b"], [1, 0], "counts below 1"),
        ([b"a", b"b"], [1, -1], "counts below 1"),
        ([b"a", None], [1, 1], "without a value"),
        ([b"a", b"b"], [1, None], "without a value"),
        ([1, 2], [1, 1], "cast from int64 to large_binary"),
        ([b"a", b"b"], ["x", "y"], "scalar of type int64"),
    ],
)
def test_a_file_with_impossible_counts_is_a_value_error(pretokens, counts, said, tmp_path):
    table = pa.table({"pretoken": pretokens, "count": counts}).replace_schema_metadata({"pattern": "gpt2"})
    write_counts(tmp_path / "damaged", table)
    with pytest.raises(ValueError, match=rf"damaged does not hold pretoken counts.*{said}"):
        PretokenCounts.merge([tmp_path / "damaged"])


@pytest.mark.parametrize("memory", [0, 2, -1, 1.5e9, True, "2G"])
def test_an_impossible_budget_is_a_value_error(memory):
    with pytest.raises(ValueError, match="memory is in bytes, at least 16,000,000"):
        count_pretokens(["a"], memory=memory)
