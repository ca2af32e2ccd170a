"""The commands and the script of docs/chat.md work in order, with fewer conversations and a smaller model."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.conversations import Options, asked_about, main
from pipelines.evaluation.results import Evaluation
from pipelines.run.loaded_run import load_run
from tests.serving.conftest import client_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "chat.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(?:bytelm|python) .*$", "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)), re.M)
SMALLER = {
    "pretrain": ["--train.tokens", "5k", "--model.layers", "1", "--model.width", "32", "--model.heads", "2"],
    "finetune": ["--epochs", "1", "--no-compare-scratch", "--micro-batch", "4"],
    "chat": ["--tokens", "4"],
}


@pytest.mark.slow
def test_the_commands_of_the_page_make_an_assistant(in_process, tmp_path, monkeypatch):
    for command in COMMANDS:
        program, *words = shlex.split(command)
        if program == "python":
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run([sys.executable, *words, "--count", "60"], cwd=tmp_path, env=environment, check=True)
            continue
        if words[0] == "serve":
            continue  # the request is sent below
        done = in_process(*words, *SMALLER.get(words[0], []))
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    monkeypatch.chdir(tmp_path)
    for script in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(script, {"__name__": "__main__"})
    numbers = Evaluation.read(Path("my/assistant")).validation.results[0]
    assert numbers.answers > 0
    body = re.search(r"-d '(.*)'", PAGE)[1]
    with client_of({"assistant": load_run("my/assistant", device="cpu")}) as client:
        response = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 200 and response.json()["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("seed", [0, 1])
def test_the_questions_of_the_test_share_nothing_with_the_training(tmp_path, seed):
    main(Options(out=tmp_path, count=3000, seed=seed))
    files = {name: (tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("train", "test", "text")}
    sides = {}
    for name in ("train", "test"):
        rows = [json.loads(line)["messages"] for line in files[name]]
        assert all([m["role"] for m in row] == ["user", "assistant"] * (len(row) // 2) for row in rows)
        sides[name] = asked_about(message["content"] for row in rows for message in row[::2])
    assert not sides["train"] & sides["test"] and min(map(len, sides.values())) > 100
    assert len(files["test"]) == 300 and len(files["text"]) == 3000
    assert not [word for word in sides["test"] if word.isalpha() and f" {word} " in "".join(files["text"])]


def test_answers_are_right(tmp_path):
    main(Options(out=tmp_path, count=500))
    rows = [json.loads(line)["messages"] for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    pairs = [(row[i]["content"], row[i + 1]["content"]) for row in rows for i in range(0, len(row), 2)]
    for question, answer in pairs:
        if found := re.fullmatch(r"What is (\d+) (plus|minus) (\d+)\?", question):
            one, other = int(found[1]), int(found[3])
            assert int(answer) == (one + other if found[2] == "plus" else one - other) >= 0
        elif question.startswith("Spell"):
            assert answer.replace("-", "") == question.split()[1].strip(".")
        elif question.startswith("Repeat"):
            assert question == f"Repeat {answer}."
