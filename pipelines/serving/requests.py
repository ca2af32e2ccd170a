"""The requests of the API, checked by pydantic: one model for each. A field that is null counts as left out."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request

from pipelines.serving.errors import RequestError, cut

MOST_CHOICES = 1024  # texts of a completion request
MOST_LOGPROBS = 100
MOST_IDS = 1 << 18  # in a list, except in a prompt
MOST_STOPS = 16
LONGEST_STOP = 1000  # characters
LONGEST_PAGE_TEXT = 100_000  # characters
LONGEST_TEXT = 1 << 22  # characters; pydantic looks for lone surrogates only in strings with a limit


class Fields(BaseModel):
    """Fields of a request. The description of a field completes the error "FIELD is VALUE, but must be ..."."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, fields: Any, check: Callable[[Any], Self]) -> Self:
        """Raise RequestError about the first wrong field."""
        if not isinstance(fields, dict):
            return check(fields)
        fields = {name: value for name, value in fields.items() if value is not None}
        for name in fields:  # pydantic would report all, and a body can hold 300,000
            if name not in cls.model_fields:
                raise RequestError(400, f"{cut(name)} is not a field of this request: leave it out", param=name)
        try:
            return check(fields)
        except ValidationError as error:
            raise cls._refusal(fields, error) from None

    @classmethod
    def _refusal(cls, fields: dict[str, Any], error: ValidationError) -> RequestError:
        errors = error.errors(include_url=False, include_input=False)
        name = str(errors[0]["loc"][0])
        value = fields.get(name)
        limits = {problem["type"]: problem.get("ctx", {}) for problem in errors if problem["loc"][0] == name}
        if "string_unicode" in limits:
            message = f"{name} has a lone surrogate, which UTF-8 cannot represent: send whole characters"
        elif "string_too_short" in limits and value == "":
            message = f"{name} is empty: give at least one character"
        elif "string_too_long" in limits and isinstance(value, str):
            most = limits["string_too_long"]["max_length"]
            message = f"{name} has {len(value):,} characters, but may have at most {most:,}: shorten it"
        else:
            message = f"{name} is {_show(value)}, but must be {cls.model_fields[name].description}"
        return RequestError(400, message, param=name)


class ModelRequest(Fields):
    """A request to a model. `GET /tokenizer_info` has no other field."""

    model: Any = None

    @classmethod
    async def of(cls, request: Request) -> Self:
        """Return the request in a JSON body. Raises RequestError for any other body."""
        try:
            fields = json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise RequestError(400, f"the body is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise RequestError(400, "the body is not a JSON object, such as {}")
        return cls.model_validate(fields)


def _show(value: object) -> str:
    try:
        return cut(json.dumps(value))
    except RecursionError:
        return "a deeply nested value"


def _whole(low: int, high: int, default: int | None = None) -> Any:
    return Field(default, ge=low, le=high, description=f"a whole number from {low:,} to {high:,}")


def _number(high: float, default: float | None = None) -> Any:
    return Field(default, ge=0, le=high, allow_inf_nan=False, description=f"a number from 0 to {high:g}")


def _flag() -> Any:
    return Field(False, description="true or false")


def _text(default: Any = ..., shortest: int = 0, longest: int = LONGEST_TEXT) -> Any:
    return Field(default, min_length=shortest, max_length=longest, description="a string")


def _ids(default: Any = ..., what: str = "token ids") -> Any:
    return Field(default, max_length=MOST_IDS, fail_fast=True, description=f"a list of {what}, at most {MOST_IDS:,}")


def _unsupported(default: Any, **neutral: Any) -> Any:
    """Return a field of OpenAI's API that is refused unless its value has no effect."""
    return Field(default, **neutral, description="left out, because it is not supported")


class Sampling(ModelRequest):
    """The fields that choose the next token. See docs/serving.md."""

    temperature: float = _number(100, 1.0)
    top_k: int | None = _whole(1, 2**31 - 1)
    top_p: float | None = Field(
        None, gt=0, le=1, allow_inf_nan=False, description="a number from 0 to 1, and above 0: temperature 0 is greedy"
    )
    min_p: float | None = _number(1)

    def options(self) -> dict[str, Any]:
        """Return the options of a GenerationRequest."""
        own = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return own | {"min_p": self.min_p or None}


class StreamOptions(Fields):
    """The field `stream_options` of a completion."""

    include_usage: bool = _flag()


def _several(prompt: Any) -> Any:
    """Return the prompts as a list, even a single prompt."""
    return prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[Annotated[str, Field(max_length=LONGEST_TEXT)]], Field(fail_fast=True)]
