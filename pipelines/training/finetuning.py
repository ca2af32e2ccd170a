"""Training a classifier on labelled texts, and asking it about others."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lm.classification import Classifier
from lm.optim.optimizers import OptimizerSettings, build_optimizers
from lm.optim.schedules import warmup_cosine
from pipelines.training.finetune_config import FinetuneConfig
from tokenizer import Tokenizer

# Batches among which texts change places, so that those of one batch are about as long as each other.
SORTED_BATCHES = 16
PREDICTED_TEXTS = 64


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], positions: int, edges: tuple[int, int]
) -> tuple[list[np.ndarray], int]:
    """What an encoder of so many positions reads of each text, and how many texts are longer: the first of `edges`
    (`<|cls|>`), the tokens, cut at the end where there are too many, the second (`<|sep|>`); int64. Special spellings
    in a text are text."""
    room = positions - 2
    encoded = tokenizer.encode_batch(texts, disallowed_special=())
    rows = [np.array([edges[0], *ids[:room], edges[1]], dtype=np.int64) for ids in encoded]
    return rows, sum(len(ids) > room for ids in encoded)


def train_classifier(
    model: Classifier,
    rows: Sequence[np.ndarray],
    targets: np.ndarray,
    config: FinetuneConfig,
    progress: Callable[[int, float], None],
) -> None:
    """Fit `model` to texts of token ids (T,) and their labels (N,) by cross-entropy.

    `progress` is told the texts read so far and the loss (nats). Raises FloatingPointError when the loss is not finite.
    """
    torch.manual_seed(config.seed)
    model.train()
    optimizers = build_optimizers(
        model, OptimizerSettings(lr=config.lr, weight_decay=config.weight_decay, beta2=0.98, eps=1e-6)
    )
    device = next(model.parameters()).device
    total = config.epochs * math.ceil(len(rows) / config.batch_size)
    warmup = round(config.warmup * total)
    seen = 0
    for step, batch in enumerate(epochs([len(row) for row in rows], config)):
        optimizers.schedule(warmup_cosine(step, warmup=warmup, total=total, final=0.0))
        ids, present = padded([rows[i] for i in batch], device)
        loss = F.cross_entropy(model(ids, present), torch.from_numpy(targets[batch]).to(device))
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"the loss of step {step + 1} is not finite: try a lower --lr than {config.lr:g}")
        loss.backward()
        if config.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizers.step()
        optimizers.zero_grad()
        seen += len(batch)
        progress(seen, float(loss.detach()))
    model.eval()


@torch.no_grad()
def predict_logits(
    model: Classifier, rows: Sequence[np.ndarray], progress: Callable[[int], None] | None = None
) -> Tensor:
    """Texts of token ids (T,) to logits (N, labels), float32 on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort([len(row) for row in rows], kind="stable")
    logits = torch.empty(len(rows), model.head.output.weight.shape[0])
    for start in range(0, len(rows), PREDICTED_TEXTS):
        chosen = order[start : start + PREDICTED_TEXTS]
        logits[torch.from_numpy(chosen)] = model(*padded([rows[i] for i in chosen], device)).cpu()
        if progress:
            progress(start + len(chosen))
    return logits


def padded(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """ids (B, T) of the longest row's length, and bool (B, T) where they are there: None where nothing is padded."""
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = torch.from_numpy(row)
    present = None if bool((lengths == longest).all()) else (torch.arange(longest) < lengths[:, None]).to(device)
    return ids.to(device), present


def epochs(lengths: Sequence[int], config: FinetuneConfig) -> Iterator[np.ndarray]:
    """The rows of each batch, in an order drawn by (seed, epoch)."""
    lengths = np.asarray(lengths)
    for epoch in range(config.epochs):
        generator = np.random.default_rng((config.seed, epoch))
        order = generator.permutation(len(lengths))
        batches = []
        for start in range(0, len(order), SORTED_BATCHES * config.batch_size):
            near = order[start : start + SORTED_BATCHES * config.batch_size]
            near = near[np.argsort(lengths[near], kind="stable")]
            batches += [near[i : i + config.batch_size] for i in range(0, len(near), config.batch_size)]
        for i in generator.permutation(len(batches)):
            yield batches[i]
