"""Answers to questions: files, windows, the rules of SQuAD, and runs that answer."""

import json
import re
import shutil
import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertForQuestionAnswering

from lm.metrics.answers import answer_f1, best_threshold, exact_match, normalized
from pipelines.evaluation.numbers import definitions
from pipelines.run.folder import Run
from pipelines.run.predictor import tuned_task
from pipelines.run.retention import find_checkpoint
from pipelines.tasks.data import reader_of
from pipelines.tasks.examples import ABSENT, Encoded
from pipelines.tasks.spans import Spans, best_answer
from pipelines.tasks.task import Example
from pipelines.tasks.windows import TokenText, answer_windows
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.finetune import finetune
from pipelines.verbs.predict import predict
from tests.lm.task_peers import BERT, twin
from tests.tasks.files import write
from tokenizer import Tokenizer

QUICK = {"epochs": 12, "lr": 5e-3, "batch_size": 16, "device": "cpu", "dtype": "float32", "dropout": 0.0}


def read(path):
    """Return (question, context, answers) of each example of a file."""
    task = Spans()
    return [(*one.inputs, list(one.target)) for one in task.examples([path])]


# The rules of SQuAD, read from their description: a second implementation


def words_by_the_rules(answer):
    kept = "".join(character for character in answer.lower() if character not in string.punctuation)
    without = re.sub(r"(?<!\w)(?:the|an|a)(?!\w)", " ", kept)
    return re.split(r"\s+", without.strip()) if without.strip() else []


def scores_by_the_rules(answer, golds):
    golds = [words for words in map(words_by_the_rules, golds) if words] or [[]]
    words = words_by_the_rules(answer)
    exact = max(int(words == gold) for gold in golds)
    f1 = 0.0
    for gold in golds:
        rest, common = list(gold), 0
        for word in words:
            if word in rest:
                rest.remove(word)
                common += 1
        if not words or not gold:
            f1 = max(f1, float(words == gold))
        elif common:
            precision, recall = common / len(words), common / len(gold)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return exact, f1


ANSWERS = st.lists(
    st.sampled_from(["the", "The", "a", "An", "cat", "Cat.", "$5", "5", "U.S.", "é", "--", "\n", "thea"])
)


@given(ANSWERS, st.lists(ANSWERS, max_size=3))
def test_scores_of_answers_follow_the_rules(answer, golds):
    answer, golds = " ".join(answer), [" ".join(gold) for gold in golds]
    expected = scores_by_the_rules(answer, golds)
    assert (exact_match(answer, golds), answer_f1(answer, golds)) == pytest.approx(expected)


def test_scores_of_answers_by_hand():
    assert normalized("The  U.S. Army's\ta-team!") == "us armys ateam"
    assert exact_match("the Broncos.", ["Denver Broncos", "broncos"]) == 1
    assert answer_f1("Denver's Broncos", ["Denver Broncos", "x"]) == 0.5  # denvers is another word
    assert answer_f1("big red dog dog", ["red dog"]) == pytest.approx(2 * 0.5 * 1 / 1.5)
    assert answer_f1("", []) == exact_match("", []) == 1
    assert answer_f1("dog", []) == answer_f1("", ["dog"]) == 0
    assert exact_match("", ["the"]) == 1  # an answer without words is none


