"""--init-from: a run starts from the weights of a trained or imported run."""

import json
import shlex
import shutil
from dataclasses import replace

import pytest
import torch

from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.manifest import manifest_sha256
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.run.text_ids import text_ids
from pipelines.training.pretraining import print_plan
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.finetune import finetune
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.exchange_cases import save_peer
from tests.pipelines.training_cases import assert_same_run, metrics_of, stop_after, weights_of, with_train
from tests.tasks.files import write

OWN = ("trained_gpt", "trained_bert", "trained_t5", pytest.param("trained_translator", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def other_data(tmp_path_factory, tokenizer_folder, text_folder):
    """Return a dataset of other text, in blocks of 34 tokens, with the tokenizer of the runs."""
    folder = tmp_path_factory.mktemp("other")
    texts = sorted(text_folder.iterdir())[:30]
    (folder / "upper.txt").write_text("".join(path.read_text().upper() for path in texts))
    build_dataset([str(folder / "upper.txt")], tokenizer=tokenizer_folder, context_length=34, out=folder / "data")
    return folder / "data"


@pytest.fixture(scope="module")
def imported(tmp_path_factory, tokenizer_folder, pair_dataset):
    """Return get(kind), which returns a run imported from a random model of `transformers`.

    Its vocabulary has more entries than its tokenizer.
    """
    folder = tmp_path_factory.mktemp("imported")

    def get(kind):
        tok, entries = (pair_dataset, 272) if kind == "t5" else (tokenizer_folder, 520)
        save_peer(folder / kind, kind, tok, entries)
        return import_hf(str(folder / kind), out=folder / f"{kind}-run", overwrite=True)

    return get


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory, trained_gpt):
    """Return a run that `trained_gpt` was fine-tuned to, for a task without a head of its own."""
    folder = tmp_path_factory.mktemp("fine-tuned")
    rows = write(folder / "rows.jsonl", [{"source": str(n), "target": str(n + 1)} for n in range(8)])
    train = {"epochs": 1, "device": "cpu", "dtype": "float32"}
    task = {"task": "text-to-text", "options": {"write": 0}, "train": train, "compare_scratch": False}
    finetune(trained_gpt, data=[rows], test=[rows], out=folder / "run", **task)
    return folder / "run"


def short(recipe, source, **train):
    """Return a recipe with the model of `source`, for a few steps that validate on all blocks."""
    of_source = Run(source).recipe
    recipe = replace(recipe, objective=of_source.objective, model=of_source.model)
    return with_train(recipe, **{"tokens": 512, "warmup_tokens": 0, "validation_tokens": 10**6, **train})


def first_validation(run):
    line = next(line for line in metrics_of(run) if line["split"] == "validation")
    assert line["step"] == line["tokens"] == 0
    return line["loss"]


def evaluated(run, data):
    return evaluate(run, data=data, beams=0).validation.cross_entropy


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("source", OWN)
def test_loss_before_the_first_step_equals_that_of_evaluate(source, small_recipe, request, tmp_path):
    source = request.getfixturevalue(source)
    data = Run(source).data
    pretrain(short(small_recipe, source), data=data, out=tmp_path / "run", init_from=source)
    assert first_validation(tmp_path / "run") == pytest.approx(evaluated(source, data), rel=2e-6)


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.slow), "bert", "t5"])
def test_loss_before_the_first_step_equals_that_of_evaluate_for_an_imported_run(
    kind, imported, small_recipe, dataset_folder, other_data, pair_dataset, tmp_path
):
    source = imported(kind)
    data = {"bert": dataset_folder, "t5": pair_dataset}.get(kind, other_data)
    pretrain(short(small_recipe, source), data=data, out=tmp_path / "run", init_from=source)
    assert first_validation(tmp_path / "run") == pytest.approx(evaluated(source, data), rel=2e-6)
    new, old = (text_ids(run, run.tokenizer()) for run in (Run(tmp_path / "run"), Run(source)))
    assert replace(new, before=old.before) == old  # a decoder's documents begin as in the new dataset


