"""Introspection of a model for a report: attention maps, circuits of heads, and the geometry of the embedding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.introspection.attention_maps import attention_maps, head_scores
from lm.introspection.circuits import (
    copying_scores,
    decompose_logits,
    has_circuits,
    has_paths,
    token_ov_circuit,
    token_qk_circuit,
)
from lm.introspection.geometry import nearest_tokens, principal_components
from lm.model import LanguageModel
from pipelines.recipes.recipe import CORRUPTIONS
from pipelines.reporting.excerpts import Excerpts
from pipelines.reporting.token_labels import TokenLabels
from pipelines.run.folder import Run
from tokenizer import CLS, SEP

EXCERPT_TOKENS = 20
COUNTED_TOKENS = 2**20  # of the validation split, to find frequent words
SCORE_TOKENS = 32  # length of the random sequence that is repeated
WORDS = 12  # rows of a table
LABELLED = 40  # words with a label in the plot of the embedding
NEIGHBOURS = 6
EFFECTS = 4  # tokens for each word in the table of circuits


@dataclass(frozen=True)
class Attention:
    """Attention `weights` (L, H, T, S) from the tokens labelled `queries` (T) to the tokens labelled `keys` (S)."""

    title: str
    text: str
    """The text of the queries"""
    queries: list[str]
    keys: list[str]
    weights: np.ndarray


@dataclass(frozen=True)
class Embedding:
    """N tokens along the first two principal components of the embedding."""

    coordinates: np.ndarray
    """(N, 2)"""
    shares: np.ndarray
    """(2,): the components' shares of the variance"""
    kinds: np.ndarray
    """(N,): indices into KINDS"""
    labels: dict[int, str]
    """Labels of some tokens, by their row"""
    neighbours: list[tuple[str, list[tuple[str, float]]]]
    """(label, [(label of a near token, cosine), ...]) for some words"""


class WordCircuits(NamedTuple):
    """The effects of one head on a word.

    `attended` are the tokens that the word attends to most at the position before it. `raised` are the tokens whose
    logits rise most if the head attends to the word.
    """

    word: str
    attended: list[str]
    raised: list[str]


@dataclass(frozen=True)
class Circuits:
    """The circuits of one head between N words, from row to column."""

    layer: int
    head: int
    words: list[WordCircuits]
    qk: np.ndarray
    """(N, N): QK circuit one position back, minus the row's mean over all tokens"""
    ov: np.ndarray
    """(N, N): OV circuit"""


@dataclass(frozen=True)
class Paths:
    """The logit of the next token over the mean logit, split into the paths of a one-layer model."""

    names: list[str]
    """(P) paths"""
    tokens: list[str]
    """(T) tokens"""
    following: list[str]
    """(T) next tokens"""
    terms: np.ndarray
    """(P, T)"""


@dataclass(frozen=True)
class Inside:
    """The inside of one model. Not every architecture has every part."""

    embedding: Embedding
    attention: Sequence[Attention] = ()
    """Empty for models with a mixer other than attention, and for those that read a single token"""
    scores: dict[str, np.ndarray] | None = None
    """(L, H) by the name of the score; None for encoder-decoders"""
    circuits: Circuits | None = None
    """None except for pre-norm and post-norm decoders without qk_norm"""
    paths: Paths | None = None
    """None except for one-layer attention-only decoders"""


def look_inside(run: Run, model: LanguageModel, seed: int = 0) -> Inside:
    """Return the inside of a run's model.

    The attention maps show an excerpt of the validation split, or random tokens if there is no dataset.
    """
    excerpts = Excerpts(run)
    tok, stream = excerpts.tokenizer, excerpts.stream
    labels = TokenLabels(tok)
    counted = np.empty(0, np.int64) if stream is None else stream.read(0, COUNTED_TOKENS)
    words = labels.words(np.bincount(counted, minlength=tok.vocab_size), LABELLED)
    embedding = _embedding(model, labels, words)
    if model.config.context_length < 2 or not model.config.attention_only:
        return Inside(embedding)
    ordinary = np.array(labels.ids)[~np.array(labels.special)]
    if model.config.architecture == "encoder-decoder":
        source, target = _pair(excerpts, model, run.recipe.objective, ordinary, seed)
        return Inside(embedding, _maps(model, labels, target, source))
    ids = _excerpt(excerpts, model, ordinary, seed)
    attention, scores = _maps(model, labels, ids), _scores(model, ordinary, seed)
    circuits = None
    if "copying" in scores and not model.config.qk_norm:
        circuits = _circuits(model, labels, words[:WORDS], scores["copying"])
    return Inside(embedding, attention, scores, circuits, _paths(model, labels, ids) if has_paths(model) else None)


def _embedding(model: LanguageModel, labels: TokenLabels, labelled: list[int]) -> Embedding:
    rows = model.embedding.weight[labels.ids]
    found = principal_components(rows)
    words = labelled[:WORDS]
    near = nearest_tokens(rows, torch.tensor(words, dtype=torch.int64), min(NEIGHBOURS, len(rows) - 1))
    neighbours = [
        list(zip(labels.at(places), cosines, strict=True))
        for places, cosines in zip(near.ids.tolist(), near.cosines.tolist(), strict=True)
    ]
    return Embedding(
        found.coordinates.cpu().numpy(),
        found.shares.cpu().numpy(),
        np.array(labels.kinds()),
        dict(zip(labelled, labels.at(labelled), strict=True)),
        list(zip(labels.at(words), neighbours, strict=True)),
    )


