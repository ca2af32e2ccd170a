"""Text from a run's model: continued prompts, targets of sources, filled masks."""

import codecs
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from lm.decoding.generation import Sampler, fill_masks, stream
from lm.decoding.sampling import sample
from lm.decoding.state import pad_left, pad_right
from lm.metrics.predictions import token_scores
from pipelines.generation.generated import Candidate, Guesses, Step
from pipelines.generation.prompts import masked_ids, prompt_ids, source_ids
from pipelines.generation.sampling_options import TEMPERATURE, SamplingOptions
from pipelines.generation.targets import searched_targets
from pipelines.run.loaded_run import LoadedRun
from pipelines.run.loaded_run import load_run as load_run
from pipelines.run.text_ids import known_ids
from tokenizer import MASK, Tokenizer

CANDIDATES = 5  # of a recorded step


def sampled_texts(
    run: LoadedRun,
    prompts: Sequence[str],
    tokens: int,
    options: SamplingOptions,
    steps_of: Sequence[list[Step]] | None = None,
    sinks: int = 0,
) -> Iterator[list[str]]:
    """Yield what each step adds to each text: continued prompts of a decoder, targets of an encoder-decoder.

    `steps_of` has a list for each prompt, to which each step is appended, with the end token. Its probabilities are the
    model's: after the repetition penalty, before temperature, top-k, top-p and min-p. `sinks`: as for `stream`.
    Prompts that cannot be read raise ValueError before the first step.
    """
    model, around, config = run.model, run.around, run.config.model
    device = model.embedding.weight.device
    source = source_present = present = None
    if config.architecture == "encoder-decoder":
        source, source_present = pad_right(source_ids(run.tokenizer, prompts, config, around), device)
        ids = torch.full((len(prompts), 1), _start(run), device=device)
        tokens = min(tokens, config.context_length)
    else:
        ids, present = pad_left(prompt_ids(run.tokenizer, prompts, config, around), device)
    return continued(run, ids, tokens, options, steps_of, present, source, source_present, sinks)


def continued(
    run: LoadedRun,
    ids: Tensor,
    tokens: int,
    options: SamplingOptions,
    steps_of: Sequence[list[Step]] | None = None,
    present: Tensor | None = None,
    source: Tensor | None = None,
    source_present: Tensor | None = None,
    sinks: int = 0,
) -> Iterator[list[str]]:
    """Yield what each step adds to the texts of `ids` (B, T) int64.

    See `sampled_texts` for `steps_of`, and `lm.decoding.generation.stream` for the last four arguments.
    """
    stops, sampler = run.around.stops, _sampler(options, ids.device)
    steps = stream(
        run.model,
        ids,
        tokens,
        present=present,
        source=source,
        source_present=source_present,
        sampler=sampler if steps_of is None else _record(sampler, run.tokenizer, stops, steps_of),
        repetition_penalty=options.repetition_penalty,
        allowed=known_ids(run.tokenizer, run.model),
        stop_ids=stops,
        sinks=sinks,
    )
    return _texts(run.tokenizer, stops, (step.tolist() for step in steps), len(ids), begun=source is None)


def searched_texts(
    run: LoadedRun, sources: Sequence[str], tokens: int, beams: int, length_penalty: float
) -> Iterator[list[str]]:
    """Yield, in a single step, the likeliest target of each source that beam search finds."""
    config, tok = run.config.model, run.tokenizer
    targets = searched_targets(
        run.model,
        source_ids(tok, sources, config, run.around),
        run.around,
        known_ids(tok, run.model),
        tokens=min(tokens, config.context_length),
        beams=beams,
        length_penalty=length_penalty,
    )
    yield [tok.decode(ids) for ids in targets]


def filled_masks(run: LoadedRun, text: str, steps: int = 1) -> list[Guesses]:
    """Return the guesses of an encoder at each mask in `text`, after `steps` of mask-predict; see `fill_masks`."""
    ids = torch.tensor(
        masked_ids(run.tokenizer, text, run.config.model, run.around), device=run.model.embedding.weight.device
    )
    allowed = known_ids(run.tokenizer, run.model)
    masks = fill_masks(run.model, ids, run.around.special[MASK], allowed=allowed, steps=steps)
    return [
        {
            "position": mask.position,
            "tokens": [run.tokenizer.decode([token]) for token in mask.ids],
            "probabilities": mask.probabilities,
        }
        for mask in masks
    ]


def _start(run: LoadedRun) -> int:
    assert run.around.start is not None  # source_ids requires it
    return run.around.start


def _sampler(options: SamplingOptions, device: torch.device) -> Sampler:
    temperature = TEMPERATURE if options.temperature is None else options.temperature
    return partial(
        sample,
        temperature=0.0 if options.greedy else temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        generator=torch.Generator(device).manual_seed(options.seed),
    )


def _record(sampler: Sampler, tok: Tokenizer, stops: Sequence[int], steps_of: Sequence[list[Step]]) -> Sampler:
    """Return a sampler that also appends its choice for each prompt to `steps_of`, until the prompt's text ends."""

    def candidate(token: int, log_probability: float) -> Candidate:
        return {"text": tok.decode([token]), "id": token, "probability": math.exp(log_probability)}

    def choose(logits: Tensor) -> Tensor:
        ids = sampler(logits)
        found = token_scores(logits, ids, CANDIDATES)
        rows = zip(steps_of, ids.tolist(), *(each.tolist() for each in found), strict=True)
        for steps, token, log_probability, _, _, best, values in rows:
            if not steps or steps[-1]["id"] not in stops:
                # Tokens that may not be chosen have probability 0, and perhaps no bytes.
                pairs = [pair for pair in zip(best, values, strict=True) if pair[1] > -math.inf]
                chosen = candidate(token, log_probability)
                steps.append({**chosen, "candidates": [candidate(*pair) for pair in pairs]})
        return ids

    return choose


def _texts(
    tok: Tokenizer, stops: Sequence[int], steps: Iterable[Sequence[int]], count: int, begun: bool
) -> Iterator[list[str]]:
    """Yield what each step's ids add to each text. A character that spans tokens appears when it is complete.

    begun: whether the first ids continue a text.
    """
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(count)]
    ended = [False] * count
    for step in steps:
        ended = [before or token in stops for before, token in zip(ended, step, strict=True)]
        yield [
            "" if over else decoder.decode(tok.added_bytes(token) if begun else tok.decode_bytes([token]))
            for over, decoder, token in zip(ended, decoders, step, strict=True)
        ]
        begun = True
    yield [decoder.decode(b"", final=True) for decoder in decoders]
