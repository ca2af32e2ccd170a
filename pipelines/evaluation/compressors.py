"""General-purpose compressors as baselines, which need no tokenizer."""

import lzma
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import zstandard

from pipelines.dataset.reader import TokenDataset, TokenStream
from tokenizer import Tokenizer

PPM_ORDER = 16
PPM_MEMORY = 1 << 30  # bytes; the model starts anew when it is full
PPM_PIECE = 1 << 18  # bytes between two reports of progress


def xz(text: bytes) -> int:
    """Return the size after `xz -9` in bytes."""
    return len(lzma.compress(text, preset=9))


def zstd(text: bytes) -> int:
    """Return the size after `zstd -19` in bytes."""
    return len(zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text))


def ppm_sizes(text: bytes, sizes: Sequence[int], progress: Callable[[int], None] = lambda done: None) -> list[int]:
    """Return the size in bytes after PPMd (variant H) of each prefix of a text: of its first `sizes` bytes, ascending.

    One pass serves all prefixes, since the code of a prefix is a prefix of the code. Needs `pyppmd`. `progress` is
    called with the bytes done so far.
    """
    import pyppmd

    encoder = pyppmd.Ppmd7Encoder(PPM_ORDER, PPM_MEMORY)
    found, written, done = [], 0, 0
    for size in sizes:
        while done < size:
            piece = text[done : min(size, done + PPM_PIECE)]
            written += len(encoder.encode(piece))
            done += len(piece)
            progress(done)
        found.append(written)
    return [*found[:-1], written + len(encoder.flush())] if found else []


COMPRESSORS: dict[str, Callable[[bytes], int]] = {"xz -9": xz, "zstd -19": zstd}


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


def stream_text(stream: TokenStream, tokenizer: Tokenizer) -> bytes:
    """Return the text of a stream, without its special tokens."""
    lengths = tokenizer.token_byte_lengths
    return b"".join(tokenizer.decode_bytes(chunk[lengths[chunk] > 0]) for chunk in stream.chunks())
