"""`score --questions`: multiple choice with examples before each question, as a plain loop over `transformers`."""

import json
import random
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import torch

import bytelm
from pipelines.scoring.questions import drawn_examples
from pipelines.tasks.choices import Choices
from pipelines.tasks.data import ExampleFiles
from tests.pipelines.exchange_cases import AUTO
from tests.pipelines.test_cli import assert_refused
from tests.tasks.files import write

ROWS = [
    {"question": f"{word} is", "choices": ["os", "a path", " in"][: 2 + i % 2], "answer": i % 2}
    for i, word in enumerate(["x", "it", "def", "import", "path", "os", "for", "self"])
]


def prompt(rows, number, shots):
    """Return the text before the choices of a question, with examples as nanochat draws them."""
    others = [row for i, row in enumerate(rows) if i != number]
    told = ""
    for row in random.Random(1234 + number).sample(others, shots):
        choice = row["choices"][row["answer"]]
        told += row["question"] + (choice if choice.startswith(" ") else " " + choice) + "\n\n"
    return told + rows[number]["question"]


@pytest.fixture(scope="module")
def exported(peers, tmp_path_factory):
    """Return a loaded run, and its export opened by `transformers` as a model and a tokenizer."""
    transformers = pytest.importorskip("transformers")
    folder = bytelm.export_hf(peers("gpt2")[2], out=tmp_path_factory.mktemp("hf") / "gpt2")
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    run = bytelm.load_run(peers("gpt2")[2], device="cpu")
    run.around = replace(run.around, before=(0,))
    return run, AUTO["gpt2"].from_pretrained(folder).eval(), tok


@pytest.mark.parametrize(
    ("end", "start", "between"), [("\n", "", "\n"), ("\n", " ", "\n "), ("", "\t", "\t"), ("", "", " ")]
)
def test_white_space_at_the_seam_is_kept_and_replaces_the_blank(trained_gpt, tmp_path, end, start, between):
    rows = [{"question": f"def {name}:{end}", "choices": [f"{start}pass", f"{start}x"], "answer": 0} for name in "ab"]
    run = bytelm.load_run(trained_gpt, device="cpu")
    found = bytelm.score_questions(run, [write(tmp_path / "rows.jsonl", rows)], shots=1)
    context = f"def b:{between}pass\n\ndef a:"
    expected = bytelm.rank_choices(run, context, [f"{between}{choice}" for choice in ("pass", "x")])
    assert found.log_probabilities[0] == pytest.approx(expected.log_probabilities, rel=1e-5)


def test_a_blank_question_needs_a_start_token(trained_gpt, tmp_path):
    run = bytelm.load_run(trained_gpt, device="cpu")
    file = write(tmp_path / "rows.jsonl", [{"question": " ", "choices": ["os", "path"], "answer": 0}])
    assert np.isfinite(bytelm.score_questions(run, [file]).log_probabilities[0]).all()
    with pytest.raises(ValueError, match=r"line 1 of .* is blank, and no start token"):
        bytelm.score_questions(run, [file], start=False)


@pytest.mark.filterwarnings("ignore:. of 8 questions were cut")
@pytest.mark.parametrize("shots", [0, 1, 2, 5])
@pytest.mark.parametrize("start", [True, False])
def test_scores_and_accuracies_are_those_of_transformers(shots, start, exported, tmp_path):
    run, peer, tok = exported
    found = bytelm.score_questions(run, [write(tmp_path / "rows.jsonl", ROWS)], shots=shots, start=start)
    length, right, normalized = run.config.model.context_length, [], []
    for number, (row, scores) in enumerate(zip(ROWS, found.log_probabilities, strict=True)):
        context, own = prompt(ROWS, number, shots), []
        read = tok(context)["input_ids"]
        for choice in row["choices"]:
            whole = tok(context + (choice if choice[0] == " " else " " + choice))["input_ids"]
            ids, added = [0] * start + whole, len(whole) - len(read)
            ids = ids[-length - 1 :]
            log_p = torch.log_softmax(peer(torch.tensor([ids[:-1]])).logits[0].detach().double(), dim=-1)
            own.append(sum(float(log_p[i - 1, ids[i]]) for i in range(len(ids) - added, len(ids))))
        assert scores == pytest.approx(own, abs=1e-3)
        right.append(int(np.argmax(own)) == row["answer"])
        per_character = [score / len(choice) for score, choice in zip(own, row["choices"], strict=True)]
        normalized.append(int(np.argmax(per_character)) == row["answer"])
    for share, each in ((found.accuracy, right), (found.accuracy_per_character, normalized)):
        assert share.value == pytest.approx(np.mean(each))
        assert share.error == pytest.approx(np.std(each, ddof=1) / np.sqrt(len(each)))
    assert found.chance == pytest.approx(np.mean([1 / len(row["choices"]) for row in ROWS]))
    assert (found.cut > 0) == (shots == 5)


