"""Every change to the weights, manifest, configuration or tokenizer of a run is detected."""

import shutil
import warnings
from dataclasses import replace

import pytest

from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_run, load_trained
from pipelines.run.manifest import DamagedCheckpointError, manifest_json, read_manifest
from pipelines.run.retention import latest_checkpoint
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.finetune import finetune
from pipelines.verbs.generate import generate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from tests.pipelines.training_cases import with_train
from tests.tasks.files import write
from tokenizer import Tokenizer


@pytest.fixture
def gpt(tmp_path, trained_gpt):
    """Return a copy of a run with one checkpoint."""
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    shutil.rmtree(out / "checkpoints" / "step-0000040")
    return out


@pytest.fixture(scope="module")
def averaged(tmp_path_factory, small_recipe, dataset_folder):
    """Return a run of a few steps that averages its weights."""
    out = tmp_path_factory.mktemp("averaged") / "run"
    recipe = with_train(small_recipe, tokens=1024, average=0.5, keep_checkpoints=1)
    pretrain(recipe, data=dataset_folder, out=out)
    return out


def alter(path, before, after):
    text = path.read_text()
    assert text.count(before) == 1, (before, text)
    path.write_text(text.replace(before, after))


def test_every_use_of_the_weights_names_an_altered_setting(gpt, trained_gpt, small_recipe, dataset_folder, tmp_path):
    alter(gpt / "config.toml", "norm_eps = 1e-05", "norm_eps = 0.1")
    uses = {
        "evaluate": lambda: evaluate(gpt),
        "against": lambda: evaluate(trained_gpt, against=gpt),
        "generate": lambda: generate(gpt, prompt="import", tokens=2),
        "report": lambda: report([gpt]),
        "export": lambda: export_hf(gpt, out=tmp_path / "exported"),
        "resume": lambda: pretrain(small_recipe, data=dataset_folder, out=gpt),
    }
    for name, use in uses.items():
        with pytest.raises(ValueError) as error:
            use()
        assert str(error.value) == (
            f"{gpt / 'config.toml'} was altered: model.norm_eps is 0.1, but the weights were trained with 1e-05; "
            "restore that value"
        ), name


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("heads = 2", "heads = 4", "model.heads is 4"),
        ('activation = "gelu"', 'activation = "relu"', "model.activation is 'relu'"),
        ("\nlr = 0.002", "\nlr = 0.003", "train.lr is 0.003"),
        ("seed = 0", "seed = 1", "train.seed is 1"),
        ("\nbeta1 = 0.9\n", "\n", None),  # its default
        ("\nbeta2 = 0.95\n", "\nbeta2 = 0.90\n", "train.beta2 is 0.9"),
        ("separated = true", "separated = false", "run.separated is False"),
        ("separated = true", "separatee = true", "run.separated is None"),
        ('dataset_fingerprint = "', 'dataset_fingerprint = "0', "run.dataset_fingerprint is '0"),
        ('tokenizer_fingerprint = "', 'tokenizer_fingerprint = "0', "run.tokenizer_fingerprint is '0"),
        # Fields that may change when a run resumes, and the dataset's path, are not verified.
        ("log_every_steps = 5", "log_every_steps = 6", None),
        ("batch_tokens = 256", "batch_tokens = 512", None),
        ("keep_best = false", "keep_best = true", None),
        ('data = "', 'data = "/elsewhere', None),
        ("[train]", "# a remark\n[train]", None),
    ],
)
def test_only_settings_that_may_not_change_are_verified(gpt, before, after, message):
    alter(gpt / "config.toml", before, after)
    if message is None:
        load_trained(Run(gpt))
    else:
        with pytest.raises(ValueError, match=r"config\.toml was altered: ") as error:
            load_trained(Run(gpt))
        assert message in str(error.value)


def test_a_changeable_setting_may_change_when_the_run_resumes(gpt, small_recipe, dataset_folder):
    recipe = with_train(small_recipe, log_every_steps=1, micro_batch=4)
    pretrain(recipe, data=dataset_folder, out=gpt)
    assert Run(gpt).recipe.train.log_every_steps == 1
    load_trained(Run(gpt))


