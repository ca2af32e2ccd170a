"""Training objectives: pure functions from token blocks, and generators of masks and spans, to inputs and targets.

Arguments and results are numpy arrays: ids of any integer dtype in, int64 ids and float32 weights out. A weight of 0
excludes a position from the loss and from every metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lm.config import SELECTED

MASKED = 0.80  # share of the selected positions that get the mask token
REPLACED = 0.10  # share of the selected positions that get a random token; the rest stay
NOISE = 0.15  # share of a block removed in spans (Raffel et al. 2020, 3.1.4)
MEAN_SPAN = 3.0  # tokens of a span
INFILLED = 0.30  # share of a block that text infilling removes (Lewis et al. 2020, 3.2 and 5)
LONGEST_UNIT = 10  # most tokens that are selected together, and most words of a span (Joshi et al. 2020, 3.1)
SPAN_STOP = 0.2  # probability that a span ends after a word (Joshi et al. 2020, 3.1)


def next_token(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks (B, T + 1) to inputs, targets and weights, each (B, T): each token predicts the next."""
    blocks = np.asarray(blocks)
    if blocks.ndim != 2 or blocks.shape[1] < 2:
        raise ValueError(f"blocks have shape {blocks.shape}: give (B, T + 1) with T at least 1")
    inputs, targets = (np.array(part, np.int64, order="C") for part in (blocks[:, :-1], blocks[:, 1:]))
    return inputs, targets, np.ones(targets.shape, dtype=np.float32)


