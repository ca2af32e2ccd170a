"""General-purpose compressors as baselines, which need no tokenizer."""

import lzma
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zstandard

from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.decoded_text import stream_text
from tokenizer import Tokenizer

PPM_ORDER = 16
PPM_MEMORY = 1 << 30  # bytes; the model starts anew when it is full
PIECE = 1 << 18  # bytes between two reports of progress

Progress = Callable[[int], None]


def xz(text: bytes, progress: Progress = lambda done: None) -> int:
    """Return the size after `xz -9` in bytes. `progress` is called with the bytes done; if it raises, the work ends."""
    return _compressed(lzma.LZMACompressor(preset=9), text, progress)


def zstd(text: bytes, progress: Progress = lambda done: None) -> int:
    """Return the size after `zstd -19` in bytes. `progress` is as in `xz`."""
    compressor = zstandard.ZstdCompressor(level=19, write_checksum=True)
    return _compressed(compressor.compressobj(size=len(text)), text, progress)


def _compressed(compressor: Any, text: bytes, progress: Progress) -> int:
    written = 0
    for start in range(0, len(text), PIECE):
        written += len(compressor.compress(text[start : start + PIECE]))
        progress(min(len(text), start + PIECE))
    return written + len(compressor.flush())


def ppm_sizes(text: bytes, sizes: Sequence[int], progress: Progress = lambda done: None) -> list[int]:
    """Return the compressed size in bytes of each prefix of a text, by PPMd (variant H).

    `sizes` are the lengths of the prefixes in bytes, ascending. One pass serves all prefixes, because the code of a
    prefix is a prefix of the code. Needs `pyppmd`. `progress` is called with the bytes done so far.
    """
    import pyppmd

    encoder = pyppmd.Ppmd7Encoder(PPM_ORDER, PPM_MEMORY)
    found, written, done = [], 0, 0
    for size in sizes:
        while done < size:
            piece = text[done : min(size, done + PIECE)]
            written += len(encoder.encode(piece))
            done += len(piece)
            progress(done)
        found.append(written)
    return [*found[:-1], written + len(encoder.flush())] if found else []


COMPRESSORS: dict[str, Callable[..., int]] = {"xz -9": xz, "zstd -19": zstd}


def compressed_bits_per_byte(
    dataset: TokenDataset,
    tokenizer: Tokenizer,
    split: str = "validation",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, float]]:
    """Return the bits per byte of a split's text for each compressor: "alone" and "given_train".

    "given_train" is (C(train + split) - C(train)) * 8 / bytes of the split, with C the compressed size in bytes. Runs
    one compressor per core, with both texts in memory.
    """
    held_out, train = (stream_text(dataset.split(name), tokenizer) for name in (split, "train"))
    texts = (train + held_out, train, held_out)
    sizes: dict[str, list[int]] = {}
    done = 0
    with ThreadPoolExecutor() as pool:
        jobs = [
            (name, pool.submit(compress, text), len(text)) for name, compress in COMPRESSORS.items() for text in texts
        ]
        for name, job, size in jobs:
            sizes.setdefault(name, []).append(job.result())
            done += size
            progress(done, len(COMPRESSORS) * sum(map(len, texts)))
    return {
        name: {
            "alone": alone * 8 / max(1, len(held_out)),
            "given_train": (both - given) * 8 / max(1, len(held_out)),
        }
        for name, (both, given, alone) in sizes.items()
    }
