"""What each layer would predict if it were the last (logit lens)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from lm.config import ModelConfig
from lm.introspection.lens import lens_logits
from lm.metrics.units import bits
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument
from pipelines.inspection.words import Words, read_ids
from pipelines.reporting.pictures import HeatMap, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun


POSITIONS, LAYERS = 16, 5  # in the table
DRAWN = 24  # positions in the picture


@dataclass(frozen=True)
class LensLayer:
    """What the head predicts from the input of the first layer or the output of a layer, at T positions."""

    name: str
    """ "embedding", the input of the first layer, or the number of the layer"""
    words: tuple[str, ...]
    """(T) the likeliest token"""
    probabilities: tuple[float, ...]
    """(T) its probability"""
    final_ranks: tuple[int, ...]
    """(T) rank of the token that the model predicts in the end; 1 is the likeliest"""
    final_probabilities: tuple[float, ...]
    """(T) probability of that token"""
    kl_bits: float
    """Mean over positions of D(model's prediction || lens), bits"""
    next_bits: float | None
    """Mean surprisal of the next token of the text, bits; None for an encoder and for a text of one token"""
    last: tuple[tuple[str, float], ...]
    """The likeliest tokens after the last position, with probabilities"""


@dataclass(frozen=True)
class LensOfText(Result):
    """The logit lens of a text."""

    key = "lens"
    section = Section(
        "Logit lens",
        "The lens of a layer is what the head, with the final norm, predicts from the stream after this layer "
        "(nostalgebraist 2020). The last layer's lens is the model's prediction. KL is the mean divergence of a lens "
        "from this prediction. Next token is the mean surprisal of the text's next token. The lens cannot tell that an "
        "early layer knows nothing: early layers need not write in the basis of the head. In models with norms after "
        "the sum, the stream is already normalised.",
    )

    text: str
    tokens: tuple[str, ...]
    """(T) the tokens that the model reads"""
    layers: tuple[LensLayer, ...]

    def parts(self) -> list[Table | str]:
        return [self._last_token(), self._all_tokens(), *self._left_out()]

    def pictures(self) -> Sequence[Picture]:
        title = "Likeliest token by layer and position"
        return [picture_of_words(title, self.tokens, self.layers)]

    def _last_token(self) -> Table:
        rows = []
        for layer in self.layers:
            likeliest = "  ".join(f"{word} {share:.0%}" for word, share in layer.last)
            surprisal = "" if layer.next_bits is None else f"{layer.next_bits:.2f}"
            rank, share = f"{layer.final_ranks[-1]:,}", f"{layer.final_probabilities[-1]:.1%}"
            rows.append((layer.name, [surprisal, f"{layer.kl_bits:.2f}", rank, share, likeliest]))
        final = self.layers[-1].words[-1]
        heads = ["next token, bits", "KL, bits", f"rank of {final}", "its p", f"likeliest after {self.tokens[-1]}"]
        return Table("prediction after the last token, by layer", "layer", heads, rows, text=True)

    def _all_tokens(self) -> Table:
        """Return the likeliest tokens after the last POSITIONS tokens, of at most LAYERS layers."""
        chosen = [self.layers[place] for place in shown_layers(len(self.layers))]
        rows = [
            (self.tokens[t], [f"{layer.words[t]} {layer.probabilities[t]:.0%}" for layer in chosen])
            for t in range(max(0, len(self.tokens) - POSITIONS), len(self.tokens))
        ]
        heads = [layer.name for layer in chosen]
        return Table("likeliest token by position and layer", "after", heads, rows, text=True)

    def _left_out(self) -> list[str]:
        tokens, layers = len(self.tokens), len(self.layers) - 1
        few = [f"the last {POSITIONS} of {tokens:,} tokens"] if tokens > POSITIONS else []
        few += [f"{LAYERS - 1} of {layers} layers"] if layers >= LAYERS else []
        return [f"shown: {' and '.join(few)}; `as_json` has all"] if few else []


def shown_layers(count: int) -> list[int]:
    """Return the places of at most LAYERS of `count` layers, evenly spaced."""
    return sorted({round(i * (count - 1) / (LAYERS - 1)) for i in range(LAYERS)})


class ReadWords(Protocol):
    """The likeliest token of a lens after each of T tokens, and its probability."""

    @property
    def name(self) -> str: ...
    @property
    def words(self) -> tuple[str, ...]: ...
    @property
    def probabilities(self) -> tuple[float, ...]: ...


def picture_of_words(title: str, tokens: Sequence[str], layers: Sequence[ReadWords]) -> HeatMap:
    """Return the picture of what the lens of each layer predicts after the last DRAWN tokens of a text."""
    last = slice(max(0, len(tokens) - DRAWN), None)
    return HeatMap(
        title=title,
        text="What each layer would predict after each token; darker is more probable. Last row: the model.",
        maps={"": [layer.probabilities[last] for layer in layers]},
        words=[layer.words[last] for layer in layers],
        rows=[layer.name for layer in layers],
        columns=tokens[last],
        x="after",
        y="layer",
        most=1.0,
    )


@dataclass(frozen=True, kw_only=True)
class Lens(Instrument):
    """The logit lens."""

    result = LensOfText

    top: int = 4
    """Number of likeliest tokens that the lens shows for each layer after the last token of the text"""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"`top` is {self.top}, but must be at least 1")

    def check(self, config: ModelConfig) -> None:
        if config.architecture == "encoder-decoder":
            raise ValueError("model.architecture is 'encoder-decoder', but the lens needs a decoder or an encoder")

    def look(self, run: LoadedRun, text: str) -> LensOfText:
        words, ids = Words(run), read_ids(run, text)
        every = [logits.double().log_softmax(dim=-1) for logits in lens_logits(run.model, ids)]
        following = ids[1:] if run.config.model.architecture == "decoder" and len(ids) > 1 else None
        names = ["embedding", *(f"{layer}" for layer in range(len(every) - 1))]
        layers = [self._layer(name, one, every[-1], following, words) for name, one in zip(names, every, strict=True)]
        return LensOfText(text, words.of(ids), tuple(layers))

    def _layer(self, name: str, lens: Tensor, final: Tensor, following: Tensor | None, words: Words) -> LensLayer:
        """Return a layer from log-probabilities (T, V) of its lens and of the model's prediction."""
        best = lens.max(dim=-1)
        predicted = lens.gather(-1, final.argmax(dim=-1, keepdim=True))
        last = lens[-1].topk(min(self.top, lens.shape[-1]))
        divergence = (final.exp() * (final - lens)).sum(dim=-1).mean().item()
        surprisal = None if following is None else -lens[:-1].gather(-1, following[:, None]).mean().item()
        return LensLayer(
            name,
            words.of(best.indices),
            tuple(best.values.exp().tolist()),
            tuple((1 + (lens > predicted).sum(dim=-1)).tolist()),
            tuple(predicted.squeeze(-1).exp().tolist()),
            max(0.0, bits(divergence)),
            None if surprisal is None else bits(surprisal),
            tuple(zip(words.of(last.indices), last.values.exp().tolist(), strict=True)),
        )


INSTRUMENT = Lens
