"""Options of `bytelm generate` and `bytelm chat` that decide how the next token is chosen."""

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import tyro

TEMPERATURE = 0.8
SAMPLING = ("temperature top_k top_p greedy seed", "min_p repetition_penalty")
"""Options of `SamplingArguments`: in --help, and only in --help-all"""


def _option(help_text: str, default: str = "", **more: Any) -> Any:
    hint = f"(default: {default})" if default else ""
    return tyro.conf.arg(help=help_text, help_behavior_hint=hint, prefix_name=False, **more)


class SamplingArguments(TypedDict, total=False):
    """The arguments of verbs that become SamplingOptions."""

    temperature: Annotated[
        float | None, _option("Sampling temperature: below 1 sharper, above 1 more varied.", str(TEMPERATURE))
    ]
    top_k: Annotated[int | None, _option("Sample from the k likeliest tokens.", metavar="N")]
    top_p: Annotated[float | None, _option("Sample from the fewest tokens whose probabilities add up to p.")]
    min_p: Annotated[
        float | None, _option("Sample from tokens with at least p times the probability of the likeliest.")
    ]
    repetition_penalty: Annotated[
        float, _option("Above 1, tokens already in the text become less likely; 1 for none.", "1")
    ]
    greedy: Annotated[bool, _option("Always take the likeliest token.")]
    seed: Annotated[int, _option("Seed of the sampling.", "0")]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Checked values of SamplingArguments; None for one that is not given. Raises ValueError for bad values."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    """1 for none"""
    greedy: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.greedy:
            others = ("`temperature`", "`top_k`", "`top_p`", "`min_p`")
            if sampled := [option for option in self.given if option in others]:
                raise ValueError(f"`greedy` always takes the likeliest token, without {sampled[0]}: leave one out")
        if self.temperature is not None and not 0.01 <= self.temperature <= 100:
            raise ValueError(f"`temperature` is {self.temperature}, but must be from 0.01 to 100 (or give `greedy`)")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"`top_k` is {self.top_k}, but must be at least 1")
        for option, value in (("`top_p`", self.top_p), ("`min_p`", self.min_p)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{option} is {value}, but must be above 0 and at most 1")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise ValueError(
                f"`repetition_penalty` is {self.repetition_penalty}, but must be from 0.01 to 100 (1 for none)"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"`seed` is {self.seed}, but must be from 0 to 2^63 - 1")

    @property
    def given(self) -> list[str]:
        """The given options that decide how tokens are chosen."""
        options = {
            "`greedy`": self.greedy or None,
            "`temperature`": self.temperature,
            "`top_k`": self.top_k,
            "`top_p`": self.top_p,
            "`min_p`": self.min_p,
            "`repetition_penalty`": None if self.repetition_penalty == 1 else self.repetition_penalty,
        }
        return [option for option, value in options.items() if value is not None]
