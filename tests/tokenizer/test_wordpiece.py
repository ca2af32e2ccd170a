"""WordPiece ids, decoded texts and files equal those of tokenizers and transformers."""

import json
import lzma
import pickle
import random
import subprocess
import sys
from itertools import pairwise

import pyarrow as pa
import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer.test_bert_words import hard_strings
from tokenizer import PatternNeededError, Tokenizer
from tokenizer.splitting.bert_splitter import NAMED_WORDS, BertWords

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def vocabulary(stdlib_texts, tmp_path_factory):
    """Return the path of a vocab.txt that tokenizers trained on source code and nasty characters."""
    hard = [*hard_strings(200, 5, NAMED_WORDS["bert-uncased"]), *hard_strings(200, 6, NAMED_WORDS["bert-cased"])]
    trained = tokenizers.BertWordPieceTokenizer(lowercase=False)
    trained.train_from_iterator(stdlib_texts[:60] + hard, vocab_size=2500, show_progress=False, special_tokens=SPECIAL)
    folder = tmp_path_factory.mktemp("vocabulary")
    trained.save_model(str(folder))
    return folder / "vocab.txt"


def peer_of(path, words):
    return tokenizers.BertWordPieceTokenizer(
        str(path),
        lowercase=words.lowercase,
        strip_accents=words.strip_accents,
        clean_text=words.clean_text,
        handle_chinese_chars=words.chinese,
    )


@pytest.fixture(scope="module", params=["bert-uncased", "bert-cased"])
def both(request, vocabulary):
    """Return our tokenizer and that of tokenizers."""
    return Tokenizer.load(vocabulary, pattern=request.param), peer_of(vocabulary, NAMED_WORDS[request.param])


def peer_ids(peer, texts):
    return [encoding.ids for encoding in peer.encode_batch(texts, add_special_tokens=False)]


def assert_equal_ids(both, texts):
    ours, peer = both
    for text, mine, theirs in zip(
        texts, ours.encode_batch(texts, disallowed_special=()), peer_ids(peer, texts), strict=True
    ):
        assert mine == theirs, ascii(text)


def plain(texts):
    """Return the texts without spellings of special tokens, which tokenizers always cuts out."""
    return [text for text in texts if not any(token in text for token in SPECIAL)]


def test_ids_of_20_000_random_strings_are_those_of_tokenizers(both, random_strings):
    assert_equal_ids(both, random_strings(10_000, 3))
    assert_equal_ids(both, plain(hard_strings(10_000, 4, NAMED_WORDS[both[0].pattern])))


@pytest.mark.slow
def test_ids_of_a_million_random_strings_are_those_of_tokenizers(both, random_strings):
    for seed in range(10):
        assert_equal_ids(both, random_strings(50_000, 100 + seed))
        assert_equal_ids(both, plain(hard_strings(50_000, 200 + seed, NAMED_WORDS[both[0].pattern])))


@given(text=st.text(max_size=200).filter(lambda text: plain([text])))
def test_ids_of_any_text_are_those_of_tokenizers_by_every_way_to_encode(both, text):
    ours, peer = both
    expected = peer.encode(text, add_special_tokens=False).ids
    assert ours.encode_ordinary(text) == expected
    assert ours.encode_to_numpy(text, disallowed_special=()).tolist() == expected
    plain_python = Tokenizer(ours.vocabulary)
    assert plain_python.encode_ordinary(text) == expected


def test_every_way_to_encode_a_long_text_gives_the_same_ids(both, stdlib_texts, tmp_path):
    ours, peer = both
    texts = plain([*stdlib_texts[60:160], "", "日本 Déjà " * 1000, "x" * 10_000, "\u0301 \u302e", "a\u200db"])
    expected = peer_ids(peer, texts)
    assert ours.encode_batch(texts, threads=2) == expected
    assert ours.encode_arrow(pa.array(texts), threads=2).to_pylist() == expected
    whole = "\n".join(texts)
    (tmp_path / "text.txt").write_bytes(whole.encode())
    together = [i for ids in expected for i in ids]
    for threads in (1, 2, 3):
        assert ours.encode_file(tmp_path / "text.txt", threads=threads).tolist() == together
    assert [i for part in ours.encode_in_parts(whole) for i in part.tolist()] == together
    cuts = [0, *ours.cuts(whole.encode(), 50_000), len(whole.encode())]
    assert len(cuts) > 5
    pieces = [whole.encode()[start:end] for start, end in pairwise(cuts)]
    assert [i for piece in pieces for i in ours.encode_ordinary(piece)] == together