def test_questions_with_and_without_an_answer_are_also_scored_apart():
    golds = ("Ann sang.", [(0, "Ann")]), ("Bob ran.", [(0, "Bob ran")]), ("Cy sat.", [])
    examples = [Example(None, ("Who?", context), target) for context, target in golds]
    sentences, none = Spans(unanswerable=True).baselines([], examples, None).values()
    assert (sentences.exact_match, sentences.answer_f1) == pytest.approx((1 / 3, (2 / 3 + 1) / 3))
    assert (sentences.has_answer_exact_match, sentences.has_answer_f1) == pytest.approx((1 / 2, (2 / 3 + 1) / 2))
    assert (none.has_answer_exact_match, none.has_answer_f1) == (0, 0)
    assert (sentences.no_answer_accuracy, none.no_answer_accuracy) == (0, 1)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1)
)
def test_no_other_threshold_scores_higher(cases):
    margins, answered, empty = (np.array(column, float) for column in zip(*cases, strict=True))

    def total(threshold):
        return np.where(margins > threshold, answered, empty).sum()

    found = best_threshold(margins, answered, empty)
    assert found not in margins
    assert total(found) == max(total(candidate) for candidate in np.arange(-5, 5, 0.25))


# The model


@pytest.mark.parametrize("padded", [False, True])
def test_logits_and_loss_are_those_of_bert_for_question_answering(padded):
    peer = BertForQuestionAnswering(BertConfig(**BERT.to_dict() | {"num_labels": 2}))
    theirs, ours = twin(peer, Spans().head("encoder"), "", output=peer.qa_outputs)
    ids, types = torch.randint(0, 40, (3, 9)), torch.randint(0, 2, (3, 9))
    present = torch.ones(3, 9, dtype=torch.bool)
    present[1, 6:] = not padded
    starts, ends = torch.tensor([2, 0, 5]), torch.tensor([4, 0, 8])
    expected = theirs(
        ids, attention_mask=present.long(), token_type_ids=types, start_positions=starts, end_positions=ends
    )
    logits = ours(ids, present=present if padded else None, types=types)
    for side, peer in enumerate((expected.start_logits, expected.end_logits)):
        torch.testing.assert_close(logits[:, side][present], peer[present], atol=1e-5, rtol=1e-5)
    loss = ours.loss(logits.flatten(0, 1), torch.stack((starts, ends), dim=1).flatten()) / 6
    if padded:  # theirs also gives padding a probability
        sides = [torch.where(present, peer, -torch.inf) for peer in (expected.start_logits, expected.end_logits)]
        pairs = zip(sides, (starts, ends), strict=True)
        expected.loss = sum(torch.nn.functional.cross_entropy(*pair) for pair in pairs) / 2
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)


@given(st.integers(0, 2**32), st.integers(1, 19), st.integers(1, 6))
def test_the_best_answer_is_that_of_all_spans_of_the_context(seed, tokens, longest):
    logits = np.random.default_rng(seed).normal(size=(2, tokens + 5)).astype(np.float32)
    places = np.full((tokens + 3, 2), ABSENT)
    places[3:] = np.arange(tokens)[:, None] + (0, 1)
    window = Encoded(ids=np.zeros(tokens + 3, np.int64), targets=np.zeros(2, np.int64), places=places)
    score, start, end = max(
        (float(logits[0, 3 + start] + logits[1, 3 + end]), start, end)
        for start in range(tokens)
        for end in range(start, min(tokens, start + longest))
    )
    found = best_answer(logits, window, longest)
    assert (found.score, found.start, found.end) == (pytest.approx(score), start, end + 1)
    assert found.no_answer == pytest.approx(logits[:, 0].sum())


# Windows


@pytest.fixture(scope="module")
def reader(trained_bert):
    return reader_of(Run(trained_bert), Spans())


