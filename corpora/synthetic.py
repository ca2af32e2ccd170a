"""Synthetic text whose entropy rate is known in closed form: i.i.d. symbols and Markov chains.

A symbol is a number from 0, and in text one ASCII character. For a source with stationary distribution pi over
contexts c of k symbols and conditional distributions p(. | c), the entropy rate is

    H = - sum_c pi(c) sum_s p(s | c) log2 p(s | c)      bits per symbol

(Cover & Thomas, Elements of Information Theory, 2nd edition, theorem 4.2.4). No model that predicts each symbol from
those before it has a lower expected cross-entropy.
"""

import string
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from corpora.documents import Chunk

ALPHABET = string.ascii_lowercase + string.ascii_uppercase + string.digits
MAX_CONTEXTS = 4096

# Documents drawn together: their symbols come from one vectorised loop and one generator, so these numbers are
# part of what a synthetic corpus is.
GROUP_DOCUMENTS = 256
GROUP_SYMBOLS = 1 << 22

# So few sequences are drawn faster one by one than side by side.
_FEW_SEQUENCES = 32


class MarkovSource:
    """A stationary Markov chain of order k, given by its conditional distributions.

    Attributes:
        order: k, the number of symbols that the next one depends on
        symbols: how many different symbols there are
        alphabet: bytes, the character of each symbol in text
        table: float64 (symbols ** order, symbols), the conditional distribution after each context; a context is the
            number whose digits in base `symbols` are its symbols, the most recent one last
    """

    def __init__(
        self,
        order: int,
        symbols: int,
        seed: int = 0,
        concentration: float = 0.2,
        alphabet: str | None = None,
    ):
        """Draws each context's distribution from a symmetric Dirichlet of that concentration."""
        _check_symbols(symbols)
        if order < 0 or symbols**order > MAX_CONTEXTS:
            raise ValueError(
                f"a chain of order {order} over {symbols} symbols has {symbols}**{order} contexts: "
                f"choose an order from 0 so that there are at most {MAX_CONTEXTS}"
            )
        if not concentration > 0:
            raise ValueError(f"the concentration of a Dirichlet distribution is above 0, not {concentration}")
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
        """The distribution of the next symbol: contexts (N, k) of symbol numbers -> (N, symbols) float64.

        Contexts may be longer than the order; their last symbols count.
        """
        contexts = np.asarray(contexts)
        if contexts.ndim != 2 or contexts.shape[1] < self.order:
            raise ValueError(f"contexts should be (N, {self.order}) symbol numbers, not of shape {contexts.shape}")
        last = contexts[:, contexts.shape[1] - self.order :].astype(np.int64)
        if last.size and (last.min() < 0 or last.max() >= self.symbols):
            raise ValueError(f"symbol numbers are from 0 to {self.symbols - 1}; the contexts hold others")
        return self.table[self._context_numbers(last)]

    def sample(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """One sequence of n symbols, uint8, that begins in the stationary distribution."""
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
        """`count` independent sequences, (count, length) uint8; each begins in the stationary distribution."""
        if count < _FEW_SEQUENCES:
            return np.stack([self.sample(length, generator) for _ in range(count)])
        out = np.empty((length, count), dtype=np.uint8)
        start = self._start(count, generator)
        out[: self.order] = start.T[:length]
        context = self._context_numbers(start)
        for t in range(self.order, length):
            # The number of cumulated probabilities at or below a uniform draw is a draw of the symbol.
            draw = generator.random(count)
            symbol = (self._cumulative[context] <= draw[:, None]).sum(axis=1)
            out[t] = symbol
            context = (context * self.symbols + symbol) % len(self.stationary)
        return np.ascontiguousarray(out.T)

    def to_text(self, symbols: np.ndarray) -> bytes:
        """The text of a sequence of symbol numbers, one byte each."""
        return self.alphabet[symbols].tobytes()

    def from_text(self, text: bytes) -> np.ndarray:
        """The symbol numbers, uint8, of a text. Raises ValueError for a byte that is no symbol."""
        numbers = np.full(256, 255, dtype=np.uint8)
        numbers[self.alphabet] = np.arange(self.symbols)
        symbols = numbers[np.frombuffer(text, dtype=np.uint8)]
        if np.any(symbols == 255):
            raise ValueError(f"the text holds other bytes than the source's {self.symbols} symbols")
        return symbols

    def describe(self) -> dict[str, Any]:
        """What `source_from_description` makes the same source from; JSON and TOML can hold it."""
        return self._description | {
            "alphabet": self.alphabet.tobytes().decode(),
            "entropy_rate_bits": self.entropy_rate_bits,
        }

    def _start(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """(count, order) symbols from the stationary distribution."""
        context = np.searchsorted(self._cumulative_contexts, generator.random(count), side="right")
        powers = self.symbols ** np.arange(self.order)[::-1]
        return context[:, None] // powers % self.symbols

    def _context_numbers(self, contexts: np.ndarray) -> np.ndarray:
        return contexts @ (self.symbols ** np.arange(self.order)[::-1])


class IIDSource(MarkovSource):
    """Independent symbols of given probabilities: the chain of order 0."""

    def __init__(self, probabilities: Sequence[float], alphabet: str | None = None):
        table = np.asarray(probabilities, dtype=np.float64)
        if table.ndim != 1 or not np.all(table >= 0) or abs(table.sum() - 1) > 1e-9:
            raise ValueError(f"probabilities are numbers from 0 that sum to 1, not {probabilities}")
        _check_symbols(len(table))
        self._description = {"kind": "iid", "probabilities": table.tolist()}
        self._set(table[None] / table.sum(), 0, alphabet)

    def sample(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """n independent symbols, uint8."""
        return np.searchsorted(self._cumulative[0], generator.random(n), side="right").astype(np.uint8)

    def sample_documents(self, count: int, length: int, generator: np.random.Generator) -> np.ndarray:
        """(count, length) independent symbols, uint8."""
        return self.sample(count * length, generator).reshape(count, length)


def source_from_description(description: Mapping[str, Any]) -> MarkovSource:
    """The source that `describe` described.

    Raises ValueError for an unknown kind or field, and where the entropy rate is not the described one.
    """
    arguments = dict(description)
    kind = arguments.pop("kind", None)
    expected = arguments.pop("entropy_rate_bits", None)
    kinds = {"iid": IIDSource, "markov": MarkovSource}
    if kind not in kinds:
        raise ValueError(f'the kind of a synthetic source is "iid" or "markov", not {kind!r}')
    try:
        source = kinds[kind](**arguments)
    except TypeError as error:
        raise ValueError(f"this does not describe a synthetic source: {error}") from error
    # The table is drawn anew, and numpy does not promise the same draws in every version.
    if expected is not None and abs(source.entropy_rate_bits - expected) > 1e-9:
        raise ValueError(
            f"the source described has {expected} bits per symbol, but this numpy ({np.__version__}) draws one "
            f"of {source.entropy_rate_bits}: use the numpy version that made it"
        )
    return source


class SyntheticDocuments:
    """The reader of a synthetic corpus: splits of equally long documents, each split from its own seeds."""

    def __init__(self, source: MarkovSource, documents: Mapping[str, int], length: int):
        """`documents` is the number of documents in each split, `length` the number of symbols in each."""
        if length < 1 or not documents or min(documents.values()) < 1:
            raise ValueError(f"a synthetic corpus has documents and a length of at least 1, not {documents} x {length}")
        self._source, self._documents, self._length = source, dict(documents), length
        self.own_splits = tuple(documents)
        self.bytes_estimate = sum(documents.values()) * length
        self.mapped_bytes = 0

    def surely_many(self, documents: int) -> bool:
        return sum(self._documents.values()) >= documents

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
                yield Chunk(documents=array, origin="the synthetic source", split=split, first_row=first + 1)


def _check_symbols(symbols: int) -> None:
    if not 2 <= symbols <= len(ALPHABET):
        raise ValueError(f"a source has 2 to {len(ALPHABET)} symbols, not {symbols}")


def _alphabet(alphabet: str | None, symbols: int) -> np.ndarray:
    alphabet = ALPHABET[:symbols] if alphabet is None else alphabet
    if len(alphabet) != symbols or len(set(alphabet)) != symbols or not alphabet.isascii():
        raise ValueError(f"an alphabet for {symbols} symbols is as many different ASCII characters, not {alphabet!r}")
    return np.frombuffer(alphabet.encode(), dtype=np.uint8)


def _row_entropies(table: np.ndarray) -> np.ndarray:
    """Entropy in bits of each row of (N, symbols); 0 log 0 is 0."""
    logarithms = np.log2(table, where=table > 0, out=np.zeros_like(table))
    return -(table * logarithms).sum(axis=1)


def _cumulative(table: np.ndarray) -> np.ndarray:
    """Cumulated rows, without the last column's rounding error: a draw below 1 never passes the last entry."""
    cumulative = np.cumsum(table, axis=1)
    # An impossible symbol at the end of a row must not catch what rounding leaves between the sum and 1.
    cumulative[cumulative >= cumulative[:, -1:]] = 1.0
    return cumulative


def _stationary(table: np.ndarray, order: int) -> np.ndarray:
    """The stationary distribution over contexts: pi P = pi, with one of these equations replaced by sum(pi) = 1.

    From context c = (s_1 ... s_k) the chain moves to (s_2 ... s_k, s) with probability p(s | c).
    """
    contexts, symbols = table.shape
    if order == 0:
        return np.ones(1)
    transition = np.zeros((contexts, contexts))
    here = np.arange(contexts)[:, None]
    transition[here, (here * symbols + np.arange(symbols)) % contexts] = table
    equations = transition.T - np.eye(contexts)
    equations[-1] = 1.0
    right = np.zeros(contexts)
    right[-1] = 1.0
    stationary = np.maximum(np.linalg.solve(equations, right), 0.0)
    stationary /= stationary.sum()
    assert np.allclose(stationary @ transition, stationary, atol=1e-10), "the chain has no unique stationary state"
    return stationary
