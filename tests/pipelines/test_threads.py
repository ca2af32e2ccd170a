"""Training with several row threads on a CPU equals training with one thread."""

import os
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lm.config import ModelConfig
from lm.model import LanguageModel
from pipelines.recipes.config import TrainConfig
from pipelines.training import threads
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import summed_loss
from pipelines.training.loop import Trainer
from pipelines.training.parallel import ONE_PROCESS, OneProcess
from pipelines.training.threads import Threads, thread_count, with_threads
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import assert_same_run, metrics_of, start, wait_for_step

SHAPE = ModelConfig(vocab_size=50, context_length=8, layers=2, width=16, heads=2)
SHAPES = {
    "decoder": SHAPE,
    "encoder": replace(SHAPE, architecture="encoder"),
    "pairs": replace(SHAPE, architecture="encoder-decoder"),
}


@pytest.fixture(autouse=True)
def few_tokens_are_enough(monkeypatch):
    monkeypatch.setattr(threads, "LEAST_TOKENS", 1)


class RandomBlocks:
    """Training data of random tokens."""

    unit = "blocks"
    loss = staticmethod(summed_loss)
    score = None

    def __init__(self, shape, rows):
        self.shape, self.rows = shape, rows

    def step(self, consumed, position):
        generator = np.random.default_rng(consumed)
        ids = generator.integers(0, self.shape.vocab_size, (2, self.rows, self.shape.context_length))
        return Batch(ids[0], ids[1], np.ones(ids[0].shape, np.float32))

    def size(self, consumed, position):
        return self.rows, self.rows * self.shape.context_length


def batch_of(kind, rows):
    generator = np.random.default_rng(rows)
    inputs, targets, source = generator.integers(0, 50, (3, rows, 8))
    weights = generator.integers(0, 2, (rows, 8)).astype(np.float32)
    return Batch(inputs, targets, weights, source if kind == "pairs" else None)


def gradient_of(parallel, model, batch, size):
    """Return the loss and the gradient of every parameter; None for an unused one."""

    def loss_of(micro):
        more = {} if micro.source is None else {"source": torch.from_numpy(micro.source)}
        hidden = model(torch.from_numpy(micro.inputs), **more).flatten(0, 1)
        parts = (torch.from_numpy(part.ravel()) for part in (micro.targets, micro.weights))
        return model.loss(hidden, *parts)

    total = parallel.gradient(loss_of, batch, size, 2.0, 4.0)
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return total, gradients


@pytest.mark.parametrize("kind", SHAPES)
@settings(max_examples=20)
@given(rows=st.integers(1, 9), size=st.integers(1, 10), cores=st.sampled_from([2, 3, 4, 6, 8, 12]))
def test_the_gradient_equals_that_of_one_thread_and_is_reproducible(kind, rows, size, cores):
    model, batch = LanguageModel(SHAPES[kind], seed=0), batch_of(kind, rows)
    several = Threads(model.parameters(), cores, thread_count(cores, 10**6))
    total, gradients = gradient_of(several, model, batch, size)
    expected_total, expected = gradient_of(OneProcess(), model, batch, size)
    torch.testing.assert_close(total, expected_total)
    for gradient, other in zip(gradients, expected, strict=True):
        assert (gradient is None) == (other is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, other, atol=1e-5, rtol=1e-4)
    again_total, again = gradient_of(several, model, batch, size)
    assert torch.equal(total, again_total)
    assert all(one is other or torch.equal(one, other) for one, other in zip(gradients, again, strict=True))


@pytest.mark.parametrize("failing", [0, 3])
def test_an_error_in_a_thread_is_raised_after_all_have_ended(failing):
    model, ended = LanguageModel(SHAPE, seed=0), []
    before = torch.get_num_threads()

    def loss_of(micro):
        ended.append(int(micro.inputs[0, 0]))
        if micro.inputs[0, 0] == failing:
            raise FloatingPointError("this one")
        return model.embedding.weight.sum()

    numbered = np.repeat(np.arange(4)[:, None], 8, axis=1)
    batch = Batch(numbered, numbered, np.ones((4, 8), np.float32))
    with pytest.raises(FloatingPointError, match="this one"):
        Threads(model.parameters(), 4, 4).gradient(loss_of, batch, 4, 1.0, 1.0)
    assert sorted(ended) == [0, 1, 2, 3]
    assert torch.get_num_threads() == before
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_thread_has_its_cores_at_any_batch_size(monkeypatch):
    """2 threads with 2 cores each for a small batch, then 4 with one each, as in a run that is resumed there."""
    monkeypatch.setattr(threads, "LEAST_TOKENS", 16)
    model = LanguageModel(SHAPE, seed=0)
    several = Threads(model.parameters(), 4, 4)

    def cores_of(rows):
        seen = []

        def loss_of(micro):
            seen.append(torch.get_num_threads())
            return model(torch.from_numpy(micro.inputs)).sum()

        several.gradient(loss_of, batch_of("decoder", rows), 100, 1.0, 1.0)
        return seen

    assert [cores_of(rows) for rows in (4, 8, 4, 8)] == [[2, 2], [1, 1, 1, 1], [2, 2], [1, 1, 1, 1]]


