"""The output of `bytelm train-tokenizer` and `bytelm tokenize` is correct and fits a terminal."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from base64 import b64encode
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from corpora import open_corpus
from pipelines.cli import display
from pipelines.cli.display import Bar, say, show
from pipelines.cli.escapes import visible
from pipelines.cli.named_tokenizers import load_compared
from pipelines.reporting.training_phases import Phases
from pipelines.verbs import train_tokenizer as verb
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import PieceRules, Tokenizer

BYTELM = Path(sys.executable).with_name("bytelm")


def documents(folder, split):
    return [text for batch in open_corpus([str(folder)]).batches(split) for text in batch.column(0).to_pylist()]


def on_a_terminal(*arguments, columns=80):
    """Return the final screen of a terminal with `columns` columns as lines without colours, and the raw output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    environment["TERM"] = "xterm-256color"
    words = [str(BYTELM), *map(str, arguments)]
    process = subprocess.Popen(words, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    raw = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        raw += part
    os.close(ours)
    assert process.wait(300) == 0, raw.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode())
    return [line.rsplit("\r", 1)[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")], raw.decode()


@pytest.fixture(scope="module")
def many_words(tmp_path_factory):
    """Return a file of four copies of 3 MB whose distinct words do not fit in the least memory limit."""
    rng = np.random.default_rng(0)
    text = rng.integers(97, 123, size=3_000_000, dtype=np.uint8)
    text[rng.random(len(text)) < 0.14] = 32
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_bytes(text.tobytes() * 4)
    return path


def test_the_summary_of_training_has_true_numbers(in_process, text_folder, tokenizer_folder, tmp_path):
    done = in_process(
        "train-tokenizer", text_folder, "--vocab-size", "3000", "--out", "tok", "--compare", f"old={tokenizer_folder}",
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    tok = Tokenizer.load(tmp_path / "tok")
    held_out, training = documents(text_folder, "validation"), documents(text_folder, "train")
    size = sum(len(text.encode()) for text in held_out)
    assert summary["held_out_bytes"] == size
    for name, each in (("this one", tok), ("old", Tokenizer.load(tokenizer_folder))):
        ids = [i for text in held_out for i in each.encode_ordinary(text)]
        ordinary = each.vocab_size - len(each.special_tokens)
        expected = {"tokens": len(ids), "entries_used": len(set(ids)), "entries": ordinary}
        assert summary["held_out"][name].items() >= expected.items()
    ids = [i for text in training for i in tok.encode_ordinary(text)]
    assert summary["tokens"] == len(ids)
    assert summary["trained_on_bytes"] == sum(len(text.encode()) for text in training)
    dead = set(range(5 + 256, tok.vocab_size)) - set(ids)
    assert summary["dead"] == len(dead) > 0
    assert summary["dead_examples"] == [visible(tok.token_bytes(i)) for i in sorted(dead)[:4]]
    longest = max(len(tok.token_bytes(i)) for i in range(5, tok.vocab_size))
    assert summary["longest"][0][0] == longest
    assert summary["fingerprint"] == tok.fingerprint


def test_the_summary_fits_80_columns(in_process, text_folder, tokenizer_folder):
    done = in_process(
        "train-tokenizer", text_folder, "--vocab-size", "3000", "--out", "tok", "--compare", tokenizer_folder
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("next: ")]  # a command is one line
    assert max(map(len, lines)) <= 80
    names = [line.split("  ")[0] for line in lines]
    for name in ("entries", "trained on", "bytes per token", "dead", "longest", "this one", tokenizer_folder.name):
        assert name in names


def test_both_phases_show_their_progress_on_a_terminal(text_folder, tmp_path):
    lines, raw = on_a_terminal("train-tokenizer", text_folder, "--vocab-size", "3000", "--out", tmp_path / "tok")
    for phase in ("counting", "merging"):
        assert any(re.search(rf"{phase} .*100% .*/s +\d:\d\d:\d\d", line) for line in lines), lines
    assert max(map(len, lines)) <= 80
    assert "\x1b[" in raw


# Runs a command and prints the peak of its memory, in a process whose own memory is small.
PEAK_OF_COMMAND = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""


def least_memory(bytelm, text):
    """Return the least --memory for a text, from the error of the command."""
    refused = bytelm("train-tokenizer", text, "--vocab-size", "400", "--out", "tok", "--memory", "1M")
    assert refused.returncode == 1
    assert "Python, its libraries and the text being read take" in refused.stderr
    return re.search(r"give at least (\d+M)$", refused.stderr)[1]


def test_a_memory_limit_spills_counts_with_the_same_result_and_bounds_the_process(bytelm, many_words, tmp_path):
    command = ("train-tokenizer", many_words, "--vocab-size", "400", "--out")
    assert bytelm(*command, "whole").returncode == 0
    least = least_memory(bytelm, many_words)
    words = [sys.executable, "-c", PEAK_OF_COMMAND, BYTELM, *command, "within", "--memory", least, "--threads", "4"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^spilled +[\d.]+ MB in \d+ runs", done.stdout, re.M)
    peak = int(done.stderr.splitlines()[-1]) * (1 if sys.platform == "darwin" else 1024)
    assert peak <= int(least[:-1]) * 10**6
    tokenizers = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("whole", "within")]
    assert tokenizers[0] == tokenizers[1]
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "within"}


@pytest.mark.slow
def test_a_memory_limit_too_small_for_merging_ends_counting_early_with_a_remedy(bytelm, tmp_path):
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, size=16_000_000, dtype=np.uint8)
    letters[rng.random(len(letters)) < 0.14] = 32
    (tmp_path / "words.txt").write_bytes(letters.tobytes())
    command = ("train-tokenizer", "words.txt", "--vocab-size", "400", "--out", "tok", "--memory")
    memory = least_memory(bytelm, "words.txt")
    refused = bytelm(*command, memory)
    assert refused.returncode == 1
    assert "for the pretokens counted so far alone: allow more, or add --save-counts" in refused.stderr
    saved = bytelm(*command, memory, "--save-counts", "counts")
    assert saved.returncode == 1
    assert not (tmp_path / "tok").exists()
    remedy = re.search(r"--min-count \d+", saved.stderr)[0].split()
    command = ("train-tokenizer", "--counts", "counts", "--vocab-size", "400", "--out", "tok", "--memory", memory)
    done = bytelm(*command, *remedy)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^left out +[\d,]+ rare ones, [\d.]+ MB \([\d.]+%\)", done.stdout, re.M)
    assert re.search(r"^exact +the first \d+ merges are the same as with all pretokens", done.stdout, re.M)


def test_ctrl_c_leaves_nothing_behind(bytelm, many_words, tmp_path, interrupt):
    (tmp_path / "text").mkdir()
    for i in range(80):  # half a minute's work
        (tmp_path / "text" / f"{i}.txt").hardlink_to(many_words)
    words = [
        BYTELM,
        "train-tokenizer",
        "text",
        "--vocab-size",
        "400",
        "--out",
        "tok",
        "--memory",
        f"{int(least_memory(bytelm, many_words)[:-1]) + 20}M",  # libraries take some megabytes more or less
    ]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    errors = interrupt(process, after=4, threads=2)
    assert process.returncode == 130
    assert errors == b"bytelm train-tokenizer: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_saved_counts_replace_reading_the_corpus(in_process, text_folder, tmp_path):
    first = in_process("train-tokenizer", text_folder, "--vocab-size", "600", "--out", "a", "--save-counts", "counts")
    assert first.returncode == 0, first.stderr
    again = in_process("train-tokenizer", "--counts", "counts", "--vocab-size", "600", "--out", "b")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "a" / "tokenizer.json").read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()
    assert "no held-out text" in again.stdout
    two = in_process(
        "train-tokenizer", text_folder, "--counts", "counts", "counts", "--vocab-size", "600", "--out", "c"
    )
    assert two.returncode == 0, two.stderr
    assert "held out: " in two.stdout  # the corpus is given for this number only


