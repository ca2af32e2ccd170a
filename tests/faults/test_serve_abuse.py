"""A client that asks `bytelm serve` for too much delays others by little, and is refused with a sentence.

The bounds are on work, such as generated tokens, and not on time.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from contextlib import aclosing, contextmanager

import pytest

from pipelines.run.loaded_run import load_run
from pipelines.serving.engine import SLOTS, Engine
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.security import access_to
from pipelines.serving.server import create_app
from tests.conftest import without_waiting
from tests.serving.test_lifetime import Client, body_of

SERVE = "from pipelines.serving import server; server.HEAD_S = 0.3; from pipelines.cli.dispatch import main; main()"
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Half:"


class CountingEngine(Engine):
    """An engine that counts the tokens that it generates, and the sequences and tokens that it scores."""

    generated = scored = 0

    async def generate(self, *arguments, **named):
        async with aclosing(super().generate(*arguments, **named)) as tokens:
            async for token in tokens:
                self.generated += 1
                yield token

    async def score(self, *arguments, **named):
        self.scored += 1
        return await super().score(*arguments, **named)


@pytest.fixture(scope="module")
def gpt(trained_gpt):
    return load_run(trained_gpt, device="cpu")


def serving(gpt, test):
    """Run the coroutine test(ask, engine), where ask(path, **fields) returns a status and a JSON object."""

    async def run():
        with CountingEngine({"gpt": gpt}) as engine:
            service = Service({"gpt": ServedModel("gpt", gpt)}, engine, created=0)
            app = create_app(service, access_to("127.0.0.1", 8000), asyncio.Event())

            async def ask(path="/v1/completions", **fields):
                client = await Client(app, body_of(**fields), path).ask()
                return client.status, json.loads(client.body)

            await test(ask, engine)

    asyncio.run(run())


def test_a_small_request_waits_for_a_few_steps_of_a_large_one_and_not_for_all_its_texts(gpt):
    async def test(ask, engine):
        large = asyncio.create_task(ask(prompt="import", max_tokens=24, n=1000))
        while engine.generated < 5 * SLOTS:
            await asyncio.sleep(0)
        before = engine.generated
        status, answer = await ask(prompt="def", max_tokens=4)
        assert status == 200 and answer["usage"]["completion_tokens"] <= 4
        assert engine.generated - before <= 24 * SLOTS  # of 24,000 tokens
        large.cancel()
        await asyncio.gather(large, return_exceptions=True)

    serving(gpt, test)


def test_a_small_text_is_scored_before_the_rest_of_a_large_request(gpt):
    async def test(ask, engine):
        prompts = [[i % 500, *range(10, 40)] for i in range(1000)]
        large = asyncio.create_task(ask(prompt=prompts, max_tokens=0, echo=True, logprobs=1))
        while not engine.scored:
            await asyncio.sleep(0)
        small = asyncio.create_task(ask(prompt="def", max_tokens=0, echo=True, logprobs=1))
        await asyncio.wait({large, small}, return_when=asyncio.FIRST_COMPLETED)
        assert small.done() and not large.done()
        assert (await large)[0] == 200

    serving(gpt, test)


def test_the_texts_of_one_prompt_share_its_scores(gpt):
    async def test(ask, engine):
        status, answer = await ask(prompt="import os", max_tokens=2, n=30, echo=True, logprobs=1)
        assert status == 200 and len(answer["choices"]) == 30
        assert engine.scored == 1

    serving(gpt, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [[5] * 20] * 64, "max_tokens": 8, "echo": True, "logprobs": 100, "n": 16}, "logprobs"),
        ({"prompt": [[5] * 8] * 1024, "max_tokens": 24, "logprobs": 100}, "logprobs"),
        ({"prompt": "import", "max_tokens": 2**30}, "prompt"),
        ({"prompt": "import", "n": 2000}, "n"),
    ],
)
def test_a_request_for_too_much_is_refused_before_any_work(gpt, fields, param):
    async def test(ask, engine):
        status, answer = await ask(**fields)
        assert status == 400 and answer["error"]["param"] == param
        assert engine.generated == engine.scored == 0

    serving(gpt, test)


@pytest.mark.timeout(60)  # removing the special tokens one by one from 4 MB would move 600 GB
@pytest.mark.parametrize("piece", ["<|endoftext|>", "<|pad|><|endoftext|>", "a ", "é"])
def test_a_prompt_of_four_megabytes_is_refused_without_delay(gpt, piece):
    async def test(ask, engine):
        size = 4_000_000 // len(json.dumps(piece).strip('"'))
        status, answer = await ask(prompt=piece * size)
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"

    serving(gpt, test)


@contextmanager
def served(run):
    """Start the command with a short time-out for headers; return its process and port."""
    words = [sys.executable, "-c", SERVE, "serve", str(run), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline().rstrip() for _ in range(2)]
        assert lines[1], process.communicate()
        yield process, int(lines[1].rstrip("/").rsplit(":", 1)[1])
    finally:
        process.kill()
        process.wait()


def whole_answer(connection):
    """Return the answer with a list of models that arrives on a connection."""
    answer = b""
    while not answer.endswith(b"}]}"):
        answer += connection.recv(1 << 16)
    return answer


def half_open(port, count, before=b""):
    """Return connections that have sent half of a request's headers, after the request `before`."""
    connections = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(count)]
    for connection in connections:
        if before:
            connection.sendall(before)
            whole_answer(connection)
        connection.sendall(HALF)
    return connections


def models_request(port):
    return f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def test_connections_with_half_of_the_headers_are_closed(trained_gpt):
    with served(trained_gpt) as (_, port):
        for before in (b"", models_request(port)):
            for connection in half_open(port, 20, before):
                assert connection.recv(100) == b""  # closed by the server
                connection.close()
        whole = socket.create_connection(("127.0.0.1", port), timeout=60)
        whole.sendall(models_request(port))
        assert b'"gpt"' in whole_answer(whole)


def test_ctrl_c_does_not_wait_for_connections_with_half_of_the_headers(trained_gpt):
    with served(trained_gpt) as (process, port):
        connections = half_open(port, 20) + half_open(port, 20, models_request(port))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        for connection in connections:
            connection.close()
    assert process.returncode == 130
    assert without_waiting(errors) == "bytelm serve: interrupted\n"
