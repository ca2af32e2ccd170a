"""`evaluate --against` says where two runs differ: classes and strings equal a plain loop's, and add up."""

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bytelm
from lm.metrics.intervals import interval, resampled_sums
from pipelines.cli.escapes import visible
from pipelines.evaluation.gaps import CLASSES, classes_of_bytes, classes_of_spans, gaps_of
from pipelines.evaluation.paired_text import PlacedScores

TEXTS = st.lists(st.text("ab1 .\n_\u0416\u6f22\u00e9", min_size=1, max_size=12), min_size=1, max_size=6)


def classes(text, *more):
    """Return the class of each character of a text of a corpus."""
    data = [text.encode(), *(one.encode() for one in more)]
    return [CLASSES[kind] for kind in classes_of_bytes(data)[: len(data[0])].tolist()]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("https://a.org/x?y=1", "URLs"),
        ("www.a-b.com", "URLs"),
        ("3.14", "numbers"),
        ("1,000", "numbers"),
        ("\u096a", "numbers"),
        ("word", "other words"),
        ("don\u2019t", "other words"),
        ("gr\u00f6\u00dfer", "other words"),
        ("e\u0301t\u00e9", "other words"),
        ("\u0441\u043b\u043e\u0432\u043e", "non-Latin words"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "non-Latin words"),
        ("\u6f22\u5b57", "non-Latin words"),
        ("{}[]_;==", "code punctuation"),
        ('.,!?()-"\u20ac\U0001f642', "other characters"),
        ("\n", "new lines"),
        ("  \r\n\t", "new lines"),
        (" \t\u3000", "white space"),
    ],
)
def test_text_has_a_class(text, kind):
    assert set(classes(text, text)) == {kind}


@given(
    st.lists(st.text(max_size=20) | st.text(" \t\n\r\x1c\x85\u2028a1.:/w'\u0301_]", max_size=20), max_size=3),
    st.binary(max_size=9),
)
def test_every_byte_has_a_class_whatever_the_text(texts, other):
    documents = [*(text.encode() for text in texts), other]
    assert len(classes_of_bytes(documents)) == sum(map(len, documents))


def test_a_word_is_rare_if_the_text_has_it_once():
    assert set(classes("word", "other Other")) == {"rare words"}
    assert set(classes("other", "word Other")) == {"other words"}


def test_a_url_ends_before_what_surrounds_it():
    found = classes("(https://a.org)", "x")
    assert (found[0], found[1], found[-2], found[-1]) == ("other characters", "URLs", "URLs", "other characters")


def test_a_span_has_the_class_of_most_of_its_bytes_except_white_space():
    text = b" the   \n  1+a"
    kinds = classes_of_bytes([text, b"the a"])[: len(text)]
    edges = np.array([0, 4, 6, 10])
    found = [CLASSES[kind] for kind in classes_of_spans(kinds, edges)]
    assert found == ["other words", "new lines", "new lines", "other words"]


def scores_of(documents, generator, separator):
    """Return random tokens over documents, with a separator before each, with random nats."""
    places, sizes, units, start = [], [], [], 0
    for number, document in enumerate(documents):
        inner = range(1, len(document))
        cuts = sorted(generator.choice(inner, generator.integers(0, len(inner) + 1), replace=False)) if inner else []
        bounds = [0, *map(int, cuts), len(document)]
        if separator:
            places, sizes, units = [*places, start], [*sizes, 0], [*units, number]
        places += [start + bound for bound in bounds[:-1]]
        sizes += np.diff(bounds).tolist()
        units += [number] * (len(bounds) - 1)
        start += len(document)
    nats = generator.gamma(2, 1, len(places))
    sizes = np.array(sizes)
    return PlacedScores(np.array(places), sizes.astype(float), nats, np.array(units), sizes > 0)