def masked_token(
    blocks: np.ndarray,
    generators: Sequence[np.random.Generator],
    *,
    special_ids: Sequence[int] | np.ndarray,
    mask_id: int,
    cls_id: int,
    sep_id: int,
    vocab_size: int,
    share: float = SELECTED,
    starts: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks (B, T) to inputs, targets and weights, each (B, T + 2): BERT's masking (Devlin et al. 2019, 3.1).

    A sequence is `cls`, the block, `sep`; it is also the targets. Each position without a special token is selected
    independently with probability `share`. 80 % of the selected positions become `mask`, 10 % a token uniform over the
    non-special ids (perhaps the same), 10 % stay. Their weights are 1. A short block may have no selected position:
    its weights are all 0 and it adds nothing to the loss. Each row draws from its own generator.

    `starts` (B, T) bool is True where a unit begins, such as a word. All tokens of a unit are selected together, and
    together they become masks, become random tokens, or stay. Units of more than 10 tokens are cut. By default every
    token is a unit.
    """
    blocks = _rows(blocks, generators)
    targets = np.empty((len(blocks), blocks.shape[1] + 2), np.int64)
    targets[:, 0], targets[:, 1:-1], targets[:, -1] = cls_id, blocks, sep_id
    special = np.isin(targets, special_ids)
    special[:, [0, -1]] = True
    starts = starts if starts is None else np.pad(starts, ((0, 0), (1, 1)))
    inputs, selected = _masked(targets, special, generators, special_ids, mask_id, vocab_size, share, starts)
    return inputs, targets, selected.astype(np.float32)


def masked_next_token(
    blocks: np.ndarray,
    generators: Sequence[np.random.Generator],
    *,
    special_ids: Sequence[int] | np.ndarray,
    mask_id: int,
    vocab_size: int,
    share: float = SELECTED,
    starts: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks (B, T + 1) to inputs, targets and weights, each (B, T), as in GPT-BERT (Charpentier and Samuel 2024, 2).

    Tokens are masked as by `masked_token`, but without `cls` and `sep`. The position before a selected token predicts
    it, as in `next_token`, and has weight 1. So the first token of a block is never a target.
    """
    blocks = _rows(blocks, generators).astype(np.int64)
    _, targets, weights = next_token(blocks)
    special = np.isin(blocks, special_ids)
    masked, selected = _masked(blocks, special, generators, special_ids, mask_id, vocab_size, share, starts)
    return masked[:, :-1].copy(), targets, weights * selected[:, 1:]


def _masked(
    tokens: np.ndarray,
    special: np.ndarray,
    generators: Sequence[np.random.Generator],
    special_ids: Sequence[int] | np.ndarray,
    mask_id: int,
    vocab_size: int,
    share: float,
    starts: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens (B, P) after masking, and which were selected, (B, P) bool. `special` tokens are never selected."""
    specials = np.unique(np.asarray(special_ids, dtype=np.int64))
    if len(specials) >= vocab_size:
        raise ValueError(f"all {vocab_size} ids are special: there is no token left to mask")
    draw: np.ndarray = np.empty(tokens.shape)
    for row, generator in zip(draw, generators, strict=True):
        generator.random(out=row)
    if starts is not None:
        draw = np.take_along_axis(draw, _first_of_unit(starts, special), axis=1)
    selected = (draw < share) & ~special
    masked = selected & (draw < share * MASKED)
    replaced = selected & ~masked & (draw < share * (MASKED + REPLACED))
    inputs = tokens.copy()
    inputs[masked] = mask_id
    ordinary, counts = vocab_size - len(specials), replaced.sum(axis=1).tolist()
    ranks = [generator.integers(ordinary, size=count) for generator, count in zip(generators, counts, strict=True)]
    if ranks:
        inputs[replaced] = _ordinary_ids(np.concatenate(ranks), specials)
    return inputs, selected


def _first_of_unit(starts: np.ndarray, special: np.ndarray) -> np.ndarray:
    """Return the place (B, P) of the first token of each token's unit. Special tokens are units of their own.

    A unit of more than LONGEST_UNIT tokens, such as a line of Chinese, is cut.
    """
    starts = starts | special
    starts[:, 1:] |= special[:, :-1]
    starts[:, 0] = True
    places = np.arange(starts.shape[1])
    first = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    return places - (places - first) % LONGEST_UNIT


def span_starts(starts: np.ndarray, generators: Sequence[np.random.Generator]) -> np.ndarray:
    """Starts of words (B, T) bool to starts of spans, (B, T) bool: SpanBERT's spans (Joshi et al. 2020, 3.1).

    The text is cut into spans of l words, with l drawn from the geometric distribution of SPAN_STOP among 1 to
    LONGEST_UNIT. Each row draws from its own generator.
    """
    longest = 1 - (1 - SPAN_STOP) ** LONGEST_UNIT
    chosen = np.zeros(starts.shape, bool)
    for row, words, generator in zip(chosen, starts, generators, strict=True):
        places = np.flatnonzero(words)
        uniform = generator.random(len(places))
        lengths = np.ceil(np.log1p(-uniform * longest) / np.log1p(-SPAN_STOP)).astype(np.int64)
        begins = np.append(0, np.cumsum(np.maximum(lengths, 1)))
        row[places[begins[begins < len(places)]]] = True
    return chosen


def _rows(blocks: np.ndarray, generators: Sequence[np.random.Generator]) -> np.ndarray:
    """Return blocks (B, T) as an array; ValueError if they have another shape or not one generator each."""
    blocks = np.asarray(blocks)
    if blocks.ndim != 2 or len(blocks) != len(generators):
        raise ValueError(
            f"blocks have shape {blocks.shape} and there are {len(generators)} generators: give (B, T) and B"
        )
    return blocks


def _ordinary_ids(ranks: np.ndarray, specials: np.ndarray) -> np.ndarray:
    """Return the non-special ids with these ranks among all of them; `specials` are sorted and distinct."""
    return ranks + np.searchsorted(specials - np.arange(len(specials)), ranks, side="right")


def span_corruption(
    blocks: np.ndarray,
    generators: Sequence[np.random.Generator],
    *,
    sentinel_ids: Sequence[int],
    start_id: int,
    end_id: int | None = None,
    noise: float = NOISE,
    mean_span: float = MEAN_SPAN,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Blocks (B, T) to source (B, S), decoder inputs, targets and weights (B, N), as in T5 (Raffel et al. 2020, 3.1.4).

    Removes a share `noise` of the tokens, in spans of `mean_span` tokens on average. The spans are uniform over all
    ways to cut kept and removed tokens into that many pieces each; a block begins with a kept token. In the source,
    sentinels in order replace the spans. The targets are each sentinel followed by its span, then `end_id`, or the next
    sentinel if it is None. `end_id` also ends the source. Inputs are `start_id` and the targets but the last. Weights
    are 1. S and N depend on T only: see `lengths_of_span_corruption`. Each row draws from its own generator.
    """
    blocks = _rows(blocks, generators)
    rows, length = blocks.shape
    removed, spans = _noise_counts(length, noise, mean_span)
    sentinels = np.asarray(sentinel_ids, dtype=np.int64)
    needed = spans + (end_id is None)
    if len(sentinels) < needed:
        raise ValueError(f"{length} tokens need {needed} sentinels, but sentinel_ids has {len(sentinels)}")
    # Each row is `spans` times: kept tokens, a sentinel, removed tokens.
    lengths = np.ones((rows, spans, 3), np.int64)
    for row, generator in zip(lengths, generators, strict=True):
        row[:, 0] = _random_segments(length - removed, spans, generator)
        row[:, 2] = _random_segments(removed, spans, generator)
    part = np.repeat(np.tile(np.arange(3, dtype=np.int8), rows * spans), lengths.ravel())
    ids = np.empty(len(part), np.int64)
    ids[part != 1] = blocks.ravel()
    ids[part == 1] = np.tile(sentinels[:spans], rows)
    source, target = ids[part < 2].reshape(rows, -1), ids[part > 0].reshape(rows, -1)
    ends = np.full((rows, 1), sentinels[spans] if end_id is None else end_id)
    target = np.concatenate([target, ends], axis=1)
    if end_id is not None:
        source = np.concatenate([source, ends], axis=1)
    inputs = np.concatenate([np.full((rows, 1), start_id), target[:, :-1]], axis=1)
    return source, inputs, target, np.ones(target.shape, dtype=np.float32)


def lengths_of_span_corruption(
    length: int, *, end: bool = False, noise: float = NOISE, mean_span: float = MEAN_SPAN
) -> tuple[int, int]:
    """Return the lengths of source and targets of `span_corruption` on `length` tokens; `end`: with an end id."""
    removed, spans = _noise_counts(length, noise, mean_span)
    return length - removed + spans + end, removed + spans + 1


def _noise_counts(length: int, noise: float, mean_span: float) -> tuple[int, int]:
    """Return the number of removed tokens and of spans: at least one of each, and a kept token before each span."""
    if length < 2:
        raise ValueError(f"a block of {length} tokens is too short to remove one and keep one: give at least 2")
    if not 0.0 < noise < 1.0:
        raise ValueError(f"noise is {noise}: give a share above 0 and below 1, such as 0.15")
    if not mean_span >= 1.0:
        raise ValueError(f"mean_span is {mean_span}: give at least 1 token, such as 3")
    removed = min(max(round(length * noise), 1), length - 1)
    return removed, min(max(round(removed / mean_span), 1), length - removed)


def _random_segments(items: int, segments: int, generator: np.random.Generator) -> np.ndarray:
    """Return lengths (segments,), each at least 1, that sum to `items`, uniform over all such compositions."""
    cuts = generator.choice(items - 1, size=segments - 1, replace=False) + 1
    return np.diff(np.concatenate(([0], np.sort(cuts), [items])))


def text_infilling(
    blocks: np.ndarray,
    generators: Sequence[np.random.Generator],
    *,
    mask_id: int,
    noise: float = INFILLED,
    mean_span: float = MEAN_SPAN,
) -> tuple[np.ndarray, np.ndarray]:
    """Blocks (B, T) to source (B, S) and where it is present, (B, S) bool: BART's infilling (Lewis et al. 2020, 2.2).

    Removes a share `noise` of the tokens. A single mask replaces each span. The lengths of spans are independent
    Poisson numbers of mean `mean_span`, drawn until they add up to the removed tokens; the last is shortened to fit. A
    span of length 0 inserts a mask. The spans are in random places, with a kept token between any two. Absent positions
    hold `mask_id`. S depends on T only: see `length_of_infilled`. Each row draws from its own generator.
    """
    blocks = _rows(blocks, generators)
    removed, most = _infilling_counts(blocks.shape[1], noise, mean_span)
    kept = blocks.shape[1] - removed
    source = np.full((len(blocks), kept + most), mask_id, np.int64)
    present = np.zeros(source.shape, bool)
    for row, (block, generator) in enumerate(zip(blocks, generators, strict=True)):
        lengths = _poisson_spans(removed, most, mean_span, generator)
        chosen = generator.choice(kept + 1, size=len(lengths), replace=False)
        order = np.argsort(chosen)
        gaps = chosen[order]  # the number of kept tokens before each span
        parts = np.zeros(2 * len(lengths) + 1, np.int64)  # kept, removed, kept, and so on
        parts[::2], parts[1::2] = np.diff(gaps, prepend=0, append=kept), lengths[order]
        is_kept = np.repeat(np.arange(len(parts)) % 2 == 0, parts)
        source[row, : kept + len(gaps)] = np.insert(block[is_kept].astype(np.int64), gaps, mask_id)
        present[row, : kept + len(gaps)] = True
    return source, present


def length_of_infilled(length: int, *, noise: float = INFILLED, mean_span: float = MEAN_SPAN) -> int:
    """Return the length of the source that `text_infilling` makes of `length` tokens, padding included."""
    removed, most = _infilling_counts(length, noise, mean_span)
    return length - removed + most


def _infilling_counts(length: int, noise: float, mean_span: float) -> tuple[int, int]:
    """Return the number of removed tokens, and the most spans of a block.

    A block has about removed / mean_span spans. More than twice as many are so rare that a limit is harmless.
    """
    removed, spans = _noise_counts(length, noise, mean_span)
    return removed, min(2 * spans + 1, removed, length - removed + 1)


def _poisson_spans(removed: int, most: int, mean: float, generator: np.random.Generator) -> np.ndarray:
    """Return Poisson lengths that add up to `removed`: at most `most`, with a last one that fits."""
    lengths: np.ndarray = generator.poisson(mean, size=most)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), removed) + 1]
    lengths[-1] += removed - lengths.sum()
    return lengths


