"""The summary of a trained tokenizer: its training text, its entries, and its fit to held-out text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpora import Corpus, PairTexts, open_pairs
from corpora.splits import VALIDATION
from pipelines.cli.console import messages
from pipelines.cli.corpus_arguments import say_left_out
from pipelines.cli.display import duration, quantity, say, table, write
from pipelines.cli.escapes import visible
from pipelines.reporting.language_parity import show_costs
from pipelines.reporting.merge_trace import show_trace
from pipelines.reporting.token_labels import LONGEST_EXAMPLE, shorten
from pipelines.reporting.tokenizer_fit import DEFINITIONS, Words, fit_to_tokens, fit_to_words, words_of
from pipelines.reporting.training_phases import PHASES
from tokenizer import PATTERN_NAMES, PretokenCounts, Tokenizer
from tokenizer.kinds.registry import kind_named

CHECKED_MERGES = 100  # first merges that are compared with training on all pretokens
SAMPLE_BYTES = 4_000_000  # of held-out text
PRETOKENS_AT_ONCE = 1 << 18
EXAMPLES = 4
LANGUAGES = 30  # in the table
LANGUAGE_COLUMNS = ("lang", "language")
OURS = "this one"


class HeldOut:
    """About the first `SAMPLE_BYTES` of a corpus's validation split. Longer documents are cut to that length."""

    def __init__(self) -> None:
        self.texts: list[pa.Array] = []
        self.bytes = 0

    def apart_from_training(self, corpus: Corpus | PairTexts) -> Iterator[pa.RecordBatch]:
        """Yield the training split, and take the held-out text in the same pass."""
        for split, batch in corpus.routed_batches():
            if split == "train":
                yield batch
            elif split == "validation":
                self._add(batch)

    def take(self, validation: Iterable[pa.RecordBatch]) -> None:
        """Take the first batches of the validation split until there is enough text."""
        for batch in validation:
            self._add(batch)
            if self.bytes >= SAMPLE_BYTES:
                break

    def languages(self, corpus: Sequence[str], split: str, reading: Mapping[str, Any]) -> dict[str, str]:
        """Return the language of each text, from the first of `LANGUAGE_COLUMNS` in the corpus; empty without one.

        The texts are of the validation split by the rule `split`. `reading` are options of `open_corpus`.
        """
        wanted = {text for array in self.texts for text in array.to_pylist()}
        options = {name: value for name, value in reading.items() if name in ("max_document", "suffix", "encoding")}
        for column in LANGUAGE_COLUMNS:
            known: dict[str, str] = {}
            try:
                pairs = open_pairs(corpus, (reading.get("text_column") or "text", column), split, **options)
                for name, batch in pairs.routed_batches():
                    if name == VALIDATION:
                        rows = zip(*(side.to_pylist() for side in batch.columns), strict=True)
                        known |= {text: language for text, language in rows if text in wanted}
                    if len(known) == len(wanted):
                        break
            except ValueError:  # no such column
                continue
            return known
        return {}

    def _add(self, batch: pa.RecordBatch) -> None:
        """Add copies of documents until there is enough text. A view would keep a whole mapped file in memory."""
        texts = batch.column(0)
        ends = np.cumsum(np.from_dlpack(pc.binary_length(texts))) + self.bytes  # to_numpy imports pandas
        wanted = min(len(ends), int(np.searchsorted(ends, SAMPLE_BYTES)) + 1)
        if self.bytes < SAMPLE_BYTES and wanted:
            first_part = pc.binary_slice if pa.types.is_large_binary(texts.type) else pc.utf8_slice_codeunits
            self.texts.append(first_part(texts.slice(0, wanted), 0, SAMPLE_BYTES))
            self.bytes += pc.sum(pc.binary_length(self.texts[-1])).as_py()


def summarize(
    tok: Tokenizer,
    counts: PretokenCounts,
    frequent: PretokenCounts,
    held_out: HeldOut,
    others: Mapping[str, Tokenizer],
    languages: Mapping[str, str] | None = None,
    max_token_length: int | None = None,
) -> dict[str, Any]:
    """Return the numbers of the tokenizer `tok`, and the fit of `others` to the same held-out text.

    `counts` are all pretokens of the training text. `frequent` are the pretokens that `min_count` left for training.
    `languages` has the language of held-out documents, by text; the fit is then also measured by language.
    `max_token_length` is the limit used in training.
    """
    tokenizers = {OURS: tok, **others}
    return {
        **_trained_on(counts, frequent),
        **_exact(tok, counts, frequent, max_token_length),
        **_entries(tok, frequent),
        "held_out_bytes": held_out.bytes,
        "held_out": _fits(tokenizers, held_out.texts),
        "languages": {
            language: {"bytes": size_of(texts), "held_out": _fits(tokenizers, texts)}
            for language, texts in _by_language(held_out.texts, languages or {}).items()
        },
    }


