"""Use: talk with a run that learned to answer.

Examples:
    bytelm chat runs/chat
    bytelm chat runs/chat --system "Be brief." --message "What is two plus two?"
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Unpack

import tyro

from pipelines.cli import waiting
from pipelines.cli.arguments import Adapter, AsJson, Checkpoint, Device, Dtype, RunFolder
from pipelines.cli.display import say, say_on_stderr, write
from pipelines.cli.process import interrupts
from pipelines.cli.text_input import argument_text, without_line_end
from pipelines.cli.verbs import verb
from pipelines.generation.sampling_options import SAMPLING, SamplingArguments, SamplingOptions
from pipelines.run.folder import opened

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Conversation": ("run system message tokens", ""),
    "Sampling": SAMPLING,
    "Model": ("checkpoint adapter device dtype", ""),
    "Output": ("json", ""),
}


@verb
def chat(
    run: RunFolder,
    *,
    system: str | None = None,
    message: Annotated[Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="TEXT")] = (),
    tokens: int = 200,
    checkpoint: Checkpoint = "auto",
    adapter: Adapter = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: AsJson = False,
    **sampling: Unpack[SamplingArguments],
) -> list[dict[str, str]]:
    """Talk with a run that bytelm finetune made for the task chat, or that was imported with a chat template.

    Each line is a message. Ctrl-C ends an answer, Ctrl-D the conversation. If a conversation no longer fits in the
    context, its oldest turns are dropped. Returns the messages, each a dict with role and content.

    Args:
        system: System message at the start of the conversation.
        message: Message to answer, instead of lines from standard input. Repeat the option for more messages.
        tokens: Maximum number of tokens of an answer. An answer also stops at the end of its turn.
        as_json: Print the messages as JSON at the end, instead of the answers.
    """
    options = SamplingOptions(**sampling)
    if tokens < 1:
        raise ValueError(f"`tokens` is {tokens}, but must be at least 1")
    if as_json:
        say_on_stderr()
    opened(run, checkpoint, device, dtype, adapter=adapter).require_chat_template()
    given = [argument_text(text, "`message`") for text in message]
    start = [] if system is None else [{"role": "system", "content": argument_text(system, "`system`")}]
    from pipelines.generation.answers import load_run  # imports PyTorch, which takes seconds

    loaded = load_run(run, checkpoint=checkpoint, device=device, dtype=dtype, adapter=adapter)
    said = _talk(
        loaded, start, iter(given) if given else _typed(loaded.run.name, as_json), tokens, options, silent=as_json
    )
    if as_json:
        write(json.dumps(said, ensure_ascii=False))
    return said


def _talk(
    run: "LoadedRun",
    said: list[dict[str, str]],
    texts: Iterator[str],
    tokens: int,
    options: SamplingOptions,
    silent: bool,
) -> list[dict[str, str]]:
    """Answer each text, and return all messages. Ctrl-C ends an answer; the text so far is kept."""
    from pipelines.chat.messages import conversation_of
    from pipelines.generation.answers import answered

    for turn, text in enumerate(texts):
        said = [*said, {"role": "user", "content": text}]
        parts: list[str] = []
        try:
            seeded = replace(options, seed=(options.seed + turn) % 2**63)
            for part in answered(run, conversation_of(said, "the conversation"), tokens, seeded):
                parts.append(part)
                if not silent:
                    write(part, end="")
        except KeyboardInterrupt:
            interrupts.clear()
        if not silent:
            write("")
        said = [*said, {"role": "assistant", "content": "".join(parts)}]
    return said


def _typed(name: str, as_json: bool) -> Iterator[str]:
    """Yield the lines of standard input that are not blank.

    A terminal shows a prompt: on standard error with `as_json`, because standard output has only the JSON.
    """
    typed = sys.stdin.isatty()
    if typed:
        import readline  # noqa: F401 - input() edits lines with it

        say(f"{name}: write a message; Ctrl-C ends an answer, Ctrl-D the conversation")
    while True:
        try:
            with waiting.pause_line():
                if typed and as_json:
                    print("> ", end="", file=sys.stderr, flush=True)
                line = input("" if as_json else "> ") if typed else sys.stdin.buffer.readline().decode()
        except EOFError:
            if as_json:
                print(file=sys.stderr)
            else:
                write("")
            return
        except UnicodeDecodeError as error:
            raise ValueError(f"standard input is not UTF-8 ({error.reason}): convert it") from None
        if not (line or typed):
            return
        if line.strip():
            yield without_line_end(line)
