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
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

LION = '''
"""Lion: the sign of an interpolated momentum (Chen et al. 2023, algorithm 2)."""

import torch

from lm.optim.adamw import AdamW
from lm.optim.optimizer import Optimizer


class Lion(Optimizer):
    bound_by_products = False

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

QUESTIONS = '''
"""Whether a text is the beginning of a question: its last character is the target, and is not read."""

from dataclasses import dataclass

import numpy as np

from lm.head_config import HeadConfig
from pipelines.evaluation.measurement import Result, Table, number
from pipelines.tasks.task import Example, Task


@dataclass(frozen=True)
class QuestionNumbers(Result):
    right: float = number("questions recognised", "Share of texts that were recognised.", 3, headline=True)

    def parts(self):
        return [Table("Questions", "Share", ["value"], [("right", [f"{self.right:.3f}"])])]


@dataclass(frozen=True, kw_only=True)
class Questions(Task):
    """Whether a text is a question"""

    name = "questions"
    usual = (("sentence", "mark"),)
    kinds = (QuestionNumbers,)

    ending: str = "?"
    """Character that ends a question"""

    def example(self, row, labelled=True):
        text = row.text("sentence")
        return Example(row, text[:-1], int(text.endswith(self.ending))) if text else None

    def head(self, architecture):
        return HeadConfig(kind="sequence", outputs=2)

    def encode(self, examples, reader):
        ids = reader.ids([example.inputs for example in examples])
        targets = (np.array([example.target]) for example in examples)
        return [reader.sequence([one], target, i) for i, (one, target) in enumerate(zip(ids, targets))]

    def results(self, outputs, encoded, examples):
        said = [int(logits[0].argmax()) for logits in outputs]
        return [QuestionNumbers(float(np.mean([s == e.target for s, e in zip(said, examples)])))]

    def predictions(self, outputs, encoded, examples):
        return [{"question": bool(logits[0].argmax())} for logits in outputs]


TASK = Questions
'''

RUNNING_MEAN = '''
"""The running mean: y_t = W_o mean of W_v x_s over s <= t (Zhang et al. 2018, "average attention")."""

from functools import partial

import torch

from lm.decoding.cache import MixerState
from lm.layers import Linear
from lm.mixers.mixer import Mixer, select_rows


def running_mean(values, mask):
    if mask.present is not None:
        values = values * mask.present[..., None]
    counts = torch.arange(1, values.shape[1] + 1, device=values.device).expand(values.shape[:2])
    if mask.present is not None:
        counts = mask.present.cumsum(1)
    return values.cumsum(1) / counts.clamp(min=1)[..., None].to(values.dtype)


class Sums(MixerState):
    def __init__(self, stack, batch, capacity, *, dtype, device, padding=None, blocks=None):
        self.sums = []
        super().__init__(stack, batch, capacity, dtype=dtype, device=device, padding=padding, blocks=blocks)
        self.sums = [torch.zeros(batch, 1, stack.config.width, dtype=dtype, device=device) for _ in self.blocks]

    def clear(self, padding=None):
        super().clear(padding)
        for sums in self.sums:
            sums.zero_()

    def select(self, rows):
        super().select(rows)
        self.sums = [sums[rows] for sums in self.sums]

    def mixes(self, tokens):
        stop = self.length + tokens
        counts = torch.arange(self.length + 1, stop + 1, device=self.sums[0].device)[None]
        present = None
        if self.padding is not None:
            counts = (counts - self.padding[:, None]).clamp(min=1)
            present = self.present[:, self.length : stop, None]
        return [partial(self.mix, block, counts[..., None], present) for block in range(len(self.sums))]

    def mix(self, block, counts, present, values):
        sums = self.sums[block] + (values if present is None else values * present).cumsum(1)
        self.sums[block] = sums[:, -1:]
        return sums / counts.to(values.dtype)


class RunningMean(Mixer):
    component, state = "running-mean", Sums

    def __init__(self, config, residual_writes=1, value_embedding=False, gain=1.0):
        super().__init__(config)
        self.value = Linear(config.width, config.width, config.bias)
        self.output = Linear(config.width, config.width, config.bias, residual_writes)

    def forward(self, x, rotary, mix, value_embedding=None, rows=None):
        return self.output(select_rows(mix(self.value(x)), rows))

    def parallel_form(self, mask):
        return partial(running_mean, mask=mask)

    def flops(self, length, visible, outputs):
        return self.value.flops(length) + 6 * self.value.weight.shape[0] * length + self.output.flops(outputs)


