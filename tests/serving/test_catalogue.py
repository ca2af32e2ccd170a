"""The list of models, and the tokenizer endpoints that lm-evaluation-harness uses."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pipelines.run.loaded_run import load_run
from pipelines.serving import catalogue
from pipelines.serving.engine import Engine
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.security import access_to
from pipelines.serving.server import create_app
from tests.loaded_runs import variant
from tests.serving.conftest import client_of

OLD_RUN = Path(__file__).parents[1] / "compatibility" / "0.1" / "decoder"


def test_models_are_listed_with_their_context(client):
    (entry,) = client.get("/v1/models").json()["data"]
    assert entry["id"] == "gpt" and entry["object"] == "model" and entry["max_model_len"] == 32
    assert client.get("/v1/models/gpt").json() == entry
    missing = client.get("/v1/models/other")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_tokens_equal_those_of_the_tokenizer(gpt, client):
    for text in ("import os", "", "é😀\n\0", " <|endoftext|>", "<|endoftext|>import", "x" * 5000):
        answer = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
        assert answer["tokens"] == gpt.tokenizer.encode(text, disallowed_special=())
        assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == 32
        assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}


def test_a_prompt_that_is_a_special_token_is_its_id(gpt, client):
    """For texts without context, the harness uses the first id of the end token's spelling as context."""
    info = client.get("/tokenizer_info").json()
    assert (info["eos_token"], info["bos_token"], info["pad_token"]) == ("<|endoftext|>", "<|endoftext|>", "<|pad|>")
    assert info["chat_template"] is None
    for spelling, i in gpt.tokenizer.special_tokens.items():
        assert client.post("/tokenize", json={"prompt": spelling}).json()["tokens"] == [i]


def test_the_padding_token_is_that_of_the_run(gpt):
    with client_of({"gpt": variant(gpt, around=replace(gpt.around, pad=gpt.around.stops[0]))}) as client:
        assert client.get("/tokenizer_info").json()["pad_token"] == "<|endoftext|>"


def test_special_tokens_are_added_only_if_asked_for(gpt, client):
    tokens = client.post("/tokenize", json={"prompt": "a", "add_special_tokens": True}).json()["tokens"]
    assert tokens == gpt.ids("a") and len(tokens) == 2


def test_the_special_tokens_of_an_encoder_surround_the_text(trained_bert):
    run = load_run(trained_bert, device="cpu")
    with client_of({"bert": run}) as client:
        tokens = client.post("/tokenize", json={"prompt": "a", "add_special_tokens": True}).json()["tokens"]
    assert tokens == run.ids("a") and len(tokens) == 3


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "prompt is null, but must be a string"),
        ("/tokenize", {"prompt": ["a"]}, "must be a string"),
        ("/tokenize", {"prompt": "a", "special": 1}, "special is not a field"),
        ("/detokenize", {"tokens": "a"}, "must be a list of token ids"),
        ("/tokenize", {"prompt": "\udc00"}, "surrogate"),
        ("/detokenize", {"tokens": [5] * (2**18 + 1)}, "a list of token ids, at most 262,144"),
        ("/detokenize", {"tokens": [512]}, "512 is not an id"),
        ("/detokenize", {"tokens": [-1]}, "-1 is not an id"),
    ],
)
def test_bad_requests_are_refused(client, path, body, words):
    response = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 400 and words in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "status", "param"), [("model=gpt", 200, None), ("model=other", 404, "model"), ("modle=gpt", 400, "modle")]
)
def test_a_wrong_field_of_a_query_is_named(client, query, status, param):
    response = client.get(f"/tokenizer_info?{query}")
    assert response.status_code == status
    assert param is None or response.json()["error"]["param"] == param


def test_with_several_tokenizers_the_model_is_named(gpt, trained_bert):
    runs = {"gpt": gpt, "bert": load_run(trained_bert, device="cpu"), "old": load_run(OLD_RUN, device="cpu")}
    with client_of(runs) as client:
        response = client.post("/tokenize", json={"prompt": "a"})
        assert response.status_code == 400 and "gpt, bert, old" in response.json()["error"]["message"]
        for name, run in runs.items():
            text = "import os as the system"
            tokens = client.post("/tokenize", json={"prompt": text, "model": name}).json()["tokens"]
            assert tokens == run.tokenizer.encode(text)
            info = client.get("/tokenizer_info", params={"model": name}).json()
            assert info["vocab_size"] == run.tokenizer.vocab_size
        missing = client.post("/v1/completions", json={"prompt": "a"})
        assert missing.status_code == 400 and missing.json()["error"]["param"] == "model"
    del runs["old"]
    with client_of(runs) as client:  # these two have the same tokenizer
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 200


def test_health_tells_the_status_only(client):
    response = client.get("/health")
    assert response.status_code == 200
    assert response.json() == {"status": "ok"}
    assert client.head("/health").status_code == 200


class CountingEngine(Engine):
    """An engine that counts its calls."""

    calls = 0

    async def call(self, function):
        self.calls += 1
        return await super().call(function)


def test_health_is_not_ok_while_the_models_do_not_answer(gpt, monkeypatch):
    """All requests wait for the same call, and are answered once the models answer."""
    monkeypatch.setattr(catalogue, "HEALTH_S", 0.05)
    idle = CountingEngine({"gpt": gpt})  # not started
    service = Service({"gpt": ServedModel("gpt", gpt)}, idle, created=0)
    app = create_app(service, access_to("127.0.0.1", 8000), asyncio.Event())
    with TestClient(app, base_url="http://localhost:8000") as client:
        for _ in range(3):
            response = client.get("/health")
            assert response.status_code == 503
            assert "have not answered" in response.json()["error"]["message"]
        assert idle.calls == 1
        monkeypatch.setattr(catalogue, "HEALTH_S", 300)
        with idle:
            assert client.get("/health").status_code == client.get("/health").status_code == 200
        assert idle.calls > 1
