"""Rank continuations of a text by their probability, as lm-evaluation-harness scores multiple choice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lm.warn import warn
from pipelines.cli.verbs import checks_arguments
from pipelines.generation.prompts import source_ids
from pipelines.run.loaded_run import LoadedRun
from pipelines.scoring.continuations import continuation, predict_endings
from pipelines.scoring.options import check_options
from pipelines.scoring.predictions import Predictions
from pipelines.scoring.texts import target_sequence, tokens_to_score
from pipelines.training.batch import Array


@dataclass(frozen=True)
class ChoiceScores:
    """The scores of N choices, in the order given."""

    choices: tuple[str, ...]
    log_probabilities: Array
    """(N,) float64: ln p(choice | text), in nats"""
    tokens: Array
    """(N,) int64: number of tokens of each choice, including white space from the end of the text"""
    bytes: Array
    """(N,) int64: number of bytes of each choice as given"""
    greedy: Array
    """(N,) bool: whether every token of the choice is the likeliest"""
    ids: list[Array]
    """Token ids of each choice, int64 (T,)"""
    predictions: list[Predictions]
    """Predictions of these tokens"""

    @property
    def per_token(self) -> Array:
        """Return ln p / tokens of each choice: (N,) float64."""
        quotient: Array = self.log_probabilities / self.tokens
        return quotient

    @property
    def per_byte(self) -> Array:
        """Return ln p / bytes of each choice: (N,) float64."""
        quotient: Array = self.log_probabilities / self.bytes
        return quotient


@checks_arguments
def rank_choices(
    run: LoadedRun, text: str, choices: Sequence[str], *, start: bool = True, top: int = 0
) -> ChoiceScores:
    """Return ln p(choice | text) of each choice, with text and choices encoded as in lm-evaluation-harness.

    White space at the end of the text moves to the choices. For a decoder, text and choice are encoded together. If
    the text alone has n tokens, the choice is every token after the first n. A text that is too long is cut at
    its beginning, with a warning. An encoder-decoder reads the text as its source; the end token is not scored.

    Raises ValueError for an encoder, an empty choice, and a choice that is too long.

    Args:
        run: A run that `load_run` returned.
        text: Text before the choices.
        choices: Continuations.
        start: Whether a decoder first reads the start token from training.
        top: Number of likeliest tokens to return for each prediction.
    """
    architecture = run.config.model.architecture
    check_options(run.config.model, start=start, choices=True)
    if not choices:
        raise ValueError("`choices` names no choice: give at least one")
    for number, choice in enumerate(choices, 1):
        if not choice:
            raise ValueError(
                f"choice {number} of {len(choices)} is empty: give at least one character, or leave it out"
            )
    context = text.rstrip()
    endings = [text[len(context) :] + choice for choice in choices]
    if architecture == "decoder":
        source, pairs = None, _continuations(run, context, endings, run.around.before if start else ())
    else:
        source, pairs = _targets(run, context, endings)
    scored, parts = [ids[first:] for ids, first in pairs], predict_endings(run, pairs, source, top)
    return ChoiceScores(
        tuple(choices),
        np.array([math.fsum(part.log_probabilities) for part in parts]),
        np.array([len(ids) for ids in scored]),
        np.array([len(choice.encode()) for choice in choices]),
        np.array([bool((part.ranks == 1).all()) for part in parts]),
        scored,
        parts,
    )


def _continuations(
    run: LoadedRun, context: str, endings: Sequence[str], before: Sequence[int]
) -> list[tuple[Array, int]]:
    """Return the ids of the context with each ending, after the ids `before`, and where the ending starts."""
    if not (before or run.tokenizer.encode(context, disallowed_special=())):
        raise ValueError("the text has no tokens, and no start token precedes the choices: add a word")
    sequences: list[tuple[Array, int]] = []
    for number, ending in enumerate(endings, 1):
        which = f"choice {number} of {len(endings)}"
        read = continuation(run, context, ending, before, which)
        if read.joins:
            warn(
                f"the first characters of {which} merge into the last token of the text and are not scored, as in "
                "lm-eval: end the text at a word's end"
            )
        if read.is_cut:
            warn(
                f"the text and {which} are longer than the context of {run.config.model.context_length:,} tokens: the "
                "beginning of the text was cut off"
            )
        sequences.append((read.ids, read.first))
    return sequences


def _targets(run: LoadedRun, context: str, endings: Sequence[str]) -> tuple[list[int], list[tuple[Array, int]]]:
    """Return the ids of an encoder-decoder's source, and each ending after the start token, with its index 1."""
    if not context:
        raise ValueError("the text is empty: give the source of the choices")
    (source,) = source_ids(run.tokenizer, [context], run.config.model, run.around)
    named = [(f"choice {number} of {len(endings)}", ending) for number, ending in enumerate(endings, 1)]
    allowed = run.around.marks
    ids = [(tokens_to_score(run, ending, name, allowed), name) for name, ending in named]
    return source, [(target_sequence(run, target, name), 1) for target, name in ids]
