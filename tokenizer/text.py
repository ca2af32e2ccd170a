"""Text as bytes: UTF-8, and the Unicode normalization forms of `tokenizers`."""

from __future__ import annotations

from functools import cache
from itertools import accumulate

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Literal

WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
# Code points that normalization changes, composes or reorders only in Unicode versions after 9. `tokenizers` follows
# Unicode 9: they stay in place, and nothing composes across them.
_SINCE_UNICODE_9 = (
    "558 58B-58C 5C8-5C9 7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1AF0 1DF6-1DFA 209D-209F 32FF A7F1-A7F4 "
    "A82C AB69 105C9 105D2 105DA 105E4 10781-10785 10787-107B0 107B2-107BF 10D24-10D27 10D69-10D6D 10EAB-10EAC "
    "10ECB-10ECF 10EF0-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11382-11385 1138B 1138E 11390-11391 "
    "113B8 113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E 11839-1183A 11930 11935 11938 1193D-1193E 11943 119E0 "
    "11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 1611E-16129 1612F 16D63 16D67-16D6A 16FF0-16FF1 "
    "1B123-1B126 1CCD6-1CCF9 1D127-1D128 1D250-1D252 1D25B-1D25C 1D25F 1D280-1D281 1D6A6 1DF95 1DFCD-1DFFF "
    "1E030-1E06D 1E08F 1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5 1F16C "
    "1FBF0-1FBF9"
)
_INVALID = {0xDC00 + byte: "\ufffd" for byte in range(0x80, 0x100)}  # as surrogateescape decodes them


def text_bytes(text: str | bytes | bytearray | memoryview) -> bytes:
    """Return a str as UTF-8, or bytes unchanged. Raises ValueError for a surrogate, with its position."""
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(_surrogates(text, error.start)) from None
    if isinstance(text, bytes):
        return text
    if isinstance(text, (bytearray, memoryview)):
        return bytes(text)
    raise ValueError(f"text must be str or bytes, not {type(text).__name__}")


def _surrogates(text: str, place: int) -> str:
    """Return the error message for the surrogate at `place`: one half of a pair, or a lone one."""
    high, low = (ord(character) for character in text[place : place + 2].ljust(2))
    if 0xD800 <= high < 0xDC00 <= low < 0xE000:
        character = 0x10000 + (high - 0xD800) * 0x400 + (low - 0xDC00)
        return (
            f"the text has a surrogate pair (U+{high:04X} U+{low:04X}) at character {place} instead of "
            f"U+{character:04X}; repair it with text.encode('utf-16', 'surrogatepass').decode('utf-16')"
        )
    return (
        f"the text has a lone surrogate (U+{high:04X}) at character {place}, "
        "which UTF-8 cannot represent; repair the text, or pass bytes"
    )


def read_text(data: bytes) -> str:
    """Return the text of UTF-8. Each byte of invalid UTF-8 is read as U+FFFD."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="surrogateescape").translate(_INVALID)


def character_starts(data: bytes) -> list[int]:
    """Return the byte offset of each character of `read_text`, and of the text's end."""
    characters = data.decode(errors="surrogateescape")
    return [*accumulate((len(c.encode(errors="surrogateescape")) for c in characters), initial=0)]


def nfc(data: bytes) -> bytes:
    """Return UTF-8 text in NFC as in tokenizers, for any Unicode version of Python. Invalid UTF-8 stays unchanged."""
    if data.isascii():
        return data
    text = data.decode("utf-8", "surrogateescape")
    composed = normal_form(text, "NFC")
    return data if composed is text else composed.encode("utf-8", "surrogateescape")


def normal_form(text: str, form: Literal["NFC", "NFD", "NFKC", "NFKD"]) -> str:
    """Return a text in a normalization form as in tokenizers; the same object if it is in this form already."""
    import unicodedata

    if text.isascii() or unicodedata.is_normalized(form, text):
        return text
    return _unicode_9_stretches().sub(lambda stretch: unicodedata.normalize(form, stretch.group()), text)


@cache
def _unicode_9_stretches() -> re.Pattern[str]:
    """Return a regex for the longest stretches without the code points that must stay in place."""
    import re

    runs = (run.split("-") for run in _SINCE_UNICODE_9.split())
    return re.compile("[^" + "".join(f"{chr(int(run[0], 16))}-{chr(int(run[-1], 16))}" for run in runs) + "]+")