MIXER = RunningMean
'''

RUNNING_MEAN_COSTS = '''
"""What the running mean costs."""

from lm.mixers.mixer_costs import MixerCosts, linear_parameters


class RunningMeanCosts(MixerCosts):
    def parameters(self, value_embedding=False):
        for _ in range(2):
            yield from linear_parameters(self.config.width, self.config.width, self.config.bias)

    def flops(self, length, visible, outputs):
        width = self.config.width
        return 6 * width * width * (length + outputs) + 6 * width * length

    def state_size(self, length):
        return self.config.width

    def saved_bytes(self, length, outputs, itemsize, value_embedding=False):
        return 2 * itemsize * self.config.width * length


COSTS = RunningMeanCosts
'''

COUNT_WORDS = '''
"""Text: count the words of a file."""

from pathlib import Path
from typing import Annotated

import tyro

from pipelines.cli.display import answer


def count_words(file: Annotated[Path, tyro.conf.Positional]) -> int:
    """Print the number of words of a file, and return it."""
    words = len(file.read_text().split())
    answer(f"{words:,} words")
    return words
'''


RANKS = '''
"""Ranks: the share of the scored tokens that are among the likeliest."""

from dataclasses import dataclass

from pipelines.evaluation.measurement import Measurement, Result, Section, Table, number


@dataclass(frozen=True)
class RankShare(Result):
    section = Section("Ranks of tokens", "Tokens among the likeliest.")

    rank_share: float = number("tokens among the likeliest", "Share of the tokens up to a rank.", 4)
    rank_counts: tuple[tuple[int, int], ...]

    def sentences(self, tokens):
        return [f"{self.rank_counts[-1][1]} of {tokens} tokens are among the likeliest {self.rank_counts[-1][0]}."]

    def parts(self):
        return [Table("tokens by rank", "rank up to", ["tokens"], [(str(k), [f"{n:,}"]) for k, n in self.rank_counts])]


class Counter:
    def __init__(self, within):
        self.tokens, self.counts = 0, dict.fromkeys((1, within), 0)

    def update(self, chunk):
        ranks = 1 + (chunk.logits > chunk.logits.gather(1, chunk.targets[:, None])).sum(1)
        self.tokens += len(ranks)
        for rank in self.counts:
            self.counts[rank] += int((ranks <= rank).sum())

    def result(self, split):
        counts = tuple(self.counts.items())
        return RankShare(counts[-1][1] / self.tokens, counts)


@dataclass(frozen=True, kw_only=True)
class Ranks(Measurement):
    result = RankShare
    shown_by = "within"

    within: int = 0
    """Rank up to which a token is among the likeliest; 0 leaves it out"""

    def check(self, run, options):
        if self.within < 0:
            raise ValueError(f"--within is {self.within}, but must be at least 0")

    def observer(self, split):
        return Counter(self.within) if self.within else None


MEASUREMENT = Ranks
'''

NORMS = '''
"""How long the vectors of the stream are, by layer."""

from dataclasses import dataclass

from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument


@dataclass(frozen=True)
class StreamNorms(Result):
    section = Section("Stream", "Mean length of the stream. It cannot tell what the stream holds.")

    norms: tuple[float, ...]

    def parts(self):
        rows = [(str(layer), [f"{norm:.3f}"]) for layer, norm in enumerate(self.norms)]
        return [Table("length after each layer", "layer", ["length"], rows)]


@dataclass(frozen=True, kw_only=True)
class Norms(Instrument):
    result = StreamNorms

    skipped: int = 0
    """Positions at the beginning that do not count"""

    def look(self, run, text):
        trace = run.trace(text, names="blocks.*.hook_resid_post")
        streams = (trace[name] for name in trace if name.endswith("hook_resid_post"))
        return StreamNorms(tuple(x[0, self.skipped :].norm(dim=-1).mean().item() for x in streams))


INSTRUMENT = Norms
'''

LETTERS = '''
"""Letters: every character of the training text is an entry, and others are <unk>."""

import json
from collections import Counter

from tokenizer.kinds.kind import Kind
from tokenizer.splitting.splitter import Splitter
from tokenizer.vocabulary import Vocabulary

UNKNOWN = "<unk>"


class SingleCharacters(Splitter):
    name = spelling = identity = "letters"

    def __str__(self):
        return self.name

    def pretokens(self, text):
        return (character.encode() for character in text.decode(errors="replace"))


