"""All contestants of the pretraining benchmark train the same model on the same batches."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from benchmarks import pretrain
from benchmarks.limits import device_bandwidth
from benchmarks.training_models import CASES, OURS, PADDED, build_ours, litgpt_model, transformers_model
from benchmarks.training_profile import group_of, seconds_by_group
from benchmarks.training_worker import Job, OurSteps, batch_of
from lm.costs import count_parameters, meta_model

SMALL = {"--steps": "8", "--warm-up": "4", "--turn": "2", "--rise": "2"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Invented words, some of them frequent: enough for the smallest vocabulary."""
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("aeiounrstlkm"), size)) for size in draw.integers(1, 9, 400)]
    path.write_text(" ".join(words[i % 400] for i in draw.zipf(1.3, 60_000)), encoding="utf-8")
    return path


def run(text, out, *more: str) -> dict:
    arguments = [part for pair in SMALL.items() for part in pair]
    pretrain.main(["--text", str(text), "--device", "cpu", "--dtype", "float32", "--out", str(out), *arguments, *more])
    return json.loads((out / "cpu-float32.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-gpt2-parts", "tiny-bert"])
def test_our_contestant_trains_on_the_given_batches(model, tmp_path):
    ids = np.random.default_rng(0).integers(5, 512, 5_000).astype(np.uint16)
    ids.tofile(tmp_path / "ids")
    steps = OurSteps(Job(OURS, model, "cpu", "float32", False, str(tmp_path / "ids"), 6, 1), CASES[model], ids)
    losses = [steps.train() for _ in range(3)]
    steps.queue()
    assert losses[0] == pytest.approx(np.log(512), rel=0.02) and len({*losses}) == 3


@pytest.mark.slow
def test_contestants_start_from_the_same_weights_and_reach_the_same_loss(text, tmp_path):
    result = run(text, tmp_path, "--models", "tiny-gpt2", "--no-compiled")
    (case,) = result["models"]
    rows = {row["contestant"]: row for row in case["rows"]}
    ours, theirs = rows["bytelm"], rows["transformers"]
    assert ours["losses"][0] == pytest.approx(theirs["losses"][0], rel=1e-3)
    assert theirs["same_loss"] and len(ours["seconds"]) == 4
    assert ours["to_best_peer"] == pytest.approx(theirs["step_s"] / ours["step_s"])
    moved = 40 * count_parameters(meta_model(CASES["tiny-gpt2"].config))
    assert (case["bytes_per_step"], ours["mfu"]) == (moved, None)
    assert case["floor_bytes_s"] == pytest.approx(moved / case["read_bytes_per_s"])
    groups = ours["profile"]["groups"]
    assert {"head and loss", "optimizer and clipping", "matrix products of the layers"} <= set(groups)
    page = (tmp_path / "cpu-float32.md").read_text(encoding="utf-8")
    if find_spec("litgpt") is None:
        assert "| litgpt | failed: ended with status 1: ModuleNotFoundError: No module named 'litgpt'" in page
    assert "at the measured read bandwidth" in page and "in seconds of the main thread" in page
    assert "All losses agree after 8 steps" in page and str(text.parent) not in page


@pytest.mark.slow
def test_accumulated_parts_of_a_batch_reach_the_loss_of_the_whole_batch(text, tmp_path):
    options = ("--no-compiled", "--peers", "transformers", "--models")
    whole, parts = (
        run(text, tmp_path / name, *options, name)["models"][0] for name in ("tiny-gpt2", "tiny-gpt2-parts")
    )
    assert [row["contestant"] for row in parts["rows"]] == ["bytelm", "transformers"]
    for one, other in zip(whole["rows"], parts["rows"], strict=True):
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [("--turn", "2"), ("--turn", "0"), ("--together", "3")], ids=" ".join)
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-bert"])
def test_compiled_contestants_reach_the_same_loss(text, tmp_path, model, turns):
    (case,) = run(text, tmp_path, "--models", model, *turns)["models"]
    rows = {row["contestant"]: row for row in case["rows"]}
    for name in ("bytelm", "bytelm, compiled", "transformers", "transformers, compiled"):
        assert rows[name]["same_loss"], rows[name]
    assert rows["transformers, compiled"]["first_step_s"] > 3 * rows["transformers"]["step_s"]


