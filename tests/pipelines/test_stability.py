"""Runs roll back from losses and gradients that are not finite, float16 scales its loss, and training flushes
subnormal numbers, which are slow on a CPU, to zero."""

import json
import math
import os
import signal
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lm.optim.optimizers import Optimizers
from pipelines import machine
from pipelines.machine import choose_machine
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.training.loop import Trainer
from pipelines.training.parallel import OneProcess
from pipelines.training.stability import LossScale
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import (
    after_each_step,
    assert_same_run,
    in_order,
    metrics_of,
    stop_after,
    watch_batches,
    weights_of,
    with_train,
)


def poison(monkeypatch, blocks):
    """Make the training loss of these blocks (rows of token ids) nan; return the rows that training reads, in order."""
    read = []
    bad = {tuple(row) for row in blocks}

    def is_bad(rows, training):
        read.extend(rows if training else [])
        return training and any(tuple(row) in bad for row in rows)

    watch_batches(monkeypatch, is_bad)
    return read


@pytest.fixture
def recipe(small_recipe):
    return with_train(small_recipe, nonfinite="rollback")


def test_a_run_rolls_back_to_its_checkpoint_and_skips_the_batches_that_made_it_fail(
    tmp_path, recipe, dataset_folder, monkeypatch, printed
):
    order, out = in_order(dataset_folder, 400 + 32 + 8), tmp_path / "gpt"
    # A step is 8 blocks, with a checkpoint every 10 steps. One run fails at step 24, one before the first checkpoint.
    read = poison(monkeypatch, [order[5], order[8 + 23 * 8 + 3]])
    pretrain(recipe, data=dataset_folder, out=out)
    said = " ".join(printed.readouterr().out.split())
    assert "loss of step 1 is not finite, at a learning rate of 0.0005: back to step 0 and past the 8 blocks" in said
    assert "back to step 20 and past the 32 blocks read since (rollback 2 of at most 10)" in said
    assert read == order
    lines = metrics_of(out)
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(5, 51, 5))
    assert [line["step"] for line in lines if line["split"] == "validation"] == list(range(0, 51, 10))
    assert lines[-1]["tokens"] == recipe.train.tokens
    assert [line.get("rollbacks") for line in lines if line["split"] == "train"] == [1] * 4 + [2] * 6
    state = json.loads((latest_checkpoint(out) / "state.json").read_text())
    assert (state["consumed"], state["rollbacks"]) == (440, 2)


@pytest.mark.slow
def test_a_rolled_back_run_learns_the_same_as_a_run_without_the_skipped_batches(
    tmp_path, recipe, dataset_folder, monkeypatch
):
    """The run skips the batches of the first step. The other run starts to read after them."""
    order = in_order(dataset_folder, 8)
    with monkeypatch.context() as patch:
        poison(patch, order[:1])
        pretrain(recipe, data=dataset_folder, out=tmp_path / "rolled")
    init = Trainer.__init__

    def later(self, *arguments):
        init(self, *arguments)
        self.at.consumed = 8

    monkeypatch.setattr(Trainer, "__init__", later)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "later")
    rolled, plain = weights_of(tmp_path / "rolled"), weights_of(tmp_path / "later")
    assert all(torch.equal(rolled[name], plain[name]) for name in plain)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_run_that_rolled_back_resumes_exactly(how, tmp_path, recipe, dataset_folder, monkeypatch):
    recipe = with_train(recipe, optimizer="muon", average=0.9)
    poison(monkeypatch, [in_order(dataset_folder, 200)[190]])
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")

    def die(trainer):
        if trainer.at.step == 22 and trainer.at.rollbacks:
            if how == "killed":
                raise RuntimeError("as if the machine died")
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        after_each_step(patch, die)
        try:
            with pytest.raises(KeyboardInterrupt):
                pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
        except RuntimeError:
            assert how == "killed"
    assert latest_checkpoint(tmp_path / "gpt").name == f"step-00000{20 if how == 'killed' else 22}"
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert_same_run(tmp_path / "gpt", tmp_path / "whole")


