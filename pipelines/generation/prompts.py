"""Prompts as the ids that a model reads. Prompts longer than the context are cut, with a warning."""

from collections.abc import Sequence

from lm.config import ModelConfig
from lm.position_checks import UNBOUNDED
from lm.warn import warn
from pipelines.cli.escapes import whole_characters
from pipelines.run.text_ids import TextIds
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import CLS, END_OF_TEXT, MASK, SEP, Tokenizer

SHOWN = 40  # characters of a text in a warning about a cut


def prompt_ids(tok: Tokenizer, prompts: Sequence[str], config: ModelConfig, around: TextIds) -> list[list[int]]:
    """Return the ids that a decoder continues, for each prompt: the ids before a text, and the text.

    A prompt longer than the context is cut at its beginning. Raises ValueError for an empty prompt without a start id.
    """
    rows = [[*around.before, *tok.encode(text, disallowed_special=())] for text in prompts]
    if around.start is not None:
        rows = [row or [around.start] for row in rows]
    if not all(rows):
        raise ValueError("`prompt` is empty, and the tokenizer has no <|endoftext|> to start from: give a prompt")
    most = config.context_length
    for number, row in enumerate(rows, 1):
        if len(row) > most:
            warn(
                f"{_which('prompt', number, rows)} has {len(row):,} tokens, of which the model reads the last "
                f"{most:,}: the text before {_show(tok, row[-most:])} was cut off"
            )
    return [row[-most:] for row in rows]


def source_ids(tok: Tokenizer, sources: Sequence[str], config: ModelConfig, around: TextIds) -> list[list[int]]:
    """Return the ids that an encoder-decoder reads of each source: the text, with its masks and sentinels, and its end.

    A source longer than the context is cut at its end, as in training; relative positions have no limit. Raises
    ValueError if the model has no id that starts or ends a target.
    """
    special = around.special
    if around.start is None or not around.stops:
        require_special_tokens("an encoder-decoder", (END_OF_TEXT,), special)
    allowed = {spelling for spelling, i in tok.special_tokens.items() if i in around.marks}
    rows = [tok.encode(text, allowed_special=allowed, disallowed_special=()) for text in sources]
    if config.positions not in UNBOUNDED:
        most = config.context_length - len(around.before) - len(around.after)
        for number, row in enumerate(rows, 1):
            if len(row) > most:
                warn(
                    f"{_which('source', number, rows)} has {len(row):,} tokens, of which the model reads the first "
                    f"{most:,}: the text from {_show(tok, row[most:])} on was cut off"
                )
        rows = [row[:most] for row in rows]
    return [[*around.before, *row, *around.after] for row in rows]


def masked_ids(tok: Tokenizer, text: str, config: ModelConfig, around: TextIds) -> list[int]:
    """Return the ids that an encoder reads of a text with masks: <|cls|>, the text, <|sep|>.

    Raises ValueError if the text has no mask or is too long, or if the tokenizer lacks one of these special tokens.
    """
    special = around.special
    require_special_tokens("an encoder", (CLS, SEP, MASK), special)
    mask = next(spelling for spelling, i in tok.special_tokens.items() if i == special[MASK])
    if mask not in text:
        raise ValueError(f"`prompt` has no {mask}: put it where the encoder should predict a token")
    ids = [special[CLS], *tok.encode(text, allowed_special={mask}, disallowed_special=()), special[SEP]]
    if len(ids) > config.context_length and config.positions not in UNBOUNDED:
        raise ValueError(
            f"`prompt` has {len(ids) - 2:,} tokens, and the encoder reads {config.context_length - 2:,} at once: "
            f"shorten it around {mask}"
        )
    return ids


def _which(kind: str, number: int, rows: Sequence[Sequence[int]]) -> str:
    return f"the {kind}" if len(rows) == 1 else f"{kind} {number} of {len(rows)}"


def _show(tok: Tokenizer, ids: Sequence[int]) -> str:
    text = " ".join(whole_characters(tok.decode_bytes(ids[:SHOWN])).lstrip("\ufffd").split())
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
