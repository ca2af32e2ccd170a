"""Adapters for encoding and decoding: each uses the peer's fastest interface for the workload.

An encoder is built from a vocabulary with the pattern cl100k. `encode_file` returns the ids of the whole file in parts,
as the arrays or lists that the peer makes. Libraries that only run documents in parallel get pieces of the text, which
together have the ids of the whole.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.peers import OURS
from benchmarks.peers.training import tiktoken_spelling
from benchmarks.texts import SEPARATOR, pieces

Parts = Iterable[Sequence[int]]
PUBLISHED_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class VocabularyFiles:
    """One vocabulary as ranks (.tiktoken) and as tokenizer.json. published: whether it is cl100k_base."""

    ranks: str
    json: str
    published: bool


class Encoder(Protocol):
    """The interface of an encoding adapter.

    decodes_arrays: whether `decode` takes a numpy array of uint32 rather than a list.
    threads: the most threads that the peer can use.
    """

    decodes_arrays: bool = False
    threads: int | None = None

    def __init__(self, files: VocabularyFiles): ...

    def encode_file(self, path: Path, separated: Path, threads: int) -> Parts: ...

    def encode_document(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> bytes | str: ...


class Bytelm(Encoder):
    decodes_arrays = True

    def __init__(self, files):
        from tokenizer import Tokenizer

        self.tokenizer = Tokenizer.load(files.ranks, pattern="cl100k")
        self.tokenizer.warm_up()  # the peers build their tables while loading

    def encode_file(self, path, separated, threads):
        return [self.tokenizer.encode_file(path, threads=threads)]

    def encode_document(self, text):
        return self.tokenizer.encode(text)

    def decode(self, ids):
        return self.tokenizer.decode_bytes(ids)


class GigatokenFiles(Encoder):
    """gigatoken's file interface, which it recommends."""

    decodes_arrays = True

    def __init__(self, files):
        import gigatoken

        self.tokenizer = gigatoken.Tokenizer.from_tiktoken(files.ranks, "cl100k", {})
        self.source = gigatoken.TextFileSource

    def encode_file(self, path, separated, threads):
        import awkward

        ids = self.tokenizer.encode_files(self.source([separated], separator=SEPARATOR), parallel=threads > 1)
        return [awkward.to_numpy(awkward.flatten(ids))]

    def encode_document(self, text):
        return self.tokenizer.encode(text).tolist()

    def decode(self, ids):
        return self.tokenizer.decode(ids)


class GigatokenBytes(GigatokenFiles):
    """gigatoken's interface for one text, which runs on one thread."""

    threads = 1

    def encode_file(self, path, separated, threads):
        return [self.tokenizer.encode(path.read_bytes())]


class Fastokens(Encoder):
    def __init__(self, files):
        from fastokens import Tokenizer

        # The name of the encoding selects its scanner for that pattern, five times as fast as the regex.
        self.tokenizer = Tokenizer.from_tiktoken(files.ranks, encoding="cl100k_base", special_tokens={})

    def encode_file(self, path, separated, threads):
        import numpy as np

        ids, _ = self.tokenizer.encode_batch_flat(pieces(_read(path)))
        return [np.frombuffer(ids, dtype=np.uint32)]

    def encode_document(self, text):
        return self.tokenizer.encode_ordinary(text).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids)


class Snaptokens(Encoder):
    def __init__(self, files):
        import snaptokens

        content = json.loads(Path(files.json).read_text())
        # It has scanners for patterns as published files spell them, and no regex engine.
        content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = PUBLISHED_CL100K
        self.tokenizer = snaptokens.Tokenizer.from_json_str(json.dumps(content))

    def encode_file(self, path, separated, threads):
        import numpy as np

        ids, _ = self.tokenizer.encode_batch_flat(pieces(_read(path)))
        return [np.frombuffer(ids, dtype=np.uint32)]

    def encode_document(self, text):
        return self.tokenizer.encode(text).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids)


