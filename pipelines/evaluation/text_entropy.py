"""Compute the numbers of `bytelm entropy`: entropies, mutual information and word frequencies of a text."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from threading import Event
from typing import Any

import numpy as np

from corpora.synthetic import MarkovSource
from lm.text_statistics import kernels as text_kernels
from lm.text_statistics.distributions import entropy
from lm.text_statistics.divergence import text_divergences
from lm.text_statistics.frequency_laws import POINTS, fit_heaps, fit_zipf, vocabulary_growth
from lm.text_statistics.match_lengths import match_rates
from lm.text_statistics.mutual_information import MutualInformation, mutual_information
from lm.text_statistics.ngram_entropy import LONGEST, ngram_entropies
from pipelines.evaluation.decoded_text import white_space
from pipelines.evaluation.entropy_results import (
    EntropyRate,
    Information,
    NgramNumbers,
    TextDivergences,
    TextEntropy,
    WordNumbers,
)
from pipelines.evaluation.measurements.compressors import COMPRESSORS, PPM_ORDER, ppm_sizes
from pipelines.evaluation.symbols import SymbolText, one_alphabet, sample_of

SMALLEST_SAMPLE = 1 << 14  # bytes: the first point of the curves, each four times the one before
SLOPE, CLASSIC, PPM = "match lengths, slope", "match lengths, classic", f"PPM of order {PPM_ORDER}"
NEEDED = {"pydivsufsort": "match lengths", "pyppmd": "PPM"}
REMEDY = "pip install 'bytelm[entropy]'"

Progress = Callable[[str, float, float | None, str], None]


def missing_extras() -> dict[str, str]:
    """Return the missing packages of the extra `entropy`, each with the numbers that need it."""
    return {package: what for package, what in NEEDED.items() if find_spec(package) is None}


def text_entropy(
    text: SymbolText,
    other: SymbolText | None,
    source: MarkovSource | None,
    *,
    sample: int,
    threads: int,
    progress: Progress,
) -> TextEntropy:
    """Return all numbers of a text.

    `other` is a text to compare with. `source` is the source of a synthetic text, which adds the true values. Match
    lengths and compressors read a sample of at most `sample` bytes.
    """
    seconds: dict[str, float] = {}

    def measure_time(name: str, work: Callable[[], Any]) -> Any:
        started = time.monotonic()
        result = work()
        seconds[name] = round(time.monotonic() - started, 2)
        return result

    return TextEntropy(
        corpus=text.name,
        unit=text.unit,
        documents=len(text.offsets) - 1,
        bytes=len(text.text),
        symbols=len(text.ids),
        alphabet=len(text.values),
        bytes_per_symbol=text.bytes_per_symbol,
        ngrams=measure_time("ngrams", lambda: _ngrams(text, source, threads, progress)),
        mutual_information=measure_time("mutual_information", lambda: _information(text, source, threads, progress)),
        entropy_rate=measure_time("entropy_rate", lambda: _rates(text, source, sample, threads, progress)),
        words=measure_time("words", lambda: _words(text)),
        against=None if other is None else measure_time("against", lambda: _divergences(text, other)),
        left_out=dict.fromkeys(missing_extras().values(), REMEDY),
        seconds=seconds,
    )


def _ngrams(text: SymbolText, source: MarkovSource | None, threads: int, progress: Progress) -> list[NgramNumbers]:
    rows = ngram_entropies(
        text.ids,
        text.offsets,
        longest=LONGEST,
        threads=threads,
        progress=lambda done, total: progress("n-grams", done, total, ""),
    )
    if source is None:
        return [NgramNumbers(**asdict(row)) for row in rows]
    blocks = [0.0, *(source.block_entropy_bits(row.n) for row in rows)]
    steps = np.diff(blocks).tolist()
    return [
        NgramNumbers(**asdict(row), true_block=block, true_conditional=step)
        for row, block, step in zip(rows, blocks[1:], steps, strict=True)
    ]


def _information(text: SymbolText, source: MarkovSource | None, threads: int, progress: Progress) -> Information:
    information: MutualInformation = mutual_information(
        text.ids,
        text.offsets,
        threads=threads,
        progress=lambda done, total: progress("mutual information", done, total, ""),
    )
    true = None if source is None else [source.mutual_information_bits(each) for each in information.distances]
    return Information(**asdict(information), true=true)


def _rates(text: SymbolText, source: MarkovSource | None, sample: int, threads: int, progress: Progress) -> EntropyRate:
    """Return the sizes of the prefixes of a sample, and the bits per byte of each prefix by each estimate."""
    data = sample_of(text, sample)
    whole = data.tobytes()
    sizes = [*(size for size in (SMALLEST_SAMPLE * 4**power for power in range(32)) if size < len(whole)), len(whole)]
    done: dict[str, int] = {}
    stopped = Event()

    def report(name: str, amount: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        done[name] = amount
        progress("entropy rate", sum(done.values()), total, "B")

    def per_byte(compressed: Sequence[int]) -> list[float | None]:
        return [8 * amount / size for amount, size in zip(compressed, sizes, strict=True)]

    def match_lengths() -> dict[str, list[float | None]]:
        rates = match_rates(data, sizes, lambda past: report(SLOPE, past))
        report(SLOPE, len(whole))
        return {SLOPE: [rate.slope for rate in rates], CLASSIC: [rate.classic for rate in rates]}

    def ppm() -> dict[str, list[float | None]]:
        return {PPM: per_byte(ppm_sizes(whole, sizes, lambda amount: report(PPM, amount)))}

    def general(name: str) -> dict[str, list[float | None]]:
        compressed = []
        for size in sizes:
            before = done[name]
            compressed.append(
                COMPRESSORS[name](whole[:size], lambda amount, before=before: report(name, before + amount))
            )
        return {name: per_byte(compressed)}

    jobs: dict[str, Callable[[], dict[str, list[float | None]]]] = {SLOPE: match_lengths, PPM: ppm}
    jobs |= {name: partial(general, name) for name in COMPRESSORS}
    for package, name in (("pydivsufsort", SLOPE), ("pyppmd", PPM)):
        if package in missing_extras():
            del jobs[name]
    done |= dict.fromkeys(jobs, 0)
    total = sum(sum(sizes) if name in COMPRESSORS else len(whole) for name in jobs)
    estimates: dict[str, list[float | None]] = {}
    with ThreadPoolExecutor(threads) as pool:
        try:
            for estimate in pool.map(lambda job: job(), jobs.values()):
                estimates |= estimate
        except BaseException:  # such as Ctrl-C: the threads end at their next report
            stopped.set()
            raise
    true = None if source is None else source.entropy_rate_bits
    return EntropyRate(sample_bytes=len(whole), sizes=sizes, bits_per_byte=estimates, true=true)


def _words(text: SymbolText) -> WordNumbers:
    """Return Zipf's and Heaps' laws of the words, or of the tokens if the unit is tokens."""
    if text.unit == "tokens":
        words = text.ids
    else:
        hashes, space = np.empty(0, dtype=np.uint64), white_space(text.text)
        hashes = np.empty(text_kernels.hash_words(text.text, text.text_offsets, space, hashes), dtype=np.uint64)
        text_kernels.hash_words(text.text, text.text_offsets, space, hashes)
        words = hashes
    counts = np.sort(np.unique(words, return_counts=True)[1])[::-1]
    ranks = np.unique(np.round(np.geomspace(1, len(counts), POINTS)).astype(np.int64)) if len(counts) else counts
    growth = vocabulary_growth(words)
    return WordNumbers(
        kind="tokens" if text.unit == "tokens" else "words",
        count=len(words),
        distinct=len(counts),
        entropy=entropy(counts / len(words)) if len(words) else 0.0,
        zipf=fit_zipf(counts),
        heaps=fit_heaps(growth),
        ranks=ranks.tolist(),
        rank_counts=counts[ranks - 1].tolist(),
        growth=growth,
    )


def _divergences(text: SymbolText, other: SymbolText) -> TextDivergences:
    unigrams, bigrams = text_divergences(*one_alphabet(text, other))
    return TextDivergences(corpus=other.name, unigrams=unigrams, bigrams=bigrams)


DEFINITIONS = {
    "coverage": "1 - n-grams that occur once / windows: the estimated probability that the next n-gram is a known one "
    "(Good 1953). Rows below 95 % are unreliable: the sample is too small, and the entropies are too low.",
    "H_n": "Block entropy in bits: -sum p log2 p over the relative frequencies p of n-grams (plug-in). No n-gram spans "
    "two documents. Too low for small samples.",
    "h_n": "Conditional entropy in bits of a symbol given the n - 1 symbols before it. Plug-in, over the same windows.",
    "MM": "The plug-in value plus a first-order correction that removes part of the bias (Miller and Madow 1955). For "
    "H_n it is (distinct n-grams - 1) / (2 windows ln 2). For h_n it is (distinct n-grams - distinct contexts) / "
    "(2 windows ln 2).",
    "mutual information": "Plug-in mutual information in bits of two symbols at distance d in one document. If there "
    "are more than 256 symbols, all but the 255 most frequent count as one.",
    "shuffled": "Mutual information after shuffling all symbols of the corpus: the bias of the estimate.",
    "within documents": "Mutual information after shuffling the symbols of each document. The part above the bias "
    "comes from differences between documents, such as topic and language, not from order.",
    "order": "Mutual information of the text minus that of the text shuffled within documents.",
    "entropy rate": "Bits per byte of an endless text, estimated on the bytes of a sample, whatever the unit. The "
    "curve over sample size shows whether an estimate still falls.",
    SLOPE: "1 / slope of the mean match length against log2 of the length of the past, for pasts from 256 bytes up to "
    "the size. A match length is the length of the shortest string that did not begin in the past. The estimate "
    "is within 2 % for known sources from a million symbols on. In natural text the mean match length is not linear in "
    "log2 of the past.",
    CLASSIC: "1 / mean of (match length / log2 of the length of the past) (Kontoyiannis et al. 1998). It is off by 4 "
    "to 18 % for known sources of a million symbols.",
    PPM: "8 x compressed bytes / bytes by PPMd (variant H). An upper bound.",
    **dict.fromkeys(COMPRESSORS, "8 x compressed bytes / bytes. An upper bound, including the header of the format."),
    "words": "Longest runs without white space, or tokens if the unit is tokens.",
    "Zipf": "Exponent s of p(rank) ~ rank^-s, by maximum likelihood over the words that occur at least 10 times. The "
    "distance is the largest difference between the cumulative distributions of text and fit.",
    "Heaps": "Exponent beta of V(n) = K n^beta, with V(n) the distinct words among the first n. It is fitted by least "
    "squares of the logarithms from 1,000 words on. The deviation is the root mean square of the relative error.",
    "KL, JS": "D(text || other) = sum p log2(p / q), the reverse, and the Jensen-Shannon divergence (0 to 1), in bits. "
    "Unigrams have add-one smoothing, bigrams Witten-Bell smoothing. In bigrams, all but the 255 most frequent symbols "
    "of a large alphabet count as one.",
    "true": "The value of the synthetic source in closed form.",
}
