"""`bytelm params` prints the parameters, memory and FLOPs of a model."""

import json
import re
import subprocess
import sys

import pytest

from lm.presets import PRESETS
from pipelines.cli.dispatch import main
from pipelines.recipes.recipe import recipe_names
from pipelines.run.named_models import named_model


def costs_of(capsys, *arguments):
    assert main(["params", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_table_has_the_published_numbers(capsys):
    assert main(["params", "gpt2"]) == 0
    shown = capsys.readouterr().out
    for number in ("124,439,808", "163,037,184", "38,597,376", "85,056,000", "854 MFLOP", "36.9 kB"):
        assert number in shown


def test_each_component_has_its_share_of_the_total(capsys):
    assert main(["params", "gpt2"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[2:9]}
    assert rows["embedding"] == ["38,597,376", "31.0", "%", "38,597,376", "23.7", "%"]
    assert sum(float(row[1]) for name, row in rows.items() if name != "total") == pytest.approx(100.0, abs=0.3)


def test_large_numbers_have_decimal_prefixes(capsys):
    assert main(["params", "gpt3-175b"]) == 0
    shown = capsys.readouterr().out
    assert "1.08 TFLOP" in shown
    assert "1.4 TB AdamW's moments" in shown


def test_the_largest_gpt3_counts_without_its_memory(capsys):
    costs = costs_of(capsys, "gpt3-175b")
    assert costs["parameters"]["total"] == 174_604_259_328
    assert costs["parameters"]["total"] - costs["biases_and_norms"] == 174_588_899_328
    assert costs["parameters_untied"]["head"] == 50257 * 12288


LIGHT = """
import sys
from pipelines.cli.dispatch import main

for name in sys.argv[1:]:
    whole_help = [["--help-all"]] * (name == sys.argv[1])  # only its defaults depend on the name
    for options in (["--json", "--optimizer", "muon"], ["--dtype", "float32", "--model.layers", "3"], *whole_help):
        try:
            status = main(["params", name, *options])
        except SystemExit as leaving:
            status = leaving.code
        assert not status and "torch" not in sys.modules, (name, options)
"""


def test_no_recipe_or_preset_or_option_imports_torch():
    """Importing torch takes longer than everything else."""
    names = sorted({*recipe_names(), *PRESETS})
    words = [sys.executable, "-c", LIGHT, *names]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_has_costs(recipe, capsys):
    costs = costs_of(capsys, recipe, "--model.vocab-size", "1000")
    assert costs["parameters"]["total"] > costs["non_embedding"] > 0
    assert costs["parameters_untied"]["total"] > costs["parameters_tied"]["total"]


def test_a_model_with_deepnorm_has_costs(capsys):
    deepnorm, post = (
        costs_of(capsys, "gpt-tiny", "--model.norm-position", place, "--model.initialization", "xavier")
        for place in ("deepnorm", "post")
    )
    assert deepnorm["parameters_untied"] == post["parameters_untied"]


def test_every_field_of_the_shape_can_be_given(capsys):
    costs = costs_of(capsys, "gpt2", "--model.kv-heads", "4", "--model.context-length", "2k", "--dtype", "float32")
    assert costs["cache_bytes_per_token"] == 2 * 12 * 4 * 64 * 4
    assert costs["parameters"]["positions"] == 2000 * 768


def test_moments_are_those_of_the_optimizer_that_trains(capsys, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[model]\nvocab_size = 100\nwidth = 32\nlayers = 1\n[train]\noptimizer = "muon"\n')
    costs = costs_of(capsys, str(recipe))
    matrices = 12 * 32 * 32
    assert costs["training_bytes"]["moments"] == 2 * costs["training_bytes"]["weights"] - 4 * matrices
    assert main(["params", str(recipe)]) == 0
    assert "AdamW's and Muon's moments" in capsys.readouterr().out
    costs = costs_of(capsys, str(recipe), "--optimizer", "adamw")
    assert costs["training_bytes"]["moments"] == 2 * costs["training_bytes"]["weights"]


def test_the_wider_cache_of_a_cpu_is_printed(capsys):
    costs = costs_of(capsys, "gpt2")
    assert costs["cache_bytes_on_cpu"] == 2 * costs["cache_bytes"] == 2 * 12 * 768 * 4 * 1024
    assert main(["params", "gpt2"]) == 0
    assert "(bfloat16); on a CPU the cache is float32, 75.5 MB" in capsys.readouterr().out
    assert costs["generation_bytes"] == 2 * 124_439_808 + costs["cache_bytes"]
    costs = costs_of(capsys, "gpt2", "--dtype", "float32")
    assert costs["generation_bytes"] == 4 * 124_439_808 + costs["cache_bytes"]
    assert costs["cache_bytes_on_cpu"] == costs["cache_bytes"]
    assert main(["params", "gpt2", "--dtype", "float32"]) == 0
    assert "on a CPU" not in capsys.readouterr().out


def test_a_run_has_the_size_of_its_model(trained_gpt, capsys):
    from pipelines.run.folder import Run
    from pipelines.run.loaded_run import load_trained

    model = load_trained(Run(trained_gpt)).model
    costs = costs_of(capsys, str(trained_gpt))
    assert costs["parameters"]["total"] == sum(parameter.numel() for parameter in model.parameters())


def test_a_run_with_the_head_of_a_task_is_refused_as_a_model(trained_bert, tmp_path, capsys):
    from pipelines.verbs.finetune import finetune

    rows = [json.dumps({"text": f"{label} {i}", "label": label}) for i in range(8) for label in ("a", "b")]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    options = {"data": tmp_path / "rows.jsonl", "test": tmp_path / "rows.jsonl", "compare_scratch": False}
    finetune(trained_bert, out=tmp_path / "mine", train={"epochs": 1}, **options)
    assert main(["params", str(tmp_path / "mine")]) == 1
    assert f"{tmp_path / 'mine'} is fine-tuned for the task classes and predicts no tokens" in capsys.readouterr().err


def test_a_recipe_gets_a_vocabulary_that_is_stated(capsys, tmp_path):
    for name in set(recipe_names()) - PRESETS.keys():
        assert main(["params", name]) == 0
        assert "These numbers are for 8,192 entries" in capsys.readouterr().out, name
    assert costs_of(capsys, "gpt-tiny")["vocab_size"] == 8192
    assert costs_of(capsys, "gpt-tiny", "--model.vocab-size", "512")["parameters"]["embedding"] == 512 * 128
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[model]\nvocab_size = 100\nwidth = 32\nlayers = 1\n")
    assert costs_of(capsys, str(recipe))["parameters"]["embedding"] == 3200


def test_an_unknown_model_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'gpt2-xl'"):
        named_model("gpt2xl")
    with pytest.raises(ValueError, match="did you mean 'gpt-tiny'"):
        named_model("gpt-tin")


def test_a_missing_model_is_a_usage_error(capsys):
    assert main(["params"]) == 2
    assert "name a model first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model.mixer mamba2 --model.value-embeddings 1", "model.mixer is 'mamba2', .* model.value_embeddings=1"),
        ("--model.mixer gru --model.window 64", "model.mixer is 'gru', .* model.window=64"),
        ("--model.mixer gru --model.positions alibi", "model.mixer is 'gru', .* model.positions='alibi'"),
        (
            "--model.mixer hopfield --model.attention-pattern strided",
            "'hopfield', .* model.attention_pattern='strided'",
        ),
        ("--model.mixer hopfield --model.architecture encoder", "'hopfield', .* model.architecture='encoder'"),
    ],
)
def test_a_model_that_cannot_exist_has_no_costs(capsys, options, message):
    assert main(["params", "gpt-tiny", *options.split()]) == 1
    assert re.search(message, capsys.readouterr().err)
