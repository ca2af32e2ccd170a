"""Each addition under "Where to add something" in docs/architecture.md works in the files that the table names.

Every test adds something to a copy of the packages and uses it from the command line.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LION = '''
"""Lion: the sign of an interpolated momentum (Chen et al. 2023, algorithm 2)."""

import torch

from lm.optim.adamw import AdamW
from lm.optim.optimizer import Optimizer


class Lion(Optimizer):
    label, moments, bound_by_products = "Lion", 1, False

    def __init__(self, params, lr, betas):
        super().__init__(params, {"lr": lr, "betas": betas})

    @classmethod
    def build(cls, decayed, undecayed, settings, execution):
        rates = (settings.weight_decay, 0.0)
        groups = [{"params": some, "weight_decay": rate} for some, rate in zip((decayed, undecayed), rates)]
        return cls(groups, settings.lr / 10, (settings.beta1, settings.beta2))

    @staticmethod
    def trains(model):
        return AdamW.trains(model)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                slow, fast = group["betas"][1], group["betas"][0]
                update = momentum.lerp(parameter.grad, 1 - fast).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 1 - slow)


OPTIMIZER = Lion
'''

COUNT_WORDS = '''
"""Text: count the words of a file."""

from pathlib import Path
from typing import Annotated

import tyro

from pipelines.cli.display import answer
from pipelines.cli.parsing import parse


def count_words(file: Annotated[Path, tyro.conf.Positional]) -> int:
    """Print the number of words of a file, and return it."""
    words = len(file.read_text().split())
    answer(f"{words:,} words")
    return words


def main(arguments: list[str]) -> None:
    """Run `bytelm count-words` with command-line arguments."""
    parse(count_words, arguments, "count-words")
'''


class House:
    """A copy of the packages, and the command that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for package in ("bytelm", "tokenizer", "lm", "corpora", "pipelines"):
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, path: str, text: str) -> None:
        """Write a new file."""
        assert not (self.folder / path).exists()
        (self.folder / path).write_text(text.lstrip(), encoding="utf-8")

    def register(self, path: str, before: str, after: str) -> None:
        """Replace the one place of `path` that lists names."""
        text = (self.folder / path).read_text(encoding="utf-8")
        assert text.count(before) == 1
        (self.folder / path).write_text(text.replace(before, after), encoding="utf-8")

    def bytelm(self, *arguments: object, errors: bool = False) -> str:
        """Run a command of this copy and return its output, with that of standard error if `errors`."""
        done = subprocess.run(
            [sys.executable, "-m", "pipelines", *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr * errors


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "house")


def losses(run: Path) -> list[float]:
    """Return the validation losses of a run in nats."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["loss"] for line in lines if line["split"] == "validation"]


def test_adding_an_optimizer_takes_its_module_and_its_name(house, tmp_path, dataset_folder):
    house.add("lm/optim/lion.py", LION)
    house.register("lm/optim/settings.py", '["adamw", "muon"]', '["adamw", "muon", "lion"]')
    run = tmp_path / "run"
    model = ("--model.layers", 1, "--model.width", 32, "--model.heads", 2, "--model.context-length", 32)
    train = ("--train.tokens", 12_800, "--train.batch-tokens", 256, "--train.warmup-tokens", 1024, "--train.lr", 0.02)
    command = ("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", run, "--train.optimizer", "lion")
    house.bytelm(*command, *model, *train)
    first, *_, last = losses(run)
    assert last < first - 0.5
    assert "Lion's moments" in house.bytelm("params", run)


def test_adding_a_verb_takes_its_module(house, tmp_path):
    house.add("pipelines/verbs/count_words.py", COUNT_WORDS)
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    assert "  count-words       count the words of a file\n" in house.bytelm("--help")
    assert "number of words" in house.bytelm("count-words", "--help")
    assert house.bytelm("count-words", text) == "3 words\n"
    assert "count-words" in house.bytelm("--completion", "bash")


def test_adding_a_named_split_pattern_takes_its_regex(house, tmp_path):
    patterns, name = "tokenizer/splitting/patterns.py", '    "gpt2": "gpt2",\n'
    house.register(patterns, name, f'{name}    "camel": "camel",\n')
    regex = r"""r"\p{Lu}?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+|\p{L}" """.strip()
    names = "_REGEX_OF = {\n"
    house.register(patterns, names, f'{names}    "camel": {regex},\n')
    text = tmp_path / "text.txt"
    text.write_text("parseHTML5Page42 readHTML5File123\n" * 50)
    said = house.bytelm(
        "train-tokenizer", text, "--vocab-size", 290, "--pattern", "camel", "--out", tmp_path / "camel", errors=True
    )
    assert "slower" not in said
    said = house.bytelm("tokenize", "--tokenizer", tmp_path / "camel", "parseHTML5Page123", errors=True)
    assert "slower" not in said
    assert [word for word in ("parse", "HTML", "5", "Page", "12", "3") if word not in said.split()] == []
