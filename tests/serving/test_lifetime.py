"""A request ends with its client, its limits or the server."""

import asyncio
import copy
import json
import threading
from contextlib import aclosing, contextmanager

import pytest
import torch

from pipelines.run.loaded_run import load_run
from pipelines.serving.engine import Engine
from pipelines.serving.lifetime import Limits
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.security import access_to
from pipelines.serving.server import create_app
from tests.loaded_runs import variant
from tests.serving.conftest import client_of

LONG = {"prompt": "import", "max_tokens": 20, "n": 1000, "temperature": 1}


class CountingEngine(Engine):
    """An engine that counts its open texts, and all texts that it has opened."""

    open = opened = 0

    async def generate(self, *arguments, **named):
        self.open, self.opened = self.open + 1, self.opened + 1
        try:
            async with aclosing(super().generate(*arguments, **named)) as tokens:
                async for token in tokens:
                    yield token
        finally:
            self.open -= 1


class Client:
    """A client that exchanges messages with the application and leaves when `left` is set."""

    def __init__(self, app, parts, path="/v1/completions"):
        self.app, self.parts, self.left, self.sent = app, list(parts), asyncio.Event(), []
        self.began = asyncio.Event()
        headers = [(b"host", b"localhost:8000"), (b"content-type", b"application/json")]
        self.scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        self.scope |= {"http_version": "1.1", "scheme": "http", "root_path": "", "raw_path": path.encode()}

    async def receive(self):
        if self.parts:
            part = self.parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.parts)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        if message.get("body"):
            self.began.set()

    async def ask(self):
        await self.app(self.scope, self.receive, self.send)
        return self

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        assert not self.sent[-1].get("more_body"), "the answer has no end"
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def body_of(**fields):
    return [json.dumps(fields).encode()]


def run_with(gpt, test, limits=None):
    """Run the coroutine test(app, engine, stopping) with a server of `gpt`."""

    async def run():
        with CountingEngine({"gpt": gpt}) as engine:
            service = Service({"gpt": ServedModel("gpt", gpt)}, engine, created=0)
            stopping = asyncio.Event()
            await test(create_app(service, access_to("127.0.0.1", 8000), stopping, limits), engine, stopping)

    asyncio.run(run())


@contextmanager
def kept_busy(engine):
    """Block the inference thread."""
    release = threading.Event()
    waiting = asyncio.ensure_future(engine.call(release.wait))
    try:
        yield
    finally:
        release.set()
        waiting.add_done_callback(lambda future: future.exception())


def test_a_long_body_is_refused_before_it_has_been_read(gpt):
    async def test(app, engine, stopping):
        client = await Client(app, [b" " * 600] * 1000).ask()
        assert client.status == 413 and b"1,000 bytes" in client.body
        assert len(client.parts) == 998

    run_with(gpt, test, Limits(body=1000))


def test_a_body_within_the_limit_may_come_in_parts(gpt):
    async def test(app, engine, stopping):
        body = json.dumps({"prompt": "import", "max_tokens": 1}).encode()
        assert (await Client(app, [bytes([byte]) for byte in body]).ask()).status == 200

    run_with(gpt, test, Limits(body=1000))


def test_a_body_that_does_not_arrive_is_refused(gpt):
    async def test(app, engine, stopping):
        client = Client(app, [])
        assert (await client.ask()).status == 408

    run_with(gpt, test, Limits(body_s=0.05))


def test_a_client_that_leaves_before_its_body_is_complete_starts_no_work(gpt):
    async def test(app, engine, stopping):
        client = Client(app, [])
        client.left.set()
        assert (await client.ask()).sent == []

    run_with(gpt, test)


