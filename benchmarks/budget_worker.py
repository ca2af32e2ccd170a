"""A contestant of benchmarks.budget: train one setting of a peer for a time, or load a run of bytelm, and score a text.

The job is a JSON object. The answer has the bits of each passage. All contestants are scored alike, in float32 and in
windows of the training context. Windows are half a context apart, so every token after the first window has at least
half a context before it. The first token of a passage follows the start token.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.budget_peers import PEERS, Setting, Tokens, tokens_of
from benchmarks.budget_texts import passages
from benchmarks.harness import answers
from lm.optim.optimizers import partition
from lm.optim.schedules import warmup_cosine

CLIP = 1.0  # largest gradient norm, the default of nanoGPT and Trainer
TIMED_STEPS = 5
SCORED_ROWS = 16
Logits = Callable[[Tensor, int], Tensor]
"""Maps ids (B, T) int64 and a number K to the logits of the last K positions, (B, K, V) float32."""


def windows(targets: int, context: int) -> Iterator[tuple[int, int]]:
    """Yield the start of each window over `targets` targets, and the first target that the window scores."""
    scored = 0
    while scored < targets:
        start = max(0, min(scored - context // 2, targets - context)) if scored else 0
        yield start, scored
        scored = min(targets, start + context)


@torch.no_grad()
def nats_of(logits: Logits, stream: Sequence[int], context: int) -> float:
    """Return the total loss in nats of a stream's tokens after the first."""
    ids = torch.tensor(stream)
    places, nats = list(windows(len(ids) - 1, context)), 0.0
    length = min(context, len(ids) - 1)
    for first in range(0, len(places), SCORED_ROWS):
        some = places[first : first + SCORED_ROWS]
        rows = torch.stack([ids[start : start + length] for start, _ in some])
        targets = torch.stack([ids[start + 1 : start + 1 + length] for start, _ in some])
        new = [start + length - scored for start, scored in some]  # targets that no earlier window scored
        found = logits(rows, max(new))
        # One window at a time, because all windows at once took twice as long.
        for count, row, target in zip(new, found, targets, strict=True):
            nats += float(F.cross_entropy(row[-count:], target[-count:], reduction="none").double().sum())
    return nats


def scored(logits: Logits, tokens: Tokens, texts: Sequence[str], context: int) -> dict[str, Any]:
    """Return the bits and bytes of each passage, the total of the extra bits, and the bits per byte.

    Raises ValueError if the ids of a passage without extra bits do not decode to its text.
    """
    bits, extra = [], []
    for text, ids in zip(texts, tokens.encode(texts), strict=True):
        extra.append(tokens.extra_bits(text))
        if not extra[-1] and tokens.decode(ids) != text:
            raise ValueError("the ids of a passage do not decode to its text")
        bits.append(nats_of(logits, [tokens.start, *ids], context) / np.log(2) + extra[-1])
    sizes = [len(text.encode()) for text in texts]
    return {"bits": bits, "bytes": sizes, "extra_bits": sum(extra), "bits_per_byte": sum(bits) / sum(sizes)}