def test_threads_share_the_cores_evenly_and_have_enough_tokens(monkeypatch):
    assert [thread_count(cores, 10**6) for cores in (1, 2, 3, 6, 8, 11, 12, 64)] == [1, 2, 3, 6, 8, 1, 6, 8]
    monkeypatch.setattr(threads, "LEAST_TOKENS", 1024)
    assert [thread_count(8, tokens) for tokens in (1, 2047, 2048, 4095, 4096)] == [1, 1, 2, 2, 4]


def test_random_or_compiled_models_train_in_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)

    def workers(compiled=False, **shape):
        config = TrainConfig(compile=compiled)
        return with_threads(ONE_PROCESS, LanguageModel(replace(SHAPE, **shape), seed=0), config).workers

    assert workers() == "4 threads, each with its own rows"
    assert workers(compiled=True) == workers(dropout=0.1) == workers(stochastic_depth=0.1) == ""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_several_threads_update_and_validate_like_one_thread(optimizer, monkeypatch):
    monkeypatch.setattr(threads, "LEAST_PARAMETERS", 1)

    def trained(cores):
        torch.set_num_threads(cores)
        data, model = RandomBlocks(SHAPE, rows=6), LanguageModel(SHAPE, seed=0)
        config = TrainConfig(batch_tokens=48, lr=1e-2, grad_clip=0.1, optimizer=optimizer, warmup_tokens=1)
        trainer = Trainer(None, model, data, config)
        losses = [trainer.step().loss for _ in range(4)]
        measured = trainer.parallel.measure(trainer.loss, data.step(9, 0))
        return losses, measured, trainer.at.grad_norm, list(model.parameters()), len(trainer.optimizers.shares)

    losses, measured, norm, weights, shares = trained(2)
    expected = trained(1)
    assert (shares, expected[-1]) == (2, 1)
    assert (losses, measured, norm) == (
        pytest.approx(expected[0], rel=1e-4),
        pytest.approx(expected[1], rel=1e-4),
        pytest.approx(expected[2], rel=1e-3),
    )
    for weight, other in zip(weights, expected[3], strict=True):
        torch.testing.assert_close(weight, other, atol=1e-4, rtol=1e-3)


CPU_SECONDS = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
import torch
from pipelines.recipes.recipe import load_recipe
from pipelines.training.loop import Trainer
from lm.model import LanguageModel
from tests.pipelines.test_threads import RandomBlocks

recipe = load_recipe("gpt-tiny")
shape = replace(recipe.model, vocab_size=512)

def trainer_on(cores):
    torch.set_num_threads(cores)
    trainer = Trainer(None, LanguageModel(shape, seed=0), RandomBlocks(shape, rows=4), recipe.train)
    trainer.step()
    return trainer

def cpu_seconds(cores, trainer, steps=4):
    torch.set_num_threads(cores)
    started = time.process_time()
    for _ in range(steps):
        trainer.step()
    return time.process_time() - started

