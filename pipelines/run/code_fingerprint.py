"""The fingerprint of the code, without which work that was interrupted must not be reused."""

import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("corpora", "tokenizer", "pipelines/cluster", "pipelines/dataset")
_LIBRARIES = ("numpy", "pyarrow", "regex")


@cache
def code_fingerprint() -> str:
    """Return the SHA-256 of the sources and library versions that decide the counts and the ids of a text."""
    digest = hashlib.sha256(json.dumps([version(library) for library in _LIBRARIES]).encode())
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            source = path.read_bytes()
            digest.update(f"{path.relative_to(_ROOT).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()
