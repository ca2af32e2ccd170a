"""Scoring a text while it is edited gives the scores of `bytelm.score_text` and reads little again."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bytelm
from lm.model import LanguageModel
from pipelines.scoring.texts import text_tokens
from pipelines.serving.incremental import IncrementalScorer, RecentTexts
from tests.loaded_runs import variant

WORDS = ("import os\n", "def ", "return", " x", "\n    ", "ï", "漢", "🙂", "<|endoftext|>", "a", " ", "\0")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map("".join)
CHANGES = (
    {},
    {"window": 8},
    {"positions": "alibi"},
    {"positions": "learned", "kv_heads": 1},
    {"value_embeddings": 1, "layers": 2},
)


@pytest.fixture(scope="module")
def runs(trained_gpt):
    """Return decoders with random weights and several architectures, with a context of 32 tokens."""
    run = bytelm.load_run(trained_gpt, device="cpu")

    def varied(change):
        config = replace(run.config, model=replace(run.config.model, **change))
        model = LanguageModel(config.model, seed=1).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2.0)  # so that predictions depend on the input
        return variant(run, config=config, model=model)

    return [run, *map(varied, CHANGES)]


def assert_same(made, expected):
    np.testing.assert_array_equal(made.ids, expected.ids)
    assert made.pieces == expected.pieces
    for name, values in vars(expected.predictions).items():
        if name.startswith("top") or name == "ranks":
            continue  # equal probabilities may swap places
        np.testing.assert_allclose(getattr(made.predictions, name), values, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        made.predictions.top_log_probabilities, expected.predictions.top_log_probabilities, atol=1e-5
    )
    assert (made.before, made.window, made.stride) == (expected.before, expected.window, expected.stride)


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("which", range(1 + len(CHANGES)))
@pytest.mark.parametrize("start", [True, False])
def test_random_edits_give_the_scores_of_the_whole_text(which, start, runs, data):
    run = runs[which]
    if not start:
        run = variant(run, around=replace(run.around, before=()))
    scorer = IncrementalScorer(run, top=5)
    text = ""
    for _ in range(data.draw(st.integers(1, 5))):
        cut, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        text = text[:cut] + data.draw(texts) + text[end:]
        assert_same(scorer.score(text), bytelm.score_text(run, text, top=5, start=start))


def test_typing_at_the_end_reads_only_the_new_tokens(runs):
    scorer = IncrementalScorer(runs[0])
    text = "import os\n"
    scorer.score(text)
    read = scorer.read
    longer = scorer.score(text + "x")
    assert len(longer.ids) <= 20
    assert 1 <= scorer.read - read <= 3
    read = scorer.read
    scorer.score(text)  # deletion
    assert scorer.read == read


def test_a_token_before_the_edit_may_change_with_it(runs):
    """`ret` and `return` share characters, but no token."""
    run = runs[0]
    scorer = IncrementalScorer(run)
    for text in ("    ret", "    retur", "    return", "    return x"):
        assert_same(scorer.score(text), bytelm.score_text(run, text))


def test_scoring_stopped_after_a_window_continues_there(runs):
    run, text = runs[0], "def f(x):\n    return x\n" * 20
    steps = iter((scorer := IncrementalScorer(run)).steps(text_tokens(run, text)))
    assert [next(steps) for _ in range(3)] == [None] * 3
    steps.close()
    assert_same(scorer.score(text), bytelm.score_text(run, text))
    (whole := IncrementalScorer(run)).score(text)
    assert scorer.read == whole.read
    edited = text + "!"
    assert_same(scorer.score(edited), bytelm.score_text(run, edited))


def test_a_newer_version_ends_the_scoring_of_an_older_one(runs):
    run, text = runs[0], "def f(x):\n    return x\n" * 20
    older = (scorer := IncrementalScorer(run)).steps(text_tokens(run, text))
    assert next(older) is None
    newer = scorer.score(text + "!")
    assert list(older) == []
    assert_same(newer, bytelm.score_text(run, text + "!"))
    assert_same(scorer.score(text), bytelm.score_text(run, text))


def test_the_least_recently_used_text_is_dropped(runs):
    recent = RecentTexts(2)
    first, second = recent.scorer("gpt", "a", runs[0]), recent.scorer("gpt", "b", runs[0])
    assert recent.scorer("gpt", "a", runs[0]) is first
    recent.scorer("gpt", "c", runs[0])
    assert recent.scorer("gpt", "a", runs[0]) is first
    assert recent.scorer("gpt", "b", runs[0]) is not second


def test_two_models_do_not_share_a_text(runs):
    recent = RecentTexts()
    assert recent.scorer("gpt", "a", runs[0]) is not recent.scorer("other", "a", runs[0])