@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
def test_an_error_distinguishes_a_gradient_that_is_not_finite_from_a_loss(
    tmp_path, small_recipe, dataset_folder, monkeypatch, printed, policy
):
    clip, steps = OneProcess.clip, []

    def overflowing(self, parameters, limit):
        steps.append(len(steps))
        return clip(self, parameters, limit) * (math.inf if steps[-1] == 23 else 1.0)

    monkeypatch.setattr(OneProcess, "clip", overflowing)
    recipe = with_train(small_recipe, nonfinite=policy)
    if policy == "stop":
        with pytest.raises(FloatingPointError, match="the gradient of step 24 is not finite"):
            pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
        assert latest_checkpoint(tmp_path / "gpt").name == "step-0000020"
        return
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    said = " ".join(printed.readouterr().out.split())
    assert "the gradient of step 24 is not finite" in said
    assert ("back to step 20" in said, "skipped" in said) == (policy == "rollback", policy == "skip")
    assert metrics_of(tmp_path / "gpt")[-1]["tokens"] == recipe.train.tokens


def test_a_run_that_fails_after_every_rollback_stops_and_keeps_its_checkpoint(
    tmp_path, recipe, dataset_folder, monkeypatch
):
    order = in_order(dataset_folder, 400)
    poison(monkeypatch, order[15 * 8 :])
    with pytest.raises(FloatingPointError, match=r"step 11 is not finite.*after 3 rollbacks: try a lower `train.lr`"):
        pretrain(with_train(recipe, max_rollbacks=3), data=dataset_folder, out=tmp_path / "gpt")
    assert [folder.name for folder in checkpoint_folders(tmp_path / "gpt")] == ["step-0000000", "step-0000010"]
    assert all(weight.isfinite().all() for weight in weights_of(tmp_path / "gpt").values())


def test_a_validation_that_is_not_finite_rolls_back_too(tmp_path, recipe, dataset_folder, monkeypatch, printed):
    steps, failures = [], []

    def fails_once(rows, training):
        fails = not training and len(steps) == 30 and not failures
        failures.extend([True] * fails)
        return fails

    after_each_step(monkeypatch, lambda trainer: steps.append(trainer.at.step))
    watch_batches(monkeypatch, fails_once)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    said = " ".join(printed.readouterr().out.split())
    assert "the validation loss after step 30 is not finite: back to step 20 and past the 80 blocks" in said
    steps = [line["step"] for line in metrics_of(tmp_path / "gpt") if line["split"] == "validation"]
    assert steps == list(range(0, 51, 10))


def test_weights_that_are_not_finite_make_no_checkpoint(tmp_path, small_recipe, dataset_folder, monkeypatch):
    step, taken = Optimizers.step, []

    def overflows(self):
        step(self)
        taken.append(True)
        if len(taken) == 13:
            with torch.no_grad():
                self.param_groups[0]["params"][0].view(-1)[3] = math.inf

    monkeypatch.setattr(Optimizers, "step", overflows)
    often = with_train(small_recipe, checkpoint_every_tokens=256)
    with pytest.raises(FloatingPointError, match=r"the weights \S+ after step 13 are not finite: try"):
        pretrain(often, data=dataset_folder, out=tmp_path / "gpt")
    assert latest_checkpoint(tmp_path / "gpt").name == "step-0000012"


def test_the_scale_falls_until_float16_holds_the_gradient_and_no_further():
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizers = SimpleNamespace(parts=[torch.optim.AdamW([parameter]), torch.optim.AdamW([torch.nn.Parameter()])])
    scale, overflows = LossScale(torch.float16, torch.device("cpu")), []
    for _ in range(15):
        parameter.grad = None
        loss = (1000 * parameter.half()).sum().float()
        (loss * scale.factor()).backward()
        scale.unscale(optimizers)
        overflows.append(scale.overflowed(float(loss.detach()), float(parameter.grad.norm())))
    assert overflows == [True] * 10 + [False] * 5  # 2^6 * 1000 is the largest below 65,504
    assert scale.metrics(10) == {"loss_scale": 64.0, "overflows": 10}
    assert parameter.grad.tolist() == [1000.0, 1000.0]


