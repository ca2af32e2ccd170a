"""The page of `bytelm serve` in tests: a server in a thread, and what the page shows."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
import uvicorn

from pipelines.serving.engine import Engine
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.security import access_to, bound_socket
from pipelines.serving.server import create_app

WIDE = {"width": 1280, "height": 850}
TOUCH = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@contextmanager
def serving(runs, openings=None, tasks=None, **options):
    """Serve runs and the predictors `tasks` over HTTP in a thread, and yield the page's address and the access."""
    openings = openings or {}
    with Engine(runs) as engine, bound_socket("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        access = access_to("127.0.0.1", port, **options)
        models = {name: ServedModel(name, run, openings.get(name, ("", ""))) for name, run in runs.items()}
        app = create_app(Service(models, engine, created=0, tasks=tasks or {}), access, asyncio.Event())
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/", access
        finally:
            server.should_exit = True
            thread.join(20)


def choose(page, view):
    page.locator(f"input[value={view}] + span").click()


def tokens_of(page, strip):
    """Return the texts, class names and labels of the tokens in a strip."""
    script = "spans => spans.map(span => [span.textContent, span.className.trim(), span.getAttribute('aria-label')])"
    return page.locator(f"{strip} .token").evaluate_all(script)


def bars_of(page, panel):
    """Return (label, percentage) of each bar in a panel."""
    script = "items => items.map(item => ['.piece', '.share'].map(each => item.querySelector(each).textContent))"
    return page.locator(f"{panel} .bars li").evaluate_all(script)


def facts_of(page, panel):
    names, values = (page.locator(f"{panel} .facts {tag}").all_text_contents() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def check_looks(page, what):
    """Assert that axe finds no violation and that nothing is wider than the screen."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="accessibility needs axe: make test-page")
    page.mouse.move(0, 0)
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == [], what
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"], what
