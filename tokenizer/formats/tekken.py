"""Reading Mistral's tekken.json: tiktoken's ranks, which follow the ids of the special tokens."""

from __future__ import annotations

from binascii import a2b_base64

from tokenizer.formats.in_memory import checked_ranks, vocabulary_of_ranks
from tokenizer.formats.spelled_vocabulary import LARGEST_ID, expect, is_unicode, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.bpe_vocabulary import BytePairVocabulary

# The first special tokens of files that list none.
_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


def is_tekken(content: Any) -> bool:
    """Return whether a JSON value is that of a tekken.json."""
    return (
        isinstance(content, dict)
        and "model" not in content
        and isinstance(content.get("config"), dict)
        and isinstance(content.get("vocab"), list)
    )


def parse_tekken(content: dict[str, Any]) -> BytePairVocabulary:
    """Return the vocabulary of a tekken.json's value. config gives the number of entries that count.

    Special tokens that the file does not list are named <SPECIAL_20> and so on, as in mistral-common. Raises ValueError
    that names the wrong field.
    """
    config = content["config"]
    pattern, size, reserved = (
        config.get(name) for name in ("pattern", "default_vocab_size", "default_num_special_tokens")
    )
    expect(isinstance(pattern, str) and is_unicode(pattern), f"has config.pattern = {quote(pattern)}")
    for name, number in (("default_vocab_size", size), ("default_num_special_tokens", reserved)):
        expect(type(number) is int and 0 <= number < LARGEST_ID, f"has config.{name} = {quote(number)}")
    entries = content["vocab"][: max(0, size - reserved)]
    expect(
        len(entries) == size - reserved,
        f"has {len(content['vocab']):,} entries in vocab, but config asks for {size - reserved:,}",
    )
    ranks: dict[bytes, int] = {}
    for number, entry in enumerate(entries):
        expect(
            isinstance(entry, dict) and entry.get("rank") == number and isinstance(entry.get("token_bytes"), str),
            f"has vocab[{number}] = {quote(entry)}, which is not the token of rank {number}",
        )
        try:
            token = a2b_base64(entry["token_bytes"], strict_mode=True)
        except ValueError:
            raise ValueError(f"has vocab[{number}] with token_bytes = {quote(entry['token_bytes'])}") from None
        expect(token not in ranks, f"has the token {quote(token)} twice in vocab")
        ranks[token] = reserved + number
    return vocabulary_of_ranks(checked_ranks(ranks), pattern, _special_tokens(content, reserved))


def _special_tokens(content: dict[str, Any], reserved: int) -> dict[str, int]:
    listed = content.get("special_tokens")
    if listed is None:
        listed = [{"rank": i, "token_str": spelling} for i, spelling in enumerate(_SPECIAL[:reserved])]
    expect(isinstance(listed, list) and len(listed) <= reserved, "has special_tokens that are not a list, or too many")
    special: dict[str, int] = {}
    for number, entry in enumerate(listed):
        spelling = entry.get("token_str") if isinstance(entry, dict) else None
        if not isinstance(spelling, str) or spelling in ("", *special) or entry.get("rank") != number:
            raise ValueError(f"has special_tokens[{number}] = {quote(entry)}, which is not the token of rank {number}")
        special[spelling] = number
    return special | {f"<SPECIAL_{i}>": i for i in range(len(listed), reserved)}