SPLITTER = SingleCharacters()


class LetterVocabulary(Vocabulary):
    kind, unknown, longest_word = "letters", UNKNOWN, 1

    def __init__(self, *, ids, special_tokens):
        super().__init__(largest=max(ids.values()), special_tokens=special_tokens, pattern=SPLITTER)
        self.ids = ids

    @property
    def unknown_id(self):
        return self.ids[UNKNOWN]

    @property
    def fingerprint_parts(self):
        return [("tokens", [*self.ids])]

    def pretoken_encoder(self):
        return lambda pretoken: [self.ids.get(pretoken.decode(), self.unknown_id)]

    def kernel_tables(self):
        from tokenizer.encoding.piece_tables import PieceTables

        return PieceTables(self)

    def decoding(self):
        from tokenizer.encoding.ids_to_text import ByteDecoding

        return ByteDecoding(self)


class Letters(Kind):
    name, title, entries = "letters", "Letters", "letters"
    patterns, default_pattern, exact_pattern = ("letters",), "letters", "letters"
    needed_splitter = "letters"

    def splitter_of(self, spelling):
        return SPLITTER if spelling == SPLITTER.spelling else None

    def accepts(self, splitter):
        return splitter is SPLITTER

    def train(self, counts, options):
        special = dict.fromkeys([UNKNOWN, *options.special_tokens])
        characters = Counter(dict(counts.items())).most_common(options.vocab_size - len(special))
        ids = {token: i for i, token in enumerate([*special, *(token.decode() for token, _ in characters)])}
        return LetterVocabulary(ids=ids, special_tokens={token: ids[token] for token in special})

    def shortage(self, vocabulary, options):
        return "the corpus has no other characters"

    def reads(self, content):
        return isinstance(content, dict) and content["model"].get("type") == "Letters"

    def read(self, content):
        special_tokens = {token["content"]: token["id"] for token in content["added_tokens"]}
        return LetterVocabulary(ids=content["model"]["vocab"], special_tokens=special_tokens)

    def json(self, vocabulary):
        added = [{"content": token, "id": i} for token, i in vocabulary.special_tokens.items()]
        yield json.dumps({"added_tokens": added, "model": {"type": "Letters", "vocab": vocabulary.ids}})


