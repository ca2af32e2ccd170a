"""The task of choices: ids as transformers make them, rows as data sets have them, and answers that mean one choice."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
from sklearn import metrics
from transformers import AutoTokenizer

import bytelm
from lm.metrics.labels import calibration_error, log_softmax
from pipelines.run.folder import Run
from pipelines.tasks.choices import Choices
from pipelines.tasks.data import ExampleFiles, reader_of
from pipelines.tasks.examples import ABSENT, batch_of
from tests.tasks.files import write

SETTINGS = {"epochs": 10, "lr": 1e-2, "batch_size": 8, "device": "cpu", "dtype": "float32"}
ROW = {"question": "q", "choices": ["red", "green", "blue"]}


def learned(tmp_path, rows, **options):
    data = write(tmp_path / "rows.jsonl", rows)
    return ExampleFiles(data=(data,), test=(data,)).read(Choices(**options))


@pytest.mark.parametrize(
    ("row", "columns", "pairs"),
    [
        ({"question": "q", "choices": ["a", "b"]}, "question choices label", [("q", "a"), ("q", "b")]),
        ({"query": "q", "choices": ["a", "b"]}, "query choices label", [("q", "a"), ("q", "b")]),
        ({"context": "c", "endings": ["a", "b"]}, "context endings label", [("c", "a"), ("c", "b")]),
        (
            {"context": "c", "question": "q", "choices": ["a", "b"]},
            "context question choices label",
            [("c", "q a"), ("c", "q b")],
        ),
        (  # SWAG
            {"sent1": "s", "sent2": "t", **{f"ending{i}": x for i, x in enumerate("abcd")}},
            "sent1 sent2 ending label",
            [("s", "t a"), ("s", "t b"), ("s", "t c"), ("s", "t d")],
        ),
        (  # a table of text, where the last cells may be empty
            {"question": "q", "choice1": "a", "choice10": "", "choice2": "b", "choice9": None},
            "question choice label",
            [("q", "a"), ("q", "b")],
        ),
    ],
)
def test_questions_and_choices_are_found_by_their_usual_names(tmp_path, row, columns, pairs):
    task, (example,), _ = learned(tmp_path, [row | {"label": 1}])
    assert task.columns == tuple(columns.split())
    assert list(example.inputs.pairs) == pairs and example.target == 1


@pytest.mark.parametrize("answer", [2, "2", "C", "blue", " blue "])
def test_an_answer_is_a_number_a_letter_or_the_text_of_a_choice(tmp_path, answer):
    assert learned(tmp_path, [ROW | {"answer": answer}])[1][0].target == 2


def test_choices_may_have_names_of_their_own(tmp_path):
    row = {"question": "q", "choices": {"text": ["red", "green"], "label": ["1", "2"]}, "answerKey": "1"}
    assert learned(tmp_path, [row])[1][0].target == 0


def test_an_answer_that_is_no_label_is_told_the_labels(tmp_path):
    row = {"question": "q", "choices": {"text": ["red", "green"], "label": ["1", "2"]}, "answerKey": "A"}
    with pytest.raises(ValueError, match="give 0 to 1 without quotes, one of the labels 1, 2, or the text of a choice"):
        learned(tmp_path, [row])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"label": 3},
            r'"label" in line 1 of .* is 3, which means none of the 3 choices: give 0 to 2, a letter',
        ),
        ({"label": -1}, "is -1, which means none of the 3 choices"),
        ({"label": "D"}, "is 'D', which means none"),
        ({"label": 1.0}, r'"label" in line 1 of .* is 1.0, not an answer'),
        ({"label": True}, "is True, not an answer"),
        ({"label": None}, "is None, not an answer"),
        ({"choices": ["A", "B", "A"], "label": "A"}, "is 'A', which means several of the 3 choices"),
        ({"choices": ["B", "A"], "label": "A"}, "is 'A', which means several"),
        ({"choices": ["a"], "label": 0}, r'"choices" in line 1 of .* has 1 choices: give two'),
        ({"choices": [], "label": 0}, "has 0 choices: give two"),
        ({"choices": ["a", ""], "label": 0}, r"is \['a', ''\], not a list of texts, none of them empty"),
        ({"choices": ["a", None], "label": 0}, r"is \['a', None\], not a list of texts"),
        ({"choices": "a b", "label": 0}, "is 'a b', not a list of choices"),
        ({"choices": {"label": ["A"]}, "label": 0}, "not a list of texts"),
        ({"choices": {"text": ["a", "b"], "label": ["A"]}, "label": 0}, "has 2 choices and 1 labels"),
        ({"question": 5, "label": 0}, r'"question" in line 1 of .* is 5, not a text'),
        ({}, r'has no field "label": it has question, choices'),
    ],
)
def test_rows_that_mean_nothing_are_refused_by_line(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        learned(tmp_path, [ROW | row])


def test_results_equal_those_of_scikit_learn_and_of_the_formula(tmp_path):
    counts = [2, 3, 4] * 10
    rows = [{"question": f"q{i}", "choices": list("abcd"[:n]), "label": i % n} for i, n in enumerate(counts)]
    task, examples, _ = learned(tmp_path, rows)
    logits = np.random.default_rng(0).normal(size=(30, 1, 4)).astype(np.float32)
    (numbers,) = task.results(list(logits), [], examples)
    own = [row[0, :n] for row, n in zip(logits, counts, strict=True)]
    said, answers = [row.argmax() for row in own], [row["label"] for row in rows]
    assert numbers.choice_accuracy == metrics.accuracy_score(answers, said)
    assert numbers.choice_nats == pytest.approx(
        np.mean([-log_softmax(row)[answer] for row, answer in zip(own, answers, strict=True)])
    )
    confidences, right = np.array([np.exp(log_softmax(row)).max() for row in own]), np.array(said) == answers
    assert numbers.choice_calibration == pytest.approx(calibration_error(confidences, right))
    assert numbers.chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    fields = task.predictions(list(logits), [], examples)
    assert [one["prediction"] for one in fields] == said
    assert [len(one["probabilities"]) for one in fields] == counts
    assert all(sum(one["probabilities"]) == pytest.approx(1) for one in fields)


def test_simple_predictors_know_lengths_and_positions(tmp_path):
    rows = [{"question": str(i), "choices": ["a", "bb", "ccc"], "label": 1 if i % 4 else 2} for i in range(40)]
    task, examples, _ = learned(tmp_path, rows)
    others = task.baselines(examples, examples, None)
    assert others["most frequent position"].choice_accuracy == 0.75
    assert others["longest choice"].choice_accuracy == 0.25
    chance = np.array([1, 31, 11]) / 43  # add-one smoothing
    nats = -(0.75 * np.log(chance)[1] + 0.25 * np.log(chance)[2])
    assert others["most frequent position"].choice_nats == pytest.approx(nats)
    often = [replace(one, target=2) if i % 2 else one for i, one in enumerate(examples)]
    longest, right = task.baselines(often, often, None)["longest choice"], sum(one.target == 2 for one in often)
    assert longest.choice_accuracy == right / 40 > 0.5
    confidence = (right + 1) / 42
    nats = -(right * np.log(confidence) + (40 - right) * np.log((1 - confidence) / 2)) / 40
    assert longest.choice_nats == pytest.approx(nats)


@pytest.fixture(scope="module")
def typed_bert(tmp_path_factory, trained_bert, dataset_folder):
    """Return a run of BERT's shape, with token types."""
    recipe = Run(trained_bert).recipe
    model = replace(
        recipe.model, positions="learned", norm_position="post", bias=True, embedding_norm=True, token_types=2
    )
    out = tmp_path_factory.mktemp("typed") / "bert"
    bytelm.pretrain(replace(recipe, model=model), data=dataset_folder, out=out)
    return out


