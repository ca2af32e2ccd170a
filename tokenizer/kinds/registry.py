"""The kinds of vocabularies, and which of them a splitter or a tokenizer.json belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from tokenizer.splitting.patterns import resolve_pattern
from tokenizer.splitting.splitter import Splitter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from tokenizer.kinds.kind import Kind

    KINDS: tuple[Model, ...]
else:

    class Literal:
        """A stand-in for `typing.Literal` whose items are a plain tuple: typing takes longer to import."""

        def __class_getitem__(cls, names: tuple[str, ...]) -> tuple[str, ...]:
            return names


Model = Literal["bpe", "wordpiece", "unigram", "characters", "words", "integers", "character-bpe"]
"""The name of a kind. Its module, with an underscore for each hyphen, defines it as `KIND`.

A file belongs to the first kind that reads it. Characters and integers precede BPE over characters, which reads their
files, too.
"""
if not TYPE_CHECKING:
    KINDS = Model


@cache
def kind_named(name: str) -> Kind:
    """Return the kind with a name in `KINDS`."""
    kind: Kind = import_module(f"tokenizer.kinds.{name.replace('-', '_')}").KIND
    return kind


def all_kinds() -> Iterator[Kind]:
    """Yield all kinds."""
    return map(kind_named, KINDS)


def kind_of(content: Any) -> Kind:
    """Return the kind that reads this value of a tokenizer.json; BPE, whose reader names the fault, if none."""
    return next((kind for kind in all_kinds() if kind.reads(content)), kind_named("bpe"))


def kind_trained_on(splitter: Splitter) -> Kind:
    """Return the kind that is trained on this splitter: the one whose default it is, or else the first one.

    BPE, which grows on every splitter, if none is trained on it.
    """
    kinds = [kind for kind in all_kinds() if kind.accepts(splitter)] or [kind_named("bpe")]
    return next((kind for kind in kinds if kind.default_pattern == splitter.spelling), kinds[0])


def resolve_splitter(spelling: str | Splitter) -> Splitter:
    """Return the splitter with this `spelling`: words of some kind, or else the pattern from `resolve_pattern`."""
    if isinstance(spelling, Splitter):
        return spelling
    splitters = (kind.splitter_of(spelling) for kind in all_kinds()) if isinstance(spelling, str) else ()
    return next((splitter for splitter in splitters if splitter is not None), None) or resolve_pattern(spelling)
