"""A run on several ranks under torchrun equals the same run on one process. test_sharded_checkpoints.py has FSDP's."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.dataset.reader import TokenStream
from pipelines.machine import Machine
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run, lock
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.training.batch import Shard
from pipelines.training.batch_objectives import NextToken
from pipelines.training.data import BlockLoader
from pipelines.training.progress import Progress, stop_on_signals
from pipelines.verbs.pretrain import pretrain
from tests.conftest import is_running
from tests.pipelines.training_cases import metrics_of, wait_for_checkpoint, weights_of, with_train

GUIDE = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
LAUNCH = shlex.split(re.search(r"^(torchrun .*) pretrain \S+ --data \S+ --out \S+ --parallel ddp$", GUIDE, re.M)[1])


@pytest.fixture(scope="module")
def recipe(small_recipe):
    """Return a recipe with batches of 7 blocks and micro-batches of 2, which 2 ranks cannot share evenly. It has no
    dropout, because each rank draws its own masks."""
    return replace(
        small_recipe,
        model=replace(small_recipe.model, dropout=0.0, layers=2),
        train=replace(
            small_recipe.train,
            batch_tokens=7 * 32,
            tokens=7 * 32 * 20,
            micro_batch=2,
            log_every_steps=1,
            validate_every_tokens=7 * 32 * 5,
            validation_tokens=5 * 32,
            checkpoint_every_tokens=7 * 32 * 5,
        ),
    )


def launch(recipe, data, out, kind, *options, processes=2, more=()):
    """Start a run as docs/training.md says, and return the process of torchrun, the parent of all ranks.

    `data` is a dataset, or the words of a mixture. `options` are options of torchrun, and `more` options of pretrain.
    """
    path = out.with_suffix(".toml")
    save_config(path, recipe, {})
    here = Path(sys.executable).parent
    words = [here / word if word in ("torchrun", "bytelm") else word for word in LAUNCH]
    words[words.index("--nproc-per-node") + 1] = processes
    words[1:1] = options
    if any("rdzv" in option for option in options):
        words.remove("--standalone")
    data = data if isinstance(data, list) else [data]
    words += ["pretrain", path, "--data", *data, "--out", out, "--parallel", kind, *more]
    return subprocess.Popen(
        [*map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(job, status=0):
    """Return the output of a job after it has ended with the expected status."""
    output, _ = job.communicate(timeout=300)
    assert (job.returncode == 0) == (status == 0), output
    return output


def run(*arguments, **options):
    return finish(launch(*arguments, **options))


def members(job):
    """Return the processes of a job in order of rank."""
    ranks = {}
    for children in Path(f"/proc/{job.pid}/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            settings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            ranks |= {int(entry[5:]): pid for entry in settings if entry.startswith(b"RANK=")}
    return ranks


def wait_for_step(out, step, job):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if (out / "metrics.jsonl").exists() and any(line["step"] >= step for line in metrics_of(out)):
            return
        assert job.poll() is None, job.stdout.read()
        time.sleep(0.005)
    raise AssertionError("the run did not get that far")


def assert_same_to_rounding(one, other, rel=1e-5):
    """Compare losses, validation losses and rates of every step, and the final weights. Gradient norms may differ by
    fifty times as much."""
    first, second = metrics_of(one), metrics_of(other)
    assert len(first) == len(second) > 20
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        near = {k: pytest.approx(v, rel=rel) for k, v in a.items() if isinstance(v, float)}
        if "grad_norm" in a:
            near["grad_norm"] = pytest.approx(a["grad_norm"], rel=50 * rel)
        assert {**a, **near} == b
    assert_same_weights(one, other, rtol=0, atol=50 * rel)


def assert_same_weights(one, other, **tolerance):
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    for name, weights in first.items():
        torch.testing.assert_close(second[name], weights, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def assert_identical(one, other):
    assert metrics_of(one) == metrics_of(other)
    assert_same_weights(one, other, rtol=0, atol=0)


@given(count=st.integers(1, 60), parts=st.integers(1, 20))
def test_the_shards_of_a_batch_are_its_rows_in_order(count, parts):
    read = [Shard(part, parts).rows(count) for part in range(parts)]
    assert np.concatenate([rows[own] for rows, own in read]).tolist() == list(range(count))
    assert len({len(rows) for rows, _ in read}) == 1
    sizes = [int(own.sum()) for _, own in read]
    assert max(sizes) - min(sizes) <= 1
    assert all(rows.min() >= 0 and rows.max() < count for rows, _ in read)


@settings(deadline=None)
@given(consumed=st.integers(0, 50), blocks=st.integers(1, 12), parts=st.integers(1, 5), crops=st.booleans())
def test_shards_hold_the_targets_of_the_whole_batch(consumed, blocks, parts, crops):
    stream = TokenStream([np.arange(300, dtype=np.uint16)], 3)
    loader = BlockLoader(stream, NextToken(3), "crops" if crops else "permutation", seed=1)
    whole = loader.batch(consumed + np.arange(blocks))
    rows = [Shard(part, parts).rows(blocks) for part in range(parts)]
    shards = [loader.batch(consumed + numbers).weighing_only(own) for numbers, own in rows]
    for name in ("inputs", "targets"):
        scored = [getattr(batch, name)[batch.weights > 0] for batch in shards]
        assert np.array_equal(np.concatenate(scored), getattr(whole, name)[whole.weights > 0])


@pytest.mark.slow
def test_a_job_that_lost_a_process_resumes_and_trains_as_one_process_does(tmp_path, recipe, dataset_folder):
    """In one test, because each start of a job takes seconds. The slow tests hold every part more closely."""
    steps = {"tokens": 7 * 32 * 120, "checkpoint_every_tokens": 7 * 32 * 10, "log_every_steps": 5}
    recipe = with_train(recipe, **steps, lr=1e-4)  # at a higher rate, rounding grows over so many steps
    job = launch(recipe, dataset_folder, tmp_path / "two", "ddp")
    wait_for_step(tmp_path / "two", 30, job)
    wait_for_checkpoint(tmp_path / "two", job)
    os.kill(members(job)[1], signal.SIGKILL)
    assert "process 0 has lost another one of the job" in finish(job, status=1)
    assert 0 < int(latest_checkpoint(tmp_path / "two").name[5:]) < 120
    output = run(recipe, dataset_folder, tmp_path / "two", "ddp")
    assert "resuming from step" in output and "2 processes (ddp)" in output
    assert output.count(": 120 steps") == 1  # only rank 0 prints
    pretrain(recipe, data=dataset_folder, out=tmp_path / "one")
    assert_same_to_rounding(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_ddp_on_two_processes_trains_as_one_process_does(tmp_path, recipe, dataset_folder):
    output = run(recipe, dataset_folder, tmp_path / "two", "ddp")
    assert "2 processes (ddp)" in output
    assert output.count(" parameters, ") == output.count(": 20 steps") == 1  # only rank 0 prints
    pretrain(recipe, data=dataset_folder, out=tmp_path / "one")
    assert_same_to_rounding(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_two_processes_train_on_a_mixture_as_one_does(tmp_path, recipe, dataset_folder):
    copy = shutil.copytree(dataset_folder, tmp_path / "copy")
    run(recipe, [f"2={dataset_folder}", f"1={copy}"], tmp_path / "two", "ddp")
    pretrain(recipe, data={dataset_folder: 2, copy: 1}, out=tmp_path / "one")
    assert_same_to_rounding(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_all_ranks_start_from_the_weights_of_another_run(tmp_path, recipe, dataset_folder, kind):
    source, one, two = (tmp_path / name for name in ("source", "one", "two"))
    pretrain(with_train(recipe, tokens=7 * 32 * 3), data=dataset_folder, out=source)
    pretrain(recipe, data=dataset_folder, out=one, init_from=source)
    run(recipe, dataset_folder, two, kind, more=("--init-from", source))
    assert_same_to_rounding(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_all_ranks_of_a_timed_run_have_the_same_lengths_and_end_at_the_same_step(
    tmp_path, recipe, dataset_folder, kind
):
    timed = with_train(recipe, minutes=0.05, length_start=8, batch_tokens_start=2 * 32, batch_warmup_tokens=7 * 32 * 10)
    run(timed, dataset_folder, tmp_path / "timed", kind)  # ranks that disagree would wait for each other
    *_, before, last = (line for line in Run(tmp_path / "timed").metrics() if line["split"] == "train")
    assert before["time_s"] < 3.001 and last["time_s"] > 2.999
    assert last["batch_tokens"] == 7 * 32


def test_only_the_first_process_reads_the_run_of_init_from(tmp_path, recipe, dataset_folder, monkeypatch):
    """Other nodes may have no copy of it. They get as far as the missing `parallel`."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, message in (("0", "nowhere is not a run"), ("1", "torchrun started 2 processes")):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=message):
            pretrain(recipe, data=dataset_folder, out=tmp_path / "run", init_from=tmp_path / "nowhere")


