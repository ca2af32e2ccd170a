"""`POST /api/inspect`: what instruments find inside a model that reads a text, for the page.

An instrument registers hooks on the model that it reads. It therefore reads a copy, which shares the weights, on a
thread of its own. The inference thread continues to answer other requests.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from dataclasses import fields, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lm.config import ModelConfig
from pipelines.inspection.instrument import Instrument
from pipelines.inspection.instruments import NAMES, instrument
from pipelines.reporting.inspection_page import section_of
from pipelines.reporting.svg import as_image
from pipelines.run.loaded_run import LoadedRun
from pipelines.serving.errors import RequestError, cut
from pipelines.serving.models import Service
from pipelines.serving.requests import InspectRequest

MOST_TOKENS = 64  # of a text: patching reads it once for each layer and position
SECONDS = 30.0  # for the model to read
OPTIONS = ("corrupt", "target", "against", "quick")  # of instruments that a request may set

Json = dict[str, Any]


def suitable_instruments(config: ModelConfig) -> Mapping[str, Instrument]:
    """Return the suitable instruments for a model by name: those that read a text, and the defaults of inspect."""
    suitable = {}
    for name in NAMES:
        one = instrument(name, {"corrupt": "any prompt"})
        if one.usual or one.reads_text:
            try:
                one.check(config)
            except ValueError:
                continue
            suitable[name] = one
    return suitable


def described_instruments(config: ModelConfig) -> list[Json]:
    """Return the name, the heading and the fields of each instrument that suits a model."""
    described = []
    for name, one in suitable_instruments(config).items():
        section, text = one.result.section, ["text"] * one.reads_text
        assert section is not None, "an instrument's result has a section"
        own = {option.name for option in fields(one)}
        asked = [*text, *(option for option in OPTIONS if option in own)]
        described.append({"name": name, "heading": section.heading, "fields": asked})
    return described


def inspection_routes(service: Service) -> list[Route]:
    """Return the routes of this module."""
    inspections = Inspections(service, SECONDS)
    return [Route("/api/inspect", inspections.inspect, methods=["POST"])]


class Inspections:
    """The inspections of a server, one at a time."""

    def __init__(self, service: Service, seconds: float) -> None:
        self._service, self._seconds = service, seconds
        self._thread = ThreadPoolExecutor(1, "inspection")  # also because matplotlib's style is global

    async def inspect(self, request: Request) -> JSONResponse:
        """Return what an instrument finds: its heading, its note, and the `pictures` and `parts` of its result."""
        asked = await InspectRequest.of(request)
        served = self._service.model(asked.model)
        suitable = suitable_instruments(served.run.config.model)
        if asked.instrument not in suitable:
            names = f"its instruments are {', '.join(suitable)}" if suitable else "no instrument suits it"
            message = f"{served.name} has no instrument {cut(repr(asked.instrument))} here: {names}"
            raise RequestError(400, message, param="instrument")
        for name in ("text", "corrupt"):
            ids = await served.encode(getattr(asked, name) or "", name)
            if len(ids) > MOST_TOKENS:
                message = f"{name} has {len(ids):,} tokens, and the page looks into at most {MOST_TOKENS}: shorten it"
                raise RequestError(400, message, param=name)
        given = {name: getattr(asked, name) for name in OPTIONS}
        left = threading.Event()
        try:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._thread, self._look, served.run, asked.instrument, given, asked.text, left)
            return await asyncio.to_thread(JSONResponse, await work)
        except ValueError as error:
            at_fault = (name for name in OPTIONS if f"`{name}`" in str(error))
            raise RequestError(400, str(error), param=next(at_fault, "text")) from None
        finally:
            left.set()

    def _look(self, run: LoadedRun, name: str, given: Json, text: str, left: threading.Event) -> Json:
        """Return what an instrument finds. Raises ValueError after the deadline, or once `left` is set."""
        one = instrument(name, given)
        one.check(run.config.model)
        advice = "shorten the text, or set `quick`" if hasattr(one, "quick") else "shorten the text"
        section = section_of(name, [one.look(self._copy(run, left, advice), text)])
        (found,) = section["results"]
        pictures = [{"title": plot.title, "text": plot.text, "svg": as_image(plot.svg)} for plot in found["plots"]]
        parts = [part if isinstance(part, str) else part._asdict() for part in found["parts"]]
        return {"heading": section["heading"], "note": section["note"], "pictures": pictures, "parts": parts}

    def _copy(self, run: LoadedRun, left: threading.Event, advice: str) -> LoadedRun:
        """Return a run whose model shares the weights but has its own hooks, which raise ValueError when late.

        `advice` tells the user how to meet the deadline.
        """
        model, ends = run.model, time.monotonic() + self._seconds
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        other = copy(run)
        other.loaded = replace(run.loaded, model=deepcopy(model, shared))

        def refuse_if_late(*_: object) -> None:
            if left.is_set() or time.monotonic() > ends:
                raise ValueError(f"the model reads for more than {self._seconds:g} s: {advice}")

        for block in other.model.stack.blocks:
            block.register_forward_pre_hook(refuse_if_late)
        return other