def test_the_working_folder_can_be_the_output_whatever_files_it_has(in_process, tmp_path):
    for name in ("a", "text.txt"):
        (tmp_path / name).write_text("low low low newer newer widest widest")
    command = ("train-tokenizer", "text.txt", "--vocab-size", 264, "--split", "none", "--memory", "64G", "--out", ".")
    done = in_process(*command)
    assert done.returncode == 0, done.stderr
    assert f"--tokenizer . --context-length 256 --out {tmp_path.parent / 'data'}" in done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "text.txt", "tokenizer.json"]
    refused = in_process("build-dataset", "text.txt", "--tokenizer", ".", "--context-length", 8, "--out", ".")
    assert ". exists already: choose another --out" in refused.stderr


def test_split_none_trains_on_all_of_a_file(in_process, tmp_path):
    (tmp_path / "a.txt").write_text("low low low newer newer widest widest")
    done = in_process(
        "train-tokenizer", "a.txt", "--vocab-size", 300, "--split", "none", "--save-counts", "counts", "--out", "t"
    )
    assert "next: bytelm build-dataset a.txt --tokenizer t " in done.stdout  # a dataset needs validation text
    summary = in_process("train-tokenizer", "--counts", "counts", "--vocab-size", 300, "--out", "u", "--json").stdout
    assert json.loads(summary)["trained_on_bytes"] == 37
    tok = Tokenizer.load(tmp_path / "t")
    assert b" widest" in map(tok.token_bytes, range(tok.vocab_size))