def test_parallel_without_torchrun_is_a_clear_error(tmp_path, recipe, dataset_folder, monkeypatch):
    with pytest.raises(ValueError, match=r"is for processes that torchrun starts: `torchrun .* --parallel ddp`"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run", parallel="ddp")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"torchrun started 2 processes, .* give `parallel`"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "case",
    [
        {"train": {"optimizer": "muon", "average": 0.5}},
        {"train": {"dtype": "bfloat16"}},
        {"objective": "masked-token", "model": {"architecture": "encoder", "context_length": 34}},
        {"model": {"positions": "relative", "norm": "rmsnorm", "activation": "swiglu", "tied_head": False}},
        {"model": {"qk_norm": True, "embedding_skips": True, "value_embeddings": 1, "document_mask": True}},
        {"train": {"batch_tokens": 32, "tokens": 32 * 30}},  # one block for two ranks
        {"train": {"compile": True}},
        {"train": {"whole_gradients": True}},  # of FSDP
        {"model": {"layers": 4, "layer_groups": 2}, "train": {"compile": True}},
    ],
    ids=["muon", "bfloat16", "masked", "relative", "modern", "one-block", "compiled", "whole-gradients", "shared"],
)
def test_every_kind_of_model_trains_as_on_one_process(tmp_path, recipe, dataset_folder, kind, case):
    recipe = replace(
        recipe,
        objective=case.get("objective", recipe.objective),
        model=replace(recipe.model, **case.get("model", {})),
        train=replace(recipe.train, **case.get("train", {})),
    )
    run(recipe, dataset_folder, tmp_path / "two", kind)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "one")
    rough = recipe.train.optimizer == "muon" or recipe.train.dtype == "bfloat16"
    assert_same_to_rounding(tmp_path / "two", tmp_path / "one", rel=1e-3 if rough else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_layers_can_be_skipped_if_one_rank_has_a_row_without_weight(tmp_path, recipe, dataset_folder, kind):
    """Each rank skips layers at random. The 7 blocks are 4 and 3, and only one rank predicts at all its positions."""
    recipe = replace(recipe, model=replace(recipe.model, stochastic_depth=0.3, layers=3))
    run(recipe, dataset_folder, tmp_path / "two", kind)
    losses = [line["loss"] for line in metrics_of(tmp_path / "two") if line["split"] == "validation"]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_three_processes_translate_pairs_as_one_does(tmp_path, recipe, text_folder, kind):
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.train_tokenizer import train_tokenizer

    lines = [line for path in sorted(text_folder.glob("*.txt")) for line in path.read_text().splitlines() if line][:600]
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split, part in (("train", lines[:500]), ("validation", lines[500:])):
        rows = [json.dumps({"en": line, "de": line[::-1]}) for line in part]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    train_tokenizer([str(folder)], vocab_size=400, out=tmp_path / "tok", pairs=("en", "de"))
    build_dataset([str(folder)], tokenizer=tmp_path / "tok", out=tmp_path / "data", pairs=("en", "de"))
    model = replace(recipe.model, architecture="encoder-decoder", qk_norm=True, context_length=64)
    recipe = replace(recipe, objective="sequence-pairs", model=model)
    recipe = with_train(
        recipe, tokens=20_000, batch_tokens=900, validate_every_tokens=4000, checkpoint_every_tokens=10**6
    )
    run(recipe, tmp_path / "data", tmp_path / "three", kind, processes=3)
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "one")
    assert_same_to_rounding(tmp_path / "three", tmp_path / "one")


