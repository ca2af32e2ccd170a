"""What a report shows of the inside of a model: attention, circuits of heads, and the geometry of the embedding."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lm.attention_maps import attention_maps, head_scores
from lm.circuits import copying_scores, token_ov_circuit, token_qk_circuit
from lm.geometry import nearest_tokens, principal_components
from lm.model import LanguageModel
from pipelines.dataset import TokenStream
from pipelines.display import visible
from pipelines.samples import validation_excerpt, validation_stream
from pipelines.training.run import Run
from tokenizer import CLS, SEP, Tokenizer

EXCERPT_TOKENS = 20
COUNTED_TOKENS = 2**20  # of the validation split, to find frequent words
SCORE_TOKENS = 32  # of a random sequence, which is then repeated
WORDS = 12  # that tables have a row for
LABELLED = 40  # tokens with a label in the picture of the embedding
NEIGHBOURS = 6
EFFECTS = 4  # tokens named for each word in the table of circuits
KINDS = ("word, after a space", "letters", "digits", "punctuation", "white space", "part of a character", "special")


@dataclass(frozen=True)
class Attention:
    """`maps` (L, H, T, T) of an excerpt with the labels `tokens` (T), and `scores` (L, H) of every head by name."""

    tokens: list[str]
    maps: np.ndarray
    scores: dict[str, np.ndarray]


@dataclass(frozen=True)
class Embedding:
    """`coordinates` (N, 2) of the tokens along two principal components, which explain `shares` (2,) of the variance;
    their `kinds` (N), as indices into KINDS; `labels` of some; and `neighbours`: (token, [(token, cosine), ...])."""

    coordinates: np.ndarray
    shares: np.ndarray
    kinds: np.ndarray
    labels: dict[int, str]
    neighbours: list[tuple[str, list[tuple[str, float]]]]


@dataclass(frozen=True)
class Circuits:
    """What one head does with some tokens: (token, tokens that it attends to one position back, tokens whose logits
    attending to it raises)."""

    layer: int
    head: int
    rows: list[tuple[str, list[str], list[str]]]


@dataclass(frozen=True)
class Inside:
    """All of it; attention is that of decoders and encoders that read two tokens or more, circuits those of decoders
    without qk_norm."""

    embedding: Embedding
    attention: Attention | None = None
    circuits: Circuits | None = None


class Vocabulary:
    """The tokens that are used, each by its place among them: its id, and how it is shown. (Ids of a tokenizer can be
    unused, and a model's embedding can have more rows than there are tokens.)"""

    def __init__(self, tok: Tokenizer) -> None:
        special = {token: spelling.encode() for spelling, token in tok.special_tokens.items()}
        lengths = tok.token_byte_lengths.tolist()
        self.ids = [token for token in range(tok.vocab_size) if lengths[token] or token in special]
        self.pieces = [special.get(token) or tok.token_bytes(token) for token in self.ids]
        self.special = [token in special for token in self.ids]

    def labels(self, places: Iterable[int]) -> list[str]:
        """Tokens on one line, white space visible."""
        return [visible(self.pieces[place]) for place in places]

    def words(self, counts: np.ndarray) -> list[int]:
        """Whole words of at least three letters, by their `counts` (ids); where these say nothing, by the order of the
        merges, which is that of frequency too."""
        found = (
            place
            for place, piece in enumerate(self.pieces)
            if piece[:1] == b" " and len(piece) > 3 and piece[1:].isalpha()
        )
        return sorted(found, key=lambda place: -counts[self.ids[place]])[:LABELLED]

    def kinds(self) -> list[int]:
        """Which of KINDS each token is."""
        return [6 if special else _kind(piece) for piece, special in zip(self.pieces, self.special, strict=True)]


def _kind(piece: bytes) -> int:
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return 5
    bare = text.strip()
    if not bare:
        return 4
    if any(character.isdigit() for character in bare):
        return 2
    if any(character.isalpha() for character in bare):
        return 0 if text[0] == " " else 1
    return 3


def look_inside(run: Run, model: LanguageModel, seed: int = 0) -> Inside:
    """The inside of a run's model. The excerpt is from the validation split; without one it is random tokens."""
    tok = run.tokenizer()
    stream = validation_stream(run, tok)
    seen = np.empty(0, np.int64) if stream is None else stream.read(0, COUNTED_TOKENS)
    vocabulary = Vocabulary(tok)
    words = vocabulary.words(np.bincount(seen, minlength=tok.vocab_size))
    embedding = _embedding(model, vocabulary, words)
    if model.config.architecture == "encoder-decoder" or model.config.context_length < 2:
        return Inside(embedding)
    ordinary = [token for token, special in zip(vocabulary.ids, vocabulary.special, strict=True) if not special]
    attention = _attention(model, _excerpt(stream, model, tok, ordinary, seed), vocabulary, ordinary, seed)
    if model.config.architecture == "encoder" or model.config.qk_norm:
        return Inside(embedding, attention)
    return Inside(embedding, attention, _circuits(model, vocabulary, words[:WORDS], attention.scores["copying"]))


def _embedding(model: LanguageModel, vocabulary: Vocabulary, labelled: list[int]) -> Embedding:
    rows = model.embedding.weight[vocabulary.ids]
    found = principal_components(rows)
    words = labelled[:WORDS]
    near = nearest_tokens(rows, torch.tensor(words, dtype=torch.int64), min(NEIGHBOURS, len(rows) - 1))
    neighbours = [
        list(zip(vocabulary.labels(places), cosines, strict=True))
        for places, cosines in zip(near.ids.tolist(), near.cosines.tolist(), strict=True)
    ]
    return Embedding(
        found.coordinates.cpu().numpy(),
        found.shares.cpu().numpy(),
        np.array(vocabulary.kinds()),
        dict(zip(labelled, vocabulary.labels(labelled), strict=True)),
        list(zip(vocabulary.labels(words), neighbours, strict=True)),
    )


def _excerpt(
    stream: TokenStream | None, model: LanguageModel, tok: Tokenizer, ordinary: list[int], seed: int
) -> np.ndarray:
    """Ids (T,) as the model reads them: of an encoder between its two special tokens, if its tokenizer has them."""
    encoder = model.config.architecture == "encoder"
    length = max(1, min(EXCERPT_TOKENS, model.config.context_length) - 2 * encoder)
    ids = validation_excerpt(stream, tok, length, seed)
    if not len(ids):
        ids = np.random.default_rng(seed).choice(ordinary, length)
    special = tok.special_tokens
    edged = encoder and CLS in special and SEP in special
    return np.concatenate(([special[CLS]], ids, [special[SEP]])) if edged else ids


def _attention(
    model: LanguageModel, ids: np.ndarray, vocabulary: Vocabulary, ordinary: list[int], seed: int
) -> Attention:
    maps = attention_maps(model, torch.from_numpy(ids)[None].to(model.embedding.weight.device)).own[:, 0]
    length = min(SCORE_TOKENS, model.config.context_length // 2)
    found = head_scores(model, torch.Generator().manual_seed(seed), length=length, ids=torch.tensor(ordinary))
    scores = {"previous token": found.previous, "duplicate token": found.duplicate, "induction": found.induction}
    if model.config.architecture == "decoder":
        scores["copying"] = copying_scores(model)
    place = {token: place for place, token in enumerate(vocabulary.ids)}
    return Attention(
        vocabulary.labels(place[token] for token in ids.tolist()),
        maps.float().cpu().numpy(),
        {name: score.cpu().numpy() for name, score in scores.items()},
    )


def _circuits(model: LanguageModel, vocabulary: Vocabulary, words: list[int], copying: np.ndarray) -> Circuits:
    """Of the head that copies most."""
    layer, head = (int(index) for index in np.unravel_index(np.argmax(copying), copying.shape))
    everything = torch.tensor(vocabulary.ids, device=model.embedding.weight.device)
    attended = token_qk_circuit(model, layer, head, everything[words], everything, distance=1)
    attended = attended / model.embedding.weight[everything].double().norm(dim=-1)  # keys are read through a norm
    raised = token_ov_circuit(model, layer, head, everything[words], everything)

    def largest(values: Tensor) -> list[list[str]]:
        return [vocabulary.labels(row) for row in values.topk(min(EFFECTS, len(everything)), dim=-1).indices.tolist()]

    return Circuits(layer, head, list(zip(vocabulary.labels(words), largest(attended), largest(raised), strict=True)))
