"""The ids around the texts of a run, and those that its texts may hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm.model import LanguageModel
from pipelines.run.folder import Run
from tokenizer import CLS, END_OF_TEXT, MASK, PAD, SEP, Tokenizer, sentinels

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""What config.json of transformers names; of these an eos_token_id may be several."""
BEFORE_TEXT = "bytelm_before_text"
"""What our config.json names beside them: the ids that documents began with in training, which no tokenizer of
transformers puts there by itself."""
ROLES = {"cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
"""What tokenizer_config.json of transformers names, in whatever spelling, and how we spell it."""


@dataclass(frozen=True, kw_only=True)
class TextIds:
    """With which ids texts begin and end for a run's model, and what else its special tokens stand for."""

    before: tuple[int, ...]
    """Read before a prompt."""
    after: tuple[int, ...]
    """Read after the source of an encoder-decoder."""
    start: int | None
    """What is gone on from where there is no prompt, as in an encoder-decoder's target."""
    stops: tuple[int, ...]
    """Each ends what the model writes; the targets of an encoder-decoder are given the first."""
    special: dict[str, int]
    """The ids of the tokenizer's special tokens, and of those that stand for ours in other spellings, by ours."""


def text_ids(run: Run, tok: Tokenizer) -> TextIds:
    """Those of an imported run are what its files say, as in transformers. Otherwise, and where they say nothing, a
    text begins and ends with <|endoftext|>, if the tokenizer has it; a decoder's begins so if its dataset had it before
    documents."""
    named, end = special_ids(run, tok), tok.special_tokens.get(END_OF_TEXT)

    def first_of(*names: str) -> int | list[int] | None:
        return next((named[name] for name in names if named[name] is not None), end)

    stops = first_of("eos_token_id")
    stops = () if stops is None else tuple(stops) if isinstance(stops, list) else (stops,)
    # Of what we train, a decoder reads documents one after the other; an encoder-decoder's source has but an end.
    begins = run.recipe.model.architecture == "decoder" and end is not None and run.facts.get("separated", True)
    around = run.facts.get("around_text", {"before": [end] if begins else [], "after": []})
    return TextIds(
        before=tuple(around["before"]),
        after=tuple(around["after"]) or stops[:1],
        start=first_of("decoder_start_token_id", "bos_token_id"),
        stops=stops,
        special=tok.special_tokens | run.facts.get("roles", {}),
    )


def special_ids(run: Run, tok: Tokenizer) -> dict[str, int | list[int] | None]:
    """SPECIAL_IDS as config.json of the run's model names them; None for those that there are not."""
    end, pad = tok.special_tokens.get(END_OF_TEXT), tok.special_tokens.get(PAD)
    # A document begins after the end of another, so the end is what generation begins with, too.
    given = run.facts.get("special_ids", dict(zip(SPECIAL_IDS, (end, end, pad, end), strict=True)))
    return {name: given.get(name) for name in SPECIAL_IDS}


def given_special_ids(tok: Tokenizer, *settings: Mapping[str, Any]) -> dict[str, int | list[int]]:
    """Those of SPECIAL_IDS that files of transformers give, the first of them that does; ids that the tokenizer does
    not know, which stand there for none, are left out.

    Raises ValueError for what is no id.
    """
    found = {}
    for name in SPECIAL_IDS:
        value = next((each[name] for each in settings if each.get(name) is not None), None)
        ids = value if isinstance(value, list) and name == "eos_token_id" else [] if value is None else [value]
        if any(type(i) is not int for i in ids):
            raise ValueError(f"config.json has {name} = {value!r}, which is no id: take complete files")
        known = [i for i in ids if is_known(tok, i)]
        if known:
            found[name] = known if isinstance(value, list) else known[0]
    return found


def given_roles(tok: Tokenizer, *settings: Mapping[str, Any]) -> dict[str, int]:
    """Which special tokens stand for ours in other spellings: those that files of transformers name, and the sentinels
    of T5, `<extra_id_0>` and so on. The ids, by our spelling."""
    roles, special = {}, tok.special_tokens
    for name, ours in ROLES.items():
        named = (each.get(name) for each in settings)
        spellings = (token.get("content") if isinstance(token, dict) else token for token in named)
        spelling = next((each for each in spellings if isinstance(each, str) and each in special), ours)
        if spelling != ours:
            roles[ours] = special[spelling]
    for number, ours in enumerate(sentinels(len(special))):
        if (spelling := f"<extra_id_{number}>") in special:
            roles[ours] = special[spelling]
    return roles


def known_ids(tok: Tokenizer, model: LanguageModel) -> Tensor | None:
    """bool (V,) on the model's device: True for the ids that stand for something; None where all of them do.

    The vocabulary of an imported model may be padded beyond its tokenizer, and a tokenizer may leave ids unused.
    """
    known = torch.zeros(model.config.vocab_size, dtype=torch.bool)
    known[: tok.vocab_size] = torch.tensor(tok.token_byte_lengths > 0)
    known[list(tok.special_tokens.values())] = True
    return None if known.all() else known.to(model.embedding.weight.device)


def is_known(tok: Tokenizer, i: Any) -> bool:
    """Whether this is an id that stands for something."""
    if type(i) is not int or not 0 <= i < tok.vocab_size:
        return False
    return bool(tok.token_byte_lengths[i] > 0) or i in tok.special_tokens.values()
