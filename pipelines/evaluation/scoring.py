"""Which positions of a split a model is scored on, and what it sees there.

Decoders read the stream in windows of their context length, `stride` apart, and each token is scored once, in the
first window that predicts it: chunked when the stride is the window, sliding when it is shorter. Encoders read blocks
with the masks of seed 0, epoch 0, encoder-decoders with its spans, or each pair of a dataset of pairs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from corpora.synthetic import source_from_description
from lm.analysis.baselines import Bigram, Unigram
from lm.analysis.metrics import PredictionAccumulator, divergences, kl_from_source
from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.dataset.pairs import Lists, Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.training.data import Dataset, hidden_states
from pipelines.training.loader import (
    Batch,
    MaskedToken,
    NextToken,
    SpanCorruption,
    StreamObjective,
    validation_batch,
)
from pipelines.training.pair_loader import SequencePairs
from tokenizer import Tokenizer

# Rows whose logits are held at once, and windows that go through the model at once: fewer where they are long.
ROWS = 512
WINDOWS, POSITIONS = 16, 16_384
PSEUDO_POSITIONS = 2048
SPAN_BLOCKS = 2048


@dataclass(frozen=True)
class Windows:
    """A few windows of a split: a batch with inputs and targets (B, P), `scored` (B, P) bool, `previous` (B, P) int64,
    the token before each target or -1 where nothing precedes it, and `indices` (B, P) int64, where in the stream each
    target stands; None where the targets are no stretch of a stream."""

    batch: Batch
    scored: np.ndarray
    previous: np.ndarray
    indices: np.ndarray | None = None


def decoder_windows(stream: TokenStream, objective: NextToken, stride: int, min_context: int = 1) -> Iterator[Windows]:
    """The windows of a decoder. Positions with fewer than `min_context` tokens before them in their window are left
    out; `min_context` 1 leaves out none but the stream's first token, which nothing precedes."""
    window = objective.length
    # The last window is the first whose targets reach the end of the stream.
    count = 1 + max(0, math.ceil((stream.tokens - 1 - window) / stride))
    columns = np.arange(max(1, min(window, stream.tokens - 1)))  # a stream may be shorter than one
    at_once = _at_once(window)
    for first in range(0, count, at_once):
        starts = np.arange(first, min(first + at_once, count)) * stride
        batch = objective.batch(stream, starts, []).columns(len(columns))
        indices = starts[:, None] + 1 + columns
        already = np.where(starts > 0, starts - stride + window, 0)
        scored = (batch.weights > 0) & (indices > already[:, None]) & (columns + 1 >= min_context)
        yield Windows(batch, scored, batch.inputs, indices)


def encoder_windows(stream: TokenStream, objective: MaskedToken) -> Iterator[Windows]:
    """The blocks of an encoder, scored at the selected positions."""
    columns = np.arange(objective.positions) - 1
    at_once = _at_once(objective.positions)
    for first in range(0, stream.blocks, at_once):
        batch = validation_batch(stream, objective, first, at_once)
        starts = np.arange(first, first + len(batch.inputs)) * objective.length
        previous = np.roll(batch.targets, 1, axis=1)
        previous[:, 1] = [int(stream.read(start - 1, 1)[0]) if start else -1 for start in starts.tolist()]
        yield Windows(batch, batch.weights > 0, previous, starts[:, None] + columns)


def span_windows(stream: TokenStream, objective: SpanCorruption) -> Iterator[Windows]:
    """The blocks of an encoder-decoder, scored at what was taken out and at the sentinels before it."""
    at_once = _at_once(objective.positions + objective.source_positions)
    for first in range(0, stream.blocks, at_once):
        batch = validation_batch(stream, objective, first, at_once)
        yield Windows(batch, batch.weights > 0, batch.inputs)


def pair_windows(pairs: Pairs, objective: SequencePairs) -> Iterator[Windows]:
    """All pairs, scored at every token of the target and its end."""
    for first in range(0, len(pairs), WINDOWS):
        batch = objective.batch(pairs, np.arange(first, min(first + WINDOWS, len(pairs))))
        yield Windows(batch, batch.weights > 0, batch.inputs)


