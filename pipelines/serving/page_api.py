"""`/api/...`: the endpoints of the browser page. `page_answers` describes their answers."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from lm.analysis.token_scores import token_scores
from lm.decoding.generation import stream
from lm.decoding.packed import InferenceModel, prepare
from lm.decoding.sampling import sample
from pipelines.run.loaded_run import LoadedRun
from pipelines.run.prompts import source_ids
from pipelines.run.text_ids import known_ids
from pipelines.scoring.texts import check_options, encoder_steps
from pipelines.serving.engine import Engine, GeneratedToken, GenerationRequest
from pipelines.serving.errors import RequestError, blamed_on, error_body
from pipelines.serving.fields import Fields, check_text, json_object
from pipelines.serving.incremental import RecentTexts, common_prefix
from pipelines.serving.models import Service
from pipelines.serving.page_answers import TOP, Json, PageModel, in_bits
from pipelines.serving.text import GrowingText

DEFAULT_TOKENS = 60
MOST_CHARACTERS = 100_000  # of a text
SUPERSEDED = object()


def page_routes(service: Service) -> list[Route]:
    """Return the routes of this module."""
    api = PageApi(service)
    endpoints = {"score": api.score, "fill": api.fill, "attention": api.attention, "generate": api.generate}
    posts = [Route(f"/api/{name}", endpoint, methods=["POST"]) for name, endpoint in endpoints.items()]
    return [Route("/api/models", api.models, methods=["GET"]), *posts]


class PageApi:
    """The endpoints of the page, and the scorers of the texts that are being edited."""

    def __init__(self, service: Service) -> None:
        self.engine = service.engine
        self._service = service
        self._pages = {name: PageModel(name, served.run) for name, served in service.models.items()}
        self._texts = RecentTexts(top=TOP)
        self._writers: dict[str, InferenceModel] = {}

    async def models(self, request: Request) -> JSONResponse:
        """Return the models."""
        return JSONResponse({"models": [page.description() for page in self._pages.values()]})

    async def score(self, request: Request) -> JSONResponse:
        """Score a text. A decoder computes only the tokens from the first change on since the last text of this `key`.

        The client lists in `have` the ids whose scores it holds. The answer leaves out the first `same` tokens, whose
        ids agree with `have`.
        """
        fields = Fields(await json_object(request), ("model", "text", "target", "key", "have"))
        page, text, target = self._page(fields), _nonempty(fields, "text"), _target(fields)
        key, have = fields.text("key")[:64], fields.ids("have") if fields.get("have") is not None else []
        with blamed_on("text"):
            check_options(page.architecture, target=target, stride=None, start=True, masking="token")
            if target is not None:
                return JSONResponse(await self.engine.call(partial(page.answered, text, target)))
            return JSONResponse(await self._score_in_steps(page, key, text, have))

    async def fill(self, request: Request) -> JSONResponse:
        """Predict the masked tokens of a text."""
        fields = Fields(await json_object(request), ("model", "text", "masked"))
        page, text, places = self._page(fields), _nonempty(fields, "text"), fields.ids("masked")
        if page.architecture != "encoder":
            raise RequestError(400, f"{page.name} is not an encoder: only an encoder fills masks", param="model")
        with blamed_on("masked"):
            return JSONResponse(await self.engine.call(partial(page.masked, text, places)))

    async def attention(self, request: Request) -> JSONResponse:
        """Return the attention weights of a head."""
        fields = Fields(await json_object(request), ("model", "text", "target", "kind", "layer", "head"))
        page, text, target = self._page(fields), _nonempty(fields, "text"), _target(fields)
        layer, head = fields.whole("layer", 0, 2**31) or 0, fields.whole("head", 0, 2**31) or 0
        with blamed_on("text"):
            return JSONResponse(
                await self.engine.call(partial(page.attention, text, target, fields.text("kind"), layer, head))
            )

    async def generate(self, request: Request) -> StreamingResponse:
        """Continue a text followed by ids, token by token, as server-sent events.

        Each event has a `token`. The last one has `end` instead: length, end (the model ended the text) or stop.
        """
        fields = Fields(
            await json_object(request),
            ("model", "text", "ids", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop"),
        )
        page, stop = self._page(fields), fields.get("stop")
        if not (stop is None or isinstance(stop, str)):
            raise RequestError(400, "stop must be a string", param="stop")
        check_text("stop", stop or "")
        writing = await self._writing(page, fields)
        return StreamingResponse(_events(page, writing, stop), media_type="text/event-stream")

    def _page(self, fields: Fields) -> PageModel:
        return self._pages[self._service.model(fields.get("model")).name]

    async def _score_in_steps(self, page: PageModel, key: str, text: str, have: list[int]) -> Json:
        """Score in steps, so a long text does not delay other requests. Raises RequestError if a newer version came."""
        ids = np.array(await self._service.models[page.name].encode(text, "text"), np.int64)
        page.check_length(ids)
        if page.architecture == "encoder":
            steps = encoder_steps(page.run, ids, TOP)
        else:
            steps = self._texts.scorer(page.name, key, page.run).steps(ids)
        while (score := await self.engine.call(partial(next, steps, SUPERSEDED))) is None:
            pass
        if score is SUPERSEDED:
            raise RequestError(409, "a newer version of this text was sent")
        same = common_prefix(np.array(have), ids) if page.architecture == "decoder" else 0
        return await asyncio.to_thread(page.scored, score, same)

    async def _writing(self, page: PageModel, fields: Fields) -> "_Writing":
        """Return the generation for a request. A prompt that leaves no room loses its beginning."""
        run = page.run
        served, context = self._service.models[page.name], run.config.model.context_length
        ids, text = fields.ids("ids"), _text(fields, "text")
        served.check_ids(ids, "ids")
        max_tokens = fields.whole("max_tokens", 1, context - 1) or min(DEFAULT_TOKENS, context // 2)
        source = None
        if page.architecture == "encoder-decoder":
            with blamed_on("text"):
                (source,) = await asyncio.to_thread(source_ids, run.tokenizer, [text], run.config.model, run.around)
            prompt = [run.around.start or 0, *ids]
        else:
            start = [] if run.around.start is None else [run.around.start]
            prompt = [*run.around.before, *await served.encode(text, "text"), *ids] or start
        temperature = fields.number("temperature", 0.0, 100.0)
        with blamed_on("text"):
            asked = GenerationRequest(
                prompt_ids=prompt if source is not None else prompt[-(context - max_tokens) :],
                max_tokens=max_tokens,
                temperature=1.0 if temperature is None else temperature,
                top_k=fields.whole("top_k", 1, 2**31 - 1),
                top_p=fields.number("top_p", 0.0, 1.0) or None,
                min_p=fields.number("min_p", 0.0, 1.0) or None,
                seed=fields.whole("seed", 0, 2**63 - 1) or 0,
                stop_ids=run.around.stops,
                top=TOP,
            )
            if source is None:
                tokens: AsyncGenerator[GeneratedToken, None] = self.engine.generate(page.name, asked)
            else:
                if page.name not in self._writers:
                    self._writers[page.name] = await self.engine.call(partial(prepare, run.model, 1))
                tokens = _in_steps(self.engine, answered(run, self._writers[page.name], asked, source))
        return _Writing(tokens, cut=len(prompt) > len(asked.prompt_ids), stops=run.around.stops)


@dataclass(frozen=True)
class _Writing:
    """The tokens of a generation, as they are generated."""

    tokens: AsyncGenerator[GeneratedToken, None]
    stops: tuple[int, ...]
    cut: bool
    """Whether the beginning of the prompt was cut off"""


async def _events(page: PageModel, writing: _Writing, stop: str | None) -> AsyncIterator[str]:
    """Yield the server-sent events of a generation."""
    text, end = GrowingText([stop] if stop else []), "length"
    try:
        async with aclosing(writing.tokens) as tokens:
            async for made in tokens:
                token = page.spelled([made.id])[0] | {
                    "bits": in_bits(made.log_probability),
                    "rank": made.rank,
                    "entropy": in_bits(-made.entropy),
                    "top": page.candidates(made.top_ids, made.top_log_probabilities),
                }
                yield _event({"token": token})
                text.add(page.run.tokenizer.added_bytes(made.id))
                if made.id in writing.stops or text.stopped:
                    end = "stop" if text.stopped else "end"
                    break
    except ValueError as error:
        yield _event(error_body(400, str(error)))
        return
    yield _event({"end": end, "cut": writing.cut})


def _event(content: Json) -> str:
    return f"data: {json.dumps(content)}\n\n"


def answered(
    run: LoadedRun, model: InferenceModel, asked: GenerationRequest, source: list[int]
) -> Iterator[GeneratedToken]:
    """Yield the tokens that an encoder-decoder generates for a source, after the ids of `asked`."""
    device = model.device
    generator = torch.Generator(device).manual_seed(asked.seed)
    found = []

    def choose(logits: torch.Tensor) -> torch.Tensor:
        ids = sample(
            logits,
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            min_p=asked.min_p,
            generator=generator,
        )
        found.append(token_scores(logits, ids, asked.top))
        return ids

    steps = stream(
        model,
        torch.tensor([asked.prompt_ids], device=device),
        asked.max_tokens,
        source=torch.tensor([source], device=device),
        sampler=choose,
        allowed=known_ids(run.tokenizer, run.model),
        stop_ids=asked.stop_ids,
    )
    for ids in steps:
        scores = found.pop()
        yield GeneratedToken(
            int(ids[0]),
            float(scores.log_probabilities[0]),
            float(scores.entropies[0]),
            int(scores.ranks[0]),
            scores.top_ids[0].tolist(),
            scores.top_log_probabilities[0].tolist(),
        )


async def _in_steps(engine: Engine, tokens: Iterator[GeneratedToken]) -> AsyncGenerator[GeneratedToken, None]:
    """Yield tokens, each computed on the inference thread."""
    while (token := await engine.call(partial(next, tokens, None))) is not None:
        yield token


def _nonempty(fields: Fields, name: str) -> str:
    text = _text(fields, name)
    if not text:
        raise RequestError(400, f"{name} is empty: give at least one character", param=name)
    return text


def _text(fields: Fields, name: str) -> str:
    """Return a text field. Its length is limited, because it is encoded before its tokens are counted."""
    text = fields.text(name)
    if len(text) > MOST_CHARACTERS:
        message = f"{name} has {len(text):,} characters, and the page takes at most {MOST_CHARACTERS:,}: shorten it"
        raise RequestError(400, message, param=name)
    return text


def _target(fields: Fields) -> str | None:
    return None if fields.get("target") is None else _nonempty(fields, "target")
