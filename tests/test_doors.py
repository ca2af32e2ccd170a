"""Each addition under "Where to add something" in docs/architecture.md works in the files that the table names.

Every test adds something to a copy of the packages and uses it from the command line.
"""

import json
import os
import re
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


SURE = '''
"""Sure predictions: the share of the scored tokens that cost few bits."""

from dataclasses import dataclass

import numpy as np

from lm.analysis.metrics import bits
from pipelines.evaluation.measurement import Measurement, Result, Section, Table, number
from pipelines.evaluation.planning import EvaluationOptions
from pipelines.evaluation.split import ScoredSplit
from pipelines.run.folder import Run


@dataclass(frozen=True)
class SureShare(Result):
    section = Section("Sure predictions", "Tokens that cost few bits.")

    sure_share: float = number("sure tokens", "Share of the tokens that cost few bits.", 4, headline=True)
    sure_counts: tuple[tuple[float, int], ...]

    def parts(self):
        rows = [(f"{limit:g}", [f"{count:,}"]) for limit, count in self.sure_counts]
        return [Table("tokens by cost", "bits below", ["tokens"], rows)]


@dataclass(frozen=True, kw_only=True)
class Sure(Measurement):
    result = SureShare

    sure: float = 0.0
    """Limit in bits of a sure token; 0 leaves it out"""

    def check(self, run: Run, options: EvaluationOptions):
        if self.sure < 0:
            raise ValueError(f"--sure is {self.sure}, but must be at least 0")

    def measure(self, split: ScoredSplit):
        costs = bits(1) * split.tokens.nats
        counts = tuple((limit, int(np.sum(costs < limit))) for limit in (self.sure, 1000.0))
        return SureShare(counts[0][1] / len(costs), counts) if self.sure else None


MEASUREMENT = Sure
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

    def bytelm(self, *arguments: object) -> str:
        """Run a command of this copy and return its output."""
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
        return done.stdout


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


def test_adding_a_measurement_takes_its_module(house, tmp_path, trained_gpt):
    house.add("pipelines/evaluation/measurements/sure.py", SURE)
    run = shutil.copytree(trained_gpt, tmp_path / "gpt", ignore=shutil.ignore_patterns("evaluation.json"))
    assert "Limit in bits of a sure token" in house.bytelm("evaluate", "--help")
    printed = house.bytelm("evaluate", run, "--sure", 7.5, "--explain")
    numbers = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))["splits"]["validation"]
    assert re.search(rf"sure tokens +{numbers['sure_share']:.4f}", printed)
    assert "sure tokens (sure_share)\n  Share of the tokens that cost few bits." in printed
    (limit, sure), (_, every) = numbers["sure_counts"]
    assert (limit, every) == (7.5, numbers["tokens"])
    # The other tokens alone cost at least their share of the mean.
    assert 0 < numbers["sure_share"] == sure / every < 1
    assert (1 - numbers["sure_share"]) * 7.5 <= numbers["cross_entropy_bits"]
    house.bytelm("report", run, "--no-samples", "--no-inside")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '<h2 id="sureshare">Sure predictions</h2>' in page and f"<td>{sure:,}</td>" in page
    assert "<dt>sure tokens</dt>" in page