@pytest.mark.parametrize(("loss", "start"), [(math.nan, 2.0**16), (1.0, 1.0)])
def test_a_failure_at_every_scale_is_no_overflow_and_does_not_change_the_scale(loss, start):
    """Either the loss is not finite, or the gradient is not finite at a scale of 1."""
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    optimizers = SimpleNamespace(parts=[torch.optim.AdamW([parameter])])
    scale = LossScale(torch.float16, torch.device("cpu"))
    scale.restore(scale.as_state() | {"scale": start})
    (parameter.sum() * math.inf * scale.factor()).backward()
    scale.unscale(optimizers)
    assert not scale.overflowed(loss, math.inf)
    assert scale.as_state()["scale"] == start


@pytest.mark.slow
def test_float16_trains_like_float32(tmp_path, small_recipe, dataset_folder, trained_gpt):
    recipe = with_train(small_recipe, dtype="float16")
    pretrain(recipe, data=dataset_folder, out=tmp_path / "half")
    ends = [metrics_of(run)[-1]["loss"] for run in (tmp_path / "half", trained_gpt)]
    assert ends[0] == pytest.approx(ends[1], abs=0.02)
    line = [line for line in metrics_of(tmp_path / "half") if line["split"] == "train"][-1]
    assert (line["loss_scale"], line["overflows"]) == (2.0**16, 0)


