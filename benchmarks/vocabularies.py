"""What growing, trimming, superwords and white space do to published and trained vocabularies.

`python -m benchmarks.vocabularies --out benchmarks/results` grows GPT-2's vocabulary on Thai and on Python code, trims
it to English, trains superwords beside plain BPE and bpe-continue, measures their second stage on more text, and trains
Unigram on code beside SentencePiece. Bytes per token are of text that no training read, except for superwords, as in
the paper that introduced them. Seconds are CPU seconds of one run on all cores. Both encoders read another text before
their encoding of documents is timed. The corpora are those of `benchmarks.texts`; GPT-2's files are in `vectors/gpt2`
beside them.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import command_line, device_name, heading, peak_bytes, record, reset_peak, say, table
from benchmarks.texts import SHARED, WARM_UP, code, corpus_texts
from tokenizer import PieceRules, Tokenizer

MB = 1_000_000
DOCUMENT = 10_000  # characters
ENCODED = (10_000, 100_000, 1_000_000)  # characters of one pretoken
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.vocabularies")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], help="parts to measure")
    parser.add_argument("--megabytes", nargs="+", type=int, default=[2, 10], help="text of superwords (default 2 10)")
    parser.add_argument(
        "--second-stage", nargs="+", type=int, default=[30, 100, 300], help="its text, MB (default 30 100 300)"
    )
    parser.add_argument("--out", type=Path, help="folder for vocabularies.json and vocabularies.md")
    options = parser.parse_args()
    rows: list[Row] = []
    for part in options.only:
        for row in PARTS[part](options):
            rows.append({"part": part, **row})
            say(json.dumps(rows[-1], ensure_ascii=False))
    page = vocabularies_page(rows, command_line("benchmarks.vocabularies", sys.argv[1:]))
    print(page)
    if options.out:
        record(options.out, "vocabularies", rows, page)


def documents_of(text: str) -> list[str]:
    """Return a text in documents of about `DOCUMENT` characters, cut at line ends."""
    documents, part = [], ""
    for line in text.splitlines(keepends=True):
        part += line
        if len(part) >= DOCUMENT:
            documents.append(part)
            part = ""
    return [*documents, part] if part else documents


def halves(text: str) -> tuple[list[str], list[str]]:
    """Return training documents, and every tenth document as held-out ones."""
    documents = documents_of(text)
    return [text for k, text in enumerate(documents) if k % 10], documents[::10]


def language(name: str, limit: int) -> str:
    """Return about `limit` bytes of a language of the multilingual corpus."""
    texts, size = [], 0
    with lzma.open(SHARED / "corpora" / "multilingual.jsonl.xz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["lang"] == name and size < limit:
                texts.append(row["text"])
                size += len(row["text"].encode())
    return "\n\n".join(texts)


def measured(work: Callable[[], Any]) -> tuple[Any, Row]:
    """Return a result, and the CPU seconds and the peak of memory that it took."""
    reset_peak()
    started = time.process_time()
    result = work()
    return result, {"seconds": time.process_time() - started, "peak_gb": peak_bytes() / 1e9}


def bytes_per_token(tok: Tokenizer, documents: list[str]) -> float:
    """Return the bytes per token of documents."""
    return sum(len(text.encode()) for text in documents) / sum(map(len, tok.encode_batch(documents)))


def grown(options: argparse.Namespace) -> Iterator[Row]:
    """Yield GPT-2's vocabulary with 2,000 more entries, on Thai text and on Python code."""
    gpt2 = Tokenizer.load(SHARED / "vectors" / "gpt2")
    for name, text in (("Thai", language("th", 2 * MB)), ("Python", code(2 * MB))):
        training, held_out = halves(text)
        tok, cost = measured(partial(gpt2.grow, training, gpt2.vocab_size + 2000))
        yield _row(f"GPT-2 + 2,000 on {name}", tok, held_out, bytes_per_token(gpt2, held_out), cost)


