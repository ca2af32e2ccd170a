"""Training finds the largest micro-batch that fits in memory."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.pretrain import pretrain
from pipelines.training.batch import Batch
from pipelines.training.loss import OPTIMIZER_NUMBERS, even, largest_micro_batch
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


def test_memory_is_reserved_for_the_optimizer(monkeypatch):
    """Three numbers per parameter are allocated during the forward and backward pass."""
    model, there = torch.nn.Linear(4, 4), []
    taken = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda tensor: there.append(tensor.numel()) or taken(tensor))

    def nats(batch):
        assert sum(there) == OPTIMIZER_NUMBERS * (4 * 4 + 4) == 60
        return model(torch.from_numpy(batch.inputs).float()).sum()

    assert largest_micro_batch(nats, batch_of(8), model) == 8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
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
        assert pretrain(recipe, data=dataset_folder, out=tmp_path / "run") == 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    said = re.search(r"micro-batches of ([\d,]+) blocks", printed.readouterr().out)
    assert 1 < int(said[1].replace(",", "")) < 8192
