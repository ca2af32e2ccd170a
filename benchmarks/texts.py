"""The texts of the tokenizer benchmark: UTF-8 files, made in a temporary folder from the available corpora."""

import json
import lzma
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT

SHARED = Path(os.environ.get("BYTELM_SHARED", ROOT.parent / "shared"))
CODE_BYTES = 50_000_000
QUICK_BYTES = 2_000_000
LINES_BYTES = 10_000_000
SEPARATOR = "\x1e<|piece|>\x1e"
LINE_END = 0xFFFFFFFF  # no id

# Both patterns always split between a non-space and a space. Cutting a text there keeps its pretokens and its ids.
CUT = re.compile(r"\S(?= )")

# Warms up kernels and thread pools: it reaches every code path but none of the measured texts.
WARM_UP = (
    "Don't panic: 3.14159 is \tnot 22/7, naïve reader!\r\n\n   It's 1234567 o'clock in 東京, Αθήνα; שלום, สวัสดี 🙂🙂\n"
    "def pneumonoultramicroscopicsilicovolcanoconiosis(self): return __counterrevolutionaries__  # \u00a0x\u0301\n"
) * 500


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text file, and a copy with `SEPARATOR` between pieces for peers that only run documents in parallel."""

    name: str
    path: Path
    separated: Path
    source: str

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def pieces(text: str, size: int = 1 << 16) -> list[str]:
    """Cut a text into pieces of about `size` characters. Together they have the pretokens of the text."""
    parts, start = [], 0
    while len(text) - start > size and (cut := CUT.search(text, start + size)):
        parts.append(text[start : cut.end()])
        start = cut.end()
    parts.append(text[start:])
    return parts


def write_text(folder: Path, name: str, text: str, source: str) -> Text:
    path, separated = folder / f"{name}.txt", folder / f"{name}.separated.txt"
    path.write_bytes(text.encode())
    # A text that contains the separator stays one document.
    separated.write_bytes((text if SEPARATOR in text else SEPARATOR.join(pieces(text))).encode())
    return Text(name=name, path=path, separated=separated, source=source)


def corpora(folder: Path, files: list[Path], quick: bool) -> list[Text]:
    """Return the given files, else the available ones of English, code (from Python itself) and multilingual text."""
    limit = QUICK_BYTES if quick else None
    if files:
        named = {path.stem: (str(path), _head(_read(path), limit)) for path in files}
        if len(named) < len(files):
            raise SystemExit("two files have the same name without suffix; rename one")
    else:
        named = {
            "english": ("books and enwiki", corpus_texts(["books", "enwiki"], limit)),
            "code": ("standard library and site-packages", code(limit or CODE_BYTES)),
            "multilingual": ("multilingual", corpus_texts(["multilingual"], limit)),
        }
    return [write_text(folder, name, text, source) for name, (source, text) in named.items() if text]


def hard_texts(folder: Path, size: int) -> list[Text]:
    """Return single inputs of `size` bytes that are slow for some tokenizers: no places to split, or too many."""
    import numpy as np

    draw = np.random.default_rng(0)
    inputs = {
        "one letter": b"a" * size,
        "spaces": b" " * size,
        "random letters": draw.integers(ord("a"), ord("z") + 1, size, dtype=np.uint8).tobytes(),
        "Han without spaces": draw.integers(0x4E00, 0x9FA6, size // 3, dtype="<u4")
        .tobytes()
        .decode("utf-32-le")
        .encode(),
        "newline-space": b"\n " * (size // 2),
    }
    texts = []
    for source, data in inputs.items():
        name = f"{source}, {size_name(size)}"
        path = folder / f"{name}.txt"
        path.write_bytes(data)
        texts.append(Text(name=name, path=path, separated=path, source=source))
    return texts


def size_name(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"


def documents(path: Path, number: int = 200, size: int = 4096) -> list[str]:
    """`number` documents of `size` bytes from all over a text (less what UTF-8 forbids to cut)."""
    data = path.read_bytes()
    step = max(size, len(data) // number)
    return [data[start : start + size].decode(errors="ignore") for start in range(0, len(data) - size + 1, step)]


def line_texts(folder: Path, files: list[Path], quick: bool) -> list[Text]:
    """Return 10 MB of each of the given files, else of English books and of multilingual text if available."""
    limit = QUICK_BYTES if quick else LINES_BYTES
    if files:
        named = {path.stem: (str(path), _head(_read(path), limit)) for path in files}
    else:
        named = {name: (name, corpus_texts([name], limit)) for name in ("books", "multilingual")}
    return [write_text(folder, f"{name}, 10 MB", text, source) for name, (source, text) in named.items() if text]


def corpus_texts(names: list[str], limit: int | None) -> str:
    """Return up to `limit` bytes of shared corpora, documents joined by blank lines; empty if they are absent."""
    texts, left = [], limit
    for name in names:
        path = SHARED / "corpora" / f"{name}.jsonl.xz"
        if not path.is_file():
            return ""
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                texts.append(_head(json.loads(line)["text"], left))
                if left is not None and (left := left - len(texts[-1].encode())) <= 0:
                    return "\n\n".join(texts)
    return "\n\n".join(texts)


def code(limit: int) -> str:
    """Return Python sources of this interpreter and its site-packages, sorted by path, up to `limit` bytes."""
    texts, left = [], limit
    for path in _sources():
        try:
            text = path.read_bytes().decode("utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        texts.append(_head(text, left))
        if (left := left - len(texts[-1].encode())) <= 0:
            break
    return "\n".join(texts)


def _sources() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    library, packages = Path(paths["stdlib"]), Path(paths["purelib"])
    yield from (path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts)
    yield from sorted(packages.rglob("*.py"))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path} is not UTF-8 at byte {error.start}; convert it first") from None


def _head(text: str, limit: int | None) -> str:
    """Return the first `limit` bytes of a text, cut at a character boundary."""
    return text if limit is None else text.encode()[:limit].decode(errors="ignore")
