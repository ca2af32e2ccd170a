"""`run.compare`: how two readings of a word diverge."""

from dataclasses import replace

import pytest
import torch

import bytelm
from lm.introspection.comparison import compare_readings
from tests.lm.introspection_cases import PEERS, TINY, copying_induction_model, randomised, some_ids


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "llama"])
def test_the_parts_of_each_layer_add_up_to_its_difference(kind):
    model = randomised(replace(TINY, **PEERS[kind]))
    first, second = some_ids(TINY)
    second[6] = first[4]
    start, *layers = compare_readings(model, first, 4, second, 6)
    assert not start.parts
    for layer in layers:
        assert layer.distance > 0 and len(layer.parts) == 1 + 4 + 1
        assert sum(layer.parts.values()) == pytest.approx(1, abs=1e-9)


def test_equal_readings_have_no_distance():
    model = randomised(TINY)
    ids = some_ids(TINY)[0]
    for layer in compare_readings(model, ids, 4, ids, 4):
        assert layer.distance == pytest.approx(0, abs=1e-12) and not layer.parts


def test_the_head_of_the_previous_token_separates_two_readings_and_the_induction_head_follows():
    model = copying_induction_model()
    first, second = torch.tensor([3, 8, 12, 16, 4, 8]), torch.tensor([3, 8, 17, 16, 4, 8])
    start, before, after = compare_readings(model, first, 5, second, 5)
    assert start.distance == pytest.approx(0, abs=1e-6) and before.distance == pytest.approx(0, abs=1e-4)
    assert after.distance > 0.1 and max(after.parts, key=after.parts.get) == "head 1.0"
    noted = compare_readings(model, first, 3, second, 3)[1]  # the token after the one that differs
    assert max(noted.parts, key=noted.parts.get) == "head 0.0" and noted.parts["head 0.0"] == pytest.approx(1, abs=0.1)


def test_the_last_token_of_the_word_is_compared(trained_gpt):
    run = bytelm.load_run(trained_gpt)
    found = run.compare("import os, sys", "def os(os", word="os")
    for text, position in zip(found.texts, found.positions, strict=True):
        ids = run.ids(text)
        decoded = run.tokenizer.decode(ids[: position + 1])
        assert decoded.count("os") == text.count("os") > run.tokenizer.decode(ids[:position]).count("os")
    assert len(found.layers) == 2 and found.parts()[0].rows[0][0] == "embedding" and found.pictures()[0].figure().axes
    with pytest.raises(ValueError, match="'def path' does not contain 'os'"):
        run.compare("import os", "def path", word="os")


@pytest.mark.parametrize(("model", "word"), [("trained_gpt", "text"), ("trained_bert", "cls")])
def test_the_spelling_of_a_start_token_is_no_occurrence_of_a_word(model, word, request):
    run = bytelm.load_run(request.getfixturevalue(model))
    found = run.compare(f"import {word}", f"def {word}", word=word)
    for text, position in zip(found.texts, found.positions, strict=True):
        assert run.tokenizer.decode(run.ids(text)[1 : position + 1]).strip().endswith(text)
