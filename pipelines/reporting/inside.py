"""What a report shows of the inside of a model: attention, circuits of heads, and the geometry of the embedding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.analysis.attention_maps import attention_maps, head_scores
from lm.analysis.circuits import copying_scores, decompose_logits, has_paths, token_ov_circuit, token_qk_circuit
from lm.analysis.geometry import nearest_tokens, principal_components
from lm.model import LanguageModel
from pipelines.dataset.reader import TokenStream
from pipelines.reporting.samples import corrupted, validation_excerpt, validation_pairs, validation_stream
from pipelines.reporting.token_labels import Vocabulary
from pipelines.run.folder import Run
from pipelines.run.text_ids import TextIds, text_ids
from tokenizer import CLS, SEP, Tokenizer

EXCERPT_TOKENS = 20
COUNTED_TOKENS = 2**20  # of the validation split, to find frequent words
SCORE_TOKENS = 32  # of a random sequence, which is then repeated
WORDS = 12  # that tables have a row for
LABELLED = 40  # tokens with a label in the picture of the embedding
NEIGHBOURS = 6
EFFECTS = 4  # tokens named for each word in the table of circuits


@dataclass(frozen=True)
class Attention:
    """`weights` (L, H, T, S) from tokens with the labels `queries` (T) to those with the labels `keys` (S)."""

    title: str
    queries: list[str]
    keys: list[str]
    weights: np.ndarray


@dataclass(frozen=True)
class Embedding:
    """`coordinates` (N, 2) of the tokens along two principal components, which explain `shares` (2,) of the variance;
    their `kinds` (N), as indices into KINDS; `labels` of some; and `neighbours`: (token, [(token, cosine), ...])."""

    coordinates: np.ndarray
    shares: np.ndarray
    kinds: np.ndarray
    labels: dict[int, str]
    neighbours: list[tuple[str, list[tuple[str, float]]]]


class WordCircuits(NamedTuple):
    """One word in a head: the tokens that it attends to most one position back, and those whose logits it raises most
    where it is attended to."""

    word: str
    attended: list[str]
    raised: list[str]


@dataclass(frozen=True)
class Circuits:
    """What one head does with words: `words` (N), and between them, from row to column, the QK circuit `qk` (N, N) one
    position back, less what a row gives to the mean of all tokens, and the OV circuit `ov` (N, N)."""

    layer: int
    head: int
    words: list[WordCircuits]
    qk: np.ndarray
    ov: np.ndarray


@dataclass(frozen=True)
class Paths:
    """How far each path of a one-layer model raises the logit of the token that comes next over the mean logit:
    `terms` (P, T) of the paths with those `names` (P), at each of `tokens` (T), which `following` (T) come after."""

    names: list[str]
    tokens: list[str]
    following: list[str]
    terms: np.ndarray


@dataclass(frozen=True)
class Inside:
    """All of it; `attention` is of models that read two tokens or more, `scores` (L, H) of every head by name are of
    decoders and encoders, circuits of decoders without qk_norm, paths of one-layer attention-only decoders."""

    embedding: Embedding
    attention: Sequence[Attention] = ()
    scores: dict[str, np.ndarray] | None = None
    circuits: Circuits | None = None
    paths: Paths | None = None


def look_inside(run: Run, model: LanguageModel, seed: int = 0) -> Inside:
    """The inside of a run's model. The excerpt is from the validation split; without one it is random tokens."""
    tok = run.tokenizer()
    around, stream = text_ids(run, tok), validation_stream(run, tok)
    seen = np.empty(0, np.int64) if stream is None else stream.read(0, COUNTED_TOKENS)
    vocabulary = Vocabulary(tok)
    words = vocabulary.words(np.bincount(seen, minlength=tok.vocab_size), LABELLED)
    embedding = _embedding(model, vocabulary, words)
    if model.config.context_length < 2:
        return Inside(embedding)
    special = np.array(vocabulary.special)
    ordinary = np.array(vocabulary.ids)[~special]
    if model.config.architecture == "encoder-decoder":
        source, ids = _pair(run, stream, model, tok, around, ordinary, seed)
        return Inside(embedding, _maps(model, vocabulary, ids, source))
    ids = _excerpt(stream, model, tok, around, ordinary, seed)
    attention, scores = _maps(model, vocabulary, ids), _scores(model, ordinary, seed)
    circuits = None
    if model.config.architecture == "decoder" and not model.config.qk_norm:
        circuits = _circuits(model, vocabulary, words[:WORDS], scores["copying"])
    return Inside(embedding, attention, scores, circuits, _paths(model, vocabulary, ids) if has_paths(model) else None)


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
    stream: TokenStream | None, model: LanguageModel, tok: Tokenizer, around: TextIds, ordinary: np.ndarray, seed: int
) -> np.ndarray:
    """Ids (T,) as the model reads them: of an encoder between its two special tokens, if its tokenizer has them."""
    encoder = model.config.architecture == "encoder"
    ids = _text(stream, tok, min(EXCERPT_TOKENS, model.config.context_length) - 2 * encoder, ordinary, seed)
    special = around.special
    edged = encoder and CLS in special and SEP in special
    return np.concatenate(([special[CLS]], ids, [special[SEP]])) if edged else ids


