"""The speed of sequence mixers in training and generation, and their memory: a part of benchmarks.mixers."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.attention import bytes_kept
from benchmarks.harness import Clock, turns
from benchmarks.mixer_training import TEXT, fitted, parameters
from lm.config import ModelConfig
from lm.config_costs import cache_bytes, flops_per_token
from lm.decoding.packed import prepare
from lm.decoding.state import DecodeState
from lm.model import LanguageModel
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers

NEW_TOKENS = 32


@dataclass(frozen=True)
class Case:
    """What is timed on a device: a shape with attention, whose parameters all models have."""

    shape: ModelConfig
    dtype: str
    batch_tokens: int
    """In a training step; the batch has this many tokens over T sequences"""
    texts: int
    """Generated at once"""


CASES = {
    "cpu": Case(TEXT, "float32", 4096, 1),
    "cuda": Case(replace(TEXT, width=768, heads=12, layers=6), "bfloat16", 32_768, 16),
}


def speeds(device: str, mixers: Sequence[str], lengths: Sequence[int], rounds: int, deadline: float) -> list[dict]:
    """Return a row for each length and mixer, as far as they are measured before `deadline` by time.monotonic().

    All mixers take a turn in each of the rounds, after an untimed one.
    """
    rows = []
    for length in lengths:
        contestants = {mixer: Contestant(CASES[device], mixer, length, device) for mixer in mixers}
        for number, mixer in turns([*contestants], rounds, warm_up=1):
            if time.monotonic() > deadline:
                break
            contestants[mixer].turn(timed=number >= 0)
        rows += [each.row() for each in contestants.values() if each.training]
        if time.monotonic() > deadline:
            break
    return rows


class Contestant:
    """A mixer's model at one length, with the seconds of its turns."""

    def __init__(self, case: Case, mixer: str, length: int, device: str) -> None:
        self.case, self.mixer, self.length, self.device = case, mixer, length, device
        self.config = fitted(replace(case.shape, context_length=length + NEW_TOKENS), mixer)
        self.model = LanguageModel(self.config, seed=0).to(device)
        self.model.compute_dtype = getattr(torch, case.dtype)
        self.optimizers = build_optimizers(self.model, OptimizerSettings())
        self.ids = torch.randint(256, (max(1, case.batch_tokens // length), length + 1), device=device)
        self.training: list[float] = []
        self.prompts: list[float] = []
        self.tokens: list[float] = []
        self.kept = 0

    def turn(self, timed: bool) -> None:
        """Time a training step, reading a prompt of T tokens, and generating tokens after it."""
        clock = Clock(self.device, cpu_time=True)
        self.loss().backward()
        self.optimizers.step()
        self.optimizers.zero_grad()
        clock.mark()
        training = clock.seconds()
        model, texts = prepare(self.model, self.case.texts), self.case.texts
        state = DecodeState(model, self.ids[:1, :-1].expand(texts, -1), room=NEW_TOKENS)
        clock = Clock(self.device, cpu_time=True)
        logits = state.logits()
        clock.mark()
        for _ in range(NEW_TOKENS):
            state.append(logits.argmax(-1))
            logits = state.logits()
        clock.mark()
        prompt, tokens = clock.seconds()
        if not timed:
            self.kept = bytes_kept(self.loss)
        else:
            self.training += training
            self.prompts.append(prompt)
            self.tokens.append(tokens)

    def loss(self) -> Tensor:
        hidden = self.model(self.ids[:, :-1])
        return self.model.loss(hidden.flatten(0, 1), self.ids[:, 1:].flatten()) / self.ids[:, 1:].numel()

    def row(self) -> dict:
        """Return the medians, of CPU time on a CPU. `kept_bytes`: what autograd keeps for a training step."""
        training, prompt, tokens = map(statistics.median, (self.training, self.prompts, self.tokens))
        on_cpu = self.device == "cpu"
        return {
            "mixer": self.mixer,
            "length": self.length,
            "parameters": parameters(self.config),
            "flops_per_token": flops_per_token(self.config, self.length),
            "training_tokens_per_s": self.ids[:, 1:].numel() / training,
            "prompt_tokens_per_s": self.case.texts * self.length / prompt,
            "generated_tokens_per_s": self.case.texts * NEW_TOKENS / tokens,
            "kept_bytes": self.kept,
            "state_bytes": cache_bytes(self.config, self.case.dtype, self.length, on_cpu=on_cpu),
            "turns": {"training": self.training, "prompt": self.prompts, "tokens": self.tokens},
        }
