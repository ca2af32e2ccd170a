"""The task of numbers: equal to scipy and scikit-learn, scaled in training only."""

import json

import numpy as np
import pytest
from scipy import stats
from sklearn import linear_model

import bytelm
from lm.metrics.baselines import STRENGTHS, Ridge
from pipelines.run.folder import Run
from pipelines.run.retention import find_checkpoint
from pipelines.tasks.data import ExampleFiles
from pipelines.tasks.regression import Regression, RegressionNumbers
from tests.tasks.files import write

SETTINGS = {"epochs": 12, "lr": 1e-2, "batch_size": 8, "device": "cpu", "dtype": "float32"}


def learned(tmp_path, rows, **options):
    data = write(tmp_path / "rows.jsonl", rows)
    return ExampleFiles(data=(data,), test=(data,)).read(Regression(**options))


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"sentence1": "a", "sentence2": "b", "score": 2.5, "idx": 1}, ("sentence1", "sentence2", "score")),
        ({"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 1}, ("sentence1", "sentence2", "label")),
        ({"text": "a", "score": 3}, ("text", "score")),
        ({"text": "a", "value": "3.5"}, ("text", "value")),
    ],
)
def test_columns_are_found_by_their_usual_names(tmp_path, row, columns):
    task, training, _ = learned(tmp_path, [row, row | {columns[-1]: -1e3}])
    assert task.columns == columns
    assert [example.target for example in training] == [float(row[columns[-1]]), -1000.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([2, 2.0, "2"], "all examples have the number 2: give some with another"),
        ([1e-200, 1.1e-200], "all examples have the number 1e-200"),
        ([1e308, -1e308, 1e308], "the numbers are too large: divide them"),
        ([1, "high"], r"\"score\" in line 2 of .*rows.jsonl is 'high', not a finite number: fix it"),
        ([1, ""], r"\"score\" in line 2 of .* is '', not a finite number"),
        ([1, float("nan")], r"\"score\" in line 2 of .* is nan, not a finite number"),
        ([1, 10**400], r"\"score\" in line 2 of .* is 1000.*, not a finite number"),
        ([1, True], r"\"score\" in line 2 of .* is True, not a number"),
        ([1, None], r"\"score\" in line 2 of .* is None, not a number"),
        ([1, [2]], r"\"score\" in line 2 of .* is \[2\], not a number"),
    ],
)
def test_numbers_that_teach_nothing_are_refused_by_line(tmp_path, values, message):
    with pytest.raises(ValueError, match=message):
        learned(tmp_path, [{"text": f"text {i}", "score": value} for i, value in enumerate(values)])


def test_rows_without_text_are_left_out_and_missing_fields_are_named(tmp_path):
    rows = [{"text": "a", "score": 1}, {"text": "", "score": 9}, {"text": None, "score": 9}, {"text": "b", "score": 2}]
    assert len(learned(tmp_path, rows)[1]) == 2
    with pytest.raises(ValueError, match=r'line 3 of .* has no field "score": it has text'):
        learned(tmp_path, [*rows[:2], {"text": "b"}])
    with pytest.raises(ValueError, match=r'"text" in line 2 of .* is 7, not a text'):
        learned(tmp_path, [rows[0], {"text": 7, "score": 1}])
    with pytest.raises(ValueError, match="`columns` names 1, but the task regression reads 2, such as text score or 3"):
        Regression(columns=("text",))


def test_results_equal_those_of_scipy_in_the_unit_of_the_target(tmp_path):
    generator = np.random.default_rng(0)
    targets = generator.integers(0, 6, size=40) / 2 + 100  # with ties
    task, examples, _ = learned(tmp_path, [{"text": str(i), "score": float(y)} for i, y in enumerate(targets)])
    scaled = (targets - targets.mean()) / targets.std()
    outputs = (scaled + generator.normal(size=40)).astype(np.float32)
    (numbers,) = task.results([np.full((1, 1), value) for value in outputs], [], examples)
    predicted = outputs.astype(float) * targets.std() + targets.mean()
    assert numbers.pearson == pytest.approx(stats.pearsonr(targets, predicted).statistic)
    assert numbers.spearman == pytest.approx(stats.spearmanr(targets, predicted).statistic)
    assert numbers.rmse == pytest.approx(np.sqrt(np.mean((targets - predicted) ** 2)))
    assert numbers.mean_absolute_error == pytest.approx(np.mean(np.abs(targets - predicted)))
    said = task.predictions([np.full((1, 1), value) for value in outputs], [], examples)
    assert [one["prediction"] for one in said] == pytest.approx(predicted)


def test_correlations_of_equal_predictions_are_undefined():
    numbers = RegressionNumbers.of(np.arange(7.0), np.full(7, 1010.1))  # whose mean is rounded
    assert numbers.pearson is numbers.spearman is None
    assert numbers.sentences(0) == ["The correlations are undefined, because all targets or all predictions are equal."]
    assert numbers.entry() == {"rmse": numbers.rmse, "mean_absolute_error": numbers.mean_absolute_error}


