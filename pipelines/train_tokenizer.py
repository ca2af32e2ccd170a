"""`bytelm train-tokenizer`: a corpus to a byte-level BPE vocabulary."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tyro

from corpora import Corpus, PairTexts, open_corpus, open_pairs
from corpora.splits import parse_rule
from pipelines.arguments import CorpusNames, InvalidPolicy, PairColumns, SplitRule, TextColumn, parse, refuse_with_pairs
from pipelines.display import Bar, duration, quantity, say, table, visible
from pipelines.vocabularies import load_compared
from tokenizer import (
    DEFAULT_SPECIAL_TOKENS,
    PATTERN_NAMES,
    PretokenCounts,
    Tokenizer,
    count_pretokens,
    resolve_pattern,
)
from tokenizer import sentinels as sentinel_tokens

# Held-out text that the summary is measured on.
SAMPLE_BYTES = 4_000_000
PRETOKENS_AT_ONCE = 1 << 18
EXAMPLES = 4
OURS = "this one"
# What the phases are called, and what they count.
PHASES = {"count": ("counting", "B"), "combine": ("combining", ""), "merge": ("merging", "")}


def train_tokenizer(
    corpus: CorpusNames = (),
    *,
    vocab_size: int,
    out: Path,
    pattern: str | None = None,
    min_frequency: int = 2,
    max_token_length: int | None = None,
    byte_order: Literal["gpt2", "raw"] = "gpt2",
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS,
    sentinels: int = 0,
    split: SplitRule = None,
    invalid: InvalidPolicy = "error",
    text_column: TextColumn = None,
    pairs: PairColumns = None,
    memory: int | None = None,
    spill_folder: Path | None = None,
    min_count: int = 1,
    save_counts: Path | None = None,
    counts: tuple[Path, ...] = (),
    compare: tuple[str, ...] = (),
    threads: int | None = None,
    overwrite: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> Tokenizer:
    """Train a byte-level BPE vocabulary on the training split of a corpus, and save it as tokenizer.json.

    Args:
        vocab_size: Entries in all: special tokens, the 256 bytes and the merges.
        out: Folder to save tokenizer.json in.
        pattern: How text is split before merging: gpt2, cl100k (the default), another name or a regular expression.
        min_frequency: A pair that occurs less often is not merged.
        max_token_length: Longest token in bytes.
        byte_order: Which byte has which id, and so how ties fall: gpt2 (as in Hugging Face) or raw.
        special_tokens: Entries before all others; give the option without a value for none.
        sentinels: How many special tokens <|sentinel_0|> and so on come after these: span corruption needs one for
            each span that it takes out.
        memory: Bytes that counting and merging may take, as 2G. Counts that do not fit are spilled to disk; merging
            says beforehand what it needs.
        spill_folder: Where to; by default the folder that the output is in.
        min_count: Leave out pretokens that occur less often. With more than 1 the merges are no longer exactly those
            of the corpus.
        save_counts: Parquet file to save the pretoken counts in.
        counts: Counts saved before, of one corpus or several together, to train on instead of reading CORPUS (which is
            then only held out).
        compare: Other tokenizers to measure on the held-out text: PATH or NAME=PATH. The name, or the file's own, tells
            how a .tiktoken file splits text: cl100k, say.
        threads: Threads that count; all cores by default.
        overwrite: Whether a tokenizer that is there already is replaced.
        as_json: Whether to print the summary as JSON and nothing else.
    """
    if (out / "tokenizer.json").exists() and not overwrite:
        raise ValueError(
            f"{out / 'tokenizer.json'} exists already: choose another --out, or replace it with --overwrite"
        )
    if save_counts and save_counts.exists() and not overwrite:
        raise ValueError(f"{save_counts} exists already: choose another --save-counts, or replace it with --overwrite")
    if sentinels < 0:
        raise ValueError(f"--sentinels is {sentinels}, but must not be negative")
    special_tokens = (*special_tokens, *sentinel_tokens(sentinels))
    smallest = 256 + len(special_tokens)
    if vocab_size < smallest:
        raise ValueError(
            f"--vocab-size is {vocab_size}, but 256 bytes and {len(special_tokens)} special tokens need {smallest}"
        )
    if pattern and re.fullmatch(r"[\w-]+", pattern) and pattern not in PATTERN_NAMES:
        names = ", ".join(PATTERN_NAMES)
        raise ValueError(f"--pattern {pattern} is no known name: use one of {names}, or write a regular expression")
    if min_count < 1:
        raise ValueError(f"--min-count is {min_count}, but must be at least 1")
    if not corpus and not counts:
        raise ValueError("no corpus was given: name one, or counts saved before with --counts")
    others = load_compared(compare)
    source = None
    if pairs and corpus:
        refuse_with_pairs(invalid=invalid, text_column=text_column)
        source = PairTexts(open_pairs(corpus, pairs, split))
    elif corpus:
        source = open_corpus(corpus, split=split, invalid=invalid, text_column=text_column)
    held_out = HeldOut()
    if spill_folder is None:  # a system's folder for temporary files is often held in memory
        spill_folder = next(folder for folder in out.absolute().parents if folder.is_dir())
    budget = {"memory": memory, "spill_folder": spill_folder}
    expected = _training_bytes(source) if source and not counts else None
    with Bar("counting", expected, "B") if not as_json else nullcontext() as bar:
        phases = Phases(bar, expected)
        if counts:
            phases.begin("combine")
            counted = PretokenCounts.merge(counts, **budget, progress=phases)
            if pattern and resolve_pattern(pattern).regex != counted.pattern.regex:
                raise ValueError(f"--pattern is {pattern}, but the counts were made with {counted.pattern}")
            if source:
                held_out.take(source)
        else:
            phases.begin("count")
            text = held_out.apart_from_training(source)
            counted = count_pretokens(text, pattern or "cl100k", threads=threads, progress=phases, **budget)
        if save_counts:
            counted.save(save_counts)
        whole = counted
        if min_count > 1:
            counted = whole.at_least(min_count)
        phases.begin("merge")
        tok = Tokenizer.train_from_counts(
            counted,
            vocab_size,
            special_tokens=special_tokens,
            min_frequency=min_frequency,
            max_token_length=max_token_length,
            byte_order=byte_order,
            memory=memory,
            progress=phases,
        )
        phases.end()
    tok.save(out)
    summary = {
        "tokenizer": str(out),
        "split_rule": source.split_rule if source else None,
        "seconds": phases.seconds,
        **_trained_on(whole, counted),
        **_vocabulary(tok, counted),
        "held_out_bytes": held_out.bytes,
        "held_out": {name: _measured(each, held_out) for name, each in {OURS: tok, **others}.items()},
    }
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        _show(summary)
    return tok


class Phases:
    """Seconds of each phase of the work, shown while it goes on."""

    def __init__(self, bar: Bar | None, text_bytes: int | None):
        self.seconds: dict[str, float] = {}
        self._bar, self._text_bytes = bar, text_bytes
        self._phase: str | None = None

    def begin(self, phase: str) -> None:
        self.end()
        self._phase, self._started = phase, time.monotonic()

    def end(self) -> None:
        if self._phase is not None:
            self.seconds[self._phase] = round(time.monotonic() - self._started, 2)
        self._phase = None

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if phase != self._phase:
            self.begin(phase)
        if self._bar is not None:
            label, unit = PHASES[phase]
            self._bar.phase(label, done, self._text_bytes if phase == "count" else total, unit)


class HeldOut:
    """The first `SAMPLE_BYTES` or so of a corpus's validation split."""

    def __init__(self) -> None:
        self.texts: list[pa.Array] = []
        self.bytes = 0

    def apart_from_training(self, corpus: Corpus | PairTexts) -> Iterator[pa.RecordBatch]:
        """The training split, in one pass that also finds the held-out text."""
        for split, batch in corpus.routed_batches():
            if split == "train":
                yield batch
            elif split == "validation":
                self._add(batch)

    def take(self, corpus: Corpus | PairTexts) -> None:
        """Only the held-out text."""
        for batch in corpus.batches("validation"):
            self._add(batch)
            if self.bytes >= SAMPLE_BYTES:
                break

    def _add(self, batch: pa.RecordBatch) -> None:
        """As many of the documents as it takes."""
        ends = np.cumsum(pc.binary_length(batch.column(0)).to_numpy()) + self.bytes
        wanted = min(len(ends), int(np.searchsorted(ends, SAMPLE_BYTES)) + 1)
        if self.bytes < SAMPLE_BYTES and wanted:
            self.texts.append(batch.column(0).slice(0, wanted))
            self.bytes = int(ends[wanted - 1])


