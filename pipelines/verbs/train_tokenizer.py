"""Text: train a vocabulary of BPE, WordPiece, Unigram, words or characters on a corpus.

Examples:
    bytelm train-tokenizer my-text/ --vocab-size 8k --out tokenizer
    bytelm train-tokenizer stdlib --kind wordpiece --vocab-size 4096 --out words
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import tyro

from pipelines.cli.arguments import Address, AsJson, DryRun, Engine, Model, check_engine
from pipelines.cli.corpus_arguments import (
    READING,
    CorpusNames,
    PairColumns,
    ReadingOptions,
    SplitRule,
    refuse_with_pairs,
    say_left_out,
)
from pipelines.cli.display import Bar, answer, say_on_stderr
from pipelines.cli.dry_run import check_dry_run, plan_tokenizer
from pipelines.cli.errors import UsageError
from pipelines.cli.named_tokenizers import load_compared
from pipelines.cli.process import resumable
from pipelines.cli.shell import command
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import doing
from pipelines.files import with_a_name
from pipelines.process_memory import resident_bytes
from pipelines.reporting.training_phases import Phases
from pipelines.tokenizer_options import Superwords, all_special_tokens, check_options
from tokenizer import DEFAULT_SPECIAL_TOKENS, PieceRules, Tokenizer
from tokenizer.kinds.registry import kind_named, resolve_splitter
from tokenizer.splitting.normalized_splitter import spelling_after

if TYPE_CHECKING:
    from corpora import Corpus, PairTexts
    from pipelines.reporting.tokenizer_summary import HeldOut
    from tokenizer import PretokenCounts
    from tokenizer.training.forecast import MergeForecast

OUT_OF_MEMORY = "set `memory`, or lower `max_document`"

# Text in the queues of the threads, caches, and freed memory that the allocator holds, in bytes.
TEXT_MEMORY = 130_000_000
# Least memory for counting and merging, in bytes.
LEAST_SPARE_MEMORY = 100_000_000

Normalization = Literal["nfc", "nfd", "nfkc", "nfkd", "lowercase", "strip-accents"]

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Corpus": ("corpus split", "pairs"),
    "Reading files": READING,
    "Vocabulary": (
        "vocab_size kind pattern superwords parity",
        "normalize special_tokens sentinels special_text merge_by min_frequency max_token_length limit_alphabet "
        "base byte_order tie_break transition superword_words parity_window",
    ),
    "Unigram pieces": ("", " ".join(f"pieces.{field.name}" for field in fields(PieceRules))),
    "Memory and time": ("memory threads", "spill_folder min_count save_counts counts engine address"),
    "Output": ("out compare overwrite dry_run json", "trace"),
}


@verb
def train_tokenizer(
    corpus: CorpusNames = (),
    *,
    vocab_size: int,
    out: Path,
    kind: Model = "bpe",
    pattern: str | None = None,
    normalize: tuple[Normalization, ...] = (),
    superwords: bool = False,
    transition: float = Superwords.transition,
    superword_words: int = Superwords.words,
    parity: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE | LANGUAGE=RATIO ...")] = (),
    parity_window: int = 0,
    merge_by: Literal["frequency", "likelihood"] = "frequency",
    min_frequency: int | None = None,
    max_token_length: int | None = None,
    limit_alphabet: int | None = None,
    base: int | None = None,
    byte_order: Literal["gpt2", "raw"] = "gpt2",
    tie_break: Literal["ids", "bytes"] = "ids",
    pieces: PieceRules = PieceRules(),  # noqa: B008 - immutable
    special_tokens: tuple[str, ...] = DEFAULT_SPECIAL_TOKENS,
    special_text: Literal["text", "cut"] = "text",
    sentinels: int = 0,
    split: SplitRule = None,
    pairs: PairColumns = None,
    memory: int | None = None,
    spill_folder: Path | None = None,
    min_count: int = 1,
    save_counts: Path | None = None,
    counts: tuple[Path, ...] = (),
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]PATH ...")] = (),
    trace: int = 0,
    threads: int | None = None,
    engine: Engine = "local",
    address: Address = None,
    overwrite: bool = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    **reading: Unpack[ReadingOptions],
) -> Tokenizer | None:
    """Train a vocabulary on the training split of a corpus, and save it as tokenizer.json.

    Args:
        vocab_size: Number of entries, including special tokens and, for bpe, the 256 bytes.
        out: Folder for tokenizer.json.
        kind: bpe (byte-level), wordpiece (BERT), unigram (T5), character-bpe (Llama 2), characters, words or integers.
            characters has one token for each character, words one for each word. integers is for sequences of integers:
            .npy files (name the suffix) or lists in Parquet. Of the kinds for text, only bpe keeps all of it.
        pattern: Split pattern: gpt2, cl100k (the default), another name or a regular expression. For wordpiece:
            bert-uncased (the default) or bert-cased. For unigram: metaspace (the default, without normalization),
            nmt_nfkc or nfkc (both normalize as SentencePiece does), llama2 (keeps every space) or keep-whitespace
            (for code). For character-bpe: llama2 (the default), metaspace, nmt_nfkc or nfkc. Leave it out for others.
        normalize: Normalizations of the text before it is split, in this order. Decoded text is then normalized text,
            and only nfc keeps its meaning. bpe only; unigram and wordpiece have patterns that normalize.
        superwords: Let the last tokens hold several words; bpe only. SuperBPE (Liu et al. 2025), which reads the text
            twice.
        transition: Share of the entries that are made before `superwords` begins.
        superword_words: Maximum number of words in a token with `superwords`.
        parity: Treat languages equally: a file of parallel sentences, or a ratio for each language. CORPUS then names
            a language for each corpus, as in en=books/ de=articles.jsonl. A line of the file has a sentence in all
            languages: {"en": "a house", "de": "ein Haus"}. Each merge serves the language with the most tokens in these
            sentences; with ratios, such as en=1 hi=2.5, the one with the fewest bytes per token divided by its ratio.
            bpe only; parity-aware BPE (Foroutan et al. 2025) in plain Python, for some megabytes of text.
        parity_window: Number of last merges of which a language may have at most about twice its equal share; 0 for no
            limit. For three languages or more.
        merge_by: Pair that is merged next: the most frequent one, or the one with the largest count(ab) / (count(a)
            count(b)); wordpiece only.
        min_frequency: Minimum count of a pair to merge; by default 2, with `merge_by='likelihood'` the largest that
            fills the vocabulary. For characters and words: their minimum count, by default 1. Not for unigram.
        max_token_length: Maximum length of a token in bytes or integers; bpe and integers only.
        limit_alphabet: Number of most frequent characters to keep; all by default. wordpiece and character-bpe only.
        base: Number of integers, which are their own ids; by default the largest one plus 1. integers only.
        byte_order: Ids of the bytes: gpt2 (as in Hugging Face) or raw; bpe only.
        tie_break: Choice among pairs of equal count: ids (smallest left, then right id) or bytes (greatest left, then
            right bytes); bpe only.
        pieces: Limits on the pieces; unigram only.
        special_tokens: First entries of the vocabulary; the last for unigram, character-bpe and integers. Give the
            option without a value for none.
        special_text: Special tokens spelled in the corpus: text keeps them as text, cut leaves them out and cuts the
            corpus there.
        sentinels: Number of special tokens <|sentinel_0|>, <|sentinel_1|> and so on, after all `special_tokens`. Span
            corruption needs one for each removed span.
        memory: Memory limit of the process in bytes, such as 2G. Counts that do not fit are spilled to disk.
            Merging needs all distinct pretokens in memory: training stops early if they cannot fit. With `engine='ray'`
            each worker has the same limit.
        spill_folder: Folder of the spilled counts; by default the one that contains `out`, because the system's
            temporary folder is often in memory.
        min_count: Leave out pretokens that occur less often, for example if not all fit in memory. The summary says how
            much is left out and, for bpe, how many of the first merges are the same as without `min_count`.
        save_counts: Parquet file to save the pretoken counts in.
        counts: Saved counts, of one or several corpora, to train on. CORPUS is then only read for held-out text.
        compare: Other tokenizers to measure on held-out text. Each is PATH or NAME=PATH. The name, by default that of
            the file, is also the split pattern of a .tiktoken file, such as cl100k.
        trace: Number of merges to print, each with its count and a word that it changes; at most 1,000.
        threads: Threads or local Ray workers; all cores by default. With `address`, the cluster decides
            the number of workers.
        overwrite: Replace an existing tokenizer.
        as_json: Print the summary as JSON, and nothing else.
    """
    check_dry_run(dry_run, as_json)
    if as_json:
        say_on_stderr()
    special_tokens, cut_at = all_special_tokens(special_tokens, sentinels, special_text, counts)
    check_options(kind, vocab_size, special_tokens, pattern, min_count, trace, out, save_counts, overwrite)
    check_engine(engine, address, threads, without={"`pairs`": pairs, "`counts`": counts})
    pattern = _normalized(pattern, normalize, kind)
    given: dict[str, Any] = {"counts": counts, "engine": engine, "special_text": special_text, "tie_break": tie_break}
    stages = Superwords(transition, superword_words).checked(kind, given) if superwords else None
    first_entries = stages.entries_before(vocab_size, len(special_tokens)) if stages else vocab_size
    from tokenizer.training.train import Options, TrainingOptions

    options = TrainingOptions(kind=kind, special_tokens=special_tokens, min_frequency=min_frequency, base=base)
    options |= {"max_token_length": max_token_length, "byte_order": byte_order, "limit_alphabet": limit_alphabet}
    options |= {"tie_break": tie_break, "merge_by": merge_by, "pieces": None if pieces == PieceRules() else pieces}
    Options(vocab_size=vocab_size, **options).splitter(pattern)
    others, splitter = load_compared(compare), pattern or kind_named(kind).default_pattern
    if parity or parity_window:
        from pipelines.language_training import open_languages

        given |= {"superwords": superwords, "save_counts": save_counts, "memory": memory, "min_count": min_count}
        given |= {**options, "pairs": pairs, "trace": trace, "normalize": normalize}
        text = open_languages(parity, parity_window, corpus, split, reading, given)
        return text.train(vocab_size, splitter, cut_at, options, out, others, threads, as_json, dry_run)
    source = _open(corpus, pairs, split, reading, counts)
    from pipelines.cluster.counting_tasks import counts_folder, plan_counting, remove_range_counts
    from pipelines.reporting.tokenizer_summary import HeldOut, print_summary, summarize

    training_bytes = None if counts or source is None else _training_bytes(source)  # None: counted already
    if dry_run:
        plan_tokenizer(vocab_size, training_bytes, _split_rule(source, counts), splitter, out, save_counts, threads)
        plan_counting(engine, source, (address, threads), memory, out)
        say_left_out(None, source.skipped_files if source else {}, say=answer)
        return None
    spare = _spare_memory(memory, source, splitter)
    spill_folder = spill_folder or next(folder for folder in out.absolute().parents if folder.is_dir())
    with resumable(counts_folder(out), "ranges"), Bar("counting", training_bytes, "B") as bar:
        phases, held_out = Phases(bar, training_bytes), HeldOut()
        split_by, where = pattern if counts else splitter, (address, threads)
        limits: Any = {"threads": threads, "memory": spare, "progress": phases}
        counting = limits | {"forecast": _forecast(kind, spare, min_count, save_counts)}
        counted = _counted(source, counts, split_by, cut_at, engine, where, spill_folder, out, held_out, counting)
        if save_counts:
            counted.save(save_counts)
        frequent = counted.at_least(min_count) if min_count > 1 else counted
        phases.begin(kind_named(kind).phase)
        tok = first = Tokenizer.train_from_counts(frequent, first_entries, **limits, **options)
        if stages and source:
            tok = stages.grow(
                first, source.batches("train"), vocab_size, spill_folder=spill_folder, **limits, **options
            )
        phases.end()
    tok.save(out)
    remove_range_counts(out)
    doing("measuring the vocabulary")
    head = {"tokenizer": str(out), "split_rule": source.split_rule if source else None, "seconds": phases.seconds}
    languages = _languages_of(held_out, corpus, source, reading) if others else {}
    summary = summarize(tok, counted, frequent, held_out, others, languages, max_token_length)
    print_summary({**head, **summary, **_trace(first, frequent, trace, merge_by)}, [source] if source else [], as_json)
    return tok


def _languages_of(
    held_out: "HeldOut", corpus: Sequence[str], source: "Corpus | PairTexts | None", reading: ReadingOptions
) -> dict[str, str]:
    """Return the language of held-out texts, if the corpus has a column for it."""
    from corpora import Corpus

    return held_out.languages(corpus, source.split_rule, reading) if isinstance(source, Corpus) else {}


def _normalized(pattern: str | None, normalize: tuple[Normalization, ...], kind: str) -> str | None:
    """Return the pattern after the normalizations; ValueError for a kind whose patterns normalize."""
    if not normalize:
        return pattern
    if kind != "bpe":
        raise ValueError(f"`normalize` is an option of bpe: for {kind}, choose a `pattern` that normalizes")
    return spelling_after(normalize, pattern or kind_named(kind).default_pattern)


def next_step(given: Mapping[str, Any], _: Any) -> str:
    """Return the command that follows: it builds a dataset of the same text."""
    if not given["corpus"]:
        return ""
    length = {} if given["pairs"] else {"context_length": 256}
    split = None if given["split"] == "none" else given["split"]  # a dataset needs validation text
    text = {"split": split, "pairs": given["pairs"], **given["reading"]}
    folders = {"tokenizer": given["out"], **length, "out": with_a_name(given["out"]).with_name("data")}
    corpus = [name.partition("=")[2] if given["parity"] else name for name in given["corpus"]]
    return command("build-dataset", *corpus, **text, **folders)


def _trace(tok: Tokenizer, counts: "PretokenCounts", trace: int, merge_by: str) -> dict[str, Any]:
    """Return the entry of the summary with the first `trace` merges; empty if `trace` is 0."""
    if not trace:
        return {}
    from pipelines.reporting.merge_trace import trace_of

    return {"trace": trace_of(tok, counts, trace, merge_by)}


def _spare_memory(memory: int | None, source: "Corpus | PairTexts | None", pattern: str) -> int | None:
    """Return the bytes of `memory` left for counting and merging, after Python, its libraries and the text."""
    if memory is None:
        return None
    from tokenizer import count_pretokens
    from tokenizer.first_use import compile_elsewhere
    from tokenizer.training.counting import LEAST_MEMORY

    compile_elsewhere()
    count_pretokens([b"a"], pattern, threads=1, memory=LEAST_MEMORY)  # loads the kernels
    taken = resident_bytes() + TEXT_MEMORY + (source.mapped_bytes if source else 0)
    if memory < taken + LEAST_SPARE_MEMORY:
        raise ValueError(
            f"`memory` is {memory:,} bytes, but Python, its libraries and the text being read take {taken:,}: "
            f"give at least {-(-(taken + LEAST_SPARE_MEMORY) // 10_000_000) * 10}M"
        )
    return memory - taken


def _forecast(kind: str, memory: int | None, min_count: int, save_counts: Path | None) -> "MergeForecast | None":
    """Return the forecast that ends counting early if merging would exceed the memory; None to count everything.

    Saved counts are useful even if they are too many to merge.
    """
    from tokenizer.training.forecast import forecast_for

    return None if save_counts else forecast_for(kind, memory, min_count)


def _open(
    corpus: Sequence[str],
    pairs: tuple[str, str] | None,
    split: str | None,
    reading: ReadingOptions,
    counts: tuple[Path, ...],
) -> "Corpus | PairTexts | None":
    """Return the corpus; None if there are only saved counts."""
    from corpora import PairTexts, open_corpus, open_pairs

    if not corpus:
        if not counts:
            raise UsageError("no corpus was given: name one, or saved counts with `counts`")
        return None
    if pairs:
        refuse_with_pairs(reading)
        return PairTexts(open_pairs(corpus, pairs, split, **reading))
    return open_corpus(corpus, split=split, **reading)


def _counted(
    source: "Corpus | PairTexts | None",
    counts: tuple[Path, ...],
    pattern: str | None,
    cut_at: tuple[str, ...],
    engine: str,
    where: tuple[str | None, int | None],
    spill_folder: Path,
    out: Path,
    held_out: "HeldOut",
    limits: Mapping[str, Any],
) -> "PretokenCounts":
    """Return the pretoken counts of the training split, or the sum of saved ones, and take the held-out text.

    Counting without Ray stops early if the forecast among the limits says that merging would exceed the memory.
    """
    from corpora import Corpus
    from pipelines.cluster.counting_tasks import count_on_ray
    from tokenizer import count_pretokens

    phases, memory = limits["progress"], limits["memory"]
    if counts or not source:
        combined = _combine(counts, pattern, memory, spill_folder, phases)
        held_out.take(source.batches("validation") if source and source.split_rule != "none" else ())
        return combined
    assert pattern is not None
    if engine == "ray" and isinstance(source, Corpus):
        return count_on_ray(source, pattern, where, cut_at, memory, spill_folder, out, held_out, phases)
    phases.begin("count")
    texts = held_out.apart_from_training(source)
    return count_pretokens(texts, pattern, spill_folder=spill_folder, cut_at=cut_at, **limits)


def _combine(
    counts: tuple[Path, ...], pattern: str | None, memory: int | None, spill_folder: Path, phases: Phases
) -> "PretokenCounts":
    """Return the sum of saved counts; ValueError if their pattern is not `pattern`."""
    from tokenizer import PretokenCounts

    phases.begin("combine")
    combined = PretokenCounts.merge(counts, memory=memory, spill_folder=spill_folder, progress=phases)
    if pattern and resolve_splitter(pattern) != combined.pattern:
        raise ValueError(f"`pattern` is {pattern}, but the counts were made with {combined.pattern}")
    return combined


def _training_bytes(corpus: "Corpus | PairTexts") -> int | None:
    """Return about how many bytes of text the training split has."""
    from corpora.splits import parse_rule

    estimate = corpus.text_bytes_estimate
    return estimate and round(estimate * (1 - parse_rule(corpus.split_rule).fraction))


def _split_rule(source: "Corpus | PairTexts | None", counts: tuple[Path, ...]) -> str | None:
    """Return the split rule of the corpus that is counted."""
    return source.split_rule if source and not counts else None
