"""Runs on several nodes: messages of a step, hybrid sharding, lost nodes and changing numbers of processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


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