def test_ridge_regression_equals_scikit_learn_with_the_best_strength_by_leave_one_out():
    generator = np.random.default_rng(3)
    texts = [generator.integers(0, 30, size=generator.integers(1, 12)) for _ in range(25)]
    weights = generator.normal(size=30)
    targets = np.array([weights[text].sum() for text in texts]) + generator.normal(size=25)
    ours = Ridge.fit(texts, targets, vocab_size=50)
    counts = np.stack([np.bincount(text, minlength=50) for text in texts]).astype(float)
    errors = dict.fromkeys(STRENGTHS, 0.0)
    for strength in STRENGTHS:
        for out in range(25):
            kept = np.arange(25) != out
            theirs = linear_model.Ridge(alpha=strength).fit(counts[kept], targets[kept])
            errors[strength] += (theirs.predict(counts[[out]])[0] - targets[out]) ** 2
    assert ours.strength == min(errors, key=errors.__getitem__)
    assert ours.strength not in (STRENGTHS[0], STRENGTHS[-1])  # so that the choice is one
    theirs = linear_model.Ridge(alpha=ours.strength).fit(counts, targets)
    new = [generator.integers(0, 50, size=6) for _ in range(9)]
    expected = theirs.predict(np.stack([np.bincount(text, minlength=50) for text in new]))
    np.testing.assert_allclose(ours.predict(new), expected, rtol=1e-8)


@pytest.mark.parametrize("model", ["trained_bert", "trained_gpt"])
def test_a_run_learns_numbers_far_from_zero(model, tmp_path, request):
    words = {"import": 1000.0, "return": 1010.0, "class": 1020.0}
    rows = [{"text": f"{word} {i}", "score": score} for i in range(40) for word, score in words.items()]
    made = bytelm.finetune(
        request.getfixturevalue(model),
        task="regression",
        data=write(tmp_path / "rows.jsonl", rows),
        out=tmp_path / "out",
        train=SETTINGS,
        compare_scratch=False,
        held_out=0.3,
    )
    numbers = json.loads((made.path / "evaluation.json").read_text())["splits"]["validation"]
    others = numbers["comparison"]["others"]
    assert numbers["pearson"] > 0.9 and numbers["rmse"] < others["training mean"]["root mean squared error"] / 2
    assert others["training mean"]["Pearson correlation"] is None
    assert others["ridge regression on tokens"]["root mean squared error"] < 8
    task = Run(made.path).recipe.task
    assert task.mean == pytest.approx(1010, abs=2) and task.deviation == pytest.approx(8.16, abs=1)
    said = made.predict(list(words))
    assert [one["prediction"] for one in said] == pytest.approx(list(words.values()), abs=8)


def test_the_command_learns_the_similarity_of_pairs_and_prints_errors_and_correlations(
    in_process, tmp_path, trained_bert
):
    rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": 2 + i % 6 / 7} for i in range(40)]
    data = write(tmp_path / "rows.jsonl", rows)
    words = (
        "finetune", trained_bert, "--task", "regression", "--data", data, "--out", "out", "--dtype", "float32",
        "--no-compare-scratch", "--epochs",
    )  # fmt: skip
    done = in_process(*words, 1)
    assert done.returncode == 0, done.stderr
    for shown in ("root mean squared error", "mean absolute error", "Pearson", "Spearman", "training mean", "ridge"):
        assert shown in done.stdout
    said = in_process("predict", "out", "a text", "another")
    assert said.stdout.endswith(": a text | another\n") and 0 < float(said.stdout.split(":")[0]) < 5
    assert len(said.stdout.split(":")[0]) <= 6
    before = Run(tmp_path / "out").metrics()
    more = in_process(*words, 2)  # resumes: the mean and the deviation that it learned are those of config.toml
    assert more.returncode == 0, more.stderr
    assert Run(tmp_path / "out").metrics()[: len(before)] == before
    assert Run(tmp_path / "out").metrics()[-1]["tokens"] == 2 * before[-1]["tokens"]


def test_patience_given_to_a_longer_run_compares_scores_with_scores_only(tmp_path, trained_bert):
    """Without patience the validation loss, in standard deviations, judged the weights."""
    rows = [{"text": f"return {i} + {j}", "score": 1000.0 * i + 10 * j} for i in range(12) for j in range(3)]
    data = write(tmp_path / "rows.jsonl", rows)
    common = {"task": "regression", "data": data, "out": tmp_path / "out", "held_out": 0.3, "compare_scratch": False}
    bytelm.finetune(trained_bert, **common, train=SETTINGS | {"epochs": 2})
    made = bytelm.finetune(trained_bert, **common, train=SETTINGS | {"epochs": 6, "patience": 3})
    lines = [line for line in Run(made.path).metrics() if line["split"] == "validation"]
    scores = {line["step"]: line["root mean squared error"] for line in lines if "root mean squared error" in line}
    assert len(scores) == 4 and min(scores.values()) > 100 * max(line["loss"] for line in lines)
    assert find_checkpoint(made.path).name == f"step-{min(scores, key=scores.get):07d}"
