"""A trained lens beside the logit lens (takes a minute)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.introspection.tuned_lens import LensTraining, TunedLens
from lm.metrics.units import bits
from lm.model import LanguageModel
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.bounded_training import check_bounds, extent, train
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.inspection.instruments.lens import POSITIONS, picture_of_words, shown_layers
from pipelines.inspection.own_text import OwnText, model_arguments, scored
from pipelines.inspection.words import Words, read_ids
from pipelines.reporting.pictures import Curves, Picture
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import LOGIT_ROWS

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

SEED, STEP_TOKENS = 0, 512
LENSES = ("logit", "tuned")


@dataclass(frozen=True)
class LensesOfLayer:
    """The logit lens and the tuned lens of a layer: means over the validation tokens, bits per token."""

    name: str
    """ "embedding", the input of the first layer, or the number of the layer"""
    logit_kl_bits: float
    """D(model's prediction || logit lens)"""
    tuned_kl_bits: float
    """D(model's prediction || tuned lens)"""
    logit_next_bits: float
    """Surprisal of the next token by the logit lens"""
    tuned_next_bits: float
    """Surprisal of the next token by the tuned lens"""


@dataclass(frozen=True)
class WordsOfLayer:
    """What a lens of a layer predicts after each of T tokens."""

    name: str
    """ "embedding", the input of the first layer, or the number of the layer"""
    words: tuple[str, ...]
    """(T) the likeliest token"""
    probabilities: tuple[float, ...]
    """(T) its probability"""


@dataclass(frozen=True)
class LensesOfText:
    """What both lenses predict after each token of a text. Their last layer is the model's prediction."""

    text: str
    tokens: tuple[str, ...]
    """(T) the tokens that the model reads"""
    logit: tuple[WordsOfLayer, ...]
    tuned: tuple[WordsOfLayer, ...]

    def table(self, which: str) -> Table:
        """Return the likeliest tokens of both lenses after the last POSITIONS tokens, in some layers.

        In the last layer both lenses agree, so its column has one token.
        """
        *inner, last = shown_layers(len(self.logit))
        rows = [
            (
                self.tokens[t],
                [*(f"{self.logit[i].words[t]} / {self.tuned[i].words[t]}" for i in inner), self.logit[-1].words[t]],
            )
            for t in range(max(0, len(self.tokens) - POSITIONS), len(self.tokens))
        ]
        return Table(
            f"logit lens / tuned lens{which}", "after", [self.logit[i].name for i in (*inner, last)], rows, text=True
        )


@dataclass(frozen=True)
class TunedLensOfRun(Result):
    """The logit lens and the tuned lens by layer."""

    key = "tuned_lens"
    section = Section(
        "Tuned lens",
        "The tuned lens of a layer is what the head predicts from the stream after an affine map. The map of each "
        "layer is trained on the training split to minimise the divergence from the model's prediction (Belrose et al. "
        "2023). The logit lens has no map. KL is the mean divergence of a lens from the model's prediction on the "
        "validation split, and next token is the mean surprisal of the next token there. Where the tuned lens is "
        "better, the layer holds information in another basis than that of the head. The lens cannot tell whether the "
        "model uses what the map finds. A map that is trained for too few steps shows less than the layer holds, "
        "sometimes less than the logit lens. For texts, a table and pictures show the likeliest token of both lenses.",
    )

    layers: tuple[LensesOfLayer, ...]
    """The last layer is the model's prediction"""
    steps: int
    """Steps of training"""
    trained_tokens: int
    tokens: int
    """Validation tokens"""
    source: str
    """Folder of the dataset"""
    texts: tuple[LensesOfText, ...]

    def _numbered(self) -> list[tuple[str, LensesOfText]]:
        """Return the texts, with their numbers for titles if there are several."""
        return [(f", text {i}" if len(self.texts) > 1 else "", text) for i, text in enumerate(self.texts, 1)]

    def parts(self) -> list[Table | str]:
        numbers = [field.name for field in fields(LensesOfLayer)[1:]]
        rows = [(one.name, [f"{getattr(one, name):.3f}" for name in numbers]) for one in self.layers]
        heads = ["KL, logit lens", "KL, tuned", "next token, logit", "tuned"]
        return [
            Table("bits per token by layer", "layer", heads, rows),
            extent(self.steps, self.trained_tokens, self.tokens),
            *(text.table(which) for which, text in self._numbered()),
        ]

    def pictures(self) -> Sequence[Picture]:
        def lines(measure: str) -> dict[str, list[float]]:
            return {f"{lens} lens": [getattr(one, f"{lens}_{measure}") for one in self.layers] for lens in LENSES}

        curves = Curves(
            title="Both lenses by layer",
            text="0 is the embedding. Where the tuned lens is lower, it finds what the logit lens does not show.",
            x=range(len(self.layers)),
            panels={"KL, bits per token": lines("kl_bits"), "next token, bits": lines("next_bits")},
            label="layers passed",
        )
        words = [
            picture_of_words(f"{kind.capitalize()} lens{which}", text.tokens, getattr(text, kind))
            for which, text in self._numbered()
            for kind in LENSES
        ]
        return [curves, *words]


@dataclass(frozen=True, kw_only=True)
class TunedLensInstrument(Instrument):
    """The tuned lens."""

    result = TunedLensOfRun
    reads_text = False
    usual = False

    steps: int = 1000
    """Maximum training steps of the tuned lens or the autoencoder"""
    seconds: float = 60.0
    """Maximum training time of the tuned lens or the autoencoder, in seconds; Ctrl-C ends it early"""
    validation_tokens: int = 8192
    """Tokens of the validation split that an instrument reads"""

    def __post_init__(self) -> None:
        check_bounds(self.steps, self.seconds)
        if self.validation_tokens < 1:
            raise ValueError(f"`validation_tokens` is {self.validation_tokens}, but must be at least 1")

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "the tuned lens")

    def look_at(self, run: LoadedRun, texts: Sequence[str]) -> list[Result]:
        """Return one result: the lens is trained once for all texts, of which there may be none."""
        read_texts = [(text, read_ids(run, text)) for text in texts]
        own, model = OwnText.of(run), run.model
        lens = TunedLens(model)
        training, device = LensTraining(model, lens), model.embedding.weight.device
        generator, read = np.random.default_rng(SEED), 0

        def step(done: float) -> float:
            nonlocal read
            batch = own.training(generator, STEP_TOKENS)
            rows = _some(scored(batch, device), generator)
            read += int(rows.sum())
            return training.step(model_arguments(batch, device), rows, done)

        steps = train("training the tuned lens", step, steps=self.steps, seconds=self.seconds)
        batches = own.validation(self.validation_tokens)
        layers, tokens = measured(model, lens, batches)
        words = Words(run)
        of_texts = tuple(_lenses(model, lens, text, ids, words) for text, ids in read_texts)
        return [TunedLensOfRun(layers, steps, read, tokens, own.source, of_texts)]


