"""What a trained model writes: a decoder continues, an encoder fills masks, an encoder-decoder answers."""

from typing import Any

import numpy as np
import torch

from lm.decoding.beam import beam_search
from lm.decoding.generation import fill_masks, generate
from lm.decoding.state import pad_right
from lm.model import LanguageModel
from lm.objectives import span_corruption
from pipelines.dataset.pairs import PairDataset, Pairs
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.run.folder import Run
from pipelines.run.prompts import prompt_ids
from pipelines.run.text_ids import TextIds, known_ids, text_ids
from tokenizer import CLS, MASK, SEP, Tokenizer, sentinels

PROMPT_TOKENS = 48
NEW_TOKENS = 120
# Sampling settings with which a decoder continues the same text.
SETTINGS: tuple[dict[str, Any], ...] = ({"temperature": 0.8, "top_p": 0.95}, {"temperature": 0.0}, {"temperature": 1.0})
EXCERPT_TOKENS = 56
# Every so many tokens of an excerpt one is masked.
MASK_EVERY = 9
# Sources that a model of pairs answers.
ANSWERS = 4
BEAMS = 4
SEARCHED = f"beam search, {BEAMS} beams"


def samples_of(run: Run, model: LanguageModel, seed: int = 0) -> list[dict[str, Any]]:
    """Return a few samples: dicts with `title`, `settings`, `before` (the text given) and `text` (its continuation).

    The given text is from the validation split of the run's dataset; without it only free samples are made.
    """
    tok = run.tokenizer()
    around = text_ids(run, tok)
    if run.recipe.objective == "sequence-pairs":
        return _answered(run, model, tok, around, seed)
    # An encoder's block is two shorter than what it reads.
    length = min(EXCERPT_TOKENS, run.recipe.model.context_length - 2)
    excerpt = validation_excerpt(validation_stream(run, tok), tok, length, seed)
    if run.recipe.objective == "masked-token":
        return [_filled(model, tok, around, excerpt)] if len(excerpt) else []
    if run.recipe.objective == "span-corruption":
        return [_restored(model, tok, around, excerpt, seed)] if len(excerpt) else []
    samples = []
    for settings in SETTINGS if len(excerpt) else ():
        prompt = excerpt[:PROMPT_TOKENS]
        samples.append(_continued(model, tok, around, prompt, "validation text, continued", settings, seed))
    if around.start is not None:
        nothing = np.array(prompt_ids(tok, [""], model.config, around)[0])
        samples.append(_continued(model, tok, around, nothing, "from nothing", SETTINGS[0], seed))
    return samples


def validation_stream(run: Run, tok: Tokenizer) -> TokenStream | None:
    """The validation split of the run's dataset; None where that is gone or was built again with another tokenizer."""
    return _validation(TokenDataset, run, tok)


def validation_pairs(run: Run, tok: Tokenizer) -> Pairs | None:
    """The same of a run whose dataset is of pairs; None also where it has none."""
    return _validation(PairDataset, run, tok) or None


def _validation(kind: type[TokenDataset] | type[PairDataset], run: Run, tok: Tokenizer) -> Any:
    try:
        dataset = kind(run.data)
        split = dataset.split("validation")
    except ValueError:
        return None
    return split if dataset.tokenizer_fingerprint == tok.fingerprint else None


def validation_excerpt(stream: TokenStream | None, tok: Tokenizer, length: int, seed: int) -> np.ndarray:
    """Tokens of the stream without a document's boundary in them; empty where there are none."""
    if stream is None:
        return np.empty(0, np.int64)
    generator = np.random.default_rng(seed)
    special = sorted(tok.special_tokens.values())
    for _ in range(100):
        start = int(generator.integers(max(1, stream.tokens - length)))
        ids = stream.read(start, length).astype(np.int64)
        if not np.isin(ids, special).any():
            return ids
    return np.empty(0, np.int64)


def _continued(
    model: LanguageModel,
    tok: Tokenizer,
    around: TextIds,
    prompt: np.ndarray,
    title: str,
    settings: dict[str, Any],
    seed: int,
) -> dict[str, Any]:
    device = next(model.parameters()).device
    new = generate(
        model,
        torch.from_numpy(prompt).to(device),
        NEW_TOKENS,
        **settings,
        allowed=known_ids(tok, model),
        generator=torch.Generator(device).manual_seed(seed),
        stop_ids=around.stops,
    )
    edges = {*around.before, around.start, *around.stops}
    given, text = ([token for token in part.tolist() if token not in edges] for part in (prompt, new))
    drawn = [f"{name.replace('_', '-')} {value}" for name, value in settings.items()] + [f"seed {seed}"]
    chosen = drawn if settings["temperature"] else ["greedy"]
    described = ", ".join([*chosen, f"at most {NEW_TOKENS} tokens"])
    return {"title": title, "settings": described, "before": tok.decode(given), "text": tok.decode(text)}