@given(st.text("def retun self.x(é😀)\n", max_size=200), st.data())
def test_windows_cover_the_context_and_point_at_the_answer(reader, context, data):
    ids, offsets = reader.tokenizer.encode_with_offsets(context, disallowed_special=())
    start = data.draw(st.integers(0, max(0, len(context) - 1)))
    end = data.draw(st.integers(start + 1, start + 12)) if context else 0
    stride, question = data.draw(st.integers(1, 40)), reader.ids(["self?"])[0]
    answer = (start, min(end, len(context))) if context else None
    windows = answer_windows(question, TokenText(ids, offsets), answer, 0, reader, stride)
    room, special = reader.room(2) - len(question), reader.around.special
    begin, first = 2 + len(question), 0
    touched = [i for i, (a, b) in enumerate(offsets) if answer and a < answer[1] and b > answer[0]]
    for window in windows:
        inside = window.ids[begin:-1].tolist()
        assert window.ids[:begin].tolist() == [special["<|cls|>"], *question, special["<|sep|>"]]
        assert inside == ids[first : first + room] and window.ids[-1] == special["<|sep|>"]
        assert window.places[begin:-1].tolist() == [list(pair) for pair in offsets[first : first + room]]
        assert (window.places[[*range(begin), -1]] == ABSENT).all()
        known = range(first, first + room)
        within = touched and touched[0] in known and touched[-1] in known
        assert window.targets.tolist() == ([begin + touched[k] - first for k in (0, -1)] if within else [0, 0])
        assert not window.cut
        first += min(stride, room)
    assert first - min(stride, room) + room >= len(ids)


def test_a_long_question_leaves_half_of_the_model_to_the_context(reader):
    rows = Spans().rows_of_texts(["self " * 90, "the context", "", "x"])
    examples = [Spans().example(row, labelled=False) for row in rows]
    first, *_, last = Spans(stride=1000).encode(examples, reader)
    assert (first.places[:, 0] == ABSENT).sum() == 3 + reader.room(2) // 2 and first.cut
    assert not last.cut and last.origin == 1


@pytest.mark.parametrize("answer", ["Ada Lovelace", "wrote", "the first program", "Löndon."])
def test_windows_of_a_unigram_tokenizer_point_at_the_answer(reader, answer):
    unigram = Tokenizer.load(Path(__file__).parents[1] / "compatibility" / "0.1" / "unigram")
    context = "Ada Lovelace wrote  the first program. She was born in Löndon."
    [row] = Spans().rows_of_texts(["who?", context])
    example = replace(Spans().example(row, labelled=False), target=((context.index(answer), answer),))
    windows = Spans(stride=8).encode([example], replace(reader, tokenizer=unigram))
    [window, *_] = [window for window in windows if window.targets.any()]
    (start, _), (_, end) = window.places[window.targets]
    assert answer in context[start:end]


def test_a_tokenizer_without_offsets_is_refused(reader):
    unigram = Tokenizer.load(Path(__file__).parents[1] / "compatibility" / "0.1" / "unigram").as_sentencepiece()
    [row] = Spans().rows_of_texts(["q", "c"])
    with pytest.raises(ValueError, match="offsets of SentencePiece's Unigram models are not supported"):
        Spans().encode([Spans().example(row, labelled=False)], replace(reader, tokenizer=unigram))


# Files

CONTEXT = "Ada Lovelace wrote the first program. She was born in London."
QUESTIONS = [
    {"id": "a", "question": "Who wrote it?", "answers": [{"text": "Ada Lovelace", "answer_start": 0}] * 2},
    {"id": "b", "question": "Where?", "answers": [{"text": " London", "answer_start": 55}]},  # off by white space
    {"id": "c", "question": "When?", "is_impossible": True, "answers": [], "plausible_answers": [{"text": "first"}]},
]
EXPECTED = [
    ("Who wrote it?", CONTEXT, [(0, "Ada Lovelace")] * 2),
    ("Where?", CONTEXT, [(54, "London")]),
    ("When?", CONTEXT, []),
]


