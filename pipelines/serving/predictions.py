"""`POST /api/predict`: what fine-tuned runs predict for texts."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pipelines.run.predictor import Predictor
from pipelines.serving.errors import RequestError, blamed_on
from pipelines.serving.models import Service
from pipelines.serving.requests import PredictRequest
from pipelines.tasks.choices import Question
from pipelines.tasks.task import Example

AT_ONCE = 8  # examples in a turn of the inference thread
CHOICES_AT_ONCE = 64  # of a question, which the model reads in one turn


def prediction_routes(service: Service) -> list[Route]:
    """Return the routes of this module."""

    async def predict(request: Request) -> JSONResponse:
        asked = await PredictRequest.of(request)
        name = service.task(asked.model)
        predictor, predictions, cut = service.tasks[name], [], False
        with blamed_on("texts"):
            examples = _examples(predictor, asked.texts)
            for start in range(0, len(examples), AT_ONCE):
                made, was_cut = await service.engine.call(
                    partial(_predict, predictor, examples[start : start + AT_ONCE])
                )
                predictions += made
                cut = cut or was_cut
        answer = {"model": name, "task": predictor.task.name, "predictions": predictions, "cut": cut}
        return await asyncio.to_thread(JSONResponse, answer)

    return [Route("/api/predict", predict, methods=["POST"])]


def _examples(predictor: Predictor, texts: Sequence[str]) -> list[Example]:
    """Return the examples of texts. Raises RequestError for an empty text and for too many choices."""
    task, examples = predictor.task, []
    for number, row in enumerate(task.rows_of_texts(texts)):
        example = task.example(row, labelled=False)
        if example is None:
            first = 1 + number * len(task.input_names)
            raise RequestError(400, f"text {first} is empty: fill it in, or leave its example out", param="texts")
        if isinstance(example.inputs, Question) and len(example.inputs.choices) > CHOICES_AT_ONCE:
            count = len(example.inputs.choices)
            message = f"the question has {count:,} choices, but may have at most {CHOICES_AT_ONCE}: send fewer"
            raise RequestError(400, message, param="texts")
        examples.append(example)
    return examples


def _predict(predictor: Predictor, examples: Sequence[Example]) -> tuple[list[dict[str, Any]], bool]:
    """Return the fields of the predictions, and whether an example is longer than the model reads."""
    before = predictor.cut
    made = [fields for _, fields in predictor.predictions(examples)]
    return made, predictor.cut > before