def test_unigram_trains_with_the_pattern_that_keeps_every_space(in_process, text_folder, tmp_path):
    options = ("--kind", "unigram", "--pattern", "llama2", "--vocab-size", 400, "--out", "tok")
    done = in_process("train-tokenizer", text_folder, *options)
    assert done.returncode == 0, done.stderr
    tok = Tokenizer.load(tmp_path / "tok")
    assert tok.decode(tok.encode("the  file")) == "the  file"


def test_options_of_another_model_are_refused_before_the_corpus_is_read(tmp_path):
    for options, remedy in (
        ({"kind": "wordpiece", "tie_break": "bytes"}, "leave out `tie_break`, or choose bpe"),
        ({"kind": "unigram", "max_token_length": 5}, "leave out `max_token_length`, or choose bpe"),
        ({"kind": "bpe", "pieces": PieceRules(byte_fallback=True)}, "leave out `pieces`, or choose unig"),
    ):
        with pytest.raises(ValueError, match=f"` is not an option of {options['kind']}: {remedy}"):
            train_tokenizer([str(tmp_path / "absent.txt")], vocab_size=400, out=tmp_path / "tok", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--counts", "nowhere"], "nowhere"),
        (["--counts", "counts", "--pattern", "gpt2"], "--pattern is gpt2, but the counts were made with cl100k"),
        (["text", "--save-counts", "counts"], "counts exists already"),
        (["text", "--compare", "nowhere"], "nowhere"),
        (
            ["text", "--compare", "ranks.tiktoken"],
            "ranks.tiktoken has no split pattern; give the name of one, as in cl100k=ranks.tiktoken",
        ),
        (
            ["text", "--compare", "tok.json", "a=tok.json", "tok.json"],
            "another tokenizer has the name tok; write it as NAME=tok",
        ),
        (["text", "--memory", "2"], "give at least"),
        (["text", "--min-count", "0"], "--min-count is 0"),
        (["text", "--save-counts", "no/counts"], "--save-counts is no/counts, but there is no folder no"),
        (["text", "--out", "tok.json"], "--out is tok.json, which is a file, not a folder"),
    ],
)
def test_impossible_options_are_refused_on_one_line(in_process, text_folder, tokenizer_folder, tmp_path, options, said):
    from tokenizer import count_pretokens

    (tmp_path / "tok.json").write_bytes((tokenizer_folder / "tokenizer.json").read_bytes())

    count_pretokens(["some text"]).save(tmp_path / "counts")
    (tmp_path / "ranks.tiktoken").write_text("")
    options = [text_folder if option == "text" else option for option in options]
    done = in_process("train-tokenizer", "--vocab-size", "300", "--out", "tok", *options)
    assert done.returncode == 1, done.stdout
    assert said in done.stderr.splitlines()[-1]  # a slow machine prints other lines first
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts", "ranks.tiktoken", "tok.json"]


def test_published_tokenizers_are_compared_on_the_held_out_text(shared, text_folder, tmp_path, printed):
    others = (str(shared / "vectors" / "gpt2"), str(shared / "vectors" / "cl100k" / "cl100k_base.tiktoken"))
    train_tokenizer([str(text_folder)], vocab_size=1000, out=tmp_path / "tok", compare=others)
    shown = printed.readouterr().out
    assert re.search(r"^gpt2 +\d\.\d+ .* 50,256 ", shown, re.M)
    assert re.search(r"^cl100k +\d\.\d+ .* 100,256 ", shown, re.M)


