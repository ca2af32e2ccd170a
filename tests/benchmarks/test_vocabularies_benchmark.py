"""benchmarks.vocabularies: what is measured, on small texts."""

import pytest

from benchmarks.vocabularies import documents_of, encoding, halves, measured, vocabularies_page, with_bpe_continue
from tokenizer import Tokenizer


@pytest.fixture
def texts(text_folder):
    return [path.read_text() for path in sorted(text_folder.glob("*.txt"))[:20]]


def test_documents_are_the_text_and_every_tenth_is_held_out(texts):
    text = "".join(texts)
    assert "".join(documents_of(text)) == text
    training, held_out = halves(text)
    assert sorted([*training, *held_out]) == sorted(documents_of(text))
    assert documents_of("") == []


def test_superwords_are_measured_beside_both_peers(texts, tmp_path):
    documents = texts[:6]
    base = Tokenizer.train(documents, 400, special_tokens=())
    joined = base.grow(documents, 440, superwords=4)
    peer = with_bpe_continue(base, joined, documents, tmp_path)
    assert peer.vocab_size == 440 and peer.vocabulary.tokens[:400] == base.vocabulary.tokens
    rows = [*encoding(joined, documents)]
    assert [row["what"] for row in rows[:2]] == ["encoding with bytelm", "encoding with tokenizers"]
    assert all(row["mb_per_second"] > 0 for row in rows)
    _, cost = measured(lambda: None)
    page = vocabularies_page([{"what": "grown", "entries": 440, "bytes_per_token": 3.5, **cost}, *rows], "command")
    assert "| grown | 440 |  | 3.500 |" in page
    assert "| encoding with bytelm |" in page


def test_no_encoder_has_read_the_documents_before_its_time_begins(texts, monkeypatch):
    documents, read = texts[:6], []
    encode, encode_ordinary = Tokenizer.encode, Tokenizer.encode_ordinary
    monkeypatch.setattr(Tokenizer, "encode", lambda tok, text: read.append(text) or encode(tok, text))
    monkeypatch.setattr(Tokenizer, "encode_ordinary", lambda tok, text: read.append(text) or encode_ordinary(tok, text))
    tok = Tokenizer.train(documents, 400, special_tokens=())
    assert next(encoding(tok, documents))["what"] == "encoding with bytelm"
    first = read.index(documents[0])
    assert read[first:] == documents and not any(documents[0] in text for text in read[:first])
