"""BERT's words equal those of BertNormalizer and BertPreTokenizer in tokenizers."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from tokenizer import PretokenCounts, Tokenizer, count_pretokens
from tokenizer.splitting.bert_characters import MARK, SURROGATES, WORD, characters, probe_tokenizers, stored_tables
from tokenizer.splitting.bert_splitter import NAMED_WORDS, BertWords, words_of
from tokenizer.splitting.pretokenize import split

EVERY_OPTION = [BertWords(*options) for options in itertools.product((True, False), repeat=4)]
UNCASED, CASED = NAMED_WORDS["bert-uncased"], NAMED_WORDS["bert-cased"]
ASCII = "The quick BROWN fox, jumps over 13 lazy dogs...\tand\r\nso on; ok_ok 'tis (that) "


def words_of_tokenizers(text, words):
    """Return the words of tokenizers with the same options."""
    normalizer = normalizers.BertNormalizer(
        clean_text=words.clean_text,
        handle_chinese_chars=words.chinese,
        strip_accents=words.strip_accents,
        lowercase=words.lowercase,
    )
    pieces = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))
    return [piece.encode() for piece, _ in pieces]


def assert_equal_words(text, words):
    theirs = words_of_tokenizers(text, words)
    assert split(text, words) == theirs, (words, ascii(text))
    assert list(words.pretokens(text.encode())) == theirs, (words, ascii(text))


def code_points_of_every_kind(words):
    """Return the first and last 16 code points of each run of one class."""
    kept, place = [], 0
    for _, run in itertools.groupby(words.characters.classes):
        length = sum(1 for _ in run)
        kept += [*range(place, place + min(length, 16)), *range(place + max(16, length - 16), place + length)]
        place += length
    return [c for c in kept if c not in SURROGATES]


@pytest.mark.parametrize("words", EVERY_OPTION, ids=str)
def test_code_points_of_every_class_give_the_words_of_tokenizers(words):
    assert_equal_words(" ".join(f"x{chr(c)}X{chr(c)}" for c in code_points_of_every_kind(words)), words)


@pytest.mark.slow
@pytest.mark.parametrize("words", EVERY_OPTION, ids=str)
def test_every_code_point_gives_the_words_of_tokenizers(words):
    everything = [chr(c) for c in range(0x110000) if c not in SURROGATES]
    for first in range(0, len(everything), 1 << 16):
        assert_equal_words(" ".join(f"x{c}X{c}" for c in everything[first : first + (1 << 16)]), words)


@pytest.mark.slow
def test_committed_tables_equal_those_of_the_installed_tokenizers():
    assert stored_tables() == probe_tokenizers()


def hard_strings(count, seed, words):
    """Return random strings of ASCII text, code points that normalization changes, and unordered combining marks."""
    rng = random.Random(seed)
    found = words.characters
    changing = [c for c, kind in enumerate(found.classes) if kind != WORD and not 0xE000 <= c < 0xF900][::3]
    marks = [*characters(True, True, True, True).combining_classes, *range(0x300, 0x330)]
    anywhere = [*range(0x20, 0x7F)] * 20 + [rng.randrange(0xE000, 0x110000) for _ in range(200)]
    pools = [changing, marks, anywhere, [*range(0x80, 0x530)], [*range(0xA0, 0xD800)]]
    for number in range(count):
        pool = pools if number % 2 else [rng.choice(pools), anywhere]
        text = "".join(chr(rng.choice(rng.choice(pool))) for _ in range(rng.randrange(60)))
        start = rng.randrange(len(ASCII))
        text = "".join(c for c in text if ord(c) not in SURROGATES)
        yield text + ASCII[start:] + text[::-1] + ASCII[:start] if number % 3 == 0 else text


@pytest.mark.parametrize("words", [UNCASED, CASED, BertWords(False, True, False, False)], ids=str)
def test_hard_random_strings_give_the_words_of_tokenizers(words):
    for text in hard_strings(3000, 1, words):
        assert_equal_words(text, words)


@pytest.mark.slow
@pytest.mark.parametrize("words", EVERY_OPTION, ids=str)
def test_a_million_hard_strings_in_all_give_the_words_of_tokenizers_with_every_option(words):
    for number, text in enumerate(hard_strings(62_500, 20 + EVERY_OPTION.index(words), words)):
        theirs = words_of_tokenizers(text, words)
        assert split(text, words) == theirs, (number, ascii(text))


@given(st.text(max_size=80), st.sampled_from(EVERY_OPTION))
@example("a\u0323\u0301\U0001d165\U0001d16d\u302e", UNCASED)
@example("\U0001d160\u302e\U0001d16d\u302e\u0345\u09bc\u302e", UNCASED)
@example("\u302e\u200d\U0001d165 \u302e\u0903\U0001d165", UNCASED)
def test_words_of_any_text_are_those_of_tokenizers(text, words):
    assert_equal_words(text, words)


def test_a_long_run_of_unordered_marks_takes_linear_time():
    text = "a" + "\u302e\U0001d165" * 200_000
    assert split(text, UNCASED) == [("a" + "\U0001d165" * 200_000 + "\u302e" * 200_000).encode()]
    assert UNCASED.characters.classes[0x302E] == MARK


@given(st.binary(max_size=100))
@example(b"a\xffb \xc3 \xe2\x82 \xf0\x9f\x98 \xed\xa0\x80 \xc0\x80 \xf4\x90\x80\x80")
@example(b"0123456789" * 10 + b"\xe2\x82")
def test_a_byte_of_invalid_utf8_vanishes_as_the_replacement_character_does(data):
    for words in (UNCASED, CASED):
        expected = words_of_tokenizers(data.decode(errors="replace"), words)
        assert split(data, words) == expected
        assert list(words.pretokens(data)) == expected


def test_without_clean_text_each_byte_of_invalid_utf8_is_one_replacement_character():
    words = BertWords(lowercase=True, strip_accents=True, clean_text=False, chinese=True)
    data = b"a\xff\xe2\x82b \x00"
    assert split(data, words) == list(words.pretokens(data)) == ["a\ufffd\ufffd\ufffdb".encode(), b"\0"]


def test_counts_equal_those_of_tokenizers_for_any_number_of_threads(stdlib_texts):
    texts = [*stdlib_texts[:60], "", " \n", "日本 Déjà", "\u302e"]
    expected = Counter(word for text in texts for word in words_of_tokenizers(text, UNCASED))
    for threads in (1, 2):
        assert dict(count_pretokens(texts, "bert-uncased", threads=threads).items()) == expected


def test_saved_counts_keep_the_kind_of_words(tmp_path):
    for words in ("bert-uncased", "bert-cased", BertWords(True, False, True, False)):
        counts = count_pretokens(["Déjà vu, Déjà"], words)
        counts.save(tmp_path / "counts.parquet")
        loaded = PretokenCounts.load(tmp_path / "counts.parquet")
        assert loaded == counts
        assert loaded.pattern == words_of(str(words))


def test_byte_level_training_refuses_bert_words():
    with pytest.raises(ValueError, match="bpe needs a pattern such as cl100k, not bert-cased"):
        Tokenizer.train_from_counts(count_pretokens(["a b"], "bert-cased"), 300)
