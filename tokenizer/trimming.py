"""Trim a vocabulary: keep the tokens that a text uses, and the parts that they are merged from.

A token of BPE needs the parts that its merges join, and their parts. If these stay, a text whose tokens all stay is
encoded as before, because each merge on the way makes a part of one of its tokens. WordPiece and Unigram choose among
whole tokens, so leaving out other tokens changes nothing for such a text.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenizer.argument_checks import check_callable, whole_number
from tokenizer.document_blocks import corpus_blocks, release
from tokenizer.encoding.text_encoder import TextEncoder
from tokenizer.kinds.registry import kind_named
from tokenizer.vocabulary import Vocabulary
from tokenizer.workers import thread_count

if TYPE_CHECKING:
    from tokenizer.training.counting import Progress


def trim(
    vocabulary: Vocabulary,
    corpus: object,
    entries: int | None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Vocabulary:
    """Return the vocabulary that `Tokenizer.trim` describes."""
    kind = kind_named(vocabulary.kind)
    required = kind.required_ids(vocabulary) | {*vocabulary.special_tokens.values()}  # refuses other kinds
    padding = vocabulary.length_settings.get("padding")
    if padding is not None:
        required |= {padding["pad_id"]} & {*vocabulary.ids.values()}  # texts do not use it, and batches do
    thread_count(threads)
    check_callable("progress", progress)
    parts = _parts(vocabulary)
    required = _closure(required, parts)
    if entries is not None:
        entries = whole_number("entries", entries, 1)
        if entries < len(required):
            raise ValueError(
                f"entries is {entries:,}, but {len(required):,} tokens, such as bytes, single characters and special "
                f"tokens, must stay: give at least {len(required):,}"
            )
    used = count_ids(vocabulary, corpus, threads, progress)
    if entries is None:
        kept = _closure(required | {*np.flatnonzero(used).tolist()}, parts)
    else:
        kept = _most_used(vocabulary, used, parts, required, entries)
    renumbered = {old: new for new, old in enumerate(sorted(kept))}
    special = {spelling: renumbered[i] for spelling, i in vocabulary.special_tokens.items()}
    settings = {**vocabulary.length_settings}
    if padding is not None:
        settings["padding"] = padding | {"pad_id": renumbered.get(padding["pad_id"], padding["pad_id"])}
    return kind.with_ids(
        vocabulary,
        renumbered,
        special_tokens=special,
        post_processor=_with_ids(vocabulary.post_processor, special),
        length_settings=settings,
    )


def count_ids(
    vocabulary: Vocabulary, corpus: object, threads: int | None = None, progress: Progress | None = None
) -> np.ndarray:
    """Return how often a corpus, as in `Tokenizer.train`, uses each id: int64 (size,)."""
    used, texts = np.zeros(vocabulary.size, dtype=np.int64), TextEncoder(vocabulary)
    blocks, total = corpus_blocks(corpus)
    done = 0
    for block in blocks:
        ids, _ = texts.to_arrays(block, threads)
        used += np.bincount(ids, minlength=vocabulary.size)
        done += block.size
        release(block)
        if progress is not None:
            progress("count", done, total)
    return used


def _parts(vocabulary: Any) -> dict[int, list[tuple[int, int]]]:
    """Return the pairs of ids that merge into each id, in the order of the merges; empty for kinds without merges."""
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for left, right, merged in vocabulary.merges.tolist() if hasattr(vocabulary, "merges") else ():
        parts[merged].append((left, right))
    return parts


def _closure(ids: set[int], parts: Mapping[int, list[tuple[int, int]]]) -> set[int]:
    """Return ids, their parts, the parts of these, and so on."""
    found, waiting = set(ids), list(ids)
    while waiting:
        for pair in parts.get(waiting.pop(), ()):
            for part in pair:
                if part not in found:
                    found.add(part)
                    waiting.append(part)
    return found


def _most_used(
    vocabulary: Vocabulary,
    used: np.ndarray,
    parts: Mapping[int, list[tuple[int, int]]],
    required: set[int],
    entries: int,
) -> set[int]:
    """Return `entries` ids, without the least used ones (leaf-based pruning, Purason et al. 2025, arXiv 2512.03989).

    The least used id that is not part of another one is left out next; of equally used ids, the largest. Its count is
    added to its parts.
    """
    counts = used.tolist()
    kept = {*vocabulary.ids.values()} | {*vocabulary.special_tokens.values()}
    wholes: dict[int, int] = defaultdict(int)  # number of merges that have the id as a part
    for token, pairs in parts.items():
        for part in {part for pair in pairs for part in pair} - {token}:
            wholes[part] += 1
    leaves = [(counts[i], -i) for i in kept - required if not wholes[i]]
    heapq.heapify(leaves)
    while len(kept) > entries and leaves:
        count, negative = heapq.heappop(leaves)
        token = -negative
        if token not in kept or count != counts[token]:
            continue  # its count has grown since
        kept.remove(token)
        for part in parts[token][0] if token in parts else ():
            counts[part] += count
            if part in kept and part not in required and not wholes[part]:
                heapq.heappush(leaves, (counts[part], -part))
        for part in {part for pair in parts.get(token, ()) for part in pair} - {token}:
            wholes[part] -= 1
            if not wholes[part] and part in kept and part not in required:
                heapq.heappush(leaves, (counts[part], -part))
    return kept


def _with_ids(processor: dict[str, Any] | None, special: Mapping[str, int]) -> dict[str, Any] | None:
    """Return a checked post_processor with the ids of its special tokens."""
    if processor is None:
        return None
    if "processors" in processor:
        return {**processor, "processors": [_with_ids(step, special) for step in processor["processors"]]}
    changed: dict[str, Any] = {
        name: [processor[name][0], special[processor[name][0]]] for name in ("cls", "sep") if name in processor
    }
    if "special_tokens" in processor:
        changed["special_tokens"] = {
            name: token | {"ids": [special[spelling] for spelling in token["tokens"]]}
            for name, token in processor["special_tokens"].items()
        }
    return processor | changed
