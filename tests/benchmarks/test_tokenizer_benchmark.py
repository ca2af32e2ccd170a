"""Each peer's adapter gives our merges and ids, and the benchmark writes complete results."""

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cases import Case, Patience, Row, compare_ids, compare_merges, comparing_merges, race, run_job
from benchmarks.harness import ROOT
from benchmarks.peers import OURS, installed_version
from benchmarks.peers.encoding import ENCODERS, VocabularyFiles
from benchmarks.peers.lines import CHARACTER_BPE, LINE_ENCODERS, UNIGRAM, WORDPIECE, PieceFiles
from benchmarks.peers.training import TRAINERS, bytelm
from benchmarks.peers.wordpiece import alphabet_order, train_bytelm, train_tokenizers
from benchmarks.texts import CUT, hard_texts, pieces, write_text
from benchmarks.workloads import PATTERNS, timed_start
from tokenizer import Tokenizer, count_pretokens

OWN_RULES = ("sentencepiece", "gigabpe")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return 100 kB of the standard library and a few lines in other scripts."""
    sources = [*Path(json.__file__).parent.glob("*.py"), Path(os.__file__), Path(subprocess.__file__)]
    content = "".join(path.read_text(encoding="utf-8") for path in sorted(sources))[:100_000]
    content += "naïve café — 東京と大阪; שלום ไม่เป็นไร 🙂🙂 ½²Ⅷ   \r\n\r\n\tWE'LL it's 1234567\n" * 20 + "end"
    return write_text(tmp_path_factory.mktemp("text"), "text", content, "")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer = Tokenizer.train(text.path, 1000, "cl100k", special_tokens=())
    tokenizer.save(folder)
    ranks = folder / "own.tiktoken"
    lines = (b"%b %d\n" % (b64encode(tokenizer.token_bytes(i)), i) for i in range(1000))
    ranks.write_bytes(b"".join(lines))
    return VocabularyFiles(ranks=str(ranks), json=str(folder / "tokenizer.json"), published=False)


def as_lines(merges):
    return [merge.hex() if isinstance(merge, bytes) else f"{merge[0].hex()} {merge[1].hex()}" for merge in merges]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("peer", "way"), [key for key in TRAINERS if key[0] not in (OURS, *OWN_RULES)])
def test_every_trainer_learns_our_merges(text, peer, way, pattern, threads):
    trainer = TRAINERS[peer, way]
    if installed_version(peer) is None or pattern not in trainer.patterns:
        pytest.skip(f"{peer} is not installed, or has no such pattern")
    ours = as_lines(bytelm(text.path, 1000, pattern, threads, trainer.byte_order)())
    theirs = as_lines(trainer.train(text.path, 1000, pattern, threads)())
    assert len(ours) == 744
    assert compare_merges(theirs, ours) == "equal"


def test_gigabpe_learns_our_merges_of_single_lines(text):
    if installed_version("gigabpe") is None:
        pytest.skip("gigabpe is not installed")
    theirs = as_lines(TRAINERS["gigabpe", ""].train(text.path, 1000, "gpt2", 1)())
    lines = re.findall(r"[^\n]*\n|[^\n]+", text.path.read_bytes().decode())
    ours = Tokenizer.train(lines, 1000, "gpt2", special_tokens=(), min_frequency=1)
    assert compare_merges(theirs, as_lines(ours.merges)) == "equal"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("peer", "way"), [key for key in ENCODERS if key[0] != OURS])
def test_every_encoder_gives_our_ids(text, vocabulary, monkeypatch, peer, way, threads):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    if installed_version(peer) is None or peer in ("quicktok", "rs-bpe"):
        pytest.skip(f"{peer} is not installed, or has only published vocabularies")
    theirs, ours = ENCODERS[peer, way](vocabulary), ENCODERS[OURS, ""](vocabulary)
    expected = np.concatenate([*ours.encode_file(text.path, text.separated, threads)])
    ids = np.concatenate([np.asarray(part) for part in theirs.encode_file(text.path, text.separated, threads)])
    assert compare_ids(ids, expected) == "equal"
    content = text.path.read_bytes()
    assert theirs.encode_document(content.decode()) == ours.encode_document(content.decode()) == expected.tolist()
    for encoder in (theirs, ours):
        decoded = encoder.decode(expected if encoder.decodes_arrays else expected.tolist())
        assert (decoded if isinstance(decoded, bytes) else decoded.encode()) == content


@pytest.fixture(scope="module")
def piece_files(tmp_path_factory, text):
    """Return the files of a vocabulary of each kind."""
    folder = tmp_path_factory.mktemp("pieces")
    options = {"special_tokens": (), "threads": 1}
    unigram = Tokenizer.train(text.path, 1000, kind="unigram", pattern="nmt_nfkc", **options)
    unigram.save(folder / "unigram")
    unigram.as_sentencepiece().save(folder / "sentencepiece")
    model = folder / "sentencepiece" / "tokenizer.model"
    characters = Tokenizer.train(text.path, 1000, kind="character-bpe", **options)
    characters.save(folder / "characters")
    characters.as_sentencepiece().save(folder / "characters" / "sentencepiece")
    words = folder / "vocab.txt"
    words.write_text("\n".join(train_bytelm(text.path, 1000, 1)), encoding="utf-8")
    Tokenizer.load(words, pattern="bert-uncased").save(folder / "words")
    return {
        WORDPIECE: PieceFiles(json=str(folder / "words" / "tokenizer.json")),
        UNIGRAM: PieceFiles(json=str(folder / "unigram" / "tokenizer.json"), model=str(model)),
        CHARACTER_BPE: PieceFiles(
            json=str(folder / "characters" / "tokenizer.json"),
            model=str(folder / "characters" / "sentencepiece" / "tokenizer.model"),
        ),
    }


@pytest.mark.parametrize("kind", [WORDPIECE, UNIGRAM, CHARACTER_BPE])
@pytest.mark.parametrize(("peer", "way"), [key for key in LINE_ENCODERS if key != (OURS, "")])
def test_every_line_encoder_gives_our_ids(text, piece_files, peer, way, kind):
    encoder = LINE_ENCODERS[peer, way]
    if installed_version(peer) is None or kind not in encoder.kinds:
        pytest.skip(f"{peer} is not installed, or does not read {kind} vocabularies")
    lines = text.path.read_text(encoding="utf-8").split("\n")
    ours = LINE_ENCODERS[OURS, ".model" if encoder.float32 else ""](piece_files[kind])
    theirs = encoder(piece_files[kind])
    expected, expected_lengths = ours.arrays(ours.encode(lines, text.path))
    ids, lengths = theirs.arrays(theirs.encode(lines, text.path))
    assert compare_ids(ids, expected) == "equal"
    assert lengths is None or lengths.tolist() == expected_lengths.tolist()


def test_wordpiece_trainers_learn_the_same_entries(text):
    theirs = train_tokenizers(text.path, 1000, 1)
    assert train_bytelm(text.path, 1000, 1, alphabet_order(theirs)) == theirs


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pieces_of_a_text_have_the_pretokens_of_the_whole(text, pattern):
    content = text.path.read_text(encoding="utf-8")
    parts = pieces(content, 100)
    assert len(parts) > 500
    assert "".join(parts) == content
    assert count_pretokens(parts, pattern) == count_pretokens([content], pattern)


def test_hard_inputs_have_the_size_they_say_and_stay_whole(tmp_path):
    for hard in hard_texts(tmp_path, 6000):
        assert hard.size == 6000
        assert not CUT.search(hard.path.read_text(encoding="utf-8"))
        assert hard.separated == hard.path


def test_a_comparison_names_the_first_difference():
    merges = ["61 62", "6162 63", "64 65"]
    assert compare_merges(["6162", "616263", "6465"], merges) == "equal"
    assert compare_merges(["61 62", "61 6263", "64 65"], merges) == "differs from merge 2 on"
    assert compare_merges(merges[:2], merges) == "differs: 2 merges, not 3"
    ids = np.array([1, 2, 3], dtype=np.uint32)
    assert compare_ids(ids, ids.copy()) == "equal"
    assert compare_ids(ids[[0, 2]], ids) == "differs: 2 ids, not 3, the first at 1"
    assert compare_ids(ids[:2], ids) == "differs: 2 ids, not 3, the first at 2"


def test_a_contestant_that_fails_is_a_row_without_a_time(text, tmp_path):
    job = {"task": "train", "peer": OURS, "way": "", "path": str(text.path), "threads": 1, "byte_order": "gpt2"}
    broken = Row(peer=OURS, job=job | {"vocab_size": 300, "pattern": "no such pattern ("})
    turns = list(race([broken], Patience(rounds=3), lambda row, result: "equal", tmp_path))
    assert turns == [broken]  # one turn, not three
    assert not broken.runs
    assert "no such pattern" in broken.result
    assert "took more than 0 s" in run_job(job | {"vocab_size": 300, "pattern": "gpt2"}, 1, timeout=0.01)["error"]


def test_the_reference_run_stays_the_reference_in_every_round(text, tmp_path):
    job = {"task": "train", "peer": OURS, "way": "", "path": str(text.path), "threads": 1, "byte_order": "gpt2"}
    ours = Row(peer=OURS, job=job | {"vocab_size": 300, "pattern": "gpt2"})
    turns = list(race([ours], Patience(rounds=2), comparing_merges({}), tmp_path))
    assert turns == [ours, ours]
    assert (ours.result, len(ours.runs), ours.counts) == ("reference", 2, True)


def test_a_target_is_met_only_by_a_valid_time_of_ours():
    def judged(*verdicts, failed=False):
        ours, theirs = Row(peer=OURS), Row(peer="gigatoken")
        for verdict in verdicts:
            ours.take(verdict, {"seconds": 1.0, "beside": 11.0, "peak": 3, "before": 2})
        if failed:
            ours.fail("ended with status 1: nothing")
        theirs.take("equal", {"seconds": 2.5, "peak": 5, "before": 2})
        case = Case(work="work", name="text", rows=[ours, theirs])
        case.judge_time(case.ours(1), theirs, 0.5, "at most half the time")
        case.judge_memory(case.ours(1), ("gigatoken", "ffbpe"))
        case.judge_beside(case.ours(1), 10, "tiktoken")
        return ours.result, [(verdict.found, verdict.met) for verdict in case.verdicts]

    none = [("no valid time of ours", False)] * 3
    met = [("0.40 of the time of gigatoken", True), ("0 MB, gigatoken 0 MB", True), ("11.0 times", True)]
    assert judged("reference", "equal", "equal") == ("reference", met)
    assert judged("equal", "equal") == ("equal", met)
    assert judged("reference", "equal", "differs from merge 3 on") == ("reference, then differs from merge 3 on", none)
    assert judged("differs: 1 ids, not 2, the first at 1", "equal")[1] == none
    assert judged("reference", failed=True) == ("ended with status 1: nothing", none)


def test_the_fastest_contestant_is_found_among_those_with_this_time():
    rows = [Row(peer=peer) for peer in (OURS, OURS, "sentencepiece", "splintr")]
    for row, first, later in zip(rows, (1.0, 9.0, 4.0, 2.0), (0.5, None, 1.0, None), strict=True):
        row.take("equal", {"processor": first} | ({} if later is None else {"again": later}))
    case = Case(work="work", name="text", rows=rows)
    for key in ("processor", "again"):
        case.judge_speed(("sentencepiece", "splintr"), 2, key, "at least twice the speed of the faster")
    assert [(verdict.found, verdict.met) for verdict in case.verdicts] == [
        ("2.00 times splintr", True),
        ("2.00 times sentencepiece", True),
    ]


def test_a_program_that_ends_badly_has_no_time_to_its_ids():
    assert timed_start("print([1, 2])", [], {})["ids"] == [1, 2]
    assert "ended with status 1: OSError: gone" in timed_start("raise OSError('gone')", [], {})["error"]
    assert "not a list of ids" in timed_start("print('a warning')", [], {})["error"]


WORKS = {
    "training": ["training", "training"],
    "encoding": ["encoding"],
    "wordpiece": ["WordPiece encoding", "WordPiece training"],
    "unigram": ["Unigram encoding"],
    "character-bpe": ["BPE over characters encoding"],
    "start": ["process start"],
}


@pytest.mark.parametrize("works", [["encoding"], pytest.param([*WORKS], marks=pytest.mark.slow)], ids=["one", "all"])
def test_a_quick_run_writes_json_and_markdown(text, tmp_path, works):
    """Run the command line with the peers that are test dependencies."""
    out = tmp_path / "out"
    words = [sys.executable, "-m", "benchmarks.tokenizer", str(text.path), "--quick", "--threads", "1"]
    words += ["--works", ",".join(works), "--peers", "rustbpe,tiktoken,sentencepiece", "--out", str(out)]
    nothing_shared = os.environ | {"BYTELM_SHARED": str(tmp_path / "absent")}
    finished = subprocess.run(words, cwd=ROOT, env=nothing_shared, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    result = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    assert [case["work"] for case in result["cases"]] == [case for work in works for case in WORKS[work]]
    for case in result["cases"]:
        if case["work"].startswith(("WordPiece", "Unigram", "BPE over")):
            peers = {OURS} if case["work"].startswith("WordPiece") else {OURS, "sentencepiece"}
            assert {row["peer"] for row in case["rows"]} == peers
            assert {row["result"] for row in case["rows"]} <= {"reference", "equal"}
            continue
        results = {row["peer"]: row["result"] for row in case["rows"] if row["result"] not in ("-", "own rules")}
        other = "rustbpe" if case["work"] == "training" else "tiktoken"
        assert results == {OURS: "reference", other: "equal"}
        assert case["limit"] > 0
        for row in case["rows"]:
            assert all(run["seconds"] > 0 for run in row["runs"])
    targets, measurements = (out / "tokenizer.md").read_text(encoding="utf-8").split("## Measurements")
    for case in result["cases"]:
        assert case["name"] in measurements
        for verdict in case["verdicts"]:
            assert verdict["found"] in targets
    # All lines of a table have the same number of cells.
    for above, below in pairwise(measurements.splitlines()):
        if above.startswith("|") and below.startswith("|"):
            assert above.count("|") == below.count("|")
