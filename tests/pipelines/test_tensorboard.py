"""TensorBoard shows every number of metrics.jsonl once."""

import json
from collections import defaultdict

import pytest

from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import after_each_step, with_train


def scalars_of(run):
    """Return {split/tag: [(step, value)]} as TensorBoard reads the folders of the run, without purged events."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    events = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(str(run / "tensorboard")).Reload()
    return {
        f"{split}/{tag}": [(event.step, event.value) for event in events.Scalars(split, tag)]
        for split, kinds in events.Runs().items()
        for tag in kinds["scalars"]
    }


def expected_of(run):
    expected = defaultdict(list)
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name, value in line.items():
            if isinstance(value, int | float) and name != "step":
                expected[f"{line['split']}/{name}"].append((line["step"], pytest.approx(value, rel=1e-6)))
    return expected


def kill_after(step, patch):
    def die(trainer):
        if trainer.at.step == step:
            raise RuntimeError("as if the machine died")

    after_each_step(patch, die)


def test_tensorboard_has_the_numbers_of_metrics_jsonl_once_however_often_the_run_resumed(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    recipe, out = with_train(small_recipe, tensorboard=True), tmp_path / "gpt"
    for step in (27, 38):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="as if the machine died"):
            kill_after(step, patch)
            pretrain(recipe, data=dataset_folder, out=out)
    pretrain(recipe, data=dataset_folder, out=out)
    found = scalars_of(out)
    assert [step for step, _ in found["train/loss"]] == list(range(5, 51, 5))
    assert [step for step, _ in found["validation/loss"]] == list(range(0, 51, 10))
    assert found == expected_of(out)


def test_training_and_validation_loss_are_on_one_chart(tmp_path, small_recipe, dataset_folder):
    """TensorBoard draws one chart for each tag, with a line for each folder that has it."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    recipe = with_train(small_recipe, tensorboard=True, tokens=2560)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    events = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "gpt" / "tensorboard")).Reload()
    lines = [split for split, kinds in events.Runs().items() if "loss" in kinds["scalars"]]
    assert sorted(lines) == ["train", "validation"]


@pytest.mark.slow
def test_a_run_that_turns_tensorboard_on_late_shows_all_of_its_steps(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    out = tmp_path / "gpt"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        kill_after(27, patch)
        pretrain(small_recipe, data=dataset_folder, out=out)
    assert not (out / "tensorboard").exists()
    pretrain(with_train(small_recipe, tensorboard=True), data=dataset_folder, out=out)
    assert scalars_of(out) == expected_of(out)


def test_a_run_without_tensorboard_installed_is_refused_before_it_starts(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    monkeypatch.setattr("pipelines.run.metrics_log.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package tensorboard: pip install 'bytelm\[tensorboard\]'"):
        pretrain(with_train(small_recipe, tensorboard=True), data=dataset_folder, out=tmp_path / "gpt")
    assert not (tmp_path / "gpt").exists()
    pretrain(with_train(small_recipe, tokens=256), data=dataset_folder, out=tmp_path / "gpt")