IdLists = Annotated[list[Annotated[list[int], Field(min_length=1, fail_fast=True)]], Field(fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class Generation(Sampling):
    """The fields of requests for generated text."""

    max_tokens: int | None = _whole(0, 2**31 - 1)
    n: int = _whole(1, MOST_CHOICES, 1)
    seed: int | None = _whole(-(2**63), 2**63 - 1)
    stop: Annotated[list[Stop], BeforeValidator(_as_list)] = Field(
        [],
        max_length=MOST_STOPS,
        fail_fast=True,
        description=f"a string or a list of up to {MOST_STOPS} strings, none of them empty or longer than "
        f"{LONGEST_STOP:,} characters",
    )
    stream: bool = _flag()
    stream_options: StreamOptions | None = Field(None, description='an object, such as {"include_usage": true}')
    user: Any = None
    logit_bias: dict[str, Any] = _unsupported({}, max_length=0)
    presence_penalty: float = _unsupported(0.0, ge=0, le=0, allow_inf_nan=False)
    frequency_penalty: float = _unsupported(0.0, ge=0, le=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RequestError(400, "stream_options needs stream: true", param="stream_options")
        return self


class CompletionRequest(Generation):
    """`POST /v1/completions`."""

    prompt: Annotated[Texts | IdLists | None, BeforeValidator(_several)] = Field(
        None,
        description="a string, a list of strings, a list of token ids or a list of such lists, none of them empty",
    )
    """The prompts; None: begin with the start token"""
    best_of: int | None = _whole(1, MOST_CHOICES)
    logprobs: int | None = _whole(0, MOST_LOGPROBS)
    echo: bool = _flag()
    suffix: Literal[""] = _unsupported("")

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise RequestError for fields that contradict each other."""
        if self.best_of not in (None, self.n):
            raise RequestError(400, "best_of is not supported: leave it out, or give the value of n", param="best_of")
        if self.n * len(self.prompt or [None]) > MOST_CHOICES:
            message = f"the request asks for more than {MOST_CHOICES:,} texts: send several requests"
            raise RequestError(400, message, param="prompt")
        return self

    @property
    def exact(self) -> bool:
        """Return whether exactly `max_tokens` tokens follow the prompt, each with a log-probability.

        lm-evaluation-harness drops the last `max_tokens` log-probabilities. With fewer new tokens it would drop tokens
        of the prompt.
        """
        return self.echo and self.logprobs is not None


class PredictRequest(ModelRequest):
    """`POST /api/predict`."""

    texts: list[Annotated[str, Field(max_length=LONGEST_PAGE_TEXT)]] = Field(
        min_length=1,
        max_length=MOST_CHOICES,
        fail_fast=True,
        description=f"a list of 1 to {MOST_CHOICES:,} strings of at most {LONGEST_PAGE_TEXT:,} characters",
    )


class ChatRequest(Generation):
    """`POST /v1/chat/completions`."""

    messages: list[Any] = Field(..., min_length=1, description="a list of messages, each with role and content")
    max_completion_tokens: int | None = _whole(0, 2**31 - 1)
    logprobs: bool = _flag()
    top_logprobs: int | None = _whole(0, 20)
    tools: list[Any] = _unsupported([], max_length=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise RequestError for fields that contradict each other."""
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise RequestError(400, "max_tokens is the old name of max_completion_tokens: give one", param="max_tokens")
        return self

    def as_completion(self) -> CompletionRequest:
        """Return the request that continues the prompt of the messages."""
        shared = {name: getattr(self, name) for name in Generation.model_fields if name != "max_tokens"}
        top = (self.top_logprobs or 0) if self.logprobs else None
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return CompletionRequest.model_construct(**shared, max_tokens=most, logprobs=top)


class TokenizeRequest(ModelRequest):
    """`POST /tokenize`."""

    prompt: str = _text()
    add_special_tokens: bool = _flag()


class DetokenizeRequest(ModelRequest):
    """`POST /detokenize`."""

    tokens: list[int] = _ids()


class ScoreRequest(ModelRequest):
    """`POST /api/score`."""

    text: str = _text(shortest=1, longest=LONGEST_PAGE_TEXT)
    target: str | None = _text(None, shortest=1, longest=LONGEST_PAGE_TEXT)
    key: str = _text()
    have: list[int] = _ids([])


class FillRequest(ModelRequest):
    """`POST /api/fill`."""

    text: str = _text(shortest=1, longest=LONGEST_PAGE_TEXT)
    masked: list[int] = _ids(what="places")


class AttentionRequest(ModelRequest):
    """`POST /api/attention`."""

    text: str = _text(shortest=1, longest=LONGEST_PAGE_TEXT)
    target: str | None = _text(None, shortest=1, longest=LONGEST_PAGE_TEXT)
    kind: Literal["own", "cross", "encoder"] = Field(description="own, cross or encoder")
    layer: int = _whole(0, 2**31 - 1, 0)
    head: int = _whole(0, 2**31 - 1, 0)


class InspectRequest(ModelRequest):
    """`POST /api/inspect`."""

    instrument: str = _text()
    text: str = _text("", longest=LONGEST_PAGE_TEXT)
    corrupt: str | None = _text(None, shortest=1, longest=LONGEST_PAGE_TEXT)
    target: str | None = _text(None, shortest=1, longest=LONGEST_STOP)
    against: str | None = _text(None, shortest=1, longest=LONGEST_STOP)
    quick: bool = _flag()


class WriteRequest(Sampling):
    """`POST /api/generate`."""

    text: str = _text(longest=LONGEST_PAGE_TEXT)
    ids: list[int] = _ids()
    max_tokens: int | None = _whole(1, 2**31 - 1)
    seed: int = _whole(0, 2**63 - 1, 0)
    stop: str | None = _text(None)
