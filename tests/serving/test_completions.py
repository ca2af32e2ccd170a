"""Completions: the protocol of OpenAI's legacy endpoint, as lm-evaluation-harness and other clients read it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import bytelm
from pipelines.run.loaded_run import load_run
from pipelines.serving.choices import Writer
from pipelines.serving.models import ServedModel, token_names
from tests.loaded_runs import variant
from tests.serving.conftest import client_of
from tokenizer import Tokenizer

CONTEXT = 32
QUESTIONS = [
    ("import", [" os", " sys\n", "lib"]),
    ("def f(x):\n    return", [" x", " None\n\n", " é€"]),
    ("class A", [":"]),
]


def harness_request(prompts):
    """Return the request of lm_eval's local-completions for log-likelihoods."""
    return {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}


def harness_reads(answer, context_lengths):
    """Return what lm_eval computes from an answer: (sum of log-probabilities, is greedy) of each continuation."""
    read = []
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    for choice, length in zip(choices, context_lengths, strict=True):
        own = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        read.append((sum(own), all(p == max(top.values()) for p, top in zip(own, tops, strict=True))))
    return read


def pairs_of(run):
    """Return (ids of context and continuation, length of the context, bytelm's score) for QUESTIONS."""
    pairs = []
    for text, choices in QUESTIONS:
        ranked = bytelm.rank_choices(run, text, choices, start=False)
        context = run.tokenizer.encode(text)
        for number, ids in enumerate(ranked.ids):
            pairs.append(
                (context + ids.tolist(), len(context), ranked.log_probabilities[number], ranked.greedy[number])
            )
    return pairs


def test_the_harness_computes_the_scores_of_bytelm_one_by_one(gpt, complete):
    for ids, length, expected, greedy in pairs_of(gpt):
        ((value, is_greedy),) = harness_reads(complete(**harness_request([ids])), [length])
        assert value == pytest.approx(expected, abs=1e-6 * (len(ids) - length))
        assert is_greedy == greedy


def test_the_harness_computes_the_scores_of_bytelm_in_a_ragged_batch(gpt, complete):
    pairs = pairs_of(gpt)
    answer = complete(**harness_request([ids for ids, *_ in pairs]))
    assert [choice["index"] for choice in answer["choices"]] == [*range(len(pairs))]
    read = harness_reads(answer, [length for _, length, *_ in pairs])
    for (value, is_greedy), (ids, length, expected, greedy) in zip(read, pairs, strict=True):
        assert value == pytest.approx(expected, abs=1e-4 * (len(ids) - length))
        assert is_greedy == greedy


def test_the_harness_computes_the_likelihood_of_a_text_after_the_start_token(gpt, complete):
    """An empty context is the end-of-text token, whose id the harness asks from /tokenize."""
    score = bytelm.score_text(gpt, "import os\n\n")
    ids = [*score.before, *score.ids.tolist()]
    ((value, _),) = harness_reads(complete(**harness_request([ids])), [1])
    assert value == pytest.approx(score.log_probability, abs=1e-6 * len(ids))


@pytest.mark.parametrize("max_tokens", [0, 1, 7])
@pytest.mark.parametrize("temperature", [0, 1])
def test_an_echo_has_an_entry_for_each_token_of_prompt_and_completion(gpt, complete, max_tokens, temperature):
    ids = gpt.tokenizer.encode("import os\n")
    (choice,) = complete(prompt=ids, max_tokens=max_tokens, logprobs=3, echo=True, temperature=temperature)["choices"]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(ids) + max_tokens}
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    for token, value, top in [*zip(*[logprobs[n] for n in ("tokens", "token_logprobs", "top_logprobs")], strict=True)][
        1:
    ]:
        assert top[token] == value
        assert 3 <= len(top) <= 4
        assert value <= max(top.values()) <= 0


@pytest.fixture(scope="module")
def ended(gpt, complete):
    """Return (client, prompt): a run whose end token is the token that it predicts after the prompt."""
    prompt = gpt.tokenizer.encode("import os")
    (choice,) = complete(prompt=prompt, max_tokens=1, temperature=0, logprobs=0)["choices"]
    end = token_names(gpt.tokenizer, 512).index(choice["logprobs"]["tokens"][0])
    with client_of({"gpt": variant(gpt, around=replace(gpt.around, stops=(end,)))}) as client:
        yield client, prompt


