"""Groups of parameters, the optimizers over them, schedules, and averages of weights."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.config import ModelConfig
from lm.model import LanguageModel
from lm.optim.adamw import AdamW, has_fused_adamw
from lm.optim.averaging import WeightAverage
from lm.optim.muon import Muon, orthogonal
from lm.optim.optimizer import Execution
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers, partition
from lm.optim.schedules import (
    batch_size,
    ends_at_peak,
    inverse_sqrt,
    multiplier,
    sequence_length,
    trapezoid,
    warmup_cosine,
    weight_decay_multiplier,
)

SMALL = ModelConfig(vocab_size=50, layers=2, width=16, heads=2, positions="learned")


def names_of(model, parameters):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in parameters}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder-decoder"])
def test_groups_partition_the_parameters_and_only_matrices_decay(architecture, kind):
    config = ModelConfig(vocab_size=50, layers=2, width=16, heads=2, architecture=architecture, positions="learned")
    model = LanguageModel(config, seed=0)
    groups = {
        optimizer: [names_of(model, group) for group in both] for optimizer, both in partition(model, kind).items()
    }
    (decayed, kept), (hidden, none) = groups[AdamW], groups.get(Muon, (set(), set()))
    assert not none
    assert hidden | decayed | kept == {name for name, _ in model.named_parameters()}
    assert not (hidden & decayed or hidden & kept or decayed & kept)
    assert all("norm" in name or name.endswith("bias") for name in kept)
    assert "embedding.weight" in decayed
    assert all(".blocks." in name and name.endswith("weight") for name in hidden)
    assert any("mlp.up" in name for name in (hidden if kind == "muon" else decayed))


@pytest.mark.parametrize(("device", "fused"), [("cpu", True), ("meta", False)])
def test_adamw_is_fused_where_torch_steps_it(device, fused):
    """torch makes a fused AdamW for any device, and refuses some at the first step; "meta" is one of these."""
    model = LanguageModel(SMALL, seed=0).to(device)
    optimizers = build_optimizers(model, OptimizerSettings())
    assert [bool(group["fused"]) for group in optimizers.param_groups] == [fused] * 2
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step()
    assert all(state["step"] == 1 for _, state in optimizers.state() if not state["step"].is_meta)


def test_adamw_is_not_fused_for_a_dtype_without_a_kernel():
    assert has_fused_adamw(torch.device("cpu"), torch.bfloat16)
    assert not has_fused_adamw(torch.device("cpu"), torch.float8_e4m3fn)


def test_first_adamw_step_has_the_size_of_the_learning_rate_and_decays_matrices():
    """Adam's first step is lr * sign(gradient). Decay also subtracts lr * weight_decay of each matrix."""
    model = LanguageModel(SMALL, seed=0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    build_optimizers(model, OptimizerSettings(lr=0.01, weight_decay=0.5)).step()
    for name, parameter in model.named_parameters():
        decay = 0.5 if parameter.ndim >= 2 else 0.0
        expected = before[name] * (1 - 0.01 * decay) - 0.01
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-6, rtol=0)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 24), columns=st.integers(1, 24), seed=st.integers(0, 2**32))
def test_orthogonal_keeps_singular_vectors_and_brings_singular_values_near_one(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.randn(3, rows, columns, generator=generator)
    got = orthogonal(matrices).double()
    u, s, vt = torch.linalg.svd(matrices.double(), full_matrices=False)
    inside = u.mT @ got @ vt.mT
    values = inside.diagonal(dim1=-2, dim2=-1)
    large = s > 0.02 * s[:, :1]  # smaller singular values need more than five rounds
    assert ((values > 0.5) & (values < 1.4))[large].all()
    assert (inside - torch.diag_embed(values)).abs().max() < 0.15


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 24), longer=st.integers(2, 6), smallest=st.floats(-8, 0), seed=st.integers(0, 2**32))
def test_long_matrices_equal_five_explicit_newton_schulz_rounds(rows, longer, smallest, seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, rows, longer * rows, generator=generator, dtype=torch.float64)
    u, _, vt = torch.linalg.svd(drawn, full_matrices=False)
    matrices = u * torch.logspace(0, smallest, rows, dtype=torch.float64) @ vt
    expected = matrices / matrices.norm(dim=(-2, -1), keepdim=True)
    for _ in range(5):
        gram = expected @ expected.mT
        expected = 3.4445 * expected - 4.775 * gram @ expected + 2.0315 * gram @ gram @ expected
    for got in (orthogonal(matrices.float(), torch.float32), orthogonal(matrices.mT.float(), torch.float32).mT):
        assert torch.linalg.matrix_norm(got.double() - expected, 2).max() < 0.01
    torch.testing.assert_close(orthogonal(matrices, torch.float64), expected)


