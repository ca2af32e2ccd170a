"""The fields of `POST /v1/completions`."""

import secrets
from dataclasses import dataclass
from typing import Any

from pipelines.serving.errors import RequestError
from pipelines.serving.fields import Fields, check_text, is_ids

DEFAULT_TOKENS = 16
MOST_CHOICES = 1024  # of a request
MOST_LOGPROBS = 100
MOST_TOKENS = 1 << 18  # of all texts of a request, each with its prompt
MOST_ENTRIES = 250_000  # log-probabilities in an answer
MOST_STOPS = 16
LONGEST_STOP = 1000  # characters
READ = {"model", "prompt", "max_tokens", "n", "best_of", "stop", "seed", "temperature", "top_p", "top_k", "min_p"}
READ |= {"logprobs", "echo", "stream", "stream_options", "user"}
# Fields of OpenAI's API that are refused unless their value has no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
}

Prompt = str | list[int]


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A completion request with valid values. See docs/serving.md."""

    model: Any
    prompts: list[Prompt | None]
    """None: begin with the start token"""
    max_tokens: int | None
    n: int
    stop: tuple[str, ...]
    seed: int
    temperature: float
    top_p: float | None
    top_k: int | None
    min_p: float | None
    logprobs: int | None
    echo: bool
    stream: bool
    include_usage: bool

    @property
    def exact(self) -> bool:
        """Return whether exactly `max_tokens` tokens follow the prompt, each with a log-probability.

        lm-evaluation-harness drops the last `max_tokens` log-probabilities. With fewer new tokens it would drop tokens
        of the prompt.
        """
        return self.echo and self.logprobs is not None


def completion_request(body: dict[str, Any]) -> CompletionRequest:
    """Return the request in a JSON object. Raises RequestError for an invalid value or an unsupported field."""
    fields = Fields(body, {*READ, *NEUTRAL})
    for name, values in NEUTRAL.items():
        if (value := fields.get(name)) is not None and (isinstance(value, bool) or value not in values):
            raise RequestError(400, f"{name} is not supported: leave it out", param=name)
    n = fields.whole("n", 1, MOST_CHOICES) or 1
    if fields.get("best_of") not in (None, n):
        raise RequestError(400, "best_of is not supported: leave it out, or give the value of n", param="best_of")
    prompts = _prompts(fields.get("prompt"))
    if n * len(prompts) > MOST_CHOICES:
        raise RequestError(400, f"the request asks for more than {MOST_CHOICES:,} texts: send several", param="prompt")
    temperature = fields.number("temperature", 0.0, 100.0)
    seed = fields.whole("seed", -(2**63), 2**63 - 1)
    return CompletionRequest(
        model=fields.get("model"),
        prompts=prompts,
        max_tokens=fields.whole("max_tokens", 0, 2**31 - 1),
        n=n,
        stop=_stops(fields.get("stop")),
        seed=secrets.randbits(63) if seed is None else seed % 2**63,
        temperature=1.0 if temperature is None else temperature,
        top_p=_above_0(fields, "top_p"),
        top_k=fields.whole("top_k", 1, 2**31 - 1),
        min_p=fields.number("min_p", 0.0, 1.0) or None,
        logprobs=fields.whole("logprobs", 0, MOST_LOGPROBS),
        echo=fields.flag("echo"),
        stream=fields.flag("stream"),
        include_usage=_include_usage(fields),
    )


def _above_0(fields: Fields, name: str) -> float | None:
    value = fields.number(name, 0.0, 1.0)
    if value == 0:
        raise RequestError(400, f"{name} is 0, but must be above 0: temperature 0 is greedy", param=name)
    return value


def _prompts(value: Any) -> list[Prompt | None]:
    """Return the prompts: one for a string or a list of ids, several for a list of strings or of lists of ids."""
    if isinstance(value, str):
        check_text("prompt", value)
    if value is None or isinstance(value, str) or (value and is_ids(value)):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            check_text("prompt", *value)
            return value
        if all(each and is_ids(each) for each in value):
            return value
        if any(each == [] for each in value):
            raise RequestError(400, "a prompt has no tokens: give at least one", param="prompt")
    raise RequestError(
        400, "prompt must be a string, a list of strings, a list of token ids or a list of such lists", param="prompt"
    )


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise RequestError(400, "stop must be a string or a list of strings, none of them empty", param="stop")
    if len(stops) > MOST_STOPS:
        raise RequestError(400, f"stop has {len(stops)} strings, but may have {MOST_STOPS}", param="stop")
    if any(len(stop) > LONGEST_STOP for stop in stops):
        raise RequestError(400, f"stop has a string of more than {LONGEST_STOP:,} characters", param="stop")
    check_text("stop", *stops)
    return tuple(stops)


def _include_usage(fields: Fields) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise RequestError(400, "stream_options must be an object", param="stream_options")
    if not fields.flag("stream"):
        raise RequestError(400, "stream_options needs stream: true", param="stream_options")
    return Fields(options, ("include_usage",)).flag("include_usage")