def test_new_run_begins_at_step_0_with_the_weights_of_its_source_and_records_the_checkpoint(
    trained_gpt, small_recipe, dataset_folder, tmp_path
):
    recipe = short(small_recipe, trained_gpt)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run", init_from=trained_gpt)
    first, last = checkpoint_folders(tmp_path / "run")
    assert json.loads((first / "state.json").read_text())["tokens"] == 0
    assert same(load_trained(Run(tmp_path / "run"), checkpoint="0").model.state_dict(), weights_of(trained_gpt))
    assert not same(weights_of(tmp_path / "run"), weights_of(trained_gpt))
    assert (first / "optimizer.safetensors").stat().st_size < (last / "optimizer.safetensors").stat().st_size
    facts, checkpoint = Run(tmp_path / "run").facts, latest_checkpoint(trained_gpt)
    assert facts["init_from"] == str(trained_gpt.resolve())
    assert facts["init_from_checkpoint"] == checkpoint.name
    assert facts["init_from_sha256"] == manifest_sha256(checkpoint)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(facts["init_from_sha256"], "0" * 64))
    with pytest.raises(ValueError, match=r"run\.init_from_sha256"):
        load_trained(Run(tmp_path / "run"))


def test_averaged_weights_are_loaded_and_the_parts_left_out_are_named(small_recipe, dataset_folder, tmp_path, printed):
    averaging = with_train(small_recipe, average=0.9, tokens=2560)
    pretrain(averaging, data=dataset_folder, out=tmp_path / "source")
    printed.readouterr()
    recipe = short(small_recipe, tmp_path / "source", average=0.99)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run", init_from=tmp_path / "source")
    said = printed.readouterr().out
    assert "starts from the averaged weights of" in said
    assert "not loaded: optimizer state, progress, weights before averaging" in said
    start = load_trained(Run(tmp_path / "run"), checkpoint="0").model.state_dict()
    assert same(start, load_trained(Run(tmp_path / "source")).model.state_dict())
    assert not same(start, weights_of(tmp_path / "source"))


def test_resumed_run_needs_no_source_and_ends_with_the_same_weights(
    trained_gpt, small_recipe, dataset_folder, tmp_path, monkeypatch, in_process
):
    source = shutil.copytree(trained_gpt, tmp_path / "source")
    recipe = with_train(small_recipe, tokens=256 * 20)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole", init_from=source)
    with monkeypatch.context() as patch:
        stop_after(7, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, data=dataset_folder, out=tmp_path / "run", init_from=source)
    shutil.rmtree(source)
    done = in_process("pretrain", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_run_stopped_before_its_first_checkpoint_starts_again_from_its_source(
    trained_gpt, small_recipe, dataset_folder, tmp_path
):
    source = shutil.copytree(trained_gpt, tmp_path / "source")
    recipe, run = short(small_recipe, source), tmp_path / "run"
    pretrain(recipe, data=dataset_folder, out=run, init_from=source)
    again = shutil.copytree(run, tmp_path / "again")
    for started in (run, again):
        shutil.rmtree(started / "checkpoints")
    pretrain(recipe, data=dataset_folder, out=again, init_from=source)
    assert first_validation(again) == first_validation(run)
    shutil.rmtree(source)
    with pytest.raises(ValueError, match="has no checkpoint yet, and its start cannot be repeated"):
        pretrain(recipe, data=dataset_folder, out=run, init_from=source)


def test_run_with_another_start_is_refused(trained_gpt, small_recipe, dataset_folder, tmp_path):
    recipe, run = short(small_recipe, trained_gpt), tmp_path / "run"
    pretrain(recipe, data=dataset_folder, out=run, init_from=trained_gpt)
    with pytest.raises(ValueError, match=r"started from the weights of .*, not from random weights"):
        pretrain(recipe, data=dataset_folder, out=run)
    with pytest.raises(ValueError, match=r"started from the weights of .*, not from the weights of"):
        pretrain(recipe, data=dataset_folder, out=run, init_from=run)
    with pytest.raises(ValueError, match=r"started from random weights, not from the weights of"):
        pretrain(Run(trained_gpt).recipe, data=dataset_folder, out=trained_gpt, init_from=run)
    moved = shutil.copytree(trained_gpt, tmp_path / "moved")
    pretrain(recipe, data=dataset_folder, out=run, init_from=moved)


def test_differing_fields_are_all_listed_with_the_options_that_set_them(
    small_recipe, trained_gpt, dataset_folder, tmp_path, in_process
):
    # Some fields are set by the recipe only, others by the run only.
    model = replace(small_recipe.model, layers=2, width=64, bias=True, positions="learned", qk_norm=True, norm_eps=1e-6)
    save_config(tmp_path / "recipe.toml", replace(small_recipe, model=model), {})
    words = ["pretrain", tmp_path / "recipe.toml", "--data", dataset_folder, "--out", tmp_path / "run"]
    words += ["--init-from", trained_gpt]
    refused = in_process(*words)
    assert refused.returncode == 1
    said = refused.stderr.removeprefix("bytelm pretrain: ")
    for field in ("layers 1 (recipe: 2)", "width 32 (recipe: 64)", "bias False (recipe: True)", "qk_norm False"):
        assert f"model.{field}" in said
    assert said.count("(recipe: ") == 6
    options = shlex.split(said[said.index("; give ") : said.index(", or leave")])[2:]
    assert in_process(*words, *options, "--dry-run").returncode == 0
    assert not (tmp_path / "run").exists()


def test_source_of_another_architecture_is_refused(small_recipe, trained_bert, dataset_folder, tmp_path):
    with pytest.raises(ValueError, match=r"model\.architecture 'encoder' \(recipe: 'decoder'\).*`objective='masked-t"):
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "run", init_from=trained_bert)
    assert not (tmp_path / "run").exists()