@pytest.mark.parametrize("narrow", [True, False], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(24, 24), (24, 8), (8, 24)])
def test_muon_takes_the_same_steps_as_that_of_torch(shape, narrow):
    torch.manual_seed(0)
    start, gradients = torch.randn(2, *shape), torch.randn(6, 2, *shape)
    ours = [torch.nn.Parameter(matrix.clone()) for matrix in start]
    theirs = [torch.nn.Parameter(matrix.clone()) for matrix in start]
    options = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    optimizers = (
        Muon(ours, **options, execution=Execution(narrow=narrow)),
        torch.optim.Muon(theirs, **options, adjust_lr_fn="match_rms_adamw"),
    )
    for step in gradients:
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    for mine, peer in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, peer, atol=5e-3, rtol=0)  # bfloat16 rounds differently in a batch
        assert (mine - start[0]).abs().max() > 0.05


def test_muon_refuses_parameters_that_are_not_matrices():
    with pytest.raises(ValueError, match=r"matrices.*\(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1)


def test_every_constant_of_the_settings_reaches_its_optimizer():
    rates, betas = {"lr": 0.01, "muon_lr": 0.02}, {"beta1": 0.8, "beta2": 0.97}
    settings = OptimizerSettings(kind="muon", **rates, **betas, eps=1e-6, muon_momentum=0.9, weight_decay=0.3)
    adamw, muon = build_optimizers(LanguageModel(SMALL, seed=0), settings).parts
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.3, 0.0]
    for group in adamw.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.01, (0.8, 0.97), 1e-6)
    for group in muon.param_groups:
        assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.02, 0.9, 0.3)


def test_the_schedule_multiplies_the_peak_of_each_group():
    optimizers = build_optimizers(LanguageModel(SMALL, seed=0), OptimizerSettings(kind="muon", lr=0.01, muon_lr=0.02))
    optimizers.schedule(0.5, weight_decay=0.1)
    assert [group["lr"] for group in optimizers.param_groups] == pytest.approx([0.005, 0.005, 0.01])
    assert [group["weight_decay"] for group in optimizers.param_groups] == pytest.approx([0.01, 0.0, 0.01])


def test_cosine_rises_linearly_and_falls_as_half_a_cosine():
    def at(step):
        return warmup_cosine(step, warmup=10, total=110, final=0.1)

    assert [at(step) for step in range(10)] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert at(10) == 1.0
    assert at(60) == pytest.approx(0.55)
    assert at(35) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert at(110) == at(500) == pytest.approx(0.1)


def test_trapezoid_rises_linearly_stays_and_falls_linearly():
    def at(step):
        return trapezoid(step, warmup=10, decay=40, total=100, final=0.2)

    assert [at(step) for step in range(10)] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert {at(step) for step in range(10, 61)} == {1.0}
    assert at(80) == pytest.approx(0.6)
    assert at(100) == at(1000) == pytest.approx(0.2)


def test_inverse_sqrt_halves_every_fourfold_step():
    assert inverse_sqrt(99, warmup=100) == inverse_sqrt(100, warmup=100) == 1.0
    assert inverse_sqrt(400, warmup=100) == pytest.approx(0.5)
    assert inverse_sqrt(1600, warmup=100) == pytest.approx(0.25)
    assert [inverse_sqrt(step, warmup=0) for step in (0, 1, 4)] == [1.0, 1.0, 0.5]


KINDS = st.sampled_from(["cosine", "trapezoid", "inverse_sqrt"])


