"""`bytelm runs` lists runs with their state."""

import json
import shutil
from dataclasses import replace
from datetime import datetime

from pipelines.run.folder import Run, lock
from pipelines.run.retention import latest_checkpoint
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.runs import runs


def test_runs_are_listed_with_their_state(tmp_path, trained_gpt, small_recipe, dataset_folder, printed):
    shutil.copytree(trained_gpt, tmp_path / "some" / "finished")
    longer = replace(small_recipe, train=replace(small_recipe.train, tokens=2 * small_recipe.train.tokens))
    stopped = tmp_path / "some" / "stopped"
    pretrain(longer, data=dataset_folder, out=stopped)
    shutil.rmtree(latest_checkpoint(stopped))  # as if it was killed before this file was written
    shutil.copytree(trained_gpt, tmp_path / "damaged")
    (tmp_path / "damaged" / "config.toml").write_text("objective = 3")
    printed.readouterr()
    with lock(stopped):
        busy = {run.run: run.state for run in runs([tmp_path])}
    found = {run.run: run for run in runs([tmp_path])}
    table = printed.readouterr().out
    states = {str(tmp_path / name): state for name, state in (("some/finished", "finished"), ("damaged", "damaged"))}
    assert busy == {**states, str(stopped): "training"}
    assert {name: run.state for name, run in found.items()} == {**states, str(stopped): "stopped"}
    finished = found[str(tmp_path / "some" / "finished")]
    assert finished.tokens == finished.of == small_recipe.train.tokens
    saved = json.loads((latest_checkpoint(stopped) / "state.json").read_text())
    assert found[str(stopped)].tokens == saved["tokens"] < 2 * small_recipe.train.tokens
    assert found[str(stopped)].validation_loss == saved["validation_loss"]
    assert finished.validation_loss < finished.loss + 1
    assert "objective" in found[str(tmp_path / "damaged")].why
    assert "12.8 ktok, 100%" in table


def test_the_date_of_a_run_survives_copying(tmp_path, trained_gpt, printed):
    shutil.copytree(trained_gpt, tmp_path / "copy", copy_function=shutil.copyfile)
    saved = json.loads((latest_checkpoint(trained_gpt) / "state.json").read_text())["date"]
    assert [run.date for run in runs([tmp_path])] == [saved]
    local = datetime.fromisoformat(saved).astimezone()
    assert f"{local:%Y-%m-%d %H:%M}" in printed.readouterr().out
    for damaged in ('"yesterday"', "3", "null"):
        state = latest_checkpoint(tmp_path / "copy") / "state.json"
        state.write_text(state.read_text().replace(json.dumps(saved), damaged))
        assert runs([tmp_path])[0].date == Run(trained_gpt).facts["date"]
        state.write_text((latest_checkpoint(trained_gpt) / "state.json").read_text())


def test_runs_print_json_and_report_an_empty_folder(tmp_path, trained_gpt, printed):
    (found,) = runs([trained_gpt], as_json=True)
    (line,) = json.loads(printed.readouterr().out)
    names = ["run", "date", "state", "objective", "tokens", "of", "loss", "validation_loss", "tokens_per_s"]
    assert list(line) == names and all(line[name] == getattr(found, name) for name in names)
    assert str(found).startswith(f"{trained_gpt}: finished, 12,800 of 12,800 tokens, validation loss ")
    assert runs([tmp_path]) == []
    assert "no runs in" in printed.readouterr().out


def test_imported_models_are_not_stopped(tmp_path, trained_gpt, printed):
    shutil.copytree(trained_gpt, tmp_path / "imported")
    config = tmp_path / "imported" / "config.toml"
    config.write_text(config.read_text() + 'imported_from = "somewhere"\n')
    assert [(run.run, run.state) for run in runs([tmp_path])] == [(str(tmp_path / "imported"), "imported")]


def test_a_damaged_run_is_listed_with_the_reason(tmp_path, trained_gpt, printed):
    shutil.copytree(trained_gpt, tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("objective = 3")
    runs([tmp_path])
    assert "objective is 3" in printed.readouterr().out
    (found,) = runs([tmp_path], as_json=True)
    expected = {"run": str(tmp_path / "run"), "date": "", "state": "damaged", "why": found.why}
    assert json.loads(printed.readouterr().out) == [expected]