def test_an_answer_that_takes_too_long_is_refused(gpt):
    async def test(app, engine, stopping):
        with kept_busy(engine):
            client = await Client(app, body_of(prompt="import")).ask()
            assert client.status == 504
            assert json.loads(client.body)["error"]["message"].startswith("the request took longer than 0.2 s")
            stream = await Client(app, body_of(prompt="import", stream=True)).ask()
            assert stream.status == 200
            assert "longer than" in json.loads(stream.body.removeprefix(b"data: "))["error"]["message"]
            assert engine.open == 0

    run_with(gpt, test, Limits(seconds=0.2))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_its_work(gpt, stream):
    async def test(app, engine, stopping):
        client = Client(app, body_of(**LONG, stream=stream))
        work = asyncio.create_task(client.ask())
        while engine.opened < 1000:  # some may have ended
            await asyncio.sleep(0.01)
        if stream:
            await client.began.wait()
        client.left.set()
        await work
        assert engine.open == 0
        assert stream or client.sent == []

    run_with(gpt, test)


def test_a_client_that_leaves_the_queue_is_not_scored(gpt):
    async def test(app, engine, stopping):
        with kept_busy(engine):
            client = Client(app, body_of(prompt="import os", echo=True, logprobs=1))
            work = asyncio.create_task(client.ask())
            await asyncio.sleep(0.05)
            client.left.set()
            await work
            assert client.sent == []
        other = await Client(app, body_of(prompt="def f", max_tokens=1, echo=True, logprobs=1)).ask()
        assert other.status == 200
        texts = [gpt.tokenizer.decode(ids) for ids in read]
        assert any("def f" in text for text in texts) and not any("import os" in text for text in texts)

    read = []
    with gpt.model.embedding.register_forward_pre_hook(lambda module, inputs: read.extend(inputs[0].tolist())):
        run_with(gpt, test, Limits(seconds=60))


@pytest.mark.parametrize(
    ("run", "path", "fields"),
    [
        ("trained_bert", "/api/fill", {"text": "a " * 200, "masked": []}),
        ("trained_t5", "/api/score", {"text": "a " * 9_000, "target": "b", "key": "a"}),
        ("trained_t5", "/api/score", {"text": "b", "target": "a " * 9_000, "key": "a"}),
        ("trained_t5", "/api/attention", {"text": "b", "target": "a " * 9_000, "kind": "own"}),
    ],
)
def test_a_text_is_encoded_and_refused_while_the_models_are_busy(request, run, path, fields):
    async def test(app, engine, stopping):
        with kept_busy(engine):
            client = await Client(app, body_of(**fields), path).ask()
            assert client.status == 400
            assert b"shorten it" in client.body

    run_with(load_run(request.getfixturevalue(run), device="cpu"), test, Limits(seconds=60))


def test_a_stopping_server_ends_streams_and_refuses_answers(gpt):
    async def test(app, engine, stopping):
        stream, whole = Client(app, body_of(**LONG, stream=True)), Client(app, body_of(**LONG))
        work = asyncio.gather(stream.ask(), whole.ask())
        await stream.began.wait()
        stopping.set()
        await work
        last = stream.body.decode().strip().split("\n\n")[-1]
        assert "shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]
        assert whole.status == 503
        assert engine.open == 0

    run_with(gpt, test)


def test_many_requests_at_once_wait_and_are_all_answered(gpt):
    async def test(app, engine, stopping):
        prompts = ["import os"[: 1 + number % 9] for number in range(100)]
        bodies = [body_of(prompt=prompt, max_tokens=8, temperature=0) for prompt in prompts]
        clients = await asyncio.gather(*(Client(app, body).ask() for body in bodies))
        assert {client.status for client in clients} == {200}
        texts = {
            (prompt, json.loads(client.body)["choices"][0]["text"])
            for prompt, client in zip(prompts, clients, strict=True)
        }
        assert len(texts) == 9  # the same prompt gets the same text, whatever other clients ask
        assert engine.open == 0

    run_with(gpt, test)


def test_a_failure_of_the_model_is_an_error_of_the_server(gpt, capsys, monkeypatch):
    monkeypatch.delenv("BYTELM_DEBUG", raising=False)
    diverged = variant(gpt, model=copy.deepcopy(gpt.model))
    with torch.no_grad():
        diverged.model.embedding.weight.fill_(float("nan"))
    with client_of({"gpt": diverged}) as client:
        response = client.post("/v1/completions", json={"prompt": "import os", "echo": True, "logprobs": 1})
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["type"] == "server_error" and "its training diverged" in error["message"]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("bytelm serve: a request failed: ValueError: the model's logits")