def _by_language(texts: list[pa.Array], languages: Mapping[str, str]) -> dict[str, list[pa.Array]]:
    """Return the texts of each language, ordered by bytes, largest first."""
    found: dict[str, list[Any]] = {}
    for text in (text for array in texts for text in array.to_pylist()):
        if text in languages:
            found.setdefault(languages[text], []).append(text)
    groups = {language: [pa.array(each, texts[0].type)] for language, each in found.items()}
    return dict(sorted(groups.items(), key=lambda group: -size_of(group[1])))


def size_of(texts: list[pa.Array]) -> int:
    """Return the bytes of texts."""
    return int(sum(pc.sum(pc.binary_length(text)).as_py() or 0 for text in texts))


def _fits(tokenizers: Mapping[str, Tokenizer], texts: list[pa.Array]) -> dict[str, dict[str, Any]]:
    """Return the numbers of `_measure` for each tokenizer, by its name."""
    words = words_of(pa.chunked_array(texts or [pa.array([], pa.large_string())]))
    return {name: _measure(tok, texts, words) for name, tok in tokenizers.items()}


def _trained_on(counts: PretokenCounts, frequent: PretokenCounts) -> dict[str, Any]:
    facts = {
        "trained_on_bytes": frequent.total_bytes,
        "pretokens": frequent.total,
        "distinct_pretokens": len(frequent),
        "spilled_runs": counts.spilled_runs,
        "spilled_bytes": counts.spilled_bytes,
    }
    if frequent is not counts:
        facts["left_out_pretokens"] = len(counts) - len(frequent)
        facts["left_out_bytes"] = counts.total_bytes - frequent.total_bytes
    return facts


def _exact(
    tok: Tokenizer, counts: PretokenCounts, frequent: PretokenCounts, max_token_length: int | None
) -> dict[str, Any]:
    """Return how many first merges training on all `counts` also gives, for bpe trained on fewer pretokens."""
    from tokenizer.training.replay import exact_merges

    if frequent is counts or tok.kind != "bpe":
        return {}
    exact = exact_merges(counts, tok.vocabulary, CHECKED_MERGES, max_token_length=max_token_length)
    return {"exact_merges": exact, "checked_merges": min(CHECKED_MERGES, len(tok.merges))}


def _entries(tok: Tokenizer, counts: PretokenCounts) -> dict[str, Any]:
    """Return facts about the entries, and about dead merges, whose tokens do not occur in the training text."""
    lengths = spelled_lengths(tok)
    longest = np.argsort(-lengths, kind="stable")[:EXAMPLES]
    facts = {
        "kind": tok.kind,
        "vocab_size": tok.vocab_size,
        "special_tokens": len(tok.special_tokens),
        "merges": len(tok.merges),
        "pattern": tok.pattern,
        "normalizer": tok.normalizer,
        "fingerprint": tok.fingerprint,
        "longest": [[int(lengths[i]), _example(tok, i)] for i in longest],
    }
    if tok.pattern in PATTERN_NAMES:
        tokens, used = tokens_of_counts(tok, counts)
        dead = np.flatnonzero(~used & (lengths > 1))
        facts["tokens"] = tokens
        facts["dead"] = len(dead)
        facts["dead_examples"] = [_example(tok, i) for i in dead[:EXAMPLES]]
    return facts


def spelled_lengths(tok: Tokenizer) -> np.ndarray:
    """Return the bytes of the spelling of each entry, int32 (vocab_size,); 0 for special tokens and unused ids."""
    if tok.is_lossless:
        return tok.token_byte_lengths
    return np.array([len(token or b"") for token in tok.vocabulary.tokens], dtype=np.int32)


def _example(tok: Tokenizer, token: int) -> str:
    """Return the start of a token's bytes, made visible: a token can have megabytes."""
    return visible(tok.token_bytes(token)[:LONGEST_EXAMPLE])


def tokens_of_counts(tok: Tokenizer, counts: PretokenCounts) -> tuple[int, np.ndarray]:
    """Return the number of tokens of the counted text, and bool (vocab_size,): which ids occur in it.

    Exact for named patterns, which split a single pretoken no further.
    """
    tokens, used = 0, np.zeros(tok.vocab_size, dtype=bool)
    for first in range(0, len(counts), PRETOKENS_AT_ONCE):
        part = slice(first, first + PRETOKENS_AT_ONCE)
        offsets = pa.py_buffer(counts.offsets[first : first + PRETOKENS_AT_ONCE + 1])
        n = len(counts.counts[part])
        pretokens = pa.Array.from_buffers(pa.large_binary(), n, [None, offsets, pa.py_buffer(counts.data)])
        ids = tok.encode_arrow(pretokens)
        used[np.from_dlpack(ids.values)] = True
        tokens += int(np.dot(np.diff(np.from_dlpack(ids.offsets)), counts.counts[part]))
    return tokens, used


def _measure(tok: Tokenizer, texts: list[pa.Array], words: Words) -> dict[str, Any]:
    """Return the number of tokens, the entries that occur, and the fit to the texts and their `words`."""
    counts = np.zeros(tok.vocab_size, np.int64)
    for text in texts:
        counts += np.bincount(np.from_dlpack(tok.encode_arrow(text).values), minlength=tok.vocab_size)
    entries = int((spelled_lengths(tok) > 0).sum())
    return {
        "tokens": int(counts.sum()),
        "entries_used": int(np.count_nonzero(counts)),
        "entries": entries,
        **fit_to_words(tok, words),
        **fit_to_tokens(tok, counts, entries),
    }