def _training_bytes(corpus: Corpus | PairTexts) -> int | None:
    """About how many bytes of text are trained on."""
    estimate = corpus.text_bytes_estimate
    return estimate and round(estimate * (1 - parse_rule(corpus.split_rule).fraction))


def _trained_on(whole: PretokenCounts, kept: PretokenCounts) -> dict[str, Any]:
    facts = {
        "trained_on_bytes": kept.total_bytes,
        "pretokens": kept.total,
        "distinct_pretokens": len(kept),
        "spilled_runs": whole.spilled_runs,
        "spilled_bytes": whole.spilled_bytes,
    }
    if kept is not whole:
        facts["left_out_pretokens"] = len(whole) - len(kept)
        facts["left_out_bytes"] = whole.total_bytes - kept.total_bytes
    return facts


def _vocabulary(tok: Tokenizer, counts: PretokenCounts) -> dict[str, Any]:
    """What the entries are, and which of them the training text ends up without."""
    lengths = tok.token_byte_lengths
    longest = np.argsort(-lengths, kind="stable")[:EXAMPLES]
    facts = {
        "vocab_size": tok.vocab_size,
        "special_tokens": len(tok.special_tokens),
        "merges": len(tok.merges),
        "pattern": tok.pattern,
        "fingerprint": tok.fingerprint,
        "longest": [[int(lengths[i]), visible(tok.token_bytes(i))] for i in longest],
    }
    if tok.pattern in PATTERN_NAMES:
        tokens, used = tokens_of_counts(tok, counts)
        dead = np.flatnonzero(~used & (lengths > 1))
        facts["tokens"] = tokens
        facts["dead"] = len(dead)
        facts["dead_examples"] = [visible(tok.token_bytes(i)) for i in dead[:EXAMPLES]]
    return facts


