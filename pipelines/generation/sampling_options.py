"""Options of `bytelm generate` that decide how the next token is chosen."""

from dataclasses import dataclass

TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options of `bytelm generate`; None for an option that is not given. Raises ValueError for bad values."""

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
