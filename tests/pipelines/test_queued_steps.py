"""A training step makes a GPU wait for nothing: all its work is queued before the loss is read.

Tensors on the `meta` device stand in for a GPU's. They have no values, so anything that reads one (`item`, `nonzero`,
a boolean index) raises.
"""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lm.costs import meta_model
from pipelines.training.loop import Trainer
from tests.pipelines.recipe_cases import CASES, adapted, opened

META = torch.device("meta")


class NoPageableCopies(TorchDispatchMode):
    """Raises if an operation reads a tensor of the host beside the device's: such a copy waits for the queue.

    Scalars travel as arguments of a kernel. A copy from pinned memory, which `to_device` makes, does not block.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        device = any(x.device == META for x in (*read, *tree_leaves(result)) if isinstance(x, torch.Tensor))
        if device and any(x.device != META and x.ndim for x in read) and not kwargs.get("non_blocking"):
            raise AssertionError(f"{function} copies from the host and waits for the device")
        return result


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_every_recipe_is_queued_without_waiting(case, sentinel_dataset, pair_dataset):
    recipe, data = opened(adapted(case), sentinel_dataset, pair_dataset)
    model = meta_model(recipe.model)
    model.compute_dtype = torch.bfloat16
    trainer = Trainer(None, model, data, replace(recipe.train, compile=False))
    updates = 0

    def count(*_):
        nonlocal updates
        updates += 1

    for optimizer in trainer.optimizers.parts:
        optimizer.register_step_post_hook(count)
    for _ in range(2):  # the first step makes the optimizer's state
        with NoPageableCopies(), pytest.raises(RuntimeError, match="meta tensor"):
            trainer.step()  # reads the loss after all work is queued
        trainer.optimizers.zero_grad()
    trainer.batches.close()
    assert updates == 2 * len(trainer.optimizers.parts)
    parts = [state for _, state in trainer.optimizers.state()]
    assert all(parts) and len(parts) == len(list(model.parameters()))
    assert trainer.average is None or trainer.average.steps == 2


@pytest.mark.parametrize("waiting", [float, bool, torch.nonzero, torch.Tensor.tolist, lambda x: x[x > 0]])
def test_whatever_reads_a_value_of_the_device_raises(waiting):
    with pytest.raises((RuntimeError, NotImplementedError)):
        waiting(torch.ones((), device=META).expand(1) if waiting in (float, bool) else torch.ones(3, device=META))


def test_a_blocking_copy_from_the_host_raises():
    device = torch.ones(3, device=META)
    with NoPageableCopies():
        torch.ones(3).to(META, non_blocking=True)
        device * torch.ones(())
        for blocking in (lambda: torch.ones(3).to(META), lambda: device[torch.tensor([0, 2])]):
            with pytest.raises(AssertionError, match="waits for the device"):
                blocking()
