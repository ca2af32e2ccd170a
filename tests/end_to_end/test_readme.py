"""Every command and script in the README and the pages of docs/ works as printed."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from pipelines.cli.dispatch import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ELSEWHERE = {"serving", "chat"}  # tests/serving/test_docs.py, tests/tasks/test_chat_page.py
FIRST = ("corpora", "models", "evaluation", "scoring", "entropy", "python", "tokenizer-methods", "training")
OTHERS = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.stem not in FIRST)
PAGES = [*(ROOT / "docs" / f"{name}.md" for name in FIRST), *OTHERS]
DOCS = [page.read_text(encoding="utf-8") for page in PAGES if page.stem not in ELSEWHERE]
TEXT = "\n".join([README, *DOCS])
COMMANDS = re.findall(r"^bytelm .*$", "\n".join(re.findall(r"```sh\n(.*?)```", TEXT, re.S)), re.M)
DOCUMENTS = 15  # of 10 kB
INSTALLED = 1  # commands that start a process; each start costs seconds
# In docs/, only the slow test runs them.
LONG = ("entropy", "evaluate", "figures", "inspect", "report", "scale", "serve", "sweep-vocabulary")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.S)


@pytest.fixture
def newcomer(tmp_path, text_folder):
    """Return a folder with texts, pairs and labelled texts of a new user."""
    folder = tmp_path / "newcomer"
    folder.mkdir()
    texts = sorted(text_folder.iterdir())
    for name, part in (("my-text", texts[:DOCUMENTS]), ("other-text", texts[-DOCUMENTS:])):
        (folder / name).mkdir()
        for text in part:
            shutil.copy(text, folder / name)
    (folder / "my-text" / "story.txt").write_text("It was a dark and stormy night.\n" * 200)
    numbers = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    pairs = [{"en": f"{a} and {b} books", "de": f"{b} {a} buch"} for a in numbers for b in numbers]
    (folder / "my-pairs").mkdir()
    for split, part in (("train", pairs[:80]), ("validation", pairs[80:90]), ("test", pairs[90:])):
        (folder / "my-pairs" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, part)))
    labelled = [{"text": pair[language], "label": language} for pair in pairs for language in pair]
    (folder / "my-labels.jsonl").write_text("\n".join(map(json.dumps, labelled)))
    sentences = [{"sentence_good": f"{a} books", "sentence_bad": f"{a} book", "UID": "number"} for a in numbers[1:]]
    (folder / "my-sentences.jsonl").write_text("\n".join(map(json.dumps, sentences)))
    asked = [{"question": f"{a} and one", "choices": ["book", "books"], "answer": 1} for a in numbers]
    (folder / "my-questions.jsonl").write_text("\n".join(map(json.dumps, asked)))
    answers = [{"prompt": pair["en"], "completion": pair["de"]} for pair in pairs]
    (folder / "my-chat.jsonl").write_text("\n".join(map(json.dumps, answers)))
    return folder


def test_the_readme_has_commands_and_python():
    assert len(COMMANDS) >= 12
    assert len(PYTHON) >= 2


def test_bytelm_accepts_every_command_that_only_the_slow_test_runs(capsys, tmp_path, monkeypatch):
    """The wrong option at the end is the only mistake."""
    monkeypatch.chdir(tmp_path)
    left_out = [command for command in COMMANDS if command.split()[1] in LONG and command not in README]
    assert len(left_out) > 20
    for command in left_out:
        _, *words = shlex.split(command.partition("#")[0])
        assert main([*words, "--xyz"]) == 2, command
        assert ": unknown option --xyz: " in capsys.readouterr().err, command


@pytest.mark.parametrize("left_out", [LONG, pytest.param((), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_every_command_and_script_works_in_order(newcomer, bytelm, in_process, monkeypatch, left_out):
    """Commands run as printed, except that models and runs are small enough to take seconds. The first one, of "Your
    own text", starts the installed command. The others run in this process."""
    for number, command in enumerate(COMMANDS):
        _, *words = shlex.split(command.partition("#")[0])
        if words[0] in left_out and command not in README:
            continue
        if words[0] == "train":
            words += ["--tokens", "5k"]
        if words[0] == "pretrain" and "--train.words" not in words:  # a budget of words is small already
            words[words.index("--train.tokens") + 1] = "5k"
        if words[0] == "pretrain" and "--init-from" not in words:
            words += ["--model.width", "64", "--model.heads", "2"]
            words += [] if "--model.mixers" in words else ["--model.layers", "1"]
        if words[0] == "sweep-vocabulary":
            words += ["--kinds", "bpe", "--sizes", "512", "--seeds", "1", "--flops", "5e9"]
        if words[0] == "serve":
            serve(words[1:], newcomer)
            continue
        done = (bytelm if number < INSTALLED else in_process)(*words, cwd=newcomer)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    monkeypatch.chdir(newcomer)
    for script in PYTHON:
        exec(script, {"__name__": "__main__"})
    assert (newcomer / "my" / "report.html").exists()


def serve(arguments, folder):
    """Start the server on a free port, open its address, and end it as Ctrl-C does."""
    words = [str(Path(sys.executable).with_name("bytelm")), "serve", *arguments, "--port", "0"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = [process.stdout.readline() for _ in range(2)][1].strip()
            assert address, process.communicate()
            assert urlopen(address, timeout=300).status == 200
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130, errors


def test_a_first_run_on_your_own_text_takes_one_line():
    own = README.index("## Your own text")
    block = re.search(r"```sh\n(.*?)```", README[own:], re.S)[1]
    assert block.strip() == "bytelm train my-text/ --out my"


def test_the_make_targets_exist():
    targets = (ROOT / "Makefile").read_text()
    for name in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{name}:", targets, re.M), name
