"""The page shows for every task what `bytelm predict` gives. The models have random weights, as no number is judged."""

import json

import pytest

from lm.model import LanguageModel
from lm.task_model import TaskModel
from pipelines.run.folder import Run
from pipelines.run.predictor import Predictor
from pipelines.tasks.choices import Choices
from pipelines.tasks.classes import Classes
from pipelines.tasks.regression import Regression
from pipelines.tasks.spans import Spans
from pipelines.tasks.text_to_text import TextToText
from pipelines.tasks.tokens import Tokens
from tests.serving.pages import TOUCH, WIDE, bars_of, check_looks, serving

HOSTILE = "<img src=x onerror=alert(1)>"
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TASKS = {
    "labels": Classes(labels=("good", "bad", HOSTILE)),
    "pairs": Classes(columns=("sentence1", "sentence2", "label"), labels=("same", "other")),
    "several": Classes(columns=("text", "labels"), labels=("a", "b", "c"), several=True),
    "numbers": Regression(mean=3.0, deviation=2.0),
    "choices": Choices(columns=("question", "choices", "answer")),
    "entities": Tokens(columns=("text", "entities"), labels=TAGS),
    "spans": Tokens(columns=("text", "spans"), labels=TAGS),
    "words": Tokens(columns=("tokens", "tags"), labels=("NOUN", "VERB", "DET")),
    "answers": Spans(stride=8),
    "unanswered": Spans(stride=8, unanswerable=True, threshold=1e6),
    "writer": TextToText(target_length=4),
}
TEXT = "🙂 import os from Paris"
GIVEN = {"pairs": [TEXT, "b"], "choices": ["Which?", "import\nParis\nos"], "answers": ["Who?", TEXT]}
GIVEN["unanswered"] = GIVEN["answers"]


@pytest.fixture(scope="module")
def tasks(trained_gpt, trained_bert):
    """Return a predictor for each of TASKS."""
    predictors = {}
    for name, task in TASKS.items():
        run = Run(trained_gpt if name == "writer" else trained_bert)
        head = task.head(run.recipe.model.architecture)
        model = LanguageModel(run.recipe.model, 1) if head is None else TaskModel(run.recipe.model, head, seed=1)
        predictors[name] = Predictor(run, model.eval(), task)
    return predictors


@pytest.fixture(scope="module")
def address(tasks):
    with serving({}, tasks=tasks) as (address, _):
        yield address


def predicted(tasks, name):
    """Return the fields that `bytelm predict` gives for the texts of a task."""
    texts = [line for text in GIVEN.get(name, [TEXT]) for line in (text.split("\n") if name == "choices" else [text])]
    task = tasks[name].task
    [(_, fields)] = tasks[name].predictions([task.example(row, labelled=False) for row in task.rows_of_texts(texts)])
    return fields


def predict(page, name):
    """Enter the texts of a task and wait for the prediction."""
    page.select_option("#run", name)
    for place, text in enumerate(GIVEN.get(name, [TEXT])):
        page.fill(f"#input-{place}", text)
    page.click("#predict-go")
    page.wait_for_function("() => !document.querySelector('#predict-status').textContent")
    assert page.locator("#problem").is_hidden()


@pytest.fixture
def page(open_page, address):
    return open_page(address)


@pytest.mark.parametrize("name", ["labels", "pairs", "several", "choices"])
def test_probabilities_are_bars_and_the_prediction_is_marked(name, page, tasks):
    predict(page, name)
    fields = predicted(tasks, name)
    chances = fields["probabilities"]
    pairs = (
        list(chances.items())
        if isinstance(chances, dict)
        else list(zip(GIVEN[name][1].split("\n"), chances, strict=True))
    )
    bars = bars_of(page, "#predicted")
    assert [label for label, _ in bars] == [label for label, _ in pairs]
    assert [float(share.removesuffix(" %")) for _, share in bars] == pytest.approx(
        [100 * p for _, p in pairs], abs=0.06
    )
    chosen = fields.get("predicted_choice", fields["prediction"])
    chosen = chosen if isinstance(chosen, list) else [chosen]
    assert page.locator("#predicted .own .piece").all_text_contents() == [name for name, _ in pairs if name in chosen]
    assert page.locator("#predicted .result").text_content() == (", ".join(chosen) or "no label")
    assert page.locator("img").count() == 0


def test_a_number_and_a_text_are_shown(page, tasks):
    predict(page, "numbers")
    assert float(page.locator(".result").text_content()) == pytest.approx(
        predicted(tasks, "numbers")["prediction"], rel=1e-3
    )
    predict(page, "writer")
    assert page.locator("#predicted .said").text_content() == predicted(tasks, "writer")["prediction"]


