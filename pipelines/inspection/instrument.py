"""An instrument of `bytelm inspect`: its options, and what it finds inside a run.

Each module of `pipelines.inspection.instruments` defines one Instrument and its Result. As for measurements, the
terminal shows any Result, and JSON has its fields. The page also shows its `pictures`, if it has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipelines.evaluation.measurement import Result

if TYPE_CHECKING:
    from lm.config import ModelConfig
    from pipelines.run.loaded_run import LoadedRun


@dataclass(frozen=True, kw_only=True)
class Instrument:
    """An instrument. Its fields are options of `bytelm inspect`, and need defaults and docstrings.

    Its constructor raises ValueError for options that are wrong for every run.
    """

    result: ClassVar[type[Result]]
    """The kind of result. Its `section` defines the numbers and says what the instrument cannot tell"""
    reads_text: ClassVar[bool] = True
    """Whether the result is about a text"""
    usual: ClassVar[bool] = True
    """Whether inspect uses the instrument if none is named"""

    def check(self, config: ModelConfig) -> None:
        """Raise ValueError for a model that the instrument cannot read."""

    def look(self, run: LoadedRun, text: str) -> Result:
        """Return what the instrument finds in a run that reads `text`; without `reads_text`, the text is empty."""
        raise NotImplementedError

    def look_at(self, run: LoadedRun, texts: Sequence[str]) -> list[Result]:
        """Return a result for each text; without `reads_text`, a single result."""
        return [self.look(run, text) for text in (texts if self.reads_text else [""])]


def require_decoder(config: ModelConfig, name: str) -> None:
    """Raise ValueError unless the model is a decoder. The message calls the instrument `name`."""
    if config.architecture != "decoder":
        raise ValueError(f"model.architecture is {config.architecture!r}, but {name} needs a decoder")
