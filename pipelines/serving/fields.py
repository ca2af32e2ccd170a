"""The JSON objects of requests, field by field. A field that is null counts as left out."""

import json
import re
from collections.abc import Collection
from typing import Any

from starlette.requests import Request

from pipelines.serving.errors import RequestError

_SURROGATE = re.compile("[\ud800-\udfff]")


class Fields:
    """The fields of a request. The methods raise RequestError for a value of the wrong type or out of range."""

    def __init__(self, values: dict[str, Any], known: Collection[str]) -> None:
        """Raises RequestError for a field that is not `known`."""
        self.values = {name: value for name, value in values.items() if value is not None}
        for name in self.values:
            if name not in known:
                raise RequestError(400, f"{name} is not a field of this request: leave it out", param=name)

    def get(self, name: str) -> Any:
        """Return the value of a field, unchecked; None if it is left out."""
        return self.values.get(name)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Return a whole number from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return None
        if type(value) is not int or not low <= value <= high:
            raise _wrong(name, value, f"a whole number from {low:,} to {high:,}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a number from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not low <= value <= high:  # NaN is outside
            raise _wrong(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return true or false; False if it is left out."""
        value = self.values.get(name, False)
        if type(value) is not bool:
            raise _wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str:
        """Return a string, which may not be left out."""
        value = self.get(name)
        if not isinstance(value, str):
            raise _wrong(name, value, "a string")
        check_text(name, value)
        return value

    def ids(self, name: str) -> list[int]:
        """Return a list of whole numbers, which may not be left out."""
        value = self.get(name)
        if not is_ids(value):
            raise _wrong(name, value, "a list of token ids")
        ids: list[int] = value
        return ids


def check_text(name: str, *texts: str) -> None:
    """Raise RequestError for a string of the field `name` that UTF-8 cannot represent."""
    for text in texts:
        if found := _SURROGATE.search(text):
            message = (
                f"{name} has a lone surrogate, U+{ord(found[0]):X}, which UTF-8 cannot represent: send whole characters"
            )
            raise RequestError(400, message, param=name)


def is_ids(value: object) -> bool:
    """Return whether a value is a list of whole numbers."""
    return isinstance(value, list) and all(type(i) is int for i in value)


def _wrong(name: str, value: object, wanted: str) -> RequestError:
    try:
        shown = json.dumps(value)
    except RecursionError:
        shown = "a deeply nested value"
    shown = shown if len(shown) <= 60 else shown[:59] + "…"
    return RequestError(400, f"{name} is {shown}, but must be {wanted}", param=name)


async def json_object(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request's body. Raises RequestError for a body that is none."""
    try:
        value = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(400, "the body is not a JSON object, such as {}")
    return value
