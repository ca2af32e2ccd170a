"""The pre-tokenizers of tokenizer.json split texts as in `tokenizers`, in any sequence."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tokenizer.byte_level import spell
from tokenizer.document_blocks import Block, block_of
from tokenizer.splitting.chain_blocks import rewriter_of
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import GPT2_REGEX

BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
MATCH_EMPTY_TEXT = ["x*", "x*|ab", "(?=a)|a"]
REGEXES = [
    r"\s+",
    r"\w+|[^\w\s]+",
    r"\p{L}+",
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"^a|b$",
    "(?x) a+ # letters",
    *MATCH_EMPTY_TEXT,
]
SPLITS = [
    {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    for pattern in [*({"Regex": regex} for regex in REGEXES), {"String": " "}, {"String": "aa"}]
    for behavior in BEHAVIORS
    for invert in (False, True)
]
WORDS = [
    *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts")),
    {"type": "CharDelimiterSplit", "delimiter": "a"},
    {"type": "CharDelimiterSplit", "delimiter": "\t"},
    {"type": "FixedLength", "length": 3},
    {"type": "Digits", "individual_digits": True},
    {"type": "Digits", "individual_digits": False},
    *({"type": "Punctuation", "behavior": behavior} for behavior in BEHAVIORS),
    *(
        {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": cuts}
        for mark in "▁_"
        for scheme in ("always", "never")
        for cuts in (True, False)
    ),
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
    {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False},
]
CHARACTERS = "aab xs'’1²½ \t\n\u00a0\u3000.,!?-_▁éÉ\u0301字あアーё\u200d₂٣Ⅷ🙂"
TEXTS = st.text(st.sampled_from(CHARACTERS) | st.characters(exclude_categories=["Cs"]), max_size=20)


def peer(steps):
    steps = [step | {"trim_offsets": True} if step["type"] == "ByteLevel" else step for step in steps]
    content = {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}, "version": "1.0"}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    return tokenizers.Tokenizer.from_str(json.dumps(content)).pre_tokenizer


@given(st.lists(st.sampled_from(WORDS) | st.sampled_from(SPLITS), min_size=1, max_size=3), TEXTS)
@pytest.mark.filterwarnings("ignore:the split pattern")
def test_any_sequence_of_pre_tokenizers_splits_as_in_tokenizers(steps, text):
    expected = [piece for piece, _ in peer(steps).pre_tokenize_str(text)]
    assert [piece.decode() for piece in Chain(steps, as_bytes=False).pretokens(text.encode())] == expected


@pytest.mark.slow
@pytest.mark.parametrize("step", WORDS[:4], ids=lambda step: step["type"])
def test_every_code_point_is_split_as_in_tokenizers(step):
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    split, chain = peer([step]).pre_tokenize_str, Chain([step], as_bytes=False)
    for start in range(0, len(characters), 4096):
        text = "".join(f"a{c}" for c in characters[start : start + 4096])
        words, ends = chain.rewrite(block_of([text.encode()]))
        found = words.data.tobytes()
        expected = [piece for piece, _ in split(text)]
        assert [found[a:b].decode() for a, b in pairwise([0, *ends.tolist()])] == expected


CLIP = [
    {"type": "Split", "pattern": {"Regex": REGEXES[3]}, "behavior": "Removed", "invert": True},
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
]


@pytest.mark.parametrize("steps", [[step] for step in WORDS[:3]] + [CLIP], ids=lambda steps: steps[0]["type"])
@pytest.mark.filterwarnings("ignore:the split pattern")
@given(data=st.lists(TEXTS.map(str.encode) | st.just(b"") | st.just(b"a\xffb"), max_size=5))
def test_blocks_are_split_as_their_texts(steps, data):
    chain, block = Chain(steps, as_bytes=False), block_of([b"before", *data, b"after"])
    assert rewriter_of(chain) is not None
    block = Block(block.data, block.offsets[1:-1])
    words, ends = chain.rewrite(block)
    expected = [[*chain.pretokens(document)] for document in data]
    joined = words.data[: words.offsets[-1]].tobytes()
    assert [joined[start:end] for start, end in pairwise([0, *ends.tolist()])] == [w for ws in expected for w in ws]
    assert [joined[start:end] for start, end in pairwise(words.offsets.tolist())] == list(map(b"".join, expected))


ISOLATED = {"type": "Split", "behavior": "Isolated", "invert": False}
OTHERS = "ab1²٣字か\x00\x01\u0301\ue000\u0378!(-$ \n\r\t\u00a0'é"
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def isolating(*regexes):
    return [ISOLATED | {"pattern": {"Regex": regex}} for regex in regexes]


DEEPSEEK = [
    *isolating(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),
    BYTES,
]
DEEPSEEK_CODER = [
    *isolating("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"),
    {"type": "Digits", "individual_digits": True},
    BYTES,
]
DIGITS_APART = [
    [{"type": "Digits", "individual_digits": alone}, BYTES | {"use_regex": True}] for alone in (True, False)
]
PUBLISHED = {"deepseek": DEEPSEEK, "coder": DEEPSEEK_CODER, "digit": DIGITS_APART[0], "digits": DIGITS_APART[1]}


@pytest.mark.parametrize("steps", PUBLISHED.values(), ids=PUBLISHED)
@given(data=st.lists(st.text(st.sampled_from(OTHERS + "\U00011de3"), max_size=15) | TEXTS, max_size=4))
def test_blocks_are_split_by_the_scanner_as_their_texts_and_as_in_tokenizers(steps, data):
    chain, block = Chain(steps), block_of([b"before", *map(str.encode, data), b"after"])
    block = Block(block.data, block.offsets[1:-1])
    ends = chain.ends_of_block(block)
    text = block.data.tobytes()
    found = [text[start:end] for start, end in pairwise([int(block.offsets[0]), *ends.tolist()])]
    assert found == [pretoken for document in data for pretoken in chain.pretokens(document.encode())]
    expected = [piece for document in data for piece, _ in peer(steps).pre_tokenize_str(document)]
    assert list(map(spell, found)) == expected
    assert chain.ends_of_block(block_of([b"a\xff"])) is None


SCANNED = [
    *(split for split in SPLITS if split["pattern"].get("Regex") not in ("^a|b$", *MATCH_EMPTY_TEXT)),
    *(step for step in WORDS if step["type"] in ("Digits", "Punctuation")),
    *(
        ISOLATED | {"pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}
        for regex in (r"ab|abb1|a(?=1)|b(?!\S)", r"\s?\p{L}+", r"a$", "1?字", GPT2_REGEX)
        for behavior in BEHAVIORS
        for invert in (False, True)
    ),
]
SLOW = [split for split in SPLITS if split["pattern"].get("Regex") == "^a|b$" and split["behavior"] != "Removed"]


@given(
    st.lists(st.sampled_from([*SCANNED, *SLOW]), min_size=1, max_size=3),
    st.sampled_from([[], [BYTES], [BYTES | {"use_regex": True}]]),
    st.lists(TEXTS, max_size=4),
)
def test_any_sequence_of_splits_runs_in_the_scanner_as_in_tokenizers(splits, last, data):
    steps = [*splits, *last]
    chain, block = Chain(steps, as_bytes=False), block_of([b"before", *map(str.encode, data), b"after"])
    assert chain.scans is not None or all(split in SLOW for split in splits)
    block = Block(block.data, block.offsets[1:-1])
    words, ends = chain.rewrite(block)
    text = words.data.tobytes()
    split = peer(steps).pre_tokenize_str
    expected = [[piece for piece, _ in split(document)] for document in data]
    assert [text[start:end].decode() for start, end in pairwise([0, *ends.tolist()])] == [
        w for ws in expected for w in ws
    ]
    assert [text[start:end].decode() for start, end in pairwise(words.offsets.tolist())] == list(map("".join, expected))


def test_a_mark_before_the_start_of_a_text_is_left_out_after_a_special_token():
    chain = Chain([{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}], as_bytes=False)
    assert list(chain.pretokens(b"a b")) == ["▁a".encode(), "▁b".encode()]
    assert list(chain.inside.pretokens(b"a b")) == [b"a", "▁b".encode()]
    assert chain.inside.inside is chain.inside


@pytest.mark.parametrize(
    ("steps", "slow"), [(CLIP, False), (DEEPSEEK, False), ([SPLITS[0], *isolating(r"a(?<=b)")], True)]
)
def test_only_regexes_without_a_kernel_warn(steps, slow):
    script = f"from tokenizer.splitting.chains import Chain; Chain({steps!r}).check()"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr
    assert ("exactly but slower" in said) is slow


@pytest.mark.parametrize("steps", [DEEPSEEK[-1:], DIGITS_APART[0]], ids=["no split", "digits"])
def test_empty_documents_of_a_block_have_no_pretokens(steps):
    block = block_of([b"", b"ab", b"", b"1", b""])
    assert Chain(steps).ends_of_block(block).tolist() == [2, 3]
    assert Chain(steps).ends_of_block(block_of([b"", b""])).tolist() == []
