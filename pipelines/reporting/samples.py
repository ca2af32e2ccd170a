"""Samples of a trained model: a decoder continues a text, an encoder fills masks, an encoder-decoder answers."""

from typing import Any, NamedTuple

import numpy as np
import torch

from lm.decoding.beam import beam_search
from lm.decoding.generation import fill_masks, generate
from lm.decoding.state import pad_right
from lm.model import LanguageModel
from pipelines.cli.escapes import whole_characters
from pipelines.generation.prompts import prompt_ids
from pipelines.recipes.recipe import CORRUPTIONS
from pipelines.reporting.excerpts import Excerpts
from pipelines.run.folder import Run
from pipelines.run.text_ids import known_ids
from tokenizer import CLS, MASK, SEP, Tokenizer

PROMPT_TOKENS = 48
NEW_TOKENS = 120
# Sampling settings with which a decoder continues the same text.
SETTINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.8, "top_p": 0.95}, {"temperature": 0.0}, {"temperature": 1.0})
EXCERPT_TOKENS = 56
MASK_EVERY = 9  # tokens of an excerpt
ANSWERS = 4  # sources of pairs
BEAMS = 4
SEARCH_SETTINGS = f"beam search, {BEAMS} beams"


class Sample(NamedTuple):
    """The text that a model wrote, and the text shown before it: the model's input, and the reference, if any."""

    title: str
    settings: str
    before: str
    text: str


def samples_of(run: Run, model: LanguageModel, seed: int = 0) -> list[Sample]:
    """Return a few samples.

    The given text is from the validation split of the run's dataset. Without one, a decoder has no prompt.
    """
    excerpts, objective = Excerpts(run), run.recipe.objective
    if objective == "sequence-pairs":
        return _answer(excerpts, model, seed)
    # Two shorter than the context, for the special tokens around an encoder's block.
    text = excerpts.text(min(EXCERPT_TOKENS, model.config.context_length - 2), seed)
    if objective == "masked-token":
        return [_fill(excerpts, model, text)] if len(text) else []
    if objective in CORRUPTIONS:
        return [_restore(excerpts, model, text, seed)] if len(text) else []
    samples = [
        _continue_prompts(excerpts, model, text[:PROMPT_TOKENS], "validation text, continued", settings, seed)
        for settings in (SETTINGS if len(text) else ())
    ]
    if excerpts.text_ids.start is not None:
        empty = np.array(prompt_ids(excerpts.tokenizer, [""], model.config, excerpts.text_ids)[0])
        samples.append(_continue_prompts(excerpts, model, empty, "without a prompt", SETTINGS[0], seed))
    return samples


def _continue_prompts(
    excerpts: Excerpts, model: LanguageModel, prompt: np.ndarray, title: str, settings: dict[str, Any], seed: int
) -> Sample:
    tok, ids = excerpts.tokenizer, excerpts.text_ids
    device = next(model.parameters()).device
    new = generate(
        model,
        torch.from_numpy(prompt).to(device),
        NEW_TOKENS,
        **settings,
        allowed=known_ids(tok, model),
        generator=torch.Generator(device).manual_seed(seed),
        stop_ids=ids.stops,
    )
    edges = {*ids.before, ids.start, *ids.stops}
    given, written = ([token for token in part.tolist() if token not in edges] for part in (prompt, new))
    before = whole_characters(tok.decode_bytes(given))
    text = whole_characters(tok.decode_bytes(given + written))[len(before) :]
    drawn = [f"{name.replace('_', '-')} {value}" for name, value in settings.items()] + [f"seed {seed}"]
    described = [*(drawn if settings["temperature"] else ["greedy"]), f"at most {NEW_TOKENS} tokens"]
    return Sample(title, ", ".join(described), before, text)


def _fill(excerpts: Excerpts, model: LanguageModel, text: np.ndarray) -> Sample:
    tok, special = excerpts.tokenizer, excerpts.text_ids.special
    ids = np.concatenate(([special[CLS]], text, [special[SEP]]))
    places = np.arange(min(MASK_EVERY, len(text)) // 2 + 1, len(ids) - 1, MASK_EVERY)
    answers = ids[places]
    ids[places] = special[MASK]
    device = next(model.parameters()).device
    allowed = known_ids(tok, model)
    filled = fill_masks(model, torch.from_numpy(ids).to(device), special[MASK], top=3, allowed=allowed)
    lines = ["", ""]
    for answer, mask in zip(answers.tolist(), filled, strict=True):
        guesses = ", ".join(
            f"{_quoted(tok, guess)} {p:.0%}" for guess, p in zip(mask.ids, mask.probabilities, strict=True)
        )
        lines.append(f"{'✓' if mask.ids[0] == answer else ' '} {_quoted(tok, answer):<14} {guesses}")
    return Sample(
        "validation text with masks (hidden token, then guesses)",
        f"every {MASK_EVERY}th token masked, all at once; the three likeliest tokens",
        tok.decode(ids[1:-1].tolist()),
        "\n".join(lines),
    )


def _quoted(tok: Tokenizer, token: int) -> str:
    """Return the text of a token in quotes, with the bytes of incomplete characters as \\xNN."""
    return repr(tok.decode([token], "backslashreplace")).replace("\\\\", "\\")


def _restore(excerpts: Excerpts, model: LanguageModel, text: np.ndarray, seed: int) -> Sample:
    tok = excerpts.tokenizer
    source, _, target = excerpts.corrupt(text, seed)
    (found,) = _search(excerpts, model, [source.tolist()])
    return Sample(
        "corrupted validation text (the target, then guesses)",
        SEARCH_SETTINGS,
        f"{tok.decode(source[:-1].tolist())}\n\n{tok.decode(target[:-1].tolist())}\n",
        tok.decode(found),
    )


def _answer(excerpts: Excerpts, model: LanguageModel, seed: int) -> list[Sample]:
    """Return the targets that beam search finds for sources of the validation split."""
    pairs, tok, ids = excerpts.pairs, excerpts.tokenizer, excerpts.text_ids
    if pairs is None:
        return []
    rows = np.random.default_rng(seed).choice(len(pairs), size=min(ANSWERS, len(pairs)), replace=False).tolist()
    longest = model.config.context_length - len(ids.before) - len(ids.after)
    sources = [[*ids.before, *pairs.sources[row][:longest].tolist(), *ids.after] for row in rows]
    return [
        Sample(
            "a source of the validation split (reference, then target found)",
            SEARCH_SETTINGS,
            f"{tok.decode(pairs.sources[row].tolist())}\n\n{tok.decode(pairs.targets[row].tolist())}\n",
            tok.decode(found),
        )
        for row, found in zip(rows, _search(excerpts, model, sources), strict=True)
    ]


def _search(excerpts: Excerpts, model: LanguageModel, sources: list[list[int]]) -> list[list[int]]:
    """Return the likeliest target of each source, by beam search, without its end token."""
    start, stops = excerpts.text_ids.start, excerpts.text_ids.stops
    assert start is not None, "an encoder-decoder has a start token"
    source, present = pad_right(sources, next(model.parameters()).device)
    found = beam_search(
        model,
        source,
        start_id=start,
        end_ids=stops,
        max_new_tokens=model.config.context_length,
        beams=BEAMS,
        source_present=present,
        allowed=known_ids(excerpts.tokenizer, model),
    )
    return [[token for token in hypotheses[0].ids if token not in stops] for hypotheses in found]
