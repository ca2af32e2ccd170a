"""A served model with a WordPiece tokenizer writes words with spaces between them."""

import pytest

import bytelm
from tests.loaded_runs import variant
from tests.serving.conftest import client_of

TEXT = "Import the OS, ☃ and sys"


@pytest.fixture(scope="module")
def run(wordpiece_run):
    return bytelm.load_run(wordpiece_run, device="cpu")


@pytest.fixture(scope="module")
def ask(run):
    with client_of({"gpt": run}) as client:

        def ask(path, **fields):
            response = client.post(path, json={"model": "gpt", **fields})
            assert response.status_code == 200, response.text
            return response.json()

        yield ask


def test_an_echoed_prompt_and_its_completion_are_the_decoded_ids(run, ask):
    tok = run.tokenizer
    fields = {"prompt": TEXT, "max_tokens": 20, "temperature": 1.0, "seed": 3, "logprobs": 0, "echo": True}
    (choice,) = ask("/v1/completions", **fields)["choices"]
    ids = [tok.vocabulary.ids[name] for name in choice["logprobs"]["tokens"]]
    assert ids[: len(tok.encode(TEXT))] == tok.encode(TEXT)
    assert choice["text"] == tok.decode(ids)
    assert len(choice["text"].split()) > 8 and "##" not in choice["text"]


def test_the_page_gets_the_bytes_that_tokens_add_and_no_total_of_bytes(run, ask):
    answer = ask("/api/score", text=TEXT, key="a", have=[])
    score = bytelm.score_text(run, TEXT)
    assert [bytes.fromhex(token["hex"]) for token in answer["tokens"]][1:] == score.pieces[1:]
    assert (answer["totals"]["bytes"], answer["totals"]["bits_per_byte"]) == (None, None)
    assert answer["totals"]["bits"] == pytest.approx(-score.log_probability_bits, abs=1e-3)


def test_a_text_without_tokens_is_refused_for_an_encoder(run, trained_bert):
    encoder = variant(bytelm.load_run(trained_bert, device="cpu"), tokenizer=run.tokenizer)
    with client_of({"bert": encoder}) as client:
        response = client.post("/api/score", json={"text": " \n", "key": "a"})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "text")
    assert error["message"].startswith("the text has no tokens, because the tokenizer deletes all its characters")