class Training:
    """A GPT-2 of transformers, trained on a stream of tokens with AdamW."""

    def __init__(self, setting: Setting, tokens: Tokens, texts: Sequence[str], seed: int) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(seed)
        self.setting, self._draw = setting, np.random.default_rng(seed)
        parts = [np.array([tokens.start, *ids], np.int32) for ids in tokens.encode(texts)]
        self._stream = np.concatenate(parts)
        shape = {"n_layer": setting.layers, "n_embd": setting.width, "n_head": setting.heads}
        dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), setting.dropout)
        config = GPT2Config(
            vocab_size=tokens.size, n_positions=setting.context, **shape, **dropped, use_cache=False,
            bos_token_id=tokens.start, eos_token_id=tokens.start,
        )  # fmt: skip
        self.model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()
        ((decayed, kept),) = partition(self.model, "adamw").values()
        groups = [{"params": decayed, "weight_decay": setting.weight_decay}, {"params": kept, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=setting.lr, betas=setting.betas, fused=True)
        self._blocks = self._order()
        self.dtype = self._faster_dtype()

    def step(self, share: float, expected: float) -> int:
        """Train on one batch and return its number of tokens.

        `share`: elapsed share of the budget. `expected`: share of the budget that a step takes.
        """
        rate = warmup_cosine(share, warmup=self.setting.warmup, total=1.0, stride=expected, final=self.setting.final)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * self.setting.lr
        self._gradient(self._batch(), self.dtype)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return self.setting.batch * self.setting.context

    def _gradient(self, batch: Tensor, dtype: torch.dtype) -> None:
        with torch.autocast("cpu", dtype) if dtype != torch.float32 else nullcontext():
            logits = self.model(batch[:, :-1]).logits
            F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()

    def _faster_dtype(self) -> torch.dtype:
        """Return float32 or bfloat16, whichever is faster. The measurement is not part of the budget."""
        seconds = {}
        for dtype in (torch.float32, torch.bfloat16):
            times = []
            for _ in range(TIMED_STEPS):
                batch, started = self._crops(), time.perf_counter()
                self._gradient(batch, dtype)
                times.append(time.perf_counter() - started)
            seconds[dtype] = min(times)
        self._optimizer.zero_grad()
        fastest = min(seconds, key=seconds.__getitem__)
        self.step_seconds = seconds[fastest]
        return fastest

    def _batch(self) -> Tensor:
        if self.setting.crops:
            return self._crops()
        return self._rows(np.array([next(self._blocks) for _ in range(self.setting.batch)]))

    def _crops(self) -> Tensor:
        return self._rows(self._draw.integers(len(self._stream) - self.setting.context - 1, size=self.setting.batch))

    def _rows(self, starts: np.ndarray) -> Tensor:
        places = starts[:, None] + np.arange(self.setting.context + 1)
        return torch.from_numpy(self._stream[places].astype(np.int64))

    def _order(self) -> Iterator[int]:
        """Yield the starts of blocks, each once per epoch, in random order."""
        while True:
            count = (len(self._stream) - 1) // self.setting.context
            yield from (self._draw.permutation(count) * self.setting.context).tolist()


def trained_peer(job: dict[str, Any]) -> dict[str, Any]:
    """Train a setting for `seconds` of steps, and score the passages of the file `scored`."""
    started = time.perf_counter()
    peer = next(peer for peer in PEERS if peer.name == job["contestant"])
    setting, texts = peer.setting(job["setting"]), passages(Path(job["train"]))
    tokens = tokens_of(setting, texts, Path(job["gpt2"]) if job["gpt2"] else None)
    training = Training(setting, tokens, texts, job["seed"])
    setup = time.perf_counter() - started
    elapsed, read, steps, budget = 0.0, 0, 0, job["seconds"]
    while elapsed < budget:
        begun = time.perf_counter()
        read += training.step(elapsed / budget, (elapsed / steps if steps else training.step_seconds) / budget)
        elapsed += time.perf_counter() - begun
        steps += 1
    model = training.model.eval()
    result = scored(
        lambda ids, last: model(ids, logits_to_keep=last).logits.float(),
        tokens,
        passages(Path(job["scored"])),
        setting.context,
    )
    return result | {
        "seconds": elapsed,
        "setup_seconds": setup,
        "tokens": read,
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "entries": tokens.size,
        "dtype": str(training.dtype).removeprefix("torch."),
    }


class OurTokens:
    """The vocabulary of a run of bytelm."""

    def __init__(self, run: Path) -> None:
        from tokenizer import Tokenizer

        self._tokenizer = Tokenizer.load(run)
        self.size, self.start = self._tokenizer.vocab_size, self._tokenizer.special_tokens["<|endoftext|>"]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._tokenizer.encode_ordinary(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode_bytes(list(ids)).decode()

    def extra_bits(self, text: str) -> float:
        return 0.0


def scored_run(job: dict[str, Any]) -> dict[str, Any]:
    """Score a run of `bytelm train` by its best checkpoint."""
    from lm.costs import count_parameters
    from pipelines.run.folder import Run
    from pipelines.run.loaded_run import load_model

    run = Run(Path(job["run"]))
    model: Any = load_model(run, "cpu", checkpoint="best").model
    train = [line for line in run.metrics() if line["split"] == "train"]
    tokens, shape = OurTokens(run.folder), run.recipe.model
    result = scored(
        lambda ids, last: model.logits(model(ids)[:, -last:]).float(),
        tokens,
        passages(Path(job["scored"])),
        shape.context_length,
    )
    return result | {
        "seconds": train[-1]["time_s"],
        "tokens": train[-1]["tokens"],
        "steps": train[-1]["step"],
        "parameters": count_parameters(model),
        "entries": tokens.size,
        "dtype": run.recipe.train.dtype,
        "setting": f"{shape.layers} x {shape.width}, {tokens.size:,} entries",
    }


def main() -> None:
    answer, job = answers(), json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    answer(scored_run(job) if "run" in job else trained_peer(job))


if __name__ == "__main__":
    main()