def test_a_model_that_is_measured_again_leaves_the_others(text, tmp_path, monkeypatch):
    counts = ("steps", "timed_steps", "flops_per_token", "matrix_flops", "floor_tokens_per_s", "floor_s")
    labels = {"shape": "tiny", "rows": [], "versions": {}, "turns": "", "verdict": ""}
    monkeypatch.setattr(pretrain, "measure", lambda model, *_: {"model": model, **dict.fromkeys(counts, 1), **labels})
    run(text, tmp_path, "--models", "tiny-bert", "tiny-gpt2")
    result = run(text, tmp_path, "--models", "tiny-bert", "--rise", "1")
    commands = {case["model"]: case["command"] for case in result["models"]}
    assert list(commands) == ["tiny-gpt2", "tiny-bert"]
    assert commands["tiny-gpt2"].endswith("tiny-bert tiny-gpt2") and commands["tiny-bert"].endswith("--rise 1")
    page = (tmp_path / "cpu-float32.md").read_text(encoding="utf-8")
    assert all(command in page for command in commands.values())


@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama", "tiny-bert"])
def test_transformers_computes_what_we_do(model):
    ours = build_ours(CASES[model]).eval()
    ids = torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = transformers_model(ours).eval()(ids).logits
        torch.testing.assert_close(theirs, ours.logits(ours(ids)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
def test_litgpt_computes_what_we_do(model):
    pytest.importorskip("litgpt")
    ours = build_ours(CASES[model]).eval()
    ids = torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(litgpt_model(ours).eval()(ids), ours.logits(ours(ids)), atol=1e-4, rtol=1e-4)


def test_the_published_shapes_are_the_published_sizes():
    from lm.costs import count_parameters, meta_model

    assert CASES["gpt2-124m-524k"].tokens == 2**19
    sizes = {"gpt2-124m": 124.5e6, "gpt2-350m": 355e6, "gpt3-1.3b": 1.32e9, "bert-base": 110e6}
    for name, size in sizes.items():
        assert count_parameters(meta_model(CASES[name].config)) == pytest.approx(size, rel=0.02), name
        assert CASES[name].config.vocab_size % 64 == 0 and CASES[name].config.vocab_size <= PADDED


def test_a_batch_depends_only_on_its_step():
    case, tokens = CASES["tiny-bert"], np.arange(10_000, dtype=np.uint16) % 512
    first, again, next_ = batch_of(case, tokens, 3), batch_of(case, tokens, 3), batch_of(case, tokens, 4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], next_[1])
    inputs, targets, weights = first
    assert inputs.shape == targets.shape == weights.shape == (4, 32)
    assert np.array_equal(inputs[weights == 0], targets[weights == 0])


def test_the_memory_bandwidth_is_that_of_a_memory():
    assert 1e8 < device_bandwidth("cpu") < 1e13


def test_a_profile_accounts_for_the_whole_step():
    x = torch.randn(256, 256, requires_grad=True)
    profile = seconds_by_group(lambda: torch.nn.functional.gelu(x @ x).sum().backward(), 3, "cpu")
    assert sum(profile["groups"].values()) == pytest.approx(profile["step"], rel=0.01)
    assert {"matrix products of the layers", "activations"} <= set(profile["groups"])
    assert group_of(["aten::mm", "_LinearCrossEntropy"]) == "head and loss"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--steps", "4"], "multiple of --turn"),
        (["--turn", "3"], "multiple of --turn"),
        (["--litgpt-python", "no/such/python"], "no/such/python: there is no such interpreter"),
        (["--text", "no/such/text.txt"], "no/such/text.txt"),
    ],
)
def test_invalid_options_are_refused_in_a_sentence(text, tmp_path, wrong, message, capsys):
    with pytest.raises(SystemExit):
        run(text, tmp_path, *wrong)
    assert message in capsys.readouterr().err
