"""MLPs as memories: hand-made units, whose triggers and promoted tokens are known, and a recomputation of a run's."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import bytelm
from lm.config import ModelConfig
from lm.introspection.memories import ActivityOfUnits, values_in_vocabulary
from lm.introspection.norms import scale_of
from lm.model import LanguageModel
from pipelines.inspection.own_text import OwnText
from tests.lm.introspection_cases import TINY, randomised

ENTRIES = 10


def memory_model(activation):
    """Return one layer whose unit i fires at token i and promotes token i + 1; unit 3 of a gated MLP is negative."""
    config = ModelConfig(
        vocab_size=ENTRIES, context_length=16, layers=1, width=ENTRIES, heads=1, mlp_width=ENTRIES,
        activation=activation, positions="none", norm="rmsnorm", bias=False, tied_head=False,
    )  # fmt: skip
    model = LanguageModel(config, seed=0).eval()
    block, one = model.stack.blocks[0], torch.eye(ENTRIES)
    with torch.no_grad():
        model.embedding.weight.copy_(one)
        model.head.output_weight.copy_(one)
        block.attention.output.weight.zero_()
        block.mlp.up.weight.copy_(one)
        block.mlp.down.weight.copy_(one.roll(1, 0))
        if block.mlp.gate is not None:
            block.mlp.gate.weight.copy_(one)
            block.mlp.up.weight[3] *= -1
    return model


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_a_unit_has_the_triggers_and_the_value_that_it_was_given(activation):
    model = memory_model(activation)
    activity = ActivityOfUnits(model, 2)
    texts = [torch.arange(ENTRIES)[None], torch.tensor([[4, 4, 3, 9]])]
    for ids in texts:
        activity.read({"ids": ids})
    (found,) = activity.layers
    assert found.tokens == 14 and found.fired.tolist() == [1, 1, 1, 2, 3, 1, 1, 1, 1, 2]
    tokens = torch.cat([ids[0] for ids in texts])
    assert tokens[found.positions[0]].tolist() == list(range(ENTRIES))
    assert set(found.positions[:, 3].tolist()) == {3, 12} and (found.strongest[0, 3] < 0) == (activation == "swiglu")
    values = values_in_vocabulary(model, 0, torch.arange(ENTRIES))
    assert values.argmax(dim=-1).tolist() == [*range(1, ENTRIES), 0]


@pytest.mark.parametrize("options", [{}, {"norm_position": "sandwich"}, {"norm_position": "branch"}])
def test_values_are_what_a_unit_adds_to_the_logits_up_to_scale(options):
    config = replace(TINY, **options)
    model = randomised(config)
    mlp = model.stack.blocks[-1].mlp
    norm = model.stack.final_norm
    with torch.no_grad():
        written = mlp.down.weight[:, 5].double()
        block = model.stack.blocks[-1]
        if block.places.branch:
            branch = block.mlp_branch_norm if block.places.before else block.mlp_norm
            written = (branch(written) - (branch.bias if branch.bias is not None else 0)) * scale_of(branch, written)
        expected = (norm(written) - norm.bias) * scale_of(norm, written) @ model.head.output_weight.T
    torch.testing.assert_close(
        values_in_vocabulary(model, 1, torch.tensor([5]))[0].double(), expected, rtol=1e-4, atol=1e-3
    )
    with pytest.raises(ValueError, match="norm_position 'post'"):
        values_in_vocabulary(randomised(replace(TINY, norm_position="post")), 0, torch.tensor([0]))


def test_the_units_of_a_run_are_those_of_a_trace(trained_gpt):
    run = bytelm.load_run(trained_gpt)
    found = bytelm.inspect(run, instruments="memories", unit=("0.3",), validation_tokens=2000)["memories"][0]
    (picture,) = found.pictures()
    assert picture.panels["agreement"] == {name: [getattr(found.layers[0], name)] for name in ("agreement", "chance")}
    batches = OwnText.of(run).validation(2000)
    ids, targets = (np.concatenate([getattr(b, name) for b in batches]) for name in ("inputs", "targets"))
    assert found.tokens == ids.size
    trace = bytelm.load_run(trained_gpt).trace("x")
    trace.ids = torch.from_numpy(ids)
    pre, post = (trace[f"blocks.0.mlp.{name}"].flatten(0, 1) for name in ("hook_pre", "hook_post"))
    (unit,) = found.units
    assert unit.fires == pytest.approx((pre[:, 3] > 0).double().mean().item())
    best = post[:, 3].abs().topk(5).indices
    assert [one.activation for one in unit.triggers] == pytest.approx(post[best, 3].tolist(), rel=1e-4)
    labels = run.tokenizer.decode([targets.ravel()[best[0]]]).replace(" ", "·").replace("\n", "⏎")
    assert unit.triggers[0].next == labels
    layer = found.layers[0]
    assert layer.units == post.shape[1] and layer.never == int((pre <= 0).all(dim=0).sum())
    strongest = post.abs().argmax(dim=0)
    signs = post[strongest, torch.arange(post.shape[1])].sign()
    with torch.no_grad():
        values = run.model.stack.final_norm.weight * (w := run.model.stack.blocks[0].mlp.down.weight.T)
        values = (
            values
            if run.config.model.norm == "rmsnorm"
            else values - run.model.stack.final_norm.weight * w.mean(1, True)
        )
        top = (values @ run.model.head.output_weight.T * signs[:, None]).argmax(dim=-1)
    after = torch.from_numpy(targets.ravel())[strongest]
    assert layer.agreement == pytest.approx((top == after).double().mean().item(), abs=2 / len(top))
    paired = (top[:, None] == after[None]).double().mean().item()
    assert layer.chance == pytest.approx(paired, abs=2 / len(top))


def test_units_and_models_that_do_not_fit_are_named(trained_gpt, trained_bert):
    run = bytelm.load_run(trained_gpt)
    for words, unit in {"`unit` names 'x'": "x", "but the last unit of the model is 0.127": "1.0"}.items():
        with pytest.raises(ValueError, match=words):
            bytelm.inspect(run, instruments="memories", unit=(unit,))
    with pytest.raises(ValueError, match="memories needs a decoder"):
        bytelm.inspect(trained_bert, instruments="memories")