def test_end_of_text_as_the_first_token_ends_a_completion(ended):
    client, prompt = ended
    answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 9, "temperature": 0}).json()
    assert answer["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == {"prompt_tokens": len(prompt), "completion_tokens": 1, "total_tokens": len(prompt) + 1}


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_end_of_text_as_the_first_token_keeps_the_scores_of_the_whole_prompt(ended, gpt, max_tokens):
    client, prompt = ended
    request = harness_request([prompt]) | {"max_tokens": max_tokens}
    (choice,) = client.post("/v1/completions", json=request).json()["choices"]
    own = choice["logprobs"]["token_logprobs"]
    assert len(own) == len(prompt) + max_tokens
    expected = bytelm.score_text(gpt, "import os", start=False).log_probability
    assert sum(own[1 : len(prompt)]) == pytest.approx(expected, abs=1e-5)
    assert (choice["text"], choice["finish_reason"]) == ("import os", "stop")


def test_a_continuation_that_is_not_utf_8_has_unique_keys_and_the_right_score(gpt, complete):
    tok = gpt.tokenizer
    ids = [tok.encode("x")[0], *(tok.encode("é😀")[:-1])]
    pieces = [tok.token_bytes(i) for i in ids]
    assert any(b"\xf0" in piece for piece in pieces)
    (choice,) = complete(**harness_request([ids]) | {"logprobs": 100})["choices"]
    names = choice["logprobs"]["tokens"][: len(ids)]
    for name, piece in zip(names, pieces, strict=True):
        escaped = "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
        assert name == (piece.decode() if piece.isascii() else escaped)
    for top in choice["logprobs"]["top_logprobs"][1:]:
        assert 100 <= len(top) <= 101  # no two tokens share a key
        assert math.fsum(map(math.exp, top.values())) <= 1 + 1e-5
    expected = gpt.logits("x")[-1]  # any text: the vocabulary's size
    assert len(set(token_names(tok, len(expected)))) == len(expected)
    assert "\ufffd" in choice["text"]


def test_every_token_has_its_own_name():
    """Here two tokens are written bytes:\\xc3: the byte, and one merged from text."""
    with pytest.warns(UserWarning):
        tok = Tokenizer.train([r"bytes:\xc3" * 50], vocab_size=300, pattern=r"bytes:\\xc3|.")
    names = token_names(tok, tok.vocab_size + 2)
    assert len(set(names)) == len(names) == tok.vocab_size + 2
    places = [i for i in range(5, tok.vocab_size) if tok.token_bytes(i) in (b"\xc3", rb"bytes:\xc3")]
    assert [names[i] for i in places] == [rf"bytes:\xc3 (id {i})" for i in places] and len(places) == 2
    assert names[2] == "<|mask|>"
    assert names[tok.vocab_size] == f"id:{tok.vocab_size}"
    assert names[tok.encode("\x80".encode("latin-1").decode("utf-8", "replace"))[0]].startswith("bytes:\\xef")


def test_a_prompt_without_logprobs_may_be_echoed(complete):
    (choice,) = complete(prompt="import os", max_tokens=0, echo=True)["choices"]
    assert choice == {"index": 0, "text": "import os", "logprobs": None, "finish_reason": "length"}


def test_greedy_completions_equal_those_of_generate(gpt, trained_gpt, complete):
    expected = bytelm.generate(trained_gpt, prompt="import os", tokens=10, greedy=True, device="cpu")
    start = complete(prompt="<|endoftext|>import os", max_tokens=10, temperature=0)
    assert start["choices"][0]["text"] == expected
    assert start["usage"]["prompt_tokens"] == 1 + len(gpt.tokenizer.encode("import os"))


def test_only_a_missing_prompt_gets_a_start_token(gpt, complete):
    assert complete(prompt="import", max_tokens=0, echo=True)["usage"]["prompt_tokens"] == len(
        gpt.tokenizer.encode("import")
    )
    assert complete(max_tokens=0, echo=True)["choices"][0]["text"] == "<|endoftext|>"


def test_special_tokens_are_read_only_at_the_start_of_a_prompt(complete):
    begun = complete(prompt="<|endoftext|>", max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert begun["logprobs"]["tokens"] == ["<|endoftext|>"]
    later = complete(prompt="<|sep|><|endoftext|>a<|endoftext|>", max_tokens=0, echo=True, logprobs=0)["choices"][0]
    assert later["logprobs"]["tokens"][:3] == ["<|sep|>", "<|endoftext|>", "a"]
    assert "<|endoftext|>" not in later["logprobs"]["tokens"][3:]
    assert later["text"] == "<|sep|><|endoftext|>a<|endoftext|>"


def test_every_form_of_prompt_is_answered_in_order(gpt, complete):
    ids = [gpt.tokenizer.encode(text) for text in ("import", "def f")]
    forms = {"one text": "import", "texts": ["import", "def f"], "one list of ids": ids[0], "lists of ids": ids}
    answers = {name: complete(prompt=form, max_tokens=4, temperature=0) for name, form in forms.items()}
    texts = {name: [choice["text"] for choice in answer["choices"]] for name, answer in answers.items()}
    assert texts["one text"] == texts["one list of ids"] == texts["texts"][:1]
    assert texts["texts"] == texts["lists of ids"] and len(texts["texts"]) == 2


def test_a_seed_repeats_its_samples_and_the_n_texts_differ(complete):
    request = {"prompt": ["import", "def"], "n": 3, "max_tokens": 12, "temperature": 1.5}
    one, again, other = (complete(**request, seed=seed)["choices"] for seed in (7, 7, 8))
    assert one == again != other
    assert [choice["index"] for choice in one] == [*range(6)]
    assert len({choice["text"] for choice in one}) == 6
    unseeded = [complete(**request)["choices"][0]["text"] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_sampling_options_limit_the_choice(gpt, complete):
    greedy = complete(prompt="import", max_tokens=8, temperature=0)["choices"][0]["text"]
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.001}):
        assert complete(prompt="import", max_tokens=8, **narrow)["choices"][0]["text"] == greedy, narrow


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stop_string_ends_the_text_wherever_its_tokens_begin(complete, length):
    text = complete(prompt="import os", max_tokens=20, temperature=0)["choices"][0]["text"]
    assert len(text) > 10
    for start in range(2, 8):
        stop = text[start : start + length]
        answer = complete(prompt="import os", max_tokens=20, temperature=0, stop=["\0never", stop])
        assert answer["choices"][0]["text"] == text[: text.index(stop)]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] <= 20


