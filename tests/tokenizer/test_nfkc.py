"""The maps `nfkc` and `nmt_nfkc` normalize as sentencepiece does, and as the published files of T5 do."""

import base64
import hashlib
import io
import json
import random
import unicodedata

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tokenizers import normalizers

from tokenizer import Tokenizer, count_pretokens
from tokenizer.splitting.nfkc import named_map, nfkc_replacements

CODE_POINTS = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
DIGESTS = {
    "nfkc": "20afb94a837d5dadf90208996efea0ef9b47ab3fe7076bf0fa7590120e3d799b",
    "nmt_nfkc": "7ad5b1b1da4e40dcef56d9f3a9280434464c5c2af386a34ea3b92b0fde7816ee",
}


def model_with(compiled):
    """Return the sentencepiece model that normalizes with a map alone."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abc abd"] * 9),
        model_writer=written,
        vocab_size=12,
        hard_vocab_limit=False,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        minloglevel=3,
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    model.normalizer_spec.precompiled_charsmap = compiled
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def differences(one, other, texts):
    """Return a few texts that two normalizers change differently, with their results."""
    results = zip(texts, one.Normalize(texts), other.Normalize(texts), strict=True)
    return [result for result in results if result[1] != result[2]][:5]


@pytest.fixture(scope="module", params=DIGESTS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def ours(name):
    """Return sentencepiece with our map."""
    return model_with(named_map(name).compiled)


@pytest.fixture(scope="module")
def theirs(name):
    """Return sentencepiece with its map of the name."""
    return sentencepiece.SentencePieceNormalizer(
        rule_name=name, add_dummy_prefix=False, remove_extra_whitespaces=False, escape_whitespaces=True
    )


@pytest.fixture(scope="module")
def newer(ours, theirs):
    """Return the characters that sentencepiece changes and our map does not know."""
    texts = [f"a{c}b" for c in CODE_POINTS]
    pairs = zip(CODE_POINTS, ours.Normalize(texts), theirs.Normalize(texts), strict=True)
    return {c: (found, expected) for c, found, expected in pairs if found != expected}


def test_every_code_point_is_normalized_as_by_sentencepiece_but_newer_ones(newer):
    assert len(newer) < 200
    for c in newer.keys() - {"\u200d"}:  # which sentencepiece 0.2.3 keeps
        found, _ = newer[c]
        assert found == f"a{c}b"
        assert unicodedata.ucd_3_2_0.category(c) == "Cn"


def test_sequences_are_normalized_as_by_sentencepiece(ours, theirs, newer):
    generator = random.Random(0)
    keys = generator.sample(sorted(nfkc_replacements()), 5000)
    marks = [c for c in CODE_POINTS if unicodedata.combining(c) and c not in newer]
    changed = [c for c in CODE_POINTS if unicodedata.normalize("NFKC", c) != c and c not in newer]
    pools = [keys, marks, changed, [*"aeoAω가각각ｶﾞ ~～\t\n\r\0"], [c for c in CODE_POINTS if c not in newer]]
    texts = ["".join(generator.choice(generator.choice(pools)) for _ in range(20)) for _ in range(5000)]
    assert differences(ours, theirs, texts) == []


def test_the_map_is_the_same_on_every_python(name):
    assert hashlib.sha256(named_map(name).compiled).hexdigest() == DIGESTS[name]


@given(st.lists(st.one_of(st.text(max_size=3), st.sampled_from(["e\u0301", "\uff21\u030a", "가", "ｶﾞ", "～", "\x85"]))))
def test_our_reader_and_tokenizers_read_the_map_alike(parts):
    text = "".join(parts)
    characters = named_map("nmt_nfkc")
    assert characters.normalize(text) == normalizers.Precompiled(characters.compiled).normalize_str(text)


def test_nmt_nfkc_is_the_map_of_the_published_files(shared):
    content = json.loads((shared / "vectors/t5-small/tokenizer.json").read_text())
    published = model_with(base64.b64decode(content["normalizer"]["precompiled_charsmap"]))
    ours = model_with(named_map("nmt_nfkc").compiled)
    texts = [*(f"a{c}b" for c in CODE_POINTS), *nfkc_replacements()]
    assert differences(ours, published, texts) == []


@pytest.fixture(scope="module")
def trained():
    texts = ["The ﬁrst ｆｕｌｌ word … ½ of Ångström\u00a0A\u030angström ① ㎏ e\u0301té été", "the word of the first"]
    return Tokenizer.train(texts * 20, 60, pattern="nmt_nfkc", kind="unigram"), texts * 20


def test_a_trained_vocabulary_normalizes_and_tokenizers_reads_its_file(trained, tmp_path, random_strings):
    tok, texts = trained
    tok.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.load(tmp_path)
    assert again == tok
    assert tok.encode("ｆｕｌｌ ﬁrst") == tok.encode("full first")
    assert tok.encode("été") == tok.encode("e\u0301te\u0301")
    for text in [*texts[:2], *random_strings(300, 1), "e\u0301\u0323", "\x07\x01a\u200bb", "~～"]:
        assert again.encode_ordinary(text) == peer.encode(text, add_special_tokens=False).ids


def test_counts_of_a_normalized_corpus_give_the_same_vocabulary(trained, tmp_path):
    from tokenizer import PretokenCounts

    tok, texts = trained
    count_pretokens(texts, "nmt_nfkc").save(tmp_path / "counts.parquet")
    counts = PretokenCounts.load(tmp_path / "counts.parquet")
    assert Tokenizer.train_from_counts(counts, 60, kind="unigram") == tok


def test_other_kinds_refuse_the_names():
    with pytest.raises(ValueError, match="bpe needs a pattern such as cl100k"):
        Tokenizer.train(["a"], 300, pattern="nfkc")