two, one = trainer_on(2), trainer_on(1)
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), [min(os.sched_getaffinity(0))])
print(cpu_seconds(2, two) / cpu_seconds(1, one))
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2 or not Path("/proc/self/task").exists(), reason="needs two cores, Linux")
def test_threads_waste_no_cpu_time_when_another_process_holds_their_second_core():
    """Two threads train gpt-tiny's small batches. They are pinned to one core after torch has started its threads."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    ran = subprocess.run(
        [sys.executable, "-c", CPU_SECONDS], capture_output=True, text=True, check=True, env=environment, timeout=600
    )
    assert float(ran.stdout) < 2.0


@pytest.mark.parametrize(("chosen", "found"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_the_command_line_lets_openmp_threads_sleep_unless_the_user_chose_otherwise(
    bytelm, dataset_folder, chosen, found
):
    environment = {**os.environ, "OMP_DISPLAY_ENV": "TRUE", **chosen}
    shape = ("--model.context-length", "32", "--model.layers", "1", "--model.width", "32", "--model.heads", "2")
    options = (*shape, "--train.batch-tokens", "64", "--out", "run", "--dry-run")
    ran = bytelm("pretrain", "gpt-tiny", "--data", dataset_folder, *options, env=environment)
    assert f"OMP_WAIT_POLICY = '{found}'" in ran.stderr


def test_train_threads_sets_the_number_of_threads_and_may_change_on_resume(
    recipe, dataset_folder, tmp_path, two_cores, printed
):
    half = replace(recipe, train=replace(recipe.train, tokens=2048 * 4, threads=1))
    pretrain(half, data=dataset_folder, out=tmp_path / "run")
    said = printed.readouterr().out
    assert "CPU, 1 of" in said
    assert "each with its own rows" not in said
    both = replace(half, train=replace(half.train, threads=2))
    torch.set_num_threads(1)
    pretrain(both, data=dataset_folder, out=tmp_path / "run")
    assert torch.get_num_threads() == 1
    said = printed.readouterr().out
    assert "2 threads, each with its own rows" in said
    assert "train.threads 2 (was 1)" in said


@pytest.mark.parametrize("threads", [-1, 100_000])
def test_an_impossible_number_of_threads_is_refused(threads):
    with pytest.raises(ValueError, match=f"train.threads is {threads}, but must"):
        TrainConfig(threads=threads)


@pytest.fixture(scope="module")
def recipe(small_recipe):
    """Return a recipe without dropout whose batches are large enough for two threads."""
    train = replace(
        small_recipe.train,
        batch_tokens=2048,
        tokens=2048 * 30,
        warmup_tokens=2048,
        micro_batch=64,
        log_every_steps=1,
        validate_every_tokens=2048 * 10,
        validation_tokens=2048,
        checkpoint_every_tokens=2048 * 10,
    )
    return replace(small_recipe, model=replace(small_recipe.model, dropout=0.0), train=train)


@pytest.fixture
def two_cores(monkeypatch):
    """Use two threads in this process and its children."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    yield
    torch.set_num_threads(before)


def test_a_run_with_threads_reports_them_and_trains_like_one_thread(
    recipe, dataset_folder, tmp_path, two_cores, printed
):
    short = replace(recipe, train=replace(recipe.train, tokens=2048 * 10))
    for cores in (2, 1):
        torch.set_num_threads(cores)
        pretrain(short, data=dataset_folder, out=tmp_path / f"on-{cores}")
        assert ("2 threads, each with its own rows" in printed.readouterr().out) == (cores == 2)
    both, one = ([line["loss"] for line in metrics_of(tmp_path / f"on-{cores}")] for cores in (2, 1))
    assert both == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_a_killed_run_with_threads_ends_with_the_same_bits(recipe, dataset_folder, tmp_path, two_cores):
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")
    process = start(recipe, dataset_folder, tmp_path / "killed", tmp_path)
    wait_for_step(tmp_path / "killed", 12, process)
    process.kill()
    assert "2 threads, each with its own rows" in process.communicate()[0]
    pretrain(recipe, data=dataset_folder, out=tmp_path / "killed")
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


class FirstProduct(TorchDispatchMode):
    """Records our functions on the stack at the first matrix product."""

    calls = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if self.calls is None and "mm" in function.name():
            files = tuple(str(Path(__file__).parents[2] / package) for package in ("lm", "pipelines"))
            self.calls = [frame.name for frame in traceback.extract_stack() if frame.filename.startswith(files)]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("cores", [1, 2])
def test_the_first_matrix_product_is_at_most_8_calls_deep_in_a_training_step(cores):
    torch.set_num_threads(cores)
    data, model = RandomBlocks(SHAPE, rows=4), LanguageModel(SHAPE, seed=0)
    trainer = Trainer(None, model, data, TrainConfig(batch_tokens=32, warmup_tokens=1))
    assert trainer.parallel.workers == ("" if cores == 1 else "2 threads, each with its own rows")
    with FirstProduct() as first:
        trainer.step()
    trainer.batches.close()
    assert first.calls[0] == "step"
    assert len(first.calls) <= 8, first.calls


def test_clipping_works_if_some_threads_have_no_gradient():
    """There are fewer trained tensors than threads."""
    parameters = [torch.nn.Parameter(torch.ones(threads.LEAST_PARAMETERS // 8, 8)), torch.nn.Parameter(torch.ones(8))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    norm = Threads(parameters, 4, 4).clip(parameters, 1.0)
    assert float(norm) == pytest.approx((threads.LEAST_PARAMETERS + 8) ** 0.5)
    assert float(parameters[1].grad[0]) == pytest.approx(1 / float(norm), rel=1e-4)
