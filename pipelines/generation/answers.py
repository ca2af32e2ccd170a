"""Answers of a run with a chat template."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lm.warn import warn
from pipelines.chat.messages import Conversation, Message, conversation_of, fitting
from pipelines.generation.sampling_options import SamplingOptions
from pipelines.generation.text_generation import continued
from pipelines.run.loaded_run import LoadedRun
from pipelines.run.loaded_run import load_run as load_run

TOKENS = 200


def answer(
    run: str | Path | LoadedRun, messages: str | Sequence[dict[str, str]], *, tokens: int = TOKENS, **sampling: Any
) -> str:
    """Return the answer of a run to messages such as [{"role": "user", "content": "Hi"}], or to a text of the user.

    `sampling` are fields of SamplingOptions, such as `greedy=True`; see `answered` for `tokens` and long conversations.
    """
    said = (Message("user", messages),) if isinstance(messages, str) else conversation_of(messages, "`messages`")
    return "".join(answered(load_run(run), said, tokens, SamplingOptions(**sampling)))


def answered(run: LoadedRun, messages: Conversation, tokens: int, options: SamplingOptions) -> Iterator[str]:
    """Yield the parts of an answer to `messages`, of at most `tokens` tokens, as they come.

    If the conversation leaves less room in the context than `tokens`, or than half of the context, its oldest turns are
    not read; system messages always are. Raises ValueError for a run without a chat template.
    """
    run.run.require_chat_template()
    template, context = run.template, run.config.model.context_length
    assert template is not None
    room = context - min(tokens, context // 2)
    read = fitting(messages, lambda kept: len(template.prompt(kept)) <= room)
    ids = template.prompt(read)
    if len(ids) > context:
        warn(
            f"the last message has {len(ids):,} tokens with its template, of which the model reads the last "
            f"{context:,}: shorten it",
        )
    rows = torch.tensor([ids[-context:]], dtype=torch.int64, device=run.model.embedding.weight.device)
    for parts in continued(run, rows, tokens, options):
        yield parts[0]