@pytest.mark.parametrize("name", ["bert-uncased", "bert-cased"])
@pytest.mark.parametrize("corpus", ["books", "multilingual"])
def test_ids_of_whole_files_are_those_of_tokenizers_with_the_published_vocabularies(shared, name, corpus):
    path = shared / "vectors" / name / "vocab.txt"
    with lzma.open(shared / "corpora" / f"{corpus}.jsonl.xz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"][:200_000] for line, _ in zip(file, range(400), strict=False)][
            :: 1 if corpus == "multilingual" else 20
        ]
    texts = plain([text[:20_000] for text in texts])
    ours, peer = Tokenizer.load(path, pattern=name), peer_of(path, NAMED_WORDS[name])
    assert ours.encode_batch(texts) == peer_ids(peer, texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-uncased", "bert-cased"])
@pytest.mark.parametrize("corpus", ["books", "multilingual"])
def test_ids_of_every_line_of_the_corpora_are_those_of_tokenizers_with_the_published_vocabularies(shared, name, corpus):
    path = shared / "vectors" / name / "vocab.txt"
    ours, peer = Tokenizer.load(path, pattern=name), peer_of(path, NAMED_WORDS[name])
    with lzma.open(shared / "corpora" / f"{corpus}.jsonl.xz", "rt", encoding="utf-8") as file:
        for line in file:
            texts = plain(json.loads(line)["text"].split("\n"))
            expected = peer_ids(peer, texts)
            assert ours.encode_batch(texts) == expected
            assert ours.encode_to_numpy("\n".join(texts)).tolist() == [i for ids in expected for i in ids]


def test_words_of_100_code_points_are_encoded_and_longer_ones_are_unknown(both):
    ours, peer = both
    unknown = ours.special_tokens["[UNK]"]
    for character in ("a", "é", "字", "𝅘"):
        for length in (99, 100, 101, 1000, 5000):
            text = character * length
            ids = ours.encode(text)
            assert ids == peer.encode(text, add_special_tokens=False).ids == Tokenizer(ours.vocabulary).encode(text)
    assert ours.encode("a" * 101) == [unknown]
    assert ours.encode("a" * 100) != [unknown]


def test_a_word_with_an_unknown_part_is_one_unknown_token(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\nab\n##c\n##cd\na\n")
    ours = Tokenizer.load(tmp_path / "vocab.txt", pattern="bert-cased")
    assert ours.encode("abc abcd abcdc abx x ab c") == [1, 2, 1, 3, 1, 3, 2, 0, 0, 1, 0]
    assert ours.decode(ours.encode("abc a")) == "abc a"


@given(ids=st.lists(st.integers(0, 2499), max_size=20))
def test_decoded_texts_are_those_of_tokenizers(both, ids):
    ours, peer = both
    ids = [i for i in ids if i < ours.vocab_size]
    expected = peer.decode(ids, skip_special_tokens=False)
    assert ours.decode(ids) == expected
    assert ours.decode_bytes(ids) == expected.encode()
    assert ours.decode_bytes(ids[:1]) + b"".join(map(ours.added_bytes, ids[1:])) == expected.encode()
    assert ours.decode(ids, skip_special_tokens=True) == peer.decode(ids)
    pieces = ours.decode_tokens_bytes(ids)
    assert b"".join(pieces) == expected.encode()
    offsets = [len(b"".join(pieces[:number]).decode()) for number in range(len(ids))]
    assert ours.decode_with_offsets(ids) == (expected, offsets)


def test_decoding_joins_punctuation_and_contractions_as_tokenizers_does(tmp_path):
    tokens = [
        "[UNK]",
        "do",
        "not",
        ".",
        "?",
        "!",
        ",",
        "'",
        "n't",
        "'m",
        "do not",
        "'s",
        "'ve",
        "'re",
        "##.",
        "##",
        "####",
        "a ##",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    ours = Tokenizer.load(tmp_path / "vocab.txt", pattern="bert-cased")
    decoder = tokenizers.decoders.WordPiece()
    rng = random.Random(1)
    for _ in range(2000):
        ids = rng.choices(range(len(tokens)), k=rng.randrange(1, 8))
        assert ours.decode(ids) == decoder.decode([tokens[i] for i in ids])


def test_a_saved_tokenizer_opens_in_tokenizers_and_transformers_with_the_same_ids(both, random_strings, tmp_path):
    ours, _ = both
    ours.save(tmp_path)
    texts = random_strings(300, 8)
    expected = ours.encode_batch(texts)
    loaded = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert peer_ids(loaded, texts) == expected
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert fast(texts, add_special_tokens=False)["input_ids"] == expected
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert again.encode_batch(texts) == expected
    assert loaded.decode(expected[0], skip_special_tokens=False) == again.decode(expected[0])


@pytest.mark.parametrize("words", [BertWords(True, False, False, True), BertWords(False, True, True, False)], ids=str)
def test_tokenizer_json_keeps_every_option(vocabulary, words, tmp_path):
    peer = peer_of(vocabulary, words)
    peer.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    assert ours.vocabulary.pattern == words
    texts = plain(hard_strings(500, 9, words))
    assert ours.encode_batch(texts) == peer_ids(peer, texts)
    assert ours.fingerprint != Tokenizer.load(vocabulary, pattern="bert-cased").fingerprint
    ours.save(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "tokenizer.json").read_text(encoding="utf-8"))
    theirs = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert saved["model"] == theirs["model"]
    assert saved["post_processor"] == theirs["post_processor"]


def test_special_tokens_follow_the_rule_of_special_tokens(both):
    ours, peer = both
    with pytest.raises(ValueError, match=r"special token '\[MASK\]' at byte 2"):
        ours.encode("a [MASK] b")
    text = "a [MASK] b[SEP]c"
    assert ours.encode(text, allowed_special="all") == peer.encode(text, add_special_tokens=False).ids
    assert ours.encode("[MASK]", disallowed_special=()) == ours.encode_ordinary("[ MASK ]")


def test_the_folder_of_a_transformers_bert_is_read_with_its_casing(vocabulary, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(vocabulary.read_bytes())
    for lower, strip in ((True, None), (False, None), (True, False)):
        config = {"do_lower_case": lower, "strip_accents": strip, "tokenizer_class": "BertTokenizer"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        ours = Tokenizer.load(tmp_path)
        peer = tokenizers.BertWordPieceTokenizer(str(vocabulary), lowercase=lower, strip_accents=strip)
        texts = ["Déjà VU", "Ünïcode 日本"]
        assert ours.encode_batch(texts) == peer_ids(peer, texts)
        assert set(ours.special_tokens) == set(SPECIAL)


def test_invalid_utf8_is_read_as_the_replacement_character(both):
    ours, peer = both
    for data in (b"caf\xe9 x", b"\xff", b"a\xe2\x82 b\xf0\x9f", b"\xed\xa0\x80x"):
        expected = peer.encode(data.decode(errors="replace"), add_special_tokens=False).ids
        assert ours.encode_ordinary(data) == ours.encode_to_numpy(data).tolist() == expected


def test_properties_say_that_text_is_lost(both):
    ours, _ = both
    assert (ours.kind, ours.is_lossless, ours.merges) == ("wordpiece", False, [])
    with pytest.raises(ValueError, match="have no fixed number of bytes"):
        _ = ours.token_byte_lengths
    token = ours.encode("self")[0]
    assert ours.token_bytes(token) == b"self"
    assert pickle.loads(pickle.dumps(ours)).encode("selfish") == ours.encode("selfish")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\nb\n", r"no '\[UNK\]'.*is it a WordPiece vocabulary"),
        ("[UNK]\na\n\nb\n", "empty line, number 3"),
        ("[UNK]\na\nb\na\n", "'a' twice, in lines 2 and 4"),
        ("", "empty line, number 1"),
        ("[UNK]\n" + "a" * 5000, "a token of 5,000 characters"),
        (b"\x7fELF\x02\x01\x01\0\xff\xfe" * 1000, "is not UTF-8 at byte 8"),
    ],
)
def test_a_damaged_vocab_txt_is_refused_in_a_sentence(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=rf"vocab.txt.*{message}"):
        Tokenizer.load(tmp_path / "vocab.txt", pattern="bert-cased")


def test_a_line_of_a_gigabyte_is_refused_unread(tmp_path):
    with (tmp_path / "vocab.txt").open("wb") as file:
        file.write(b"[UNK]\na")
        file.truncate(10**9)
    with pytest.raises(ValueError, match=r"vocab.txt: has 1,000,000,000 bytes, more than the limit"):
        Tokenizer.load(tmp_path / "vocab.txt", pattern="bert-cased")


def test_vocab_txt_alone_does_not_say_how_text_becomes_words(vocabulary):
    with pytest.raises(PatternNeededError, match="pass pattern= with bert-uncased or bert-cased"):
        Tokenizer.load(vocabulary)
    with pytest.raises(ValueError, match="pattern must be one of bert-uncased, bert-cased, not cl100k"):
        Tokenizer.load(vocabulary, pattern="cl100k")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("normalizer",), {"type": "NFX"}, "normalizer of type NFX"),
        (("normalizer", "lowercase"), "yes", "a normalizer with lowercase = 'yes'"),
        (("pre_tokenizer",), {"type": "Spaces"}, "pre_tokenizer of type Spaces, which is not supported"),
        (("decoder",), {"type": "Bytes"}, "decoder of type Bytes"),
        (("decoder", "prefix"), 7, "a decoder WordPiece with prefix = 7"),
        (("model", "vocab"), ["a"], "model.vocab, or it is not an object"),
        (("model", "vocab"), {"a": 0}, r"no '\[UNK\]' in model.vocab"),
        (("model", "vocab"), {"[UNK]": 0, "a": 10**9}, "the id 1000000000"),
        (("model", "vocab"), {"[UNK]": 0, "a": 2**31 - 1}, "the id 2147483647"),
        (("model", "vocab"), {"[UNK]": 0, "a": 2**24 - 1}, "ids up to 16777215 are too large for 2 tokens"),
        (("model", "vocab"), {"[UNK]": 0, "a": True}, "the id True for 'a'"),
        (("model", "vocab"), {"[UNK]": 6, "a": 6}, "gives the id 6 twice"),
        (("model", "continuing_subword_prefix"), "#" * 10**6, r"continuing_subword_prefix '#{20,100}\.\.\.$"),
        (("model", "vocab"), {"[UNK]": 0, "\ud800": 6}, "lone surrogate"),
        (("model", "unk_token"), 7, "model.unk_token = 7"),
        (("model", "max_input_chars_per_word"), -1, "max_input_chars_per_word = -1"),
        (("model", "continuing_subword_prefix"), None, "continuing_subword_prefix = None"),
        (("truncation",), {"max_length": 3}, "has a truncation"),
    ],
)
def test_a_damaged_tokenizer_json_is_refused_in_a_sentence(vocabulary, tmp_path, path, value, message):
    Tokenizer.load(vocabulary, pattern="bert-cased").save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content |= {"added_tokens": [], "post_processor": None}
    place = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"tokenizer.json: .*{message}"):
        Tokenizer.load(tmp_path)


def test_a_short_text_is_encoded_without_numba_or_numpy(vocabulary):
    code = f"""
import sys
from tokenizer import Tokenizer
tok = Tokenizer.load({str(vocabulary)!r}, pattern="bert-uncased")
assert tok.decode(tok.encode("self def")) == "self def"
assert not {{"numba", "numpy"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
