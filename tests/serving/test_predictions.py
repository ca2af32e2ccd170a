"""Fine-tuned runs answer with what `bytelm predict` gives, and are listed with their task."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import bytelm
from lm.task_model import TaskModel
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_run
from pipelines.run.predictor import Predictor
from pipelines.serving.predictions import AT_ONCE
from pipelines.tasks.choices import Choices
from pipelines.tasks.preferences import Preferences
from pipelines.tasks.text_to_text import TextToText
from pipelines.tasks.tokens import Tokens
from tests.loaded_runs import variant
from tests.serving.conftest import client_of
from tests.tasks.files import write

TRAIN = {"epochs": 1, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, trained_bert):
    """Return runs that are fine-tuned for the label of a text, and for the number of a pair."""
    folder = tmp_path_factory.mktemp("tuned")
    labels = write(
        folder / "labels.jsonl", [{"text": f"{'yes' if i % 2 else 'no'} {i}", "label": i % 2} for i in range(40)]
    )
    pairs = write(
        folder / "pairs.jsonl", [{"sentence1": f"a {i}", "sentence2": "b", "score": i % 5} for i in range(40)]
    )
    options = {"train": TRAIN, "compare_scratch": False}
    return {
        "labels": bytelm.finetune(trained_bert, data=labels, out=folder / "labels", **options),
        "pairs": bytelm.finetune(trained_bert, task="regression", data=pairs, out=folder / "pairs", **options),
    }


@pytest.fixture(scope="module")
def client(tuned, gpt):
    with client_of({"gpt": gpt}, tasks=tuned) as made:
        yield made


def predict(client, **body):
    return client.post("/api/predict", json=body)


def test_a_preference_is_refused_with_the_name_of_its_task(gpt, tuned):
    run = variant(gpt, config=replace(gpt.config, task=Preferences()))
    with client_of({"dpo": run}, tasks=tuned) as client:
        answer = predict(client, model="dpo", texts=["a", "b", "c"])
    message = "the server does not predict the task preferences of dpo: name one of labels, pairs"
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


def test_predictions_equal_those_of_the_run(client, tuned):
    texts = [f"yes {i}" for i in range(20)]
    answer = predict(client, model="labels", texts=texts).json()
    assert answer["model"] == "labels" and answer["task"] == "classes"
    expected = tuned["labels"].predict(texts)
    assert [one["prediction"] for one in answer["predictions"]] == [one["prediction"] for one in expected]
    for ours, theirs in zip(answer["predictions"], expected, strict=True):
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)
    (one,) = predict(client, model="pairs", texts=["a 1", "b"]).json()["predictions"]
    assert one["prediction"] == pytest.approx(tuned["pairs"].predict(["a 1", "b"])[0]["prediction"], abs=1e-5)


def test_an_answer_says_whether_an_example_is_longer_than_the_model_reads(client):
    long = "yes " * 100
    for texts, cut in (([long], True), (["yes"], False), ([*["yes"] * 9, long], True), (["yes"] * 9, False)):
        assert predict(client, model="labels", texts=texts).json()["cut"] is cut


def test_fine_tuned_runs_are_listed_with_their_task_and_the_page_has_a_view_for_them(client):
    entries = {entry["id"]: entry for entry in client.get("/v1/models").json()["data"]}
    assert {name: entry.get("task") for name, entry in entries.items()} == {
        "gpt": None,
        "labels": "classes",
        "pairs": "regression",
    }
    assert client.get("/v1/models/labels").json() == entries["labels"]
    listed = {model["name"]: model for model in client.get("/api/models").json()["models"]}
    assert {name: model["views"] for name, model in listed.items()} == {
        "gpt": ["read", "write", "inside"],
        "labels": ["predict"],
        "pairs": ["predict"],
    }
    assert [listed[name]["inputs"] for name in ("labels", "pairs")] == [["text"], ["sentence1", "sentence2"]]


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"texts": ["a"]}, 400, "model", "model is missing: name one of labels, pairs"),
        ({"model": "gpt", "texts": ["a"]}, 400, "model", "gpt is not fine-tuned for a task: name one of labels, pairs"),
        ({"model": "none", "texts": ["a"]}, 404, "model", "there is no model 'none'"),
        ({"model": ["labels"], "texts": ["a"]}, 404, "model", "there is no model"),
        ({"model": "labels"}, 400, "texts", "texts is null, but must be a list of 1 to 1,024 strings"),
        ({"model": "labels", "texts": []}, 400, "texts", "texts is [], but must be a list"),
        ({"model": "labels", "texts": "a"}, 400, "texts", 'texts is "a", but must be a list'),
        ({"model": "labels", "texts": ["a"] * 1025}, 400, "texts", "but must be a list of 1 to 1,024"),
        ({"model": "labels", "texts": ["a" * 100_001]}, 400, "texts", "of at most 100,000 characters"),
        ({"model": "labels", "texts": ["a", ""]}, 400, "texts", "text 2 is empty: fill it in, or leave its example"),
        ({"model": "pairs", "texts": ["a", "b", "", "d"]}, 400, "texts", "text 3 is empty"),
        ({"model": "labels", "texts": ["\ud800"]}, 400, "texts", "texts has a lone surrogate"),
        ({"model": "pairs", "texts": ["a"]}, 400, "texts", "1 texts are given, but an example has 2"),
        ({"model": "labels", "texts": ["a"], "top": 1}, 400, "top", "top is not a field of this request"),
    ],
)
def test_mistakes_are_named(client, body, status, param, message):
    response = client.post("/api/predict", content=json.dumps(body), headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param) and message in error["message"]


def test_a_question_has_at_most_64_choices_and_is_not_empty(trained_bert):
    """More choices would block the other requests, because the model reads all choices of a question together."""
    run, task = Run(trained_bert), Choices(columns=("question", "choices", "answer"))
    model = TaskModel(run.recipe.model, task.head("encoder"), seed=1).eval()
    with client_of({}, predictors={"choices": Predictor(run, model, task)}) as client:
        answer = predict(client, texts=["Which?", *map(str, range(64))]).json()
        assert len(answer["predictions"][0]["probabilities"]) == 64
        for texts, message in (
            (["Which?", *map(str, range(65))], "the question has 65 choices, but may have at most 64"),
            (["", "a", "b"], "text 1 is empty"),
            (["Which?", "a", ""], '"choices" in the texts is'),
        ):
            response = predict(client, texts=texts)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, "texts") and message in error["message"]


def test_a_text_of_many_windows_is_read_in_several_turns_with_the_same_prediction(trained_bert):
    turns = []

    class Watched(Tokens):
        def outputs(self, predictor, encoded, **options):
            turns.append(len(encoded))
            return super().outputs(predictor, encoded, **options)

    run, task = Run(trained_bert), Watched(columns=("text", "entities"), labels=("NOUN", "VERB"))
    model = TaskModel(run.recipe.model, task.head("encoder"), seed=1).eval()
    predictor, text = Predictor(run, model, task), "yes and no " * 200
    with client_of({}, predictors={"words": predictor}) as client:
        (answered,) = predict(client, texts=[text]).json()["predictions"]
    assert len(turns) > 2 and max(turns) <= AT_ONCE
    ((_, whole),) = predictor.predictions([task.example(row, labelled=False) for row in task.rows_of_texts([text])])
    assert answered["words"] == whole["words"]
    assert answered["probability"] == pytest.approx(whole["probability"], abs=1e-5)


def test_texts_that_a_model_writes_do_not_delay_other_requests(trained_t5, gpt):
    begun, answered, waited = threading.Event(), threading.Event(), []

    class Watched(TextToText):
        def outputs(self, predictor, encoded, **options):
            begun.set()
            waited.append(answered.wait(10))
            return super().outputs(predictor, encoded, **options)

    run, task = load_run(trained_t5, device="cpu"), Watched(columns=("source", "target"), target_length=4)
    predictor = Predictor(run.run, run.loaded.model, task)
    with client_of({"gpt": gpt}, predictors={"t5": predictor}) as client, ThreadPoolExecutor(1) as other:
        predicted = other.submit(predict, client, texts=["a cat", "a dog"])
        assert begun.wait(60)
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
        assert client.get("/health").status_code == 200
        answered.set()
        answer = predicted.result().json()
    assert waited == [True]
    examples = [task.example(row, labelled=False) for row in task.rows_of_texts(["a cat", "a dog"])]
    assert answer["predictions"] == [fields for _, fields in predictor.predictions(examples)]


def test_other_endpoints_refuse_fine_tuned_runs_and_predict_refuses_where_there_is_none(client, tuned, gpt):
    refused = client.post("/v1/completions", json={"model": "labels", "prompt": "a"}).json()["error"]
    assert refused["message"] == "labels is fine-tuned for a task: use POST /api/predict"
    with client_of({"gpt": gpt}) as other:
        error = predict(other, texts=["a"]).json()["error"]
        assert error["message"] == "model is missing: serve a run of a task that it predicts"
    with client_of({}, tasks={"labels": tuned["labels"]}) as other:
        assert len(predict(other, texts=["a"]).json()["predictions"]) == 1
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/tokenize", {"prompt": "a"})):
            assert "use POST /api/predict" in other.post(path, json=body).json()["error"]["message"]
        assert other.get("/health").json() == {"status": "ok"}
        missing = other.get("/v1/models/none")
        assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"
