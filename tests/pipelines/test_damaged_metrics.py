"""A run with a damaged metrics.jsonl resumes with a warning and keeps the whole lines."""

import json
import shutil
import warnings

import pytest

from pipelines.run.folder import Run
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import assert_same_run

DAMAGES = {
    "cut in the middle of a line": lambda lines: "".join(lines)[:300],
    "cut at the end of a line": lambda lines: "".join(lines[:2]),
    "a line removed": lambda lines: "".join([lines[0], *lines[2:]]),
    "a line garbled": lambda lines: "".join([lines[0], "#" + lines[1], *lines[2:]]),
    "a digit altered": lambda lines: "".join(lines).replace('"step": 5,', '"step": 4,', 1),
    "emptied": lambda lines: "",
}


@pytest.fixture
def stopped(tmp_path, trained_gpt):
    """A run as a kill after step 40 leaves it: its metrics go beyond its checkpoint."""
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    shutil.rmtree(out / "checkpoints" / "step-0000050")
    return out


def lines_of(path):
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize("damage", DAMAGES)
def test_lines_before_the_checkpoint_are_not_lost_silently(damage, stopped, small_recipe, dataset_folder):
    path = stopped / "metrics.jsonl"
    before = lines_of(path)
    path.write_text(DAMAGES[damage](before))
    damaged = path.read_text()
    left = [line for line in lines_of(path) if line in before and json.loads(line)["step"] <= 40]
    with pytest.warns(UserWarning, match=r"truncated or altered before step 40: \d+ whole lines are kept"):
        pretrain(small_recipe, data=dataset_folder, out=stopped)
    copy = stopped / "metrics.damaged-1.jsonl"
    assert copy.exists() == (damaged != "".join(left))  # no copy of a file of which no line is dropped
    assert not copy.exists() or copy.read_text() == damaged
    assert [line for line in lines_of(path) if json.loads(line)["step"] <= 40 and line in before] == left
    assert [record["step"] for record in Run(stopped).metrics()][-2:] == [50, 50]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning is not repeated
        pretrain(small_recipe, data=dataset_folder, out=stopped)


@pytest.mark.parametrize("after", ['{"step": 45, "tok', "garbage\n", ""])
def test_lines_after_the_checkpoint_may_be_damaged(after, stopped, trained_gpt, small_recipe, dataset_folder):
    path = stopped / "metrics.jsonl"
    path.write_text("".join(line for line in lines_of(path) if json.loads(line)["step"] <= 40) + after)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pretrain(small_recipe, data=dataset_folder, out=stopped)
    assert_same_run(stopped, trained_gpt)


def test_a_finished_run_is_not_copied_each_time(tmp_path, trained_gpt, small_recipe, dataset_folder):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    path = out / "metrics.jsonl"
    path.write_text("".join(lines_of(path)[1:]))
    before = path.read_text()
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"before step 50: \d+ whole lines are kept$"):
            pretrain(small_recipe, data=dataset_folder, out=out)
    assert path.read_text() == before
    assert not list(out.glob("metrics.damaged*"))
