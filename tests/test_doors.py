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

CHARACTERS = '''
"""Characters: every character of the training text is an entry, and others are <unk>."""

import json
from collections import Counter

from tokenizer.kinds.kind import Kind
from tokenizer.splitting.splitter import Splitter
from tokenizer.vocabulary import Vocabulary

UNKNOWN = "<unk>"


class SingleCharacters(Splitter):
    name = spelling = identity = "characters"

    def __str__(self):
        return self.name

    def pretokens(self, text):
        return (character.encode() for character in text.decode(errors="replace"))


SPLITTER = SingleCharacters()


class CharacterVocabulary(Vocabulary):
    kind, unknown, longest_word = "characters", UNKNOWN, 1

    def __init__(self, *, ids, special_tokens):
        super().__init__(largest=max(ids.values()), special_tokens=special_tokens, pattern=SPLITTER)
        self.ids = ids

    @property
    def unknown_id(self):
        return self.ids[UNKNOWN]

    @property
    def deciding(self):
        return [("tokens", [*self.ids])]

    def pretoken_encoder(self):
        return lambda pretoken: [self.ids.get(pretoken.decode(), self.unknown_id)]

    def kernel_tables(self):
        from tokenizer.encoding.piece_tables import PieceTables

        return PieceTables(self)

    def decoding(self):
        from tokenizer.encoding.ids_to_text import ByteDecoding

        return ByteDecoding(self)


class Characters(Kind):
    name, title, entries = "characters", "Characters", "characters"
    patterns, default_pattern, exact_pattern = ("characters",), "characters", "characters"
    needed_splitter = "characters"

    def words(self, spelling):
        return SPLITTER if spelling == SPLITTER.spelling else None

    def accepts(self, splitter):
        return splitter is SPLITTER

    def train(self, counts, options):
        special = dict.fromkeys([UNKNOWN, *options.special_tokens])
        characters = Counter(dict(counts.items())).most_common(options.vocab_size - len(special))
        ids = {token: i for i, token in enumerate([*special, *(token.decode() for token, _ in characters)])}
        return CharacterVocabulary(ids=ids, special_tokens={token: ids[token] for token in special})

    def shortage(self, vocabulary, options):
        return "the corpus has no other characters"

    def reads(self, model):
        return isinstance(model, dict) and model.get("type") == "Characters"

    def read(self, content):
        special_tokens = {token["content"]: token["id"] for token in content["added_tokens"]}
        return CharacterVocabulary(ids=content["model"]["vocab"], special_tokens=special_tokens)

    def json(self, vocabulary):
        added = [{"content": token, "id": i} for token, i in vocabulary.special_tokens.items()]
        yield json.dumps({"added_tokens": added, "model": {"type": "Characters", "vocab": vocabulary.ids}})


KIND = Characters()
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


def test_adding_a_kind_of_vocabulary_takes_its_module_and_its_name(house, tmp_path):
    house.add("tokenizer/kinds/characters.py", CHARACTERS)
    house.register("tokenizer/kinds/registry.py", '"unigram"]', '"unigram", "characters"]')
    corpus, tokenizer, dataset, run = (tmp_path / name for name in ("corpus.txt", "tokenizer", "dataset", "run"))
    corpus.write_text("".join(f"the {number} cats sat on {number * 7} mats\n" for number in range(2000)))
    assert "characters" in house.bytelm("train-tokenizer", "--help")
    house.bytelm("train-tokenizer", corpus, "--model", "characters", "--vocab-size", 64, "--out", tokenizer)
    vocab = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    text = "the ζ cats"
    ids = json.loads(house.bytelm("tokenize", text, "--tokenizer", tokenizer, "--json"))
    assert ids == [vocab.get(character, vocab["<unk>"]) for character in text]
    house.bytelm("build-dataset", corpus, "--tokenizer", tokenizer, "--out", dataset, "--context-length", 32)
    model = ("--model.layers", 1, "--model.width", 32, "--model.heads", 2, "--model.context-length", 32)
    train = ("--train.tokens", 12_800, "--train.batch-tokens", 256, "--train.warmup-tokens", 1024, "--train.lr", 0.01)
    house.bytelm("pretrain", "gpt-tiny", "--data", dataset, "--out", run, *model, *train)
    first, *_, last = losses(run)
    assert last < first - 0.5
