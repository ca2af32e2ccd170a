"""Offsets of encoded text are those of `tokenizers`, in the characters of the text as given."""

import unicodedata

import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors

from tests.tokenizer.test_added_tokens import PIECES, hugging_face
from tests.tokenizer.test_bert_words import hard_strings
from tokenizer import Tokenizer
from tokenizer.splitting.bert_splitter import NAMED_WORDS


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    """Return each trained tokenizer with itself in `tokenizers`."""
    pairs = {}
    for name, tok in trained.items():
        folder = tmp_path_factory.mktemp(name)
        tok.save(folder)
        pairs[name] = tok, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return pairs


def offsets(tok, text, **options):
    ids, found = tok.encode_with_offsets(text, **options)
    options.pop("trim_offsets", None)
    assert ids == tok.encode(text, **options)
    return found


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_offsets_of_random_strings_are_those_of_tokenizers(name, saved, random_strings, stdlib_texts):
    tok, peer = saved[name]
    texts = [*random_strings(5000, seed=5), *stdlib_texts[:5], "", "\x00", "😀" * 40, "e\u0301\u0323" * 9]
    for text, encoding in zip(texts, peer.encode_batch(texts, add_special_tokens=False), strict=True):
        assert offsets(tok, text, disallowed_special=()) == encoding.offsets, ascii(text)


@given(st.text(max_size=60))
@example("<|sep|> a<|pad|>")
def test_offsets_of_any_text_cover_it_and_count_bytes_if_it_is_bytes(saved, text):
    tok, peer = saved["gpt2"]
    assert offsets(tok, text, allowed_special="all") == peer.encode(text).offsets
    data = text.encode()
    spans = offsets(tok, data, disallowed_special=())
    assert b"".join(data[start:end] for start, end in spans) == data
    assert [len(tok.token_bytes(i)) for i in tok.encode_ordinary(data)] == [end - start for start, end in spans]


@pytest.fixture(scope="module", params=["bert-uncased", "bert-cased"])
def words(request, shared):
    path = str(shared / "vectors" / request.param / "vocab.txt")
    lowercase = request.param == "bert-uncased"
    peer = tokenizers.BertWordPieceTokenizer(path, lowercase=lowercase)
    return Tokenizer.load(path, pattern=request.param), peer


def in_order(text):
    """Return whether decomposition keeps the order of combining marks. The offsets of reordered ones differ."""
    cleaned = normalizers.BertNormalizer(handle_chinese_chars=False, strip_accents=False, lowercase=False)
    decompose = normalizers.NFD().normalize_str
    text = cleaned.normalize_str(text)
    return decompose(text) == "".join(map(decompose, text))


def test_offsets_of_words_are_those_of_tokenizers(words, random_strings):
    tok, peer = words
    texts = [*random_strings(1000, seed=8), *hard_strings(1000, 4, NAMED_WORDS[tok.pattern])]
    texts = [text for text in texts if in_order(text)]
    texts += ["Déjà VU cafe\u0301", "İstanbul ŒUVRE", "a\u200db\x00c", "日本 x", "", "[MASK] [UNK]", "ﬁx ①½ Ⅷ 한국어"]
    assert len(texts) > 1500
    for text, encoding in zip(texts, peer.encode_batch(texts, add_special_tokens=False), strict=True):
        assert offsets(tok, text, allowed_special="all") == encoding.offsets, ascii(text)


@given(st.text(max_size=60))
def test_offsets_of_any_words_are_those_of_tokenizers(words, text):
    tok, peer = words
    encoding = peer.encode(text, add_special_tokens=False)
    spans = offsets(tok, text, allowed_special="all")
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assume(in_order(text))
    assert spans == encoding.offsets


def test_words_of_bytes_have_offsets_in_bytes(words):
    tok, _ = words
    data = "Déjà 字".encode() + b"\xff x\xe2\x82y"
    ids, spans = tok.encode_with_offsets(data)
    assert ids == tok.encode(data)
    parts = [data[start:end] for start, end in spans]
    assert b"".join(parts[:-3]) == "Déjà".encode()
    assert spans[-1][1] == len(data)


@pytest.mark.parametrize("prefix", [False, True])
def test_special_tokens_and_added_spaces_have_the_offsets_of_tokenizers(prefix, tmp_path):
    peer = hugging_face(tmp_path / "tokenizer.json", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=prefix))
    tok = Tokenizer.load(tmp_path)

    @settings(max_examples=300)
    @given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
    def check(text):
        assert offsets(tok, text, allowed_special="all") == peer.encode(text).offsets

    check()


def test_composed_characters_have_the_offsets_of_all_their_parts(tmp_path):
    peer = hugging_face(tmp_path / "tokenizer.json", normalizers.NFC(), [AddedToken("<x>", normalized=False)])
    tok = Tokenizer.load(tmp_path)
    assert offsets(tok, "ae\u0301b")[1:3] == [(1, 3), (1, 3)]
    assert offsets(tok, "\u1112\u1161\u11abz") == [(0, 3)] * 3 + [(3, 4)]
    assert offsets(tok, b"e\xcc\x81") == [(0, 3)] * 2

    @settings(max_examples=300)
    @given(st.text(st.sampled_from("aeé\u0301\u0323\u0307\u1112\u1161\u11ab\u212b\u0344\u0958字 \n"), max_size=12))
    def check(text):
        ours, theirs = offsets(tok, text), peer.encode(text).offsets
        if unicodedata.is_normalized("NFC", text):
            assert ours == theirs
        assert all(
            start <= other and end >= other_end for (start, end), (other, other_end) in zip(ours, theirs, strict=True)
        )

    check()


def test_a_text_not_in_nfc_has_no_offsets_around_tokens_of_the_normalized_text(tmp_path):
    peer = hugging_face(tmp_path / "tokenizer.json", normalizers.NFC())
    tok = Tokenizer.load(tmp_path)
    text = "é <normal> <plain>café"
    assert offsets(tok, text, allowed_special="all") == peer.encode(text).offsets
    with pytest.raises(ValueError, match="the text is not in NFC"):
        tok.encode_with_offsets("e\u0301 <normal>", allowed_special="all")
    assert offsets(tok, "e\u0301 <plain>", allowed_special={"<plain>"})[-1] == (3, 10)


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_trimmed_offsets_are_those_of_tokenizers(name, saved, random_strings):
    tok, _ = saved[name]
    peer = tokenizers.Tokenizer.from_str(saved[name][1].to_str())
    peer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    texts = [*random_strings(1500, seed=6), "", "   ", " a  b \n c ", "é  字 <|endoftext|>  x"]
    for text, encoding in zip(texts, peer.encode_batch(texts), strict=True):
        assert offsets(tok, text, allowed_special="all", trim_offsets=True) == encoding.offsets, ascii(text)