def test_ids_and_types_equal_those_of_the_exported_tokenizer(typed_bert, tmp_path):
    """As transformers' examples of multiple choice make them: one pair a choice, padded to the longest."""
    rows = [
        {"sent1": "import os", "sent2": "def", "ending0": "a", "ending1": "main() -> int:", "label": 0},
        {"sent1": "naïve", "sent2": "return", "ending0": "x y", "ending1": "1", "ending2": "漢字", "label": 2},
    ]
    task, examples, _ = learned(tmp_path, rows)
    batch = batch_of(task.encode(examples, reader_of(Run(typed_bert), task)))
    assert batch.inputs.shape[:2] == (2, 3) and batch.targets.tolist() == [[0], [2]]
    theirs = AutoTokenizer.from_pretrained(bytelm.export_hf(typed_bert, out=tmp_path / "hf"))
    pairs = [pair for example in examples for pair in example.inputs.pairs]
    expected = theirs([one for one, _ in pairs], [two for _, two in pairs], padding=True, return_tensors="np")
    assert expected["token_type_ids"].max() == 1
    there = batch.present.any(axis=-1)
    assert there.tolist() == [[True, True, False], [True, True, True]]
    np.testing.assert_array_equal(batch.present[there], expected["attention_mask"])
    kept = batch.present[there]
    np.testing.assert_array_equal(batch.inputs[there][kept], expected["input_ids"][kept])
    np.testing.assert_array_equal(batch.types[there], expected["token_type_ids"])


