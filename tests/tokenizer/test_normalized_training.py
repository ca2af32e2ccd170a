"""BPE is trained on normalized text, with the vocabulary and the ids of `tokenizers`."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tokenizer import PretokenCounts, Tokenizer, count_pretokens
from tokenizer.kinds.registry import resolve_splitter
from tokenizer.splitting.pretokenize import split

TEXTS = ["Ünïcode ﬁne Ａ½ CAFÉ cafe\u0301 Σίσυφος İstanbul", "it's 1234 ﬁnal ÉÉ\n\n  ok", "", "한글 각 A\u030a Å"] * 3
STEPS = {
    "nfc": [normalizers.NFC()],
    "nfkc": [normalizers.NFKC()],
    "lowercase": [normalizers.Lowercase()],
    "nfd+strip-accents+lowercase": [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()],
}


@pytest.mark.parametrize("names", STEPS)
def test_vocabulary_and_ids_are_those_of_tokenizers(names, tmp_path):
    peer = tokenizers.Tokenizer(models.BPE())
    peer.normalizer = normalizers.Sequence(STEPS[names])
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    peer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, min_frequency=2, initial_alphabet=alphabet))
    ours = Tokenizer.train(TEXTS, 300, f"{names}:gpt2", special_tokens=())
    assert ours.get_vocab() == peer.get_vocab()
    ours.save(tmp_path)
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert ours.encode(text) == peer.encode(text).ids == saved.encode(text).ids
        assert ours.decode(ours.encode(text)) == saved.decode(saved.encode(text).ids)
    assert Tokenizer.load(tmp_path).fingerprint == ours.fingerprint


def test_only_nfc_keeps_the_meaning_of_a_text():
    assert Tokenizer.train(TEXTS, 300, "nfc:gpt2").is_lossless
    assert not Tokenizer.train(TEXTS, 300, "nfkc:gpt2").is_lossless


def test_saved_counts_know_their_normalization(tmp_path):
    counts = count_pretokens(TEXTS, "nfkc+lowercase:cl100k")
    counts.save(tmp_path / "counts.parquet")
    loaded = PretokenCounts.load(tmp_path / "counts.parquet")
    assert str(loaded.pattern) == "nfkc+lowercase:cl100k"
    trained = Tokenizer.train_from_counts(loaded, 300)
    assert trained.fingerprint == Tokenizer.train(TEXTS, 300, "nfkc+lowercase:cl100k").fingerprint
    assert trained.encode("ＣＡＦÉ") == trained.encode("café")
    with pytest.raises(ValueError, match="pattern"):
        counts + count_pretokens(TEXTS, "cl100k")


@given(st.lists(st.text() | st.binary(), max_size=4), st.sampled_from(["nfc", "nfkd+lowercase", "nfd+strip-accents"]))
def test_counting_in_kernels_and_parts_equals_plain_python(texts, names):
    splitter = resolve_splitter(f"{names}:cl100k")
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        assert split(data, splitter) == [*splitter.pretokens(data)]


def test_long_documents_are_cut_where_normalization_allows_it():
    text = "Ça n'est pas un É\u0301 ﬁn " * 40_000
    assert resolve_splitter("nfkc+lowercase:cl100k").splits_at_spaces
    counts = count_pretokens([text], "nfkc+lowercase:cl100k", threads=2, memory=20_000_000)
    assert counts.total == len(split(text, resolve_splitter("nfkc+lowercase:cl100k")))


@pytest.mark.parametrize("pattern", ["nfx:cl100k", "nfc+:cl100k", "nfc:", "nfc:["])
def test_a_wrong_name_or_pattern_is_an_error(pattern):
    with pytest.raises(ValueError, match=r"pattern|normalization"):
        Tokenizer.train(["a"], 300, pattern, special_tokens=())
