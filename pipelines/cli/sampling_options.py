"""How the next token is chosen: the options of `bytelm generate` that say so, and what they make of logits."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """As in `generate`; None where an option was not given."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    """1 for none."""
    greedy: bool
    seed: int

    def __post_init__(self) -> None:
        if self.greedy:
            if self.temperature is not None:
                raise ValueError(
                    "--greedy takes the likeliest token, and --temperature says how to draw one: leave one out"
                )
            if drawing := [option for option in self.given if option in ("--top-k", "--top-p", "--min-p")]:
                raise ValueError(
                    f"--greedy takes the likeliest token, and {drawing[0]} says among which to draw: leave one out"
                )
        if self.temperature is not None and not 0.01 <= self.temperature <= 100:
            raise ValueError(
                f"--temperature is {self.temperature}, but must be from 0.01 to 100 (--greedy takes the likeliest "
                "token)"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"--top-k is {self.top_k}, but must be at least 1")
        for option, value in (("--top-p", self.top_p), ("--min-p", self.min_p)):
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{option} is {value}, but must be above 0 and at most 1")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise ValueError(
                f"--repetition-penalty is {self.repetition_penalty}, but must be from 0.01 to 100 (1 for none)"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed is {self.seed}, but must not be negative, and below 2^63")

    @property
    def given(self) -> list[str]:
        """The options that say how to choose."""
        options = {
            "--greedy": self.greedy or None,
            "--temperature": self.temperature,
            "--top-k": self.top_k,
            "--top-p": self.top_p,
            "--min-p": self.min_p,
            "--repetition-penalty": None if self.repetition_penalty == 1 else self.repetition_penalty,
        }
        return [option for option, value in options.items() if value is not None]

    def sampler(self, device: Any) -> Callable[[Any], Any]:
        """From logits (B, V) to ids (B,), drawn there; the same seed draws the same."""
        import torch

        from lm.decoding.sampling import choose

        temperature = TEMPERATURE if self.temperature is None else self.temperature
        return partial(
            choose,
            temperature_value=0.0 if self.greedy else temperature,
            k=self.top_k,
            p=self.top_p,
            smallest_share=self.min_p,
            generator=torch.Generator(device).manual_seed(self.seed),
        )
