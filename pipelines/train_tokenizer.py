"""`bytelm train-tokenizer`: a corpus to a byte-level BPE vocabulary."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa

from corpora import Corpus, open_corpus
from pipelines.arguments import CorpusNames, InvalidPolicy, SplitRule, TextColumn, parse
from pipelines.display import Bar, say, table
from tokenizer import DEFAULT_SPECIAL_TOKENS, PATTERN_NAMES, Tokenizer

# Held-out text that the summary is measured on.
SAMPLE_BYTES = 4_000_000


def train_tokenizer(
    corpus: CorpusNames,
    *,
    vocab_size: int,
    out: Path,
    pattern: str = "cl100k",
    min_frequency: int = 2,
    max_token_length: int | None = None,
    byte_order: Literal["gpt2", "raw"] = "gpt2",
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS,
    split: SplitRule = None,
    invalid: InvalidPolicy = "error",
    text_column: TextColumn = None,
    threads: int | None = None,
    overwrite: bool = False,
) -> Tokenizer:
    """Train a byte-level BPE vocabulary on the training split of a corpus, and save it as tokenizer.json.

    Args:
        vocab_size: Entries in all: special tokens, the 256 bytes and the merges.
        out: Folder to save tokenizer.json in.
        pattern: How text is split before merging: gpt2, cl100k, or a regular expression.
        min_frequency: A pair that occurs less often is not merged.
        max_token_length: Longest token in bytes.
        byte_order: Which byte has which id, and so how ties fall: gpt2 (as in Hugging Face) or raw.
        special_tokens: Entries before all others; give the option without a value for none.
        threads: Threads that count; all cores by default.
        overwrite: Whether a tokenizer that is there already is replaced.
    """
    if (out / "tokenizer.json").exists() and not overwrite:
        raise ValueError(
            f"{out / 'tokenizer.json'} exists already: choose another --out, or replace it with --overwrite"
        )
    smallest = 256 + len(special_tokens)
    if vocab_size < smallest:
        raise ValueError(
            f"--vocab-size is {vocab_size}, but 256 bytes and {len(special_tokens)} special tokens need {smallest}"
        )
    if re.fullmatch(r"[\w-]+", pattern) and pattern not in PATTERN_NAMES:
        names = ", ".join(PATTERN_NAMES)
        raise ValueError(f"--pattern {pattern} is no known name: use one of {names}, or write a regular expression")
    source = open_corpus(corpus, split=split, invalid=invalid, text_column=text_column)
    with Bar("reading", source.text_bytes_estimate, "") as bar:
        tok = Tokenizer.train(
            source.batches("train"),
            vocab_size=vocab_size,
            pattern=pattern,
            special_tokens=special_tokens,
            min_frequency=min_frequency,
            max_token_length=max_token_length,
            byte_order=byte_order,
            threads=threads,
            progress=bar.phase,
        )
    tok.save(out)
    _summarize(out, tok, source)
    return tok


def _summarize(out: Path, tok: Tokenizer, corpus: Corpus) -> None:
    sampled_bytes, sampled_tokens = bytes_per_token_sample(tok, corpus.batches("validation"))
    longest = max((tok.token_bytes(i) for i in range(tok.vocab_size)), key=len)
    rows = [
        ("entries", f"{tok.vocab_size:,}"),
        ("merges", f"{len(tok.merges):,}"),
        ("longest token", f"{len(longest)} bytes, {longest.decode('utf-8', 'replace')[:32]!r}"),
    ]
    if sampled_tokens:
        rows.append(("bytes per token, validation", f"{sampled_bytes / sampled_tokens:.3f}"))
    table((str(out), ""), rows)
    say(f"trained on the training split ({corpus.split_rule}); fingerprint {tok.fingerprint[:16]}")


def bytes_per_token_sample(tok: Tokenizer, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
    """(bytes, tokens) of the first `SAMPLE_BYTES` or so of `batches`."""
    sampled_bytes = sampled_tokens = 0
    for batch in batches:
        ids = tok.encode_arrow(batch.column(0)).values
        sampled_tokens += len(ids)
        sampled_bytes += int(tok.token_byte_lengths[ids.to_numpy()].sum())
        if sampled_bytes >= SAMPLE_BYTES:
            break
    return sampled_bytes, sampled_tokens


def main(arguments: list[str]) -> None:
    parse(train_tokenizer, arguments, "train-tokenizer")