@given(TEXTS, st.integers(0, 10**6), st.booleans())
def test_spans_of_two_tokenizations_equal_a_plain_loop(texts, seed, separator):
    documents, generator = [text.encode() for text in texts], np.random.default_rng(seed)
    sides = [scores_of(documents, generator, separator) for _ in range(2)]
    cuts = tuple(side.places for side in sides)
    found = gaps_of(documents, tuple(sides), cuts, len(documents), None, ["a", "b"])
    text = b"".join(documents)
    starts = {len(text[:i].decode("utf-8", "ignore").encode()) for i in range(len(text))}
    edges = sorted(set(cuts[0].tolist()) & set(cuts[1].tolist()) & starts)
    strings, classes = defaultdict(lambda: [0.0, 0.0]), defaultdict(lambda: [0.0, 0.0])
    kinds = classes_of_spans(classes_of_bytes(documents), np.array(edges))
    for which, side in enumerate(sides):
        for place, size, nats in zip(side.places.tolist(), side.sizes.tolist(), side.nats.tolist(), strict=True):
            if not size:
                classes["special tokens"][which] += nats
                continue
            number = max(i for i, edge in enumerate(edges) if edge <= place)
            end = edges[number + 1] if number + 1 < len(edges) else len(text)
            strings[text[edges[number] : end]][which] += nats
            classes[CLASSES[kinds[number]]][which] += nats
    assert {one.name: pytest.approx([one.run_bits, one.other_bits]) for one in found.classes} == {
        name: [nats / np.log(2) for nats in both] for name, both in classes.items()
    }
    difference = sides[0].nats.sum() / sides[0].sizes.sum() - sides[1].nats.sum() / sides[1].sizes.sum()
    assert sum(one.difference for one in found.classes) == pytest.approx(difference / np.log(2))
    order = sorted((ours - theirs, string) for string, (ours, theirs) in strings.items())
    best = [gap / np.log(2) for gap, _ in order if gap < 0][:10]
    worst = [gap / np.log(2) for gap, _ in reversed(order) if gap > 0][:10]
    assert [one.gap for one in found.run_better] == pytest.approx(best)
    assert [one.gap for one in found.other_better] == pytest.approx(worst)
    shown = {visible(string): [nats / np.log(2) for nats in both] for string, both in strings.items()}
    for one in (*found.run_better, *found.other_better):
        assert [one.run_bits, one.other_bits] == pytest.approx(shown[one.text])


def test_intervals_draw_the_same_documents_for_both_runs():
    generator = np.random.default_rng(0)
    documents = [f"word {i % 7} word\n".encode() for i in range(40)]
    sides = [scores_of(documents, generator, True) for _ in range(2)]
    found = gaps_of(documents, tuple(sides), tuple(side.places for side in sides), 40, None, ["a", "b"])
    special = next(one for one in found.classes if one.name == "special tokens")
    columns = []
    for side in sides:
        none = side.sizes == 0
        columns += [np.bincount(side.units[none], side.nats[none]), np.bincount(side.units, side.sizes)]
    drawn = resampled_sums(np.stack(columns, axis=1))
    expected = interval((drawn[:, 0] / drawn[:, 1] - drawn[:, 2] / drawn[:, 3]) / np.log(2))
    assert (special.low, special.high) == pytest.approx(expected)
    assert special.low <= special.difference <= special.high
    assert all(one.low <= one.gap <= one.high for one in (*found.run_better, *found.other_better))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_recipe):
    """Return two runs with one tokenizer and one run with another, on texts of words and numbers."""
    folder = tmp_path_factory.mktemp("three")
    texts = [" ".join(f"word{'s' * (i % 3)} {(i * j) % 97}," for j in range(9 + i % 5)) + "\n" for i in range(1, 801)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    short = replace(small_recipe.train, tokens=5120)
    found = []
    for name, size, seed in (("a", 270, 0), ("b", 270, 1), ("c", 300, 0)):
        tok, data = folder / f"tok{size}", folder / f"data{size}"
        if not data.exists():
            bytelm.train_tokenizer([str(folder / "texts.jsonl")], vocab_size=size, out=tok)
            bytelm.build_dataset([str(folder / "texts.jsonl")], tokenizer=tok, context_length=32, out=data)
        recipe = replace(small_recipe, train=replace(short, seed=seed))
        found.append(bytelm.pretrain(recipe, data=data, out=folder / name) and folder / name)
    return found


@pytest.mark.parametrize("other", [1, 2])
def test_the_classes_add_up_to_the_difference_of_two_runs_both_ways(runs, other):
    there = bytelm.evaluate(runs[0], against=runs[other]).validation
    back = bytelm.evaluate(runs[other], against=runs[0]).validation
    for one in (there, back):
        assert sum(row.difference for row in one.gaps.classes) == pytest.approx(one.difference.value, abs=1e-12)
        assert all(row.low <= row.difference <= row.high for row in one.gaps.classes)
    mirrored = {row.name: -row.difference for row in back.gaps.classes}
    assert {row.name: row.difference for row in there.gaps.classes} == pytest.approx(mirrored)
    assert [one.text for one in there.gaps.run_better] == [one.text for one in back.gaps.other_better]
    assert {"numbers", "other words", "other characters", "special tokens"} <= mirrored.keys()


def test_a_run_against_itself_has_no_gap(runs):
    found = bytelm.evaluate(runs[0], against=runs[0]).validation.gaps
    assert {row.difference for row in found.classes} == {0.0} and not (found.run_better or found.other_better)


def test_the_command_prints_the_classes_and_strings(in_process, runs):
    done = in_process("evaluate", runs[0], "--against", runs[2])
    assert "difference by class of text: a minus c" in done.stdout and "code punctuation" not in done.stdout
    assert "strings on which c saves most bits" in done.stdout


def test_masked_runs_with_one_tokenizer_differ_per_token(trained_bert, tmp_path):
    found = bytelm.evaluate(trained_bert, against=trained_bert).validation
    assert found.difference.unit == "bits per token"
    assert sum(row.size for row in found.gaps.classes) == found.tokens
