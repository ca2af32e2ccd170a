"""`/api/...`: the page gets the same numbers as the functions of bytelm return."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import bytelm
from lm.decoding.generation import generate
from lm.introspection.attention_maps import attention_maps
from lm.metrics.predictions import token_scores
from lm.model import LanguageModel
from pipelines.generation.text_generation import filled_masks
from pipelines.scoring.texts import encoder_steps, text_tokens
from tests.loaded_runs import variant
from tests.serving.conftest import client_of

TEXT = "import os\n\ndef main(naïve):\n    return 0  # 漢 🙂\n"


@pytest.fixture(scope="module")
def runs(trained_gpt, trained_bert, trained_t5):
    folders = {"gpt": trained_gpt, "bert": trained_bert, "t5": trained_t5}
    return {name: bytelm.load_run(folder, device="cpu") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def ask(runs):
    """Return ask(endpoint, **fields), which returns the JSON object or, for an error, its status, field and message."""
    with client_of(runs) as client:

        def ask(endpoint, **fields):
            # Unlike the client's own JSON, this one can hold half a surrogate pair.
            body, kind = json.dumps(fields), {"Content-Type": "application/json"}
            response = client.post(f"/api/{endpoint}", content=body, headers=kind)
            if response.status_code != 200:
                return response.status_code, *map(response.json()["error"].get, ("param", "message"))
            return response.json()

        ask.client = client
        yield ask


def assert_tokens(tokens, score):
    assert [token["id"] for token in tokens] == score.ids.tolist()
    assert [bytes.fromhex(token["hex"]) for token in tokens] == score.pieces
    scored = [token for token in tokens if "bits" in token]
    np.testing.assert_allclose([token["bits"] for token in scored], score.surprisal_bits[score.scored], atol=1e-3)
    np.testing.assert_allclose([token["entropy"] for token in scored], score.entropy_bits[score.scored], atol=1e-3)
    assert [token["rank"] for token in scored] == score.predictions.ranks[score.scored].tolist()
    best = [[candidate["p"] for candidate in token["top"]] for token in scored]
    np.testing.assert_allclose(best, np.exp(score.predictions.top_log_probabilities[score.scored]), rtol=1e-3)


def test_a_scored_text_has_the_numbers_of_score_text(ask, runs):
    for text in ("import", TEXT, TEXT + "!", TEXT[5:]):
        answer = ask("score", model="gpt", text=text, key="a")
        expected = bytelm.score_text(runs["gpt"], text, top=10)
        assert_tokens(answer["tokens"], expected)
        assert answer["totals"]["bits_per_byte"] == pytest.approx(expected.bits_per_byte, rel=1e-5)
        assert answer["totals"]["bits"] == pytest.approx(-expected.log_probability_bits, rel=1e-5)


def test_an_answer_leaves_out_the_tokens_whose_scores_the_client_has(ask):
    before = ask("score", model="gpt", text=TEXT, key="b")["tokens"]
    have = [token["id"] for token in before]
    answer = ask("score", model="gpt", text=TEXT + "!", key="b", have=have)
    whole = ask("score", model="gpt", text=TEXT + "!", key="c")
    assert 0 < answer["same"] <= len(have)
    assert before[: answer["same"]] + answer["tokens"] == whole["tokens"]
    assert answer["totals"] == whole["totals"]
    for other in ([1, *have], [10**30], [-1], []):
        assert ask("score", model="gpt", text=TEXT, key="b", have=other)["same"] == 0


def test_special_tokens_spelled_in_a_text_are_ordinary_text(ask):
    tokens = ask("score", model="gpt", text="a<|endoftext|>b", key="a")["tokens"]
    assert not any("special" in token for token in tokens)
    assert b"".join(bytes.fromhex(token["hex"]) for token in tokens) == b"a<|endoftext|>b"


def test_an_encoders_text_has_the_numbers_of_score_text(ask, runs):
    answer = ask("score", model="bert", text="import os\n", key="a")
    assert_tokens(answer["tokens"], bytelm.score_text(runs["bert"], "import os\n", top=10))
    assert answer["totals"]["pseudo"] is True
    assert answer["totals"]["bits_per_byte"] is None


def test_an_encoder_scores_a_long_text_in_steps_so_that_others_are_served(runs):
    text = TEXT * 20
    ids = text_tokens(runs["bert"], text)
    *steps, score = encoder_steps(runs["bert"], ids, 5)
    assert len(steps) > 2
    assert set(steps) == {None}
    expected = bytelm.score_text(runs["bert"], text).predictions
    np.testing.assert_allclose(score.predictions.log_probabilities, expected.log_probabilities, atol=1e-5)


def test_a_target_has_the_numbers_of_score_text(ask, runs):
    source, target = "import <|sentinel_0|>\n", "<|sentinel_0|>os"
    answer = ask("score", model="t5", text=source, target=target, key="a")
    assert_tokens(answer["tokens"], bytelm.score_text(runs["t5"], source, target=target, top=10))
    assert answer["tokens"][0]["special"] is True


def test_masked_tokens_have_the_guesses_of_generate(ask, runs):
    text = "import os\n"
    run = runs["bert"]
    ids = run.tokenizer.encode(text)
    answer = ask("fill", model="bert", text=text, masked=[1])["tokens"]
    assert [token["id"] for token in answer] == ids
    assert ["bits" in token for token in answer] == [place == 1 for place in range(len(ids))]
    before, after = run.tokenizer.decode(ids[:1]), run.tokenizer.decode(ids[2:])
    (expected,) = filled_masks(run, f"{before}<|mask|>{after}")
    got = [candidate["p"] for candidate in answer[1]["top"]][: len(expected["probabilities"])]
    np.testing.assert_allclose(got, expected["probabilities"], rtol=2e-3)
    none = ask("fill", model="bert", text=text, masked=[])["tokens"]
    assert [set(token) for token in none] == [{"id", "hex"}] * len(ids)


@pytest.mark.parametrize(
    ("model", "kind", "fields"),
    [
        ("gpt", "own", {}),
        ("bert", "own", {}),
        ("t5", "own", {"target": "os"}),
        ("t5", "encoder", {"target": "os"}),
        ("t5", "cross", {"target": "os"}),
    ],
)
def test_attention_weights_equal_those_of_the_model(model, kind, fields, ask, runs):
    text, run = "import os\n", runs[model]
    answer = ask("attention", model=model, text=text, kind=kind, layer=0, head=1, **fields)
    inputs = [run.target_ids("os"), run.ids(text)] if model == "t5" else [run.ids(text)]
    maps = getattr(attention_maps(run.model, *(torch.tensor([ids]) for ids in inputs)), kind)[0, 0, 1]
    queries, keys = {"own": (0, 0), "encoder": (-1, -1), "cross": (0, -1)}[kind]
    assert [token["id"] for token in answer["queries"]] == inputs[queries]
    assert [token["id"] for token in answer["keys"]] == inputs[keys]
    for got, expected in zip(answer["weights"], maps.tolist(), strict=True):
        np.testing.assert_allclose(got + [0.0] * (len(expected) - len(got)), expected, atol=6e-4)


def test_a_model_with_other_mixers_is_scored_but_has_no_attention(runs):
    config = replace(runs["t5"].config, model=replace(runs["t5"].config.model, mixer="gated-linear", positions="none"))
    run = variant(runs["t5"], model=LanguageModel(config.model, seed=0).eval(), config=config)
    with client_of({"t5": run}) as client:
        (listed,) = client.get("/api/models").json()["models"]
        assert listed["layers"] == {}
        asked = {"text": "import <|sentinel_0|>", "target": "os", "key": "a"}
        assert client.post("/api/score", json=asked).status_code == 200
        response = client.post("/api/attention", json={"text": "import", "target": "os", "kind": "own"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "model")
    assert error["message"].startswith("t5 has no attention maps") and "gated-linear" in error["message"]


def events_of(ask, **fields):
    return streamed(ask.client, **fields)


def streamed(client, **fields):
    response = client.post("/api/generate", json={"text": "import", "ids": [], "seed": 3, **fields})
    assert response.status_code == 200, response.text
    return [json.loads(event.removeprefix("data: ")) for event in response.text.split("\n\n")[:-1]]


def test_generated_tokens_equal_those_of_generate(ask, runs):
    run = runs["gpt"]
    prompt = [*run.around.before, *run.tokenizer.encode("import")]
    for options in ({"temperature": 0}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01}):
        *tokens, end = events_of(ask, model="gpt", max_tokens=6, **options)
        generator = torch.Generator().manual_seed(3)
        stops = run.around.stops
        expected = generate(run.model, torch.tensor(prompt), 6, generator=generator, stop_ids=stops, **options)
        assert [event["token"]["id"] for event in tokens] == expected.tolist()
        assert end == {"end": "end" if tokens[-1]["token"]["id"] in stops else "length", "cut": False}
        logits = run.model.logits(run.model(torch.tensor([[*prompt, *expected]])))[0, len(prompt) - 1 : -1]
        scores = token_scores(logits, expected, 10)
        for event, log_p, entropy, rank, top in zip(tokens, *(each.tolist() for each in scores[:4]), strict=True):
            token = event["token"]
            assert token["bits"] == pytest.approx(-log_p / math.log(2), abs=1e-3)
            assert token["entropy"] == pytest.approx(entropy / math.log(2), abs=1e-3)
            assert token["rank"] == rank
            assert [candidate["id"] for candidate in token["top"]] == top


def test_tokens_that_are_drawn_one_by_one_use_different_random_numbers(ask):
    """At this temperature all tokens are almost equally likely, so equal random numbers would draw equal tokens."""
    ids = []
    for _ in range(6):
        first, *_ = events_of(ask, model="gpt", ids=ids, max_tokens=1, temperature=100)
        ids.append(first["token"]["id"])
    assert len(set(ids)) > 3


def test_generation_continues_from_a_chosen_candidate(ask, runs):
    first, *_ = events_of(ask, model="gpt", max_tokens=2, temperature=0)
    chosen = first["token"]["top"][4]["id"]
    *tokens, _ = events_of(ask, model="gpt", ids=[chosen], max_tokens=3, temperature=0)
    run = runs["gpt"]
    prompt = [*run.around.before, *run.tokenizer.encode("import"), chosen]
    expected = generate(run.model, torch.tensor(prompt), 3, temperature=0, stop_ids=run.around.stops)
    assert [event["token"]["id"] for event in tokens] == expected.tolist()


def test_an_encoder_decoder_generates_a_target_for_its_source(ask, runs):
    run = runs["t5"]
    *tokens, _ = events_of(ask, model="t5", max_tokens=4, temperature=0)
    start, source = torch.tensor([run.around.start]), torch.tensor(run.ids("import"))
    expected = generate(run.model, start, 4, source=source, temperature=0, stop_ids=run.around.stops)
    assert [event["token"]["id"] for event in tokens] == expected.tolist()


def test_unused_ids_of_an_encoder_decoder_are_not_generated_but_keep_their_probabilities(runs):
    """Most ids are unused, so without them all other probabilities would be about eight times as high."""
    used = runs["t5"].tokenizer.vocab_size
    model = replace(runs["t5"].config.model, vocab_size=8 * used)
    run = variant(runs["t5"], model=LanguageModel(model, seed=0).eval(), config=replace(runs["t5"].config, model=model))
    with client_of({"t5": run}) as client:
        tokens = [event["token"] for event in streamed(client, max_tokens=6, temperature=100)[:-1]]
    ids = torch.tensor([token["id"] for token in tokens])
    read = torch.cat([torch.tensor([run.around.start]), ids[:-1]])
    logits = run.model.logits(run.model(read[None], torch.tensor([run.ids("import")])))[0]
    assert max(ids) < used
    log_p = token_scores(logits, ids, 10)[0]
    np.testing.assert_allclose([token["bits"] for token in tokens], -log_p.detach() / math.log(2), atol=1e-3)


def test_generation_ends_where_the_stop_text_is_complete(ask):
    *tokens, _ = events_of(ask, model="gpt", max_tokens=12, temperature=0)
    text = b"".join(bytes.fromhex(event["token"]["hex"]) for event in tokens).decode(errors="replace")
    *fewer, end = events_of(ask, model="gpt", max_tokens=12, temperature=0, stop=text[2:4])
    assert end["end"] == "stop"
    assert len(fewer) <= len(tokens)


def test_a_prompt_that_leaves_no_room_is_cut_at_its_beginning(ask):
    *tokens, end = events_of(ask, model="gpt", text="import os\n" * 30, max_tokens=5, temperature=0)
    assert len(tokens) <= 5
    assert end["cut"] is True


def test_answers_for_an_encoder_decoder_say_whether_the_end_of_the_source_was_cut_off(runs):
    config = replace(runs["t5"].config, model=replace(runs["t5"].config.model, positions="sinusoidal"))
    run = variant(runs["t5"], model=LanguageModel(config.model, seed=0).eval(), config=config)
    most = config.model.context_length - len(run.around.before) - len(run.around.after)
    too_many = next(n for n in range(99) if 1 + len(run.tokenizer.encode("a " * n)) > most)
    with client_of({"t5": run}) as client:
        for count, cut in ((too_many - 1, False), (too_many, True)):
            text = "<|sentinel_0|>" + "a " * count
            scored = client.post("/api/score", json={"text": text, "target": "os", "key": "a"}).json()
            *_, end = streamed(client, text=text, max_tokens=1)
            assert scored["cut"] is end["cut"] is cut


SOUND = {
    "score": {"text": "a", "key": "k"},
    "fill": {"text": "a", "masked": [], "model": "bert"},
    "attention": {"text": "a", "kind": "own", "layer": 0, "head": 0},
    "generate": {"text": "a", "ids": []},
}


@pytest.mark.parametrize(
    ("endpoint", "fields", "param", "message"),
    [
        ("score", {"model": "none"}, "model", "there is no model 'none'"),
        ("score", {"text": ""}, "text", "text is empty"),
        ("score", {"text": "\ud800"}, "text", "UTF-8"),
        ("score", {"text": "a " * 9_000}, "text", "the page shows at most 4,000"),
        ("score", {"text": "a" * 100_001}, "text", "text has 100,001 characters, but may have at most 100,000"),
        ("score", {"key": None}, "key", "key is null, but must be a string"),
        ("score", {"target": "b"}, "target", "`target` needs an encoder-decoder"),
        ("score", {"model": "t5"}, "target", "encoder-decoder"),
        ("score", {"model": "t5", "target": ""}, "target", "target is empty"),
        ("score", {"model": "t5", "target": "\udfff"}, "target", "UTF-8"),
        ("score", {"model": "t5", "target": "a " * 9_000}, "target", "the page shows at most 4,000"),
        ("score", {"model": "t5", "target": "b", "text": "a " * 9_000}, "text", "the page shows at most 4,000"),
        ("score", {"have": "a"}, "have", "a list of token ids"),
        ("score", {"have": [True]}, "have", "a list of token ids"),
        ("score", {"other": 1}, "other", "other is not a field"),
        ("score", {"\ud800": 1}, "\\ud800", "\\ud800 is not a field"),
        ("fill", {"model": "gpt"}, "model", "gpt is not an encoder"),
        ("fill", {"masked": [7]}, "masked", "masked places must be from 0 to 0"),
        ("fill", {"masked": [10**60]}, "masked", "masked places must be from 0 to 0"),
        ("fill", {"text": "a " * 200}, "text", "the encoder reads 32"),
        ("attention", {"layer": 9}, "layer", "layer is 9, but must be from 0 to 0"),
        ("attention", {"head": 10**60}, "head", "but must be a whole number"),
        ("attention", {"head": 2}, "head", "head is 2, but must be from 0 to 1"),
        ("attention", {"kind": "cross"}, "kind", "gpt has no cross attention"),
        ("attention", {"kind": "other"}, "kind", 'kind is "other", but must be own, cross or encoder'),
        ("attention", {"model": "t5", "target": "\ud800"}, "target", "UTF-8"),
        ("attention", {"model": "t5", "target": "a " * 9_000}, "target", "the page shows at most 4,000"),
        ("attention", {"model": "t5", "target": "a", "text": "a " * 9_000}, "text", "the page shows at most 4,000"),
        ("generate", {"ids": [99_999]}, "ids", "99999 is not an id"),
        ("generate", {"ids": [10**400]}, "ids", "is not an id"),
        ("generate", {"max_tokens": 32}, "max_tokens", "max_tokens is 32, but must be from 1 to 31"),
        ("generate", {"model": "bert"}, "model", "only a decoder or an encoder-decoder continues"),
        ("generate", {"model": "t5", "text": "a " * 9_000}, "text", "the page shows at most 4,000"),
        ("generate", {"stop": 3}, "stop", "stop is 3, but must be a string"),
        ("generate", {"temperature": 10**400}, "temperature", "a number from 0 to 100"),
        ("generate", {"top_p": -(10**400)}, "top_p", "a number from 0 to 1"),
    ],
)
def test_a_wrong_field_is_named_in_the_error(endpoint, fields, param, message, ask):
    status, named, said = ask(endpoint, **{"model": "gpt", **SOUND[endpoint], **fields})
    assert status == (404 if "there is no model" in message else 400)
    assert named == param
    assert message in said
