"""--help of every verb: short, by subject, with examples that the command line accepts."""

import re
import shlex
from dataclasses import fields

import pytest

from lm.config import SUBJECTS as MODEL_SUBJECTS
from lm.config import ModelConfig
from pipelines.cli.dispatch import main, verbs
from pipelines.recipes.config import SUBJECTS as TRAIN_SUBJECTS
from pipelines.recipes.config import TrainConfig

COMMANDS = [*verbs(), "corpus list", "corpus show", "dataset verify"]


@pytest.fixture
def say(capsys, monkeypatch):
    """Return the output of a command in 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words):
        try:
            main([*words])
        except SystemExit as leaving:
            assert not leaving.code
        return capsys.readouterr().out

    return run


def examples_of(said):
    block = said.partition("\nExamples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_page_and_has_two_examples(say, command):
    said = say(*command.split(), "--help")
    assert len(said.splitlines()) <= 60
    assert max(map(len, said.splitlines())) <= 80
    assert len(examples_of(said)) >= 2
    assert all(example.startswith(f"bytelm {command}") for example in examples_of(said))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_of_help_is_a_command_line_that_bytelm_accepts(say, command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in examples_of(say(*command.split(), "--help")):
        # The wrong option at the end is the only mistake.
        assert main([*shlex.split(example)[1:], "--xyz"]) == 2
        assert re.search(r": unknown option --xyz: ", capsys.readouterr().err), example


@pytest.mark.parametrize("command", COMMANDS)
def test_help_all_has_what_help_has_and_fits_the_terminal(say, command):
    short, whole = (say(*command.split(), option) for option in ("--help", "--help-all"))
    names = re.compile(r"^  (?:-q, )?(--[\w.\[\]-]+)", re.MULTILINE)
    assert set(names.findall(short)) <= set(names.findall(whole))
    assert max(map(len, whole.splitlines())) <= 80


def test_prose_of_help_is_wrapped_at_the_width_of_the_terminal(say, monkeypatch):
    for columns, some in ((60, verbs()), (100, ("pretrain", "evaluate"))):  # 80: the test above
        monkeypatch.setenv("COLUMNS", str(columns))
        for verb in some:
            said = say(verb, "--help-all")
            lines = [line for line in said.splitlines() if not line.startswith(("  bytelm ", "  -"))]
            assert max(map(len, lines)) <= columns, verb


def test_rare_options_are_in_help_all_only_and_by_subject(say):
    short, whole = say("pretrain", "--help"), say("pretrain", "--help-all")
    assert "--train.lr " in short and "--train.beta2 " not in short
    assert "--train.beta2 " in whole.partition("Train: optimizer:\n")[2].partition("\n\n")[0]
    assert "--model.rotary-base " in whole.partition("Model: positions:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize(("config", "subjects"), [(ModelConfig, MODEL_SUBJECTS), (TrainConfig, TRAIN_SUBJECTS)])
def test_every_field_has_a_subject_and_the_fields_of_a_subject_are_together(config, subjects):
    names = [field.name for field in fields(config)]
    for subject in subjects.values():
        own = " ".join(subject).split()
        first = min(map(names.index, own))
        assert sorted(names[first : first + len(own)]) == sorted(own)
    assert sorted(names) == sorted(" ".join(map(" ".join, subjects.values())).split())


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("corpus", {"list": "Print the named corpora", "show": "Read a corpus and print its documents"}),
        ("dataset", {"verify": "Check every file of a dataset"}),
    ],
)
def test_a_verb_with_a_second_word_says_what_each_does(say, verb, words):
    said = say(verb, "--help")
    for word, summary in words.items():
        assert re.search(rf"^  {word} +{summary}", said, re.MULTILINE)


def test_help_before_a_verb_explains_the_verb(say):
    assert say("help", "runs") == say("runs", "--help") == say("runs", "-h")


def test_counts_in_help_are_spelled_as_they_are_typed(say):
    said = say("pretrain", "gpt2-124m", "--help")
    assert "(default: 1024)" in said
    assert "(default: 500k)" in say("pretrain", "--help") and "000)" not in say("pretrain", "--help-all")


def test_options_name_their_values(say):
    """Several values are NAME ..., and the name says what a value is."""
    shown = "".join(say(verb, "--help-all") for verb in ("evaluate", "train-tokenizer", "sweep-vocabulary"))
    for option in ("--corpus CORPUS ...", "--splits SPLIT ...", "--checkpoint NAME", "--suffix SUFFIX ..."):
        assert f"  {option} " in shown, option
    for option in ("--special-tokens TOKEN ...", "--compare [NAME=]PATH ...", "--sizes N ..."):
        assert f"  {option}" in shown, option
    assert "STR" not in shown
