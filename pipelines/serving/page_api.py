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

from lm.decoding.generation import stream
from lm.decoding.packed import InferenceModel, prepare
from lm.decoding.slots import Text, choose
from lm.task_model import TrainedModel
from pipelines.run.loaded_run import LoadedRun
from pipelines.run.text_ids import known_ids
from pipelines.scoring.options import check_options
from pipelines.scoring.texts import encoder_steps, require_tokens
from pipelines.serving.engine import Engine, GeneratedToken, GenerationRequest
from pipelines.serving.errors import RequestError, blamed_on, error_body
from pipelines.serving.growing_text import GrowingText
from pipelines.serving.incremental import RecentTexts, common_prefix
from pipelines.serving.models import Service
from pipelines.serving.page_answers import TOP, Json, PageModel, in_bits
from pipelines.serving.requests import AttentionRequest, FillRequest, ScoreRequest, WriteRequest
from pipelines.training.batch import Array

DEFAULT_TOKENS = 60
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
        self._pages = {name: PageModel(served) for name, served in service.models.items()}
        self._texts = RecentTexts(top=TOP)
        self._writers: dict[str, InferenceModel] = {}

    async def models(self, request: Request) -> JSONResponse:
        """Return the runs, each with its views. The page opens with the first view."""
        return JSONResponse({"models": [self._description(name) for name in self._service.names]})

    async def score(self, request: Request) -> JSONResponse:
        """Score a text. A decoder reads only the tokens from the first change on since the last text of this `key`.

        The client lists in `have` the ids whose scores it holds. The answer leaves out the first `same` tokens, whose
        ids agree with `have`.
        """
        asked = await ScoreRequest.of(request)
        page = self._page(asked.model)
        with blamed_on("target"):
            check_options(page.run.config.model, target=asked.target)
        ids = await self._ids(page, asked.text, "text")
        if asked.target is None:
            return JSONResponse(await self._score_in_steps(page, asked.key[:64], ids, asked.have))
        await self._ids(page, asked.target, "target")
        with blamed_on("target"):
            return JSONResponse(await self.engine.call(partial(page.answered, asked.text, asked.target)))

    async def fill(self, request: Request) -> JSONResponse:
        """Predict the masked tokens of a text."""
        asked = await FillRequest.of(request)
        page = self._page(asked.model)
        if page.architecture != "encoder":
            raise RequestError(400, f"{page.name} is not an encoder: only an encoder fills masks", param="model")
        ids, most = await self._ids(page, asked.text, "text"), page.run.config.model.context_length - 2
        if len(ids) > most:
            message = f"the text has {len(ids):,} tokens, and the encoder reads {most:,}: shorten it"
            raise RequestError(400, message, param="text")
        with blamed_on("masked"):
            return JSONResponse(await self.engine.call(partial(page.masked, ids, asked.masked)))

    async def attention(self, request: Request) -> JSONResponse:
        """Return the attention weights of a head."""
        asked = await AttentionRequest.of(request)
        page = self._page(asked.model)
        if not page.layers:
            mixers = page.run.config.model.mixer_names
            message = f"{page.name} has no attention maps: they need attention in all layers, and it has {mixers}"
            raise RequestError(400, message, param="model")
        if asked.kind not in page.layers:
            message = f"{page.name} has no {asked.kind} attention: its kinds are {', '.join(page.layers)}"
            raise RequestError(400, message, param="kind")
        _check_range("layer", asked.layer, 0, page.layers[asked.kind] - 1)
        _check_range("head", asked.head, 0, page.run.config.model.heads - 1)
        for param, text in (("text", asked.text), ("target", asked.target or "")):
            await self._ids(page, text, param)
        with blamed_on("text" if asked.target is None else "target"):
            source, ids = await asyncio.to_thread(page.attending, asked.text, asked.target)
        maps = partial(page.attention, source, ids, asked.kind, asked.layer, asked.head)
        return JSONResponse(await self.engine.call(maps))

    async def generate(self, request: Request) -> StreamingResponse:
        """Continue a text followed by ids, token by token, as server-sent events.

        Each event has a `token`. The last one has `cut` and `end` instead. `cut` is true if the beginning of the prompt
        or the end of the source was cut off. `end` is length, stop (the stop string ended the text) or end (the model
        ended it).
        """
        asked = await WriteRequest.of(request)
        page = self._page(asked.model)
        if page.architecture == "encoder":
            message = f"{page.name} is an encoder: only a decoder or an encoder-decoder continues a text"
            raise RequestError(400, message, param="model")
        writing = await self._writing(page, asked)
        return StreamingResponse(_events(page, writing, asked.stop), media_type="text/event-stream")

    def _description(self, name: str) -> Json:
        """Return the facts of a run, which may have the views of a language model, of a task, or both."""
        page, predictor = self._pages.get(name), self._service.tasks.get(name)
        facts: Json = {"views": []} if page is None else page.description()
        model: TrainedModel
        if predictor is None:
            model, tok = self._pages[name].run.model, self._pages[name].run.tokenizer
        else:
            model, tok, task = predictor.model, predictor.reader.tokenizer, predictor.task
            inputs = (task.columns or task.usual[0])[:-1]
            facts |= {"views": ["predict", *facts["views"]], "task": task.name, "inputs": inputs}
        return facts | {
            "name": name,
            "architecture": model.config.architecture,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "context": model.config.context_length,
            "vocabulary": tok.vocab_size,
        }

    def _page(self, model: object) -> PageModel:
        return self._pages[self._service.model(model).name]

    async def _ids(self, page: PageModel, text: str, param: str) -> Array:
        """Return the ids (T,) of a text. Raises RequestError for more than the page shows."""
        ids = np.array(await self._service.models[page.name].encode(text, param), np.int64)
        with blamed_on(param):
            page.check_length(ids)
        return ids

    async def _score_in_steps(self, page: PageModel, key: str, ids: Array, have: list[int]) -> Json:
        """Score in steps, so a long text does not delay other requests.

        Raises RequestError if a newer text arrives, and if a text for an encoder has no tokens.
        """
        if page.architecture == "encoder":
            with blamed_on("text"):
                require_tokens(ids, "the text")
            steps = encoder_steps(page.run, ids, TOP)
        else:
            steps = self._texts.scorer(page.name, key, page.run).steps(ids)
        while (score := await self.engine.call(partial(next, steps, SUPERSEDED))) is None:
            pass
        if score is SUPERSEDED:
            raise RequestError(409, "a newer version of this text was sent")
        same = common_prefix(np.array(have), ids) if page.architecture == "decoder" else 0
        return await asyncio.to_thread(page.scored, score, same)

    async def _writing(self, page: PageModel, asked: WriteRequest) -> "_Writing":
        """Return the generation for a request. A prompt that leaves no room for new tokens loses its beginning."""
        run = page.run
        served, context = self._service.models[page.name], run.config.model.context_length
        served.check_ids(asked.ids, "ids")
        max_tokens = min(DEFAULT_TOKENS, context // 2) if asked.max_tokens is None else asked.max_tokens
        _check_range("max_tokens", max_tokens, 1, context - 1)
        source: list[int] | None = None
        cut = False
        if page.architecture == "encoder-decoder":
            await self._ids(page, asked.text, "text")
            with blamed_on("text"):
                source, cut = await asyncio.to_thread(page.source, asked.text)
            prompt = [run.around.start or 0, *asked.ids]
        else:
            start = [] if run.around.start is None else [run.around.start]
            prompt = [*run.around.before, *await served.encode(asked.text, "text"), *asked.ids] or start
        with blamed_on("text"):
            generation = GenerationRequest(
                prompt_ids=prompt if source is not None else prompt[-(context - max_tokens) :],
                max_tokens=max_tokens,
                seed=(asked.seed + len(asked.ids)) % 2**63,  # "One token" draws anew at each place
                stop_ids=run.around.stops,
                top=TOP,
                **asked.options(),
            )
            if source is None:
                tokens: AsyncGenerator[GeneratedToken, None] = self.engine.generate(page.name, generation)
            else:
                if page.name not in self._writers:
                    self._writers[page.name] = await self.engine.call(partial(prepare, run.model, 1))
                tokens = _in_steps(self.engine, generate_target(run, self._writers[page.name], generation, source))
        cut = cut or len(prompt) > len(generation.prompt_ids)
        return _Writing(tokens, cut=cut, stops=run.around.stops)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise RequestError for a field whose range depends on the model."""
    if not low <= value <= high:
        raise RequestError(400, f"{name} is {value}, but must be from {low} to {high}", param=name)


@dataclass(frozen=True)
class _Writing:
    """The tokens of a generation, as they are generated."""

    tokens: AsyncGenerator[GeneratedToken, None]
    stops: tuple[int, ...]
    cut: bool
    """Whether the beginning of the prompt or the end of the source was cut off"""


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


def generate_target(
    run: LoadedRun, model: InferenceModel, asked: GenerationRequest, source: list[int]
) -> Iterator[GeneratedToken]:
    """Yield the tokens that an encoder-decoder generates for a source, after the ids of `asked`."""
    device = model.device
    text = Text(asked, torch.Generator(device).manual_seed(asked.seed), None, [*asked.prompt_ids])
    allowed = known_ids(run.tokenizer, run.model)
    made: list[GeneratedToken] = []

    def sampler(logits: torch.Tensor) -> torch.Tensor:
        (token,) = choose(logits, [text], allowed)  # `stream` would change the probabilities
        if isinstance(token, Exception):
            raise token
        made.append(token)
        return torch.tensor([token.id], device=device)

    steps = stream(
        model,
        torch.tensor([asked.prompt_ids], device=device),
        asked.max_tokens,
        source=torch.tensor([source], device=device),
        sampler=sampler,
        stop_ids=asked.stop_ids,
    )
    for _ in steps:
        yield made.pop()


async def _in_steps(engine: Engine, tokens: Iterator[GeneratedToken]) -> AsyncGenerator[GeneratedToken, None]:
    """Yield tokens, each computed on the inference thread."""
    while (token := await engine.call(partial(next, tokens, None))) is not None:
        yield token
