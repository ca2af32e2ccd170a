"""What general-purpose compressors need for a split: the baselines that know nothing of tokens."""

import lzma
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import zstandard

from pipelines.dataset.reader import TokenDataset, TokenStream
from tokenizer import Tokenizer


def xz(text: bytes) -> int:
    """Bytes of `xz -9`."""
    return len(lzma.compress(text, preset=9))


def zstd(text: bytes) -> int:
    """Bytes of `zstd -19`."""
    return len(zstandard.ZstdCompressor(level=19, write_checksum=True).compress(text))


COMPRESSORS: dict[str, Callable[[bytes], int]] = {"xz -9": xz, "zstd -19": zstd}


def compressed_bits_per_byte(
    dataset: TokenDataset,
    tokenizer: Tokenizer,
    split: str = "validation",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, float]]:
    """For each compressor the bits per byte of the split's text: "alone", and "given_train", which is
    (C(train + split) - C(train)) * 8 / bytes of the split. Runs one compressor a core; memory is that of the text."""
    validation, train = (
        stream_text(dataset.split(split), tokenizer),
        stream_text(dataset.split("train"), tokenizer),
    )
    texts = (train + validation, train, validation)
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
            "alone": alone * 8 / max(1, len(validation)),
            "given_train": (both - given) * 8 / max(1, len(validation)),
        }
        for name, (both, given, alone) in sizes.items()
    }


def stream_text(stream: TokenStream, tokenizer: Tokenizer) -> bytes:
    """The text of a stream, without its special tokens."""
    lengths = tokenizer.token_byte_lengths
    return b"".join(tokenizer.decode_bytes(chunk[lengths[chunk] > 0]) for chunk in stream.chunks())