def test_offsets_count_the_characters_before_each_token(gpt, complete):
    (choice,) = complete(prompt="é = '€'", max_tokens=6, echo=True, logprobs=0, temperature=0)["choices"]
    logprobs, text = choice["logprobs"], choice["text"]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:"):
            assert text[offset:].startswith(token)


def events_of(response):
    """Return the objects of a stream. Its last event is [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


PLAIN_STREAMS = [{"prompt": "import"}, {"prompt": ["import", "def"], "n": 2, "logprobs": 2}]
ECHOED_STREAMS = [{"prompt": "é", "echo": True}, {"prompt": "class", "echo": True, "logprobs": 1, "stop": "e"}]
STOPPED_STREAMS = [{"prompt": "a", "stop": ["e", "\n"]}]


@pytest.mark.parametrize("fields", [*PLAIN_STREAMS, *ECHOED_STREAMS, *STOPPED_STREAMS])
def test_a_stream_adds_up_to_the_whole_answer(client, complete, fields):
    fields |= {"max_tokens": 12, "seed": 3, "temperature": 1.2}
    whole = complete(**fields)
    body = {"model": "gpt", **fields, "stream": True, "stream_options": {"include_usage": True}}
    response = client.post("/v1/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, last = events_of(response)
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in events)
    for choice in whole["choices"]:
        own = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [each["finish_reason"] for each in own] == [None] * (len(own) - 1) + [choice["finish_reason"]]
        parts = [each["logprobs"] for each in own if each["logprobs"]]
        for name, values in (choice["logprobs"] or {}).items():
            streamed = [value for part in parts for value in part[name]]
            assert streamed == pytest.approx(values) if name == "token_logprobs" else len(streamed) == len(values)


def test_usage_comes_in_a_stream_only_if_asked_for(client):
    response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "stream": True})
    assert not any("usage" in event for event in events_of(response))


def test_a_character_of_several_tokens_is_streamed_whole(gpt):
    """Check the pieces that the server would stream for the tokens of a text, whatever the model."""
    tok = gpt.tokenizer
    writer = Writer(ServedModel("gpt", gpt), [], None)
    ids = tok.encode("a😀é")
    assert len(ids) > 4
    pieces = [writer.prompt([i], None).text for i in ids]
    assert "".join(pieces) == "a😀é" and "" in pieces and "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "prompt is [], but must be a string, a list of strings"),
        ({"prompt": [[]]}, "prompt", "none of them empty"),
        ({"prompt": [[1], []]}, "prompt", "none of them empty"),
        ({"prompt": [1, "a"]}, "prompt", "must be a string, a list of strings"),
        ({"prompt": [["a"]]}, "prompt", "must be a string, a list of strings"),
        ({"prompt": [True]}, "prompt", "must be a string, a list of strings"),
        ({"prompt": [1.0]}, "prompt", "must be a string, a list of strings"),
        ({"prompt": {"text": "a"}}, "prompt", "must be a string, a list of strings"),
        ({"prompt": [512]}, "prompt", "512 is not an id"),
        ({"prompt": [-1]}, "prompt", "-1 is not an id"),
        ({"prompt": [10**30]}, "prompt", "is not an id"),
        ({"prompt": "a\ud800"}, "prompt", "surrogate"),
        ({"prompt": ["a", "\udc00"]}, "prompt", "surrogate"),
        ({"prompt": ["a", [1]]}, "prompt", "must be a string, a list of strings"),
        ({"prompt": ["a"] * 1025}, "prompt", "1,024 texts"),
        ({"n": 0}, "n", "from 1 to 1,024"),
        ({"n": True}, "n", "whole number"),
        ({"best_of": 2}, "best_of", "best_of is not supported"),
        ({"best_of": True}, "best_of", "best_of is true, but must be a whole number"),
        ({"best_of": 1.0}, "best_of", "best_of is 1.0, but must be a whole number"),
        ({"max_tokens": -1}, "max_tokens", "whole number"),
        ({"max_tokens": 1.5}, "max_tokens", "whole number"),
        ({"max_tokens": "5"}, "max_tokens", "whole number"),
        ({"temperature": -0.1}, "temperature", "from 0 to 100"),
        ({"temperature": True}, "temperature", "a number"),
        ({"temperature": 10**400}, "temperature", "from 0 to 100"),
        ({"temperature": float("nan")}, "temperature", "from 0 to 100"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"top_p": 1.1}, "top_p", "from 0 to 1"),
        ({"top_k": 0}, "top_k", "from 1"),
        ({"min_p": 2}, "min_p", "from 0 to 1"),
        ({"seed": 2**63}, "seed", "whole number"),
        ({"logprobs": 101}, "logprobs", "from 0 to 100"),
        ({"logprobs": True}, "logprobs", "whole number"),
        ({"echo": 1}, "echo", "true or false"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"stop": ""}, "stop", "empty"),
        ({"stop": [1]}, "stop", "strings"),
        ({"stop": ["a"] * 17}, "stop", "up to 16 strings"),
        ({"stop": ["a", ""]}, "stop", "none of them empty"),
        ({"stop": "a" * 1001}, "stop", "stop has 1,001 characters, but may have at most 1,000"),
        ({"stop": ["\ud800"]}, "stop", "surrogate"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"stream": True, "stream_options": {"usage": True}}, "usage", "not a field"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage", "is 1, but must be true or false"),
        ({"stream": True, "stream_options": 5}, "stream_options", "stream_options is 5, but must be an object"),
        ({"suffix": "b"}, "suffix", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"presence_penalty": False}, "presence_penalty", "not supported"),
        ({"frequency_penalty": -1}, "frequency_penalty", "not supported"),
        ({"temprature": 1}, "temprature", "temprature is not a field"),
        ({"messages": []}, "messages", "messages is not a field"),
        ({"\ud800": 1}, "\\ud800", "is not a field"),
        ({"": 1}, "", "is not a field"),
        ({"model": 5}, "model", "there is no model 5"),
        ({"model": "\ud800"}, "model", "there is no model"),
    ],
)
def test_a_bad_field_is_named_in_the_error(client, fields, param, words):
    body = json.dumps({"model": "gpt", "prompt": "a", **fields})
    response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == (404 if param == "model" else 400)
    assert error["param"] == param and words in error["message"]
    assert error["type"] == "invalid_request_error" and "code" in error


def test_nulls_and_fields_without_effect_are_accepted(complete):
    neutral = {"suffix": None, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "best_of": 1}
    nulls = dict.fromkeys(("n", "stop", "seed", "top_p", "top_k", "min_p", "logprobs", "echo", "stream"))
    assert complete(prompt="a", max_tokens=2, temperature=0, user="me", **neutral, **nulls)["choices"][0]["text"]


def test_a_message_is_one_short_line_whatever_the_request_holds(client):
    long = "x\n" * 30_000
    for fields in ({"model": long}, {long: 1}, {"n": long}, {"stop": [[long]]}, {"prompt": [int("9" * 4000)]}):
        response = client.post("/v1/completions", json={"prompt": "a", **fields})
        assert response.status_code in (400, 404)
        assert len(response.text) < 1000
        assert "\n" not in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"a"', b"\xff", b"null", b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}", b'{"n": NaN}']
)
def test_a_body_that_is_not_a_json_object_is_refused(client, body):
    response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_prompt_too_long_is_refused_with_the_numbers(gpt, client, complete):
    for ids, max_tokens in (([5] * CONTEXT, 1), ([5] * 30, 3), ([5] * 5000, 0)):
        response = client.post("/v1/completions", json={"prompt": ids, "max_tokens": max_tokens})
        error = response.json()["error"]
        assert response.status_code == 400
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert f"{len(ids):,} tokens" in error["message"] and f"{CONTEXT} tokens" in error["message"]
    assert complete(prompt=[5] * (CONTEXT - 1), max_tokens=1)["usage"]["total_tokens"] == CONTEXT
    assert (
        complete(prompt=[5] * (CONTEXT - 3))["usage"]["completion_tokens"] <= 3
    )  # the default fits in the rest of the context


def test_an_unknown_model_is_refused_with_the_known_names(client):
    response = client.post("/v1/completions", json={"model": "gpt-4", "prompt": "a"})
    error = response.json()["error"]
    assert response.status_code == 404
    assert error["code"] == "model_not_found" and "'gpt-4'" in error["message"] and "gpt" in error["message"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/chat/completions", "not chat models: use POST /v1/completions"),
        ("/chat/completions", "models with a chat template answer POST /v1/chat/completions"),
    ],
)
def test_chat_is_refused_with_a_sentence(client, path, message):
    response = client.post(path, json={"model": "gpt", "messages": []})
    assert response.status_code == 404
    assert message in response.json()["error"]["message"]


def test_unknown_paths_are_refused_with_a_sentence(client):
    response = client.get("/v1/embeddings")
    assert response.status_code == 404 and "/v1/embeddings" in response.json()["error"]["message"]


def test_an_encoder_cannot_complete_a_prompt(trained_bert):
    with client_of({"bert": load_run(trained_bert, device="cpu")}) as client:
        response = client.post("/v1/completions", json={"prompt": "a"})
        assert response.status_code == 400
        assert "bert is an encoder: only a decoder" in response.json()["error"]["message"]
        assert client.get("/v1/models").json()["data"][0]["architecture"] == "encoder"


def test_log_probabilities_equal_those_of_the_logits(gpt, complete):
    expected = gpt.logits("import os").log_softmax(-1)[-1]
    body = {"prompt": "<|endoftext|>import os", "max_tokens": 1, "temperature": 0, "logprobs": 100}
    (top,) = complete(**body)["choices"][0]["logprobs"]["top_logprobs"]
    names = token_names(gpt.tokenizer, 512)
    best = expected.topk(100)
    assert [*top] == [names[i] for i in best.indices.tolist()]
    np.testing.assert_allclose([*top.values()], best.values.numpy(), atol=1e-5)
