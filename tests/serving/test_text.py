"""Text released token by token equals the text of all tokens at once."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.serving.growing_text import GrowingText

# Few letters, so that stop strings occur, overlap and contain each other; characters of one to four bytes, and bytes
# that are no UTF-8.
LETTERS = st.text("abé€😀", max_size=30).map(str.encode)
BYTES = st.one_of(LETTERS, st.binary(max_size=12), st.builds(bytes.__add__, LETTERS, st.binary(max_size=4)))
STOPS = st.lists(st.text("abé€😀\ufffd", min_size=1, max_size=4), max_size=4)


def cut(data, draw):
    """Return the bytes in random pieces."""
    borders = sorted(draw(st.lists(st.integers(0, len(data)), max_size=20)))
    return [data[a:b] for a, b in zip([0, *borders], [*borders, len(data)], strict=True)]


def stopped_at(text, stops):
    """Return the text before the stop string that is complete first, found by reading character by character."""
    for end in range(len(text) + 1):
        if ending := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - len(max(ending, key=len))], True
    return text, False


@given(BYTES, STOPS, st.data())
def test_the_pieces_are_the_text_before_the_first_stop_string(data, stops, draw):
    growing = GrowingText(stops)
    text = "".join([growing.add(piece) for piece in cut(data, draw.draw)] + [growing.end()])
    assert (text, growing.stopped) == stopped_at(data.decode(errors="replace"), stops)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_stop_string_is_found_wherever_pieces_end(size):
    text = "aab€abb"
    data = text.encode()
    for begin, end in combinations(range(len(text) + 1), 2):
        growing = GrowingText([text[begin:end]])
        found = "".join(growing.add(data[at : at + size]) for at in range(0, len(data), size)) + growing.end()
        assert found == text[: text.index(text[begin:end])]


@given(BYTES, STOPS, st.data())
def test_released_text_is_never_taken_back(data, stops, draw):
    """Whatever comes later, the text starts with the released text."""
    later = draw.draw(BYTES)
    growing = GrowingText(stops)
    given_out = "".join(growing.add(piece) for piece in cut(data, draw.draw))
    assert stopped_at((data + later).decode(errors="replace"), stops)[0].startswith(given_out)


@given(BYTES, st.data())
def test_without_stop_strings_every_complete_character_is_released_at_once(data, draw):
    growing, read = GrowingText(), b""
    for piece in cut(data, draw.draw):
        growing.add(piece)
        read += piece
        whole = read.decode(errors="replace")
        # At most one character is incomplete. It would show as U+FFFD, and the first two bytes of a surrogate as two.
        surrogate = len(read) > 1 and read[-2] == 0xED and 0xA0 <= read[-1] < 0xC0
        assert whole[growing.characters :] in ("", "\ufffd" * (1 + surrogate))


def test_a_stop_string_in_the_prompt_does_not_count():
    growing = GrowingText(["ab"])
    assert growing.prompt(b"xaba") == "xaba"
    assert growing.add(b"b") + growing.add(b"ab") + growing.end() == "b"
    assert growing.stopped
