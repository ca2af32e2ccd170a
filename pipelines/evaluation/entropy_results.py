"""What `bytelm entropy` returns. Bits are per symbol of the text's unit, unless a field says otherwise."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from lm.text_statistics.divergence import Divergence
from lm.text_statistics.frequency_laws import Heaps, Zipf
from lm.text_statistics.mutual_information import MutualInformation
from lm.text_statistics.ngram_entropy import NgramEntropy

Unit = Literal["bytes", "characters", "tokens"]


@dataclass(frozen=True, kw_only=True)
class NgramNumbers(NgramEntropy):
    """The entropies of n-grams, and for a synthetic text the true ones."""

    true_block: float | None = None
    true_conditional: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of n in the output of `json`, with true values if there are some."""
        numbers = asdict(self)
        true = {name: numbers.pop(name) for name in ("true_block", "true_conditional")}
        known = {} if self.true_block is None else true
        return numbers | {"coverage": self.coverage, "reliable": self.reliable} | known


@dataclass(frozen=True, kw_only=True)
class Information(MutualInformation):
    """Mutual information by distance, and for a synthetic text the true one."""

    true: list[float] | None = None


@dataclass(frozen=True, kw_only=True)
class EntropyRate:
    """Bits per byte of an endless text, estimated on a sample and its prefixes."""

    sample_bytes: int
    sizes: list[int]
    """Bytes of the prefixes, up to the whole sample"""
    bits_per_byte: dict[str, list[float | None]]
    """By estimate, one number for each size"""
    true: float | None
    """Known for a synthetic text"""


@dataclass(frozen=True, kw_only=True)
class WordNumbers:
    """Frequencies of words, or of tokens if the unit is tokens."""

    kind: Literal["words", "tokens"]
    count: int
    distinct: int
    entropy: float
    """Bits per word"""
    zipf: Zipf | None
    """None for a text with too few words"""
    heaps: Heaps | None
    """None for a text with too few words"""
    ranks: list[int]
    rank_counts: list[int]
    """Occurrences of the word of each rank in `ranks`"""
    growth: list[tuple[int, int]]
    """Pairs of a number of words and the distinct ones among them"""


@dataclass(frozen=True, kw_only=True)
class TextDivergences:
    """Divergences from another text."""

    corpus: str
    """Name of the other text"""
    unigrams: Divergence
    bigrams: Divergence


@dataclass(frozen=True, kw_only=True, repr=False)
class TextEntropy:
    """The numbers of a text without a model."""

    corpus: str
    unit: Unit
    documents: int
    bytes: int
    symbols: int
    alphabet: int
    """Different symbols"""
    bytes_per_symbol: float
    ngrams: list[NgramNumbers]
    """By n, from 1"""
    mutual_information: Information
    entropy_rate: EntropyRate
    words: WordNumbers
    against: TextDivergences | None = None
    """Divergences from the text of `against`, if one was given"""
    left_out: dict[str, str]
    """Numbers that need a missing package, with the remedy"""
    seconds: dict[str, float]
    """Time of each measurement"""

    def to_json(self) -> dict[str, Any]:
        """Return the output of `json`, without the numbers that the text does not have."""
        numbers = asdict(self) | {"ngrams": [row.to_json() for row in self.ngrams]}
        if self.mutual_information.true is None:
            del numbers["mutual_information"]["true"]
        if self.against is None:
            del numbers["against"]
        return numbers

    def __repr__(self) -> str:
        size = f"{self.corpus}: {self.symbols:,} {self.unit}, {self.alphabet:,} different"
        if not self.ngrams:
            return size
        first, last = self.ngrams[0], [row for row in self.ngrams if row.reliable or row.n == 1][-1]
        symbol = self.unit[:-1]
        return f"{size}; H_1 {first.block:.3f}, h_{last.n} {last.conditional:.3f} bits per {symbol}"
