"""Fixtures of the tokenizer's tests: real text, random hard text, and a slow, obvious reference trainer."""

import os
import random
import sysconfig
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
import regex

# No cache of records: every test parses its files.
os.environ["BYTELM_CACHE"] = ""


@pytest.fixture(scope="session", autouse=True)
def kernels():
    """Compile the kernels that these tests check. Without them small texts go through plain Python."""
    from tokenizer.compilation import compile_kernels

    compile_kernels()


@pytest.fixture(scope="session")
def stdlib_texts():
    """Return about 6 MB of real text: unchanged sources of Python's standard library."""
    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        try:
            texts.append(path.read_bytes().decode("utf-8"))
        except UnicodeDecodeError:
            continue
        size += len(texts[-1])
        if size > 6_000_000:
            break
    return [text for text in texts if text]


# At least one code point of every class that a split pattern distinguishes, and some that it must not distinguish.
REPRESENTATIVES = {
    "lower": "astdmlrevé",
    "upper": "ASTDMLREVÉ",
    "title": "ǅ",
    "modifier": "ʰ",
    "letter": "字אกⅠª",
    "mark": "\u0301\u0903\u20dd",
    "number": "019٣Ⅷ½²",
    "apostrophe": "'",
    "space": " ",
    "blank": "\t\u00a0\u0085\u2028\u3000\x0b",
    "newline": "\r\n",
    "slash": "/",
    "other": ".,!-_€😀\u200b\ufeff\x1c\x00\u180e\U0010ffff",
    "long s": "ſK",
}


@pytest.fixture(scope="session")
def representatives():
    return REPRESENTATIVES


@pytest.fixture(scope="session")
def random_strings(stdlib_texts):
    """Return draw(n, seed), which returns n short strings: half mutated slices of real text, half drawn by class."""
    contractions = ["'s", "'S", "'ll", "'LL", "'Ve", "'re", "'d", "'ſ", "'m", "'t", "''", "' s"]
    pool = "".join(stdlib_texts[:40]) + "Ünïcödé naïve 字符 עברית 한국어 123,456.78 — “quotes” don't WE'LL\r\n\r\n\t x"

    @lru_cache(maxsize=2)  # the tests of all patterns draw the same strings
    def draw(count, seed):
        rng = random.Random(seed)
        classes = list(REPRESENTATIVES.values())
        strings = []
        for i in range(count):
            if i % 2:
                start = rng.randrange(len(pool))
                text = list(pool[start : start + rng.randrange(1, 60)])
                for _ in range(rng.randrange(6)):
                    place = rng.randrange(len(text) + 1)
                    text[place:place] = rng.choice(rng.choice(classes)) * rng.choice((1, 1, 2, 5))
                    if rng.random() < 0.5:
                        del text[rng.randrange(len(text))]
                    if rng.random() < 0.3 and text:
                        place = rng.randrange(len(text))
                        text[place] = text[place].swapcase()
            else:
                text = []
                for _ in range(rng.randrange(1, 16)):
                    piece = rng.choice(contractions) if rng.random() < 0.1 else rng.choice(rng.choice(classes))
                    text.append(piece * rng.choice((1, 1, 1, 2, 4)))
            strings.append("".join(text))
        return strings

    return draw


GPT2_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256), *range(33), *range(127, 161), 173]


def reference_merges(counts, number, byte_order="gpt2", min_frequency=1, max_token_length=None, tie_break="ids"):
    """Byte-pair encoding by the book: recount every pair before every merge.

    counts: {pretoken: occurrences}. Returns the merges as pairs of bytes. Tokens are ranked in order of
    creation, single bytes by `byte_order`. Among the most frequent pairs, the pair with the lowest ranks is merged, or
    with tie_break="bytes" the greatest pair of bytes.
    """
    ranks = {bytes([b]): i for i, b in enumerate(GPT2_BYTES if byte_order == "gpt2" else range(256))}
    words = {pretoken: [pretoken[i : i + 1] for i in range(len(pretoken))] for pretoken in counts}
    merges = []
    while len(merges) < number:
        pairs = Counter()
        for pretoken, parts in words.items():
            for i in range(len(parts) - 1):
                if max_token_length is None or len(parts[i] + parts[i + 1]) <= max_token_length:
                    pairs[parts[i], parts[i + 1]] += counts[pretoken]
        pairs = {pair: n for pair, n in pairs.items() if n >= max(1, min_frequency)}
        if not pairs:
            break
        if tie_break == "bytes":
            left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        else:
            left, right = min(pairs, key=lambda pair: (-pairs[pair], ranks[pair[0]], ranks[pair[1]]))
        merges.append((left, right))
        ranks.setdefault(left + right, len(ranks))
        for parts in words.values():
            i = 0
            while i < len(parts) - 1:
                if parts[i] == left and parts[i + 1] == right:
                    parts[i : i + 2] = [left + right]
                i += 1
    return merges


@pytest.fixture(scope="session")
def reference():
    """Return reference(documents, regex, number, ...), which returns the merges."""

    def train(documents, pattern, number, **options):
        counts = Counter(m.group().encode() for text in documents for m in regex.finditer(pattern, text))
        return reference_merges(counts, number, **options)

    return train


@pytest.fixture(scope="session")
def trained(stdlib_texts):
    """Return a tokenizer of 4,096 entries, trained here, for each pattern."""
    from tokenizer import Tokenizer

    return {name: Tokenizer.train(stdlib_texts, 4096, pattern=name) for name in ("gpt2", "cl100k")}


@pytest.fixture(scope="session")
def as_tiktoken():
    """Return as_tiktoken(tok, regex), which converts a tokenizer to a tiktoken.Encoding."""
    import tiktoken

    def build(tok, pattern):
        special = tok.special_tokens
        ids = [i for i in range(tok.vocab_size) if tok.token_byte_lengths[i]]
        return tiktoken.Encoding(
            "ours",
            pat_str=pattern,
            mergeable_ranks={tok.token_bytes(i): i for i in ids},
            special_tokens=special,
        )

    return build


@pytest.fixture(scope="session")
def tiktoken_encodings():
    """Return the encodings that the installed tiktoken describes, with the SHA-256 of the file in place of ranks."""
    from unittest.mock import patch

    import tiktoken_ext.openai_public as public

    names = ("r50k_base", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base", "o200k_harmony")
    with patch.object(public, "load_tiktoken_bpe", lambda url, expected_hash: expected_hash):
        return {name: getattr(public, name)() for name in names}


@pytest.fixture(scope="session")
def tiktoken_patterns(tiktoken_encodings):
    """Return the patterns as the installed tiktoken spells them."""
    names = {"gpt2": "r50k_base", "cl100k": "cl100k_base", "o200k": "o200k_base"}
    return {name: tiktoken_encodings[encoding]["pat_str"] for name, encoding in names.items()}


@pytest.fixture(scope="session")
def published_patterns(tiktoken_patterns):
    """Return each pattern as published. tiktoken also runs the patterns that it does not ship."""
    return tiktoken_patterns | {
        "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    }