def permuted_sentences(
    blocks: np.ndarray,
    generators: Sequence[np.random.Generator],
    *,
    stop_ids: Sequence[int] | np.ndarray,
    separator_id: int | None = None,
) -> np.ndarray:
    """Blocks (B, T) to blocks (B, T) int64 with the sentences in random order (Lewis et al. 2020, 2.2).

    A sentence ends at the last of consecutive tokens in `stop_ids`, such as full stops, or with the block. The
    separators, which begin documents, keep their order, and sentences stay in their document. Each row draws from its
    own generator.
    """
    blocks = _rows(blocks, generators).astype(np.int64)
    stops = np.isin(blocks, stop_ids)
    separators = np.zeros(blocks.shape, bool) if separator_id is None else blocks == separator_id
    begins = np.zeros(blocks.shape, bool)
    begins[:, 1:] = (stops[:, :-1] & ~stops[:, 1:]) | separators[:, :-1]
    sentences, documents = np.cumsum(begins | separators, axis=1), np.cumsum(separators, axis=1)
    for row, generator in enumerate(generators):
        places = generator.random(blocks.shape[1] + 1)[sentences[row]]
        places[separators[row]] = -1.0  # first in its document
        blocks[row] = blocks[row, np.lexsort((places, documents[row]))]
    return blocks


