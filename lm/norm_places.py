"""Where a block has norms, and checks of their fields in a model's configuration. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from lm.config import ModelConfig

NormPosition = Literal["pre", "post", "branch", "sandwich", "deepnorm", "rezero"]


class NormPlaces(NamedTuple):
    """Norms of a sub-layer f with input x, and whether a norm follows the last block."""

    before: bool = False
    """f(LN(x))"""
    branch: bool = False
    """LN(f(x))"""
    after: bool = False
    """LN(x + f(x))"""
    final: bool = False


NORM_PLACES: dict[NormPosition, NormPlaces] = {
    "pre": NormPlaces(before=True, final=True),
    "post": NormPlaces(after=True),
    "branch": NormPlaces(branch=True, final=True),
    "sandwich": NormPlaces(before=True, branch=True, final=True),
    "deepnorm": NormPlaces(after=True),
    "rezero": NormPlaces(),
}


def check_norms(config: ModelConfig) -> None:
    """Raise ValueError, which names the field, for norms that the other fields rule out."""
    if not config.mlp_norm and not (config.mlp and any(NORM_PLACES[config.norm_position])):
        without = "model.mlp=false" if not config.mlp else f"model.norm_position={config.norm_position!r}"
        raise ValueError(f"model.mlp_norm is false, but {without} has no norm of the MLP: leave it out")
    if config.norm_position == "deepnorm" and config.initialization != "xavier":
        raise ValueError(
            f"model.norm_position is 'deepnorm', but model.initialization is {config.initialization!r}: give "
            "model.initialization=xavier, whose values DeepNorm scales"
        )
    if config.residual == "none" and (config.norm_position in ("deepnorm", "rezero") or config.stochastic_depth):
        field = "stochastic_depth" if config.stochastic_depth else "norm_position"
        raise ValueError(
            f"model.residual is 'none', but model.{field}={getattr(config, field)!r} needs residual connections: "
            f"give model.{field}={getattr(type(config), field)!r}, or model.residual=sequential"
        )