def test_a_compared_tokenizer_may_have_an_equals_sign_in_its_path(tokenizer_folder, tmp_path):
    shutil.copytree(tokenizer_folder, tmp_path / "size=512")
    path = str(tmp_path / "size=512")
    assert [*load_compared([path, f"a={path}"])] == ["size=512", "a"]


TEXT = "Hello, world\n\tfor x in range(10):  # naïve\n"


def pieces_and_ids(lines):
    """Return the pieces and ids in the output of `tokenize`, cut at the columns where ids begin."""
    pieces, ids = [], []
    for above, below in pairwise(lines):
        if re.fullmatch(r"\d+( +\d+)*", below):
            starts = [match.start() for match in re.finditer(r"\d+", below)]
            pieces += [above[a:b].rstrip(" ") for a, b in zip(starts, [*starts[1:], None], strict=True)]
            ids += map(int, below.split())
    return pieces, ids


def test_tokenize_shows_every_piece_above_its_id(in_process, tokenizer_folder):
    done = in_process("tokenize", TEXT, "--tokenizer", tokenizer_folder)
    assert done.returncode == 0, done.stderr
    pieces, ids = pieces_and_ids(done.stdout.splitlines())
    tok = Tokenizer.load(tokenizer_folder)
    assert ids == tok.encode(TEXT)
    assert pieces == [visible(tok.token_bytes(i)) for i in ids]
    assert f"{len(ids)} tokens, {len(TEXT.encode())} bytes, {len(TEXT)} characters" in done.stdout
    assert "\x1b" not in done.stdout
    lines, raw = on_a_terminal("tokenize", TEXT, "--tokenizer", tokenizer_folder, columns=60)
    assert pieces_and_ids(lines) == (pieces, ids)
    assert max(map(len, lines)) <= 60
    assert len(set(re.findall(r"\x1b\[30;10\dm", raw))) == 4  # neighbours differ in colour


def test_tokenize_drops_merges_by_seed(in_process, tokenizer_folder):
    command = ("tokenize", TEXT, "--json", "--tokenizer", tokenizer_folder, "--dropout")
    tok = Tokenizer.load(tokenizer_folder)
    for seed in (0, 3):
        ids = json.loads(in_process(*command, "0.5", "--seed", seed).stdout)
        assert ids == tok.encode_with_dropout(TEXT, 0.5, seed)
        assert len(ids) > len(tok.encode(TEXT))
    refused = in_process(*command, "1.5")
    assert refused.returncode == 1
    assert refused.stderr == "bytelm tokenize: dropout must be a probability from 0 to 1, not 1.5\n"


def test_tokenize_shows_the_best_and_random_segmentations_of_unigram(in_process, tokenizer_folder, tmp_path):
    tok = Tokenizer.train([TEXT, "a few words more"] * 20, 60, kind="unigram")
    tok.save(tmp_path / "unigram")
    command = ("tokenize", TEXT, "--json", "--tokenizer", tmp_path / "unigram")
    best = [{"ids": ids, "score": score} for ids, score in tok.encode_nbest(TEXT, 3)]
    assert json.loads(in_process(*command, "--nbest", "3").stdout) == best
    for seed in (0, 1):
        ids = json.loads(in_process(*command, "--alpha", "0.2", "--seed", str(seed)).stdout)
        assert ids == tok.encode_sampled(TEXT, 0.2, seed)
    shown = in_process("tokenize", TEXT, "--tokenizer", tmp_path / "unigram", "--nbest", "2")
    assert f"{best[1]['score']:.3f} nats" in shown.stdout + shown.stderr
    for option, value in (("--nbest", "0"), ("--alpha", "-1")):
        assert f"{option} is {value}" in in_process(*command, option, value).stderr
    refused = in_process(*command, "--nbest", "2", "--alpha", "1")
    assert "give only one of --dropout, --alpha and --nbest" in refused.stderr
    refused = in_process("tokenize", TEXT, "--tokenizer", tokenizer_folder, "--nbest", "2")
    assert "only Unigram pieces have scores" in refused.stderr


