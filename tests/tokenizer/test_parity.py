"""Parity-aware training: the merges of tokenizers, and languages that are compressed about equally well."""

import json
import math

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from tokenizer import Tokenizer, count_pretokens
from tokenizer.training.parity import ParityRules, learn_parity_merges, train_with_parity

WORDS = st.sampled_from(["ab", "abc", "b a", "aab", "cab ", "é", "dé", "x", "ba ba", "\n"])
# With an empty text and ratios, the trainer of tokenizers does not end.
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=8).map("".join), min_size=1, max_size=4)


def merges_of_tokenizers(training, wanted, parallel=None, ratios=None, **options):
    peer = tokenizers.Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.ParityBpeTrainer(num_merges=wanted, show_progress=False, **options)
    trainer.train_from_iterator(peer, train_iterators=training, dev_iterators=parallel, ratio=ratios)
    return [tuple(pair) for pair in json.loads(peer.to_str())["model"]["merges"]]


def counts(texts):
    return None if texts is None else [count_pretokens(each, "gpt2") for each in texts]


@settings(max_examples=150)
@given(st.data())
def test_merges_are_those_of_tokenizers(data):
    languages = data.draw(st.integers(1, 3))
    training = [data.draw(TEXTS) for _ in range(languages)]
    how = data.draw(st.sampled_from(["parallel", "ratios", "lengths"]))
    parallel = [data.draw(TEXTS) for _ in range(languages)] if how == "parallel" else None
    drawn = st.sampled_from([0.5, 1.0, 2.5])
    ratios = [data.draw(drawn) for _ in range(languages)] if how == "ratios" else None
    wanted, first, least = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 5)), data.draw(st.integers(0, 3))
    options = {"global_merges": first, "min_frequency": least}
    rules = ParityRules(ratios=ratios, global_merges=first)
    found = learn_parity_merges(counts(training), counts(parallel), wanted, rules, min_count=max(1, least))
    assert found == merges_of_tokenizers(training, wanted, parallel, ratios, **options)


@settings(max_examples=40)
@given(st.data())
def test_merges_with_a_window_are_those_of_tokenizers(data):
    """As long as no language runs out of pairs: the trainer of tokenizers may then run forever."""
    letters = st.text("abcdefg ", min_size=60, max_size=60)
    languages, wanted = data.draw(st.integers(1, 4)), 15
    training = [[data.draw(letters) + "abcdefgfedcbacegbdfgeca" for _ in range(3)] for _ in range(languages)]
    parallel = [[data.draw(letters)] for _ in range(languages)] if data.draw(st.booleans()) else None
    ratios = None if parallel else data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.5]), min_size=4, max_size=4))
    window, first = data.draw(st.sampled_from([1, 2, 3, 5, 100])), data.draw(st.integers(0, 3))
    ratios = ratios and ratios[:languages]
    found = learn_parity_merges(
        counts(training), counts(parallel), wanted, ParityRules(ratios=ratios, global_merges=first, window=window)
    )
    options = {"global_merges": first, "variant": "window", "window_size": window, "alpha": 2.0}
    assert found == merges_of_tokenizers(training, wanted, parallel, ratios, **options)


def test_a_window_gives_other_languages_a_turn():
    """A language has at most half of the merges among any 2 if there are 4 languages."""
    training = [[letters * 9] for letters in ("abcdef", "ghijkl", "mnopqr", "stuvwx")]
    served = {}
    for window in (0, 2):
        rules = ParityRules(ratios=[9.0, 1.0, 1.0, 1.0], window=window)
        served[window] = [left[0] in "abcdef" for left, _ in learn_parity_merges(counts(training), None, 4, rules)]
    assert served == {0: [True] * 4, 2: [True, True, False, True]}


@pytest.fixture(scope="module")
def languages(shared):
    import lzma

    by_language = {}
    with lzma.open(shared / "corpora" / "multilingual.jsonl.xz", "rt") as file:
        for line in file:
            row = json.loads(line)
            texts = by_language.setdefault(row["lang"], [])
            if sum(map(len, texts)) < 60_000:
                texts.append(row["text"][:20_000])
    return dict(list(by_language.items())[:3])


def test_merges_of_real_text_are_those_of_tokenizers(languages):
    training = [texts[:-1] for texts in languages.values()]
    parallel = [texts[-1:] for texts in languages.values()]
    found = learn_parity_merges(counts(training), counts(parallel), 400, ParityRules())
    assert found == merges_of_tokenizers(training, 400, parallel)


def test_languages_are_compressed_more_equally(stdlib_texts):
    """The language with less training text gets the tokens that plain BPE gives to the other one."""
    large = stdlib_texts[:20]
    small = [text[:2000].translate(str.maketrans("abcdefgh", "αβγδεζηθ")) for text in stdlib_texts[20:24]]
    pair = {
        "large": large[:3],
        "small": [text[:2000].translate(str.maketrans("abcdefgh", "αβγδεζηθ")) for text in large[:3]],
    }
    fair = train_with_parity({"large": large, "small": small}, 700, parallel=pair)
    plain = Tokenizer.train([*large, *small], 700)

    def premium(tok):
        lengths = {name: sum(map(len, tok.encode_batch(texts))) for name, texts in pair.items()}
        return lengths["small"] / lengths["large"]

    assert abs(premium(fair) - 1) < abs(premium(plain) - 1)
    assert fair.vocab_size == 700 and fair.decode(fair.encode(large[0])) == large[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 100}, "vocab_size is 100: give at least 261"),
        ({"vocab_size": "300"}, "vocab_size must be a whole number"),
        ({"vocab_size": 300.5}, "vocab_size must be a whole number"),
        ({"vocab_size": 10**9}, "vocab_size must be at most"),
        ({"min_frequency": None}, "min_frequency must be a whole number"),
        ({"min_frequency": "2"}, "min_frequency must be a whole number"),
        ({"window": 1.5}, "window must be a whole number"),
        ({"window": -1}, "window must be a whole number of at least 0"),
        ({"global_merges": -1}, "global_merges must be a whole number of at least 0"),
        ({"parallel": {"de": ["a"]}}, "parallel and corpora differ in the languages de, en"),
        ({"ratios": {"en": 0.0}}, "must be a number above 0, not 0.0"),
        ({"ratios": {"en": "2"}}, "must be a number above 0, not '2'"),
        ({"ratios": {"en": math.inf}}, "must be a number above 0, not inf"),
        ({"ratios": {"en": 1.0}, "parallel": {"en": ["a"]}}, "give either parallel or ratios"),
        ({"pattern": "nfkc:cl100k"}, "pattern is nfkc:cl100k, but parity-aware training needs one without"),
    ],
)
def test_wrong_arguments_are_named_before_texts_are_read(options, message):
    texts = iter(["some text"])
    with pytest.raises(ValueError, match=message):
        train_with_parity({"en": texts}, **{"vocab_size": 300} | options)
    assert next(texts) == "some text"
