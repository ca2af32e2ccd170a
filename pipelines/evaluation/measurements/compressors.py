"""General-purpose compressors as baselines, which need no tokenizer."""

import lzma
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import zstandard

from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.decoded_text import stream_text
from pipelines.evaluation.measurement import Measurement, Number, Opponent, Result
from pipelines.evaluation.planning import EvaluationOptions
from pipelines.evaluation.split import ScoredSplit
from pipelines.run.folder import Run
from tokenizer import Tokenizer

PPM_ORDER = 16
PPM_MEMORY = 1 << 30  # bytes; the model starts anew when it is full
PIECE = 1 << 18  # bytes between two reports of progress

Progress = Callable[[int], None]


def xz(text: bytes, progress: Progress = lambda done: None) -> int:
    """Return the size after `xz -9` in bytes. `progress` is called with the bytes done; if it raises, the work ends."""
    return _compress(lzma.LZMACompressor(preset=9), text, progress)


def zstd(text: bytes, progress: Progress = lambda done: None) -> int:
    """Return the size after `zstd -19` in bytes. `progress` is as in `xz`."""
    compressor = zstandard.ZstdCompressor(level=19, write_checksum=True)
    return _compress(compressor.compressobj(size=len(text)), text, progress)


def _compress(compressor: Any, text: bytes, progress: Progress) -> int:
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
    compressed, written, done = [], 0, 0
    for size in sizes:
        while done < size:
            piece = text[done : min(size, done + PIECE)]
            written += len(encoder.encode(piece))
            done += len(piece)
            progress(done)
        compressed.append(written)
    return [*compressed[:-1], written + len(encoder.flush())] if compressed else []


COMPRESSORS: dict[str, Callable[..., int]] = {"xz -9": xz, "zstd -19": zstd}


@dataclass(frozen=True)
class Compressed:
    """Bits per byte of a text."""

    alone: float
    given_train: float
    """Growth of the compressed training text after this text is appended"""


@dataclass(frozen=True)
class CompressedText(Result):
    """The bits per byte of a split's text for each compressor."""

    key = "compressors"
    only = "sizes"
    more_definitions = (
        Number(
            "compressor, bits per byte",
            'Compressed size of the same text. "Given the training text" is the growth of the compressed training text '
            "after this text is appended.",
        ),
    )

    sizes: dict[str, Compressed]

    def rows(self) -> dict[str, str]:
        return {
            f"{name}{words}, bits per byte": f"{bits:,.4f}"
            for name, size in self.sizes.items()
            for words, bits in (("", size.alone), (", given the training text", size.given_train))
        }

    def opponents(self) -> list[Opponent]:
        return [
            opponent
            for name, size in self.sizes.items()
            for opponent in (
                Opponent(name, name, size.alone),
                Opponent(f"{name} given the training text", f"{name}, given train", size.given_train, True),
            )
        ]


def compressed_text(
    dataset: TokenDataset,
    tokenizer: Tokenizer,
    split: str = "validation",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CompressedText:
    """Return the bits per byte of a split's text for each compressor.

    `given_train` is (C(train + split) - C(train)) * 8 / bytes of the split, with C the compressed size in bytes. The
    compressors run in parallel threads, with both texts in memory.
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
    size = max(1, len(held_out))
    return CompressedText(
        {name: Compressed(alone * 8 / size, (both - given) * 8 / size) for name, (both, given, alone) in sizes.items()}
    )


@dataclass(frozen=True, kw_only=True)
class Compressors(Measurement):
    """Baselines by general-purpose compressors."""

    result = CompressedText

    compressors: bool = False
    """Compress the same text with xz and zstd, which takes minutes for a large corpus."""

    def check(self, run: Run, options: EvaluationOptions) -> None:
        if not self.compressors:
            return
        if run.recipe.objective == "sequence-pairs":
            raise ValueError(f"{run.folder} was trained on pairs, and `compressors` needs a text: leave it out")
        if options.corpus:
            raise ValueError("`compressors` needs a training split: name a dataset with `data` instead of `corpus`")
        if not run.tokenizer().is_lossless:
            raise ValueError(
                f"{run.folder} has a tokenizer that loses text, such as case or unknown words: its dataset does not "
                "hold the text to compress; leave `compressors` out"
            )

    def measure(self, split: ScoredSplit) -> CompressedText | None:
        if not self.compressors:
            return None
        assert isinstance(split.plan.dataset, TokenDataset), "only a dataset of blocks has a text to compress"
        with Bar("compressing", None, "B") as bar:
            return compressed_text(split.plan.dataset, split.tokenizer, split.name, progress=bar.update)


MEASUREMENT = Compressors
