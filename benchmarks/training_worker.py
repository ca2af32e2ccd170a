"""A contestant of benchmarks.pretrain: reads numbers of steps from standard input, answers with times and losses."""

import json
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.training_models import CASES, OURS, Case, build
from lm.objectives import masked_token
from lm.optimizers import OptimizerSettings, build_optimizers

SPECIAL = {"mask_id": 2, "cls_id": 3, "sep_id": 4, "special_ids": range(5)}
LEARNING_RATE, WEIGHT_DECAY, BETAS, EPS = 1e-3, 0.1, (0.9, 0.95), 1e-8


def batches(case: Case, tokens: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The same inputs, targets and weights for everybody."""
    generator = np.random.default_rng(0)
    masked = case.config.architecture == "encoder"
    while True:
        starts = generator.integers(0, len(tokens) - case.length - 1, size=case.batch)
        blocks = np.stack([tokens[start : start + case.length + 1] for start in starts]).astype(np.int64)
        if masked:
            rows = [
                masked_token(block[: case.length - 2], generator, vocab_size=case.config.vocab_size, **SPECIAL)
                for block in blocks
            ]
            parts = [np.stack(part) for part in zip(*rows, strict=True)]
        else:
            parts = [blocks[:, :-1], blocks[:, 1:], np.ones((case.batch, case.length), np.float32)]
        yield tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in parts)


def optimizer_of(peer: str, model: torch.nn.Module):
    """AdamW with the same constants, fused; matrices decay and vectors do not."""
    if peer == OURS:
        return build_optimizers(model, OptimizerSettings(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, eps=EPS))
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS, fused=True)


def main() -> None:
    job = json.loads(sys.argv[1])
    started = time.perf_counter()
    case = CASES[job["model"]]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, loss_of = build(job["peer"], case, device, torch.bfloat16, job["compiled"])
    optimizer = optimizer_of(job["peer"], model)
    tokens = np.memmap(job["tokens"], dtype=np.uint16, mode="r")
    data = batches(case, tokens)

    def step() -> torch.Tensor:
        loss = loss_of(*(part.to(device) for part in next(data)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if job["compiled"]:  # compilation is timed apart
        loss_of(
            *(part.to(device) for part in next(batches(case, np.memmap(job["tokens"], dtype=np.uint16))))
        ).backward()
        optimizer.zero_grad()
    print(json.dumps({"ready": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        losses = [float(step()) for _ in range(int(line))]
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated()
        print(json.dumps({"seconds": seconds, "losses": losses, "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