@given(kind=KINDS, total=st.integers(1, 300), warmup=st.integers(0, 300), final=st.floats(0, 1), share=st.floats(0, 1))
def test_schedules_stay_within_the_peak_and_never_rise_after_the_warm_up(kind, total, warmup, final, share):
    warmup = min(warmup, total - 1)
    options = {"warmup": warmup, "total": total, "final": final, "decay_share": share}
    values = [multiplier(kind, step, **options) for step in range(total)]
    assert all(0 <= value <= 1 for value in values)
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    assert values[warmup] == 1.0 or total - warmup < 2 or kind == "trapezoid"


@given(kind=KINDS, total=st.integers(2, 300), warmup=st.integers(0, 300), batch=st.integers(1, 10**6), data=st.data())
def test_a_schedule_in_tokens_equals_the_schedule_in_steps(kind, total, warmup, batch, data):
    step = data.draw(st.integers(0, total))
    in_steps = multiplier(kind, step, warmup=warmup, total=total)
    in_tokens = multiplier(kind, step * batch, warmup=warmup * batch, total=total * batch, stride=batch)
    assert in_tokens == pytest.approx(in_steps, rel=1e-9)


@given(total=st.integers(1, 3000), warmup=st.integers(0, 4000), batch=st.integers(1, 400))
def test_a_warm_up_that_leaves_no_step_to_fall_ends_at_the_peak(total, warmup, batch):
    within = min(warmup, total)
    rates = [
        warmup_cosine(done, warmup=within, total=total, stride=batch, final=0.0) for done in range(0, total, batch)
    ]
    assert ends_at_peak(warmup=warmup, total=total, stride=batch) == (warmup > 0 and rates[-1] == 1.0)


@pytest.mark.parametrize(("final", "middle"), [(0.0, 0.5), (10.0, 5.5)])
def test_weight_decay_reaches_its_end_linearly_or_as_half_a_cosine(final, middle):
    def at(kind, done):
        return weight_decay_multiplier(kind, done, total=400, final=final)

    assert [at("constant", done) for done in (0, 200, 400)] == [1.0, 1.0, 1.0]
    assert [at("linear", done) for done in (0, 200, 400, 900)] == pytest.approx([1.0, middle, final, final])
    assert [at("cosine", done) for done in (0, 200, 400, 900)] == pytest.approx([1.0, middle, final, final])
    assert at("linear", 100) == pytest.approx(1 + (final - 1) / 4)
    assert at("cosine", 100) == pytest.approx(final + (1 - final) * (1 + math.cos(math.pi / 4)) / 2)


def test_the_batch_size_grows_linearly_and_then_stays():
    sizes = [batch_size(done, start=100, full=500, warmup=1000) for done in (0, 250, 500, 1000, 5000)]
    assert sizes == [100, 200, 300, 500, 500]
    assert batch_size(0, start=500, full=500, warmup=0) == 500


def test_the_average_of_weights_forgets_the_start_and_restores_the_trained_weights():
    model = LanguageModel(SMALL, seed=0)
    average, history = WeightAverage(model, decay=0.9), []
    for step in range(200):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.sin(step))
        history.append(math.sin(step))
        average.update(model)
    expected = 0.0
    for step, value in enumerate(history):
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    with average.applied(model):
        assert all(torch.allclose(p, torch.tensor(expected), atol=1e-4) for p in model.parameters())
    assert all(torch.equal(p, torch.full_like(p, history[-1])) for p in model.parameters())


def test_sequences_double_from_the_shortest_halving_to_the_whole_block():
    def lengths(shortest, full):
        return [sequence_length(done, shortest=shortest, full=full, warmup=6) for done in (0, 1, 2, 3, 4, 5, 6, 7)]

    assert lengths(64, 256) == [64, 64, 64, 128, 128, 128, 256, 256]
    assert lengths(60, 256) == lengths(64, 256)
    assert lengths(16, 96) == [24, 24, 24, 48, 48, 48, 96, 96]
    for whole in ((0, 256), (200, 256), (512, 256), (2, 33)):
        assert lengths(*whole) == [whole[1]] * 8
    assert sequence_length(0, shortest=8, full=32, warmup=0) == 32
