"""Unigram training: seeds and expectation maximization against enumeration, and the promises of `Tokenizer.train`."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
import scipy.special
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import DEFAULT_SPECIAL_TOKENS, PretokenCounts, Tokenizer, count_pretokens
from tokenizer.training.count_table import Counted
from tokenizer.training.piece_rules import PieceRules
from tokenizer.training.seeds import find_seeds, sorted_suffixes
from tokenizer.training.unigram_training import Model, digamma, learn_pieces

ALL = PieceRules(character_coverage=1)
SHORT = PieceRules(character_coverage=1, max_piece_length=4, split_by_unicode_script=False)
# Words of few letters, so that substrings repeat.
few_letters = st.dictionaries(st.text("ab c", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=6)
# Letters of several scripts, marks without a script of their own, digits and punctuation.
scripts = st.dictionaries(
    st.text("aе'1.\u0301カひ漢ー", min_size=1, max_size=7), st.integers(1, 9), min_size=1, max_size=6
)


def counted(words):
    return Counted.of({word.encode(errors="surrogateescape"): count for word, count in words.items()})


def spelled(word):
    return word.replace(" ", "▁")


def segmentations(word, scores):
    """Yield all segmentations of a word with their scores, as tuples of pieces."""
    if not word:
        yield (), 0.0
    for end in range(1, len(word) + 1):
        if (score := scores.get(word[:end])) is not None:
            for rest, total in segmentations(word[end:], scores):
                yield (word[:end], *rest), score + total


def scores_of(model):
    return dict(zip(map(model.text, range(len(model))), model.scores.tolist(), strict=True))


def script_of(character):
    if "\u3040" <= character <= "\u30ff" or "\u4e00" <= character <= "\u9fff":
        return "Han"
    if character.isascii():
        return "Latin" if character.isalpha() else "Common"
    return "Cyrillic" if "\u0400" <= character < "\u0500" else "Inherited"


def is_valid(piece, constraints):
    """Return whether a piece obeys the constraints, character by character as sentencepiece documents them."""
    if len(piece) > constraints.max_piece_length or " " in piece[1:]:
        return False
    if constraints.split_digits and len(piece) > 1 and any(c in "0123456789" for c in piece):
        return False
    previous = None
    for character in piece.removeprefix(" "):
        script = script_of(character)
        if script == "Inherited":
            script = previous
        if not constraints.split_by_unicode_script or (character in "0123456789" and not constraints.split_by_number):
            script = None
        if None not in (script, previous) and script != previous:
            return False
        previous = script
    return True


def enumerated_seeds(words, constraints):
    """Return all valid substrings of at least 2 characters that occur twice, unless one character always follows."""
    places = Counter()
    followers = {}
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 2, len(word) + 1):
                piece = word[start:end]
                if is_valid(piece, constraints):
                    places[piece] += count
                    longer = word[start : end + 1]
                    goes_on = end < len(word) and is_valid(longer, constraints)
                    followers.setdefault(piece, set()).add(word[end] if goes_on else None)
    return {spelled(p): n for p, n in places.items() if n >= 2 and (len(followers[p]) > 1 or None in followers[p])}


constraint_sets = [
    ALL,
    SHORT,
    PieceRules(character_coverage=1, split_by_number=False),
    PieceRules(character_coverage=1, split_digits=True, max_piece_length=3),
]


@pytest.mark.parametrize("constraints", constraint_sets)
@settings(max_examples=50)
@given(words=scripts | few_letters)
def test_seeds_are_the_repeated_substrings_that_obey_the_constraints(constraints, words):
    seeds = find_seeds(counted(words), constraints)
    model = Model(seeds, 1)
    found = {model.text(k): int(seeds.weights[k]) for k in range(len(model))}
    characters = {"▁": 0}
    for word, count in words.items():
        for character in word:
            characters[spelled(character)] = characters.get(spelled(character), 0) + count
    assert found == enumerated_seeds(words, constraints) | characters


@settings(max_examples=50)
@given(words=few_letters, seed=st.integers(0, 99))
def test_expected_counts_and_likelihood_are_those_of_all_segmentations(words, seed):
    model = Model(find_seeds(counted(words), SHORT), 1)
    model.scores = np.log(np.random.default_rng(seed).random(len(model)) + 1e-3)
    scores, expected, likelihood = scores_of(model), Counter(), 0.0
    for word, count in words.items():
        paths = list(segmentations(spelled(word), scores))
        total = math.fsum(math.exp(score) for _, score in paths)
        likelihood += count * math.log(total)
        for path, score in paths:
            for piece in path:
                expected[piece] += count * math.exp(score) / total
    counts, found = model.expected_counts()
    assert found == pytest.approx(likelihood)
    assert counts.tolist() == pytest.approx([expected[model.text(k)] for k in range(len(model))])


@settings(max_examples=50)
@given(words=few_letters, seed=st.integers(0, 99))
def test_losses_follow_the_definition_on_best_segmentations(words, seed):
    model = Model(find_seeds(counted(words), SHORT), 1)
    model.scores = np.log(np.random.default_rng(seed).random(len(model)) + 1e-3)
    scores, best = scores_of(model), Counter()
    for word, count in words.items():
        path, _ = max(segmentations(spelled(word), scores), key=lambda found: found[1])
        for piece in path:
            best[piece] += count
    assert model.best_counts().tolist() == [best[model.text(k)] for k in range(len(model))]
    total = sum(best.values())
    for k, loss in enumerate(model.losses().tolist()):
        piece = model.text(k)
        others = [found for found in segmentations(piece, scores) if len(found[0]) > 1]
        if not others:
            assert loss == math.inf
            continue
        path, score = max(others, key=lambda found: found[1])
        if score > scores[piece] or not best[piece]:
            assert loss == -math.inf
            continue
        after = sum(math.log((best[other] + best[piece]) / (total + best[piece] * (len(path) - 1))) for other in path)
        assert loss == pytest.approx(best[piece] / total * (math.log(best[piece] / total) - after))


@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=50))
def test_digamma_is_that_of_scipy(values):
    assert digamma(np.array(values)) == pytest.approx(scipy.special.digamma(values), rel=1e-11, abs=1e-11)


def test_likelihood_never_falls_without_pruning(stdlib_texts):
    words = Counter(" " + word for text in stdlib_texts[:5] for word in text.split())
    model = Model(find_seeds(counted(words), ALL), 1)
    likelihoods = []
    for _ in range(6):
        expected, likelihood = model.expected_counts()
        likelihoods.append(likelihood)
        model.scores = np.log(np.maximum(expected, 1e-300) / expected.sum())  # the exact maximum
    assert likelihoods == sorted(likelihoods)
    assert likelihoods[-1] > likelihoods[0] + 100


def test_order_of_words_and_number_of_threads_do_not_change_a_bit(stdlib_texts):
    words = Counter(" " + word for text in stdlib_texts[:10] for word in text.split())
    expected = learn_pieces(counted(words), 900, PieceRules(), threads=1)
    shuffled = list(words.items())
    random.Random(1).shuffle(shuffled)
    for threads in (2, 7):
        assert learn_pieces(counted(dict(shuffled)), 900, PieceRules(), threads=threads) == expected
    assert len(expected) == 900


def test_counts_beyond_32_bits_are_exact():
    words = {" the": 3, " cat": 2, " cathedral": 2, " then": 5}
    small = Model(find_seeds(counted(words), ALL), 1)
    large = Model(find_seeds(counted({word: count << 40 for word, count in words.items()}), ALL), 1)
    assert scores_of(large) == pytest.approx(scores_of(small)) != {}
    large.scores = small.scores
    assert large.expected_counts()[0].tolist() == (small.expected_counts()[0] * 2**40).tolist()


def test_covered_and_required_characters_are_pieces_and_others_are_in_none():
    words = {" aaab": 500, " aac": 400, "ж": 3, "z": 2, "aжa": 1}
    constraints = PieceRules(character_coverage=0.99, required_chars="zq")
    pieces = dict(learn_pieces(counted(words), 20, constraints))
    assert {"a", "b", "c", "▁", "z", "q"} <= pieces.keys()
    assert not any("ж" in piece for piece in pieces)
    with pytest.raises(ValueError, match="there are 6 characters to cover, more than the 5 pieces wanted"):
        learn_pieces(counted(words), 5, constraints)


def test_scores_are_logarithms_of_probabilities_in_descending_order(stdlib_texts):
    words = Counter(" " + word for word in stdlib_texts[0].split())
    scores = [score for _, score in learn_pieces(counted(words), 300, PieceRules())]
    assert math.fsum(map(math.exp, scores)) == pytest.approx(1)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, []),
        ({"": 3}, []),
        ({"a": 1}, ["a"]),
        ({" ": 7}, []),
        ({"   ": 2, " ": 1}, []),
        ({"\0": 5, "a": 1}, ["a"]),
        ({"\udcff\udc80": 5, "\udce2\udc96a": 1, "\udced\udca0\udc80": 1}, ["\ufffd", "a"]),
    ],
)
def test_almost_empty_texts_train(words, expected):
    pieces = [piece for piece, _ in learn_pieces(counted(words), 100, ALL)]
    assert sorted(piece for piece in pieces if len(piece) == 1) == sorted([*expected, "▁"])


@pytest.mark.parametrize("letters", ["a", "abcdefghij"])
def test_one_word_of_a_megabyte_trains(letters):
    word = "".join(random.Random(5).choices(letters, k=1_000_000))
    constraints = PieceRules(max_piece_length=4)
    assert len(learn_pieces(counted({word: 1}), 6000, constraints)) == (5 if len(letters) == 1 else 6000)
    model = Model(find_seeds(counted({word: 1}), constraints), 1)
    counts, likelihood = model.expected_counts()
    assert counts @ model.lengths == pytest.approx(len(word))  # every character is in one piece
    assert -3 * len(word) < likelihood < 0


@given(st.lists(st.integers(1, 3), max_size=60), st.integers(1, 5), st.integers(2, 100_000))
@example([1] * 60, 40, 2)
def test_suffixes_are_sorted(symbols, longest, characters):
    symbols = np.array(symbols, dtype=np.int32)
    reaches = np.minimum(longest, np.arange(len(symbols), 0, -1)).astype(np.uint8)
    order = sorted_suffixes(symbols, reaches, characters).tolist()
    suffixes = [symbols[p : p + reaches[p]].tolist() for p in order]
    assert suffixes == sorted(suffixes)
    assert sorted(order) == np.flatnonzero(reaches >= 2).tolist()


def test_a_trained_tokenizer_opens_in_tokenizers_with_the_same_ids(stdlib_texts, random_strings, tmp_path):
    for byte_fallback in (False, True):
        rules = PieceRules(byte_fallback=byte_fallback)
        ours = Tokenizer.train(stdlib_texts[:10], 1200, kind="unigram", pieces=rules)
        assert list(ours.special_tokens) == ["<unk>", *DEFAULT_SPECIAL_TOKENS]
        assert ours.vocab_size == 1200
        ours.save(tmp_path / str(byte_fallback))
        peer = tokenizers.Tokenizer.from_file(str(tmp_path / str(byte_fallback) / "tokenizer.json"))
        texts = [text for text in random_strings(500, 5) if not any(token in text for token in ours.special_tokens)]
        texts.append("<0x41> <0xFF> <0x")
        assert ours.encode_batch(texts) == [found.ids for found in peer.encode_batch(texts, add_special_tokens=False)]
        assert Tokenizer.load(tmp_path / str(byte_fallback)).fingerprint == ours.fingerprint


def test_text_that_spells_bytes_or_special_tokens_stays_text(stdlib_texts):
    tok = Tokenizer.train(["only few letters"] * 3, 300, kind="unigram", pieces=PieceRules(byte_fallback=True))
    for text in ("<0x41>", "<0xE2>", "<|endoftext|>", "ж<0xFF>"):
        assert tok.decode(tok.encode_ordinary(text)) == text
    assert tok.encode("<|endoftext|>", allowed_special="all") == [tok.special_tokens["<|endoftext|>"]]


@pytest.mark.parametrize("piece", ["<unk>", "<0x41>"])
def test_a_piece_of_the_text_cannot_be_the_unknown_token_or_a_byte(piece):
    rules = PieceRules(split_by_unicode_script=False, split_by_number=False, byte_fallback=True)
    with pytest.raises(ValueError, match=f"training learned the piece '{piece}', which stands for"):
        Tokenizer.train([f"x{piece}y a{piece}b c{piece}d {piece} hello\n" * 50], 300, kind="unigram", pieces=rules)


def test_training_from_saved_counts_gives_the_same_vocabulary(stdlib_texts, tmp_path):
    texts = stdlib_texts[:10]
    expected = Tokenizer.train(texts, 700, kind="unigram", threads=1)
    halves = [count_pretokens(part, "metaspace") for part in (texts[:4], texts[4:])]
    for number, half in enumerate(halves):
        half.save(tmp_path / f"{number}.parquet")
    counts = PretokenCounts.merge([tmp_path / "0.parquet", tmp_path / "1.parquet"], memory=20_000_000)
    assert Tokenizer.train_from_counts(counts, 700, kind="unigram", threads=2).fingerprint == expected.fingerprint


def test_words_of_another_vocabulary_can_be_counted_and_saved(shared, tmp_path):
    words = Tokenizer.load(shared / "vectors" / "t5-small").vocabulary.pattern
    count_pretokens(["Ｆｕｌｌ width, ﬁne\t text"], words).save(tmp_path / "counts.parquet")
    counts = PretokenCounts.load(tmp_path / "counts.parquet")
    assert counts.pattern == words
    assert dict(counts.items()) == {b" Full": 1, b" width,": 1, b" fine": 1, b" text": 1}
    assert Tokenizer.train_from_counts(counts, 15, special_tokens=(), kind="unigram").encode(" Ｆull") != []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"pattern": "cl100k"},
            "unigram needs words: metaspace, nmt_nfkc, nfkc, keep-whitespace, llama2, or the pattern of a Unigram "
            "vocabulary,",
        ),
        ({"kind": "bpe", "pattern": "metaspace", "vocab_size": 300}, "bpe needs a pattern such as cl100k, not"),
        ({"kind": "bpe", "pieces": PieceRules(), "vocab_size": 300}, "`pieces` is not an option of bpe"),
        ({"min_frequency": 3}, "`min_frequency` is not an option of unigram"),
        ({"vocab_size": 2}, "vocab_size must be at least 3"),
        ({"vocab_size": 6}, "there are 6 characters to cover, more than the 4 pieces wanted"),
        ({"pieces": PieceRules(byte_fallback=True)}, "vocab_size must be at least 259"),
        ({"memory": 16_000_000, "pattern": "metaspace:3"}, "does not spell words of Metaspace"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(["abc cde"], **{"kind": "unigram", "vocab_size": 100, "special_tokens": ["[S]"]} | options)


@pytest.mark.parametrize(
    ("seed_size", "message"),
    [(5, "starts from only 5 substrings .`pieces.seed_size`."), (1000, "the corpus ran out of substrings")],
)
def test_the_warning_about_a_small_vocabulary_names_the_cause(seed_size, message):
    rules = PieceRules(seed_size=seed_size)
    with pytest.warns(UserWarning, match=rf"{message}.*: the vocabulary has \d+ entries, not 200"):
        Tokenizer.train(["the words of a line and other words " * 9], 200, kind="unigram", pieces=rules)


@pytest.mark.parametrize(
    "options", [{"max_piece_length": 0}, {"max_piece_length": 65}, {"seed_size": 1.5}, {"character_coverage": 1.01}]
)
def test_rules_outside_their_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        PieceRules(**options)


def test_too_little_memory_is_refused_before_training():
    counts = count_pretokens([" ".join(map(str, range(300_000)))], "metaspace")
    with pytest.raises(ValueError, match="training on 300,000 distinct words takes about"):
        Tokenizer.train_from_counts(counts, 1000, kind="unigram", memory=20_000_000)


def test_the_command_trains_and_describes_a_unigram_vocabulary(tmp_path, printed):
    text = "\n".join(f"the words of line {n} and some Other words, too" for n in range(400))
    (tmp_path / "text.txt").write_text(text)
    options = {"vocab_size": 60, "kind": "unigram", "pieces": PieceRules(split_digits=True)}
    tok = train_tokenizer([str(tmp_path / "text.txt")], out=tmp_path / "tok", as_json=True, **options)
    summary = json.loads(printed.readouterr().out)
    assert (summary["kind"], summary["vocab_size"]) == ("unigram", 60)
    assert summary["held_out"]["this one"]["tokens"] > 0
    assert Tokenizer.load(tmp_path / "tok").fingerprint == tok.fingerprint
    assert not any(len(piece) > 1 and "1" in piece for piece in tok.vocabulary.pieces)
