"""Runs on several nodes: messages of a step, hybrid sharding, lost nodes and changing numbers of processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.run.checkpoint_reader import AVERAGE, MODEL, OPTIMIZER, read_checkpoint
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.test_parallel import assert_same_to_rounding, cut_back, finish, launch, members, wait_for_step
from tests.pipelines.training_cases import wait_for_checkpoint, weights_of, with_train

BATCH = 7 * 32  # tokens, in blocks that 2 and 4 ranks share unevenly


@pytest.fixture(scope="module")
def recipe(small_recipe):
    """Return a recipe of 60 steps, with state of both optimizers and an average."""
    recipe = replace(small_recipe, model=replace(small_recipe.model, dropout=0.0, layers=2))
    return with_train(
        recipe,
        batch_tokens=BATCH,
        tokens=BATCH * 60,
        micro_batch=2,
        optimizer="muon",
        average=0.9,
        validate_every_tokens=BATCH * 20,
        checkpoint_every_tokens=BATCH * 10,
        keep_checkpoints=100,
        log_every_steps=2,
    )


@pytest.mark.slow
def test_accumulation_sends_gradients_once_a_step_where_memory_allows():
    """The model has three groups of weights: two blocks, and the rest. The batch has three micro-batches."""
    torchrun = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.pipelines.count_messages"], check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout)
    sums = {name: {k: n for k, n in each["counts"].items() if "reduce" in k} for name, each in found.items()}
    assert sums == {
        "every": {"reduce_scatter_base": 9},  # sharded gradients: after every micro-batch
        "last": {"reduce_scatter_base": 3},  # whole gradients: after the last
        "nodes": {"allreduce": 3},  # across nodes: always after the last
    }
    assert [each["norm"] for each in found.values()] == [pytest.approx(found["every"]["norm"], rel=1e-6)] * 3


def agents(recipe, data, out, kind, processes, count=2):
    """Start agents of torchrun that meet as nodes would, the first of which holds the rendezvous; return them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = [f"--nnodes={count}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--max-restarts=3"]

    def start():
        return launch(recipe, data, out, kind, *meet, processes=processes)

    started = [start()]
    wait_for_port(port)
    return [*started, *(start() for _ in range(count - 1))], start


def wait_for_port(port):
    for _ in range(6000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("no agent listens")


@pytest.mark.slow
def test_hsdp_on_two_nodes_of_two_processes_trains_as_one_process_does(tmp_path, recipe, dataset_folder):
    """Each node holds the whole state once, and a checkpoint holds it once in all. One process then resumes it."""
    out = tmp_path / "run"
    started, _ = agents(recipe, dataset_folder, out, "hsdp", processes=2)
    outputs = [finish(job) for job in started]
    assert sum("4 processes (hsdp)" in output for output in outputs) == 1
    pretrain(recipe, data=dataset_folder, out=tmp_path / "one")
    assert_same_to_rounding(out, tmp_path / "one", rel=1e-3)
    cut_back(out, 30)
    sizes = [path.stat().st_size for path in (latest_checkpoint(out) / "model").iterdir()]
    weights = sum(value.nbytes for value in weights_of(out).values())
    assert weights < sum(sizes) < 1.5 * weights
    pretrain(recipe, data=dataset_folder, out=out)
    assert_same_to_rounding(out, tmp_path / "one", rel=1e-3)


@pytest.mark.slow
def test_a_job_resumes_when_a_lost_node_comes_back(tmp_path, recipe, dataset_folder, monkeypatch):
    """No checkpoint is damaged, whenever the node was lost."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    out = tmp_path / "run"
    (first, second), start = agents(recipe, dataset_folder, out, "fsdp", processes=1)
    wait_for_step(out, 14, first)
    wait_for_checkpoint(out, first)
    workers = members(second).values()
    second.kill()
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    second.communicate()
    outputs = [finish(job) for job in (start(), first)]
    assert sum(output.count("resuming from step") for output in outputs) == 1
    for checkpoint in checkpoint_folders(out):
        read_checkpoint(checkpoint, Run(out).settings, MODEL, OPTIMIZER, AVERAGE)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "one")
    assert_same_to_rounding(out, tmp_path / "one", rel=1e-3)


@pytest.mark.slow
def test_a_job_moves_from_4_processes_to_2_and_back(tmp_path, recipe, dataset_folder):
    """Two jobs stop on a signal. The losses of the whole run are those of one process."""
    out = tmp_path / "run"
    for processes, until in ((4, 14), (2, 34), (4, None)):
        job = launch(recipe, dataset_folder, out, "fsdp", processes=processes)
        if until:
            wait_for_step(out, until, job)
            os.kill(job.pid, signal.SIGTERM)
        finish(job, status=1 if until else 0)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "one")
    assert_same_to_rounding(out, tmp_path / "one", rel=1e-3)
