"""The JSON objects that the browser page shows of a run. Surprisal and entropy are in bits.

The bytes that a token adds to the text are sent as `hex`, hexadecimal digits, because a token may hold parts of
characters. Numbers are rounded to the digits that the page shows.
"""

import math
from collections.abc import Iterable, Sized
from typing import Any

import numpy as np
import torch

from lm.introspection.attention_maps import attention_maps
from lm.metrics.units import NATS_PER_BIT
from pipelines.evaluation.windows import Windows
from pipelines.generation.prompts import source_ids
from pipelines.scoring.display import LEVELS
from pipelines.scoring.predictions import Predictions, predict
from pipelines.scoring.texts import TextScore, score_text, target_sequence, text_tokens
from pipelines.serving.inside import described_instruments
from pipelines.serving.models import ServedModel
from pipelines.training.batch import Array, Batch
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import CLS, MASK, SEP

TOP = 10  # candidates at each position
MOST_TOKENS = 4_000  # of a text: more would make the page slow
MOST_MASKED_ALONE = 1_000  # tokens of a text for an encoder, which reads a window for each token
MOST_ATTENTION = 256  # tokens with attention weights

Json = dict[str, Any]


class PageModel:
    """A run whose texts, scores and attention are turned into JSON for the page."""

    def __init__(self, served: ServedModel) -> None:
        run, tok = served.run, served.run.tokenizer
        self.name, self.run, self.opening = served.name, run, served.opening
        self.architecture = run.config.model.architecture
        layers = run.config.model.layers
        self.layers = {"own": layers}
        """Layers by kind of attention: own; for an encoder-decoder, also cross and encoder; none with other mixers"""
        if self.architecture == "encoder-decoder":
            decoder_layers = run.config.model.decoder_layers or layers
            self.layers = {"own": decoder_layers, "cross": decoder_layers, "encoder": layers}
        if not run.config.model.attention_only:
            self.layers = {}
        self.instruments = described_instruments(run.config.model)
        self._special = set(tok.special_tokens.values())
        used = tok.ordinary
        self._hex = [tok.added_bytes(i).hex() if used[i] or i in self._special else None for i in range(tok.vocab_size)]

    def description(self) -> Json:
        """Return the facts of the model that its views need."""
        tokens = "fill" if self.architecture == "encoder" else "write"
        return {
            "views": [
                *(["chat"] if self.run.run.chat_template else []),
                "read",
                tokens,
                *(["inside"] if self.instruments else []),
            ],
            "instruments": self.instruments,
            "layers": self.layers,
            "heads": self.run.config.model.heads,
            "tokenizer": self.run.tokenizer.fingerprint,
            "lossless": self.run.tokenizer.is_lossless,
            "levels": LEVELS,
            "opening": self.opening,
        }

    def spelled(self, ids: Iterable[int]) -> list[Json]:
        """Return the ids with `hex`, null for an id without a token, and with `special` for special tokens."""
        special: Json = {"special": True}
        return [{"id": i, "hex": self._piece(i)} | (special if i in self._special else {}) for i in map(int, ids)]

    def check_length(self, ids: Sized) -> None:
        """Raise ValueError for a text with more tokens than the page shows."""
        most = MOST_MASKED_ALONE if self.architecture == "encoder" else MOST_TOKENS
        if len(ids) > most:
            raise ValueError(f"the text has {len(ids):,} tokens, and the page shows at most {most:,}: shorten it")

    def scored(self, score: TextScore, same: int = 0) -> Json:
        """Return the scored tokens of a text after the first `same` tokens, and the totals of the whole text."""
        return {
            "same": same,
            "tokens": self.predicted(score.ids[same:], score.predictions.part(same, len(score.ids))),
            "totals": {
                "pseudo": score.measure == "pseudo-log-likelihood",
                "tokens": score.tokens,
                "bytes": score.bytes,
                "bits": score.log_probability_bits and -score.log_probability_bits,
                "perplexity": score.perplexity,
                "bits_per_byte": score.bits_per_byte,
            },
        }

    def answered(self, text: str, target: str) -> Json:
        """Return `scored` for a target of an encoder-decoder, and whether the end of its source was cut off (`cut`)."""
        _, cut = self.source(text)
        return self.scored(score_text(self.run, text, target=target, top=TOP)) | {"cut": cut}

    def source(self, text: str) -> tuple[list[int], bool]:
        """Return the ids that an encoder-decoder reads of a source, and whether the end of the source was cut off."""
        run, around = self.run, self.run.around
        (ids,) = source_ids(run.tokenizer, [text], run.config.model, around)
        whole = len(around.before) + len(text_tokens(run, text, around.marks)) + len(around.after)
        return ids, len(ids) < whole

    def masked(self, ids: Array, places: list[int]) -> Json:
        """Return the tokens `ids` (T,) of a text for an encoder, with scores at `places`, which are masked together.

        Raises ValueError for a place outside the text.
        """
        special = self.run.around.special
        require_special_tokens("an encoder", (CLS, SEP, MASK), special)
        if any(not 0 <= place < len(ids) for place in places):
            raise ValueError(f"masked places must be from 0 to {len(ids) - 1}")
        scored = np.zeros((1, len(ids) + 2), bool)
        scored[0, np.array(places, np.int64) + 1] = True
        targets = np.concatenate(([special[CLS]], ids, [special[SEP]]))[None]
        batch = Batch(np.where(scored, special[MASK], targets), targets, scored.astype(np.float32))
        windows = Windows(batch, scored, np.roll(targets, 1, axis=1), np.arange(scored.size)[None])
        return {"tokens": self.predicted(ids, predict(self.run.model, [windows], len(ids), first=1, top=TOP))}

    def predicted(self, ids: Array, made: Predictions) -> list[Json]:
        """Return tokens with their predictions; a token without a prediction has only `id` and `hex`."""
        tokens = self.spelled(ids)
        columns = (made.log_probabilities, made.entropies, made.ranks, made.top_ids, made.top_log_probabilities)
        for token, log_p, entropy, rank, top, top_log_p in zip(tokens, *(c.tolist() for c in columns), strict=True):
            if rank:
                token |= {"bits": in_bits(log_p), "rank": rank, "entropy": in_bits(-entropy)}
                token["top"] = self.candidates(top, top_log_p)
        return tokens

    def candidates(self, ids: list[int], log_probabilities: list[float]) -> list[Json]:
        """Return candidates with their probabilities, without candidates of probability 0."""
        return [
            token | {"p": float(f"{math.exp(log_p):.4g}")}
            for token, log_p in zip(self.spelled(ids), log_probabilities, strict=True)
            if log_p > -math.inf
        ]

    @torch.no_grad()
    def attention(self, source: list[int] | None, ids: list[int], kind: str, layer: int, head: int) -> Json:
        """Return the attention weights of a head, one row for each query, without trailing zeros.

        `source` and `ids` are those of `attending`; `queries` and `keys` are their tokens. `kind` is a key of `layers`.
        """
        device = self.run.model.embedding.weight.device
        read = [torch.tensor([each], device=device) for each in (ids, source) if each is not None]
        maps = attention_maps(self.run.model, *read)
        weights = getattr(maps, kind)[layer, 0, head].double().cpu().numpy().round(3)
        queries, keys = (source or [] if kind == "encoder" else ids), (ids if kind == "own" else source or [])
        return {
            "queries": self.spelled(queries),
            "keys": self.spelled(keys),
            "weights": [row[: 1 + int(np.flatnonzero(row)[-1])].tolist() if row.any() else [] for row in weights],
        }

    def attending(self, text: str, target: str | None) -> tuple[list[int] | None, list[int]]:
        """Return the ids of the source, if any, and of the text or target, as the model reads them.

        Longer input is cut to MOST_ATTENTION tokens: a decoder keeps the last ones, other models the first.
        """
        run, config = self.run, self.run.config.model
        most = min(MOST_ATTENTION, config.context_length)
        own = text_tokens(run, text).tolist()
        if self.architecture == "encoder-decoder":
            (source,) = source_ids(run.tokenizer, [text], config, run.around)
            ids = np.append(text_tokens(run, target or "", run.around.marks), 0)
            return source[:most], target_sequence(run, ids, "the target")[:-1][:most].tolist()
        if self.architecture == "encoder":
            special = run.around.special
            require_special_tokens("an encoder", (CLS, SEP, MASK), special)
            return None, [special[CLS], *own[: most - 2], special[SEP]]
        return None, [*run.around.before, *own][-most:]

    def _piece(self, i: int) -> str | None:
        """Return the bytes of a token in hexadecimal, or None for an id that pads the vocabulary."""
        return self._hex[i] if i < len(self._hex) else None


def in_bits(log_p: float) -> float:
    """Return -log2 p, rounded to 4 decimals, for ln p."""
    return round(-log_p / NATS_PER_BIT, 4) + 0.0  # + 0.0: no negative zero