def test_tokenize_reads_what_is_piped_to_it(bytelm, tokenizer_folder):
    done = bytelm("tokenize", "--file", "-", "--tokenizer", tokenizer_folder, "--json", input=TEXT)
    assert json.loads(done.stdout) == Tokenizer.load(tokenizer_folder).encode(TEXT)


def test_published_ranks_are_shown_with_the_pattern_that_their_name_or_the_option_says(in_process, shared, tmp_path):
    ranks = shared / "vectors" / "cl100k" / "cl100k_base.tiktoken"
    expected = Tokenizer.load(ranks, pattern="cl100k").encode(TEXT)
    (tmp_path / "any-name.tiktoken").symlink_to(ranks)
    (tmp_path / "mine.tiktoken").write_bytes(ranks.read_bytes().removesuffix(b"\n"))
    for options in ([ranks], ["any-name.tiktoken"], ["mine.tiktoken", "--pattern", "cl100k"]):
        done = in_process("tokenize", TEXT, "--json", "--tokenizer", *options)
        assert json.loads(done.stdout) == expected, done.stderr
    refused = in_process("tokenize", TEXT, "--tokenizer", "mine.tiktoken")
    assert refused.returncode == 1
    assert refused.stderr.startswith("bytelm tokenize: mine.tiktoken: does not say how text is split; add --pattern")
    special = in_process("tokenize", "a<|endofprompt|>", "--json", "--special", "--tokenizer", ranks)
    assert json.loads(special.stdout) == [64, 100276], special.stderr
    options = ("--tokenizer", "mine.tiktoken", "--pattern", "cl100k", "--special")
    refused = in_process("tokenize", TEXT, *options)
    assert refused.stderr == "bytelm tokenize: mine.tiktoken has no special tokens: leave out --special\n"


def test_a_dataset_is_built_with_published_ranks_and_with_a_named_pattern(in_process, shared, text_folder, tmp_path):
    ranks = shared / "vectors" / "cl100k" / "cl100k_base.tiktoken"
    (tmp_path / "mine.tiktoken").write_bytes(ranks.read_bytes().removesuffix(b"\n"))
    build = ("build-dataset", text_folder, "--context-length", "32", "--tokenizer")
    refused = in_process(*build, "mine.tiktoken", "--out", "mine")
    assert refused.returncode == 1
    assert "mine.tiktoken: does not say how text is split; add --pattern with one of gpt2" in refused.stderr
    done = in_process(*build, "mine.tiktoken", "--pattern", "cl100k", "--no-separator", "--out", "mine")
    assert done.returncode == 0, done.stderr
    done = in_process(*build, ranks, "--out", "published")
    assert done.returncode == 0, done.stderr
    published = Tokenizer.load(tmp_path / "published")
    assert published.fingerprint == Tokenizer.load(ranks).fingerprint
    assert Tokenizer.load(tmp_path / "mine").fingerprint == Tokenizer.load(ranks, special_tokens={}).fingerprint


