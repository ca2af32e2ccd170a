"""Damaged and malicious files raise a ValueError that names the file, and never take long."""

import base64
import copy
import json
import re
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import PEAK_MEMORY
from tokenizer import Tokenizer
from tokenizer.byte_level import BYTE_TO_CHARACTER


def load_or_check_error(path, **options):
    """Load a file and use it, or check that the error names the file on one line and return None."""
    try:
        tok = Tokenizer.load(path, **options)
    except ValueError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error).removeprefix(str(path))
        assert len(str(error)) < 1000 + len(str(path))
        return None
    try:
        assert tok.decode(tok.encode("in a word", disallowed_special=()))
    except ValueError as error:
        assert tok.vocabulary.missing_bytes
        assert "for which the vocabulary has no token" in str(error)
    return tok


@pytest.fixture(scope="module")
def ranks():
    """Return a vocabulary of 300 tokens in tiktoken's format."""
    tok = Tokenizer.train(["in a word: hello hello, hello words "] * 9, 268, special_tokens=(), min_frequency=1)
    return b"".join(base64.b64encode(tok.token_bytes(i)) + b" %d\n" % i for i in range(tok.vocab_size))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a tokenizer.json of a few kilobytes."""
    folder = tmp_path_factory.mktemp("tiny")
    Tokenizer.train(["in a word: hello hello, hello words"], 265, special_tokens=("<|a|>",), min_frequency=1).save(
        folder
    )
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["added_tokens"].append({"id": 265, "content": "<b>", "special": False, "normalized": False})
    content["normalizer"] = {"type": "NFC"}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|a|>": {"id": "<|a|>", "ids": [0], "tokens": ["<|a|>"]}},
    }
    return json.dumps(content, ensure_ascii=False)


def test_a_tokenizer_json_cut_at_any_byte_is_refused(tiny, tmp_path):
    path = tmp_path / "tokenizer.json"
    content = tiny.encode()
    path.write_bytes(content)
    assert Tokenizer.load(path).vocab_size == 266
    for end in range(len(content)):
        path.write_bytes(content[:end])
        assert load_or_check_error(path) is None


def test_a_rank_file_cut_at_any_byte_is_refused_or_loads_in_part(ranks, tmp_path):
    path = tmp_path / "x.tiktoken"
    lines = ranks.splitlines()
    sizes = set()
    for end in range(len(ranks) + 1):
        path.write_bytes(ranks[:end])
        tok = load_or_check_error(path, pattern="gpt2")
        if tok is not None:
            assert base64.b64encode(tok.token_bytes(tok.vocab_size - 2)) == lines[tok.vocab_size - 2].split()[0]
            sizes.add(tok.vocab_size)
    assert sizes == set(range(256, len(lines) + 1))


ODD = [
    None,
    True,
    -1,
    0,
    3,
    2**24,
    10**400,
    1.5,
    float("inf"),
    float("nan"),
    "",
    "e",
    "in",
    "x" * 5000,
    "\ud800",
    "\x00",
    [],
    ["i", "n"],
    [["i", "n"]],
    ["i n", ["i", "n"]],
    {},
    {"type": "NFC"},
    {"type": "Sequence"},
    {"type": {"type": []}},
]


def places(value, path=()):
    """Yield the paths of all values in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_any_value_replaced_loads_or_is_refused(data, tiny, tmp_path):
    content = json.loads(tiny)
    for _ in range(data.draw(st.integers(1, 3))):
        # Most places are tokens and merges. Choose the other places as often.
        all_places = list(places(content))[1:]
        few = [path for path in all_places if len(path) < 3 or path[1] not in ("vocab", "merges")]
        *path, last = data.draw(st.sampled_from(data.draw(st.sampled_from([all_places, few]))))
        parent = content
        for key in path:
            parent = parent[key]
        what = data.draw(st.sampled_from(["replace", "delete", "repeat"]))
        if what == "replace":
            parent[last] = copy.deepcopy(data.draw(st.sampled_from(ODD)))
        elif what == "delete":
            del parent[last]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
        else:
            parent[data.draw(st.sampled_from(["in", "type", "zz", "é"]))] = copy.deepcopy(parent[last])
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    tok = load_or_check_error(path)
    if tok is not None:
        tok.save(tmp_path / "again")
        assert Tokenizer.load(tmp_path / "again").fingerprint == tok.fingerprint
        tokenizers.Tokenizer.from_file(str(tmp_path / "again" / "tokenizer.json"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=3), st.integers(0, 3)), min_size=1, max_size=3)
)
def test_a_rank_file_with_any_bytes_changed_loads_or_is_refused(edits, ranks, tmp_path):
    content = bytearray(ranks)
    for place, inserted, removed in edits:
        content[place : place + removed] = inserted
    path = tmp_path / "x.tiktoken"
    path.write_bytes(bytes(content))
    load_or_check_error(path, pattern="gpt2")