def test_a_long_question_is_cut_and_the_choices_are_kept(trained_bert, tmp_path):
    task, examples, _ = learned(tmp_path, [ROW | {"question": "word " * 99, "label": 0}])
    reader = reader_of(Run(trained_bert), task)
    (one,) = task.encode(examples, reader)
    assert one.cut and one.ids.shape[1] == 34
    for ids, choice in zip(one.ids, ROW["choices"], strict=True):
        ids = ids[ids != ABSENT].tolist()
        own = reader.ids([choice])[0]
        assert ids[-len(own) - 1 : -1] == own


@pytest.mark.parametrize("model", ["trained_bert", "trained_gpt"])
def test_a_run_learns_to_choose_among_different_numbers_of_choices(model, tmp_path, request):
    words = ["import", "return", "class", "def"]
    rows = [
        {"question": words[i % 4], "choices": [words[(i + k) % 4] for k in order], "label": order.index(0)}
        for i in range(60)
        for order in ([0, 1], [1, 0, 2], [2, 3, 0])
    ]
    rows = [row | {"question": f"{row['question']} {i}"} for i, row in enumerate(rows)]
    made = bytelm.finetune(
        request.getfixturevalue(model),
        task="choices",
        data=write(tmp_path / "rows.jsonl", rows),
        out=tmp_path / "out",
        train=SETTINGS | {"label_smoothing": 0.05},
        compare_scratch=False,
        held_out=0.3,
    )
    numbers = json.loads((made.path / "evaluation.json").read_text())["splits"]["validation"]
    best = max(one["accuracy"] for one in numbers["comparison"]["others"].values())
    assert numbers["choice_accuracy"] > best + 0.1
    (said,) = made.predict(["return 7", "class", "def", "return"])
    assert said["predicted_choice"] == ["class", "def", "return"][said["prediction"]]
    assert said["probability"] == max(said["probabilities"])


def test_the_command_reads_a_table_and_prints_the_choice(in_process, tmp_path, trained_gpt):
    lines = ["question,choice0,choice1,choice2,label"] + [
        f"q{i},yes {i},no,{'' if i % 2 else 'or'},A" for i in range(30)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    done = in_process(
        "finetune", trained_gpt, "--task", "choices", "--data", "rows.csv", "--out", "out", "--epochs", "1",
        "--dtype", "float32", "--no-compare-scratch",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for shown in ("validation: accuracy", "accuracy by chance", "longest choice", "most frequent position"):
        assert shown in done.stdout
    said = in_process("predict", "out", "what?", "this", "that").stdout
    assert said.endswith("%: what?\n") and said.split()[0] in ("this", "that")
    in_process("predict", "out", "--file", "rows.csv", "--out", "said.parquet")

    assert {len(p) for p in pyarrow.parquet.read_table(tmp_path / "said.parquet")["probabilities"].to_pylist()} == {
        2,
        3,
    }
    refused = in_process("predict", "out", "what?", "this")
    assert refused.returncode and "2 texts are given: give question, and two choices or more" in refused.stderr
