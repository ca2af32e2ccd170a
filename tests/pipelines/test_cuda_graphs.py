"""CUDA graphs are an option for one GPU and one shape. Their gradients are kept outside of the graphs' memory."""

from functools import partial

import pytest
import torch

from lm.config import ModelConfig
from lm.model import LanguageModel
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from pipelines.recipes.config import TrainConfig
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import summed_loss
from pipelines.training.cuda_graphs import compile_to_graphs, own_gradients, uses_graphs
from pipelines.training.parallel import ONE_PROCESS

WANTED = TrainConfig(compile=True, cuda_graphs=True)
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("config", "device", "kind", "one_shape", "used"),
    [
        (WANTED, CUDA, "none", True, True),
        (TrainConfig(compile=True), CUDA, "none", True, False),
        (TrainConfig(cuda_graphs=True), CUDA, "none", True, False),
        (WANTED, CPU, "none", True, False),
        (WANTED, CUDA, "ddp", True, False),
        (WANTED, CUDA, "none", False, False),
    ],
)
def test_graphs_are_used_on_one_gpu_for_one_shape_if_wanted(config, device, kind, one_shape, used):
    assert uses_graphs(config, device, kind, one_shape) == used


@pytest.fixture
def model():
    return LanguageModel(ModelConfig(vocab_size=40, context_length=8, layers=2, width=16, heads=2), 0)


@pytest.fixture
def graphs(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True, backend="aot_eager"))
    yield
    torch._dynamo.reset()


def test_gradients_of_micro_batches_add_up_in_memory_that_stays(model, graphs):
    ids = torch.randint(0, 40, (6, 9), generator=torch.Generator().manual_seed(1)).numpy()
    batch = Batch(inputs=ids[:, :-1], targets=ids[:, 1:], weights=(ids[:, 1:] > 3).astype("float32"))
    weight = float(batch.weights.sum())
    parameters = list(model.parameters())
    plain = partial(summed_loss, model, model, device=CPU)
    expected_loss = ONE_PROCESS.gradient(plain, batch, 6, weight, 1.0)
    expected = [parameter.grad for parameter in parameters]

    optimizers = build_optimizers(model, OptimizerSettings(kind="adamw", lr=0.0, weight_decay=0.0))
    optimizers.zero_grad()
    assert all(parameter.grad is None for parameter in parameters)
    own_gradients(parameters)
    own = [parameter.grad for parameter in parameters]
    loss = partial(summed_loss, model, compile_to_graphs(model), device=CPU, every_position=True, compiled=True)
    for _ in range(2):
        torch.testing.assert_close(ONE_PROCESS.gradient(loss, batch, 2, weight, 1.0), expected_loss)
        assert all(parameter.grad is gradient for parameter, gradient in zip(parameters, own, strict=True))
        torch.testing.assert_close(own, expected)
        own_gradients(parameters)
        torch.testing.assert_close(own, expected)
        optimizers.zero_grad(keep=True)
        assert not any(gradient.any() for gradient in own)