def test_a_field_that_a_later_version_adds_does_not_invalidate_a_manifest(gpt):
    """Simulates a version that adds train.z_loss and model.soft_cap, whose defaults keep the old behaviour."""
    folder = latest_checkpoint(gpt)
    manifest = read_manifest(folder)
    for name in ("train.z_loss", "model.soft_cap"):
        del manifest.settings[name]
    (folder / "manifest.json").write_text(manifest_json(manifest.files, manifest.settings))
    load_trained(Run(gpt))
    alter(gpt / "config.toml", "soft_cap = 0.0", "soft_cap = 30.0")
    with pytest.raises(ValueError, match=r"model\.soft_cap is 30\.0, but the weights were trained with 0\.0"):
        load_trained(Run(gpt))


def test_a_flipped_bit_anywhere_in_a_manifest_is_detected(averaged, tmp_path):
    folder = shutil.copytree(latest_checkpoint(averaged), tmp_path / "checkpoint")
    path = folder / "manifest.json"
    content = path.read_bytes()
    assert read_manifest(folder).files.keys() == {p.name for p in folder.iterdir()} - {"manifest.json"}
    for place in range(len(content)):
        for bit in {place % 8, 5}:  # bit 5 is the case of a letter
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                read_manifest(folder)
            except DamagedCheckpointError:
                continue
            pytest.fail(f"bit {bit} of byte {place} went unnoticed")


@pytest.mark.parametrize("damage", ["remove", "flip"])
@pytest.mark.parametrize("name", ["average.safetensors", "model.safetensors", "manifest.json"])
def test_a_file_of_a_checkpoint_that_is_missing_or_altered_is_named(averaged, tmp_path, name, damage):
    out = shutil.copytree(averaged, tmp_path / "run")
    path = latest_checkpoint(out) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink() if damage == "remove" else path.write_bytes(content)
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(ValueError) as error:
        load_trained(Run(out))
    assert f"{path} is " in str(error.value) and "\n" not in str(error.value)


def test_a_tokenizer_with_another_fingerprint_is_refused_by_every_verb(gpt, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the text is short
        Tokenizer.train(["another text, another vocabulary"], vocab_size=270).save(gpt)
    uses = (
        lambda: generate(gpt, prompt="import", tokens=2),
        lambda: evaluate(gpt),
        lambda: report([gpt]),
        lambda: export_hf(gpt, out=tmp_path / "exported"),
    )
    for use in uses:
        with pytest.raises(ValueError, match=r"tokenizer\.json is not the tokenizer that the model was trained with"):
            use()


def test_an_imported_run_is_verified(gpt, tmp_path, trained_gpt, peers):
    run = shutil.copytree(peers("gpt2")[2], tmp_path / "imported")
    load_trained(Run(run))
    config = (run / "config.toml").read_text()
    save_config(run / "config.toml", Run(run).recipe, Run(run).facts | {"special_ids": {"eos_token_id": 3}})
    with pytest.raises(ValueError, match=r"run\.special_ids is .*restore that value"):
        load_trained(Run(run))
    (run / "config.toml").write_text(config)
    recipe = Run(run).recipe
    save_config(run / "config.toml", replace(recipe, model=replace(recipe.model, norm_eps=0.5)), Run(run).facts)
    with pytest.raises(ValueError, match=r"model\.norm_eps is 0\.5"):
        load_trained(Run(run))


def test_a_fine_tuned_run_is_verified(trained_bert, tmp_path):
    rows = [{"text": f"{word} {number}", "label": word} for word in ("for", "while") for number in range(30)]
    data = write(tmp_path / "rows.jsonl", rows)
    train = {"epochs": 1, "device": "cpu", "dtype": "float32"}
    finetune(trained_bert, data=data, out=tmp_path / "made", compare_scratch=False, train=train)
    for known, other, message in [
        ('"for"', '"fur"', r"task\.labels is \['fur', 'while'\]"),
        ('pooling = "auto"', 'pooling = "first"', r"task\.pooling is 'first'"),
        ("batch_size = 16", "batch_size = 8", r"finetune\.batch_size is 8"),
    ]:
        damaged = shutil.copytree(tmp_path / "made", tmp_path / "damaged", dirs_exist_ok=True)
        alter(damaged / "config.toml", known, other)
        with pytest.raises(ValueError, match=rf"config\.toml was altered: {message}"):
            load_run(damaged)
