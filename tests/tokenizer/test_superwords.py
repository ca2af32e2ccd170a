"""Superwords: training goes on across words, with the merges of a plain reference and of bpe-continue."""

import json
import re
from collections import Counter
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tokenizer import Tokenizer
from tokenizer.document_blocks import block_of
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import SUPERWORD_REGEXES, SUPERWORD_STEPS
from tokenizer.training.growing import UpToColons

bpe_continue = pytest.importorskip("bpe_continue")
PIECES = st.sampled_from(["of the ", "in a: b", ": ", " ", "12", "1234567", "²", "٣٤٥٦", "\n", "don't", "字", ":", "x"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@pytest.fixture(scope="module")
def base(stdlib_texts):
    return Tokenizer.train(stdlib_texts[:20], 600, special_tokens=())


def reference(tok, texts, entries, words):
    """Return the new tokens, by the obvious algorithm: whole texts, recounted for each merge."""
    split = re.compile(r"\d+|[^\d]+")
    count = Counter(piece for text in texts for piece in split.findall(text))
    tokens = dict(enumerate(tok.vocabulary.tokens))
    whole = Tokenizer.from_merges({t: i for i, t in tokens.items()}, tok.merges, r"[\s\S]+")
    pieces = [(whole.encode(piece), n) for piece, n in count.items() if not piece[0].isdigit()]
    while len(tokens) < entries:
        pairs = Counter()
        for ids, n in pieces:
            for pair in pairwise(ids):
                token = tokens[pair[0]] + tokens[pair[1]]
                if b": " not in token and sum(map(bool, token.split(b" "))) <= words:
                    pairs[pair] += n
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        new = len(tokens)
        tokens[new] = tokens[best[0]] + tokens[best[1]]
        for ids, _ in pieces:
            at = 0
            while at < len(ids) - 1:
                if (ids[at], ids[at + 1]) == best:
                    ids[at : at + 2] = [new]
                at += 1
    return [tokens[i] for i in range(tok.vocab_size, entries)]


@pytest.mark.parametrize("words", [2, 4])
def test_new_tokens_are_those_of_the_obvious_algorithm(base, stdlib_texts, words):
    texts = [re.sub(r"\d", "", text[:3000]) + " the end: of it" * 9 for text in stdlib_texts[:6]]
    grown = base.grow(texts, 640, superwords=words)
    assert grown.vocabulary.tokens[600:] == reference(base, texts, 640, words)
    assert any(token.strip().count(b" ") for token in grown.vocabulary.tokens[600:])


def test_merges_without_refusals_are_those_of_bpe_continue(base, stdlib_texts, tmp_path):
    texts = [text.replace(": ", ":\t") for text in stdlib_texts[:15]]
    base.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    splits = [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") for regex in SUPERWORD_REGEXES]
    peer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(False, use_regex=False)])
    continued = bpe_continue.continue_training(peer, vocab_size=1000, texts=texts, min_frequency=2, show_progress=False)
    grown = base.grow(texts, 1000, superwords=10**6)
    grown.save(tmp_path / "grown")
    theirs, ours = (
        json.loads(text)["model"] for text in (continued.to_str(), (tmp_path / "grown" / "tokenizer.json").read_text())
    )
    assert [tuple(pair) for pair in ours["merges"]] == [tuple(pair) for pair in theirs["merges"]]


def test_the_saved_file_gives_the_same_ids_in_tokenizers(base, stdlib_texts, tmp_path):
    grown = base.grow(stdlib_texts[:15], 800, superwords=4)
    grown.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [each.ids for each in peer.encode_batch(stdlib_texts[:40])] == grown.encode_batch(stdlib_texts[:40])
    assert Tokenizer.load(tmp_path).fingerprint == grown.fingerprint
    tokens = grown.vocabulary.tokens[600:]
    assert not any(b": " in token for token in tokens)
    assert max(sum(map(bool, token.split(b" "))) for token in tokens) in (3, 4)


@given(texts=st.lists(TEXTS | st.text(max_size=20), max_size=4))
def test_blocks_are_split_as_their_texts_and_as_in_tokenizers(texts):
    block = block_of([b"12 before: ", *map(str.encode, texts)])
    splits = [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") for regex in SUPERWORD_REGEXES]
    peer = pre_tokenizers.Sequence(splits)
    for splitter in (Chain(SUPERWORD_STEPS), UpToColons(Chain(SUPERWORD_STEPS))):
        ends = splitter.ends_of_block(block).tolist()
        found = [block.data[start:end].tobytes() for start, end in zip([0, *ends], ends, strict=False)]
        documents = [b"12 before: ", *map(str.encode, texts)]
        assert found == [pretoken for document in documents for pretoken in splitter.pretokens(document)]
    parts = [part for text in ["12 before: ", *texts] for part, _ in peer.pre_tokenize_str(text)]
    ends = Chain(SUPERWORD_STEPS).ends_of_block(block).tolist()
    assert [block.data[a:b].tobytes().decode() for a, b in zip([0, *ends], ends, strict=False)] == parts


def test_the_first_growth_of_a_process_counts_in_plain_python(base, stdlib_texts, monkeypatch):
    """Kernels are compiled meanwhile: those of BPE, although no vocabulary is trained on this splitter."""
    expected = base.grow(stdlib_texts[:6], 640, superwords=4)
    monkeypatch.setattr("tokenizer.training.counting.is_compiled", lambda kernel: False)
    assert base.grow(stdlib_texts[:6], 640, superwords=4).fingerprint == expected.fingerprint
