"""Synthetic text whose entropy rate is known in closed form: i.i.d. symbols and Markov chains.

A symbol is a number from 0; in text it is one ASCII character. The entropy rate of a source with stationary
distribution pi over contexts c of k symbols and conditional distributions p(. | c) is

    H = - sum_c pi(c) sum_s p(s | c) log2 p(s | c)      bits per symbol

(Cover & Thomas, Elements of Information Theory, 2nd edition, theorem 4.2.4). No model that predicts each symbol from
the symbols before it has a lower expected cross-entropy.
"""

import string
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from corpora.documents import Chunk

ALPHABET = string.ascii_lowercase + string.ascii_uppercase + string.digits
MAX_CONTEXTS = 4096
MAX_CONCENTRATION = 1e9

# Documents of a group are drawn by one vectorised loop from one generator, so these numbers determine the text.
GROUP_DOCUMENTS = 256
GROUP_SYMBOLS = 1 << 22

# Fewer sequences are faster to draw one by one than vectorised.
_FEW_SEQUENCES = 32


class MarkovSource:
    """A stationary Markov chain of order k, given by its conditional distributions.

    Attributes:
        order: k, the number of symbols that the next one depends on
        symbols: number of different symbols
        alphabet: uint8 (symbols,), the character of each symbol in text
        table: float64 (symbols ** order, symbols), the conditional distribution after each context. The digits of a
            context's number in base `symbols` are its symbols, the most recent one last
    """

    def __init__(
        self,
        order: int,
        symbols: int,
        seed: int = 0,
        concentration: float = 0.2,
        alphabet: str | None = None,
    ):
        """Draw the distribution after each context from a symmetric Dirichlet distribution of that concentration."""
        _check_symbols(symbols)
        if not 0 <= order <= MAX_CONTEXTS or symbols**order > MAX_CONTEXTS:
            raise ValueError(
                f"a chain of order {order:.4g} over {symbols} symbols has {symbols}**{order} contexts: "
                f"choose an order from 0 with at most {MAX_CONTEXTS} contexts"
            )
        if not 0 < concentration <= MAX_CONCENTRATION:
            raise ValueError(
                f"the concentration of a Dirichlet distribution must be above 0 and at most {MAX_CONCENTRATION:g}, not "
                f"{concentration:.4g}"
            )
        table = np.random.default_rng(seed).dirichlet(np.full(symbols, concentration), size=symbols**order)
        self._description = {
            "kind": "markov",
            "order": order,
            "symbols": symbols,
            "seed": seed,
            "concentration": concentration,
        }
        self._set(table, order, alphabet)

    def _set(self, table: np.ndarray, order: int, alphabet: str | None) -> None:
        self.order, self.symbols, self.table = order, table.shape[1], table
        self.alphabet = _alphabet(alphabet, self.symbols)
        self.stationary = _stationary(table, order)
        self.entropy_rate_bits = float(self.stationary @ _row_entropies(table))
        self._cumulative = _cumulative(table)
        self._cumulative_contexts = _cumulative(self.stationary[None])[0]

    def conditional(self, contexts: np.ndarray) -> np.ndarray:
        """Return the distributions of the next symbol, (N, symbols) float64, after contexts (N, k) of symbol numbers.

        Of a context longer than the order, only the last symbols count.
        """
        if contexts.ndim != 2 or contexts.shape[1] < self.order:
            raise ValueError(f"contexts should be (N, {self.order}) symbol numbers, not of shape {contexts.shape}")
        last = contexts[:, contexts.shape[1] - self.order :].astype(np.int64)
        if last.size and (last.min() < 0 or last.max() >= self.symbols):
            raise ValueError(f"symbol numbers are from 0 to {self.symbols - 1}; the contexts hold others")
        distributions: np.ndarray = self.table[self._context_numbers(last)]
        return distributions

    def block_entropy_bits(self, n: int) -> float:
        """Return the entropy of n consecutive symbols, n >= 1, in bits: that of a context, and then the rate."""
        if n >= self.order:
            return float(_row_entropies(self.stationary[None])[0]) + (n - self.order) * self.entropy_rate_bits
        firsts = self.stationary.reshape(self.symbols**n, -1).sum(axis=1)
        return float(_row_entropies(firsts[None])[0])

    def mutual_information_bits(self, distance: int) -> float:
        """Return the mutual information in bits of two symbols at a distance of at least 1."""
        if self.order == 0:
            return 0.0
        last = np.arange(len(self.stationary)) % self.symbols
        membership = last[:, None] == np.arange(self.symbols)
        steps = np.linalg.matrix_power(_transition(self.table, self.order), distance)
        joint = membership.T @ (self.stationary[:, None] * steps) @ membership
        symbols = joint.sum(axis=1)
        return float(2 * _row_entropies(symbols[None])[0] - _row_entropies(joint.reshape(1, -1))[0])

    def sample(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Return n symbols, uint8. The first ones are from the stationary distribution."""
        symbols, contexts = self.symbols, len(self.stationary)
        rows = [row.tolist() for row in self._cumulative]
        out = bytearray(self._start(1, generator)[0].astype(np.uint8).tobytes())
        context = int(self._context_numbers(np.frombuffer(out, np.uint8)[None].astype(np.int64))[0])
        for uniform in generator.random(max(n - self.order, 0)).tolist():
            symbol = bisect_right(rows[context], uniform)
            out.append(symbol)
            context = (context * symbols + symbol) % contexts
        return np.frombuffer(bytes(out[:n]), dtype=np.uint8)

    def sample_documents(self, count: int, length: int, generator: np.random.Generator) -> np.ndarray:
        """Return independent sequences, (count, length) uint8. Each begins in the stationary distribution."""
        if count < _FEW_SEQUENCES:
            return np.stack([self.sample(length, generator) for _ in range(count)])
        out = np.empty((length, count), dtype=np.uint8)
        start = self._start(count, generator)
        out[: self.order] = start.T[:length]
        context = self._context_numbers(start)
        for t in range(self.order, length):
            # The number of cumulative probabilities at or below a uniform draw is a draw of the symbol.
            draw = generator.random(count)
            symbol = (self._cumulative[context] <= draw[:, None]).sum(axis=1)
            out[t] = symbol
            context = (context * self.symbols + symbol) % len(self.stationary)
        return np.ascontiguousarray(out.T)

    def to_text(self, symbols: np.ndarray) -> bytes:
        """Return a sequence of symbol numbers as text, one byte each."""
        return bytes(self.alphabet[symbols])

    def from_text(self, text: bytes) -> np.ndarray:
        """Return the symbol numbers, uint8, of a text. Raises ValueError for a byte that is not a symbol."""
        numbers = np.full(256, 255, dtype=np.uint8)
        numbers[self.alphabet] = np.arange(self.symbols)
        symbols = numbers[np.frombuffer(text, dtype=np.uint8)]
        if np.any(symbols == 255):
            raise ValueError(f"the text has bytes that are not among the source's {self.symbols} symbols")
        return symbols

    def describe(self) -> dict[str, Any]:
        """Return a description for `source_from_description`, of types that JSON and TOML have."""
        return self._description | {
            "alphabet": self.alphabet.tobytes().decode(),
            "entropy_rate_bits": self.entropy_rate_bits,
        }

    def _start(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return (count, order) symbols from the stationary distribution."""
        context = np.searchsorted(self._cumulative_contexts, generator.random(count), side="right")
        powers = self.symbols ** np.arange(self.order)[::-1]
        symbols: np.ndarray = context[:, None] // powers % self.symbols
        return symbols

    def _context_numbers(self, contexts: np.ndarray) -> np.ndarray:
        numbers: np.ndarray = contexts @ (self.symbols ** np.arange(self.order)[::-1])
        return numbers


class IIDSource(MarkovSource):
    """Independent symbols of given probabilities: the chain of order 0."""

    def __init__(self, probabilities: Sequence[float], alphabet: str | None = None):
        table = np.asarray(probabilities, dtype=np.float64)
        if table.ndim != 1 or not np.all(table >= 0) or abs(table.sum() - 1) > 1e-9:
            raise ValueError(f"probabilities must be numbers from 0 that sum to 1, not {probabilities}")
        _check_symbols(len(table))
        self._description = {"kind": "iid", "probabilities": table.tolist()}
        self._set(table[None] / table.sum(), 0, alphabet)

    def sample(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Return n independent symbols, uint8."""
        return np.searchsorted(self._cumulative[0], generator.random(n), side="right").astype(np.uint8)

    def sample_documents(self, count: int, length: int, generator: np.random.Generator) -> np.ndarray:
        """Return (count, length) independent symbols, uint8."""
        return self.sample(count * length, generator).reshape(count, length)


def source_from_description(description: Mapping[str, Any]) -> MarkovSource:
    """Return the source that `MarkovSource.describe` described.

    Raises ValueError for an unknown kind or field, and if the entropy rate differs from the description.
    """
    arguments = dict(description)
    kind = arguments.pop("kind", None)
    expected = arguments.pop("entropy_rate_bits", None)
    kinds: dict[Any, Callable[..., MarkovSource]] = {"iid": IIDSource, "markov": MarkovSource}
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f'the kind of a synthetic source must be "iid" or "markov", not {kind!r}')
    if not isinstance(expected, int | float | None):
        raise ValueError(f"the entropy_rate_bits of a synthetic source is {expected!r}, but must be a number")
    try:
        source = kinds[kind](**arguments)
    except TypeError as error:
        raise ValueError(f"this does not describe a synthetic source: {error}") from error
    # The table is drawn again, and numpy does not promise the same draws in every version.
    if expected is not None and abs(source.entropy_rate_bits - expected) > 1e-9:
        raise ValueError(
            f"the description says {expected} bits per symbol, but this numpy ({np.__version__}) draws a source of "
            f"{source.entropy_rate_bits}: use the numpy version that made it"
        )
    return source


class SyntheticDocuments:
    """Reads a synthetic corpus: documents of equal length, drawn from other seeds in each split."""

    def __init__(self, source: MarkovSource, documents: Mapping[str, int], length: int):
        """`documents` is the number of documents in each split, `length` the number of symbols in each."""
        if length < 1 or not documents or min(documents.values()) < 1:
            raise ValueError(
                f"a synthetic corpus needs documents and a length of at least 1, not {documents} x {length}"
            )
        self._source, self._documents, self._length = source, dict(documents), length
        self.own_splits = tuple(documents)
        self.bytes_estimate = sum(documents.values()) * length
        self.mapped_bytes = 0

    def surely_many(self, documents: int) -> bool:
        return sum(self._documents.values()) >= documents

    @property
    def size(self) -> int:
        return self.bytes_estimate

    def parts(self, size: int | None = None) -> Iterator["SyntheticDocuments"]:
        yield self

    def identity(self) -> Any:
        return [self._source.describe(), self._documents, self._length]

    def chunks(self) -> Iterator[Chunk]:
        together = max(min(GROUP_DOCUMENTS, GROUP_SYMBOLS // self._length), 1)
        for number, (split, documents) in enumerate(self._documents.items()):
            for group, first in enumerate(range(0, documents, together)):
                generator = np.random.default_rng([number, group])
                symbols = self._source.sample_documents(together, self._length, generator)
                count = min(together, documents - first)
                offsets = np.arange(count + 1, dtype=np.int64) * self._length
                text = self._source.to_text(symbols[:count])
                buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
                array = pa.Array.from_buffers(pa.large_binary(), count, buffers)
                rows = range(first + 1, first + 1 + count)
                yield Chunk(documents=array, origin="the synthetic source", split=split, rows=rows)


def _check_symbols(symbols: int) -> None:
    if not 2 <= symbols <= len(ALPHABET):
        raise ValueError(f"a source must have 2 to {len(ALPHABET)} symbols, not {symbols}")


def _alphabet(alphabet: str | None, symbols: int) -> np.ndarray:
    alphabet = ALPHABET[:symbols] if alphabet is None else alphabet
    if len(alphabet) != symbols or len(set(alphabet)) != symbols or not alphabet.isascii():
        raise ValueError(
            f"an alphabet for {symbols} symbols must be {symbols} different ASCII characters, not {alphabet!r}"
        )
    return np.frombuffer(alphabet.encode(), dtype=np.uint8)


def _row_entropies(table: np.ndarray) -> np.ndarray:
    """Return the entropy in bits of each row of (N, symbols); 0 log 0 is 0."""
    logarithms = np.log2(table, where=table > 0, out=np.zeros_like(table))
    entropies: np.ndarray = -(table * logarithms).sum(axis=1)
    return entropies


def _cumulative(table: np.ndarray) -> np.ndarray:
    """Return cumulative sums of rows that end in exactly 1, so that a draw below 1 never passes the last entry."""
    cumulative = np.cumsum(table, axis=1)
    # Rounding must not leave a gap between the sum and 1 for an impossible last symbol to be drawn from.
    cumulative[cumulative >= cumulative[:, -1:]] = 1.0
    return cumulative


def _transition(table: np.ndarray, order: int) -> np.ndarray:
    """Return the transition matrix P (contexts, contexts) of a chain of order at least 1.

    From context c = (s_1 ... s_k) the chain moves to (s_2 ... s_k, s) with probability p(s | c).
    """
    contexts, symbols = table.shape
    transition = np.zeros((contexts, contexts))
    here = np.arange(contexts)[:, None]
    transition[here, (here * symbols + np.arange(symbols)) % contexts] = table
    return transition


def _stationary(table: np.ndarray, order: int) -> np.ndarray:
    """Return the stationary distribution over contexts: solve pi P = pi, one equation replaced by sum(pi) = 1."""
    contexts = len(table)
    if order == 0:
        return np.ones(1)
    transition = _transition(table, order)
    equations = transition.T - np.eye(contexts)
    equations[-1] = 1.0
    right = np.zeros(contexts)
    right[-1] = 1.0
    stationary: np.ndarray = np.maximum(np.linalg.solve(equations, right), 0.0)
    stationary /= stationary.sum()
    assert np.allclose(stationary @ transition, stationary, atol=1e-10), "the chain has no unique stationary state"
    return stationary
