"""A passage of held-out text, with the bits of each token."""

from codecs import getincrementaldecoder
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from lm.metrics.units import NATS_PER_BIT
from lm.model import LanguageModel
from pipelines.evaluation.planning import dataset_of, objective_of, windows_of
from pipelines.evaluation.windows import Windows, windows_over
from pipelines.run.folder import Run
from pipelines.training.batch_loss import target_nats
from tokenizer import END_OF_TEXT, PAD, Tokenizer

SPLIT = "validation"
MOST_TOKENS = 256
LEVELS = (1.0, 2.0, 4.0, 8.0, 12.0)  # bits; the shade of a token is the number of levels that it reaches


class Piece(NamedTuple):
    """A piece of text, and the bits and the number of its scored tokens; None and 0 if the model predicted none."""

    text: str
    bits: float | None
    tokens: int

    @property
    def level(self) -> int:
        """The shade of the piece, 0 to len(LEVELS)."""
        return sum((self.bits or 0.0) / max(1, self.tokens) >= level for level in LEVELS)


@dataclass(frozen=True)
class Passage:
    """A text in pieces; `given` is the source that an encoder-decoder reads."""

    split: str
    given: str
    pieces: list[Piece]

    @property
    def mean_bits(self) -> float:
        """Mean bits of the scored tokens."""
        scored = [(piece.bits, piece.tokens) for piece in self.pieces if piece.bits is not None]
        return sum(bits for bits, _ in scored) / max(1, sum(tokens for _, tokens in scored))


def passage_of(run: Run, model: LanguageModel) -> Passage | None:
    """Return the start of the validation split of the run's dataset, scored as `bytelm evaluate` does.

    None if the dataset is gone, does not fit the run, or has no such split.
    """
    tok = run.tokenizer()
    try:
        dataset = dataset_of(run, None)
        settings = windows_of(run, dataset, None, 1)
        windows, _ = windows_over(dataset.split(SPLIT), objective_of(run, settings.window, tok), settings)
    except ValueError:
        return None
    first = next(windows, None)
    if first is None or not first.scored[0, :MOST_TOKENS].any():
        return None
    batch, scored = first.batch, first.scored[:1, :MOST_TOKENS]
    bits = _bits(model, first)
    # Leave out the padding after the last target.
    end = len(bits) if batch.source is None else 1 + int(np.flatnonzero(scored[0]).max())
    source = [] if batch.source is None else batch.source[0].tolist()
    edges = {tok.special_tokens.get(name) for name in (PAD, END_OF_TEXT)}
    given = tok.decode([token for token in source if token not in edges])
    return Passage(SPLIT, given, _pieces(tok, batch.targets[0, :end].tolist(), bits[:end]))


@torch.no_grad()
def _bits(model: LanguageModel, windows: Windows) -> list[float | None]:
    """Return the bits of the first MOST_TOKENS targets of the first window; None for positions that are not scored."""
    scored = np.zeros_like(windows.scored)
    scored[0, :MOST_TOKENS] = windows.scored[0, :MOST_TOKENS]
    nats = target_nats(model, windows.batch, scored).tolist()
    bits: list[float | None] = [None] * min(MOST_TOKENS, scored.shape[1])
    for place, value in zip(np.flatnonzero(scored[0]).tolist(), nats, strict=True):
        bits[place] = value / NATS_PER_BIT
    return bits


def _pieces(tok: Tokenizer, ids: list[int], bits: list[float | None]) -> list[Piece]:
    """Return tokens as pieces of text. A token that ends inside a character is one piece with the next token.

    Tokens after the last whole character are left out.
    """
    special = {token: name for name, token in tok.special_tokens.items()}
    decoder = getincrementaldecoder("utf-8")("replace")
    pieces: list[Piece] = []
    text, total, count = "", 0.0, 0
    for token, value in zip(ids, bits, strict=True):
        text += decoder.decode(special[token].encode() if token in special else tok.added_bytes(token))
        if value is not None:
            total, count = total + value, count + 1
        unfinished, _ = decoder.getstate()
        if not unfinished:
            pieces.append(Piece(text, total if count else None, count))
            text, total, count = "", 0.0, 0
    return pieces
