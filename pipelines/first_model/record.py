"""train.json in the folder of `bytelm train`: the text, and the training that each model was asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from lm.config_costs import flops_per_token
from lm.values import read_as
from pipelines.cli.display import count_text
from pipelines.files import read_json, write_json
from pipelines.first_model.choices import Kind
from pipelines.first_model.text_facts import TextFacts
from pipelines.run.folder import Run

NAME = "train.json"


@dataclass(frozen=True)
class Asked:
    """The training of a model."""

    minutes: float | None
    """The minutes asked for; None if tokens or FLOPs were given"""
    tokens: int
    flops: float | None = None
    """The floating-point operations asked for"""


@dataclass(frozen=True)
class Source:
    """The text of a call."""

    corpus: tuple[str, ...]
    """Names of corpora, and absolute paths"""
    options: dict[str, str]
    """Options that decide how the corpus is read and split"""
    documents: int
    bytes: int
    fingerprint: str
    """Of all documents and their splits"""

    @classmethod
    def of(cls, corpus: Sequence[str], options: Mapping[str, Any], text: TextFacts) -> "Source":
        """Return the source of the text with the facts `text`."""
        names = tuple(str(Path(name).resolve()) if Path(name).exists() else name for name in corpus)
        given = {
            name: " ".join(value) if isinstance(value, list | tuple) else str(value) for name, value in options.items()
        }
        return cls(names, given, sum(text.documents.values()), text.bytes, text.fingerprint)

    def changes(self, now: "Source") -> list[str]:
        """Return what differs between this source and a later one, in words."""
        was = {"the corpus": " ".join(self.corpus)} | {f"`{name}`": value for name, value in self.options.items()}
        new = {"the corpus": " ".join(now.corpus)} | {f"`{name}`": value for name, value in now.options.items()}
        found = [
            f"{name} was {was.get(name, 'left out')}, and is {new.get(name, 'left out')} now"
            for name in dict.fromkeys([*was, *new])
            if was.get(name) != new.get(name)
        ]
        then, later = (f"{count_text(each.documents, 'document')} of {each.bytes:,} bytes" for each in (self, now))
        if then != later:
            found.append(f"it had {then} in all, and has {later} now")
        return found or ["its files have changed"]


@dataclass
class Record:
    """The content of train.json."""

    text: Source | None = None
    """None before the first call"""
    models: dict[str, Asked] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> "Record":
        """Return the record in the folder `out`, an empty one for a new folder.

        The length of a run that train.json lacks comes from the recipe of the run.
        """
        path = out / NAME
        record = cls() if not path.exists() else cls._read(path)
        for kind in set(get_args(Kind)) - record.models.keys():
            if (out / kind / "config.toml").exists():
                train = Run(out / kind).recipe.train
                record.models[kind] = Asked(train.minutes or None, train.tokens)
        return record

    @classmethod
    def _read(cls, path: Path) -> "Record":
        remedy = "remove the file, and the next call writes it again"
        content = read_json(path, remedy)
        try:
            record: Record = read_as(cls, content)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): {remedy}") from None
        return record

    def write(self, out: Path) -> None:
        write_json(out / NAME, asdict(self))

    def check_text(self, out: Path, text: Source) -> None:
        """Raise ValueError if the record in `out` is about another text, or other splits of it."""
        if self.text and self.text.fingerprint != text.fingerprint:
            changes = "; ".join(self.text.changes(text))
            raise ValueError(f"{out} was made from another text ({changes}): choose another `out`, or undo the change")

    def check_budget(
        self, out: Path, kind: Kind, minutes: float | None, tokens: int | None, flops: float | None
    ) -> None:
        """Raise ValueError if the call asks for less training than before."""
        before = self.models.get(kind)
        if before is None:
            return
        trained, planned, most, of_time = 0.0, 0.0, before.tokens, ""
        if (out / kind / "config.toml").exists():
            run = Run(out / kind)
            if before.minutes:  # the recorded tokens are an estimate
                read = max((line["tokens"] for line in run.metrics()), default=0)
                most, of_time = max(most, read), f" planned for {before.minutes:g} minutes" if read < most else ""
            trained, planned = run.seconds() / 60, most * flops_per_token(run.recipe.model)
        if tokens and tokens < most:
            less, more = f"`tokens={tokens}`", f"{most:,} tokens{of_time}"
        elif minutes and before.minutes and minutes < before.minutes:
            less, more = f"`minutes={minutes:g}`", f"{before.minutes:g} minutes"
        elif minutes and not before.minutes and minutes <= trained:
            less, more = f"`minutes={minutes:g}`", f"{trained:.3g} minutes"
        elif flops and before.flops and flops < before.flops:
            less, more = f"`flops={flops:g}`", f"{before.flops:g} FLOPs"
        elif flops and flops != before.flops and flops < planned:
            less, more = f"`flops={flops:g}`", f"{planned:.3g} FLOPs"
        else:
            return
        raise ValueError(
            f"{out / kind} is a training of {more}, which {less} would shorten: leave the option out, give more, or "
            "choose another `out`"
        )