def _text(stream: TokenStream | None, tok: Tokenizer, length: int, ordinary: np.ndarray, seed: int) -> np.ndarray:
    """Ids of the stream, or random ones."""
    ids = validation_excerpt(stream, tok, max(1, length), seed)
    return ids if len(ids) else np.random.default_rng(seed).choice(ordinary, max(1, length))


def _pair(
    run: Run,
    stream: TokenStream | None,
    model: LanguageModel,
    tok: Tokenizer,
    around: TextIds,
    ordinary: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """What the encoder and the decoder of a model read, (S,) and (T,): of a pair of the validation split, or of a text
    with spans taken out; without a dataset random tokens."""
    most = min(EXCERPT_TOKENS, model.config.context_length)
    if run.recipe.objective == "span-corruption" and stream is not None:
        return corrupted(_text(stream, tok, max(2, most - 1), ordinary, seed), around, seed)[:2]
    source = target = _text(None, tok, most, ordinary, seed)
    if pairs := validation_pairs(run, tok):
        row = int(np.random.default_rng(seed).integers(len(pairs)))
        source, target = pairs.sources[row], pairs.targets[row]
    room = max(1, most - len(around.before) - len(around.after))
    start = () if around.start is None else (around.start,)
    return np.array([*around.before, *source[:room], *around.after]), np.array([*start, *target[: most - 1]])


def _maps(
    model: LanguageModel, vocabulary: Vocabulary, ids: np.ndarray, source: np.ndarray | None = None
) -> list[Attention]:
    device = model.embedding.weight.device
    labels = vocabulary.labels_of

    def weights(maps: Tensor) -> np.ndarray:
        return maps[:, 0].float().cpu().numpy()

    read = torch.from_numpy(ids)[None].to(device)
    if source is None:
        return [Attention("Attention", labels(ids), labels(ids), weights(attention_maps(model, read).own))]
    maps = attention_maps(model, read, torch.from_numpy(source)[None].to(device))
    return [
        Attention("Attention of the encoder", labels(source), labels(source), weights(maps.encoder)),
        Attention("Attention of the decoder", labels(ids), labels(ids), weights(maps.own)),
        Attention("Attention from the decoder to the encoder", labels(ids), labels(source), weights(maps.cross)),
    ]


def _scores(model: LanguageModel, ordinary: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    length = min(SCORE_TOKENS, model.config.context_length // 2)
    found = head_scores(model, torch.Generator().manual_seed(seed), length=length, ids=torch.from_numpy(ordinary))
    scores = {"previous token": found.previous, "duplicate token": found.duplicate, "induction": found.induction}
    if model.config.architecture == "decoder":
        scores["copying"] = copying_scores(model)
    return {name: score.cpu().numpy() for name, score in scores.items()}


def _circuits(model: LanguageModel, vocabulary: Vocabulary, words: list[int], copying: np.ndarray) -> Circuits:
    """Of the head that copies most."""
    layer, head = (int(index) for index in np.unravel_index(np.argmax(copying), copying.shape))
    everything = torch.tensor(vocabulary.ids, device=model.embedding.weight.device)
    attended = token_qk_circuit(model, layer, head, everything[words], everything, distance=1)
    if model.config.norm_position == "pre":  # then keys are read through a norm, which divides by about this
        rows = model.embedding.weight[everything].double()
        attended = attended / (rows.square().mean(dim=-1) + model.config.norm_eps).sqrt()
    attended = attended - attended.mean(dim=-1, keepdim=True)  # what all keys share changes no softmax
    raised = token_ov_circuit(model, layer, head, everything[words], everything)

    def largest(values: Tensor) -> list[list[str]]:
        return [vocabulary.labels(row) for row in values.topk(min(EFFECTS, len(everything)), dim=-1).indices.tolist()]

    rows = zip(vocabulary.labels(words), largest(attended), largest(raised), strict=True)
    between = (circuit[:, words].numpy(force=True) for circuit in (attended, raised))
    return Circuits(layer, head, [WordCircuits(*row) for row in rows], *between)


def _paths(model: LanguageModel, vocabulary: Vocabulary, ids: np.ndarray) -> Paths:
    """Of an excerpt (T,): at all positions but the last."""
    read = torch.from_numpy(ids)[None].to(model.embedding.weight.device)
    found = decompose_logits(model, read)
    parts = torch.cat([found.direct, found.heads[:, 0], found.constant])[:, :-1]  # (P, T - 1, V)
    following = read[:, 1:, None].expand(len(parts), -1, -1)
    terms = parts.gather(-1, following)[..., 0] - parts[..., vocabulary.ids].mean(dim=-1)
    labels = vocabulary.labels_of(ids)
    names = ["direct", *(f"head {head}" for head in range(len(found.heads)))]
    if found.constant.any():
        names.append("biases")
    return Paths(names, labels[:-1], labels[1:], terms[: len(names)].numpy(force=True))
