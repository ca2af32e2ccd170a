"""Training finds the largest micro-batch that fits in memory."""

import gc
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.recipes.recipe import load_recipe
from pipelines.training import micro_batch
from pipelines.training.batch import Batch
from pipelines.training.micro_batch import OPTIMIZER_NUMBERS, even, largest_micro_batch, leave_a_tenth
from pipelines.training.parallel import ONE_PROCESS
from pipelines.training.timing import RandomBlocks
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import with_train


def batch_of(rows):
    inputs = np.ones((rows, 4), np.int64)
    return Batch(inputs, inputs, inputs)


@given(rows=st.integers(1, 300), room=st.integers(0, 300))
def test_a_batch_is_cut_into_as_few_even_parts_as_fit_and_no_gradient_is_left(rows, room):
    model = torch.nn.Linear(4, 4)
    tried = []

    def nats(batch):
        tried.append(len(batch.inputs))
        if len(batch.inputs) > room:
            raise torch.OutOfMemoryError("out of memory")
        return model(torch.from_numpy(batch.inputs).float()).sum()

    found = largest_micro_batch(nats, batch_of(rows), model)
    assert found == max([size for parts in range(1, rows + 1) if (size := even(rows, parts)) <= room], default=1)
    assert model.weight.grad is None
    assert len(tried) <= 2 * rows.bit_length()


def test_the_speed_is_measured_in_the_micro_batches_of_the_training(monkeypatch):
    """Where the recipe leaves their size to a GPU's memory."""
    monkeypatch.setattr(micro_batch, "largest_micro_batch", lambda loss, batch, model: len(batch.inputs))
    on_a_gpu = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]))
    recipe = with_train(load_recipe("gpt-tiny"), batch_tokens=64 * 256, micro_batch=0)
    data = RandomBlocks(replace(recipe, model=replace(recipe.model, vocab_size=512)))
    rows = micro_batch.micro_batch_rows(None, on_a_gpu, data, recipe.train, ONE_PROCESS, one_shape=False)
    assert rows == 64 > micro_batch.DEFAULT_ROWS


@given(rows=st.integers(1, 300), capacity=st.integers(2, 300))
def test_a_tenth_of_the_memory_stays_free(rows, capacity):
    """A device of which every row takes one unit; the model asks for no more than nine tenths."""
    model, peak = torch.nn.Linear(4, 4), [0]

    def nats(batch):
        peak[0] = len(batch.inputs)
        return model(torch.from_numpy(batch.inputs).float()).sum()

    def leave_room(device):
        if 10 * peak[0] > 9 * capacity:
            raise torch.OutOfMemoryError("out of memory")

    found = largest_micro_batch(nats, batch_of(rows), model, leave_room)
    fitting = [size for parts in range(1, rows + 1) if 10 * (size := even(rows, parts)) <= 9 * capacity]
    assert found == max(fitting, default=1)
    assert model.weight.grad is None


@pytest.mark.parametrize("source", [False, True])
def test_micro_batches_have_at_most_65536_positions(source):
    model = torch.nn.Linear(1024, 1)
    inputs = np.ones((200, 1024), np.int64)
    batch = Batch(inputs, inputs, inputs, inputs if source else None)
    rows = largest_micro_batch(lambda part: model(torch.from_numpy(part.inputs).float()).sum(), batch, model)
    assert rows == (29 if source else 50)  # 200 rows in the fewest even parts of at most 32 or 64
    longer = Batch(*(np.ones((3, 70_000), np.int64) for _ in range(3)))
    assert largest_micro_batch(lambda part: model.weight.sum(), longer, model) == 1


@pytest.mark.gpu
def test_a_peak_of_nine_tenths_of_a_gpu_is_too_much():
    device, megabytes = torch.device("cuda"), 1 << 20
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1000 * megabytes / torch.cuda.mem_get_info()[1])
    try:
        for peak, fits in ((850, True), (930, False)):
            torch.cuda.reset_peak_memory_stats()
            taken = peak * megabytes - torch.cuda.memory_allocated()  # other tests may hold some
            torch.empty(taken, dtype=torch.uint8, device=device)
            with nullcontext() if fits else pytest.raises(torch.OutOfMemoryError):
                leave_a_tenth(device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocator_gets_segments_that_grow_unless_the_user_set_it(name):
    code = (
        "import os, pipelines; print(os.environ.get('PYTORCH_ALLOC_CONF'), os.environ['PYTORCH_ENABLE_MPS_FALLBACK'])"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTORCH_")}
    for mine, expected in (({}, "expandable_segments:True"), ({name: "backend:native"}, None)):
        there = subprocess.run([sys.executable, "-c", code], env=environment | mine, capture_output=True, text=True)
        assert there.stdout.split() == [str(mine.get("PYTORCH_ALLOC_CONF", expected)), "1"]


def test_memory_is_reserved_for_the_optimizer(monkeypatch):
    """Three numbers per parameter are allocated during the forward and backward pass."""
    model, there = torch.nn.Linear(4, 4), []
    taken = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor: there.append(tensor.numel()) or taken(tensor))

    def nats(batch):
        assert sum(there) == OPTIMIZER_NUMBERS * (4 * 4 + 4) == 60
        return model(torch.from_numpy(batch.inputs).float()).sum()

    assert largest_micro_batch(nats, batch_of(8), model) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_with_little_memory_trains_in_micro_batches_that_fit(
    tmp_path, small_recipe, dataset_folder, printed, compiled
):
    """A batch of 8,192 blocks would take about 700 MB."""
    tokens = 8192 * 32
    recipe = with_train(small_recipe, device="cuda", micro_batch=0, batch_tokens=tokens, tokens=2 * tokens)
    recipe = with_train(recipe, compile=compiled)
    torch.cuda.set_per_process_memory_fraction(256e6 / torch.cuda.mem_get_info()[1])
    try:
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    said = re.search(r"micro-batches of ([\d,]+) blocks", printed.readouterr().out)
    assert 1 < int(said[1].replace(",", "")) < 8192
