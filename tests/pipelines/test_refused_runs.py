"""Training refuses recipes, datasets and run folders that do not match, by name, and writes nothing."""

import errno
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lm.config import ModelConfig
from lm.lora_config import LoraConfig
from pipelines.cli.dispatch import main
from pipelines.dataset.reader import write_info
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run, lock
from pipelines.verbs.pretrain import pretrain
from tests.conftest import REPOSITORY
from tests.pipelines.training_cases import accept_config
from tokenizer import Tokenizer


def test_a_run_in_use_is_refused(tmp_path, small_recipe, dataset_folder):
    with lock(tmp_path / "run"), pytest.raises(ValueError, match="in use by another process"):
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "run")


def test_another_recipe_in_the_same_folder_is_refused_by_field(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    other = replace(small_recipe, train=replace(small_recipe.train, lr=0.5))
    with pytest.raises(ValueError, match=r"holds another run: its train.lr is 0\.002, not 0\.5"):
        pretrain(other, data=dataset_folder, out=out)


def test_another_dataset_in_the_same_folder_is_refused(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")
    info = json.loads((data / "dataset.json").read_text())
    info["corpus"]["name"] = "another"
    write_info(data, info)
    with pytest.raises(
        ValueError, match=r"was trained on other data: .* with the fingerprint .*give the run's own `data`"
    ):
        pretrain(small_recipe, data=data, out=out)


@pytest.mark.parametrize("alter", [lambda text: text.replace('"bytes": ', '"bytes": 1', 1), lambda text: text[:-3]])
def test_a_damaged_dataset_json_is_not_taken_for_another_dataset(
    tmp_path, small_recipe, dataset_folder, trained_gpt, alter
):
    out, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")
    (data / "dataset.json").write_text(alter((data / "dataset.json").read_text()))
    for folder in (out, tmp_path / "new"):
        with pytest.raises(ValueError, match=r"dataset\.json is damaged .*: build the dataset again") as error:
            pretrain(small_recipe, data=data, out=folder)
        assert "holds another run" not in str(error.value) and "remove" not in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_context_that_is_not_the_datasets_is_refused_with_both_remedies(tmp_path, small_recipe, dataset_folder):
    recipe = replace(small_recipe, model=replace(small_recipe.model, context_length=64))
    with pytest.raises(ValueError, match=r"`context_length=64`, or give `model.context_length=32`"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_not_the_datasets_is_refused(tmp_path, small_recipe, dataset_folder):
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    Tokenizer.train(["another text, another vocabulary"], vocab_size=270).save(data)
    with pytest.raises(ValueError, match=r"its tokenizer\.json is not the tokenizer"):
        pretrain(small_recipe, data=data, out=tmp_path / "run")


def test_an_objective_without_its_special_token_is_refused_by_name(tmp_path, text_folder, small_recipe):
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.train_tokenizer import train_tokenizer

    train_tokenizer(
        [str(text_folder)], vocab_size=300, out=tmp_path / "tok", special_tokens=("<|endoftext|>", "<|cls|>", "<|sep|>")
    )
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    model = replace(small_recipe.model, architecture="encoder", context_length=34)
    with pytest.raises(ValueError, match=r"needs the special token <\|mask\|>"):
        pretrain(
            replace(small_recipe, objective="masked-token", model=model), data=tmp_path / "data", out=tmp_path / "run"
        )


def test_weights_of_another_shape_are_refused(tmp_path, small_recipe, dataset_folder, trained_gpt):
    from pipelines.run.loaded_run import load_trained

    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    run = Run(out)
    save_config(out / "config.toml", replace(run.recipe, model=replace(run.recipe.model, width=64)), run.facts)
    accept_config(out)
    with pytest.raises(ValueError, match="holds the weights of another model"):
        load_trained(Run(out))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    wider = replace(small_recipe, model=replace(small_recipe.model, width=64))
    with pytest.raises(ValueError, match=r"step-0000050 holds the weights of another model \(.* does not fit\)"):
        pretrain(wider, data=dataset_folder, out=out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_written_is_a_one_line_error(
    tmp_path, small_recipe, dataset_folder, trained_gpt, monkeypatch, capsys
):
    """The folder behaves like a read-only file system, where even root cannot write."""
    out, opened = shutil.copytree(trained_gpt, tmp_path / "gpt"), Path.open

    def refused(path, mode="r", *arguments, **options):
        if out in path.parents and mode[0] != "r":
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)
    save_config(tmp_path / "recipe.toml", small_recipe, {})
    assert main(["pretrain", str(tmp_path / "recipe.toml"), "--data", str(dataset_folder), "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("bytelm pretrain: ") and said.count("\n") == 1
    assert "Read-only file system" in said and str(out) in said


def test_a_folder_with_other_files_is_not_written_to(tmp_path, small_recipe, dataset_folder):
    Tokenizer.train(["another text"], vocab_size=262).save(tmp_path / "tok")
    for there in (shutil.copytree(dataset_folder, tmp_path / "data"), tmp_path / "tok"):
        before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match="is not empty and holds no run"):
            pretrain(small_recipe, data=dataset_folder, out=there)
        assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("backend", ["flex", "closed_form"])
def test_dropout_that_the_attention_backend_lacks_is_refused_and_leaves_no_run(
    tmp_path, small_recipe, dataset_folder, backend, capsys
):
    save_config(tmp_path / "recipe.toml", small_recipe, {})
    command = ["pretrain", str(tmp_path / "recipe.toml"), "--data", str(dataset_folder), "--out", str(tmp_path / "run")]
    command += ["--train.tokens", "256", "--model.attention", backend]
    assert main(command) == 2
    assert "give model.dropout=0, or another backend" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*command, "--model.dropout", "0"]) == 0


def test_a_config_without_its_facts_is_named(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    (out / "config.toml").write_text((out / "config.toml").read_text().partition("[run]")[0])
    with pytest.raises(ValueError, match=r"config\.toml: run\.data is missing"):
        pretrain(small_recipe, data=dataset_folder, out=out)


def test_a_moved_dataset_is_remembered(tmp_path, small_recipe, dataset_folder, trained_gpt):
    from pipelines.verbs.evaluate import evaluate

    out, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")
    text = (out / "config.toml").read_text().replace(str(dataset_folder), str(tmp_path / "gone"))
    (out / "config.toml").write_text(text)
    with pytest.raises(ValueError, match="does not exist any more: name another with `data`"):
        evaluate(out)
    pretrain(small_recipe, data=data, out=out)
    assert evaluate(out).to_json()["data"] == str(data)


def test_no_gpu_is_a_clear_error(tmp_path, small_recipe, dataset_folder):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    recipe = replace(small_recipe, train=replace(small_recipe.train, device="cuda"))
    with pytest.raises(ValueError, match="PyTorch sees no GPU"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_lock_is_free_again_after_its_process_was_killed(tmp_path):
    """The lock belongs to the process: its file, which a killed process leaves behind, locks nothing."""
    out, code = (
        tmp_path / "run",
        "import sys, time; from pathlib import Path; from pipelines.run.folder import lock\n",
    )
    code += "with lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, out], stdout=subprocess.PIPE, cwd=REPOSITORY) as holder:
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(ValueError, match="in use by another process"), lock(out):
            pass
        holder.kill()
    assert (out / ".lock").exists()
    with lock(out):
        assert (out / ".lock").exists()
    assert not out.exists()


@pytest.mark.parametrize(
    ("config", "field", "named"),
    [
        (TrainConfig, {"minutes": math.inf}, r"train\.minutes"),
        (TrainConfig, {"lr": 2.0**128}, r"train\.lr"),
        (TrainConfig, {"tokens": 2**63}, r"train\.tokens"),
        (FinetuneConfig, {"grad_clip": math.inf}, "`grad_clip`"),
        (LoraConfig, {"alpha": math.nan}, r"`lora\.alpha`"),
        (ModelConfig, {"rotary_base": 1e300}, r"model\.rotary_base"),
    ],
)
def test_a_number_that_config_toml_may_not_have_is_refused(config, field, named):
    with pytest.raises(ValueError, match=rf"^{named} is out of range: its magnitude must be below 2\^(63|128)$"):
        config(**field)


def test_an_infinite_number_leaves_no_run(tmp_path, dataset_folder, in_process):
    command = ("pretrain", "gpt-tiny", "--data", dataset_folder, "--model.context-length", "32", "--out", "run")
    refused = in_process(*command, "--train.grad-clip", "inf", "--train.tokens", "2k")
    assert refused.returncode == 2 and "train.grad_clip is out of range" in refused.stderr
    assert not (tmp_path / "run").exists()