def tokens_of_counts(tok: Tokenizer, counts: PretokenCounts) -> tuple[int, np.ndarray]:
    """(tokens of the text that was counted, whether each id is among them: bool (vocab_size,)).

    Exact for named patterns: by these, a pretoken that stands alone is one pretoken again.
    """
    tokens, used = 0, np.zeros(tok.vocab_size, dtype=bool)
    for first in range(0, len(counts), PRETOKENS_AT_ONCE):
        part = slice(first, first + PRETOKENS_AT_ONCE)
        offsets = pa.py_buffer(counts.offsets[first : first + PRETOKENS_AT_ONCE + 1])
        n = len(counts.counts[part])
        pretokens = pa.Array.from_buffers(pa.large_binary(), n, [None, offsets, pa.py_buffer(counts.data)])
        ids = tok.encode_arrow(pretokens)
        used[ids.values.to_numpy()] = True
        tokens += int(np.dot(np.diff(ids.offsets.to_numpy()), counts.counts[part]))
    return tokens, used


def _measured(tok: Tokenizer, held_out: HeldOut) -> dict[str, int]:
    """Tokens of the held-out text, and how many of the entries occur among them."""
    tokens, used = 0, np.zeros(tok.vocab_size, dtype=bool)
    for texts in held_out.texts:
        ids = tok.encode_arrow(texts).values.to_numpy()
        tokens += len(ids)
        used[ids] = True
    return {"tokens": tokens, "entries_used": int(used.sum()), "entries": int((tok.token_byte_lengths > 0).sum())}


def _show(summary: dict[str, Any]) -> None:
    say("")
    table(("tokenizer", summary["tokenizer"]), list(_rows(summary)), text=True)
    size = summary["held_out_bytes"]
    say("")
    if not size:
        say("there is no held-out text to measure it on")
        return
    rows = []
    for name, numbers in summary["held_out"].items():
        used = numbers["entries_used"] / numbers["entries"]
        per_token = f"{size / numbers['tokens']:.3f}"
        rows.append((name, per_token, f"{numbers['entries']:,}", f"{numbers['entries_used']:,}", f"{used:.1%}"))
    table((f"held out: {quantity(size, 'B')}", "bytes per token", "entries", "used", ""), rows)


def _rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    seconds, size = summary["seconds"], summary["trained_on_bytes"]
    kinds = f"{summary['special_tokens']} special, 256 bytes, {summary['merges']:,} merges"
    yield "entries", f"{summary['vocab_size']:,}: {kinds}"
    yield "pattern", summary["pattern"]
    split = f", training split ({summary['split_rule']})" if summary["split_rule"] else ""
    yield "trained on", f"{quantity(size, 'B')}{split}"
    yield "pretokens", f"{summary['pretokens']:,}, {summary['distinct_pretokens']:,} distinct"
    if "left_out_bytes" in summary:
        share = summary["left_out_bytes"] / (size + summary["left_out_bytes"])
        rare = f"{summary['left_out_pretokens']:,} rare ones, {quantity(summary['left_out_bytes'], 'B')} ({share:.2%})"
        yield "left out", f"{rare}: the merges are not exactly the corpus's"
    if summary["spilled_runs"]:
        yield "spilled", f"{quantity(summary['spilled_bytes'], 'B')} in {summary['spilled_runs']:,} runs"
    spent = {phase: _seconds(each) for phase, each in seconds.items()}
    if "count" in spent:
        spent["count"] += f" ({quantity(size / max(0.01, seconds['count']), 'B')}/s)"
    phases = ", ".join(f"{PHASES[phase][0]} {each}" for phase, each in spent.items())
    yield "time", f"{_seconds(sum(seconds.values()))}: {phases}"
    if "tokens" in summary:
        yield "bytes per token", f"{size / max(1, summary['tokens']):.3f} on the text trained on"
        dead = f"{summary['dead']:,} merges, which that text has only inside longer tokens"
        examples = "  ".join(map(_shortened, summary["dead_examples"]))
        yield "dead", f"{dead}: {examples}" if summary["dead"] else "no merges"
    yield "longest", "  ".join(f"{_shortened(spelled)} ({length})" for length, spelled in summary["longest"])
    yield "fingerprint", summary["fingerprint"][:16]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _shortened(spelled: str) -> str:
    return spelled if len(spelled) <= 16 else spelled[:15] + "…"


def main(arguments: list[str]) -> None:
    parse(train_tokenizer, arguments, "train-tokenizer")