def test_examples_are_never_the_question_or_an_equal_one(tmp_path):
    rows = [*ROWS[:3], ROWS[1], *ROWS[3:6], ROWS[1]]
    (_, _, questions) = ExampleFiles(data=(), test=(write(tmp_path / "rows.jsonl", rows),)).read(Choices())
    drawn = list(drawn_examples(questions, 4))
    for number, examples in enumerate(drawn):
        assert len(set(examples)) == 4
        assert all(rows[one]["question"] != rows[number]["question"] for one in examples)
    assert drawn == list(drawn_examples(questions, 4))
    assert {one for number in (1, 3, 7) for one in drawn[number]} <= {0, 2, 4, 5, 6}
    with pytest.raises(ValueError, match=r"`shots` is 6, but line 2 of .* has only 5 others: lower it"):
        list(drawn_examples(questions, 6))


def test_examples_of_a_question_do_not_depend_on_later_questions(tmp_path):
    (_, _, questions) = ExampleFiles(data=(), test=(write(tmp_path / "rows.jsonl", ROWS),)).read(Choices())
    for number, examples in enumerate(drawn_examples(questions, 3)):
        others = [i for i in range(len(ROWS)) if i != number]
        assert examples == tuple(random.Random(1234 + number).sample(others, 3))


def test_the_command_prints_both_accuracies_and_writes_json_and_parquet(in_process, trained_gpt, tmp_path):
    file = write(tmp_path / "rows.jsonl", ROWS)
    done = in_process("score", trained_gpt, "--questions", file, "--shots", "1")
    assert "acc_norm" in done.stdout and "8 questions; by chance 41.67%" in done.stdout
    assert "1 example before each question, drawn with Random(1234 + number); read after <|endoftext|>" in done.stdout
    done = in_process("score", trained_gpt, "--questions", file, "--no-start", "--json", "--parquet", "out.parquet")
    content = json.loads(done.stdout)
    assert (content["shots"], content["start_ids"], content["questions"]) == (0, [], 8)
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == content["rows"]
    renamed = write(tmp_path / "named.jsonl", [{"q": r["question"], "c": r["choices"], "a": r["answer"]} for r in ROWS])
    again = in_process("score", trained_gpt, "--questions", renamed, "--columns", "q", "c", "a", "--no-start", "--json")
    assert json.loads(again.stdout)["acc"] == content["acc"]


def test_one_question_has_no_standard_error(in_process, trained_gpt, tmp_path):
    file = write(tmp_path / "rows.jsonl", ROWS[:1])
    done = in_process("score", trained_gpt, "--questions", file, "--json")
    assert json.loads(done.stdout)["acc_stderr"] is None


@pytest.mark.parametrize(
    ("fixture", "arguments", "words"),
    [
        ("trained_gpt", ["x", "--choices"], "--choices names no choice to rank after the text: give at least one"),
        ("trained_gpt", ["--file", "a.txt", "--choices"], "--choices names no choice to rank after a.txt"),
        ("trained_gpt", ["--questions", "none.jsonl"], 'line 1 of none.jsonl has no field "choices": it has question'),
        ("trained_gpt", ["--questions", "bare.jsonl"], '"choices" in line 1 of bare.jsonl has 0 choices'),
        ("trained_gpt", ["--questions", "absent.jsonl"], "there is no absent.jsonl"),
        (
            "trained_gpt",
            ["--questions", "rows.jsonl", "--shots", "8"],
            "--shots is 8, but line 1 of rows.jsonl has only 7",
        ),
        ("trained_gpt", ["--questions", "rows.jsonl", "--shots", "-1"], "--shots is -1, but must not be negative"),
        ("trained_gpt", ["--questions", "rows.jsonl", "--pairs", "rows.jsonl"], "leave --questions out"),
        (
            "trained_gpt",
            ["--questions", "rows.jsonl", "--rolling"],
            "--questions scores whole texts: leave --rolling out",
        ),
        ("trained_gpt", ["x", "--shots", "2"], "--shots is for --questions: name a file with --questions"),
        ("trained_bert", ["--questions", "rows.jsonl"], "--questions needs a decoder"),
    ],
)
def test_mistakes_are_one_clear_sentence(fixture, arguments, words, in_process, request, tmp_path):
    write(tmp_path / "rows.jsonl", ROWS)
    write(tmp_path / "none.jsonl", [{"question": "x", "answer": 0}])
    write(tmp_path / "bare.jsonl", [{"question": "x", "choices": [], "answer": 0}])
    (tmp_path / "a.txt").write_text("x")
    assert_refused(in_process("score", request.getfixturevalue(fixture), *arguments), words)
