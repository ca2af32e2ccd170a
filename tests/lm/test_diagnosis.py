"""The health of models whose scores, units and gradients are known."""

from dataclasses import replace

import pytest
import torch

from lm.introspection.diagnosis import diagnose, effective_rank
from lm.model import LanguageModel
from tests.lm.introspection_cases import TINY, copying_induction_model, randomised, some_ids


def reading(config, shape=(2, 11)):
    ids = some_ids(config, shape)
    return {"ids": ids[:, :-1]}, ids[:, 1:].flatten(), torch.ones(ids[:, 1:].numel())


def test_the_effective_rank_counts_equal_singular_values():
    directions = torch.linalg.qr(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)))[0]
    assert effective_rank(3 * directions) == pytest.approx(4, rel=1e-6)
    assert effective_rank(torch.ones(7, 3)) == pytest.approx(1, rel=1e-3)
    assert effective_rank(torch.zeros(7, 3)) == 0


def test_the_head_of_the_previous_token_is_saturated_and_uniform_heads_are_not():
    model = copying_induction_model()
    found = diagnose(model, [reading(model.config, (1, 9))])
    first, second = found.layers
    # Head 0.0 is sharp in every row; head 0.1 too, if the token did not occur before.
    assert 0.5 <= first.saturated <= 1.0 and first.score_deviation > 1
    assert second.saturated <= 0.5 and first.dead_units is None and found.output_rank is None
    with torch.no_grad():
        for block in model.stack.blocks:
            block.mixer.query.weight.zero_()
    uniform = diagnose(model, [reading(model.config, (1, 9))])
    assert [(layer.score_deviation, layer.saturated) for layer in uniform.layers] == [(0, 0), (0, 0)]


def test_the_induction_head_saturates_where_the_text_repeats():
    """In n distinct tokens and their repetition, the rows that are saturated can be counted."""
    model, n = copying_induction_model(), 7
    width = model.config.width

    def layers(ids):
        reading = {"ids": ids[None, :-1]}, ids[1:], torch.ones(len(ids) - 1)
        return diagnose(model, [reading]).layers

    once, next_one = torch.arange(n), torch.tensor([n])
    first, second = layers(torch.cat((once, next_one)))
    # Each head of layer 0 scores one key 40 sqrt(width / 2), as the norm divides by sqrt(2 / width), and the others 0.
    deviations = [40 * (width / 2) ** 0.5 * t**0.5 / (t + 1) for t in range(1, n)]
    assert first.score_deviation == pytest.approx(sum(deviations) / (n - 1), rel=1e-3)
    assert first.saturated == 1 and second.saturated == 0
    assert second.score_deviation == pytest.approx(0, abs=1e-6)
    first, second = layers(torch.cat((once, once, next_one)))
    rows = 2 * n - 1  # with several keys
    # Head 1.0 in the second copy, but for its first token, which position 0 notes too; head 1.1 nowhere.
    assert second.saturated == pytest.approx((n - 1) / (2 * rows))
    assert first.saturated == pytest.approx((rows + n - 1) / (2 * rows))  # head 0.1 has two equal keys in the second


def test_the_numbers_are_those_of_the_definitions():
    model = randomised(replace(TINY, activation="relu"))
    with torch.no_grad():
        model.stack.blocks[1].mlp.up.weight[:8] = 0  # eight dead units
        model.stack.blocks[1].mlp.up.bias[:8] = -1
    first, second = reading(TINY), reading(TINY, (3, 7))
    found = diagnose(model, [first, second])
    values = {}
    for inputs, targets, weights in (first, second):
        from lm.introspection.trace import Trace

        trace = Trace(model, inputs["ids"])
        for layer in range(2):
            scores = trace[f"blocks.{layer}.attn.hook_attn_scores"]
            for head in scores.flatten(0, 1):
                for row, query in enumerate(head[1:], 1):
                    values.setdefault(f"sd {layer}", []).append(query[: row + 1].std(correction=0).item())
                    saturated = query[: row + 1].softmax(0).max() > 0.99
                    values.setdefault(f"saturated {layer}", []).append(float(saturated))
            for x in trace[f"blocks.{layer}.hook_resid_post"].flatten(0, 1):
                values.setdefault(f"stream {layer}", []).append(x.var(correction=0).item())
        loss = model.loss(model(**inputs).flatten(0, 1), targets, weights)
        (loss / (20 + 18)).backward()
    for number, layer in enumerate(found.layers):
        for name, value in {
            "sd": layer.score_deviation,
            "saturated": layer.saturated,
            "stream": layer.stream_variance,
        }.items():
            mean = sum(values[f"{name} {number}"]) / len(values[f"{name} {number}"])
            assert value == pytest.approx(mean, rel=1e-6)
        gradients = [p.grad for p in model.stack.blocks[number].parameters()]
        norm = sum(g.square().sum() for g in gradients).sqrt().item()
        assert layer.gradient_norm == pytest.approx(norm, rel=1e-5)
    assert found.embedding_gradient_norm == pytest.approx(model.embedding.weight.grad.norm().item(), rel=1e-5)
    assert found.layers[1].dead_units >= 8 / model.stack.blocks[1].mlp.up.weight.shape[0] - 1e-9


def test_a_diagnosis_leaves_no_hooks_and_no_gradients():
    model = LanguageModel(TINY)
    diagnose(model, [reading(TINY)])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
