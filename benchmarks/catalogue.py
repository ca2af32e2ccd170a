"""Compare ids and speed on a folder of published vocabularies with the library that each was published for.

`python -m benchmarks.catalogue FOLDER` takes each subfolder with a vocabulary: tokenizer.json, ranks of tiktoken, a
SentencePiece model, tekken.json, vocab.txt or vocab.bpe with encoder.json. about.json beside it may have `pattern` and
`special_tokens`, which ranks and vocab.txt lack, and `normalizer`. Special tokens in texts count as special tokens if
the library finds them, too. "refused" counts texts with bytes that have no token, which libraries drop. Speeds are of a
first pass over running text on one thread, in MB of UTF-8 per CPU second.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import time
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import command_line, device_name, heading, record, say, table
from benchmarks.peers import environment
from benchmarks.texts import code, corpus_texts
from tokenizer.encoding.text_encoder import MissingByteError

if TYPE_CHECKING:
    from tokenizer import Tokenizer

    Encode = Callable[[list[str]], list[list[int]]]

# The file that names the format, in the order of search.
FILES = ("tokenizer.json", "tekken.json", "*.tiktoken", "*.model", "vocab.txt", "vocab.bpe", "*.txt.gz")
SMALL_BYTES = 400  # of a text
WARM_UP = 200  # texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.catalogue")
    parser.add_argument("folder", type=Path, help="folder with one folder for each vocabulary")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names of the vocabularies to measure")
    parser.add_argument("--texts", type=int, default=5000, help="number of texts to compare (default 5000)")
    parser.add_argument(
        "--out", type=Path, help="folder for catalogue.json and catalogue.md, such as benchmarks/results"
    )
    options = parser.parse_args()
    found = [(folder, file) for folder in sorted(options.folder.iterdir()) if (file := file_in(folder))]
    chosen = [(folder, file) for folder, file in found if not options.only or folder.name in options.only]
    if not chosen:
        raise SystemExit(f"{options.folder} has no vocabulary: {', '.join(FILES)} in a subfolder")
    os.environ.update(environment(threads=1))
    texts = catalogue_texts(options.texts)
    rows = []
    for folder, file in chosen:
        rows.append(_in_own_process(folder, file, texts))
        say(json.dumps(rows[-1], ensure_ascii=False))
    page = catalogue_page(rows, command_line("benchmarks.catalogue", [str(options.folder)]))
    print(page)
    if options.out:
        record(options.out, "catalogue", rows, page)


def catalogue_texts(number: int) -> list[str]:
    """Return texts of many languages, English and code: pieces of about 400 bytes from all over the corpora."""
    draw = random.Random(0)
    sources = [corpus_texts([name], 8_000_000) for name in ("multilingual", "books", "enwiki")]
    sources = [source for source in sources if source] + [code(4_000_000)]
    each = -(-number // len(sources))
    texts = []
    for source in sources:
        for _ in range(each):
            start = draw.randrange(max(1, len(source) - SMALL_BYTES))
            texts.append(source[start : start + draw.randrange(1, 2 * SMALL_BYTES)])
    draw.shuffle(texts)
    return texts[:number]


def hard_texts(special: list[str], number: int) -> list[str]:
    """Return random Unicode, half of it with spellings of special tokens and spaces around them."""
    draw = random.Random(1)
    classes = [(0, 128), (0, 0x250), (0x250, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000), (0x1F300, 0x1FA00)]
    pool = [
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u00a0",
        "\u3000",
        "\u200b",
        "'s",
        "'LL",
        "12345",
        "▁",
        "</w>",
        "Ġ",
        "<0x41>",
    ]
    texts = ["", "\x00", " ", "\n"]
    while len(texts) < number:
        parts = []
        for _ in range(draw.randrange(1, 12)):
            start, end = draw.choice(classes)
            parts.append(draw.choice(pool) if draw.random() < 0.3 else "".join(map(chr, _drawn(draw, start, end))))
            if special and len(texts) % 2:
                parts.append(draw.choice(("", " ", "\n", "  ")) + draw.choice(special) + draw.choice(("", " ", "\n")))
        texts.append("".join(parts))
    return texts


def _drawn(draw: random.Random, start: int, end: int) -> list[int]:
    drawn = (draw.randrange(start, end) for _ in range(draw.randrange(1, 6)))
    return [point for point in drawn if not 0xD800 <= point < 0xE000]


def file_in(folder: Path) -> Path | None:
    """Return the file that names the format of a vocabulary, None if a folder has none."""
    return next((path for name in FILES for path in sorted(folder.glob(name))), None)


def _in_own_process(folder: Path, file: Path, texts: list[str]) -> dict[str, Any]:
    """Return the row of a vocabulary, measured in a fresh process, which a peer may crash."""
    row = {"name": folder.name, "file": file.name}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return row | pool.submit(measure, file, texts).result()
        except BrokenProcessPool:
            return row | {"error": "the process crashed"}


def measure(file: Path, texts: list[str]) -> dict[str, Any]:
    """Return what the table says of one vocabulary: keys kind, entries, error, peer, texts, ids, differ, speeds."""
    about = file.with_name("about.json")
    facts = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    try:
        peer, finds_special, theirs, special = peer_of(file, facts)
    except Exception as error:  # whatever a library raises
        return {"error": f"no peer: {error}"}
    row: dict[str, Any] = {"source": facts.get("source", ""), "peer": peer}
    try:
        tok = load(file, facts)
    except (ValueError, FileNotFoundError) as error:
        return row | {"error": str(error).removeprefix(f"{file}: ")}
    row |= {"kind": tok.kind, "entries": tok.vocab_size}
    rules = {"allowed_special": "all"} if finds_special else {"disallowed_special": ()}

    def ours(some: list[str]) -> list[Any]:
        try:
            return tok.encode_batch(some, 1, **rules)
        except MissingByteError:
            return [_ids_or_none(tok, text, rules) for text in some]

    try:
        warm, ordinary = texts[:WARM_UP], texts[WARM_UP:]
        tok.warm_up(1)
        theirs(warm), ours(warm)
        first, seconds = _timed(ours, ordinary)
        expected, peer_seconds = _timed(theirs, ordinary)
        hard = hard_texts(special, max(100, len(texts) // 5))
        compared = [*ordinary, *hard]
        first, expected = first + ours(hard), expected + theirs(hard)
    except Exception as error:
        return row | {"error": f"while encoding: {type(error).__name__}: {error}"}
    differ = [text for text, a, b in zip(compared, first, expected, strict=True) if a is not None and a != b]
    size = sum(len(text.encode()) for text in ordinary) / 1e6
    return row | {
        "texts": len(compared),
        "ids": sum(map(len, expected)),
        "differ": len(differ),
        "refused": first.count(None),
        "examples": sorted(differ, key=len)[:3],
        "megabytes_per_second": size / seconds,
        "peer_megabytes_per_second": size / peer_seconds,
    }


def _ids_or_none(tok: Tokenizer, text: str, rules: dict[str, Any]) -> list[int] | None:
    """Return the ids of a text, None if it has a byte without a token, which libraries drop and we refuse."""
    try:
        return tok.encode(text, **rules)
    except MissingByteError:
        return None


def _timed(encode: Encode, texts: list[str]) -> tuple[list[list[int]], float]:
    started = time.process_time()
    ids = encode(texts)
    return ids, time.process_time() - started


def load(file: Path, facts: dict[str, Any]) -> Tokenizer:
    """Return our tokenizer of a file, with the arguments that the file needs."""
    from tokenizer import Tokenizer
    from tokenizer.formats.published import PatternNeededError

    given = {"special_tokens": facts["special_tokens"]} if "special_tokens" in facts else {}
    given |= {"normalizer": facts["normalizer"]} if "normalizer" in facts else {}
    try:
        return Tokenizer.load(file, **given)
    except PatternNeededError:
        return Tokenizer.load(file, pattern=facts.get("pattern"), **given)


def peer_of(file: Path, facts: dict[str, Any]) -> tuple[str, bool, Encode, list[str]]:
    """Return the library of a file, whether it finds special tokens in texts, its encoding, and their spellings."""
    head = file.open("rb").read(64)
    if file.name == "tekken.json":
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        tekken = Tekkenizer.from_file(file)
        special = [token["token_str"] for token in islice(tekken._all_special_tokens, 20)]
        return "mistral-common", False, lambda texts: [tekken.encode(text, False, False) for text in texts], special
    if file.suffix == ".tiktoken" or (file.suffix == ".model" and head.startswith(b"IQ== 0")):
        return _tiktoken(file, facts)
    if file.suffix == ".model":
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(file))
        special = [model.IdToPiece(i) for i in range(len(model)) if model.IsControl(i) or model.IsUnknown(i)][:20]
        return "sentencepiece", False, lambda texts: model.encode(texts, num_threads=1), special
    tokenizer = _tokenizers(file, facts)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return "tokenizers", True, encode, [*added[:10], *added[-10:]]


def _tiktoken(file: Path, facts: dict[str, Any]) -> tuple[str, bool, Encode, list[str]]:
    import unicodedata

    import tiktoken

    lines = [line.split() for line in file.read_bytes().splitlines() if line]
    ranks = {b64decode(token): int(rank) for token, rank in lines}
    special = facts.get("special_tokens", {})
    regex = facts["pattern"]
    encoding = tiktoken.Encoding(file.stem, pat_str=regex, mergeable_ranks=ranks, special_tokens=special)
    form = facts.get("normalizer")

    def encode(texts: list[str]) -> list[list[int]]:
        texts = [unicodedata.normalize(form, text) for text in texts] if form else texts
        return [encoding.encode(text, allowed_special="all") for text in texts]

    return "tiktoken", True, encode, list(special)[:20]


def _tokenizers(file: Path, facts: dict[str, Any]) -> Any:
    import tokenizers

    if file.name == "tokenizer.json":
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    if file.name == "vocab.txt":
        return tokenizers.BertWordPieceTokenizer(str(file), lowercase=facts["pattern"] == "bert-uncased")._tokenizer
    if file.name == "vocab.bpe":
        tokenizer = tokenizers.ByteLevelBPETokenizer(str(file.with_name("encoder.json")), str(file))
        tokenizer.add_special_tokens(["<|endoftext|>"])
        return tokenizer._tokenizer
    if file.name == "bpe_simple_vocab_16e6.txt.gz":
        return _clip(file)._tokenizer
    raise ValueError(f"no library reads {file.name} as published")


def _clip(file: Path) -> Any:
    """Return the tokenizer of transformers with the tokens that OpenAI's code makes of the merges of a file."""
    from transformers import CLIPTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    lines = gzip.decompress(file.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    characters = [*bytes_to_unicode().values()]
    words = [*characters, *(f"{character}</w>" for character in characters)]
    words += [line.replace(" ", "") for line in lines] + ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer({word: i for i, word in enumerate(words)}, [tuple(line.split()) for line in lines])


def catalogue_page(rows: list[dict[str, Any]], command: str) -> str:
    """Return the table of all vocabularies as Markdown."""
    head = (
        "vocabulary",
        "file",
        "kind",
        "entries",
        "peer",
        "texts",
        "ids",
        "differ",
        "refused",
        "MB/s",
        "peer's MB/s",
        "ratio",
    )
    lines, refused, equal = [], [], 0
    for row in rows:
        if "error" in row:
            refused.append((row["name"], row["file"], row["error"].replace("|", "/")))
            continue
        equal += not row["differ"]
        ours, theirs = row["megabytes_per_second"], row["peer_megabytes_per_second"]
        numbers = [f"{row[key]:,}" for key in ("texts", "ids", "differ", "refused")]
        speeds = [f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.1f}"]
        lines.append([row["name"], row["file"], row["kind"], f"{row['entries']:,}", row["peer"], *numbers, *speeds])
    other = f"{len(lines) - equal} with other ids, {len(refused)} not read"
    summary = f"{len(rows)} vocabularies: {equal} with equal ids, {other}"
    page = [*heading("Published vocabularies", command, device_name("cpu")), f"{summary}.", "", *table(head, lines), ""]
    if refused:
        page += [*table(("vocabulary", "file", "not read"), refused), ""]
    return "\n".join(page)


if __name__ == "__main__":
    main()