class SequencePairs(NamedTuple):
    """A batch for an encoder-decoder: ids int64, `source_present` bool, weights float32."""

    source: np.ndarray
    """(B, S): source, end, padding."""
    source_present: np.ndarray
    """(B, S): False at padding."""
    inputs: np.ndarray
    """(B, N): start, target, padding."""
    targets: np.ndarray
    """(B, N): target, end, padding."""
    weights: np.ndarray
    """(B, N): 1, and 0 at padding."""


def sequence_pairs(
    sources: Sequence[Sequence[int] | np.ndarray],
    targets: Sequence[Sequence[int] | np.ndarray],
    *,
    start_id: int,
    end_id: int,
    pad_id: int,
    source_length: int,
    target_length: int,
    before: Sequence[int] = (),
    after: Sequence[int] | None = None,
) -> SequencePairs:
    """Return pairs padded on the right to S = `source_length` and N = `target_length`, ends included.

    The decoder reads the start and the target, and predicts the target and its end (Sutskever et al. 2014). Sequences
    that are too long are truncated on the right: a source keeps its end, a target loses it. `before` and `after` are
    the ids around each source, by default nothing and the end.
    """
    after = [end_id] if after is None else after
    room = source_length - len(before) - len(after)
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets: give one target for each source")
    least = {"source_length": (source_length, len(before) + len(after)), "target_length": (target_length, 1)}
    for name, (length, ends) in least.items():
        if length < max(1, ends):
            raise ValueError(f"{name} is {length}: give at least {max(1, ends)}, for the end of the sequence")
    source = np.full((len(sources), source_length), pad_id, dtype=np.int64)
    present = np.zeros(source.shape, dtype=bool)
    predicted = np.full((len(targets), target_length), pad_id, dtype=np.int64)
    inputs, weights = predicted.copy(), np.zeros(predicted.shape, dtype=np.float32)
    for row, (source_ids, target_ids) in enumerate(zip(sources, targets, strict=True)):
        read = [*before, *source_ids[:room], *after]
        written = [*target_ids, end_id][:target_length]
        source[row, : len(read)], present[row, : len(read)] = read, True
        predicted[row, : len(written)], weights[row, : len(written)] = written, 1.0
        inputs[row, : len(written)] = [start_id, *written[:-1]]
    return SequencePairs(source, present, inputs, predicted, weights)
