"""The ids around the texts of a run, and the special ids that its texts may hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.run.folder import Run
from tokenizer import CLS, END_OF_TEXT, MASK, PAD, SEP, Tokenizer, sentinels

if TYPE_CHECKING:
    from torch import Tensor

    from lm.model import LanguageModel

SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""Names of special ids in config.json of transformers. An eos_token_id may be a list."""
BEFORE_TEXT = "bytelm_before_text"
"""Name in our exported config.json of the ids that began documents in training, which no tokenizer of transformers adds
by itself."""
ROLES = {"cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
"""Names of special tokens in tokenizer_config.json of transformers, with our spellings."""
OPTIONAL_ROLES = {"unk_token": "<|unk|>"}
"""The same for tokens that no objective needs."""
PUBLISHED_NAMES = ({"mask_token": "[MASK]"}, {"mask_token": "<mask>"})
PUBLISHED_PADDING = ("[PAD]", "<pad>")
"""Spellings of special tokens in the tokenizers of BERT, RoBERTa and T5"""


@dataclass(frozen=True, kw_only=True)
class TextIds:
    """The ids that a run's model reads around a text, and its special ids."""

    before: tuple[int, ...]
    """Ids before a prompt"""
    after: tuple[int, ...]
    """Ids after the source of an encoder-decoder"""
    start: int | None
    """Start id when there is no prompt, as in the target of an encoder-decoder"""
    stops: tuple[int, ...]
    """Ids that end generated text; targets of an encoder-decoder end with the first."""
    pad: int | None
    """Padding id"""
    special: dict[str, int]
    """Ids of the tokenizer's special tokens; special tokens in other spellings are also listed under ours."""
    edges: tuple[list[int], list[int], list[int]] | None = None
    """Ids before, between and after the texts that an imported model reads in its task; None: as in our training"""

    @property
    def marks(self) -> set[int]:
        """The ids of the mask and of sentinels, which stand for missing text."""
        return {self.special[name] for name in (MASK, *sentinels(len(self.special))) if name in self.special}


def text_ids(run: Run, tok: Tokenizer) -> TextIds:
    """Return the ids around the texts of a run; see `ids_of`."""
    return ids_of(run.recipe.model.architecture, run.facts, tok)


def ids_of(architecture: str, facts: Mapping[str, Any], tok: Tokenizer) -> TextIds:
    """Return the ids around the texts of a run; `facts` is the table [run] of its config.toml.

    An imported run has the ids of its files, as in transformers. For all other runs, and for ids that the files lack, a
    text ends with <|endoftext|> if the tokenizer has it. For a decoder whose dataset had it before documents, a text
    also begins with it.
    """
    named, special = special_ids(facts, tok), tok.special_tokens | facts.get("roles", {})
    end = special.get(END_OF_TEXT)
    stops = _as_tuple(named["eos_token_id"]) or _as_tuple(end)
    starts = _as_tuple(named["decoder_start_token_id"]) or _as_tuple(named["bos_token_id"]) or _as_tuple(end)
    # In our training a decoder reads one document after another; the source of an encoder-decoder has only an end.
    begins = architecture == "decoder" and end is not None and facts.get("separated", True)
    around = facts.get("around_text", {"before": [end] if begins else [], "after": []})
    pad = named["pad_token_id"]
    return TextIds(
        before=tuple(around["before"]),
        after=tuple(around["after"]) or stops[:1],
        start=starts[0] if starts else None,
        stops=stops,
        pad=pad if isinstance(pad, int) else special.get(PAD),
        special=special,
        edges=tuple(facts["edges"]) if "edges" in facts else None,
    )


def _as_tuple(ids: int | list[int] | None) -> tuple[int, ...]:
    return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)


