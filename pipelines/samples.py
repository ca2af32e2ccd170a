"""What a trained model writes: continuations by a decoder, filled masks by an encoder."""

from typing import Any

import numpy as np
import torch

from lm.generation import fill_masks, generate
from lm.model import LanguageModel
from pipelines.dataset import TokenDataset
from pipelines.training.run import Run
from tokenizer import CLS, END_OF_TEXT, MASK, SEP, Tokenizer

PROMPT_TOKENS = 48
NEW_TOKENS = 160
EXCERPT_TOKENS = 56
# Every so many tokens of an excerpt one is masked.
MASK_EVERY = 9


def samples_of(run: Run, model: LanguageModel, seed: int = 0) -> list[dict[str, Any]]:
    """A few samples for people: dicts with `title`, `before` (what was given), `text` (what the model wrote).

    The given text is from the validation split of the run's dataset; without it only free samples are made.
    """
    tok = run.tokenizer()
    # An encoder's block is two shorter than what it reads.
    excerpt = _validation_excerpt(run, tok, min(EXCERPT_TOKENS, run.recipe.model.context_length - 2), seed)
    if run.recipe.objective == "masked-token":
        return [_filled(model, tok, excerpt)] if len(excerpt) else []
    samples = []
    if len(excerpt):
        samples.append(_continued(model, tok, excerpt[:PROMPT_TOKENS], "validation text, continued", seed))
    if END_OF_TEXT in tok.special_tokens:
        start = np.array([tok.special_tokens[END_OF_TEXT]])
        samples.append(_continued(model, tok, start, "from nothing", seed))
    return samples


def _validation_excerpt(run: Run, tok: Tokenizer, length: int, seed: int) -> np.ndarray:
    """Tokens of the validation split without a document's boundary in them; empty where there are none, and where the
    dataset is gone or was built again with another tokenizer."""
    try:
        dataset = TokenDataset(run.data)
        stream = dataset.split("validation")
    except ValueError:
        return np.empty(0, np.int64)
    if dataset.tokenizer_fingerprint != tok.fingerprint:
        return np.empty(0, np.int64)
    generator = np.random.default_rng(seed)
    special = sorted(tok.special_tokens.values())
    for _ in range(100):
        start = int(generator.integers(max(1, stream.tokens - length)))
        ids = stream.read(start, length).astype(np.int64)
        if not np.isin(ids, special).any():
            return ids
    return np.empty(0, np.int64)


def _continued(model: LanguageModel, tok: Tokenizer, prompt: np.ndarray, title: str, seed: int) -> dict[str, Any]:
    device = next(model.parameters()).device
    stop = [tok.special_tokens[END_OF_TEXT]] if END_OF_TEXT in tok.special_tokens else []
    new = generate(
        model,
        torch.from_numpy(prompt).to(device),
        NEW_TOKENS,
        temperature=0.8,
        top_p=0.95,
        generator=torch.Generator(device).manual_seed(seed),
        stop_ids=stop,
    )
    text = [token for token in new.tolist() if token not in stop]
    given = [token for token in prompt.tolist() if token not in stop]
    return {"title": title, "before": tok.decode(given), "text": tok.decode(text)}


def _filled(model: LanguageModel, tok: Tokenizer, excerpt: np.ndarray) -> dict[str, Any]:
    special = tok.special_tokens
    ids = np.concatenate(([special[CLS]], excerpt, [special[SEP]]))
    places = np.arange(MASK_EVERY // 2 + 1, len(ids) - 1, MASK_EVERY)
    answers = ids[places]
    ids[places] = special[MASK]
    device = next(model.parameters()).device
    filled = fill_masks(model, torch.from_numpy(ids).to(device), special[MASK], top=3)
    before = tok.decode(ids[1:-1].tolist())
    lines = ["", ""]
    for answer, mask in zip(answers.tolist(), filled, strict=True):
        guesses = ", ".join(
            f"{tok.decode([guess])!r} {p:.0%}" for guess, p in zip(mask.ids, mask.probabilities, strict=True)
        )
        lines.append(f"{'✓' if mask.ids[0] == answer else ' '} {tok.decode([answer])!r:<14} {guesses}")
    return {
        "title": "masked validation text, and what was put there (hidden token, then guesses)",
        "before": before,
        "text": "\n".join(lines),
    }