def test_a_dataset_is_built_with_ranks_of_tokens_that_merging_never_makes(in_process, text_folder, tmp_path):
    ranks = {bytes([byte]): byte for byte in range(256)}
    for token in (b"in", b"re", b"turn", b"self", b"  ", b"    ", b"ret", b"return", b"im", b"imp", b"ort", b"import"):
        ranks[token] = len(ranks)
    lines = (b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    (tmp_path / "tokenizer.model").write_bytes(b"".join(lines))
    options = ("--tokenizer", "tokenizer.model", "--pattern", "llama3", "--no-separator", "--context-length", "32")
    done = in_process("build-dataset", text_folder, *options, "--out", "data")
    assert done.returncode == 0, done.stderr
    tok = Tokenizer.load(tmp_path / "tokenizer.model", pattern="llama3")
    assert Tokenizer.load(tmp_path / "data").fingerprint == tok.fingerprint
    info = json.loads((tmp_path / "data" / "dataset.json").read_text(encoding="utf-8"))
    assert info["tokenizer"]["fingerprint"] == tok.fingerprint


def test_invisible_characters_are_shown(in_process, tokenizer_folder, tmp_path):
    (tmp_path / "bytes").write_bytes(b"a \t\r\n\x00\xff\xe2\x82 \xe2\x80\x8b\xcc\x81")
    done = in_process("tokenize", "--file", "bytes", "--tokenizer", tokenizer_folder)
    shown = "".join(pieces_and_ids(done.stdout.splitlines())[0])
    assert shown == "a·→␍⏎␀\\xff\\xe2\\x82·\\xe2\\x80\\x8b\\xcc\\x81"
    assert visible(" \u200b".encode()) == "·\\u200b"
    assert visible("\u0301a\U000e0001".encode()) == "◌\u0301a\\U000e0001"


def test_special_tokens_have_their_own_colour(tokenizer_folder):
    command = ("tokenize", "a<|mask|>b", "--tokenizer", tokenizer_folder)
    lines, raw = on_a_terminal(*command, "--special")
    assert "<|mask|>" in pieces_and_ids(lines)[0]
    assert re.search(r"\x1b\[1;37;41m<\|mask\|>", raw)
    lines, raw = on_a_terminal(*command)
    assert "<|mask|>" not in pieces_and_ids(lines)[0]
    assert "\x1b[1;37;41m" not in raw


def test_a_large_file_does_not_flood_the_terminal(in_process, tokenizer_folder, tmp_path):
    (tmp_path / "large.txt").write_text(TEXT * 20_000)
    done = in_process("tokenize", "--file", "large.txt", "--tokenizer", tokenizer_folder)
    tok = Tokenizer.load(tokenizer_folder)
    total = len(tok.encode(TEXT * 20_000))
    assert len(done.stdout.splitlines()) < 200
    assert f"... and {total - 200:,} more tokens; --limit 0 shows all" in done.stdout
    assert f"{total:,} tokens, {len(TEXT.encode()) * 20_000:,} bytes" in done.stdout
    done = in_process("tokenize", TEXT * 20, "--tokenizer", tokenizer_folder, "--limit", "0")
    assert pieces_and_ids(done.stdout.splitlines())[1] == tok.encode(TEXT * 20)


def test_tie_break_bytes_merges_the_greatest_bytes_and_is_refused_for_wordpiece(in_process, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("ab ca cb ba " * 20)
    command = ["train-tokenizer", str(text), "--vocab-size", "263", "--out", str(tmp_path / "tok"), "--tie-break"]
    done = in_process(*command, "bytes", "--min-frequency", "1")
    assert done.returncode == 0, done.stderr
    assert Tokenizer.load(tmp_path / "tok").merges == [(b" ", b"c"), (b"b", b"a")]  # by ids (a, b)
    done = in_process(*command, "bytes", "--kind", "wordpiece", "--overwrite")
    assert done.returncode != 0
    assert "--tie-break is not an option of wordpiece" in done.stderr
    assert "Traceback" not in done.stderr


def test_work_beyond_an_estimated_total_is_all_of_it_with_no_time_left(capsys, monkeypatch):
    monkeypatch.setattr(display, "FIRST_LINE", 0.0)
    with show(), Bar("reading", 10, "B") as bar:
        bar.update(15)
    assert re.search(r"^reading: 100% 15 B, .*, 0:00 left$", capsys.readouterr().out, re.MULTILINE)


def test_json_has_nothing_else_on_standard_output_whatever_the_counting_says(in_process, text_folder, monkeypatch):
    counted = verb._counted
    monkeypatch.setattr(verb, "_counted", lambda *given: say("lost the node x") or counted(*given))
    done = in_process("train-tokenizer", text_folder, "--vocab-size", "300", "--out", "tok", "--json")
    assert json.loads(done.stdout)["tokens"] > 0 and "lost the node x" in done.stderr


def test_the_lines_of_progress_and_the_summary_share_one_clock(capsys):
    """The wait before a phase's first progress, such as for compilation, belongs to that phase."""
    with show(), Bar("counting", 10, "B") as bar:
        phases = Phases(bar, 10)
        phases.begin("count")
        phases("count", 10, 10)
        phases.begin("merge")
        time.sleep(1.0)
        phases("merge", 5, 5)
        phases.end()
    assert phases.seconds["count"] < 0.5 < 1.0 <= phases.seconds["merge"] < 1.4
    assert capsys.readouterr().out.splitlines() == ["counting: 10 B in 0:00", "merging: 5 in 0:01"]
