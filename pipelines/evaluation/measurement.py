"""A measurement of `bytelm evaluate`: its options, its result, and the words that show the result.

Each module of `pipelines.evaluation.measurements` defines one Measurement and its Result. A Result is an entry of
evaluation.json: it is written from the fields of the dataclass, and read back into them. The terminal and the page show
any Result. They know its numbers, rows, sentences and tables, but not what was measured.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from lm.values import read_as

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pipelines.evaluation.planning import EvaluationOptions
    from pipelines.evaluation.split import Chunk, ScoredSplit, Split
    from pipelines.reporting.pictures import Picture
    from pipelines.run.folder import Run

T = TypeVar("T", bound="DataclassInstance")


class Number(NamedTuple):
    """A number as people read it: name with unit, definition, and digits after the decimal point."""

    name: str
    definition: str
    digits: int = 3
    headline: bool = False
    """Whether the number is in the results at the top of the page"""
    exp_of: str = ""
    """The number in nats whose exponential it is"""
    setting: bool = False
    """Whether evaluation.json keeps two evaluations that differ in this number"""


def number(
    name: str,
    definition: str,
    digits: int = 3,
    *,
    headline: bool = False,
    exp_of: str = "",
    setting: bool = False,
    default: Any = MISSING,
) -> Any:
    """Return a field of a Result that is a number to read."""
    return field(default=default, metadata={"number": Number(name, definition, digits, headline, exp_of, setting)})


class Table(NamedTuple):
    """A table with a title, the heads of its columns, and rows of a label and a cell for each column."""

    title: str
    label: str
    """Head of the column of labels"""
    heads: list[str]
    rows: list[tuple[str, list[str]]]
    shares: bool = False
    """Whether the last column has shares of a whole"""
    text: bool = False
    """Whether the cells are texts"""


class Section(NamedTuple):
    """The section of a page that shows the tables of a kind of result."""

    heading: str
    note: str


class Opponent(NamedTuple):
    """Another code of the same text, with which a model is compared."""

    name: str
    """Name in a sentence"""
    label: str
    """Name in a plot"""
    bits_per_byte: float
    knows_training: bool = False


def with_fields_of(new: T, old: T) -> T:
    """Return a dataclass with the fields of `old` where `new` has None."""
    missing = [field.name for field in fields(new) if getattr(new, field.name) is None]
    return replace(new, **{name: getattr(old, name) for name in missing})


@dataclass(frozen=True)
class Result:
    """A result of a split. A field that has its default is left out of evaluation.json."""

    key: ClassVar[str] = ""
    """Entry of evaluation.json that holds the fields; "" puts them among the numbers of the split"""
    only: ClassVar[str] = ""
    """The one field of a result, whose value is the whole entry"""
    section: ClassVar[Section | None] = None
    above: ClassVar[bool] = False
    """Whether the page has the sentences above the results"""
    more_definitions: ClassVar[tuple[Number, ...]] = ()
    """Definitions of `rows`"""

    @classmethod
    def numbers(cls) -> dict[str, Number]:
        """Return the fields that are numbers to read."""
        return {one.name: one.metadata["number"] for one in fields(cls) if "number" in one.metadata}

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """Return the result in an entry of evaluation.json, None for null; ValueError if it is damaged."""
        if cls.only and value is not None:
            value = {cls.only: value}
        try:
            result: Self | None = read_as(cls | None, value)
        except ValueError:
            raise ValueError(f"in {cls.key or f'the numbers of {cls.__name__}'} of a split") from None
        return result

    def to_json(self) -> Any:
        """Return the value of the entry of evaluation.json."""
        return _plain(getattr(self, self.only) if self.only else self)

    def entry(self) -> dict[str, Any]:
        """Return the keys of a split in evaluation.json that hold the result."""
        value = self.to_json()
        return {self.key: value} if self.key else dict(value)

    def completed_by(self, old: Self) -> Self:
        """Return the result; what it lacks comes from the `old` one, which was measured with the same settings."""
        return self if self.key else with_fields_of(self, old)

    @classmethod
    def mean(cls, shares: Sequence[float], results: Sequence[Self]) -> Self | None:
        """Return the result of a mixture of texts from the results of its sources; None if it has no mean.

        `shares` are fractions of the tokens of the mixture and add up to 1.
        """
        return None

    def rows(self) -> dict[str, str]:
        """Return rows of the table of numbers that are not fields: names and cells."""
        return {}

    def sentences(self, tokens: int) -> list[str]:
        """Return the sentences below the table of numbers of a split with `tokens` scored tokens."""
        return []

    def parts(self) -> list[Table | str]:
        """Return the tables and sentences of the section."""
        return []

    def pictures(self) -> "Sequence[Picture]":
        """Return the pictures of the section."""
        return []

    def opponents(self) -> list[Opponent]:
        """Return other codes of the same text."""
        return []


class Observer(Protocol):
    """Sums up a result while the model scores a split."""

    def update(self, chunk: "Chunk") -> None:
        """Consider some positions."""

    def result(self, split: "ScoredSplit") -> Result:
        """Return the result. Needs at least one position."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A measurement. Its fields are options of `bytelm evaluate`."""

    result: ClassVar[type[Result]]
    shown_by: ClassVar[str] = ""
    """The option with which the terminal shows the section of the result"""

    @property
    def shown(self) -> bool:
        """Whether the terminal shows the section of the result."""
        return bool(self.shown_by and getattr(self, self.shown_by))

    def check(self, run: "Run", options: "EvaluationOptions") -> None:
        """Raise ValueError for options that do not fit `run`. Called if an option differs from its default."""

    def observer(self, split: "Split") -> Observer | None:
        """Return what sums up the result from the logits of a split; None for a measurement or split without one."""
        return None

    def measure(self, split: "ScoredSplit") -> Result | None:
        """Return the result of a split after the model has scored it, None if there is none."""
        return None


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if is_dataclass(value):
        given = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: _plain(kept) for one, kept in given if one.default is MISSING or kept != one.default}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
