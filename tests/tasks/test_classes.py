"""The task of classes: labels of texts and of pairs, one each or several, from files as people have them."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics

import bytelm
from lm.metrics.labels import calibration_error, log_softmax
from pipelines.tasks.classes import Classes
from pipelines.tasks.data import ExampleFiles
from tests.tasks.files import write

SETTINGS = {"epochs": 4, "lr": 3e-3, "batch_size": 8, "device": "cpu", "dtype": "float32"}


def learned(tmp_path, rows, test=None, **options):
    data = write(tmp_path / "rows.jsonl", rows)
    tests = (write(tmp_path / "test.jsonl", test),) if test else (data,)
    return ExampleFiles(data=(data,), test=tests).read(Classes(**options))


def test_columns_are_found_by_their_usual_names_or_given(tmp_path):
    glue = [{"sentence1": "a", "sentence2": "b", "label": i % 2, "idx": i} for i in range(4)]
    mnli = [{"premise": "a", "hypothesis": "b", "label": str(i)} for i in range(4)]
    deep = [{"doc": {"text": "a"}, "stars": i} for i in range(4)]
    for rows, options, columns in [
        (glue, {}, ("sentence1", "sentence2", "label")),
        (mnli, {}, ("premise", "hypothesis", "label")),
        (deep, {"columns": ("doc.text", "stars")}, ("doc.text", "stars")),
    ]:
        task, training, _ = learned(tmp_path, rows, **options)
        assert task.columns == columns
        assert training[0].inputs == ("a", "b")[: len(columns) - 1]


def test_rows_that_annotators_disagree_on_are_left_out(tmp_path):
    rows = [{"sentence1": "a", "sentence2": str(i), "gold_label": "-x y"[i % 4]} for i in range(8)]
    rows = [{**row, "gold_label": row["gold_label"].strip() or "z"} for row in rows]
    task, training, _ = learned(tmp_path, rows, columns=("sentence1", "sentence2", "gold_label"))
    assert task.labels == ("x", "y", "z") and len(training) == 6


def test_labels_are_numbers_in_order_or_words_in_order(tmp_path):
    assert learned(tmp_path, [{"text": "x", "label": i} for i in (10, 9, 2, 9)])[0].labels == (2, 9, 10)
    assert learned(tmp_path, [{"text": "x", "label": i} for i in ("b", "a")])[0].labels == ("a", "b")
    several = learned(tmp_path, [{"text": "x", "labels": i} for i in (["b", "a"], [], ["c"])])[0]
    assert several.labels == ("a", "b", "c") and several.several


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, "1"], r"labels are of two kinds: 1 in line 1 of .* and '1' in line 2 of .*: make all strings"),
        (["a", ["a"]], r"labels are of two kinds: 'a' in line 1 of .* and \['a'\] in line 2"),
        (["a", "a"], "all examples have the label 'a': give some with another"),
        ([0.5, 1], r'"label" in line 1 of .* is 0.5, not a label'),
        ([None, 1], r'"label" in line 1 of .* is None, not a label'),
        ([[1.5], [1]], r'"label" in line 1 of .* is \[1.5\], not a list of labels'),
        ([[], []], "no example has a label"),
    ],
)
def test_labels_that_teach_nothing_are_refused_by_line(tmp_path, labels, message):
    with pytest.raises(ValueError, match=message):
        learned(tmp_path, [{"text": f"text {i}", "label": label} for i, label in enumerate(labels)])


@pytest.mark.parametrize(
    ("known", "other", "message"),
    [
        (["a", "b"], ["a"], r"line 1 of .*test.jsonl has \['a'\], but each training example has one label: give one"),
        ([["a"], ["b"]], "ab", "line 1 of .*test.jsonl has 'ab', but each training example has a list of labels"),
    ],
)
def test_labels_of_another_kind_than_the_training_labels_are_refused_by_line(tmp_path, known, other, message):
    rows = [{"text": f"text {i}", "label": label} for i, label in enumerate(known)]
    with pytest.raises(ValueError, match=message):
        learned(tmp_path, rows, [{"text": "another text", "label": other}])


LABELLED = st.lists(st.tuples(st.text("ab ", min_size=1), st.sampled_from(["x", "y", "z"])), min_size=2, max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LABELLED, st.floats(0.01, 0.99))
def test_held_out_texts_are_not_trained_on_and_every_held_out_label_is(tmp_path, rows, fraction):
    assume(len({label for _, label in rows}) > 1)
    data = write(tmp_path / "rows.jsonl", [{"text": text, "label": label} for text, label in rows])
    try:
        task, training, held_out = ExampleFiles(data=(data,), held_out=fraction).read(Classes())
    except ValueError as error:
        assert "is held out" in str(error) or "are held out" in str(error)
        return
    divided = [(example.inputs[0], example.target) for example in (*training, *held_out)]
    assert sorted(divided) == sorted(rows)
    assert not {example.inputs for example in training} & {example.inputs for example in held_out}
    assert {example.target for example in training} == set(task.labels) == {label for _, label in rows}


def test_unknown_labels_and_columns_are_refused_by_name(tmp_path):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2}]
    with pytest.raises(ValueError, match=r"line 1 of .*test.jsonl has the label 3, which no training example has"):
        learned(tmp_path, rows, test=[{"text": "c", "label": 3}])
    with pytest.raises(ValueError, match=r'has no field "body": it has text, label; choose with `columns`'):
        learned(tmp_path, rows, columns=("body", "label"))
    with pytest.raises(ValueError, match="`columns` names 1, but the task classes reads 2, such as text label or 3"):
        Classes(columns=("text",))
    with pytest.raises(ValueError, match="holds no example: give rows with text and label"):
        learned(tmp_path, [{"text": "", "label": 1}])


def test_results_equal_those_of_scikit_learn(tmp_path):
    task, examples, _ = learned(tmp_path, [{"text": str(i), "label": "abc"[i % 3]} for i in range(30)])
    logits = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    numbers, by_label, confusions = task.results([row[None] for row in logits], [], examples)
    targets, said = np.arange(30) % 3, logits.argmax(axis=1)
    assert numbers.accuracy == metrics.accuracy_score(targets, said)
    assert numbers.macro_f1 == pytest.approx(metrics.f1_score(targets, said, average="macro"))
    assert numbers.matthews == pytest.approx(metrics.matthews_corrcoef(targets, said))
    assert numbers.label_nats == pytest.approx(metrics.log_loss(targets, np.exp(log_softmax(logits))))
    confidences = np.exp(log_softmax(logits)).max(axis=1)
    assert numbers.label_calibration == pytest.approx(calibration_error(confidences, said == targets))
    each = metrics.f1_score(targets, said, average=None)
    assert by_label.labels == {label: (10, pytest.approx(f1)) for label, f1 in zip("abc", each, strict=True)}
    assert sum(mistake.times for mistake in confusions.confusions) == (targets != said).sum()


def test_several_labels_each_are_scored_label_by_label(tmp_path):
    rows = [{"text": str(i), "labels": [label for bit, label in enumerate("abc") if i >> bit & 1]} for i in range(30)]
    task, examples, _ = learned(tmp_path, rows)
    scores = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    numbers, _ = task.results([row[:, None] for row in scores], [], examples)
    targets = np.array([[label in row["labels"] for label in "abc"] for row in rows])
    assert numbers.micro_f1 == pytest.approx(metrics.f1_score(targets, scores > 0, average="micro"))
    assert numbers.accuracy == pytest.approx(metrics.accuracy_score(targets, scores > 0))
    chances = 1 / (1 + np.exp(-scores.astype(float)))
    nats = -np.log(np.where(targets, chances, 1 - chances)).sum(axis=1).mean()
    assert numbers.label_nats == pytest.approx(nats)


def test_balanced_labels_weigh_the_same_in_the_loss(tmp_path):
    task, examples, _ = learned(tmp_path, [{"text": str(i), "label": int(i > 7)} for i in range(10)], balance=True)
    weights = task.head("encoder").class_weights
    assert weights == pytest.approx((10 / 16, 10 / 4))
    assert sum(weights[example.target] for example in examples) == pytest.approx(10)


@pytest.mark.parametrize("model", ["trained_bert", "trained_gpt"])
def test_a_run_reads_the_second_text_of_a_pair(model, tmp_path, request):
    words = ("import", "return")
    rows = [{"premise": f"{w} {i}", "hypothesis": v, "label": v} for i in range(25) for w in words for v in words]
    made = bytelm.finetune(
        request.getfixturevalue(model),
        data=write(tmp_path / "rows.jsonl", rows),
        out=tmp_path / "out",
        train=SETTINGS | {"epochs": 10, "lr": 1e-2},
        compare_scratch=False,
        held_out=0.3,
    )
    numbers = json.loads((made.path / "evaluation.json").read_text())["splits"]["validation"]
    assert numbers["accuracy"] > 0.9
    said = made.predict(["return 3", "return", "return 3", "import"])
    assert [one["prediction"] for one in said] == ["return", "import"]
    assert all(math.isclose(sum(one["probabilities"].values()), 1.0) for one in said)


def test_a_run_learns_several_labels(tmp_path, trained_bert):
    words = ("import", "return", "class")
    chosen = [[word for place, word in enumerate(words) if bits >> place & 1] for bits in range(8)]
    rows = [{"text": " ".join([*some, str(i)]), "labels": some} for i in range(20) for some in chosen]
    made = bytelm.finetune(
        trained_bert,
        data=write(tmp_path / "rows.jsonl", rows),
        out=tmp_path / "out",
        train=SETTINGS | {"epochs": 40, "lr": 1e-2, "dropout": 0.0},
        compare_scratch=False,
        held_out=0.3,
    )
    numbers = json.loads((made.path / "evaluation.json").read_text())["splits"]["validation"]
    frequencies = numbers["comparison"]["others"]["label frequencies"]
    assert numbers["micro_f1"] > 0.75
    assert numbers["macro_f1"] > frequencies["macro F1"] + 0.3
