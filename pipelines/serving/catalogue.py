"""`/health`, `/v1/models`, and the tokenizer endpoints that vLLM introduced and lm-evaluation-harness uses."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pipelines.serving.errors import RequestError, blamed_on, cut
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.requests import DetokenizeRequest, ModelRequest, TokenizeRequest
from pipelines.serving.security import HEALTH

HEALTH_S = 10  # for the inference thread to answer; a turn of the largest models takes less


def catalogue_routes(service: Service) -> list[Route]:
    """Return the routes of this module."""
    answering: asyncio.Task[bool] | None = None

    async def health(request: Request) -> JSONResponse:
        nonlocal answering
        if answering is None or answering.done():  # else it is shared, so that calls do not pile up
            answering = asyncio.create_task(service.engine.call(bool))
        try:
            async with asyncio.timeout(HEALTH_S):
                await asyncio.shield(answering)
        except TimeoutError:
            raise RequestError(503, f"the models have not answered within {HEALTH_S} s") from None
        return JSONResponse({"status": "ok"})

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [_entry(service, name) for name in service.names]})

    async def model(request: Request) -> JSONResponse:
        name = request.path_params["name"]
        if name not in service.names:
            message = f"there is no model {cut(repr(name))}: the models are {', '.join(service.names)}"
            raise RequestError(404, message, param="model", code="model_not_found")
        return JSONResponse(_entry(service, name))

    async def tokenize(request: Request) -> JSONResponse:
        asked = await TokenizeRequest.of(request)
        served = _tokenizing(service, asked.model)
        ids = await _prompt_ids(served, asked.prompt)
        if asked.add_special_tokens:
            before, after, _ = served.run.surrounding
            ids = [*before, *ids, *after]
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": served.context_length})

    async def detokenize(request: Request) -> JSONResponse:
        asked = await DetokenizeRequest.of(request)
        served = _tokenizing(service, asked.model)
        served.check_ids(asked.tokens, "tokens")
        with blamed_on("tokens"):
            return JSONResponse({"prompt": await asyncio.to_thread(served.run.tokenizer.decode, asked.tokens)})

    async def tokenizer_info(request: Request) -> JSONResponse:
        asked = ModelRequest.model_validate(dict(request.query_params))
        return JSONResponse(_tokenizer_info(_tokenizing(service, asked.model)))

    return [
        Route(HEALTH, health, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name}", model, methods=["GET"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenizer_info, methods=["GET"]),
    ]


async def _prompt_ids(served: ServedModel, text: str) -> list[int]:
    """Return the ids of a prompt: one id if the prompt is exactly a special token, otherwise those of plain text."""
    special = served.run.tokenizer.special_tokens.get(text)
    return await served.encode(text, "prompt") if special is None else [special]


def _entry(service: Service, name: str) -> dict[str, Any]:
    """Return the entry of a model or of a fine-tuned run, which has its task."""
    tuned = service.tasks.get(name)
    config = service.models[name].run.config.model if tuned is None else tuned.run.recipe.model
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "bytelm",
        "max_model_len": config.context_length,
        "architecture": config.architecture,
        **({} if tuned is None else {"task": tuned.task.name}),
    }


def _tokenizing(service: Service, name: object) -> ServedModel:
    """Return the model `name`; None is allowed if all models have the same tokenizer."""
    every = list(service.models.values())
    if name is None and len({each.run.tokenizer.fingerprint for each in every}) == 1:
        return every[0]
    if name is None and every:
        message = f"the models have several tokenizers: name one of {', '.join(service.models)} as model"
        raise RequestError(400, message, param="model")
    return service.model(name)


def _tokenizer_info(served: ServedModel) -> dict[str, Any]:
    tok, around = served.run.tokenizer, served.run.around
    spelled: Callable[[int | None], str | None] = lambda i: None if i is None else tok.decode([i])  # noqa: E731
    return {
        "eos_token": spelled(around.stops[0] if around.stops else None),
        "bos_token": spelled(around.start),
        "pad_token": spelled(around.pad),
        "chat_template": served.run.run.chat_template or None,
        "vocab_size": tok.vocab_size,
        "model_max_length": served.context_length,
    }