KIND = Letters()
'''


SERVER = """
import contextlib, io, json, sys

from pipelines.cli.dispatch import main

answers = sys.stdout
for line in sys.stdin:
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = main(json.loads(line))
        except SystemExit as leaving:
            status = leaving.code or 0
    texts = [stream.buffer.getvalue().decode() for stream in (out, errors)]
    print(json.dumps([status, *texts]), file=answers, flush=True)
"""


class House:
    """A copy of the packages with their compiled bytecode and kernels, and one process that runs its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None
        being_written = shutil.ignore_patterns("*.pyc.*", "*.tmp.*")  # by another process
        for package in ("bytelm", "tokenizer", "lm", "corpora", "pipelines"):
            shutil.copytree(ROOT / package, folder / package, ignore=being_written)

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
        status, output, said = self.run(*arguments)
        assert status == 0, said
        return output + said * errors

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Run a command of this copy and return its exit status, output and errors.

        All commands run in one process, because importing PyTorch takes seconds. Add everything before the first one.
        """
        if self._process is None:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._process = subprocess.Popen([sys.executable, "-c", SERVER], **self._options(), **streams)
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process ended with status {self._process.wait()}"
        status, output, said = json.loads(answer)
        return status, output, said

    def python(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run Python with this copy's packages."""
        words = [sys.executable, *map(str, arguments)]
        return subprocess.run(words, **self._options(), capture_output=True, text=True, check=False, timeout=300)

    def _options(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "200"}}

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path / "house")
    yield made
    made.close()


def losses(run: Path) -> list[float]:
    """Return the validation losses of a run in nats."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["loss"] for line in lines if line["split"] == "validation"]


def test_adding_an_optimizer_takes_its_module_and_its_name(house, tmp_path, dataset_folder):
    house.add("lm/optim/lion.py", LION)
    settings, facts = "lm/optim/optimizer_settings.py", "OPTIMIZERS: dict[OptimizerKind, OptimizerFacts] = {\n"
    house.register(settings, '["adamw", "muon"]', '["adamw", "muon", "lion"]')
    house.register(settings, facts, f'{facts}    "lion": OptimizerFacts("Lion", 1),\n')
    run = tmp_path / "run"
    model = ("--model.layers", 1, "--model.width", 32, "--model.heads", 2, "--model.context-length", 32)
    train = ("--train.tokens", 12_800, "--train.batch-tokens", 256, "--train.warmup-tokens", 1024, "--train.lr", 0.02)
    command = ("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", run, "--train.optimizer", "lion")
    house.bytelm(*command, *model, *train)
    first, *_, last = losses(run)
    assert last < first - 0.5
    assert "Lion's moments" in house.bytelm("params", run)


CHECKS = """
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lm.introspection.attention_maps import attention_maps
from lm.introspection.circuits import copying_scores
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.decoding.slots import Slots
from lm.decoding.state import pad_left
from lm.model import LanguageModel
from pipelines.exchange.onnx_export import write_onnx
from pipelines.reporting.introspection import look_inside
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained

run = Run(Path(sys.argv[1]))
model = load_trained(run, device="cpu").model.eval()
config = model.config
ids = torch.randint(5, config.vocab_size, (3, 20), generator=torch.Generator().manual_seed(0))
changed = ids.clone()
changed[:, 12] += 1
before, after = model(ids), model(changed)
assert torch.equal(before[:, :12], after[:, :12])
assert not torch.equal(before[:, 12], after[:, 12])

prompts, present = pad_left([[7, 8, 9], [10, 11, 12, 13, 14], [15]])
with_state, without = (
    generate(model, prompts, 40, present=present, temperature=0.0, use_cache=cached) for cached in (True, False)
)
assert with_state.tolist() == without.tolist()
options = {"window": 8, "kv_heads": 1, "document_mask": True, "positions": "alibi", "architecture": "encoder"}
for field, value in options.items():
    with pytest.raises(ValueError, match=f"model.mixer is 'running-mean', which does not support model.{field}="):
        LanguageModel(replace(config, **{field: value}), seed=0)

for needs_attention in (
    lambda: attention_maps(model, ids),
    lambda: copying_scores(model),
    lambda: Slots(prepare(model), rows=2),
    lambda: write_onnx(run, "newest", run.folder / "model.onnx"),
):
    with pytest.raises(ValueError, match="model.mixer is 'running-mean', but .* needs .* with model.mixer='attention'"):
        needs_attention()
inside = look_inside(run, model)
assert inside.attention == () and inside.scores is None and len(inside.embedding.coordinates)
"""


@pytest.mark.slow
def test_adding_a_mixer_takes_its_module_its_costs_and_its_name(house, tmp_path, dataset_folder):
    house.add("lm/mixers/running_mean.py", RUNNING_MEAN)
    house.add("lm/mixers/running_mean_costs.py", RUNNING_MEAN_COSTS)
    house.register("lm/config.py", "MixerKind = Literal[", 'MixerKind = Literal["running-mean", ')
    run = tmp_path / "run"
    model = ("--model.mixer", "running-mean", "--model.layers", 2, "--model.width", 32, "--model.context-length", 32)
    train = ("--train.tokens", 12_800, "--train.batch-tokens", 256, "--train.warmup-tokens", 1024)
    house.bytelm("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", run, *model, *train)
    first, *_, last = losses(run)
    assert last < first - 0.5
    assert "cross-entropy" in house.bytelm("evaluate", run)
    assert len(house.bytelm("generate", run, "--prompt", "def ", "--tokens", 40)) > 4
    checks = tmp_path / "checks.py"
    checks.write_text(CHECKS)
    done = house.python(checks, run)
    assert done.returncode == 0, done.stderr

    costs = json.loads(house.bytelm("params", run, "--json"))
    assert costs["parameters"]["running-mean"] == 2 * 2 * 32 * 32
    assert (costs["cache_bytes_per_token"], costs["cache_bytes"]) == (0, 2 * 32 * 2)
    mlp_and_head = 6 * (2 * 8 * 32 * 32 + 32 * costs["parameters"]["embedding"] // 32)
    assert costs["flops_per_token"] == mlp_and_head + 6 * 2 * (2 * 32 * 32 + 32)

    status, _, said = house.run("export-hf", run, "--out", tmp_path / "export")
    assert status == 1
    assert "model.mixer = 'attention', not 'running-mean'" in said
    assert not (tmp_path / "export").exists()


def test_adding_a_verb_takes_its_module(house, tmp_path):
    house.add("pipelines/verbs/count_words.py", COUNT_WORDS)
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    assert re.search(r"^  count-words +count the words of a file$", house.bytelm("--help"), re.M)
    assert "number of words" in house.bytelm("count-words", "--help")
    assert house.bytelm("count-words", text) == "3 words\n"
    assert "count-words" in house.bytelm("--completion", "bash")


def test_adding_a_measurement_takes_its_module(house, tmp_path, trained_gpt):
    house.add("pipelines/evaluation/measurements/ranks.py", RANKS)
    run = shutil.copytree(trained_gpt, tmp_path / "gpt", ignore=shutil.ignore_patterns("evaluation.json"))
    assert "Rank up to which a token is among the likeliest" in " ".join(house.bytelm("evaluate", "--help").split())
    printed = house.bytelm("evaluate", run, "--within", 10, "--explain")
    numbers = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))["splits"]["validation"]
    (_, first), (_, within) = numbers["rank_counts"]
    assert first / numbers["tokens"] == pytest.approx(numbers["accuracy"])
    assert first < within < numbers["tokens"] and numbers["rank_share"] == within / numbers["tokens"]
    assert re.search(rf"tokens among the likeliest +{numbers['rank_share']:.4f}", printed)
    assert f"{within} of {numbers['tokens']} tokens are among the likeliest 10." in printed
    assert re.search(rf"tokens by rank\nrank up to +tokens\n1 +{first:,}\n10 +{within:,}\n", printed)
    assert "tokens among the likeliest (rank_share)\n  Share of the tokens up to a rank.\n" in printed
    house.bytelm("report", run, "--no-samples", "--no-inside")
    page = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="rankshare"><summary><h2>Ranks of tokens</h2>' in page and f"<td>{within:,}</td>" in page


def test_adding_an_instrument_takes_its_module(house, trained_gpt):
    house.add("pipelines/inspection/instruments/norms.py", NORMS)
    said = " ".join(house.bytelm("inspect", "--help-all").split())
    assert "norms How long the vectors of the stream are, by layer" in said
    assert "Positions at the beginning that do not count" in said
    command = ("inspect", trained_gpt, "import os", "--instruments", "norms", "--skipped", 1)
    (norm,) = json.loads(house.bytelm(*command, "--json"))["norms"][0]["norms"]
    printed = house.bytelm(*command, "--explain")
    assert re.search(rf"Stream: length after each layer\nlayer +length\n0 +{norm:.3f}\n", printed)
    assert "It cannot tell what the stream holds." in printed


@pytest.mark.slow
def test_adding_a_task_takes_its_module(house, tmp_path, trained_bert):
    house.add("pipelines/tasks/questions.py", QUESTIONS)
    rows = [{"sentence": text + str(i) + mark} for i in range(20) for text, mark in (("why ", "?"), ("so ", "."))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "Whether a text is the beginning of a question" in house.bytelm("finetune", "--help")
    assert "Character that ends a question" in house.bytelm("finetune", "--task", "questions", "--help")
    run = tmp_path / "run"
    words = ("finetune", trained_bert, "--task", "questions", "--data", tmp_path / "rows.jsonl", "--out", run)
    printed = house.bytelm(*words, "--epochs", 4, "--lr", 0.01, "--no-compare-scratch")
    numbers = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))["splits"]["validation"]
    assert f"questions recognised {numbers['right']:.3f}" in printed and numbers["right"] > 0.7
    assert f"validation: questions recognised {numbers['right']:.3f}\n" in house.bytelm("evaluate", run)
    answers = house.bytelm("predict", run, "--file", tmp_path / "rows.jsonl", "--json").splitlines()
    assert len(answers) == 40 and set(json.loads(answers[0])) == {"question"}
    house.bytelm("report", run)
    assert "Questions recognised" in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
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


def test_adding_a_kind_of_vocabulary_takes_its_module_and_its_name(house, tmp_path):
    house.add("tokenizer/kinds/letters.py", LETTERS)
    house.register("tokenizer/kinds/registry.py", '"character-bpe"]', '"character-bpe", "letters"]')
    corpus, tokenizer, dataset, run = (tmp_path / name for name in ("corpus.txt", "tokenizer", "dataset", "run"))
    corpus.write_text("".join(f"the {number} cats sat on {number * 7} mats\n" for number in range(2000)))
    assert "letters" in house.bytelm("train-tokenizer", "--help")
    house.bytelm("train-tokenizer", corpus, "--kind", "letters", "--vocab-size", 64, "--out", tokenizer)
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
