"""`POST /api/predict`: what fine-tuned runs predict for texts.

A run of the task text-to-text writes a whole text for each example, on a separate thread. So the inference thread
continues to answer other requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lm.model import LanguageModel
from pipelines.run.predictor import Predictor
from pipelines.serving.errors import RequestError, blamed_on
from pipelines.serving.models import Service
from pipelines.serving.requests import PredictRequest
from pipelines.tasks.choices import Question
from pipelines.tasks.task import Example

T = TypeVar("T")

AT_ONCE = 8  # examples, or windows of long examples, in a turn of a thread
CHOICES_AT_ONCE = 64  # of a question, which the model reads in one turn


def prediction_routes(service: Service) -> list[Route]:
    """Return the routes of this module."""
    writing = ThreadPoolExecutor(1, "writing")

    async def predict(request: Request) -> JSONResponse:
        asked = await PredictRequest.of(request)
        name = service.task(asked.model)
        predictor = service.tasks[name]
        task, predictions, cut = predictor.task, [], False
        call: Callable[[Callable[[], Any]], Awaitable[Any]] = service.engine.call
        if isinstance(predictor.model, LanguageModel):  # it writes texts
            call = partial(asyncio.get_running_loop().run_in_executor, writing)
        with blamed_on("texts"):
            examples = _examples(predictor, asked.texts)
            for some in _parts(examples):
                encoded = await call(partial(task.encode, some, predictor.reader))
                outputs = [
                    output
                    for windows in _parts(encoded)
                    for output in await call(partial(task.outputs, predictor, windows, labelled=False))
                ]
                predictions += await call(partial(task.predictions, outputs, encoded, some))
                cut = cut or any(window.cut for window in encoded)
        answer = {"model": name, "task": task.name, "predictions": predictions, "cut": cut}
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


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in parts of AT_ONCE."""
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]
