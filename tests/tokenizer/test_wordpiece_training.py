"""WordPiece training gives the vocabulary of tokenizers, entry by entry, and that of a slow reference."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from pipelines.verbs.train_tokenizer import train_tokenizer
from tests.tokenizer.test_bert_words import hard_strings
from tokenizer import DEFAULT_SPECIAL_TOKENS, Tokenizer, count_pretokens
from tokenizer.splitting.bert_splitter import NAMED_WORDS

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out")


def peer_vocabulary(texts, size, min_frequency=2, cased=False, limit_alphabet=10**6):
    """Return the tokens of a vocabulary that tokenizers trained, in the order of their ids."""
    peer = tokenizers.BertWordPieceTokenizer(lowercase=not cased)
    options = {"limit_alphabet": limit_alphabet, "show_progress": False, "special_tokens": ["[PAD]", "[UNK]"]}
    peer.train_from_iterator(texts, vocab_size=size, min_frequency=min_frequency, **options)
    return [token for token, _ in sorted(peer.get_vocab().items(), key=lambda item: item[1])]


def order_of(vocabulary):
    """Return the characters that continue words in the order of their ids."""
    return "".join(token[2:] for token in vocabulary if token.startswith("##") and len(token) == 3)


def trained(texts, size, **options):
    options = {"special_tokens": ["[PAD]", "[UNK]"], "kind": "wordpiece", "threads": 1} | options
    return list(Tokenizer.train(texts, size, **options).vocabulary.ids)


def reference(counts, size, min_frequency, special_tokens, order=None):
    """Train by the book: recount every pair before every merge. counts: {word: occurrences}.

    A pair that was merged before and occurs again counts with its merged occurrences, as in tokenizers.
    """
    alphabet = sorted({c for word in counts for c in word})
    later = order or sorted({c for word in counts for c in word[1:]})
    ids = {token: i for i, token in enumerate([*special_tokens, *alphabet, *("##" + c for c in later)])}
    words = {word: [word[0], *("##" + c for c in word[1:])] for word in counts}
    merged = Counter()
    while len(ids) < size:
        pairs, present = Counter(merged), set()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
                present.add(pair)
        best = min(present, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]), default=None)
        if best is None or pairs[best] < max(1, min_frequency):
            break
        token = best[0] + best[1].removeprefix("##")
        ids.setdefault(token, len(ids))
        for word, parts in words.items():
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [token]
                    merged[best] += counts[word]
                i += 1
    return list(ids)


@pytest.mark.parametrize("cased", [False, True])
@pytest.mark.parametrize("min_frequency", [0, 2, 5])
def test_vocabulary_is_that_of_tokenizers_given_its_order(stdlib_texts, cased, min_frequency):
    texts = [line for text in stdlib_texts[:25] for line in text.split("\n")]
    theirs = peer_vocabulary(texts, 3000, min_frequency, cased)
    pattern = "bert-cased" if cased else "bert-uncased"
    options = {"min_frequency": min_frequency, "pattern": pattern, "alphabet_order": order_of(theirs)}
    assert trained(texts, 3000, **options) == theirs


def test_vocabulary_of_hard_strings_is_that_of_tokenizers_until_pairs_run_out():
    texts = list(hard_strings(400, 3, NAMED_WORDS["bert-uncased"])) + ["aaaaa aaaa aaa abababab ba"] * 3
    theirs = peer_vocabulary(texts, 20_000)
    assert len(theirs) < 20_000
    assert trained(texts, 20_000, alphabet_order=order_of(theirs)) == theirs


@given(st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=8), st.integers(0, 3))
def test_words_of_two_letters_train_as_in_the_reference_and_in_tokenizers(words, min_frequency):
    texts = [" ".join(words)]
    counts = Counter(words)
    ours = trained(texts, 60, min_frequency=min_frequency)
    assert ours == reference(counts, 60, min_frequency, ["[PAD]", "[UNK]"])
    theirs = peer_vocabulary(texts, 60, min_frequency)
    assert trained(texts, 60, min_frequency=min_frequency, alphabet_order=order_of(theirs)) == theirs


def test_random_words_train_as_in_the_reference():
    rng = random.Random(4)
    for letters in ("abc", "abcdefgh"):
        words = ["".join(rng.choices(letters, k=rng.randrange(1, 12))) for _ in range(150)]
        expected = reference(Counter(words), 220, 2, ["[PAD]", "[UNK]"])
        assert trained([" ".join(words)], 220) == expected


def test_counts_beyond_32_bits_keep_the_most_frequent_pair():
    counts = count_pretokens(["the cat"] * 3 + ["a bc bc"] * 2, "bert-uncased")
    counts.counts = counts.counts * 2**31
    tokens = list(Tokenizer.train_from_counts(counts, 26, special_tokens=(), kind="wordpiece").vocabulary.ids)
    small = count_pretokens(["the cat"] * 3 + ["a bc bc"] * 2, "bert-uncased")
    assert tokens == list(Tokenizer.train_from_counts(small, 26, special_tokens=(), kind="wordpiece").vocabulary.ids)


def test_threads_batches_and_order_of_documents_do_not_change_the_vocabulary(stdlib_texts):
    texts = stdlib_texts[:30]
    expected = trained(texts, 1500)
    assert trained(texts[::-1], 1500, threads=2) == expected
    assert trained(["\n".join(texts)], 1500, threads=2, memory=16_000_000 * 10) == expected


def test_the_alphabet_can_be_limited_to_the_most_frequent_characters():
    texts = ["aaa aab xyz é"]
    tokens = trained(texts, 30, limit_alphabet=2, min_frequency=1)
    assert [token for token in tokens if len(token) == 1] == ["a", "b"]
    assert trained(["aéb aéb"], 8, limit_alphabet=2, min_frequency=1) == trained(["ab ab"], 8, min_frequency=1)


def test_a_character_after_one_left_out_is_still_within_the_word():
    texts = ["zab zab zab ab ab ba ba ba"]
    theirs = peer_vocabulary(texts, 30, limit_alphabet=2)
    assert theirs[-3:] == ["ba", "##ab", "ab"]
    assert trained(texts, 30, limit_alphabet=2, alphabet_order=order_of(theirs)) == theirs


def test_a_trained_tokenizer_opens_in_tokenizers_with_the_same_ids(stdlib_texts, random_strings, tmp_path):
    ours = Tokenizer.train(stdlib_texts[:20], 2000, kind="wordpiece")
    assert list(ours.special_tokens) == [*DEFAULT_SPECIAL_TOKENS, "[UNK]"]
    ours.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [text for text in random_strings(1000, 5) if not any(token in text for token in ours.special_tokens)]
    assert ours.encode_batch(texts) == [found.ids for found in peer.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "bytes"}, "kind must be bpe or wordpiece or unigram or .* or character-bpe, not 'bytes'"),
        ({"pattern": "cl100k"}, "wordpiece needs words: bert-uncased or bert-cased, not cl100k"),
        ({"kind": "bpe", "pattern": "bert-cased"}, "bpe needs a pattern such as cl100k, not bert-cased"),
        ({"max_token_length": 5}, "`max_token_length` is not an option of wordpiece"),
        ({"tie_break": "bytes"}, "`tie_break` is not an option of wordpiece"),
        ({"kind": "bpe", "limit_alphabet": 5}, "`limit_alphabet` is not an option of bpe"),
        ({"limit_alphabet": 0}, "limit_alphabet must be a whole number of at least 1"),
        ({"alphabet_order": "x"}, "alphabet_order must have each of the 4 characters"),
        ({"special_tokens": ["word"]}, "the special token 'word' can be a word of the text"),
        ({"vocab_size": 8}, "vocab_size must be at least 12: the words have 6 characters, 4 of them within words"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(
            ["abc cde xb"], **{"kind": "wordpiece", "vocab_size": 400, "special_tokens": ["[PAD]"]} | options
        )


def test_the_command_trains_and_describes_a_wordpiece_vocabulary(tmp_path, printed):
    text = "\n".join(f"the words of line {n} and some Other words, too" for n in range(400))
    (tmp_path / "text.txt").write_text(text)
    corpus, options = [str(tmp_path / "text.txt")], {"vocab_size": 120, "kind": "wordpiece"}
    tok = train_tokenizer(corpus, out=tmp_path / "tok", as_json=True, **options)
    summary = json.loads(printed.readouterr().out)
    described = (summary["kind"], summary["pattern"], summary["vocab_size"])
    assert described == ("wordpiece", "bert-uncased", tok.vocab_size)
    assert summary["held_out"]["this one"]["tokens"] > 0
    assert Tokenizer.load(tmp_path / "tok").fingerprint == tok.fingerprint
    with pytest.raises(
        ValueError, match="`pattern` is cl100k, which is a pattern of bpe, not of wordpiece: use one of bert"
    ):
        train_tokenizer(corpus, out=tmp_path / "x", pattern="cl100k", **options)


@pytest.mark.parametrize("score", ["frequency", "likelihood"])
def test_merging_stops_before_it_exceeds_the_memory(score):
    rng = random.Random(9)
    words = sorted({"".join(rng.choices("abcdefgh", k=8)) for _ in range(20_000)})
    counts = count_pretokens([" ".join(words)], "bert-uncased", threads=1)
    options = {"kind": "wordpiece", "merge_by": score, "min_frequency": 1}
    expected = Tokenizer.train_from_counts(counts, 9000, **options).fingerprint
    assert Tokenizer.train_from_counts(counts, 9000, memory=100_000_000, **options).fingerprint == expected
    for memory in (5_500_000, 6_500_000):
        with pytest.raises(ValueError, match=r"after \d+ merges the next one takes [\d,]+ bytes more than the memory"):
            Tokenizer.train_from_counts(counts, 9000, memory=memory, **options)


def test_the_memory_for_merging_goes_by_the_number_of_characters():
    rng = random.Random(9)
    words = sorted({"".join(rng.choices("აბგდევზთ", k=8)) for _ in range(20_000)})  # three bytes each
    counts = count_pretokens([" ".join(words)], "bert-cased", threads=1)
    expected = Tokenizer.train_from_counts(counts, 60, kind="wordpiece")
    assert Tokenizer.train_from_counts(counts, 60, kind="wordpiece", memory=9_000_000) == expected
    with pytest.raises(ValueError, match=r"merging [\d,]+ distinct pretokens takes at least about 5,\d+,\d+ bytes"):
        Tokenizer.train_from_counts(counts, 60, kind="wordpiece", memory=5_000_000)
