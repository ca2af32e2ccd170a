"""Any request gets an answer or a sentence that names its mistake."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.run.loaded_run import load_run
from pipelines.serving.requests import CompletionRequest
from tests.serving.conftest import client_of

NUMBERS = st.integers() | st.integers(-2, 40) | st.floats() | st.floats(0, 2)
IDS = st.lists(st.integers(0, 511) | st.integers(-3, 600), max_size=40)
PROMPTS = st.text(max_size=20) | IDS | st.lists(st.text(max_size=5), max_size=4) | st.lists(IDS, max_size=4)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3)
)
SENSIBLE = {
    "max_tokens": st.integers(0, 33),
    "n": st.integers(0, 2),
    "temperature": st.floats(0, 3),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(0, 600),
    "min_p": st.floats(0, 1),
    "seed": st.integers(-(2**63), 2**63),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=4),
    "logprobs": st.integers(0, 100),
    "echo": st.booleans(),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
}
BODIES = st.fixed_dictionaries({"prompt": PROMPTS}, optional=SENSIBLE)
SPOILED = st.builds(
    dict.__or__, BODIES, st.dictionaries(st.sampled_from(sorted(CompletionRequest.model_fields)), ANYTHING, max_size=2)
)


@given(BODIES | SPOILED)
def test_every_completion_request_is_answered_or_explained(client, fields):
    body = json.dumps({"model": "gpt", **fields})
    response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    if response.status_code != 200:
        assert response.status_code in (400, 404), (body, response.text)
        assert response.json()["error"]["message"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n") and '"error"' not in response.text
    else:
        check(json.loads(body), response.json())


def check(asked, answer):
    """Assert what every answer promises."""
    prompt = asked.get("prompt")
    several = isinstance(prompt, list) and not all(isinstance(each, int) for each in prompt)
    count = (len(prompt) if several else 1) * (asked.get("n") or 1)
    assert [choice["index"] for choice in answer["choices"]] == [*range(count)]
    usage = answer["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    for choice in answer["choices"]:
        assert choice["finish_reason"] in ("stop", "length")
        logprobs = choice["logprobs"]
        assert (logprobs is None) == (asked.get("logprobs") is None or count_of(asked, answer) == 0)
        if logprobs is not None:
            own, tops, tokens = (logprobs[name] for name in ("token_logprobs", "top_logprobs", "tokens"))
            assert len(own) == len(tops) == len(tokens) == len(logprobs["text_offset"])
            assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
            for token, value, top in zip(tokens, own, tops, strict=True):
                assert (value is None) == (top is None)
                assert top is None or (top[token] == value <= 1e-6 and len(top) >= asked["logprobs"])


def count_of(asked, answer):
    """Return the number of tokens with log-probabilities: the completion's, and with echo also the prompt's."""
    usage = answer["usage"]
    return usage["completion_tokens"] + (usage["prompt_tokens"] if asked.get("echo") else 0)


@given(
    st.dictionaries(st.sampled_from(["model", "prompt", "tokens", "add_special_tokens"]), ANYTHING | st.text() | IDS)
)
def test_every_tokenizer_request_is_answered_or_explained(client, fields):
    for path in ("/tokenize", "/detokenize"):
        body = json.dumps(fields)
        response = client.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code in (200, 400, 404), (body, response.text)


HUGE = st.sampled_from([10**60, -(10**60), 10**400, 1e308, float("nan"), float("inf"), 2**63, 2**31])
NESTED = st.integers(1, 3000).map(lambda depth: json.loads("[" * depth + "]" * depth) if depth < 900 else depth)
LONG = st.integers(1, 5).map(lambda k: "x\ud800é"[k % 3] * 30_000 * k)
HOSTILE = (
    HUGE | NESTED | LONG | st.sampled_from(["\ud800", "\udc00a", "\0", "", {}, {"a": 1}, [], ["\ud800"]]) | ANYTHING
)
ENDPOINTS = {
    "/v1/completions": {*CompletionRequest.model_fields},
    "/tokenize": {"model", "prompt", "add_special_tokens"},
    "/detokenize": {"model", "tokens"},
    "/api/score": {"model", "text", "target", "key", "have"},
    "/api/fill": {"model", "text", "masked"},
    "/api/attention": {"model", "text", "target", "kind", "layer", "head"},
    "/api/generate": {"model", "text", "ids", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop"},
}
PLAIN = {"prompt": "a", "text": "a", "key": "k", "tokens": [1], "masked": [0], "kind": "own", "ids": []}
PLAIN |= {"max_tokens": 1}


@pytest.fixture(scope="module")
def client_of_all(gpt, trained_bert, trained_t5):
    """Return a client of a server with a model of each architecture."""
    others = {name: load_run(run, device="cpu") for name, run in (("bert", trained_bert), ("t5", trained_t5))}
    with client_of({"gpt": gpt} | others) as client:
        yield client


@pytest.mark.parametrize("path", ENDPOINTS)
@settings(max_examples=100)
@given(st.data())
def test_a_hostile_value_in_any_field_is_refused_in_a_short_sentence_about_a_field(client_of_all, path, data):
    names = sorted(ENDPOINTS[path])
    hostile = data.draw(st.dictionaries(st.sampled_from([*names, "no\ud800field", "x" * 50_000]), HOSTILE, max_size=2))
    model = {"model": data.draw(st.sampled_from(["gpt", "bert", "t5"]))}
    fields = model | {name: value for name, value in PLAIN.items() if name in names} | hostile
    response = client_of_all.post(path, content=json.dumps(fields), headers={"content-type": "application/json"})
    shown = path, model, {k: str(v)[:80] for k, v in hostile.items()}, response.text[:300]
    assert response.status_code in (200, 400, 404, 413), shown
    if response.status_code != 200:
        error = response.json()["error"]
        assert len(response.content) < 1000, shown
        assert error["param"] is not None or response.status_code == 413, shown
        assert 0 < len(error["message"]) <= 300 and "\n" not in error["message"], shown


@pytest.mark.parametrize("path", ["/v1/models/%ED%A0%80", "/tokenizer_info?model=%ED%A0%80", "/" + "x" * 20_000])
def test_hostile_names_in_an_address_are_refused_in_a_short_sentence(client, path):
    response = client.get(path)
    assert response.status_code == 404 and len(response.content) < 1000
