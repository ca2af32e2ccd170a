"""train.json in the folder of `bytelm train`: the text, and the training that each model was asked for."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from lm.values import read_as
from pipelines.files import read_json, write_json
from pipelines.first_model.choices import Kind
from pipelines.first_model.text_facts import TextFacts

NAME = "train.json"


@dataclass(frozen=True)
class Asked:
    """The training of a model: its time in minutes, None if only tokens were given, and its tokens."""

    minutes: float | None
    tokens: int


@dataclass
class Record:
    """The content of train.json."""

    text: str = ""
    """Fingerprint of the text and its splits; empty before the first call"""
    models: dict[str, Asked] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> "Record":
        """Return the record in the folder `out`; an empty one if there is none."""
        path = out / NAME
        if not path.exists():
            return cls()
        remedy = "remove the file, and the next call writes it again"
        content = read_json(path, remedy)
        try:
            record: Record = read_as(cls, content)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): {remedy}") from None
        return record

    def write(self, out: Path) -> None:
        write_json(out / NAME, asdict(self))

    def check_text(self, out: Path, text: TextFacts, name: str) -> None:
        """Raise ValueError if the record in `out` is about another text, or other splits of it."""
        if self.text and self.text != text.fingerprint:
            raise ValueError(
                f"{out} was made from another text than {name}, or with another split or other reading options: "
                "choose another `out`"
            )

    def check_budget(self, out: Path, kind: Kind, minutes: float | None, tokens: int | None) -> None:
        """Raise ValueError if the call asks for less training than before."""
        before = self.models.get(kind)
        if before is None:
            return
        if tokens and tokens < before.tokens:
            less, more = f"`tokens={tokens}`", f"{before.tokens:,} tokens"
        elif minutes and before.minutes and minutes < before.minutes:
            less, more = f"`minutes={minutes:g}`", f"{before.minutes:g} minutes"
        else:
            return
        raise ValueError(
            f"{out / kind} is a training of {more}, which {less} would shorten: leave the option out, give more, or "
            "choose another `out`"
        )
