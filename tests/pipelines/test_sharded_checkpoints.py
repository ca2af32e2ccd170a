"""FSDP trains as one process does. Every rank writes its own rows, and any number of processes reads them."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipelines.run.checkpoint_reader import AVERAGE, MODEL, OPTIMIZER, read_checkpoint, whole_checkpoint
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.generate import generate
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.move_checkpoint import move
from tests.pipelines.test_parallel import assert_same_to_rounding, run
from tests.pipelines.test_resuming import damage_file
from tests.pipelines.training_cases import with_train

PARTS = (MODEL, OPTIMIZER, AVERAGE)
SHARD = "shard-0000{}-model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def recipe(small_recipe):
    """Return a recipe with state of both optimizers and an average, and rows that 2 and 4 ranks share unevenly."""
    model = replace(
        small_recipe.model, dropout=0.0, width=36, heads=2, mlp_width=47, activation="swiglu", norm="rmsnorm"
    )
    train = replace(small_recipe.train, batch_tokens=7 * 32, micro_batch=2, optimizer="muon", average=0.9)
    recipe = replace(small_recipe, model=model, train=train)
    return with_train(
        recipe,
        tokens=7 * 32 * 24,
        log_every_steps=1,
        validate_every_tokens=7 * 32 * 8,
        validation_tokens=5 * 32,
        checkpoint_every_tokens=7 * 32 * 8,
        keep_checkpoints=10,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory, recipe, dataset_folder):
    """Return a short run, from whose weights `one` and `two` start."""
    out = tmp_path_factory.mktemp("source") / "run"
    pretrain(with_train(recipe, tokens=7 * 32 * 3), data=dataset_folder, out=out)
    return out


@pytest.fixture(scope="module")
def one(tmp_path_factory, recipe, dataset_folder, source):
    """Return the run of one process."""
    out = tmp_path_factory.mktemp("one") / "run"
    pretrain(recipe, data=dataset_folder, out=out, init_from=source)
    return out


@pytest.fixture(scope="module")
def two(tmp_path_factory, recipe, dataset_folder, source):
    """Return the same run with FSDP on two processes, with activation checkpointing."""
    out = tmp_path_factory.mktemp("two") / "run"
    run(with_train(recipe, activation_checkpointing=True), dataset_folder, out, "fsdp", more=("--init-from", source))
    return out


@pytest.fixture(scope="module")
def gathered(tmp_path_factory, two):
    """Return a run whose checkpoint one process has read from the shards and written as whole files."""
    out = empty_copy(two, tmp_path_factory.mktemp("gathered") / "run")
    move(two, out, "none")
    return out


def empty_copy(run, out):
    """Make a run folder like `run` without its checkpoints."""
    return shutil.copytree(run, out, ignore=shutil.ignore_patterns("checkpoints", ".lock"))


def tensors_of(run):
    checkpoint = whole_checkpoint(run, Run(run).settings, "newest", *PARTS)
    return {(name, key): value for name in PARTS for key, value in checkpoint.tensors(name).items()}


@pytest.mark.slow
def test_fsdp_on_two_processes_trains_as_one_process_does(one, two):
    """The optimizer is Muon, which needs unsharded matrices, and validation uses averaged weights."""
    assert_same_to_rounding(two, one, rel=1e-4)  # Muon orthogonalises in bfloat16


def test_every_rank_writes_its_own_rows_and_the_whole_state_equals_one_process(one, two):
    folder = latest_checkpoint(two)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(
        ["manifest.json", "rng.safetensors", "state.json"]
        + [f"{part}/{SHARD.format(n)}" for part in ("average", "model", "optimizer") for n in (1, 2)]
    )
    expected, found = tensors_of(one), tensors_of(two)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")
    rows = [load_file(folder / "model" / SHARD.format(n)) for n in (1, 2)]
    for name, value in read_checkpoint(folder, Run(two).settings, MODEL).tensors(MODEL).items():
        assert torch.equal(torch.cat([shard[name] for shard in rows]), value)


def test_evaluate_generate_and_export_read_a_sharded_checkpoint(tmp_path, two, gathered):
    runs = (two, gathered)
    one, other = (evaluate(out).to_json()["splits"]["validation"] for out in runs)
    assert one == other
    one, other = (generate(out, prompt=["import "], greedy=True, tokens=12) for out in runs)
    assert one == other
    one, other = (load_file(export_hf(out, out=tmp_path / str(i)) / "model.safetensors") for i, out in enumerate(runs))
    assert one.keys() == other.keys()
    assert all(torch.equal(other[name], value) for name, value in one.items())


@pytest.mark.parametrize("shard", [1, 2])
@pytest.mark.parametrize("part", ["average", "model", "optimizer"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_the_error_names_a_damaged_shard(tmp_path, two, part, shard, damage):
    out = shutil.copytree(two, tmp_path / "run")
    damaged = latest_checkpoint(out) / part / SHARD.format(shard)
    damage_file(damaged, damage)
    with pytest.raises(ValueError, match=rf"{damaged} is (missing|truncated or altered)"):
        whole_checkpoint(out, Run(out).settings, "24", *PARTS)


def test_the_error_names_a_shard_of_another_checkpoint(tmp_path, two):
    """The reader would use any shard that it finds in the folder."""
    out = shutil.copytree(two, tmp_path / "run")
    older, newest = checkpoint_folders(out)[-2:]
    stray = newest / "model" / SHARD.format(3)
    shutil.copy(older / "model" / SHARD.format(1), stray)
    with pytest.raises(ValueError, match=f"{stray} is not in manifest.json"):
        whole_checkpoint(out, Run(out).settings, "24", MODEL)


def test_shapes_that_differ_from_the_manifest_are_an_error(tmp_path, two):
    """A manifest that lists only the second shard, with sound checksums, hides the loss of the first."""
    from pipelines.run.manifest import manifest_json, read_manifest

    out = shutil.copytree(two, tmp_path / "run")
    folder = latest_checkpoint(out)
    (folder / "model" / SHARD.format(1)).unlink()
    manifest = read_manifest(folder)
    files = {name: checksum for name, checksum in manifest.files.items() if name != f"model/{SHARD.format(1)}"}
    (folder / "manifest.json").write_text(manifest_json(files, manifest.settings, manifest.shapes))
    checkpoint = whole_checkpoint(out, Run(out).settings, "24", MODEL)
    with pytest.raises(ValueError, match=r"model: the shards of \S+ do not have the shape in the manifest"):
        checkpoint.tensors(MODEL)


def test_training_resumes_in_one_process_before_a_damaged_shard(tmp_path, one, two, source, recipe, dataset_folder):
    out = shutil.copytree(two, tmp_path / "run")
    damage_file(latest_checkpoint(out) / "optimizer" / SHARD.format(1), "missing")
    with pytest.warns(UserWarning, match=r"optimizer/shard-00001\S* is missing: step-0000024 is skipped"):
        pretrain(recipe, data=dataset_folder, out=out, init_from=source)
    assert (latest_checkpoint(out) / MODEL).exists()
    assert_same_to_rounding(out, one, rel=1e-3)


def test_a_sharded_checkpoint_holds_no_pickle(two):
    """`.metadata` of PyTorch's default storage is pickled; the manifest replaces it."""
    for path in latest_checkpoint(two).rglob("*"):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.is_file():
            load_file(path)


@pytest.mark.slow
def test_a_checkpoint_moves_from_2_to_1_to_4_to_2_processes_bit_for_bit(tmp_path, two, gathered):
    """The state is that of Muon, AdamW and the averaged weights. Matrices of 47 rows are shared unevenly."""
    four, back = (empty_copy(two, tmp_path / name) for name in ("four", "back"))
    for processes, source, target in ((4, gathered, four), (2, four, back)):
        torchrun = [Path(sys.executable).with_name("torchrun"), "--standalone", f"--nproc-per-node={processes}"]
        subprocess.run([*torchrun, "-m", "tests.pipelines.move_checkpoint", source, target, "fsdp"], check=True)
    assert len(list(latest_checkpoint(four).glob("model/*"))) == 4
    expected = tensors_of(two)
    for out in (gathered, four, back):
        found = tensors_of(out)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
