"""On a GPU, attention with a mask or of varying length leaves out cuDNN's kernels (tensors on `meta` stand in)."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend

from lm import model as model_module
from lm.attention import backends
from lm.attention.backends import CUDNN_FIRST
from lm.costs import meta_model
from lm.decoding.packed import prepare
from lm.decoding.state import DecodeState
from lm.head_config import HeadConfig
from lm.model import LanguageModel
from lm.position_checks import IN_SCORES
from lm.presets import preset
from lm.task_model import TaskModel

T = 128  # a length that cuDNN is taken for


@pytest.fixture
def allowed(monkeypatch):
    """Return a list of the kernels that each call of PyTorch's attention may choose from."""
    calls, attention, kernels = [], torch.nn.functional.scaled_dot_product_attention, backends.sdpa_kernel
    chosen = [None]

    class Spy:
        def __init__(self, names, set_priority=False):
            self.context, self.names = kernels(names, set_priority=set_priority), names

        def __enter__(self):
            self.context.__enter__()
            chosen.append(self.names)

        def __exit__(self, *error):
            chosen.pop()
            self.context.__exit__(*error)

    def watched(*arguments, **options):
        calls.append(chosen[-1])
        return attention(*arguments, **options)

    monkeypatch.setattr(backends, "sdpa_kernel", Spy)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    return calls


def meta(architecture="decoder", **changes):
    config = replace(preset("gpt2"), architecture=architecture, layers=2, width=32, heads=2, context_length=T)
    return meta_model(replace(config, vocab_size=64, **changes))


def ids(length=T, dtype=torch.int64):
    return torch.zeros(2, length, dtype=dtype, device="meta")


def without_cudnn(calls):
    assert calls
    assert all(names is not None and SDPBackend.CUDNN_ATTENTION not in names for names in calls)
    return {SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH} == set(calls[0])


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
def test_training_on_whole_blocks_prefers_cudnn(allowed, architecture):
    meta(architecture)(ids()).sum().backward()
    assert allowed == [CUDNN_FIRST, CUDNN_FIRST]
    assert CUDNN_FIRST[0] == SDPBackend.CUDNN_ATTENTION and len(CUDNN_FIRST) == 4


def test_compiled_training_prefers_cudnn_too(monkeypatch):
    """A tracer asks for the kernels while it traces."""
    asked = []
    monkeypatch.setattr(model_module, "fused_kernels", lambda *facts: asked.append(facts[1:]) or nullcontext())
    torch._dynamo.reset()
    torch.compile(meta(), backend="eager")(ids())
    torch._dynamo.reset()
    assert (True, T) in asked


def test_deterministic_training_leaves_out_cudnn(allowed):
    torch.use_deterministic_algorithms(True)
    try:
        meta()(ids()).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert without_cudnn(allowed)


@pytest.mark.parametrize("architecture", ["decoder", "encoder"])
@pytest.mark.parametrize("case", ["documents", "padding", "window", *IN_SCORES, "another length"])
def test_masks_biases_and_other_lengths_leave_out_cudnn(allowed, architecture, case):
    changes = {kind: {"positions": kind} for kind in IN_SCORES} | {"window": {"window": 4}}
    inputs = {"documents": {"segments": ids()}, "padding": {"present": ids(dtype=torch.bool)}}
    model = meta(architecture, **changes.get(case, {}))
    model(ids(T - 1 if case == "another length" else T), **inputs.get(case, {})).sum().backward()
    assert without_cudnn(allowed)


def test_pairs_leave_out_cudnn_in_both_stacks(allowed):
    meta("encoder-decoder")(ids(), ids()).sum().backward()
    assert without_cudnn(allowed)
    assert len(allowed) == 6


def test_fine_tuning_leaves_out_cudnn(allowed):
    with torch.device("meta"):
        classifier = TaskModel(meta("encoder").config, HeadConfig(kind="sequence", outputs=3))
    classifier(ids(7), present=torch.ones(2, 7, dtype=torch.bool, device="meta"))
    assert without_cudnn(allowed)


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_leaves_out_cudnn_even_for_a_prompt_that_fills_the_context(allowed, use_cache):
    model = prepare(meta())
    for length in (T, 5):
        state = DecodeState(model, ids(length), room=T - length, use_cache=use_cache)
        state.logits()
    state.append(torch.zeros(2, dtype=torch.int64, device="meta"))
    state.logits()
    assert without_cudnn(allowed)
    assert len(allowed) == 6


def test_on_the_cpu_nothing_is_chosen(allowed):
    config = replace(preset("gpt2"), layers=1, width=32, heads=2, context_length=T, vocab_size=64, window=4)
    LanguageModel(config, 0)(torch.zeros(2, T, dtype=torch.int64))
    assert set(allowed) <= {None}
