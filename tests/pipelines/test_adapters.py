"""Runs that train adapters: what they train and save, and that every verb reads them."""

import json
import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch

import bytelm as bytelm_package
from lm.costs import count_parameters, flops_per_token, meta_model
from lm.lora import add_lora
from pipelines.cli.display import quantity
from pipelines.recipes.recipe import load_recipe
from pipelines.run.checkpoint_reader import MODEL, OPTIMIZER, read_checkpoint
from pipelines.run.folder import Run
from pipelines.run.retention import latest_checkpoint
from pipelines.training import timing
from pipelines.training.pretraining import print_plan
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.finetune import finetune
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.gguf_cases import random_run
from tests.pipelines.training_cases import after_each_step, assert_same_run, metrics_of, weights_of
from tokenizer import Tokenizer

TRAIN = {"epochs": 2, "batch_size": 8, "lr": 3e-3, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return 40 texts that one of two words labels."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = [{"text": f"{word} {i} = {i}", "label": word} for i in range(20) for word in ("import", "return")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, trained_bert, rows):
    """Return the folder of an encoder that was fine-tuned with adapters."""
    out = tmp_path_factory.mktemp("adapted") / "run"
    lora = {"rank": 2, "targets": ("query", "down")}
    finetune(trained_bert, data=rows, out=out, train=TRAIN, lora=lora, compare_scratch=False)
    return out


@pytest.fixture(scope="module")
def adapted_gpt(tmp_path_factory, small_recipe, trained_gpt, dataset_folder):
    """Return the folder of a decoder whose pretraining went on with adapters, which it averaged."""
    out = tmp_path_factory.mktemp("adapted") / "gpt"
    train = replace(small_recipe.train, average=0.9)
    recipe = replace(small_recipe, lora=replace(small_recipe.lora, rank=2, targets=("all",)), train=train)
    pretrain(recipe, data=dataset_folder, out=out, init_from=trained_gpt)
    return out


def test_only_adapters_and_head_train_and_the_checkpoint_holds_the_whole_model(adapted, trained_bert):
    base, weights = weights_of(trained_bert), weights_of(adapted)
    body = {name.removeprefix("body."): tensor for name, tensor in weights.items() if name.startswith("body.")}
    adapters = {name for name in body if ".lora_" in name}
    assert {name.rpartition(".")[0] for name in adapters} == {
        "encoder.blocks.0.attention.query",
        "encoder.blocks.0.mlp.down",
    }
    assert all(torch.equal(body[name], base[name]) for name in body.keys() - adapters)
    assert all(body[name].any() for name in adapters)
    run = Run(adapted)
    saved = read_checkpoint(latest_checkpoint(adapted), run.settings, MODEL, OPTIMIZER).tensors(OPTIMIZER)
    trained = {name for name in weights if ".lora_" in name or name.startswith("head.")}
    assert {key.rpartition("/")[0] for key in saved} == trained


def test_a_loaded_run_has_the_shape_of_its_base_and_the_results_of_the_training(adapted, adapted_gpt, trained_gpt):
    run, base = bytelm_package.load_run(adapted_gpt), bytelm_package.load_run(trained_gpt)
    assert count_parameters(run.model) == count_parameters(base.model)
    evaluation = bytelm_package.evaluate(run).validation
    assert evaluation.cross_entropy < bytelm_package.evaluate(base).validation.cross_entropy
    ids = torch.arange(20)[None] + 200
    assert not torch.equal(run.model(ids), base.model(ids))
    assert isinstance(bytelm_package.generate(run, prompt="import", tokens=4), str)
    results = bytelm_package.evaluate(adapted).splits["validation"]
    [prediction] = bytelm_package.predict(adapted, text=("import 3 = 3",))
    assert prediction["prediction"] in ("import", "return")
    assert results.accuracy is not None


def test_the_validation_loss_of_the_training_is_that_of_the_merged_weights(adapted, rows):
    last = [line for line in metrics_of(adapted) if line["split"] == "validation"][-1]
    assert bytelm_package.evaluate(adapted).splits["validation"].label_nats == pytest.approx(last["loss"], rel=1e-5)


def test_a_stopped_run_with_adapters_resumes_exactly(tmp_path, trained_bert, rows, monkeypatch):
    def train(out):
        lora = {"rank": 2, "targets": ("all",), "dropout": 0.2}
        finetune(trained_bert, data=rows, out=out, train=TRAIN, lora=lora, compare_scratch=False)

    train(tmp_path / "whole")
    with monkeypatch.context() as patch:
        after_each_step(patch, lambda trainer: trainer.at.step == 3 and os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "stopped")
    train(tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_with_adapters_is_the_base_of_another(tmp_path, adapted_gpt, dataset_folder, small_recipe):
    still = replace(small_recipe, train=replace(small_recipe.train, lr=1e-12, tokens=512))
    pretrain(still, data=dataset_folder, out=tmp_path / "next", init_from=adapted_gpt)
    ids = torch.arange(20)[None] + 200
    hidden = [bytelm_package.load_run(folder).model(ids) for folder in (tmp_path / "next", adapted_gpt)]
    torch.testing.assert_close(*hidden)


def test_an_export_folds_adapters_in_and_peft_opens_them_alone(tmp_path, in_process, adapted_gpt, trained_gpt):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    for words in (
        [trained_gpt, "--out", "base"],
        [adapted_gpt, "--out", "all"],
        [adapted_gpt, "--adapter", "--out", "lora"],
    ):
        done = in_process("export-hf", *words)
        assert done.returncode == 0, done.stderr
    assert in_process("import-hf", "base", "--adapter", "lora", "--out", "again").returncode == 0
    merged, base = (transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("all", "base"))
    ids = torch.arange(20)[None] + 200
    with torch.no_grad():
        plain = base(ids).logits
        beside = peft.PeftModel.from_pretrained(base, tmp_path / "lora").eval()
        expected = logits(adapted_gpt, ids)
        assert float((plain - expected).abs().max()) > 1e-2
        for found in (merged(ids).logits, beside(ids).logits, logits(tmp_path / "again", ids)):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("base", "changes", "name"),
    [
        ({"positions": "learned", "context_length": 64}, {"context_length": 32}, r"model\.context_length"),
        ({"context_length": 16}, {"context_length": 32, "rotary_base": 20_000.0}, r"model\.rotary_base"),
    ],
)
def test_adapters_of_a_run_with_another_context_or_rotation_than_its_base_are_not_exported_alone(
    base, changes, name, tmp_path, small_recipe, dataset_folder
):
    source = random_run(tmp_path / "base", Tokenizer.load(dataset_folder), **base)
    train = replace(small_recipe.train, tokens=512, warmup_tokens=0)
    model, lora = replace(Run(source).recipe.model, **changes), replace(small_recipe.lora, rank=2)
    recipe = replace(small_recipe, model=model, lora=lora, train=train)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run", init_from=source)
    with pytest.raises(
        ValueError, match=rf"{name} of .* differs from that of its base .*/base: .*: leave `adapter` out"
    ):
        export_hf(tmp_path / "run", adapter=True, out=tmp_path / "lora")
    assert not (tmp_path / "lora").exists()
    assert export_hf(tmp_path / "run", out=tmp_path / "merged").is_dir()


def test_adapters_without_their_base_are_not_exported_alone(tmp_path, adapted_gpt, trained_gpt):
    run = shutil.copytree(adapted_gpt, tmp_path / "run")
    config = (run / "config.toml").read_text(encoding="utf-8")
    assert str(trained_gpt.resolve()) in config
    (run / "config.toml").write_text(config.replace(str(trained_gpt.resolve()), str(tmp_path / "gone")))
    with pytest.raises(ValueError, match=r"the base of the adapters of .* cannot be read .*: leave `adapter` out"):
        export_hf(run, adapter=True, out=tmp_path / "lora")


def logits(run, ids):
    model = bytelm_package.load_run(run).model
    return model.logits(model(ids))


def test_an_adapter_needs_a_run_that_trained_one(in_process, trained_gpt):
    done = in_process("export-hf", trained_gpt, "--adapter", "--out", "lora")
    assert done.returncode != 0
    assert "has no adapters: leave --adapter out" in done.stderr


def test_the_adapters_of_a_run_are_fixed(adapted, trained_bert, rows):
    assert load_recipe(adapted / "config.toml").lora.targets == ("query", "down")
    for lora in ({"rank": 3, "targets": ("query", "down")}, {}):
        with pytest.raises(ValueError, match=f"holds another run: its lora.rank is 2, not {lora.get('rank', 0)}"):
            finetune(trained_bert, data=rows, out=adapted, train=TRAIN, lora=lora)


def test_adapters_of_random_weights_are_refused(in_process, tmp_path, trained_bert, dataset_folder, rows):
    done = in_process("finetune", trained_bert, "--data", rows, "--out", "out", "--from-scratch", "--lora.rank", 2)
    assert done.returncode != 0
    assert "--from-scratch and --lora.rank exclude each other" in done.stderr
    done = in_process("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", "out", "--lora.rank", 2)
    assert done.returncode != 0
    assert "--lora.rank is given without --init-from, but random weights must train" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_task_that_keeps_the_language_model_trains_adapters_and_stops_by_its_own_number(tmp_path, trained_gpt):
    rows = [{"source": f"copy {i}", "target": f"{i} copied"} for i in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = tmp_path / "writer"
    finetune(
        trained_gpt,
        task="text-to-text",
        data=tmp_path / "pairs.jsonl",
        held_out=0.3,
        out=out,
        train={**TRAIN, "epochs": 2, "patience": 1},
        lora={"rank": 2},
        compare_scratch=False,
    )
    lines = [line for line in metrics_of(out) if line["split"] == "validation"]
    run = bytelm_package.load_run(out)
    names = set(lines[-1]) - {"step", "tokens", "split", "loss"}
    evaluation = run.evaluate().splits["validation"]
    shown = next(number.name for number in type(evaluation.results[0]).numbers().values() if number.headline)
    assert names == {shown}
    assert count_parameters(run.model) == count_parameters(bytelm_package.load_run(trained_gpt).model)
    ids = torch.arange(20)[None] + 200
    assert not torch.equal(logits(out, ids), logits(trained_gpt, ids))


def test_the_plan_of_a_pretraining_with_adapters_has_their_costs(
    small_recipe, trained_gpt, dataset_folder, tmp_path, printed, monkeypatch
):
    monkeypatch.setattr(timing, "WARM_UP_STEPS", 0)
    monkeypatch.setattr(timing, "MEASURED_STEPS", 1)
    recipe = replace(small_recipe, lora=replace(small_recipe.lora, rank=2))
    print_plan(recipe, {dataset_folder: 1}, tmp_path / "run", trained_gpt)
    shown, model = printed.readouterr().out, meta_model(Run(trained_gpt).recipe.model)
    whole = count_parameters(model)
    add_lora(model, recipe.lora)
    adapters = count_parameters(model) - whole
    assert f"would train {adapters} parameters" in shown
    assert f"compute: {quantity(flops_per_token(model) * recipe.train.tokens, 'FLOP')};" in shown
    memory = 4 * (whole + adapters) + 4 * adapters + 8 * adapters  # weights; gradients and moments of the adapters
    assert f"memory: {quantity(memory, 'B')} for weights, gradients and optimizer" in shown
    assert f"checkpoints of about {quantity(4 * (whole + adapters) + 8 * adapters, 'B')} each" in " ".join(
        shown.split()
    )
