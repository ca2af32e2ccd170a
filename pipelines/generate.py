"""`bytelm generate`: a prompt, continued by a trained decoder, or its masks filled by a trained encoder."""

import json
from typing import Annotated, Any

import tyro

from pipelines.arguments import Device, Dtype, RunFolder, parse


def generate(
    run: RunFolder,
    *,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    seed: int = 0,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> str | list[dict[str, Any]]:
    """Continue a prompt with a decoder, or fill the <|mask|>s in it with an encoder.

    Returns the new text, or for each mask its guesses: `position` (in tokens), `tokens`, `probabilities`.

    Args:
        prompt: The text to go on from; an encoder's has <|mask|> where a token is wanted.
        tokens: Most tokens to write; a decoder also stops at the end of the text.
        temperature: Below 1 sharper, above 1 more varied.
        top_k: Draw from the so many likeliest tokens.
        top_p: Draw from the fewest tokens that have so much probability together.
        greedy: Always take the likeliest token.
        seed: The same seed draws the same text.
        as_json: Whether to print JSON.
    """
    if not greedy and not 0.01 <= temperature <= 100:
        raise ValueError(
            f"--temperature is {temperature}, but must be from 0.01 to 100 (--greedy takes the likeliest token)"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"--top-k is {top_k}, but must be at least 1")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"--top-p is {top_p}, but must be above 0 and at most 1")
    if tokens < 1:
        raise ValueError(f"--tokens is {tokens}, but must be at least 1")
    from pipelines.loading import load_trained
    from pipelines.training.run import Run

    this = Run(run)
    model = load_trained(this, device, dtype).model
    if this.recipe.objective == "masked-token":
        return _fill(model, this.tokenizer(), prompt, as_json)
    sampling = {"temperature_value": 0.0 if greedy else temperature, "k": top_k, "p": top_p}
    return _continue(model, this.tokenizer(), prompt, tokens, sampling, seed, as_json)


def _continue(
    model: Any, tok: Any, prompt: str, tokens: int, sampling: dict[str, Any], seed: int, as_json: bool
) -> str:
    import codecs
    from functools import partial

    import torch

    from lm.generation import stream
    from lm.sampling import choose
    from tokenizer import END_OF_TEXT

    device = next(model.parameters()).device
    end = tok.special_tokens.get(END_OF_TEXT)
    # A document begins after the end of another: so does a prompt.
    ids = ([] if end is None else [end]) + tok.encode(prompt, disallowed_special=())
    if not ids:
        raise ValueError("--prompt is empty, and the tokenizer has no <|endoftext|> to start from: give a prompt")
    sampler = partial(choose, generator=torch.Generator(device).manual_seed(seed), **sampling)
    new = stream(
        model,
        torch.tensor([ids], device=device),
        tokens,
        sampler=sampler,
        stop_ids=[] if end is None else [end],
    )
    # A token may end in the middle of a character: it appears once the rest is there.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = []
    if not as_json:
        print(prompt, end="", flush=True)
    for step in new:
        token = int(step[0])
        if token == end:
            break
        pieces.append(decoder.decode(tok.decode_bytes([token])))
        if not as_json:
            print(pieces[-1], end="", flush=True)
    pieces.append(decoder.decode(b"", final=True))
    text = "".join(pieces)
    print(json.dumps({"prompt": prompt, "text": text}) if as_json else pieces[-1])
    return text


def _fill(model: Any, tok: Any, prompt: str, as_json: bool) -> list[dict[str, Any]]:
    import torch

    from lm.generation import fill_masks
    from pipelines.display import table
    from tokenizer import CLS, MASK, SEP

    special = tok.special_tokens
    if MASK not in prompt:
        raise ValueError(f"--prompt has no {MASK}: put it where the encoder shall guess a token")
    ids = [special[CLS], *tok.encode(prompt, allowed_special={MASK}, disallowed_special=()), special[SEP]]
    device = next(model.parameters()).device
    filled = fill_masks(model, torch.tensor(ids, device=device), special[MASK])
    guesses = [
        {
            "position": mask.position,
            "tokens": [tok.decode([token]) for token in mask.ids],
            "probabilities": mask.probabilities,
        }
        for mask in filled
    ]
    if as_json:
        print(json.dumps(guesses))
    else:
        rows = [
            (f"{number}", *(f"{t!r} {p:.0%}" for t, p in zip(g["tokens"], g["probabilities"], strict=True)))
            for number, g in enumerate(guesses, 1)
        ]
        table(("mask", "guesses", *[""] * (len(rows[0]) - 2)), rows, text=True)
    return guesses


def main(arguments: list[str]) -> None:
    parse(generate, arguments, "generate")