class Tokie(Encoder):
    def __init__(self, files):
        import tokie

        self.tokenizer = tokie.Tokenizer.from_json(files.json)

    def encode_file(self, path, separated, threads):
        source = path if threads == 1 else separated
        return [self.tokenizer.encode_files([str(source)], separator=SEPARATOR.encode())[0]]

    def encode_document(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tokenizer.decode_bytes(ids)


class Splintr(Encoder):
    def __init__(self, files):
        import splintr

        self.tokenizer = splintr.Tokenizer(files.ranks, splintr.CL100K_BASE_PATTERN)

    def encode_file(self, path, separated, threads):
        import numpy as np

        if threads == 1:
            ids = self.tokenizer.encode_flat(_read(path))
        else:
            ids, _ = self.tokenizer.encode_batch_flat(pieces(_read(path)))
        return [np.frombuffer(ids, dtype=np.uint32)]

    def encode_document(self, text):
        return self.tokenizer.encode_ordinary(text)

    def decode(self, ids):
        return self.tokenizer.decode_bytes(ids)


class Quicktok(Encoder):
    decodes_arrays = True

    def __init__(self, files):
        import quicktok

        _only_published(files)
        self.tokenizer = quicktok.Tokenizer("cl100k_base", "")

    def encode_file(self, path, separated, threads):
        text = _read(path)
        return [self.tokenizer.encode_batch([text] if threads == 1 else pieces(text), threads)[0]]

    def encode_document(self, text):
        return self.tokenizer.encode_ordinary(text)

    def decode(self, ids):
        return self.tokenizer.decode_bytes(ids)


class Riptoken(Encoder):
    def __init__(self, files):
        import riptoken

        ranks = riptoken.load_tiktoken_bpe(files.ranks)
        self.tokenizer = riptoken.CoreBPE(ranks, {}, tiktoken_spelling("cl100k"))

    def encode_file(self, path, separated, threads):
        if threads == 1:
            return [self.tokenizer.encode_ordinary(_read(path))]
        return self.tokenizer.encode_ordinary_batch(pieces(_read(path)))

    def encode_document(self, text):
        return self.tokenizer.encode_ordinary(text)

    def decode(self, ids):
        return self.tokenizer.decode_bytes(ids)


class RsBpe(Encoder):
    def __init__(self, files):
        from rs_bpe.bpe import openai

        _only_published(files)
        self.openai = openai
        self.tokenizer = openai.cl100k_base()

    def encode_file(self, path, separated, threads):
        if threads == 1:
            return [self.tokenizer.encode(_read(path))]
        options = self.openai.ParallelOptions(min_batch_size=1, chunk_size=1, max_threads=threads)
        return self.tokenizer.encode_batch_parallel(pieces(_read(path)), options)[0]

    def encode_document(self, text):
        return self.tokenizer.encode(text)

    def decode(self, ids):
        return self.tokenizer.decode(ids)


class Tiktoken(Encoder):
    def __init__(self, files):
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe

        pattern = tiktoken_spelling("cl100k")
        ranks = load_tiktoken_bpe(files.ranks)
        self.encoding = tiktoken.Encoding("cl100k", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode_file(self, path, separated, threads):
        if threads == 1:
            return [self.encoding.encode_ordinary(_read(path))]
        return self.encoding.encode_ordinary_batch(pieces(_read(path)), num_threads=threads)

    def encode_document(self, text):
        return self.encoding.encode_ordinary(text)

    def decode(self, ids):
        return self.encoding.decode_bytes(ids)


class HuggingFace(Encoder):
    def __init__(self, files):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(files.json)

    def encode_file(self, path, separated, threads):
        encoded = self.tokenizer.encode_batch_fast(pieces(_read(path)), add_special_tokens=False)
        return [part.ids for part in encoded]

    def encode_document(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tokenizer.decode(ids)


# By peer and, if it has several, by interface.
ENCODERS: dict[tuple[str, str], type[Encoder]] = {
    (OURS, ""): Bytelm,
    ("gigatoken", "encode_files"): GigatokenFiles,
    ("gigatoken", "encode"): GigatokenBytes,
    ("fastokens", ""): Fastokens,
    ("snaptokens", ""): Snaptokens,
    ("tokie", ""): Tokie,
    ("splintr", ""): Splintr,
    ("quicktok", ""): Quicktok,
    ("riptoken", ""): Riptoken,
    ("rs-bpe", ""): RsBpe,
    ("tiktoken", ""): Tiktoken,
    ("tokenizers", ""): HuggingFace,
}


def _only_published(files: VocabularyFiles) -> None:
    if not files.published:
        raise ValueError("has only published vocabularies")


def _read(path: Path) -> str:
    return path.read_bytes().decode()
