"""Fixtures: the application and its client in this process, without a server process."""

import asyncio
import json
import os
import shutil
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

import bytelm
from pipelines.run.loaded_run import load_run
from pipelines.run.predictor import Predictor
from pipelines.serving.engine import Engine
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.security import access_to
from pipelines.serving.server import create_app
from tests.serving.pages import WIDE

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@contextmanager
def client_of(runs, *, tasks=None, predictors=None, access=None, limits=None, host="localhost:8000", **options):
    """Return a client of an application that serves `runs` and the fine-tuned `tasks` or `predictors`, by name."""
    with Engine(runs) as engine:
        models = {name: ServedModel(name, run) for name, run in runs.items()}
        tuned = {name: Predictor.of(run.run, run.loaded) for name, run in (tasks or {}).items()}
        tuned |= predictors or {}
        service = Service(models, engine, created=1_700_000_000, tasks=tuned)
        app = create_app(service, access or access_to("127.0.0.1", 8000), asyncio.Event(), limits)
        with TestClient(app, base_url=f"http://{host}", raise_server_exceptions=False, **options) as client:
            yield client


@pytest.fixture(scope="session")
def gpt(trained_gpt):
    """Return the loaded run of a decoder."""
    return load_run(trained_gpt, device="cpu")


@pytest.fixture(scope="session")
def chatting(trained_gpt, tmp_path_factory):
    """Return the loaded run of a decoder that was fine-tuned on a few answers."""
    folder = tmp_path_factory.mktemp("chat")
    rows = [{"prompt": f"{n}?", "completion": f"yes {n}"} for n in range(40)]
    (folder / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    train = {"epochs": 3, "batch_size": 4, "lr": 1e-2, "device": "cpu", "dtype": "float32"}
    bytelm.finetune(
        trained_gpt,
        task="chat",
        data=folder / "chat.jsonl",
        out=folder / "run",
        train=train,
        compare_scratch=False,
    )
    return load_run(folder / "run", device="cpu")


@pytest.fixture(scope="session")
def client(gpt):
    """Return a client of a server of one decoder, `gpt`."""
    with client_of({"gpt": gpt}) as made:
        yield made


@pytest.fixture(scope="session")
def complete(client):
    """Return complete(**fields), which returns the JSON object of a completion of `gpt`."""

    def complete(**fields):
        response = client.post("/v1/completions", json={"model": "gpt", **fields})
        assert response.status_code == 200, response.text
        return response.json()

    return complete


@pytest.fixture(scope="module")  # asyncio cannot start a loop while a browser of the session is open
def browser():
    """Return an installed Chromium that playwright drives."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the page needs playwright: make test-page")
    chromium = os.environ.get("BYTELM_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        pytest.skip(f"the browser tests need one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Return open_page(address, **options). No page may log an error or violate the CSP."""
    contexts, problems = [], []

    def is_problem(message):
        # The page reports refused requests in `#problem`.
        return message.type in ("error", "warning") and "status of 400" not in message.text

    def open_page(address, **options):
        contexts.append(context := browser.new_context(**{"viewport": WIDE, **options}))
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.on("console", lambda message: is_problem(message) and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
