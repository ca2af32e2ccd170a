"""Messages of a conversation, from rows of files and requests of the API."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from corpora.rows import Row

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
SPEAKERS: dict[str, Role] = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
"""Other names of roles, in rows with `from` and `value`"""


class Message(NamedTuple):
    """One message of a conversation."""

    role: Role
    content: str


Conversation = tuple[Message, ...]


def text_or_messages(row: "Row", name: str, required: bool = True) -> str | Conversation:
    """Return a field of a row that holds a text or a list of messages; "" for null, unless `required`."""
    kinds = (str, list) if required else (str, list, type(None))
    value = row.value(name, "a text, or a list of messages", *kinds)
    return conversation_of(value, f'"{name}" in {row.place}') if isinstance(value, list) else value or ""


def conversation_of(value: Any, where: str) -> Conversation:
    """Return the messages from a list of objects with `role` and `content`, or `from` and `value`.

    A content is a text, or a list of parts {"type": "text", "text": ...}. For anything else, raises ValueError, which
    names the place `where` and the message.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(
            f'{where} is {value!r:.60}, not a list of messages such as {{"role": "user", "content": "Hi"}}'
        )
    return tuple(_message(one, f"message {number} of {where}") for number, one in enumerate(value, 1))


def _message(value: Any, where: str) -> Message:
    names = ("from", "value") if isinstance(value, dict) and "from" in value else ("role", "content")
    if not isinstance(value, dict) or names[0] not in value:
        raise ValueError(f"{where} is {value!r:.60}, not an object with role and content")
    given = value[names[0]]
    role = SPEAKERS.get(given, given) if isinstance(given, str) else given
    if role not in ROLES:
        raise ValueError(f"{where} has the role {given!r:.60}, but roles are {', '.join(ROLES)}")
    return Message(role, _content(value.get(names[1]), where))


def _content(value: Any, where: str) -> str:
    value = "" if value is None else value
    parts = value if isinstance(value, list) else [{"type": "text", "text": value}]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{where} has the content {value!r:.60}, which is no text")
    content = "".join(map(str, texts))
    try:
        content.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} has a lone surrogate, which UTF-8 cannot encode: fix it") from None
    return content


def fitting(messages: Conversation, fits: Callable[[Conversation], bool]) -> Conversation:
    """Return the messages without the oldest turns, so that the rest `fits`. System messages at the start stay.

    A turn begins with a user message. The last turn stays even if it does not fit.
    """
    first = next((place for place, one in enumerate(messages) if one.role not in ("system", "developer")), 0)
    turns = [place for place, one in enumerate(messages) if place > first and one.role == "user"]
    for begin in [first, *turns]:
        kept = (*messages[:first], *messages[begin:])
        if fits(kept):
            break
    return kept
