"""Vocabularies by ranks or by random merges give the ids of tiktoken and tokenizers."""

import json
import random

import pytest
import tiktoken
import tokenizers

from tokenizer import Tokenizer
from tokenizer.byte_level import BY_MERGES, WHOLE_FIRST


def by_ranks(ranks):
    """Return ranks as the lines of a .tiktoken file."""
    import base64

    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


@pytest.mark.parametrize("seed", range(20))
def test_ranks_with_tokens_that_merging_cannot_make_equal_tiktoken_and_save(seed, tmp_path):
    """Some tokens of random ranks are not joins of smaller ones. Whole pretokens are looked up, then ranks decide."""
    rng = random.Random(seed)
    ranks = {bytes([byte]): i for i, byte in enumerate(rng.sample(range(256), 256))}
    for _ in range(60):
        ranks.setdefault("".join(rng.choices("ab c", k=rng.randrange(2, 7))).encode(), len(ranks))
    (tmp_path / "random.tiktoken").write_bytes(by_ranks(ranks))
    tok = Tokenizer.load(tmp_path / "random.tiktoken", pattern="gpt2")
    assert tok.vocabulary.semantics == WHOLE_FIRST
    tok.save(tmp_path)
    saved, hugging_face = Tokenizer.load(tmp_path), tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert saved.fingerprint == tok.fingerprint
    peer = tiktoken.Encoding(
        "random",
        pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        mergeable_ranks=ranks,
        special_tokens={},
    )
    for length in (1, 3, 8, 20, 60, 5000):
        for _ in range(40 if length < 5000 else 2):
            text = "".join(rng.choices("ab c" if length < 5000 else "ab", k=length))
            expected = peer.encode(text)
            assert tok.encode(text) == saved.encode(text) == hugging_face.encode(text).ids == expected
            assert tok.encode_to_numpy(text).tolist() == expected


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_both_merge_semantics_equal_tokenizers(seed, ignore_merges, tmp_path):
    """Merges are random, in random order, and no text reaches some of their tokens. Both semantics are kept."""
    rng = random.Random(seed)
    from tokenizer.formats.hugging_face import spell

    base = Tokenizer.train(["ab"], 256, special_tokens=(), byte_order="raw", min_frequency=1)
    base.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, merges = content["model"]["vocab"], []
    pieces = [spell(b) for b in (b"a", b"b", b"c", b" ")]
    for _ in range(60):
        left, right = rng.choice(pieces), rng.choice(pieces)
        if [left, right] in merges or len(left + right) > 8:
            continue
        merges.append([left, right])
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            pieces.append(left + right)
    rng.shuffle(merges)
    content["model"]["merges"] = merges
    content["model"]["ignore_merges"] = ignore_merges
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    tok, peer = Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))
    assert tok.vocabulary.semantics in ((WHOLE_FIRST, BY_MERGES) if ignore_merges else (BY_MERGES,))
    texts = ["".join(rng.choices("abc ", k=rng.choice((2, 5, 12, 50)))) for _ in range(400)]
    texts += ["".join(rng.choices("abc", k=6000))]
    for text in texts:
        assert tok.encode(text) == peer.encode(text).ids, text
    tok.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == tok.fingerprint
    assert [again.encode(text) for text in texts] == [tok.encode(text) for text in texts]
