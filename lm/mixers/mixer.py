"""The interface of sequence mixers.

A mixer projects its input position by position, mixes positions, and projects back. Only `mix`, a function that the
caller passes, reads other positions. For whole sequences, `parallel_form` returns this function. In generation, a
`MixerState` returns it for the next tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from lm.config import OPTIONAL, MixerKind, ModelConfig
from lm.layers import Component
from lm.masks import Mask
from lm.position_checks import BIASES, IN_SCORES
from lm.positions import Rotary

if TYPE_CHECKING:
    from lm.decoding.cache import MixerState

Mix = Callable[..., Tensor]
"""Maps projections, such as queries, keys and values, to what each position reads from the positions that it sees."""

OF_ALL = ("document_mask", "value_embeddings")
"""Those of OPTIONAL that the mixers of all layers must read. For the others, one of them is enough."""
OF_SCORES = ("scaled_attention", "attention_pattern")
"""Fields that change the scores of every layer, so each mixer with attention scores must read them."""
OF_CROSS = ("head_width", "kv_heads", "qk_norm")
"""Those of OPTIONAL that all cross-attention reads."""
OF_DOT = ("scaled_attention", "attention")
"""Those that cross-attention with model.cross="dot" reads too."""


class Mixer(Component):
    """A sequence mixer. Its name in `ModelConfig` names its module in `lm/mixers/`, where `MIXER` is the class.

    `MixerCosts` states what it costs, without torch.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    """The fields in OPTIONAL that the mixer reads; "positions" if it adds them to scores."""
    scored: ClassVar[bool] = False
    """Whether the mixer has attention scores."""
    bidirectional: ClassVar[bool] = False
    """Whether encoders can have the mixer."""
    state: ClassVar[type[MixerState]]
    """The class of the decoding state of these mixers."""

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        """Make the projections.

        `residual_writes` and `gain`, of values and outputs: see `Initializer.matrix`; `value_embedding`: see `forward`.
        """
        super().__init__()

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the output of the mixer for x (B, T, width): (B, T, width) in the dtype of x.

        `rotary` rotates queries and keys. `value_embedding` (B, T, G x D) is added to the values. With `rows`
        (N,) int64, indices of the B x T positions, returns only these rows: (N, width).
        """
        raise NotImplementedError

    def parallel_form(self, mask: Mask) -> Mix:
        """Return the function that mixes whole sequences under `mask`."""
        raise NotImplementedError

    def flops(self, length: float, visible: float, outputs: float) -> float:
        """Return the training FLOPs of `length` positions, of which each sees `visible`.

        `outputs`: positions that the last projection is applied to.
        """
        raise NotImplementedError


def mixer_class(mixer: MixerKind) -> type[Mixer]:
    """Return the mixer of this name."""
    kind: type[Mixer] = import_module(f"lm.mixers.{mixer.replace('-', '_')}").MIXER
    return kind


def check_mixers(config: ModelConfig) -> None:
    """Raise ValueError, by name, for a field that the mixers of the layers do not support."""
    kinds = {mixer: mixer_class(mixer) for mixer in config.mixer_pattern}
    read = {field for kind in kinds.values() for field in kind.fields}
    if config.architecture == "encoder-decoder":
        read |= {*OF_CROSS, *(OF_DOT if config.cross == "dot" else ())}
    for mixer, kind in kinds.items():
        needed = (*OF_ALL, *(OF_SCORES if kind.scored else ()))
        unread = [field for field in OPTIONAL if field not in (kind.fields if field in needed else read)]
        unused = {field: getattr(ModelConfig, field) for field in unread}
        biased = kind.scored and config.positions in BIASES
        if config.positions in IN_SCORES and "positions" not in (kind.fields if biased else read):
            unused["positions"] = "none"
        if not kind.bidirectional:
            unused["architecture"] = "decoder"
        for field, only in unused.items():
            if getattr(config, field) != only:
                raise ValueError(
                    f"{mixer_option(config, mixer)}, which does not support model.{field}={getattr(config, field)!r}: "
                    f"give model.{field}={only!r}, or model.mixer{'s' * bool(config.mixers)}=attention"
                )


def mixer_option(config: ModelConfig, mixer: MixerKind) -> str:
    """Return the beginning of an error about a mixer of the model."""
    return f"model.mixers has {mixer!r}" if config.mixers else f"model.mixer is {mixer!r}"


def select_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    """Return x (B, T, width) at `rows` (N,) int64, indices of its B x T positions: (N, width); all of x for None."""
    return x if rows is None else x.flatten(0, 1)[rows]