def trimmed(options: argparse.Namespace) -> Iterator[Row]:
    """Yield GPT-2's vocabulary trimmed to what 2 MB of English books use, and to half of that."""
    gpt2 = Tokenizer.load(SHARED / "vectors" / "gpt2")
    training, held_out = halves(corpus_texts(["books"], 2 * MB))
    before = bytes_per_token(gpt2, held_out)
    tok, cost = measured(partial(gpt2.trim, training))
    yield _row("GPT-2 without unused tokens", tok, held_out, before, cost)
    small, cost = measured(partial(gpt2.trim, training, tok.vocab_size // 2))
    yield _row("GPT-2 with half of the used ones", small, held_out, before, cost)


def superwords(options: argparse.Namespace) -> Iterator[Row]:
    """Yield vocabularies of 8,000 entries, the last 2,000 with and without superwords, beside bpe-continue."""
    for megabytes in options.megabytes:
        documents = documents_of(corpus_texts(["books"], megabytes * MB))
        base = Tokenizer.train(documents, 6000, special_tokens=())
        before = bytes_per_token(base, documents)
        plain, cost = measured(partial(base.grow, documents, 8000))
        yield _row(f"{megabytes} MB, plain growth", plain, documents, before, cost)
        joined, cost = measured(partial(base.grow, documents, 8000, superwords=4))
        yield _row(f"{megabytes} MB, superwords", joined, documents, before, cost)
        with tempfile.TemporaryDirectory() as folder:
            peer, cost = measured(partial(with_bpe_continue, base, joined, documents, Path(folder)))
        yield _row(f"{megabytes} MB, bpe-continue with the same split", peer, documents, before, cost)
        if megabytes == options.megabytes[0]:
            yield from encoding(joined, documents)


def with_bpe_continue(base: Tokenizer, joined: Tokenizer, documents: list[str], folder: Path) -> Tokenizer:
    """Return `base` grown by bpe-continue to the size of `joined` with its split. No token is refused."""
    import bpe_continue

    base.save(folder / "base")
    joined.save(folder / "joined")
    file = folder / "base" / "tokenizer.json"
    split = json.loads((folder / "joined" / "tokenizer.json").read_text())["pre_tokenizer"]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": split}))
    options = {"texts": documents, "vocab_size": joined.vocab_size, "min_frequency": 2, "show_progress": False}
    bpe_continue.continue_training(str(file), **options).save(str(file))
    return Tokenizer.load(file)


def encoding(tok: Tokenizer, documents: list[str]) -> Iterator[Row]:
    """Yield the speed of encoding superwords beside `tokenizers`, and of one pretoken that grows."""
    import tokenizers

    with tempfile.TemporaryDirectory() as folder:
        tok.save(folder)
        peer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    text = "\n".join(documents)
    letters = "".join(c for c in text if not c.isdigit())
    size = len(text.encode()) / MB
    tok.warm_up(1)  # the peer built its tables while loading
    for name, encode in (("bytelm", tok.encode_ordinary), ("tokenizers", peer.encode)):
        encode(WARM_UP)
        _, cost = measured(lambda encode=encode: [encode(document) for document in documents])
        yield {"what": f"encoding with {name}", "mb_per_second": size / cost["seconds"]}
    for length in ENCODED:
        one = letters[:length]
        seconds = min(measured(partial(tok.encode_ordinary, one))[1]["seconds"] for _ in range(5))
        yield {"what": f"one pretoken of {length:,} characters", "mb_per_second": len(one.encode()) / MB / seconds}


def second_stage(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the cost of the last 3,200 of 32,000 entries, with superwords, on distinct documents that a file holds."""
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in options.second_stage:
            path = Path(folder) / f"{megabytes}.jsonl"
            text = corpus_texts(["books", "enwiki", "multilingual"], megabytes * MB)
            text += code(max(1, megabytes * MB - len(text.encode())))
            size = len(text.encode()) / MB
            with path.open("w") as file:
                file.writelines(json.dumps(document) + "\n" for document in documents_of(text))
            del text
            base = Tokenizer.train(_lines(path), 28_800, special_tokens=())
            tok, cost = measured(partial(base.grow, _lines(path), 32_000, superwords=4))
            yield {"what": f"{size:.0f} MB", "stage_entries": tok.vocab_size, **cost}


def _lines(path: Path) -> Iterator[str]:
    """Yield the documents of a file, one at a time."""
    with path.open() as lines:
        yield from map(json.loads, lines)


def white_space(options: argparse.Namespace) -> Iterator[Row]:
    """Yield Unigram vocabularies of 3,000 entries on Python code, with and without cheap white space."""
    import sentencepiece

    training, held_out = halves(code(2 * MB))
    pieces = PieceRules(byte_fallback=True)
    for pattern in ("llama2", "keep-whitespace"):
        train = partial(Tokenizer.train, training, 3000, pattern, kind="unigram", pieces=pieces, special_tokens=())
        tok, cost = measured(train)
        kept = sum(tok.decode(ids) == text for ids, text in zip(tok.encode_batch(held_out), held_out, strict=True))
        yield _row(f"Unigram on code, {pattern}", tok, held_out, None, cost) | {"kept": kept / len(held_out)}
    written = io.BytesIO()
    train = partial(
        sentencepiece.SentencePieceTrainer.train,
        sentence_iterator=iter(training),
        model_writer=written,
        vocab_size=3000,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        byte_fallback=True,
        max_sentence_length=100 * DOCUMENT,
        minloglevel=2,
    )
    _, cost = measured(train)
    peer = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = [peer.encode(text) for text in held_out]
    size = sum(len(text.encode()) for text in held_out)
    yield {
        "what": "Unigram on code, SentencePiece with the same options",
        "entries": peer.vocab_size(),
        "bytes_per_token": size / sum(map(len, ids)),
        "kept": sum(peer.decode(each) == text for each, text in zip(ids, held_out, strict=True)) / len(ids),
        **cost,
    }


def _row(what: str, tok: Tokenizer, documents: list[str], before: float | None, cost: Row) -> Row:
    entries = {"entries": tok.vocab_size, "before": before, "bytes_per_token": bytes_per_token(tok, documents)}
    return {"what": what, **entries, **cost}


def vocabularies_page(rows: list[Row], command: str) -> str:
    """Return the page with a table of vocabularies, and one of speeds."""
    shapes = {"entries": ",", "before": ".3f", "bytes_per_token": ".3f", "kept": ".0%", "seconds": ".1f"}
    made = [row for row in rows if "entries" in row]
    cells = [
        [row["what"], *("" if row.get(key) is None else format(row[key], shape) for key, shape in shapes.items())]
        for row in made
    ]
    head = ("vocabulary", "entries", "bytes per token before", "after", "texts kept", "CPU seconds")
    lines = [*heading("Vocabularies", command, device_name("cpu")), *table(head, cells), ""]
    if speeds := [row for row in rows if "mb_per_second" in row]:
        cells = [[row["what"], f"{row['mb_per_second']:.2f}"] for row in speeds]
        lines += ["The superwords of the first size:", "", *table(("what", "MB per CPU second"), cells), ""]
    if stages := [row for row in rows if "stage_entries" in row]:
        head, numbers = ("text", "entries", "CPU seconds", "peak GB"), ("seconds", "peak_gb")
        cells = [
            [row["what"], f"{row['stage_entries']:,}", *(f"{row[number]:.1f}" for number in numbers)] for row in stages
        ]
        lines += ["The second stage of superwords, from 28,800 entries. The documents are distinct: English books and"]
        lines += ["Wikipedia, then other languages, then Python code. The peak is that of the whole process:"]
        lines += ["", *table(head, cells), ""]
    return "\n".join(lines)


PARTS = {
    "grown": grown,
    "trimmed": trimmed,
    "superwords": superwords,
    "second-stage": second_stage,
    "white-space": white_space,
}


if __name__ == "__main__":
    main()
