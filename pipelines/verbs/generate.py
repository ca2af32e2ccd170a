"""Use: continue a prompt, write the target of a source, or fill masks.

Examples:
    bytelm generate runs/gpt --prompt "Once upon a time"
    bytelm generate runs/bert --prompt "The <|mask|> fox"
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Unpack

import tyro

from lm.position_checks import check_sinks
from pipelines.cli.arguments import (
    Adapter,
    AsJson,
    Checkpoint,
    Device,
    Dtype,
    RunFolder,
    check_beams,
    check_length_penalty,
)
from pipelines.cli.display import answer, table, write
from pipelines.cli.parsing import parse
from pipelines.cli.text_input import argument_text, standard_input_text, without_line_end
from pipelines.cli.verbs import verb
from pipelines.generation.generated import Generated, Guesses, Step
from pipelines.generation.sampling_options import SAMPLING, SamplingArguments, SamplingOptions
from pipelines.run.folder import opened

BEAMS = 4
TOKENS = 200

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("run prompt tokens steps", "sinks"),
    "Sampling": SAMPLING,
    "Beam search": ("beams", "length_penalty"),
    "Model": ("checkpoint adapter device dtype", ""),
    "Output": ("probabilities json", ""),
}


@verb
def generate(
    run: RunFolder,
    *,
    prompt: Annotated[Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")] = (),
    tokens: int | None = None,
    steps: int = 1,
    sinks: int = 0,
    beams: int | None = None,
    length_penalty: float | None = None,
    probabilities: bool = False,
    checkpoint: Checkpoint = "auto",
    adapter: Adapter = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: AsJson = False,
    **sampling: Unpack[SamplingArguments],
) -> str | list[str] | list[Guesses] | Generated | list[Generated]:
    """Continue prompts with a decoder, write targets of sources with an encoder-decoder, or fill masks with an encoder.

    Returns the new text, a list of texts for several prompts, or the guesses for each mask. Returns a dict with prompt,
    text and steps instead of each text if `probabilities` is given.

    Args:
        prompt: Text to continue, source of an encoder-decoder, or text with a <|mask|> (or the mask token of an
            imported tokenizer) at each position to fill; - reads standard input without its last newline. Repeat the
            option to continue several prompts together.
        tokens: Maximum number of new tokens; a text also stops at its end token. 200 by default.
        steps: Passes of an encoder over the masks. Each further pass predicts the least certain tokens again, fewer
            each time (mask-predict). 1 predicts all masks at once.
        sinks: First tokens that the cache of a decoder keeps beside the newest (attention sinks), to continue a text
            beyond the context without reading it again. 4 is usual; 0 for none.
        beams: Width of beam search, for an encoder-decoder; 0 samples, as a decoder does. 4 by default, or 0 if a
            sampling option is given.
        length_penalty: Beam search divides log-probabilities by the length to this power; 0 prefers short targets. 1 by
            default.
        probabilities: Show the likeliest tokens of each step with the model's probabilities, before temperature, top-k,
            top-p and min-p.
        as_json: Print JSON.
    """
    options = SamplingOptions(**sampling)
    _check(options, tokens, steps, beams, length_penalty)
    found = opened(run, checkpoint, device, dtype, adapter=adapter)
    prompts = [_read(each) for each in prompt or [""]]
    architecture = found.recipe.model.architecture
    if not prompt and architecture == "encoder-decoder":
        raise ValueError("`prompt` is missing: an encoder-decoder needs a source")
    search_options = ["`beams`"] * bool(beams) + ["`length_penalty`"] * (length_penalty is not None)
    if search_options and architecture != "encoder-decoder":
        raise ValueError(
            f"{search_options[0]} is for an encoder-decoder, and this run's architecture is {architecture}"
        )
    if steps > 1 and architecture != "encoder":
        raise ValueError(f"`steps` is for an encoder, and this run's architecture is {architecture}")
    if sinks:
        check_sinks(found.recipe.model, sinks, found.recipe.model.context_length)
    if architecture == "encoder":
        if len(prompts) > 1:
            raise ValueError(f"an encoder fills the masks of one text, and `prompt` has {len(prompts)} texts")
        if unused := (options.given + ["`tokens`"] * (tokens is not None) + ["`probabilities`"] * probabilities):
            raise ValueError(f"{unused[0]} does not apply to an encoder, which this run trained: leave it out")
        tok = found.tokenizer()
        from pipelines.generation.prompts import masked_ids
        from pipelines.run.text_ids import text_ids

        masked_ids(tok, prompts[0], found.recipe.model, text_ids(found, tok))
    searches = architecture == "encoder-decoder" and (beams or (beams is None and not options.given))
    if searches and probabilities:
        raise ValueError("`probabilities` shows steps of sampling, and this is a beam search: add `greedy`")
    if length_penalty is not None and not searches:
        raise ValueError("`length_penalty` is for beam search, and this samples: leave it out, or give `beams`")
    from pipelines.generation.text_generation import filled_masks, load_run, sampled_texts, searched_texts

    loaded = load_run(run, checkpoint=checkpoint, device=device, dtype=dtype, adapter=adapter)
    if architecture == "encoder":
        return _print_guesses(filled_masks(loaded, prompts[0], steps), as_json)
    most = TOKENS if tokens is None else tokens
    choices: list[list[Step]] | None = [[] for _ in prompts] if probabilities else None
    if searches:
        penalty = 1.0 if length_penalty is None else length_penalty
        texts = searched_texts(loaded, prompts, most, beams or BEAMS, penalty)
        return _print_texts(prompts, texts, as_json, after_prompt=False)
    texts = sampled_texts(loaded, prompts, most, options, choices, sinks)
    return _print_texts(prompts, texts, as_json, after_prompt=architecture == "decoder", steps=choices)


def _check(
    options: SamplingOptions, tokens: int | None, steps: int, beams: int | None, length_penalty: float | None
) -> None:
    for name, value in (("`tokens`", tokens), ("`steps`", steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 1")
    if beams is not None:
        check_beams(beams, "to sample")
    if length_penalty is not None:
        check_length_penalty(length_penalty)
    if beams and options.given:
        raise ValueError(f"`beams` searches for the likeliest text, without {options.given[0]}: leave one out")


def _read(prompt: str) -> str:
    """Return the text of a prompt; - reads standard input, without its last newline."""
    return without_line_end(standard_input_text("`prompt`")) if prompt == "-" else argument_text(prompt, "`prompt`")


def _print_texts(
    prompts: Sequence[str],
    pieces_of_texts: Iterator[list[str]],
    as_json: bool,
    after_prompt: bool,
    steps: Sequence[list[Step]] | None = None,
) -> str | list[str] | Generated | list[Generated]:
    """Print texts and the candidates of their `steps`, and return them. A single text is printed as it grows."""
    streamed = len(prompts) == 1 and not as_json
    if streamed:
        write(prompts[0] if after_prompt else "", end="")
    texts = [""] * len(prompts)
    try:
        for pieces in pieces_of_texts:
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
            if streamed:
                write(pieces[0], end="")
    except KeyboardInterrupt:
        if streamed:
            write("")  # ends the line
        raise
    made: list[Generated] = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
    if steps is not None:
        made = [{**each, "steps": own} for each, own in zip(made, steps, strict=True)]
    if as_json:
        write(json.dumps(made[0] if len(made) == 1 else made))
    elif streamed:
        write("")
    else:
        pairs = zip(prompts, texts, strict=True)
        write("\n\n".join((prompt if after_prompt else "") + text for prompt, text in pairs))
    if steps is None:
        return texts[0] if len(texts) == 1 else texts
    for own in steps if not as_json else ():
        answer("")
        _print_steps(own)
    return made[0] if len(made) == 1 else made


def _print_steps(steps: Sequence[Step]) -> None:
    rows = [
        (
            f"{number}",
            repr(step["text"]),
            f"{step['probability']:.1%}",
            "  ".join(f"{candidate['text']!r} {candidate['probability']:.1%}" for candidate in step["candidates"]),
        )
        for number, step in enumerate(steps, 1)
    ]
    table(("step", "token", "p", "likeliest"), rows, text=True)


def _print_guesses(masks: list[Guesses], as_json: bool) -> list[Guesses]:
    if as_json:
        write(json.dumps(masks))
    else:
        rows = [
            (f"{number}", *(f"{t!r} {p:.0%}" for t, p in zip(mask["tokens"], mask["probabilities"], strict=True)))
            for number, mask in enumerate(masks, 1)
        ]
        table(("mask", "guesses", *[""] * (len(rows[0]) - 2)), rows, text=True)
    return masks


def main(arguments: list[str]) -> None:
    """Run `bytelm generate` with command-line arguments."""
    parse(generate, arguments, "generate")
