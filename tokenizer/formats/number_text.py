"""Numbers as `tokenizers` reads them from tokenizer.json: not always the nearest float64.

Its reader (serde_json without float_roundtrip) rounds twice: the digits become a float64, which is then divided by a
power of ten. A quarter of T5's scores are off by one unit in the last place, and ties between segmentations depend on
this. So scores are read by the same rule, and written so that this rule reads them back unchanged.
"""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_LARGEST = 2**64 - 1  # digits are collected in 64 bits
_ALL_FIT = 19  # digits, whatever they are
_LARGEST_POWER = 308
_POWERS = 20  # powers of ten that `number_text` tries


def read_number(text: str) -> float:
    """Return the value of a JSON number. Raises ValueError, which completes a sentence about the file, on overflow."""
    match = _NUMBER.fullmatch(text)
    assert match is not None, "the JSON parser has found a number"
    sign, whole, fraction, exponent_text = match.groups(default="")
    value, power = _collect(whole, fraction)
    exponent = max(-(2**31), min(2**31 - 1, power + int(exponent_text[:12] or 0)))
    number = float(value)
    while exponent < -_LARGEST_POWER and number:
        number /= 1e308
        exponent += _LARGEST_POWER
    if number:
        too_large = exponent > _LARGEST_POWER
        number = math.inf if too_large else _scale(number, exponent)
    if math.isinf(number):
        raise ValueError(f"has the number {text[:80]}, which is too large")
    return -number if sign else number


def _collect(whole: str, fraction: str) -> tuple[int, int]:
    """Return the digits that fit in 64 bits as an integer, and the power of ten to multiply it by."""
    if len(whole) + len(fraction) <= _ALL_FIT:
        return int(whole + fraction), -len(fraction)
    value, power = 0, 0
    for place, digit in enumerate(whole):
        if 10 * value + int(digit) > _LARGEST:
            power = len(whole) - place  # all later digits of the whole part are dropped
            break
        value = 10 * value + int(digit)
    for digit in fraction:
        if 10 * value + int(digit) > _LARGEST:
            break
        value = 10 * value + int(digit)
        power -= 1
    return value, power


def _scale(number: float, exponent: int) -> float:
    power = float(f"1e{abs(exponent)}")  # `**` is not always the nearest float64
    return number * power if exponent >= 0 else number / power


def number_text(value: float) -> str:
    """Return a JSON number that `read_number` reads as `value`, a finite float64.

    Raises ValueError if it finds none: for about one float64 in a thousand, but never for a result of `read_number`.
    """
    text = repr(value)
    if read_number(text) == value:
        return text
    # Digits that float64 holds exactly are rounded only by the power. A few powers reach almost every float64; numbers
    # near 1e-300 are rounded by two powers and need more of them.
    magnitude = abs(value)
    largest = math.floor(math.log10(_LARGEST)) - math.floor(math.log10(magnitude))
    for power in range(largest, largest - _POWERS, -1):
        beyond = max(0, power - _LARGEST_POWER)
        nearest = _scale(_scale(magnitude, power - beyond), beyond)
        for digits in (nearest, math.nextafter(nearest, 0), math.nextafter(nearest, math.inf)):
            if digits.is_integer():
                text = f"{'-' if value < 0 else ''}{int(digits)}e{-power}"
                if read_number(text) == value:
                    return text
    raise ValueError(
        f"no number in tokenizer.json is read by tokenizers as the score {value!r}; use "
        f"{read_number(repr(value))!r} instead"
    )