def _filled(model: LanguageModel, tok: Tokenizer, around: TextIds, excerpt: np.ndarray) -> dict[str, Any]:
    special = around.special
    ids = np.concatenate(([special[CLS]], excerpt, [special[SEP]]))
    places = np.arange(min(MASK_EVERY, len(excerpt)) // 2 + 1, len(ids) - 1, MASK_EVERY)
    answers = ids[places]
    ids[places] = special[MASK]
    device = next(model.parameters()).device
    allowed = known_ids(tok, model)
    filled = fill_masks(model, torch.from_numpy(ids).to(device), special[MASK], top=3, allowed=allowed)
    before = tok.decode(ids[1:-1].tolist())
    lines = ["", ""]
    for answer, mask in zip(answers.tolist(), filled, strict=True):
        guesses = ", ".join(
            f"{tok.decode([guess])!r} {p:.0%}" for guess, p in zip(mask.ids, mask.probabilities, strict=True)
        )
        lines.append(f"{'✓' if mask.ids[0] == answer else ' '} {tok.decode([answer])!r:<14} {guesses}")
    return {
        "title": "masked validation text, and what was put there (hidden token, then guesses)",
        "settings": f"every {MASK_EVERY}th token masked, all at once; the three likeliest tokens",
        "before": before,
        "text": "\n".join(lines),
    }


def corrupted(excerpt: np.ndarray, around: TextIds, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An excerpt with spans taken out as an encoder reads it, and what a decoder reads and says of them."""
    special = around.special
    sentinel_ids = [special[name] for name in sentinels(len(excerpt)) if name in special]
    ends = {"start_id": around.start, "end_id": around.stops[0]}
    return span_corruption(excerpt, np.random.default_rng(seed), sentinel_ids=sentinel_ids, **ends)[:3]


def _restored(model: LanguageModel, tok: Tokenizer, around: TextIds, excerpt: np.ndarray, seed: int) -> dict[str, Any]:
    source, _, target = corrupted(excerpt, around, seed)
    found = _found(model, tok, around, [source])[0]
    return {
        "title": "validation text with spans taken out, and what was put there (hidden spans, then guesses)",
        "settings": SEARCHED,
        "before": tok.decode(source[:-1].tolist()),
        "text": f"\n\n{tok.decode(target[:-1].tolist())}\n{tok.decode(found)}",
    }


def _answered(run: Run, model: LanguageModel, tok: Tokenizer, around: TextIds, seed: int) -> list[dict[str, Any]]:
    """Targets found for sources of the validation split, if there are any."""
    pairs = validation_pairs(run, tok)
    if pairs is None:
        return []
    rows = np.random.default_rng(seed).choice(len(pairs), size=min(ANSWERS, len(pairs)), replace=False).tolist()
    longest = run.recipe.model.context_length - len(around.before) - len(around.after)
    sources = [np.array([*around.before, *pairs.sources[row][:longest], *around.after]) for row in rows]
    found = _found(model, tok, around, sources)
    return [
        {
            "title": "a source of the validation split, and what was found (its target, then ours)",
            "settings": SEARCHED,
            "before": tok.decode(pairs.sources[row].tolist()),
            "text": f"\n\n{tok.decode(pairs.targets[row].tolist())}\n{tok.decode(ids)}",
        }
        for row, ids in zip(rows, found, strict=True)
    ]


def _found(model: LanguageModel, tok: Tokenizer, around: TextIds, sources: list[np.ndarray]) -> list[list[int]]:
    """The likeliest target of each source, by beam search, without its end."""
    device = next(model.parameters()).device
    source, present = pad_right(sources, device)
    found = beam_search(
        model,
        source,
        start_id=around.start,
        end_ids=around.stops,
        max_new_tokens=model.config.context_length,
        beams=BEAMS,
        source_present=present,
        allowed=known_ids(tok, model),
    )
    return [[token for token in hypotheses[0].ids if token not in around.stops] for hypotheses in found]