def print_summary(summary: dict[str, Any], sources: Sequence[Corpus | PairTexts], as_json: bool) -> None:
    """Print a summary and what the corpora leave out, or with `as_json` the summary alone."""
    if as_json:
        write(json.dumps(summary, indent=2))
        return
    show(summary)
    if "trace" in summary:
        show_trace(summary["trace"])
    for source in sources:
        say_left_out(source.dropped, source.skipped_files)


def show(summary: dict[str, Any]) -> None:
    """Print a summary, to which the caller has added `tokenizer`, `split_rule` and the `seconds` of each phase.

    `parity`, if the caller has added it, has the costs of languages by tokenizer.
    """
    say("")
    table(("tokenizer", summary["tokenizer"]), list(_rows(summary)), text=True, to=messages)
    size = summary["held_out_bytes"]
    say("")
    if not size:
        say("no held-out text to measure the tokenizer on")
        return
    fits = summary["held_out"]
    heads = (f"held out: {quantity(size, 'B')}", "B/token", "tok/word", "whole", "Rényi", "unknown", "entries", "used")
    table(heads, [(name, *_fit_cells(numbers, size)) for name, numbers in fits.items()], to=messages)
    for line in DEFINITIONS:
        say(line)
    if languages := summary["languages"]:
        say("")
        shown = list(languages.items())[:LANGUAGES]
        rows = [
            (name, *(f"{_ratio(found['bytes'], each['tokens']):.3f}" for each in found["held_out"].values()))
            for name, found in shown
        ]
        table((f"bytes per token in {len(languages)} languages", *fits), rows, to=messages)
        if len(languages) > len(shown):
            say(f"... and {len(languages) - len(shown)} more; `as_json` has all")
    if "parity" in summary:
        say("")
        show_costs(summary["parity"], to=messages)


def _fit_cells(numbers: dict[str, Any], size: int) -> Iterator[str]:
    """Yield the cells of a tokenizer's fit to a text of `size` bytes."""
    yield f"{_ratio(size, numbers['tokens']):.3f}"
    forms = {"tokens_per_word": ".3f", "whole_words": ".1%", "renyi_efficiency": ".3f", "unknown": ".2%"}
    for key, form in forms.items():
        yield "–" if numbers[key] is None else format(numbers[key], form)
    yield f"{numbers['entries']:,}"
    yield f"{_ratio(numbers['entries_used'], numbers['entries']):.1%}"


def _ratio(number: int, of: int) -> float:
    return number / of if of else 0.0


def _rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    seconds, size = summary["seconds"], summary["trained_on_bytes"]
    special, kind = summary["special_tokens"], kind_named(summary["kind"])
    rest = kind.describe_entries(summary["vocab_size"] - special, summary["merges"])
    yield "entries", f"{summary['vocab_size']:,}: {special} special, {rest}"
    yield "pattern", summary["pattern"]
    if summary["normalizer"]:
        yield "normalizer", summary["normalizer"]
    rule = summary["split_rule"]
    split = ", the whole corpus" if rule == "none" else f", training split ({rule})" if rule else ""
    yield "trained on", f"{quantity(size, 'B')}{f' of {kind.pretokens}' * bool(kind.pretokens)}{split}"
    yield "pretokens", f"{summary['pretokens']:,}, {summary['distinct_pretokens']:,} distinct"
    if "left_out_bytes" in summary:
        share = summary["left_out_bytes"] / (size + summary["left_out_bytes"])
        rare = f"{summary['left_out_pretokens']:,} rare ones, {quantity(summary['left_out_bytes'], 'B')} ({share:.2%})"
        yield "left out", rare
    if "exact_merges" in summary:
        exact, checked = summary["exact_merges"], summary["checked_merges"]
        later = "later ones may differ" if exact < checked else "later ones were not checked"
        yield "exact", f"the first {exact:,} merges are the same as with all pretokens; {later}"
    if summary["spilled_runs"]:
        yield "spilled", f"{quantity(summary['spilled_bytes'], 'B')} in {summary['spilled_runs']:,} runs"
    spent = {phase: _seconds(duration) for phase, duration in seconds.items()}
    if "count" in spent:
        spent["count"] += f" ({quantity(size / max(0.01, seconds['count']), 'B')}/s)"
    phases = ", ".join(f"{PHASES[phase][0]} {each}" for phase, each in spent.items())
    yield "time", f"{_seconds(sum(seconds.values()))}: {phases}"
    if "tokens" in summary:
        yield "bytes per token", f"{size / max(1, summary['tokens']):.3f} on the training text"
        dead = f"{summary['dead']:,} merges, which occur in this text only inside longer tokens"
        examples = "  ".join(map(shorten, summary["dead_examples"]))
        yield "dead", f"{dead}: {examples}" if summary["dead"] else "no merges"
    yield "longest", "  ".join(f"{shorten(spelled)} ({length})" for length, spelled in summary["longest"])
    yield "fingerprint", summary["fingerprint"][:16]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
