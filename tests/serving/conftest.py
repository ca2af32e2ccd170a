"""Fixtures: the application and its client in this process, without a server process."""

import asyncio
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

from pipelines.run.loaded_run import load_run
from pipelines.run.predictor import Predictor
from pipelines.serving.engine import Engine
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.security import access_to
from pipelines.serving.server import create_app


@contextmanager
def client_of(runs, *, tasks=None, access=None, limits=None, host="localhost:8000", **options):
    """Return a client of an application that serves `runs` and the fine-tuned `tasks`, by their names."""
    with Engine(runs) as engine:
        models = {name: ServedModel(name, run) for name, run in runs.items()}
        tuned = {name: Predictor(run.run, run.loaded.model) for name, run in (tasks or {}).items()}
        service = Service(models, engine, created=1_700_000_000, tasks=tuned)
        app = create_app(service, access or access_to("127.0.0.1", 8000), asyncio.Event(), limits)
        with TestClient(app, base_url=f"http://{host}", raise_server_exceptions=False, **options) as client:
            yield client


@pytest.fixture(scope="session")
def gpt(trained_gpt):
    """Return the loaded run of a decoder."""
    return load_run(trained_gpt, device="cpu")


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
