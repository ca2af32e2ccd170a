"""The special ids in a GGUF file."""

from collections.abc import Mapping
from typing import Any

from pipelines.run.text_ids import ids_of, special_ids
from tokenizer import CLS, MASK, SEP, Tokenizer
from tokenizer.formats.gguf_fields import PREFIX

ENDS = ("eos", "eot", "eom")
"""Names of the ids that end a text: the end of a sequence, of a turn, and of a message before a tool's answer"""


def special_keys(architecture: str, facts: Mapping[str, Any], tok: Tokenizer) -> dict[str, Any]:
    """Return the ids that llama.cpp adds around a text or stops at; `facts`: see `ids_of`.

    It has defaults for ids that are left out. Raises ValueError for ids that it cannot express.
    """
    around, given = ids_of(architecture, facts, tok), special_ids(facts, tok)
    special: Mapping[str, int] = around.special
    ids: dict[str, Any]
    if architecture == "encoder":
        first, last = special.get(CLS), special.get(SEP)
        ids = {"bos": first, "eos": last, "cls": first, "seperator": last, "mask": special.get(MASK)}  # its spelling
        before, after = first is not None, last is not None
    else:
        if len(around.before) > 1:
            raise ValueError(f"the run reads {len(around.before)} ids before a text, and llama.cpp adds at most one")
        if len(around.stops) > len(ENDS):
            raise ValueError(f"the run stops at any of {len(around.stops)} ids, and llama.cpp at three at most")
        ids = dict(zip(ENDS, around.stops, strict=False))
        ids["bos"] = around.before[0] if around.before else given["bos_token_id"]
        before, after = bool(around.before), False
    ids["padding"] = around.pad
    if ids.get("eos") is None:
        raise ValueError(
            "the tokenizer has no token that ends a text, which llama.cpp needs: train one with <|endoftext|>"
        )
    if ids.get("bos") is None:
        ids["bos"] = ids["eos"]
    named = {f"{PREFIX}{name}_token_id": i for name, i in ids.items() if isinstance(i, int)}
    return named | {f"{PREFIX}add_bos_token": before, f"{PREFIX}add_eos_token": after}