BOMBS = {
    "tokenizer.json": {
        "twice": b'{"model": 1, "model": 2}',
        "nested": b'{"model": ' + b'{"a":[' * 50_000,
        "thousands of digits": b'{"model": ' + b"9" * 1_000_000 + b"}",
        "NaN": b'{"model": NaN}',
        "has no model": b'{"version": "' + b"x" * 10_000_000 + b'"}',
    },
    "x.tiktoken": {
        "line 1 is not": b"9" * 5_000_000,
        "line 1 ": b"a " * 5_000_000,
        "line 2 ": b"IQ== 0\n" + b"\n" * 5_000_000 + b"Ig== 1\n",
        "line 1 is not a": b"IQ== " + b"1" * 5_000_000,
        "ids up to 16777215": b"IQ== 16777215\n",
        "a token has 7500000 bytes": b"A" * 10_000_000 + b" 0\n",
        "line 1 is not a token in": b"IQ== 0 Ig== 1\nIw==\n2\n",
    },
}


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, bombs in BOMBS.items() for said in bombs])
@pytest.mark.timeout(300)
def test_malicious_files_are_refused_at_once(name, said, tmp_path):
    path = tmp_path / name
    path.write_bytes(BOMBS[name][said])
    with pytest.raises(ValueError, match=said) as caught:
        Tokenizer.load(path, pattern="gpt2" if name == "x.tiktoken" else None)
    assert len(str(caught.value)) < 1000


MANY_LINES = {
    "empty lines": ("merge 0, which is not a pair", b"\n"),
    "the same merge": ("merge 1 .* twice", b"a a\n"),
    "no pairs": ("merge 0, which is not a pair", b"a a a\n"),
}


@pytest.mark.parametrize("kind", MANY_LINES)
@pytest.mark.timeout(300)
def test_too_many_merges_are_refused_without_taking_memory(kind, tmp_path):
    """The file has the largest possible number of merges. Python objects for them would not fit in most memories."""
    said, line = MANY_LINES[kind]
    ids = {character: i for i, character in enumerate([*BYTE_TO_CHARACTER.values(), "aa"])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (tmp_path / "merges.txt").write_bytes(b"#version\n" + line * (40_000_000 // len(line)))
    script = (
        "from tokenizer import Tokenizer\nbefore = peak_memory()\ntry:\n    Tokenizer.load(sys.argv[1])\n"
        "except ValueError as error:\n    print(peak_memory() - before, error)\n"
    )
    words = [sys.executable, "-c", PEAK_MEMORY + script, str(tmp_path / "merges.txt")]
    taken, error = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split(" ", 1)
    assert re.search(said, error)
    assert int(taken) < 200_000_000  # memory holds the file twice, as bytes and as text


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    for name in ("tokenizer.json", "x.tiktoken"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)  # a sparse file, which takes no space on disk
        with pytest.raises(ValueError, match="more than"):
            Tokenizer.load(tmp_path / name, pattern="gpt2" if name == "x.tiktoken" else None)