@pytest.fixture(scope="module")
def long_recipe(recipe):
    """Return a recipe long enough to stop, with all state that a checkpoint can have. Dropout tests that every rank
    restores its random generator."""
    recipe = replace(recipe, model=replace(recipe.model, dropout=0.1))
    return with_train(
        recipe,
        tokens=7 * 32 * 120,
        optimizer="muon",
        average=0.9,
        validate_every_tokens=7 * 32 * 40,
        checkpoint_every_tokens=7 * 32 * 10,
        log_every_steps=5,
    )


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def uninterrupted(request, tmp_path_factory, long_recipe, dataset_folder):
    """Return a kind of parallelism, and an uninterrupted run on two ranks."""
    out = tmp_path_factory.mktemp(request.param) / "whole"
    run(long_recipe, dataset_folder, out, request.param)
    return request.param, out


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_that_lost_a_process_ends_and_the_same_command_resumes_it(
    tmp_path, long_recipe, dataset_folder, uninterrupted, rank
):
    kind, untouched = uninterrupted
    job = launch(long_recipe, dataset_folder, tmp_path / "run", kind)
    wait_for_step(tmp_path / "run", 30, job)
    wait_for_checkpoint(tmp_path / "run", job)
    os.kill(members(job)[rank], signal.SIGKILL)
    assert f"process {1 - rank} has lost another one of the job" in finish(job, status=1)
    assert 0 < int(latest_checkpoint(tmp_path / "run").name[5:]) < 120
    assert "resuming from step" in run(long_recipe, dataset_folder, tmp_path / "run", kind)
    assert_identical(tmp_path / "run", untouched)