def _at_once(positions: int) -> int:
    """How many windows of so many positions go through the model at once."""
    return max(1, min(WINDOWS, POSITIONS // positions))


@torch.no_grad()
def score(
    model: LanguageModel,
    windows: Iterator[Windows],
    tokenizer: Tokenizer,
    baselines: tuple[Unigram, Bigram],
    *,
    window: int,
    other: LanguageModel | None = None,
    truth: "Truth | None" = None,
    bar: Bar,
) -> dict[str, Any]:
    """The numbers of evaluation.json for one split (see `pipelines.evaluate`), from the model's predictions."""
    device = next(model.parameters()).device
    # An imported model may have more entries than its tokenizer; they are never targets.
    lengths = torch.zeros(model.config.vocab_size, dtype=torch.int32)
    lengths[: tokenizer.vocab_size] = torch.tensor(tokenizer.token_byte_lengths)
    accumulator = PredictionAccumulator(len(lengths), lengths, window)
    baseline_nats, unigram_hits = {"unigram": 0.0, "bigram": 0.0}, 0
    likeliest = int(baselines[0].counts.argmax())
    against = [0.0, 0.0, 0.0]
    done = 0
    for each in windows:
        batch = each.batch
        rows, columns = np.nonzero(each.scored)
        hidden = hidden_states(model, batch, device, each.scored)
        other_hidden = hidden_states(other, batch, device, each.scored) if other else None
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            logits = model.logits(hidden[part]).float()
            found = batch.targets[rows[part], columns[part]], columns[part]
            accumulator.update(logits, *(torch.from_numpy(array).to(device) for array in found))
            if other is not None and other_hidden is not None:
                rows_of = divergences(logits, other.logits(other_hidden[part]).float())
                against = [total + float(values.double().sum()) for total, values in zip(against, rows_of, strict=True)]
            if truth is not None:
                truth.update(logits, each.indices[rows[part], columns[part]])
        targets = batch.targets[rows, columns]
        _add_baselines(baseline_nats, baselines, each.previous[rows, columns], targets)
        unigram_hits += int((targets == likeliest).sum())
        done += len(rows)
        bar.update(done)
    result = accumulator.result()
    scored = max(1, result["tokens"])
    result |= {f"{name}_cross_entropy_bits": nats / math.log(2) / scored for name, nats in baseline_nats.items()}
    result["unigram_accuracy"] = unigram_hits / scored
    if other is not None:
        names = ("kl_bits", "reverse_kl_bits", "js_bits")
        result |= {name: total / scored for name, total in zip(names, against, strict=True)}
    if truth is not None:
        result |= truth.result()
    return result


def _add_baselines(
    nats: dict[str, float], baselines: tuple[Unigram, Bigram], previous: np.ndarray, targets: np.ndarray
) -> None:
    unigram, bigram = baselines
    each = unigram.nats(targets)
    nats["unigram"] += math.fsum(each)
    preceded = previous >= 0  # what nothing precedes, the unigram predicts
    each[preceded] = bigram.nats(previous[preceded], targets[preceded])
    nats["bigram"] += math.fsum(each)


class Truth:
    """The mean divergence of a model's predictions from a synthetic source's own, in bits, over the scored positions
    whose context is known: those with `order` symbols before them. A separator between documents cuts the context;
    without one (--no-separator) the first symbols of a document count as if they followed the one before."""

    def __init__(self, description: dict[str, Any], stream: TokenStream, tokenizer: Tokenizer) -> None:
        self.stream = stream
        self.source = source_from_description(description)
        self.symbol_of = np.full(tokenizer.vocab_size, -1, np.int64)
        symbols = {bytes([byte]): number for number, byte in enumerate(self.source.alphabet)}
        for token in range(tokenizer.vocab_size):
            self.symbol_of[token] = symbols.get(tokenizer.token_bytes(token), -1)
        if len(np.unique(self.symbol_of)) != len(symbols) + 1 or tokenizer.merges:
            raise ValueError("a synthetic source is compared symbol by symbol: use a tokenizer without merges")
        self.token_of = np.array([np.flatnonzero(self.symbol_of == s)[0] for s in range(len(symbols))])
        self.bits, self.rows = 0.0, 0

    def update(self, logits: torch.Tensor, indices: np.ndarray) -> None:
        order = self.source.order
        first = max(0, int(indices.min()) - order)
        symbols = self.symbol_of[self.stream.read(first, int(indices.max()) + 1 - first)]
        reached = np.flatnonzero(indices >= order)
        contexts = symbols[indices[reached, None] - first + np.arange(-order, 0)]
        known = (contexts >= 0).all(axis=1) & (symbols[indices[reached] - first] >= 0)
        if not known.any():
            return
        p = torch.from_numpy(self.source.conditional(contexts[known])).to(logits.device)
        full = torch.zeros(len(p), logits.shape[1], dtype=torch.float64, device=logits.device)
        full[:, torch.from_numpy(self.token_of).to(logits.device)] = p
        rows = torch.from_numpy(reached[known]).to(logits.device)
        self.bits += float(kl_from_source(full, logits[rows]).double().sum())
        self.rows += len(p)

    def result(self) -> dict[str, float]:
        return {
            "entropy_rate_bits": self.source.entropy_rate_bits,
            "kl_true_bits": self.bits / max(1, self.rows),
            "kl_true_tokens": self.rows,
        }


@torch.no_grad()
def pseudo_perplexity(
    model: LanguageModel,
    stream: TokenStream,
    objective: MaskedToken,
    tokenizer: Tokenizer,
    unigram: Unigram,
    bar: Bar,
) -> dict[str, float]:
    """exp of the mean nats of `PSEUDO_POSITIONS` positions of the split, drawn with seed 0 from those without a special
    token, each masked alone in its block (Salazar et al., 2020)."""
    special = np.isin(stream.read(0, stream.tokens), sorted(tokenizer.special_tokens.values()))
    ordinary = np.flatnonzero(~special)
    size = min(PSEUDO_POSITIONS, len(ordinary))
    chosen = np.sort(np.random.default_rng(0).choice(ordinary, size, replace=False))
    device = next(model.parameters()).device
    total = 0.0
    at_once = _at_once(objective.positions)
    for start in range(0, size, at_once):
        numbers, columns = np.divmod(chosen[start : start + at_once], objective.length)
        batch = objective.alone(stream.gather(numbers * objective.length, objective.length), columns)
        masked = batch.weights > 0
        logits = model.logits(hidden_states(model, batch, device, masked)).float()
        targets = torch.from_numpy(batch.targets[masked]).to(device)
        total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="none").double().sum())
        bar.update(min(start + at_once, size))
    unigram_nats = math.fsum(unigram.nats(np.concatenate([stream.read(int(i), 1) for i in chosen])))
    return {
        "pseudo_perplexity": math.exp(total / size),
        "unigram_pseudo_perplexity": math.exp(unigram_nats / size),
        "pseudo_tokens": size,
    }


