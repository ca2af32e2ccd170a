"""The estimates of scale.md and what-fits.md in docs/ follow from the code and recorded measurements."""

import json
import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lm.config import ModelConfig
from lm.model import LanguageModel
from lm.optim.muon import orthogonal
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from lm.presets import preset
from pipelines.cluster.counting_tasks import FAN_IN

DOCS = Path(__file__).parents[1] / "docs"
scale = SimpleNamespace(**runpy.run_path(str(DOCS / "scale.py")))
data_scale = SimpleNamespace(**runpy.run_path(str(DOCS / "data_scale.py")))
what_fits = SimpleNamespace(**runpy.run_path(str(DOCS / "what_fits.py")))
ESTIMATES = {"scale": scale, "data_scale": data_scale, "what_fits": what_fits}
SMALL = ModelConfig(vocab_size=300, context_length=16, layers=3, width=48, heads=3)


@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
def test_the_page_holds_what_the_formulas_give_now(estimate):
    text = estimate.PAGE.read_text(encoding="utf-8")
    assert estimate.page(text) == text, f"python {estimate.__file__} brings it up to date"


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_is_what_an_optimizer_holds(kind):
    model, shape = LanguageModel(SMALL, seed=0), scale.Shape(SMALL)
    optimizers = build_optimizers(model, OptimizerSettings(kind=kind))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step()
    moments = sum(value.nbytes for _, state in optimizers.state() for value in state.values() if value.ndim)
    assert moments == shape.state_bytes[kind]["moments"]
    assert sum(p.nbytes for p in model.parameters()) == shape.state_bytes[kind]["weights"]


def test_muon_multiplies_as_often_as_estimated():
    shape = scale.Shape(SMALL)
    with FlopCounterMode(display=False) as counter:
        for rows, columns in shape.hidden_matrices:
            orthogonal(torch.randn(1, rows, columns))
    assert counter.get_total_flops() == shape.muon_flops()


def test_more_gpus_take_less_memory_and_time_but_more_gpu_hours():
    shape = scale.Shape(preset("gpt3-xl"))
    few, many = scale.Cluster(8), scale.Cluster(64)
    memory = [sum(shape.memory("fsdp", "adamw", cluster.gpus).values()) for cluster in (few, many)]
    assert memory[1] < memory[0]
    seconds = [scale.step(shape, "ddp", "adamw", cluster, 0.4, sequences=8).total for cluster in (few, many)]
    assert seconds[1] < seconds[0] < 8 * seconds[1]


@pytest.mark.parametrize("kind", ["English", "multilingual"])
def test_rare_pretokens_are_as_frequent_as_in_a_pitman_yor_process(kind):
    """A type that was seen c times is seen again with a weight of c - d, so of the types with c or more, the share
    1 - d / c reaches c + 1."""
    build = data_scale.Build(kind, 10**12)
    assert build.kept(1) == pytest.approx(build.distinct(10**12))
    for count in (1, 2, 3, 10):
        assert build.kept(count + 1) / build.kept(count) == pytest.approx(1 - data_scale.EXPONENTS[kind] / count)
    assert build.kept(build.least_count) * data_scale.MERGE_BYTES <= data_scale.LARGE_MEMORY


@pytest.mark.parametrize("size", [10**12, 10**14])
def test_the_last_round_of_sums_has_as_few_files_as_the_command_adds_up(size):
    files = [files for files, _ in data_scale.Build("English", size).rounds()]
    assert all(before > FAN_IN and -(-before // FAN_IN) == after for before, after in pairwise(files))
    assert files[-1] <= FAN_IN


def test_the_memory_of_the_measured_model_is_within_what_was_measured():
    """The rest of the measured peak is Python, PyTorch and the logits: 0.5 to 1 GB."""
    (row,) = (row for row in what_fits.sizes_table() if row[0] == "384")
    results = json.loads((what_fits.RESULTS / "cpu-bfloat16.json").read_text(encoding="utf-8"))
    peak = min(each["peak_bytes"] / 1e6 for each in results["models"][0]["rows"] if each["peer"] == "bytelm")
    assert 500 < peak - float(row[4].removesuffix(" MB")) < 1000