@pytest.mark.slow
def test_overflows_are_counted_separately_and_the_scale_is_resumed(tmp_path, small_recipe, dataset_folder, monkeypatch):
    """The scale starts far too high and doubles every fourth step, so overflows come and go. They do not stop the run,
    although the recipe stops at losses that are not finite."""
    often = partial(torch.amp.GradScaler, init_scale=2.0**32, growth_interval=4)
    monkeypatch.setattr(torch.amp, "GradScaler", often)
    recipe = with_train(small_recipe, dtype="float16", optimizer="muon", average=0.9)
    assert recipe.train.nonfinite == "stop"
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")
    lines = [line for line in metrics_of(tmp_path / "whole") if line["split"] == "train"]
    assert 3 <= lines[0]["overflows"] < lines[-1]["overflows"] < 30
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert len({line["loss_scale"] for line in lines}) > 1
    with monkeypatch.context() as patch:
        stop_after(23, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert_same_run(tmp_path / "gpt", tmp_path / "whole")


@pytest.mark.parametrize(
    ("capability", "half", "dtype"),
    [((7, 5), True, "float16"), ((7, 0), True, "float16"), ((6, 1), True, "float32"), ((7, 5), False, "float32")],
)
def test_a_gpu_without_bfloat16_trains_in_float16_if_it_has_matrix_units(monkeypatch, capability, half, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    chosen = choose_machine("auto", "auto", half)
    assert (chosen.device.type, chosen.dtype_name) == ("cuda", dtype)
    assert chosen.why.startswith(f"Tesla T4, {dtype}")
    assert chosen.why.endswith("since it has no bfloat16")
    assert choose_machine("auto", "bfloat16", half).dtype == torch.bfloat16


def test_a_gpu_with_bfloat16_trains_in_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    chosen = choose_machine("auto", "auto", half=True)
    assert (chosen.device.type, chosen.dtype, chosen.why) == ("cuda", torch.bfloat16, "NVIDIA H200, bfloat16")


@pytest.mark.parametrize(("fast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_an_apple_gpu_trains_in_bfloat16_if_it_multiplies_it(monkeypatch, fast, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    ones = torch.ones

    def made(*shape, dtype, device):
        assert device.type == "mps"
        if not fast:
            raise TypeError("BFloat16 is not supported on MPS")
        return ones(*shape, dtype=dtype)

    monkeypatch.setattr(torch, "ones", made)
    chosen = choose_machine("auto", "auto", half=True)
    assert (chosen.device.type, chosen.dtype) == ("mps", dtype)
    assert chosen.why == f"Apple GPU, {chosen.dtype_name}"
    assert choose_machine("mps", "float32").dtype == torch.float32


def test_an_apple_gpu_is_left_out_for_what_it_lacks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_machine("auto", "float32").device.type == "mps"
    assert choose_machine("auto", "float32", needs="float64").device.type == "cpu"
    with pytest.raises(ValueError, match="this needs float64, which Apple GPUs lack: give cpu or auto"):
        choose_machine("mps", "float32", needs="float64")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert choose_machine("auto", "float32").device.type == "cuda"


def test_an_apple_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="PyTorch sees no Apple GPU here"):
        choose_machine("mps")


def test_a_machine_without_memory_for_the_measurement_trains_without_the_figure(monkeypatch, printed):
    def full(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    before = choose_machine("cpu", "float32")
    machine.measured_flops.cache_clear()
    monkeypatch.setattr(torch, "randn", full)
    after = machine.with_peaks(before)
    assert after == before and after.utilisation(1e9) == {}
    said = printed.readouterr()
    assert (said.out + said.err).count("too little free memory to measure its speed") == 1


@pytest.mark.parametrize(("times", "dtype"), [(3.0, torch.bfloat16), (1.0, torch.float32), (0.1, torch.float32)])
def test_a_cpu_trains_in_bfloat16_if_it_is_measured_to_be_faster(monkeypatch, times, dtype):
    monkeypatch.setattr(machine, "matmul_flops", lambda of: (times if of == torch.bfloat16 else 1.0) * 90e9)
    assert choose_machine("cpu").dtype == dtype
    assert choose_machine("cpu", "float32").dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("share", "warned"), [(0.1, True), (0.5, True), (0.9, False), (2.0, False)])
def test_a_dtype_that_a_cpu_computes_slowly_is_used_with_a_warning(monkeypatch, dtype, share, warned):
    monkeypatch.setattr(machine, "matmul_flops", lambda of: (1.0 if of == torch.float32 else share) * 90e9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert choose_machine("cpu", dtype).dtype_name == dtype
        assert choose_machine("cpu", "float32").dtype_name == "float32"
    said = [str(each.message) for each in caught]
    measured = f"{90 * share:.3g} GFLOP/s"
    slower = f"matrix products in {dtype} take {1 / share:.1f} times as long as in float32 on this CPU "
    slower += f"(measured {measured} against 90 GFLOP/s, a core): give float32 or auto"
    assert said == ([slower] if warned else [])


def test_a_busy_machine_does_not_train_in_a_dtype_that_it_emulates(monkeypatch):
    """On a busy machine, cores that share a product wait for each other."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)

    def flops(dtype):
        return 2e9 if dtype == torch.bfloat16 else 90e9 if threads[-1:] == [1] else 0.3e9

    monkeypatch.setattr(machine, "matmul_flops", flops)
    chosen = choose_machine("cpu")
    assert chosen.dtype == torch.float32
    assert chosen.why.endswith("float32 (measured 2 GFLOP/s in bfloat16, 90 in float32, a core)")
    assert threads[-1] == 2


@pytest.mark.slow
def test_a_run_can_switch_to_rollback_when_it_resumes(tmp_path, small_recipe, recipe, dataset_folder, monkeypatch):
    """The run continues from its last checkpoint, past the batches that stopped it."""
    poison(monkeypatch, [in_order(dataset_folder, 200)[190]])
    with pytest.raises(FloatingPointError, match="of step 24 is not finite"):
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert metrics_of(tmp_path / "gpt")[-1]["tokens"] == recipe.train.tokens


@pytest.mark.slow
def test_the_rollback_policy_changes_nothing_if_all_losses_are_finite(tmp_path, recipe, dataset_folder, trained_gpt):
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert_same_run(tmp_path / "gpt", trained_gpt)


def test_subnormals_are_zero_in_training_and_its_threads_but_not_afterwards(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    subnormal = torch.full((8,), 1e-39)
    if not torch.set_flush_denormal(False):
        pytest.skip("torch cannot choose here what becomes of subnormals")

    def left():
        return int((subnormal * 1.5).count_nonzero())

    found = set()

    def look(trainer):
        with ThreadPoolExecutor(1) as threads:
            found.update((left(), threads.submit(left).result()))

    after_each_step(monkeypatch, look)
    assert left() == 8
    pretrain(with_train(small_recipe, tokens=2560), data=dataset_folder, out=tmp_path / "gpt")
    assert found == {0}
    assert left() == 8