def test_a_failed_rank_ignores_the_sigterm_of_torchrun_so_that_it_can_print_its_error():
    default = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(RuntimeError, match="closed by peer"), stop_on_signals(Progress(), in_job=True):
            raise RuntimeError("Connection closed by peer")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, default)
    with pytest.raises(RuntimeError), stop_on_signals(Progress()):  # one process has no torchrun to outlive
        raise RuntimeError("no space left on device")
    assert signal.getsignal(signal.SIGTERM) is default


@pytest.mark.slow
def test_torchrun_restarts_a_job_by_itself(tmp_path, long_recipe, dataset_folder, uninterrupted):
    kind, untouched = uninterrupted
    job = launch(long_recipe, dataset_folder, tmp_path / "run", kind, "--max-restarts=2")
    for step, rank in ((30, 1), (80, 0)):
        wait_for_step(tmp_path / "run", step, job)
        wait_for_checkpoint(tmp_path / "run", job)
        os.kill(members(job)[rank], signal.SIGKILL)
    assert finish(job).count("resuming from step") == 2
    assert_identical(tmp_path / "run", untouched)


@pytest.mark.slow
def test_the_processes_of_a_killed_torchrun_end_with_it(tmp_path, long_recipe, dataset_folder):
    job = launch(with_train(long_recipe, tokens=10**9), dataset_folder, tmp_path / "run", "ddp")
    wait_for_step(tmp_path / "run", 2, job)
    ranks = members(job)
    job.kill()
    job.wait()
    deadline = time.monotonic() + 60
    while any(map(is_running, ranks.values())) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = list(filter(is_running, ranks.values()))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    with lock(tmp_path / "run"):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("to", ["torchrun", "one process"])
def test_a_job_saves_before_it_stops_on_a_signal(tmp_path, long_recipe, dataset_folder, uninterrupted, to):
    kind, untouched = uninterrupted
    job = launch(long_recipe, dataset_folder, tmp_path / "run", kind)
    wait_for_step(tmp_path / "run", 30, job)
    os.kill(job.pid if to == "torchrun" else members(job)[1], signal.SIGTERM)
    assert "saved at step" in finish(job, status=1)
    assert "resuming from step" in run(long_recipe, dataset_folder, tmp_path / "run", kind)
    assert_identical(tmp_path / "run", untouched)


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("first", "second"), [("ddp", "none"), ("fsdp", "none"), ("none", "ddp"), ("none", "fsdp")])
def test_a_run_resumes_with_another_number_of_processes(tmp_path, long_recipe, dataset_folder, first, second, mixed):
    """The run reads the same blocks in the same order with the same losses, so it repeats and skips no block."""
    recipe = with_train(replace(long_recipe, model=replace(long_recipe.model, dropout=0.0)), keep_checkpoints=100)
    out = tmp_path / "run"
    data, words = dataset_folder, dataset_folder
    if mixed:
        copy = shutil.copytree(dataset_folder, tmp_path / "copy")
        data, words = {dataset_folder: 2, copy: 1}, [f"2={dataset_folder}", f"1={copy}"]

    def resume(kind, **options):
        if kind == "none":
            pretrain(recipe, data=data, out=out)
            return ""
        return run(recipe, words, out, kind, **options)

    pretrain(recipe, data=data, out=tmp_path / "one")
    resume(first)
    cut_back(out, 60)
    resume(second, **({"processes": 3} if second != "none" else {}))
    assert_same_to_rounding(out, tmp_path / "one", rel=1e-3)