def special_ids(facts: Mapping[str, Any], tok: Tokenizer) -> dict[str, int | list[int] | None]:
    """Return the SPECIAL_IDS of a run, named as in config.json; an id that the run lacks is None.

    `facts`: see `ids_of`.
    """
    special = tok.special_tokens | facts.get("roles", {})
    end, pad = special.get(END_OF_TEXT), special.get(PAD)
    # A document begins after the end of another one, so generation begins with the end too.
    given = facts.get("special_ids", dict(zip(SPECIAL_IDS, (end, end, pad, end), strict=True)))
    return {name: given.get(name) for name in SPECIAL_IDS}


def given_special_ids(tok: Tokenizer, *settings: Mapping[str, Any]) -> dict[str, int | list[int]]:
    """Return the SPECIAL_IDS in files of transformers; the first file that has one decides.

    Leaves out ids that the tokenizer lacks, which mean none there. Raises ValueError for a value that is no id.
    """
    found: dict[str, int | list[int]] = {}
    for name in SPECIAL_IDS:
        value = next((setting[name] for setting in settings if setting.get(name) is not None), None)
        ids = value if isinstance(value, list) and name == "eos_token_id" else [] if value is None else [value]
        if any(type(i) is not int for i in ids):
            raise ValueError(f"config.json has {name} = {value!r}, which is no id: take complete files")
        known = [i for i in ids if is_known(tok, i)]
        if known:
            found[name] = known if isinstance(value, list) else known[0]
    return found


def given_roles(tok: Tokenizer, *settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of special tokens with other spellings, by our spelling.

    These are the special tokens that files of transformers name, and T5's sentinels, `<extra_id_0>` and so on.
    """
    special = tok.special_tokens
    roles: dict[str, int] = {}
    for name, ours in (ROLES | OPTIONAL_ROLES).items():
        named = (setting.get(name) for setting in settings)
        spellings = (token.get("content") if isinstance(token, dict) else token for token in named)
        spelling = next((spelling for spelling in spellings if isinstance(spelling, str) and spelling in special), ours)
        if spelling != ours:
            roles[ours] = special[spelling]
    for number, ours in enumerate(sentinels(len(special))):
        if (spelling := f"<extra_id_{number}>") in special:
            roles[ours] = special[spelling]
    return roles


def published_roles(tok: Tokenizer) -> dict[str, int]:
    """Return the ids of a published tokenizer's special tokens by our spellings, such as `<|mask|>` for `[MASK]`.

    The ids come from the tokenizer alone: from the ids around a text, and from published spellings of other tokens. A
    spelling that the tokenizer has itself is left out, so the result is empty for tokenizers with our special tokens.
    """
    special, (before, after) = tok.special_tokens, tok.ids_around_text
    roles = given_roles(tok, *PUBLISHED_NAMES)
    if padding := [special[name] for name in PUBLISHED_PADDING if name in special]:
        roles[PAD] = padding[0]
    if before and after:
        roles |= {CLS: before[0], SEP: after[-1]}
    if (end := tok.end_of_text) is not None:
        roles[END_OF_TEXT] = end
    return {ours: i for ours, i in roles.items() if ours not in special}


def known_ids(tok: Tokenizer, model: "LanguageModel") -> "Tensor | None":
    """Return a mask (V,) bool of the used ids, on the model's device; None if all ids are used.

    The vocabulary of an imported model may be padded beyond its tokenizer, and a tokenizer may leave ids unused.
    """
    import torch  # a check of arguments does not need it

    known = torch.zeros(model.config.vocab_size, dtype=torch.bool)
    known[: tok.vocab_size] = torch.from_numpy(tok.ordinary)
    known[list(tok.special_tokens.values())] = True
    return None if known.all() else known.to(model.embedding.weight.device)


def is_known(tok: Tokenizer, i: Any) -> bool:
    """Return whether `i` is an id in use."""
    if type(i) is not int or not 0 <= i < tok.vocab_size:
        return False
    return tok.vocabulary.tokens[i] is not None or i in tok.special_tokens.values()
