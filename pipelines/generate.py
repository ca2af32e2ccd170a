"""`bytelm generate`: prompts continued by a trained decoder, sources answered by an encoder-decoder, masks filled by an
encoder."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import tyro

from pipelines.cli.arguments import Device, Dtype, RunFolder, check_beams, check_length_penalty
from pipelines.cli.parsing import parse
from pipelines.cli.sampling_options import Choosing
from pipelines.cli.verbs import verb

BEAMS = 4
TOKENS = 200


@verb
def generate(
    run: RunFolder,
    *,
    prompt: Annotated[Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")] = (),
    tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    greedy: bool = False,
    beams: int | None = None,
    length_penalty: float | None = None,
    seed: int = 0,
    checkpoint: str = "newest",
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> Any:
    """Continue prompts with a decoder, write a target for sources with an encoder-decoder, or fill the <|mask|>s in a
    text with an encoder.

    Returns the new text, a list of them where several prompts were given, or for each mask its guesses: `position` (in
    tokens), `tokens`, `probabilities`.

    Args:
        prompt: Text to continue, or the source of an encoder-decoder; - reads standard input without its last newline.
            For an encoder, a text with <|mask|> (or the mask token of an imported tokenizer) at each position to fill.
            Repeat the option to continue several prompts together.
        tokens: Most tokens to write; each text also stops at its end. Left out, 200.
        temperature: Below 1 sharper, above 1 more varied. Left out, 0.8.
        top_k: Draw from the so many likeliest tokens.
        top_p: Draw from the fewest tokens that have so much probability together.
        min_p: Draw from the tokens that are at least so probable beside the likeliest.
        repetition_penalty: Above 1, what was said becomes less likely; 1 for none.
        greedy: Always take the likeliest token.
        beams: An encoder-decoder looks for the likeliest text among so many that grow side by side; 0: it draws, as a
            decoder does. Left out, 4, or 0 where another option says how to choose.
        length_penalty: Beam search divides log-probabilities by the length to this power: 0 prefers short targets. Left
            out, 1.
        seed: The same seed draws the same text.
        checkpoint: Which one of the run: newest, best (the lowest validation loss), or the number of a step.
        as_json: Whether to print JSON.
    """
    choosing = Choosing(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        greedy=greedy,
        seed=seed,
    )
    if tokens is not None and tokens < 1:
        raise ValueError(f"--tokens is {tokens}, but must be at least 1")
    if beams is not None:
        check_beams(beams, "to draw")
    if length_penalty is not None:
        check_length_penalty(length_penalty)
    if beams and choosing.given:
        option = choosing.given[0]
        raise ValueError(f"--beams looks for the likeliest text, and {option} chooses otherwise: leave one out")
    from pipelines.run.folder import Run
    from pipelines.run.loading import load_trained
    from pipelines.run.text_ids import text_ids

    this = Run(run)
    model = load_trained(this, device, dtype, checkpoint).model
    tok = this.tokenizer()
    around = text_ids(this, tok)
    architecture = model.config.architecture
    prompts = [_read(each) for each in ([prompt] if isinstance(prompt, str) else list(prompt) or [""])]
    if not prompt and architecture == "encoder-decoder":
        raise ValueError("--prompt is missing: an encoder-decoder answers a source, so give one")
    searching = ["--beams"] * bool(beams) + ["--length-penalty"] * (length_penalty is not None)
    if searching and architecture != "encoder-decoder":
        raise ValueError(
            f"{searching[0]} is for an encoder-decoder, and this run's model is of architecture {architecture}"
        )
    if architecture == "encoder":
        if len(prompts) > 1:
            raise ValueError(f"an encoder fills the masks of one text, and --prompt was given {len(prompts)} times")
        if writing := choosing.given + ["--tokens"] * (tokens is not None):
            raise ValueError(f"{writing[0]} is for a model that writes, and this run trained an encoder: leave it out")
        return _fill(model, tok, around, prompts[0], as_json)
    tokens = TOKENS if tokens is None else tokens
    if architecture == "encoder-decoder" and (beams or (beams is None and not choosing.given)):
        penalty = 1.0 if length_penalty is None else length_penalty
        texts = _searched(model, tok, around, prompts, tokens, beams or BEAMS, penalty)
        return _shown(prompts, texts, as_json, after_prompt=False)
    if length_penalty is not None:
        raise ValueError("--length-penalty is of beam search, which this does not do: leave it out, or give --beams")
    steps = _stream(model, tok, around, prompts, tokens, choosing)
    texts = _texts(tok, around.stops, steps, len(prompts))
    return _shown(prompts, texts, as_json, after_prompt=architecture == "decoder")


def _read(prompt: str) -> str:
    """Return the prompt that a --prompt stands for; - stands for standard input."""
    from pipelines.cli.process import read_standard_input

    try:
        if prompt == "-":
            return read_standard_input().decode().removesuffix("\n")
        return prompt.encode("utf-8", "surrogateescape").decode()  # undoes Python's escapes of invalid bytes
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompt is not UTF-8 at byte {error.start:,}: convert it") from None
    except UnicodeEncodeError:
        return prompt  # the tokenizer names the surrogate


def _stream(
    model: Any, tok: Any, around: Any, prompts: Sequence[str], tokens: int, choosing: Choosing
) -> Iterator[Sequence[int]]:
    """The next id of each text, step by step. What is wrong with a prompt is said before the first."""
    import torch

    from lm.decoding.generation import stream
    from lm.decoding.state import pad_left, pad_right
    from pipelines.run.prompts import prompt_ids, source_ids
    from pipelines.run.text_ids import known_ids

    device = next(model.parameters()).device
    options: dict[str, Any] = {"sampler": choosing.sampler(device), "repetition_penalty": choosing.repetition_penalty}
    options |= {"allowed": known_ids(tok, model), "stop_ids": around.stops}
    if model.config.architecture == "encoder-decoder":
        sources = source_ids(tok, prompts, model.config, around)
        options["source"], options["source_present"] = pad_right(sources, device)
        ids, present = torch.full((len(prompts), 1), around.start, device=device), None
        tokens = min(tokens, model.config.context_length)
    else:
        ids, present = pad_left(prompt_ids(tok, prompts, model.config, around), device)
    return (step.tolist() for step in stream(model, ids, tokens, present=present, **options))


def _searched(
    model: Any, tok: Any, around: Any, prompts: Sequence[str], tokens: int, beams: int, length_penalty: float
) -> Iterator[list[str]]:
    """The likeliest target of each source, whole, all in one step."""
    from lm.decoding.beam import beam_search
    from lm.decoding.packed import prepare
    from lm.decoding.state import pad_right
    from pipelines.evaluation.translation import sources_at_once
    from pipelines.run.prompts import source_ids
    from pipelines.run.text_ids import known_ids

    sources, at_once = source_ids(tok, prompts, model.config, around), sources_at_once(beams)
    ready = prepare(model)
    texts = []
    for first in range(0, len(sources), at_once):
        source, present = pad_right(sources[first : first + at_once], ready.device)
        found = beam_search(
            ready,
            source,
            start_id=around.start,
            end_ids=around.stops,
            max_new_tokens=min(tokens, model.config.context_length),
            beams=beams,
            length_penalty=length_penalty,
            source_present=present,
            allowed=known_ids(tok, model),
        )
        best = [hypotheses[0].ids for hypotheses in found]
        texts += [tok.decode([token for token in ids if token not in around.stops]) for ids in best]
    yield texts


def _texts(tok: Any, stops: Sequence[int], steps: Iterable[Sequence[int]], count: int) -> Iterator[list[str]]:
    """What each step adds to each text: a token may end in the middle of a character, which appears once the rest is
    there."""
    import codecs

    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(count)]
    ended = [False] * count
    for step in steps:
        ended = [before or token in stops for before, token in zip(ended, step, strict=True)]
        yield [
            "" if over else decoder.decode(tok.decode_bytes([token]))
            for over, decoder, token in zip(ended, decoders, step, strict=True)
        ]
    yield [decoder.decode(b"", final=True) for decoder in decoders]


def _shown(prompts: Sequence[str], steps: Iterator[list[str]], as_json: bool, after_prompt: bool) -> str | list[str]:
    """Print texts, a single one as it grows, and return them."""
    from pipelines.cli.display import write

    single = len(prompts) == 1
    if single and not as_json:
        write(prompts[0] if after_prompt else "", end="")
    texts = [""] * len(prompts)
    try:
        for pieces in steps:
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
            if single and not as_json:
                write(pieces[0], end="")
    except KeyboardInterrupt:
        if single and not as_json:
            write("")  # the text that is there ends here
        raise
    pairs = [{"prompt": prompt, "text": text} for prompt, text in zip(prompts, texts, strict=True)]
    if as_json:
        write(json.dumps(pairs[0] if single else pairs))
    elif single:
        write("")
    else:
        write("\n\n".join((pair["prompt"] if after_prompt else "") + pair["text"] for pair in pairs))
    return texts[0] if single else texts


def _fill(model: Any, tok: Any, around: Any, prompt: str, as_json: bool) -> list[dict[str, Any]]:
    import torch

    from lm.decoding.generation import fill_masks
    from pipelines.cli.display import table, write
    from pipelines.run.prompts import masked_ids
    from pipelines.run.text_ids import known_ids
    from tokenizer import MASK

    ids = masked_ids(tok, prompt, model.config, around)
    ids = torch.tensor(ids, device=next(model.parameters()).device)
    filled = fill_masks(model, ids, around.special[MASK], allowed=known_ids(tok, model))
    guesses = [
        {
            "position": mask.position,
            "tokens": [tok.decode([token]) for token in mask.ids],
            "probabilities": mask.probabilities,
        }
        for mask in filled
    ]
    if as_json:
        write(json.dumps(guesses))
    else:
        rows = [
            (f"{number}", *(f"{t!r} {p:.0%}" for t, p in zip(g["tokens"], g["probabilities"], strict=True)))
            for number, g in enumerate(guesses, 1)
        ]
        table(("mask", "guesses", *[""] * (len(rows[0]) - 2)), rows, text=True)
    return guesses


def main(arguments: list[str]) -> None:
    parse(generate, arguments, "generate")
