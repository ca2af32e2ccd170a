"""Where a block has norms. Imports no torch."""

from typing import Literal, NamedTuple

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
