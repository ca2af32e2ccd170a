"""The inference engine answers many requests at once, each as if it were alone."""

import asyncio
import copy
import threading
import time
from contextlib import aclosing

import numpy as np
import pytest
import torch

from lm.decoding.generation import generate
from pipelines.run.loaded_run import load_run
from pipelines.scoring.predictions import Predictions
from pipelines.scoring.texts import score_text
from pipelines.serving.engine import Engine, EngineClosedError, GenerationRequest
from tests.loaded_runs import variant


@pytest.fixture(scope="module")
def run(trained_gpt):
    return load_run(trained_gpt, device="cpu")


@pytest.fixture
def engine(run):
    with Engine({"gpt": run}, slots=4) as engine:
        yield engine


def prompts(count, longest=20, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(5, 512, random.integers(1, longest + 1)).tolist() for _ in range(count)]


async def tokens_of(engine, prompt, tokens=10, **options):
    request = GenerationRequest(prompt_ids=prompt, max_tokens=tokens, **options)
    async with aclosing(engine.generate("gpt", request)) as stream:
        return [token async for token in stream]


async def together(*coroutines, **options):
    return await asyncio.wait_for(asyncio.gather(*coroutines, **options), 300)


def alone(run, prompt, tokens=10, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return generate(run.model, torch.tensor(prompt), tokens, generator=generator, **options).tolist()


def test_fifty_concurrent_requests_are_all_answered_as_if_alone(run):
    """In float64, rounding does not decide which token is chosen."""
    exact = variant(run, model=copy.deepcopy(run.model).double())
    exact.model.compute_dtype = torch.float64
    asked = prompts(50)
    options = [{"temperature": 0}, {"top_k": 20, "temperature": 0.7}, {"top_p": 0.9}, {"min_p": 0.05}] * 13

    async def main(engine):
        return await together(*(tokens_of(engine, ids, seed=i, **options[i]) for i, ids in enumerate(asked)))

    with Engine({"gpt": exact}, slots=4) as engine:
        answers = [[token.id for token in answer] for answer in asyncio.run(main(engine))]
    assert answers == [alone(exact, ids, seed=i, **options[i]) for i, ids in enumerate(asked)]


def test_log_probabilities_are_those_of_the_model_before_temperature(run, engine):
    prompt = prompts(1)[0]
    found = asyncio.run(tokens_of(engine, prompt, temperature=3.0, top_k=50, top=512))
    ids = torch.tensor([[*prompt, *(token.id for token in found)]])
    with torch.inference_mode():
        expected = run.model.logits(run.model(ids))[0, len(prompt) - 1 : -1].log_softmax(-1)
    for token, row in zip(found, expected, strict=True):
        assert token.log_probability == pytest.approx(row[token.id].item(), abs=1e-5)
        assert token.log_probability == token.top_log_probabilities[token.top_ids.index(token.id)]
        assert sorted(token.top_ids) == list(range(512))
        assert token.top_log_probabilities == pytest.approx(row[token.top_ids].tolist(), abs=1e-5)
        assert token.top_log_probabilities == sorted(token.top_log_probabilities, reverse=True)


def test_a_text_ends_with_its_stop_id_and_at_its_number_of_tokens(run, engine):
    prompt = prompts(1)[0]
    free = alone(run, prompt, temperature=0)
    stop = free[5]
    stopped = asyncio.run(tokens_of(engine, prompt, temperature=0, stop_ids=[stop]))
    assert [token.id for token in stopped] == free[: free.index(stop) + 1]
    assert asyncio.run(tokens_of(engine, prompt, 0)) == []


def test_scores_are_those_of_the_verb_alone_and_together(run, engine):
    texts = ["import os\n", "def f(x):\n    return x\n", "a"]
    expected = [score_text(run, text, target=None, start=False, top=3).predictions for text in texts]

    async def main():
        rows = [run.tokenizer.encode_ordinary(text) for text in texts]
        single = [await engine.score("gpt", ids, top=3) for ids in rows]
        return single, await together(*(engine.score("gpt", ids, top=top) for top, ids in enumerate(rows, 1)))

    single, packed = asyncio.run(main())
    for found, wanted in zip(single, expected, strict=True):
        np.testing.assert_allclose(found.log_probabilities, wanted.log_probabilities, atol=1e-6, rtol=0)
        np.testing.assert_array_equal(found.ranks, wanted.ranks)
        np.testing.assert_array_equal(found.top_ids, wanted.top_ids)
    for top, found, wanted in zip((1, 2, 3), packed, expected, strict=True):
        np.testing.assert_allclose(found.log_probabilities, wanted.log_probabilities, atol=1e-4, rtol=0)
        np.testing.assert_array_equal(found.top_ids, wanted.top_ids[:, :top])
        assert np.isnan(found.log_probabilities[0])


def test_other_functions_run_on_the_inference_thread_and_raise_where_they_were_called(engine):
    async def main():
        assert await engine.call(lambda: threading.current_thread().name) == "inference"
        with pytest.raises(ZeroDivisionError):
            await engine.call(lambda: 1 / 0)
        return await tokens_of(engine, [7], 3)

    assert len(asyncio.run(main())) == 3


def test_a_client_that_leaves_frees_its_slot(run):
    """With a single slot, the second request is answered only if the first one ends when its client leaves."""

    async def main(engine):
        endless = engine.generate("gpt", GenerationRequest(prompt_ids=[7], max_tokens=31))
        await anext(endless)
        waiting = asyncio.create_task(tokens_of(engine, [8], 31))
        await asyncio.sleep(0)
        waiting.cancel()
        await endless.aclose()
        return await asyncio.wait_for(tokens_of(engine, [9], 2), 300)

    with Engine({"gpt": run}, slots=1) as engine:
        assert len(asyncio.run(main(engine))) == 2


@pytest.fixture
def turns():
    """Return (pause, wait): pause() blocks the inference thread from one wait() to the next."""
    barrier = threading.Barrier(2, timeout=300)

    def pause():
        barrier.wait()
        barrier.wait()

    return pause, lambda: asyncio.to_thread(barrier.wait)


def test_a_text_that_loses_its_row_and_gets_it_back_in_one_turn_keeps_its_tokens(run, turns):
    """Its row is freed for the text of a client that has left, so it gets two tokens in one turn."""
    pause, wait = turns

    async def text(engine, prompt, owner):
        request = GenerationRequest(prompt_ids=prompt, max_tokens=3, temperature=0)
        return [token.id async for token in engine.generate("gpt", request, owner)]

    async def main(engine):
        pauses = [asyncio.create_task(engine.call(pause)) for _ in range(2)]
        await wait()
        texts = [asyncio.create_task(text(engine, [number], "one")) for number in (7, 8)]
        await asyncio.sleep(0)
        await wait()  # both have a row and a token
        await wait()
        left = asyncio.create_task(text(engine, [9], "other"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await wait()
        return await together(*texts, *pauses)

    with Engine({"gpt": run}, slots=2) as engine:
        one, other, *_ = asyncio.run(main(engine))
    assert (len(one), len(other)) == (3, 3)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_text_that_is_added_during_a_turn_has_all_of_its_tokens(run, tokens):
    """The loop's thread pauses while it adds the text, and the inference thread completes its turn."""
    reached, resumed, passes = threading.Event(), threading.Event(), []

    def pause(*_):
        passes.append(1)
        if len(passes) == 2:  # before this turn reads new prompts
            reached.set()
            assert resumed.wait(60)

    class SlowStreams(dict):
        def __setitem__(self, text, stream):
            if reached.is_set():
                resumed.set()
                time.sleep(0.3)
            super().__setitem__(text, stream)

    async def main(engine):
        long = asyncio.create_task(tokens_of(engine, [7], 31))
        await asyncio.to_thread(reached.wait, 60)
        found, _ = await together(tokens_of(engine, [8], tokens, temperature=0), long)
        return [token.id for token in found]

    with Engine({"gpt": run}) as engine:
        served = engine._served["gpt"]
        served.streams = SlowStreams()
        served.slots.model.output.register_forward_hook(pause)
        assert asyncio.run(asyncio.wait_for(main(engine), 60)) == alone(run, [8], tokens, temperature=0)


def test_calls_whose_callers_have_left_do_not_delay_the_next_one(engine, turns):
    pause, wait = turns
    made = []

    async def write():
        async for token in engine.generate("gpt", GenerationRequest(prompt_ids=[7], max_tokens=30)):
            made.append(token)

    async def main():
        paused = asyncio.create_task(engine.call(pause))
        await wait()
        writing = asyncio.create_task(write())
        left = [asyncio.create_task(engine.call(bool)) for _ in range(30)]
        await asyncio.sleep(0)
        for call in left:
            call.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        answered = asyncio.create_task(engine.call(lambda: len(made)))
        await asyncio.sleep(0)
        await wait()
        return (await together(answered, writing, paused))[0]

    assert asyncio.run(main()) <= 1


def test_one_request_that_fails_does_not_harm_the_others(run, engine):
    def broken():
        raise SystemExit(3)

    async def main():
        with pytest.raises(SystemExit):
            await engine.call(broken)
        return await together(
            tokens_of(engine, [7], 20),
            *(tokens_of(engine, [600], 2) for _ in range(3)),
            return_exceptions=True,
        )

    fine, *errors = asyncio.run(main())
    assert len(fine) == 20
    assert all(isinstance(error, ValueError) for error in errors)


def test_closing_ends_the_work_at_once_and_answers_every_request(run):
    others = set(threading.enumerate())  # such as that of the server that other tests share

    async def main():
        engine = Engine({"gpt": run}, slots=2)
        engine.start()
        streams = [asyncio.create_task(tokens_of(engine, [7], 31)) for _ in range(20)]
        scores = [asyncio.create_task(engine.score("gpt", [7, 8, 9])) for _ in range(20)]
        await asyncio.sleep(0.01)
        begun = time.process_time()
        engine.close()
        took = time.process_time() - begun
        with pytest.raises(EngineClosedError):
            await engine.score("gpt", [7, 8])
        ends = await asyncio.wait_for(asyncio.gather(*streams, *scores, return_exceptions=True), 300)
        return took, ends

    took, ends = asyncio.run(main())
    assert took < 5  # a turn
    assert any(isinstance(end, EngineClosedError) for end in ends)
    assert all(isinstance(end, EngineClosedError) or len(end) == 31 for end in ends[:20])
    assert all(isinstance(end, EngineClosedError | Predictions) for end in ends[20:])
    for thread in {each for each in threading.enumerate() if each.name == "inference"} - others:
        thread.join(300)  # a turn
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        ("gpt", {"prompt_ids": [7] * 30, "max_tokens": 3}, "30 tokens and max_tokens is 3, .* context of 32"),
        ("gpt", {"prompt_ids": [], "max_tokens": 3}, "the prompt has no tokens"),
        ("gpt", {"prompt_ids": [512], "max_tokens": 3}, "id 512 is not in the vocabulary"),
        ("gpt", {"prompt_ids": [7, -1], "max_tokens": 3}, "id -1 is not in the vocabulary"),
        ("bert", {"prompt_ids": [7], "max_tokens": 3}, "the model is an encoder"),
        ("other", {"prompt_ids": [7], "max_tokens": 3}, "no model 'other': the models are gpt, bert"),
        ("gpt", {"prompt_ids": [7], "max_tokens": -1}, "max_tokens is -1"),
        ("gpt", {"prompt_ids": [7], "max_tokens": 3, "temperature": -0.5}, "temperature is -0.5"),
        ("gpt", {"prompt_ids": [7], "max_tokens": 3, "temperature": float("nan")}, "temperature is nan"),
        ("gpt", {"prompt_ids": [7], "max_tokens": 3, "top_k": 0}, "top_k is 0"),
        ("gpt", {"prompt_ids": [7], "max_tokens": 3, "top_p": 1.5}, "top_p is 1.5"),
        ("gpt", {"prompt_ids": [7], "max_tokens": 3, "min_p": 0.0}, "min_p is 0.0"),
        ("gpt", {"prompt_ids": [7], "max_tokens": 3, "seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_generated_is_refused_before_it_waits(run, trained_bert, model, asked, words):
    engine = Engine({"gpt": run, "bert": load_run(trained_bert, device="cpu")})
    with pytest.raises(ValueError, match=words):
        engine.generate(model, GenerationRequest(**asked))


@pytest.mark.parametrize(
    ("model", "ids", "words"),
    [
        ("gpt", [7] * 33, "33 tokens to score, more than the context of 32"),
        ("gpt", [7, 512], "id 512"),
        ("bert", [7, 8], "an encoder"),
    ],
)
def test_what_cannot_be_scored_is_refused(run, trained_bert, model, ids, words):
    engine = Engine({"gpt": run, "bert": load_run(trained_bert, device="cpu")})
    with pytest.raises(ValueError, match=words):
        asyncio.run(engine.score(model, ids))
