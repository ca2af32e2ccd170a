"""The part of the original text that each Unigram token stands for, as `tokenizers` aligns it, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from tokenizer.encoding.unigram_lattice import Lattices
from tokenizer.splitting.metaspace_splitter import RUNS
from tokenizer.splitting.normalizers import MARK, Precompiled, Replace, Strip, most_characters
from tokenizer.text import WHITE_SPACE, character_starts, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.encoding.spans import Spans
    from tokenizer.splitting.precompiled_map import CharacterMap
    from tokenizer.unigram_vocabulary import UnigramVocabulary

    # Characters, each with the (start, end) of the characters of the original text that it stands for.
    Aligned = list[tuple[str, tuple[int, int]]]

CACHED_WORDS = 1 << 16


class UnigramSpans:
    """Maps a text to its Unigram ids and the bytes that each stands for."""

    def __init__(self, vocabulary: UnigramVocabulary):
        self._vocabulary = vocabulary
        self._pieces = lru_cache(maxsize=CACHED_WORDS)(self._pieces_of(Lattices(vocabulary)))
        if vocabulary.pattern.cuts == RUNS:
            raise ValueError("offsets of words that keep all white space are not supported: use encode")
        for step in vocabulary.pattern.normalizers:
            if not isinstance(step, (Precompiled, Replace, Strip)):
                raise ValueError(f"offsets after the normalizer {type(step).__name__} are not supported: use encode")

    def __call__(self, data: bytes) -> tuple[list[int], Spans]:
        text, starts = read_text(data), character_starts(data)
        ids: list[int] = []
        spans: Spans = []
        for word in self._words([(character, (at, at + 1)) for at, character in enumerate(text)]):
            place = 0
            for length, found in self._pieces("".join(character for character, _ in word)):
                span = starts[word[place][1][0]], starts[word[place + length - 1][1][1]]
                ids += found
                spans += [span] * len(found)
                place += length
        return ids, spans

    def _pieces_of(self, lattices: Lattices) -> Callable[[str], list[tuple[int, list[int]]]]:
        """Return a function from a word to the number of characters and the ids of each piece. Unknown ones join."""
        unknown = self._vocabulary.unknown

        def pieces(word: str) -> list[tuple[int, list[int]]]:
            joined: list[list[tuple[str, int]]] = []
            for text, i in lattices.best_path(word.replace(MARK, " ")):
                if joined and i == unknown == joined[-1][-1][1]:
                    joined[-1].append((text, i))
                else:
                    joined.append([(text, i)])
            return [(sum(len(text) for text, _ in path), lattices.ids_of(path)) for path in joined]

        return pieces

    def _words(self, text: Aligned) -> Iterator[Aligned]:
        """Yield the words of a text. They join to what `MetaspaceWords.pretokens` joins to, with marks for spaces."""
        words = self._vocabulary.pattern
        most = most_characters(len(text))
        for step in words.normalizers:
            if isinstance(step, Replace):
                step.check_growth(["".join(character for character, _ in text)], most)
            text = _normalized(text, step)
        for part in _cut(text, lambda c: c in WHITE_SPACE, drops=True) if words.whitespace_split else [text]:
            marked = [(MARK if character == " " else character, span) for character, span in part]
            if words.prepends and marked and marked[0][0] != MARK:
                marked.insert(0, (MARK, marked[0][1]))
            yield from _cut(marked, lambda c: c == MARK, drops=False) if words.cuts else [marked] if marked else []


def _cut(text: Aligned, is_cut: Callable[[str], bool], drops: bool) -> Iterator[Aligned]:
    """Yield the parts of a text, which end before each such character. drops: whether these characters are left out."""
    part: Aligned = []
    for character, span in text:
        if is_cut(character):
            if part:
                yield part
            part = [] if drops else [(character, span)]
        else:
            part.append((character, span))
    if part:
        yield part


def _normalized(text: Aligned, step: Precompiled | Replace | Strip) -> Aligned:
    """Return the normalized text, aligned as in `tokenizers`."""
    plain = "".join(character for character, _ in text)
    if isinstance(step, Strip):
        first = len(plain) - len(plain.lstrip(WHITE_SPACE)) if step.left else 0
        last = len(plain.rstrip(WHITE_SPACE)) if step.right else len(plain)
        return text[first : max(first, last)]
    if isinstance(step, Replace):
        replaced: Aligned = []
        done = 0
        for start, end in step.spans(plain):
            # The new text stands for the last character of the match.
            replaced += text[done:start] + [(character, text[max(start, end - 1)][1]) for character in step.content]
            done = end
        return replaced + text[done:]
    return _transformed(text, _changes(plain, step.characters))


def _changes(text: str, characters: CharacterMap) -> list[list[str | int]]:
    """Return the characters of the mapped text with the changes that `tokenizers` computes.

    0: the character replaces one character. 1: it is inserted. -n: it replaces one, and the n after it are removed.
    """
    changes: list[list[str | int]] = []
    for old, new in characters.replacements(text):
        changes += [[character, 0] for character in new]
        more = len(new) - len(old)
        if more > 0:
            for change in changes[-more:]:
                change[1] = 1
        elif more < 0 and changes:
            changes[-1][1] += more  # type: ignore[operator]  # a number
    return changes


def _transformed(text: Aligned, changes: Iterable[list[str | int]]) -> Aligned:
    """Return the characters of `changes`, aligned to the characters that they replace or follow."""
    transformed: Aligned = []
    at = 0
    for character, change in changes:
        assert isinstance(character, str)
        assert isinstance(change, int)
        if change > 0:
            transformed.append((character, text[at - 1][1] if at else (0, 0)))
        else:
            transformed.append((character, text[min(at, len(text) - 1)][1]))
            at += 1 - change
    return transformed
