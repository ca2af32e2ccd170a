"""What heads attend to, and induction on random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch

from lm.config import ModelConfig
from lm.introspection.attention_maps import head_scores
from lm.introspection.circuits import copying_scores, has_circuits
from lm.introspection.repetition import Repetition, repetition
from lm.mixers.attention import require_attention
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument
from pipelines.inspection.words import Words
from pipelines.reporting.pictures import HeatMap, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun


SEED = 0
ALL, STRONGEST = 24, 4  # heads in the table: all if at most ALL, else the STRONGEST by each score


@dataclass(frozen=True)
class HeadRow:
    """The scores of a head. All but `similar` and `copying` are mean attention weights from 0 to 1."""

    layer: int
    head: int
    induction: float
    previous: float
    duplicate: float
    similar: float
    copying: float | None
    """None for an encoder, and for a model without circuits: see `has_circuits`"""


@dataclass(frozen=True)
class HeadsOfRun(Result):
    """The scores of all heads, and how well the model repeats what it has read."""

    key = "heads"
    section = Section(
        "Heads",
        "The model reads sequences of random tokens, each twice in a row. Induction: mean attention weight, in the "
        "second copy, on the token after the same token in the first copy, which comes next (Olsson et al. 2022). "
        "Previous: weight on the position before. Duplicate: weight, in the second copy, on the same token in the "
        "first. Similar: in the first copy, sum over the other tokens that a token may attend to, of the weight times "
        "the cosine of both embeddings less the mean of these cosines. Copying: whether the head raises the logits of "
        "the tokens that it attends to, -1 to 1, from its weights alone (Elhage et al. 2021). The probability of the "
        "repeated token shows how well the whole model repeats. Random tokens cannot tell what a head does on real "
        "text, and an attention weight does not show that the head matters: delete it.",
    )

    heads: tuple[HeadRow, ...]
    repetition: Repetition | None
    """None for an encoder"""
    length: int
    """Tokens of a sequence before its repetition"""
    sequences: int

    @property
    def _scores(self) -> list[str]:
        return [f.name for f in fields(HeadRow)[2:] if getattr(self.heads[0], f.name) is not None]

    def pictures(self) -> Sequence[Picture]:
        layers, count = self.heads[-1].layer + 1, self.heads[-1].head + 1
        maps = {
            score: [[getattr(row, score) for row in self.heads if row.layer == layer] for layer in range(layers)]
            for score in self._scores
        }
        text = "Mean attention weights on random repeated tokens; darker is larger."
        weights = {score: values for score, values in maps.items() if score not in ("copying", "similar")}
        rows, columns = [*map(str, range(layers))], [*map(str, range(count))]
        by_head = partial(HeatMap, rows=rows, columns=columns, x="head", y="layer", most=1.0)
        pictures = [by_head(title="Scores of heads", text=text, maps=weights)]
        if "copying" in maps:
            text = "Blue heads raise the logits of the tokens that they attend to; red heads lower them."
            pictures.append(by_head(title="Copying", text=text, maps={"": maps["copying"]}, signed=True))
        return pictures

    def parts(self) -> list[Table | str]:
        scores = self._scores
        shown = list(self.heads)
        if len(shown) > ALL:
            strongest = {
                row for score in scores for row in sorted(self.heads, key=lambda row: -getattr(row, score))[:STRONGEST]
            }
            shown = [row for row in self.heads if row in strongest]
        rows = [(f"{row.layer}.{row.head}", [f"{getattr(row, score):.3f}" for score in scores]) for row in shown]
        title = "scores of heads" if len(shown) == len(self.heads) else f"the strongest of {len(self.heads)} heads"
        parts: list[Table | str] = [Table(title, "head", scores, rows)]
        if (found := self.repetition) is not None:
            parts.append(
                f"random tokens: {found.first_bits:.2f} bits per token, and {found.second_bits:.2f} when they are "
                f"repeated; probability of the repeated token {found.second_mass:.1%} (chance {found.chance:.2%})"
            )
        return parts


@dataclass(frozen=True, kw_only=True)
class Heads(Instrument):
    """Scores of heads."""

    result = HeadsOfRun
    reads_text = False

    repeat_length: int = 32
    """Number of random tokens that the model reads twice, for the scores of heads; at most half the context"""

    def __post_init__(self) -> None:
        if self.repeat_length < 2:
            raise ValueError(f"`repeat_length` is {self.repeat_length}, but must be at least 2")

    def check(self, config: ModelConfig) -> None:
        require_attention(config, "the instrument heads")
        if config.architecture == "encoder-decoder":
            raise ValueError("model.architecture is 'encoder-decoder', but heads needs a decoder or an encoder")
        if config.context_length < 4:
            raise ValueError(f"model.context_length is {config.context_length}, but heads needs at least 4 tokens")

    def look(self, run: LoadedRun, text: str) -> HeadsOfRun:
        model, ids, config = run.model, Words(run).ordinary, run.config.model
        length, sequences = min(self.repeat_length, config.context_length // 2), 16
        scores = head_scores(model, torch.Generator().manual_seed(SEED), length=length, sequences=sequences, ids=ids)
        decoder = config.architecture == "decoder"
        copying = copying_scores(model) if decoder and has_circuits(model) else None
        rows = [
            HeadRow(
                layer,
                head,
                induction=float(scores.induction[layer, head]),
                previous=float(scores.previous[layer, head]),
                duplicate=float(scores.duplicate[layer, head]),
                similar=float(scores.similar[layer, head]),
                copying=None if copying is None else float(copying[layer, head]),
            )
            for layer, head in product(*map(range, scores.induction.shape))
        ]
        generator = torch.Generator().manual_seed(SEED)
        found = repetition(model, generator, ids=ids, length=length, sequences=sequences) if decoder else None
        return HeadsOfRun(tuple(rows), found, length, sequences)


INSTRUMENT = Heads