def cut_back(out, step):
    """Cut the run back to its state right after the checkpoint of `step`."""
    for folder in checkpoint_folders(out):
        if int(folder.name[5:]) != step:
            shutil.rmtree(folder)
    assert latest_checkpoint(out).name == f"step-{step:07d}"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["stop", "skip", "rollback"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_losses_that_are_not_finite_stop_all_ranks_with_one_message(tmp_path, recipe, dataset_folder, kind, policy):
    """Training stops at the second step, at the first validation after skipping, or after the last rollback."""
    recipe = with_train(recipe, lr=1e25, grad_clip=0.0, warmup_tokens=0, nonfinite=policy, max_rollbacks=2)
    output = " ".join(finish(launch(recipe, dataset_folder, tmp_path / "run", kind), status=1).split())
    assert output.count("of step 2 is not finite") == (3 if policy == "rollback" else 1)
    assert output.count(": skipped") == (4 if policy == "skip" else 0)
    assert output.count("of at most 2)") == (2 if policy == "rollback" else 0)
    assert output.count("earlier checkpoints are unchanged") == 1
    assert "has lost another one" not in output


@pytest.mark.slow
def test_float16_scales_the_loss_of_two_processes_as_of_one(tmp_path, recipe, dataset_folder):
    recipe = with_train(recipe, dtype="float16")
    run(recipe, dataset_folder, tmp_path / "two", "ddp")
    pretrain(recipe, data=dataset_folder, out=tmp_path / "one")
    assert_same_to_rounding(tmp_path / "two", tmp_path / "one", rel=1e-3)


@pytest.mark.slow
def test_an_error_on_rank_0_ends_the_job(tmp_path, recipe, dataset_folder):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    output = finish(launch(recipe, dataset_folder, tmp_path / "run", "ddp"), status=1)
    assert "is not empty and holds no run" in output
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


@pytest.fixture
def single_process_job(monkeypatch):
    """Set the environment in which torchrun starts the only process of a job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **meeting}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("asked", "device", "refused"),
    [
        ({"dtype": "float16"}, "cpu", "`parallel='fsdp'` does not scale float16's loss: use `parallel='ddp'`"),
        ({"micro_batch": 0}, "cuda", "train.micro_batch is 0, and `parallel='fsdp'` cannot find out what fits a GPU"),
        ({}, "cuda", r"run was begun on another device: give `train.device='cpu'`"),
    ],
)
def test_fsdp_refuses_what_it_cannot_do_before_anything_is_written(
    tmp_path, recipe, dataset_folder, single_process_job, monkeypatch, asked, device, refused
):
    """In the last two cases the run is configured for a GPU. The process never uses one."""
    machine = Machine(torch.device(device), getattr(torch, asked.get("dtype", "float32")), "")
    monkeypatch.setattr("pipelines.training.training_run.choose_machine", lambda *_, **__: machine)
    with pytest.raises(ValueError, match=refused):
        pretrain(with_train(recipe, **asked), data=dataset_folder, out=tmp_path / "run", parallel="fsdp")
    assert not (tmp_path / "run").exists()


def test_fsdp_on_a_cpu_accepts_an_open_micro_batch(tmp_path, recipe, dataset_folder, single_process_job):
    recipe = with_train(recipe, micro_batch=0, tokens=7 * 32 * 2)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run", parallel="fsdp")
