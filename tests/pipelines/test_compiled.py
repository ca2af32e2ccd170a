"""Training with torch.compile gives the same numbers with few graphs."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import assert_same_run, metrics_of, stop_after, with_train


@pytest.mark.parametrize(
    ("architecture", "dtype", "compiled"),
    [("decoder", "float32", 2), ("encoder", "float32", 2), ("decoder", "bfloat16", 4)],
)
def test_batches_and_validations_of_any_size_have_one_shape(
    tmp_path, small_recipe, dataset_folder, monkeypatch, architecture, dtype, compiled
):
    """9 blocks as 5 and 4, 11 of validation; the last position of the stream is no target. One graph for training, one
    for validation, which comes first; the loss is compiled too, unless on a CPU in float32."""
    graphs = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs))
    torch._dynamo.reset()
    train = {"batch_tokens": 9 * 32, "micro_batch": 6, "validation_tokens": 11 * 32, "validate_every_tokens": 20 * 32}
    recipe = with_train(small_recipe, compile=True, dtype=dtype, tokens=4 * 9 * 32, **train)
    if architecture == "encoder":
        model = replace(recipe.model, architecture=architecture, context_length=34)
        recipe = replace(recipe, objective="masked-token", model=model)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert graphs.frame_count == compiled


@pytest.mark.slow
def test_a_compiled_model_trains_like_an_uncompiled_one(tmp_path, small_recipe, dataset_folder):
    losses = []
    for compiled in (False, True):
        model = replace(small_recipe.model, dropout=0.0)
        train = replace(small_recipe.train, compile=compiled, tokens=2560)
        out = tmp_path / f"compiled-{compiled}"
        pretrain(replace(small_recipe, model=model, train=train), data=dataset_folder, out=out)
        losses.append([line["loss"] for line in metrics_of(out)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
def test_compiling_without_a_compiler_fails_in_one_sentence_and_the_run_resumes_uncompiled(
    bytelm, dataset_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    command = ("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", "run", "--train.tokens", "1k")
    small = ("--model.context-length", "32", "--model.width", "32", "--train.device", "cpu")
    refused = bytelm(*command, *small, "--train.compile")
    assert refused.returncode == 1
    assert "train.compile is true, but torch.compile failed here: train without it" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert bytelm(*command, *small).returncode == 0


@pytest.mark.slow
def test_a_compiled_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    recipe = with_train(small_recipe, compile=True, batch_tokens=9 * 32, micro_batch=6, tokens=20 * 9 * 32)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")
    torch._dynamo.reset()
    with monkeypatch.context() as patch:
        stop_after(7, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, data=dataset_folder, out=tmp_path / "stopped")
    torch._dynamo.reset()
    pretrain(recipe, data=dataset_folder, out=tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_each_length_of_a_warm_up_is_compiled_once(tmp_path, small_recipe, dataset_folder, monkeypatch):
    """Blocks of 8, 16 and 32 tokens: three graphs for training, and one for validation."""
    graphs = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=graphs, dynamic=False))
    torch._dynamo.reset()
    train = {"batch_tokens": 128, "tokens": 128 * 12, "validation_tokens": 128, "validate_every_tokens": 128 * 12}
    recipe = with_train(small_recipe, compile=True, dtype="float32", length_start=8, length_share=0.7, **train)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert graphs.frame_count == 4