def test_default_and_the_number_it_stands_for_are_the_same_model(small_recipe, trained_gpt, dataset_folder, tmp_path):
    recipe = short(small_recipe, trained_gpt)
    recipe = replace(recipe, model=replace(recipe.model, mlp_width=128, kv_heads=2, head_width=16, vocab_size=0))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run", init_from=trained_gpt)


def test_fields_that_do_not_change_the_weights_may_differ_and_are_printed(
    small_recipe, trained_gpt, dataset_folder, tmp_path, printed
):
    recipe = short(small_recipe, trained_gpt)
    recipe = replace(recipe, model=replace(recipe.model, dropout=0.0, attention="reference", document_mask=True))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run", init_from=trained_gpt)
    said = " ".join(printed.readouterr().out.split())
    assert f"differs from {trained_gpt}: model.".replace(" ", "") in said.replace(" ", "")
    changes = ("document_mask True (was False)", "dropout 0.0 (was 0.1)", "attention 'reference' (was 'auto')")
    assert all(f"model.{change}" in said for change in changes)


def test_encoder_decoder_continues_with_another_objective(trained_t5, small_recipe, sentinel_dataset, tmp_path):
    (tmp_path / "pairs.jsonl").write_text("".join(f'{{"a": "x{i}", "b": "y{i}"}}\n' for i in range(100)))
    build_dataset([str(tmp_path / "pairs.jsonl")], pairs=("a", "b"), tokenizer=sentinel_dataset, out=tmp_path / "data")
    recipe = replace(short(small_recipe, trained_t5), objective="sequence-pairs")
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run", init_from=trained_t5)


def test_longer_context_allows_rotary_scaling(small_recipe, trained_gpt, other_data, tmp_path):
    recipe = short(small_recipe, trained_gpt)
    scaled = {"rotary_scaling": "yarn", "rotary_factor": 2.0, "rotary_original_length": 32}
    longer = replace(recipe, model=replace(recipe.model, context_length=34, **scaled))
    pretrain(longer, data=other_data, out=tmp_path / "run", init_from=trained_gpt)
    with pytest.raises(ValueError, match=r"model\.rotary_scaling 'none' \(recipe: 'yarn'\)"):
        same_length = replace(recipe, model=replace(recipe.model, **scaled))
        pretrain(same_length, data=other_data, out=tmp_path / "other", init_from=trained_gpt)


