"""Protocol Buffers' wire format, as far as SentencePiece models need it: a strict reader and a writer of fields.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # wire types; groups (3 and 4) are not used
_LONGEST_VARINT = 10  # bytes
Value = int | bytes


def fields(message: bytes) -> Iterator[tuple[int, int, Value]]:
    """Yield the number, wire type and value of each field of a message, in order.

    The value is a whole number for VARINT, else bytes. Raises ValueError, which completes a sentence about the file.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        value: Value
        if kind == VARINT:
            value, place = _varint(message, place)
        elif kind in (BYTES, FIXED_32, FIXED_64):
            size, place = _varint(message, place) if kind == BYTES else (4 if kind == FIXED_32 else 8, place)
            if size > len(message) - place:
                raise ValueError(f"is cut off within field {number} of a message, which has {size:,} bytes")
            value, place = message[place : place + size], place + size
        else:
            raise ValueError(f"has a field {number} of wire type {kind}, which no SentencePiece model has")
        yield number, kind, value


def message(*contents: tuple[int, int | bytes | float]) -> bytes:
    """Return the message with these fields, given by number and value.

    An int becomes a VARINT, bytes become BYTES, and a float becomes a float32. Raises OverflowError for a float
    that float32 cannot store.
    """
    parts = []
    for number, value in contents:
        if isinstance(value, int):
            parts += [_written_varint(number << 3 | VARINT), _written_varint(value % (1 << 64))]
        elif isinstance(value, bytes):
            parts += [_written_varint(number << 3 | BYTES), _written_varint(len(value)), value]
        else:
            parts += [_written_varint(number << 3 | FIXED_32), struct.pack("<f", value)]
    return b"".join(parts)


def _written_varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return an unsigned number of up to 64 bits, and the place after it."""
    value = 0
    for k, byte in enumerate(message[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, place + k + 1
    raise ValueError("is cut off or damaged within a number")
