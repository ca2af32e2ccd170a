"""Prompts as the ids that a model reads. What it cannot read whole is cut, and it is said what."""

import warnings
from collections.abc import Sequence

from lm.config import ModelConfig
from pipelines.run.text_ids import TextIds
from pipelines.training.loader import required
from tokenizer import CLS, END_OF_TEXT, MASK, SEP, Tokenizer, sentinels

SHOWN = 40  # characters of a text that say where it was cut


def prompt_ids(tok: Tokenizer, prompts: Sequence[str], config: ModelConfig, around: TextIds) -> list[list[int]]:
    """What a decoder goes on from, for each prompt: what texts begin with (of what we train the end of another
    document), and the text. Of one that is longer than the context its end.

    Raises ValueError for an empty prompt where there is nothing to start from.
    """
    rows = [[*around.before, *tok.encode(text, disallowed_special=())] for text in prompts]
    if around.start is not None:
        rows = [row or [around.start] for row in rows]
    if not all(rows):
        raise ValueError("--prompt is empty, and the tokenizer has no <|endoftext|> to start from: give a prompt")
    most = config.context_length
    for number, row in enumerate(rows, 1):
        if len(row) > most:
            warnings.warn(
                f"{_which('prompt', number, rows)} has {len(row):,} tokens, of which the model reads the last "
                f"{most:,}: what comes before {_shown(tok, row[-most:])} was cut off",
                stacklevel=2,
            )
    return [row[-most:] for row in rows]


def source_ids(tok: Tokenizer, sources: Sequence[str], config: ModelConfig, around: TextIds) -> list[list[int]]:
    """What an encoder-decoder reads of each source: the text, in which sentinels stand for spans, and its end. Of one
    that is longer than the context the beginning, as in training, unless positions are relative and so know no end.

    Raises ValueError where there is nothing that a target would start or end with.
    """
    special = around.special
    if around.start is None or not around.stops:
        required("an encoder-decoder", (END_OF_TEXT,), special)
    marks = {special[name] for name in sentinels(len(special)) if name in special}
    allowed = {spelling for spelling, i in tok.special_tokens.items() if i in marks}
    rows = [tok.encode(text, allowed_special=allowed, disallowed_special=()) for text in sources]
    if config.positions not in ("relative", "none"):
        most = config.context_length - len(around.before) - len(around.after)
        for number, row in enumerate(rows, 1):
            if len(row) > most:
                warnings.warn(
                    f"{_which('source', number, rows)} has {len(row):,} tokens, of which the model reads the first "
                    f"{most:,}: what comes from {_shown(tok, row[most:])} on was cut off",
                    stacklevel=2,
                )
        rows = [row[:most] for row in rows]
    return [[*around.before, *row, *around.after] for row in rows]


def masked_ids(tok: Tokenizer, text: str, config: ModelConfig, around: TextIds) -> list[int]:
    """What an encoder reads of a text with <|mask|>s: it, between <|cls|> and <|sep|>.

    Raises ValueError for a text without a mask, one that is too long, and a tokenizer without these three.
    """
    special = around.special
    required("an encoder", (CLS, SEP, MASK), special)
    mask = next(spelling for spelling, i in tok.special_tokens.items() if i == special[MASK])
    if mask not in text:
        raise ValueError(f"--prompt has no {mask}: put it where the encoder shall guess a token")
    ids = [special[CLS], *tok.encode(text, allowed_special={mask}, disallowed_special=()), special[SEP]]
    if len(ids) > config.context_length and config.positions not in ("relative", "none"):
        raise ValueError(
            f"--prompt has {len(ids) - 2:,} tokens, and the encoder reads {config.context_length - 2:,} at once: "
            f"shorten it around {mask}"
        )
    return ids


def _which(kind: str, number: int, rows: Sequence[Sequence[int]]) -> str:
    return f"the {kind}" if len(rows) == 1 else f"{kind} {number} of {len(rows)}"


def _shown(tok: Tokenizer, ids: Sequence[int]) -> str:
    text = " ".join(tok.decode(list(ids[:SHOWN])).split())
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