def test_learned_positions_are_resized_to_another_context(imported, small_recipe, dataset_folder, other_data, tmp_path):
    recipe = short(small_recipe, source := imported("gpt2"))
    shorter = replace(recipe, model=replace(recipe.model, context_length=32))
    pretrain(shorter, data=dataset_folder, out=tmp_path / "short", init_from=source)
    rows = load_trained(Run(source)).model.decoder.positional.learned.weight
    cut = load_trained(Run(tmp_path / "short"), checkpoint="0").model.decoder.positional.learned.weight
    assert torch.equal(cut, rows[:32])
    pretrain(recipe, data=other_data, out=tmp_path / "long", init_from=tmp_path / "short")
    cut = load_trained(Run(tmp_path / "short")).model.decoder.positional.learned.weight
    longer = load_trained(Run(tmp_path / "long"), checkpoint="0").model.decoder.positional.learned.weight
    assert torch.equal(longer, torch.cat((cut, cut[:2])))


def test_dataset_of_another_tokenizer_is_refused(small_recipe, trained_gpt, sentinel_dataset, tmp_path):
    with pytest.raises(ValueError, match=r"was built with another tokenizer than .*build a dataset with `tokenizer='"):
        pretrain(small_recipe, data=sentinel_dataset, out=tmp_path / "run", init_from=trained_gpt)
    assert not (tmp_path / "run").exists()


def test_without_a_recipe_the_recipe_of_the_source_is_used(trained_gpt, dataset_folder, tmp_path, in_process):
    words = ["--data", dataset_folder, "--out", tmp_path / "run", "--train.tokens", "512", "--train.device", "cpu"]
    assert "would train" in in_process("pretrain", "--init-from", trained_gpt, *words, "--dry-run").stdout
    done = in_process("pretrain", "--init-from", trained_gpt, *words)
    assert done.returncode == 0, done.stderr
    assert Run(tmp_path / "run").recipe.model == Run(trained_gpt).recipe.model
    assert Run(tmp_path / "run").recipe.train.lr == Run(trained_gpt).recipe.train.lr


def test_a_fine_tuned_source_lends_its_model_and_not_its_task(fine_tuned, dataset_folder, tmp_path, in_process):
    words = ["--data", dataset_folder, "--out", tmp_path / "run", "--train.tokens", "512", "--train.warmup-tokens", "0"]
    done = in_process("pretrain", "--init-from", fine_tuned, *words)
    assert done.returncode == 0, done.stderr
    recipe, train = Run(fine_tuned).recipe, {"tokens": 512, "warmup_tokens": 0}
    pretrain(recipe, data=dataset_folder, out=tmp_path / "python", init_from=fine_tuned, train=train)
    for out in (tmp_path / "run", tmp_path / "python"):
        run = Run(out)
        assert (run.recipe.task, run.recipe.finetune, run.recipe.trained_for) == (None, None, "next-token")
        assert run.recipe.model == recipe.model and run.data == dataset_folder.resolve()
    resumed = in_process("pretrain", "--out", tmp_path / "run", "--train.tokens", "1024")
    assert resumed.returncode == 0, resumed.stderr


def test_a_run_that_pretraining_did_not_make_is_refused_with_its_remedy(
    fine_tuned, imported, dataset_folder, tmp_path, in_process
):
    expected = {
        fine_tuned: "was fine-tuned for the task text-to-text: repeat its bytelm finetune command to resume it",
        imported("gpt2"): "was imported, and training cannot resume it: choose another --out",
    }
    for folder, message in expected.items():
        before = (folder / "config.toml").read_bytes()
        for more in ((), ("--data", dataset_folder), ("--dry-run",)):
            refused = in_process("pretrain", "--out", folder, *more)
            assert refused.returncode == 1 and f"{folder} {message}" in refused.stderr
        assert (folder / "config.toml").read_bytes() == before


def test_source_that_is_not_a_run_is_a_one_line_error(dataset_folder, tmp_path, in_process):
    done = in_process("pretrain", "--init-from", "nothing", "--data", dataset_folder, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert done.stderr == "bytelm pretrain: nothing is not a run: there is no such folder (bytelm pretrain makes one)\n"


def test_dry_run_names_the_loaded_weights(small_recipe, trained_gpt, dataset_folder, tmp_path, printed):
    print_plan(small_recipe, {dataset_folder: 1}, tmp_path / "run", trained_gpt)
    said = " ".join(printed.readouterr().out.split())
    assert "starts from the weights of" in said and "not loaded: optimizer state, progress" in said
    assert not (tmp_path / "run").exists()
