"""The interface of kinds of vocabularies, for training, files and reports."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from tokenizer.special import check_special_tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.vocabulary import Vocabulary


class Kind:
    """A kind of vocabulary. Its module has one instance as `KIND`, and its name is in `registry.Model`."""

    name: str
    title: str
    """The name in reports."""
    entries = "word pieces"
    """The ordinary entries in reports, in the plural."""
    is_lossless = False
    """Whether ids decode exactly to the text."""
    merges = False
    """Whether training merges pairs of tokens."""
    merges_characters = False
    """Whether these are pairs of characters or integers, not of bytes."""
    patterns: Collection[str]
    """Names of its splitters."""
    default_pattern: str
    exact_pattern: str
    """Name of the usual splitter that loses the least text."""
    no_growth = "new tokens would change how texts are cut into the old ones"
    """Why training cannot go on from a vocabulary; empty if it can."""
    takes_regex = False
    """Whether a regular expression is a splitter, too."""
    needed_splitter: str
    """The splitters that it accepts, for messages."""
    options: Collection[str] = ()
    """The options of training that only some kinds have."""
    pretokens = "normalized words"
    """The text that training counts, in reports; empty if it is all text."""
    fixed_entries = 0
    """Number of ordinary entries that every vocabulary has."""
    phase: str | None = "merge"
    """The phase of training that follows counting; None if it takes no time."""
    kernels: str | None = None
    """The part of `first_use.PARTS` that training waits for."""

    @abstractmethod
    def splitter_of(self, spelling: str) -> Splitter | None:
        """Return the splitter with this spelling; None for a regular expression or the splitter of another kind."""

    @abstractmethod
    def accepts(self, splitter: Splitter) -> bool:
        """Return whether vocabularies are trained on the pretokens of this splitter."""

    def check(self, options: Options) -> None:
        """Raise ValueError for options with which no vocabulary of this kind can be trained."""

    def least_entries(self, options: Options) -> tuple[str, int]:
        """Return what training needs at least, without special tokens: in words, and the number of entries."""
        return "an entry", 1

    @abstractmethod
    def train(self, counts: PretokenCounts, options: Options) -> Vocabulary:
        """Return the vocabulary of pretokens whose splitter this kind accepts."""

    @abstractmethod
    def shortage(self, vocabulary: Vocabulary, options: Options) -> str:
        """Return why training made fewer entries than wanted."""

    def exact_options(self) -> dict[str, Any]:
        """Return the options of training with which tokens lose the least text."""
        return {}

    def describe_entries(self, entries: int, merges: int) -> str:
        """Return what a number of ordinary entries are, for a table."""
        return f"{entries:,} {self.entries}"

    @abstractmethod
    def reads(self, content: Any) -> bool:
        """Return whether the value of a tokenizer.json is of this kind. `content` may be any value."""

    @abstractmethod
    def read(self, content: Any) -> Vocabulary:
        """Return the vocabulary in the value of a tokenizer.json. ValueError names the field that is wrong."""

    @abstractmethod
    def json(self, vocabulary: Any) -> Iterator[str]:
        """Yield the text of tokenizer.json in parts."""

    def save(self, vocabulary: Vocabulary, folder: Path) -> None:
        """Write folder/tokenizer.json atomically, through a temporary file in the same folder."""
        from tokenizer.formats.strict_json import LARGEST_FILE
        from tokenizer.formats.whole_files import whole_file

        path = folder / "tokenizer.json"
        parts = self.json(vocabulary)
        first = next(parts)  # raises before the folder is created
        with whole_file(path) as partial, partial.open("wb") as file:
            file.writelines(part.encode() for part in chain([first], parts))
            if (size := file.tell()) > LARGEST_FILE:
                longest = max(len(token or b"") for token in vocabulary.tokens)
                raise ValueError(
                    f"{path} would have {size:,} bytes, more than the limit of {LARGEST_FILE:,} for loading it: a "
                    f"token has {longest:,} bytes, so train with a smaller `max_token_length`"
                )

    def with_special_tokens(self, vocabulary: Any, spellings: Sequence[str]) -> Vocabulary:
        """Return the vocabulary with more special tokens.

        Tokens of the vocabulary, such as [unused1], keep their ids. Other new spellings get ids after the largest one.
        """
        special, size = dict(vocabulary.special_tokens), vocabulary.size
        for spelling in new_spellings(vocabulary, spellings):
            known = vocabulary.spelled_id(spelling)
            special[spelling] = size if known is None else known
            size += known is None
        extended: Vocabulary = changed(vocabulary, special_tokens=special)
        return extended

    def required_ids(self, vocabulary: Any) -> set[int]:
        """Return the ids without which some texts could not be encoded. ValueError if no vocabulary can be trimmed."""
        raise ValueError(f"{self.title} cannot be trimmed")

    def with_ids(self, vocabulary: Any, ids: Mapping[int, int], **changes: Any) -> Vocabulary:
        """Return the vocabulary of some ids, given with their new numbers from 0 on, and with other `changes`."""
        raise NotImplementedError

    def as_tokenizers(self, vocabulary: Vocabulary) -> Vocabulary:
        """Return the vocabulary that encodes as `tokenizers` does."""
        return vocabulary

    def as_sentencepiece(self, vocabulary: Vocabulary) -> Vocabulary:
        """Return the vocabulary with the same pieces and ids that encodes as sentencepiece does."""
        raise ValueError(
            f"only Unigram and BPE over characters become SentencePiece models; this vocabulary is {self.name}"
        )


def new_spellings(vocabulary: Vocabulary, spellings: Sequence[str]) -> list[str]:
    """Return the spellings that are not special tokens yet. Raises ValueError for a spelling that is not allowed."""
    return [spelling for spelling in check_special_tokens(spellings) if spelling not in vocabulary.special_tokens]


def changed(vocabulary: Any, **changes: object) -> Any:
    """Return a vocabulary that differs in the given arguments of its class."""
    from inspect import signature

    from tokenizer.vocabulary import Vocabulary

    make = type(vocabulary)
    names = {*signature(make).parameters}
    if "common" in names:
        names = names - {"common"} | {*signature(Vocabulary).parameters} - {"largest"}
    return make(**{name: getattr(vocabulary, name) for name in names} | changes)