def test_all_forms_of_questions_read_alike(tmp_path):
    squad = {"version": "v2.0", "data": [{"title": "Ada", "paragraphs": [{"context": CONTEXT, "qas": QUESTIONS}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    listed = [{"context": CONTEXT, **one} for one in QUESTIONS]
    flat = [
        {"question": one["question"], "context": CONTEXT}
        | {"answers": {name: [answer[name] for answer in one["answers"]] for name in ("text", "answer_start")}}
        for one in QUESTIONS
    ]
    write(tmp_path / "listed.jsonl", listed)
    write(tmp_path / "flat.jsonl", flat)
    pa.parquet.write_table(pa.Table.from_pylist(flat), tmp_path / "flat.parquet")
    for name in ("squad.json", "listed.jsonl", "flat.jsonl", "flat.parquet"):
        assert read(tmp_path / name) == EXPECTED, name
    assert next(iter(Spans().read(tmp_path / "squad.json"))).fields["title"] == "Ada"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("London", r"\"answers\" in line 1 of .* is 'London', not answers: an object or a list"),
        ({"text": ["a"], "answer_start": []}, 'give "text" and "answer_start", two lists of one length'),
        ([{"text": "a"}], "has {'text': 'a'}: give \"text\" and a whole number"),
        ([{"text": "Paris", "answer_start": 3}], "the answer 'Paris' in .* is not in the context: fix it"),
        ([{"text": "", "answer_start": 3}], "the answer '' in .* is not in the context"),
    ],
)
def test_unusable_answers_are_refused_by_name(tmp_path, answers, message):
    path = write(tmp_path / "rows.jsonl", [{"question": "q", "context": CONTEXT, "answers": answers}])
    with pytest.raises(ValueError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not in the format of SQuAD"),
        ("{", "is not JSON"),
        ('{"data": {}}', '"data" of .* is no list of objects'),
        ('{"data": [{"title": "x"}]}', '"paragraphs" of an article of .* is no list of objects'),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 1}]}]}]}',
            'question 1 of .* has no field "question"',
        ),
    ],
)
def test_other_json_is_refused_by_name(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a.json")


def test_runs_and_options_that_do_not_fit_are_refused(tmp_path, trained_gpt, trained_bert, in_process):
    data = write(tmp_path / "a.jsonl", [{"question": "q", "context": "c", "answers": []}] * 2)
    done = in_process("finetune", trained_gpt, "--task", "spans", "--data", data, "--out", "run")
    assert done.returncode == 1 and "but the task spans is for encoder" in done.stderr
    done = in_process("finetune", trained_bert, "--task", "spans", "--data", data, "--test", data, "--out", "run")
    assert "no example has an answer: give some with one" in done.stderr
    done = in_process("finetune", trained_bert, "--task", "spans", "--data", data, "--out", "run", "--stride", "0")
    assert "--stride is 0, but must be at least 1" in done.stderr
    assert not (tmp_path / "run").exists()


# Runs


def questions(numbers, unanswerable):
    """Yield questions for the name after `def`, in contexts longer than the model reads; some contexts have none."""
    for number in numbers:
        filler = "return self " * (4 * (number % 5))
        for name in ("x", "y")[: 1 + number % 2]:
            impossible = unanswerable and number % 3 == 0
            context = filler + ("none " if impossible else f"def {name}{number} : ") + "return self\n"
            answer = (
                [] if impossible else [{"text": f"{name}{number}", "answer_start": context.index(f"{name}{number}")}]
            )
            yield {"question": "def ?", "context": context, "answers": answer}


@pytest.fixture(scope="module", params=[False, True], ids=["answers", "no-answers"])
def answerer(request, tmp_path_factory, trained_bert):
    folder = tmp_path_factory.mktemp("answers")
    for name, numbers in (("train", range(100)), ("test", range(100, 130)), ("other", range(130, 150))):
        write(folder / f"{name}.jsonl", questions(numbers, request.param))
    finetune(
        trained_bert, task="spans", data=[folder / "train.jsonl"], test=[folder / "test.jsonl"], out=folder / "run",
        compare_scratch=False, train=QUICK, options={"stride": 8, "answer_length": 4},
    )  # fmt: skip
    return folder, request.param


def test_predictions_are_in_the_context_and_have_the_scores_of_the_evaluation(answerer, tmp_path):
    folder, unanswerable = answerer
    result = evaluate(folder / "run").validation
    predict(folder / "run", file=folder / "test.jsonl", out=tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row in rows:
        if row["prediction"]:
            assert row["prediction"] == row["context"][row["start"] : row["end"]] == row["prediction"].strip()
        else:
            assert unanswerable and row["start"] is row["end"] is None
    golds = [[answer["text"] for answer in row["answers"]] for row in rows]
    scores = np.array([scores_by_the_rules(row["prediction"], gold) for row, gold in zip(rows, golds, strict=True)])
    assert (result.exact_match, result.answer_f1) == pytest.approx(tuple(scores.mean(axis=0)))
    assert result.exact_match > 0.5
    answerable = np.array([bool(gold) for gold in golds])
    if unanswerable:
        assert result.threshold_tuned_here
        assert [row["prediction"] != "" for row in rows] == [row["margin"] > result.answer_threshold for row in rows]
        assert result.has_answer_f1 == pytest.approx(scores[answerable, 1].mean())
        assert result.no_answer_accuracy == pytest.approx(scores[~answerable, 0].mean())
        assert result.comparison.others["no answer"]["exact match"] == pytest.approx((~answerable).mean())
    else:
        assert result.has_answer_f1 is None and result.answer_threshold is None
    assert result.windows > len(rows) + 10 and not result.cut_examples


def test_numbers_are_defined_as_in_the_task_and_options_for_a_text_are_refused(answerer):
    folder, _ = answerer
    names = {key: (name, definition) for name, key, definition in definitions([evaluate(folder / "run").validation])}
    own = {key: (shown.name, shown.definition) for kind in Spans().kinds for key, shown in kind.numbers().items()}
    assert {"exact_match", "answer_f1"} <= names.keys() & own.keys()
    assert all(names[key] == own[key] for key in names.keys() & own.keys())
    with pytest.raises(ValueError, match="is fine-tuned for a task: leave `stride` and `audit` out"):
        evaluate(folder / "run", stride=8, audit=True)


def test_other_examples_are_measured_with_the_threshold_of_the_held_out_ones(answerer):
    folder, _ = answerer
    tuned = evaluate(folder / "run").validation
    other = evaluate(folder / "run", data=folder / "other.jsonl").validation
    assert other.answer_threshold == tuned.answer_threshold
    assert not other.threshold_tuned_here


def test_the_threshold_is_that_of_the_checkpoint(answerer, tmp_path):
    folder, unanswerable = answerer
    if not unanswerable:
        return
    run = Run(shutil.copytree(folder / "run", tmp_path / "run"))
    own = evaluate(run.folder)
    newer = json.loads((run.folder / "evaluation.json").read_text())
    (name,) = newer["splits"]
    newer["earlier"] = [{"split": name, "numbers": newer["splits"][name], "measured": dict(newer["measured"][name])}]
    newer["splits"][name] = newer["splits"][name] | {"answer_threshold": 123.0}
    newer["measured"][name]["checkpoint_sha256"] = "that of another checkpoint"
    (run.folder / "evaluation.json").write_text(json.dumps(newer))
    assert tuned_task(run, find_checkpoint(run.folder)).threshold == own.validation.answer_threshold != 123
    newer["earlier"] = []
    (run.folder / "evaluation.json").write_text(json.dumps(newer))
    assert tuned_task(run, find_checkpoint(run.folder)).threshold == 123  # better than none


def test_the_command_answers_a_question(answerer, in_process):
    folder, _ = answerer
    done = in_process("predict", folder / "run", "def ?", "def x7 : return self")
    assert done.returncode == 0 and done.stdout.endswith(": def ?\n"), done.stderr
    done = in_process("predict", folder / "run", "def ?", "", "--json")
    assert json.loads(done.stdout) == {"prediction": "", "start": None, "end": None, "margin": None}
    done = in_process("predict", folder / "run", "def ?")
    assert "1 texts are given, but an example has 2: question and context" in done.stderr