INSTRUMENT = TunedLensInstrument


def _some(rows: Tensor, generator: np.random.Generator) -> Tensor:
    """Return `rows` (B, T) bool with at most STEP_TOKENS random entries still True."""
    places = rows.flatten().nonzero().squeeze(-1)
    if len(places) <= STEP_TOKENS:
        return rows
    kept = torch.from_numpy(generator.choice(len(places), STEP_TOKENS, replace=False)).to(places.device)
    return torch.zeros_like(rows).flatten().index_fill(0, places[kept], True).view_as(rows)


@torch.no_grad()
def _lenses(model: LanguageModel, lens: TunedLens, text: str, ids: Tensor, words: Words) -> LensesOfText:
    """Return what both lenses predict after each token of a text; `ids` is (T,)."""
    streams, final = lens.streams(model, {"ids": ids[None]}, torch.ones_like(ids[None], dtype=torch.bool))

    def of_layer(name: str, log_probabilities: Tensor) -> WordsOfLayer:
        best = log_probabilities.max(dim=-1)
        return WordsOfLayer(name, words.of(best.indices), tuple(best.values.exp().tolist()))

    def of_lens(tuned: bool) -> tuple[WordsOfLayer, ...]:
        read = [lens.log_probabilities(model, x, layer, tuned) for layer, x in enumerate(streams)]
        return tuple(of_layer(name, one) for name, one in zip(layer_names(lens), [*read, final], strict=True))

    return LensesOfText(text, words.of(ids), of_lens(False), of_lens(True))


def layer_names(lens: TunedLens) -> list[str]:
    """Return "embedding", and the number of each layer."""
    return ["embedding", *(f"{layer}" for layer in range(len(lens.names)))]


@torch.no_grad()
def measured(model: LanguageModel, lens: TunedLens, batches: list[Batch]) -> tuple[tuple[LensesOfLayer, ...], int]:
    """Return the results of both lenses for each layer, and the number of tokens that were scored."""
    device = model.embedding.weight.device
    sums, final_nats, tokens = np.zeros((len(lens.names), 4)), 0.0, 0
    for batch in batches:
        rows = scored(batch, device)
        targets = torch.from_numpy(batch.targets).to(device)[rows][:, None]
        streams, final = lens.streams(model, model_arguments(batch, device), rows)
        for first in range(0, len(final), LOGIT_ROWS):
            part = slice(first, first + LOGIT_ROWS)
            expected = final[part].double()
            for layer, x in enumerate(streams):
                both = [lens.log_probabilities(model, x[part], layer, tuned).double() for tuned in (False, True)]
                divergences = [(expected.exp() * (expected - one)).sum().item() for one in both]
                sums[layer] += [*divergences, *(-one.gather(-1, targets[part]).sum().item() for one in both)]
        final_nats -= final.double().gather(-1, targets).sum().item()
        tokens += len(final)
    names = layer_names(lens)
    sums = np.concatenate((sums, [[0.0, 0.0, final_nats, final_nats]])) / tokens
    return tuple(LensesOfLayer(n, *map(bits, row)) for n, row in zip(names, sums.tolist(), strict=True)), tokens