def with_chances(labels, fields):
    """Return labels with the probabilities of a prediction, if it has some."""
    chances = fields.get("probability", [None] * len(labels))
    return [label if p is None else f"{label} {100 * p:.1f} %" for label, p in zip(labels, chances, strict=True)]


@pytest.mark.parametrize("name", ["entities", "spans"])
def test_entities_are_marked_in_the_text(name, page, tasks):
    predict(page, name)
    fields = predicted(tasks, name)
    names = ("start", "end", "label")
    spans = [[one[key] for key in names] if isinstance(one, dict) else one for one in fields["prediction"]]
    assert spans, "random weights find no entity: choose another seed"
    marks = page.locator("#predicted mark").evaluate_all(
        "marks => marks.map(mark => [...mark.childNodes].map(each => each.textContent))"
    )
    labels = with_chances([label for *_, label in spans], fields)
    assert marks == [[TEXT[start:end], label] for (start, end, _), label in zip(spans, labels, strict=True)]
    whole = page.locator("#predicted .marks").evaluate(
        "each => { each.querySelectorAll('small').forEach(tag => tag.remove()); return each.textContent }"
    )
    assert whole == TEXT


def test_words_have_their_tags(page, tasks):
    predict(page, "words")
    fields = predicted(tasks, "words")
    assert page.locator("#predicted mark").all_text_contents() == [
        word + tag for word, tag in zip(fields["words"], with_chances(fields["prediction"], fields), strict=True)
    ]


def test_an_answer_is_marked_in_its_context_or_missing(page, tasks):
    predict(page, "answers")
    fields = predicted(tasks, "answers")
    assert (
        page.locator("#predicted .result").text_content()
        == fields["prediction"]
        == TEXT[fields["start"] : fields["end"]]
    )
    assert page.locator("#predicted mark").text_content() == fields["prediction"]
    predict(page, "unanswered")
    assert page.locator("#predicted .result").text_content() == "no answer"
    assert page.locator("#predicted mark").count() == 0 and predicted(tasks, "unanswered")["prediction"] == ""


def test_a_mistake_is_named_and_control_enter_predicts(page):
    page.select_option("#run", "labels")
    page.click("#predict-go")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator("#problem").text_content() == "“Text” is empty: give a text."
    page.fill("#input-0", "a")
    page.locator("#input-0").press("Control+Enter")
    page.wait_for_selector("#predicted .bars")
    assert page.locator("#problem").is_hidden()
    page.select_option("#run", "choices")
    assert page.locator("#predicted > *").count() == 0
    page.fill("#input-0", "Which?")
    page.fill("#input-1", "only one")
    page.click("#predict-go")
    page.wait_for_selector("#problem:not([hidden])")
    assert "two choices or more" in page.locator("#problem").text_content()


def test_the_page_says_that_the_input_was_cut(page):
    page.select_option("#run", "labels")
    for text, notes in (("word " * 100, ["The input is longer than the model reads: it was cut."]), ("word", [])):
        page.fill("#input-0", text)
        page.click("#predict-go")
        page.wait_for_function("() => !document.querySelector('#predict-status').textContent")
        assert page.locator("#predicted .note").all_text_contents() == notes


def test_a_task_without_a_form_of_its_own_shows_all_fields(page):
    answer = {"task": "new", "predictions": [{"prediction": "x", "more": [1, 2]}]}
    page.route("**/api/predict", lambda route: route.fulfill(json=answer))
    predict(page, "labels")
    assert page.locator("#predicted dt").all_text_contents() == ["prediction", "more"]
    assert [json.dumps(answer["predictions"][0]["more"]).replace(" ", "")] == page.locator(
        "#predicted dd"
    ).all_text_contents()[1:]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, TOUCH["viewport"]], ids=["wide", "phone"])
def test_axe_finds_nothing_in_any_task(size, scheme, open_page, address):
    page = open_page(address, viewport=size, color_scheme=scheme)
    for name in TASKS:
        predict(page, name)
        check_looks(page, name)


def test_a_run_of_text_to_text_has_the_views_of_a_language_model_too(open_page, tasks, gpt):
    with serving({"writer": gpt}, tasks={"writer": tasks["writer"]}) as (address, _):
        page = open_page(address)
        names = page.locator(".views label:not([hidden])").all_text_contents()
        assert names == ["Predict", "Read", "Write", "Inside"] and page.locator("#predict").is_visible()