def _excerpt(excerpts: Excerpts, model: LanguageModel, ordinary: np.ndarray, seed: int) -> np.ndarray:
    """Return ids (T,) as the model reads them: with the special tokens of an encoder, if its tokenizer has them."""
    special = excerpts.text_ids.special
    encoder = model.config.architecture == "encoder"
    ids = _text(excerpts, min(EXCERPT_TOKENS, model.config.context_length) - 2 * encoder, ordinary, seed)
    return np.concatenate(([special[CLS]], ids, [special[SEP]])) if encoder and {CLS, SEP} <= special.keys() else ids


def _text(excerpts: Excerpts, length: int, ordinary: np.ndarray, seed: int) -> np.ndarray:
    """Return ids of the validation split; without one, random ids among `ordinary`."""
    ids = excerpts.text(max(1, length), seed)
    return ids if len(ids) else np.random.default_rng(seed).choice(ordinary, max(1, length))


def _pair(
    excerpts: Excerpts, model: LanguageModel, objective: str, ordinary: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs of the encoder (S,) and of the decoder (T,).

    They come from a pair of the validation split, or from a corrupted text. Without a dataset, they are random tokens.
    """
    ids, most = excerpts.text_ids, min(EXCERPT_TOKENS, model.config.context_length)
    if objective in CORRUPTIONS and excerpts.stream is not None:
        return excerpts.corrupt(_text(excerpts, max(2, most - 1), ordinary, seed), seed)[:2]
    if excerpts.pairs is None:
        source = target = np.random.default_rng(seed).choice(ordinary, most)
    else:
        row = int(np.random.default_rng(seed).integers(len(excerpts.pairs)))
        source, target = excerpts.pairs.sources[row], excerpts.pairs.targets[row]
    room = max(1, most - len(ids.before) - len(ids.after))
    start = () if ids.start is None else (ids.start,)
    return np.array([*ids.before, *source[:room], *ids.after]), np.array([*start, *target[: most - 1]])


def _maps(
    model: LanguageModel, labels: TokenLabels, ids: np.ndarray, source: np.ndarray | None = None
) -> list[Attention]:
    device = model.embedding.weight.device

    def between(title: str, queries: np.ndarray, keys: np.ndarray, maps: Tensor) -> Attention:
        weights = maps[:, 0].float().cpu().numpy()
        return Attention(title, labels.text(queries), labels.of_ids(queries), labels.of_ids(keys), weights)

    read = torch.from_numpy(ids)[None].to(device)
    if source is None:
        return [between("Attention", ids, ids, attention_maps(model, read).own)]
    maps = attention_maps(model, read, torch.from_numpy(source)[None].to(device))
    assert maps.encoder is not None and maps.cross is not None, "an encoder-decoder has three kinds of attention maps"
    return [
        between("Attention of the encoder", source, source, maps.encoder),
        between("Attention of the decoder", ids, ids, maps.own),
        between("Attention from the decoder to the encoder", ids, source, maps.cross),
    ]


def _scores(model: LanguageModel, ordinary: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    length = min(SCORE_TOKENS, model.config.context_length // 2)
    found = head_scores(model, torch.Generator().manual_seed(seed), length=length, ids=torch.from_numpy(ordinary))
    scores = {"previous token": found.previous, "duplicate token": found.duplicate, "induction": found.induction}
    if model.config.architecture == "decoder" and has_circuits(model):
        scores["copying"] = copying_scores(model)
    return {name: score.cpu().numpy() for name, score in scores.items()}


def _circuits(model: LanguageModel, labels: TokenLabels, words: list[int], copying: np.ndarray) -> Circuits:
    """Return the circuits of the head that copies most."""
    layer, head = (int(index) for index in np.unravel_index(np.argmax(copying), copying.shape))
    everything = torch.tensor(labels.ids, device=model.embedding.weight.device)
    attended = token_qk_circuit(model, layer, head, everything[words], everything, distance=1)
    if model.config.norm_position == "pre":  # keys are read through a norm, which divides by about this
        rows = model.embedding.weight[everything].double()
        attended = attended / (rows.square().mean(dim=-1) + model.config.norm_eps).sqrt()
    attended = attended - attended.mean(dim=-1, keepdim=True)  # softmax ignores a constant shared by all keys
    raised = token_ov_circuit(model, layer, head, everything[words], everything)

    def largest(values: Tensor) -> list[list[str]]:
        return [labels.at(row) for row in values.topk(min(EFFECTS, len(everything)), dim=-1).indices.tolist()]

    effects = zip(labels.at(words), largest(attended), largest(raised), strict=True)
    between = (circuit[:, words].numpy(force=True) for circuit in (attended, raised))
    return Circuits(layer, head, [WordCircuits(*effect) for effect in effects], *between)


def _paths(model: LanguageModel, labels: TokenLabels, ids: np.ndarray) -> Paths:
    """Return the paths at all positions of an excerpt (T,) except the last."""
    read = torch.from_numpy(ids)[None].to(model.embedding.weight.device)
    found = decompose_logits(model, read)
    parts = torch.cat([found.direct, found.heads[:, 0], found.constant])[:, :-1]  # (P, T - 1, V)
    following = read[:, 1:, None].expand(len(parts), -1, -1)
    terms = parts.gather(-1, following)[..., 0] - parts[..., labels.ids].mean(dim=-1)
    tokens = labels.of_ids(ids)
    names = ["direct", *(f"head {head}" for head in range(len(found.heads)))]
    if found.constant.any():
        names.append("biases")
    return Paths(names, tokens[:-1], tokens[1:], terms[: len(names)].numpy(force=True))
