"""The settings of an evaluation: its windows, the document mask and the dtype."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.planning import window_of
from pipelines.evaluation.split import ScoredSplit


@dataclass(frozen=True)
class Settings(Result):
    """The settings of an evaluation."""

    window: int = number("window, tokens", "Tokens in one input of the model.", 0, setting=True)
    stride: int = number(
        "stride, tokens",
        "Tokens from one window to the next. A stride below the window gives tokens more context, and takes longer.",
        0,
        setting=True,
    )
    min_context: int = number(
        "minimum context, tokens",
        "Positions with fewer tokens before them in a window are not scored.",
        0,
        setting=True,
    )
    document_mask: bool = number(
        "document mask", "Whether attention is limited to the document of the token.", setting=True
    )
    dtype: str = number("dtype", "Number format of activations and matrix products.", setting=True)
    trained_length: int | None = number(
        "trained length, tokens",
        "Tokens in one input of the model in training, if the evaluation reads another number.",
        0,
        setting=True,
        default=None,
    )
    rotary_scaling: str | None = number(
        "rotary scaling",
        "Change of the frequencies of rotary positions, to read beyond the trained length.",
        setting=True,
        default=None,
    )

    @classmethod
    def mean(cls, shares: Sequence[float], results: Sequence[Self]) -> Self:
        """Return the settings of the first source: all sources have the same."""
        return results[0]


@dataclass(frozen=True, kw_only=True)
class OfEvaluation(Measurement):
    """The settings. They are always recorded."""

    result = Settings

    def measure(self, split: ScoredSplit) -> Settings:
        windows, run, dtype = split.plan.windows, split.plan.run, split.trained.machine.dtype_name
        mask, trained = run.recipe.model.document_mask, window_of(run.trained_recipe)
        settings = Settings(windows.window, windows.stride, windows.min_context, mask, dtype)
        if windows.window == trained:
            return settings
        rotary = run.recipe.model.positions == "rotary"
        scaling = split.plan.options.rotary_scaling if rotary and windows.window > trained else None
        return replace(settings, trained_length=trained, rotary_scaling=scaling)


MEASUREMENT = OfEvaluation