def fit_baselines(dataset: Dataset, objective: StreamObjective | SequencePairs) -> tuple[Unigram, Bigram]:
    """The add-one unigram and the Witten-Bell bigram of what is predicted on the training split: its tokens, or the
    targets of an encoder-decoder one after the other (of span corruption, of its first `SPAN_BLOCKS` blocks)."""
    train = dataset.split("train")
    if isinstance(objective, SequencePairs):
        chunks = _ended(train.targets, objective.end_id)
    elif isinstance(objective, SpanCorruption):
        chunks = _span_targets(train, objective)
    else:
        chunks = train.chunks()
    unigram = Unigram.fit(chunks, dataset.vocab_size)
    return unigram, Bigram.fit(chunks, unigram)


def _ended(lists: Lists, end_id: int) -> list[np.ndarray]:
    """Every list and its end, joined, after an end that nothing precedes."""
    first = np.concatenate(([0], np.cumsum(lists.lengths)))
    return [np.insert(np.concatenate(lists.chunks()).astype(np.int64), first, end_id)]


def _span_targets(stream: TokenStream, objective: SpanCorruption) -> list[np.ndarray]:
    last = min(SPAN_BLOCKS, stream.blocks)
    batches = (
        validation_batch(stream, objective, first, min(WINDOWS, last - first)) for first in range(0, last, WINDOWS)
    )
    return [np.concatenate([batch.targets.ravel() for batch in batches])]
