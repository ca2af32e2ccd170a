"""Check the options of `bytelm score` against the model of a run. Imports no torch."""

from typing import Literal

from lm.config import ModelConfig

Masking = Literal["token", "word"]


def check_options(
    model: ModelConfig,
    *,
    target: str | None = None,
    stride: int | None = None,
    rolling: bool = False,
    start: bool = True,
    masking: str = "token",
    words: bool = False,
    choices: bool = False,
    pairs: bool = False,
    questions: bool = False,
) -> None:
    """Raise ValueError for options that a model does not take."""
    kind = model.architecture
    if choices and kind == "encoder":
        raise ValueError("`choices` needs a decoder or an encoder-decoder, and this run's model is an encoder")
    if questions and kind != "decoder":
        raise ValueError(f"`questions` needs a decoder, and this run's architecture is {kind}")
    if pairs and kind == "encoder-decoder":
        raise ValueError("`pairs` needs a decoder or an encoder, and this run's model is an encoder-decoder")
    if kind == "encoder-decoder" and target is None and not choices:
        raise ValueError("the run's model is an encoder-decoder: give the target to score with `target`")
    given = {
        "`target`": ("an encoder-decoder", "encoder-decoder", target is not None),
        "`start=False`": ("a decoder", "decoder", not start),
        "`masking`": ("an encoder", "encoder", masking not in ("auto", "token")),
        "`rolling`": ("a decoder", "decoder", rolling),
    }
    for option, (needed, architecture, is_given) in given.items():
        if is_given and kind != architecture:
            raise ValueError(f"{option} needs {needed}, and this run's architecture is {kind}: leave it out")
    if rolling and stride is not None:
        raise ValueError("`rolling` sets the stride to the context: leave `stride` out")
    unfit = {"`stride`": stride is not None, "`rolling`": rolling, "`by='word'`": words}
    if (pairs or questions) and any(unfit.values()):
        name = next(name for name, is_given in unfit.items() if is_given)
        raise ValueError(f"`{'pairs' if pairs else 'questions'}` scores whole texts: leave {name} out")
    if rolling and words:
        raise ValueError("`rolling` scores tokens and not words: leave `by='word'` out")
    if stride is None:
        return
    if kind == "encoder-decoder":
        raise ValueError("`stride` is for windows, and an encoder-decoder reads source and target whole: leave it out")
    window = model.context_length - (2 if kind == "encoder" else 0)
    if not 1 <= stride <= window:
        raise ValueError(f"`stride` is {stride}, but must be from 1 to the window of {window} tokens")
