"""Dry runs, model cards, replaced exports and shell completion."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import bytelm
from pipelines.recipes.recipe import load_recipe, recipe_names
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.export_onnx import export_onnx
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.pretrain import pretrain

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("train-tokenizer", ["300 entries", "of text, the training split (", "would write out/tokenizer.json"]),
        (
            "build-dataset",
            ["with the 512 entries of", "into blocks of 32 tokens", "2 bytes per token, at most"],
        ),
        (
            "pretrain",
            ["parameters on 1 Mtok of", "in batches of 1,024 tokens", "would make a run in out, with 2 che"],
        ),
    ],
)
def test_a_dry_run_prints_the_plan_and_does_nothing(
    in_process, tmp_path, text_folder, tokenizer_folder, dataset_folder, verb, said
):
    arguments = {
        "train-tokenizer": (text_folder, "--vocab-size", "300"),
        "build-dataset": (text_folder, "--tokenizer", tokenizer_folder, "--context-length", "32"),
        "pretrain": ("gpt-tiny", "--data", dataset_folder, "--model.context-length", "32"),
    }[verb]
    done = in_process(verb, *arguments, "--out", "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in said), done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_tokenizer_prints_no_json(in_process, text_folder):
    done = in_process("train-tokenizer", text_folder, "--vocab-size", 300, "--out", "out", "--dry-run", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--json prints the summary, but --dry-run makes none: leave one of them out" in done.stderr


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_a_dry_run(in_process, sentinel_dataset, pair_dataset, name):
    recipe = load_recipe(name)
    data = pair_dataset if recipe.objective == "sequence-pairs" else sentinel_dataset
    length = 32 + recipe.edges
    options = ("--data", data, "--model.context-length", length, "--out", "run", "--dry-run")
    done = in_process("pretrain", name, *options)
    assert done.returncode == 0, done.stderr
    assert "would train" in done.stdout


def test_a_dry_run_fails_where_the_real_run_would(in_process, dataset_folder, tmp_path):
    done = in_process("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", "out", "--dry-run")
    assert done.returncode == 1
    assert "model.context_length is 256, but the dataset has blocks of 32 tokens" in done.stderr


def test_a_dry_run_of_training_refuses_the_folders_that_the_run_refuses(in_process, dataset_folder, trained_gpt):
    command = ("pretrain", "--out", trained_gpt, "--dry-run")
    assert "would resume the run" in in_process(*command).stdout
    done = in_process(*command, "--train.lr", "0.5")
    assert done.returncode == 1 and "holds another run: its train.lr is 0.002, not 0.5" in done.stderr
    options = ("--data", dataset_folder, "--model.context-length", "32", "--out", dataset_folder)
    done = in_process("pretrain", "gpt-tiny", *options, "--dry-run")
    assert done.returncode == 1 and "is not empty and holds no run" in done.stderr


@pytest.mark.parametrize("dry", [True, False])
def test_a_schedule_longer_than_the_run_is_named_by_the_run_and_its_dry_run(in_process, dataset_folder, dry):
    """The warm-up ends with the run, or the batch is still growing."""
    command = ("pretrain", "gpt-tiny", "--data", dataset_folder, "--model.context-length", "32", "--model.layers", "1")
    command += ("--train.tokens", "2k", "--train.device", "cpu", "--train.dtype", "float32")
    long = ("--train.warmup-tokens", "20k", "--train.batch-tokens-start", "64", "--train.batch-warmup-tokens", "9k")
    short = ("--train.warmup-tokens", "100", "--train.batch-tokens-start", "64", "--train.batch-warmup-tokens", "1k")
    done = in_process(*command, *long, "--out", "long", *["--dry-run"] * dry)
    assert done.returncode == 0, done.stderr
    assert (
        "warning: the warm-up of 20,000 tokens lasts until the last step of the run of 2,000 tokens, so the learning "
        "rate ends at its peak: lower train.warmup_tokens, for example to 100, or raise train.tokens\n"
    ) in done.stderr
    assert "over 9,000 tokens, but the run has only 2,000, so they do not reach 1,024 tokens: lower" in done.stderr
    assert "warning" not in in_process(*command, *short, "--out", "short", *["--dry-run"] * dry).stderr


def test_an_export_has_a_model_card_whose_code_loads_it(trained_gpt, tmp_path):
    measured = evaluate(trained_gpt).to_json()["splits"]["validation"]
    card = (export_hf(trained_gpt, out=tmp_path / "out") / "README.md").read_text()
    front = card.split("---\n")[1]
    assert "library_name: transformers" in front
    assert "pipeline_tag: text-generation" in front
    for words in ("trained to predict the next token", "my-text, split by hash:0.05", "512 entries", "seed 0"):
        assert words in card
    assert f"| {measured['perplexity']:,.2f} |" in card
    code = card.split("```python\n")[1].split("```")[0]
    loaded = {}
    exec(code.replace('"out"', repr(str(tmp_path / "out"))), loaded)
    assert isinstance(loaded["model"], transformers.PreTrainedModel)


def code_of(page, folder, printed):
    """Return the names that the Python on a page defines; `folder` replaces the path `printed` in it."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if printed in code or names:
            exec(code.replace(f'"{printed}"', repr(str(folder))), names)
    return names


@pytest.mark.parametrize("kind", ["trained_gpt", "gpt2", "llama", "bert", "t5"])
def test_the_code_on_a_model_card_gives_the_log_probability_of_bytelm_score(kind, trained_gpt, peers, tmp_path):
    """An imported GPT-2 or Llama reads no start token here, so its first token is not scored."""
    run = trained_gpt if kind == "trained_gpt" else peers(kind)[2]
    out = export_hf(run, out=tmp_path / "out")
    card = (out / "README.md").read_text()
    names = code_of(card, out, "out")
    text, target = [*re.findall(r'tokenizer\("(.*?)"', card), None][:2]
    loaded = bytelm.load_run(run, device="cpu")
    score = bytelm.score_text(loaded, text, target=target)
    assert float(names["nats"]) == pytest.approx(score.log_probability, abs=1e-3)
    assert (score.before == ()) == (kind != "trained_gpt")
    assert score.scored[0] == (kind not in ("gpt2", "llama"))
    assert ("The model reads `<|endoftext|>` (id 0) before a text" in card) == bool(score.before)


def test_the_code_in_the_docs_gives_the_log_probability_of_bytelm_score(trained_gpt, tmp_path):
    out = export_hf(trained_gpt, out=tmp_path / "out")
    section = (ROOT / "docs" / "scoring.md").read_text().partition("## With transformers")[2]
    names = code_of(section.partition("\n## ")[0], out, "my/gpt-hf")
    text = "It was a dark and stormy night."
    expected = bytelm.score_text(bytelm.load_run(trained_gpt, device="cpu"), text).log_probability
    assert float(names["nats"]) == pytest.approx(expected, abs=1e-3)


def test_the_card_of_an_onnx_file_names_the_start_token(trained_gpt, tmp_path):
    export_onnx(trained_gpt, out=tmp_path / "gpt.onnx")
    card = (tmp_path / "gpt.onnx.md").read_text()
    assert "The model reads `<|endoftext|>` (id 0) before a text" in card


def test_only_an_export_or_an_imported_run_is_replaced(trained_gpt, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for export in (export_hf, export_onnx):
        with pytest.raises(ValueError, match="mine exists already"):
            export(trained_gpt, out=tmp_path / "mine", overwrite=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    with pytest.raises(ValueError, match="exists already"):
        export_onnx(trained_gpt, out=Path(), overwrite=True)
    (tmp_path / "new.onnx.md").write_text("mine")
    with pytest.raises(ValueError, match=r"new\.onnx\.md exists already"):
        export_onnx(trained_gpt, out=tmp_path / "new.onnx", overwrite=True)
    for make, source, out in ((export_hf, trained_gpt, "hf"), (import_hf, str(tmp_path / "hf"), "run")):
        make(source, out=tmp_path / out)
        with pytest.raises(ValueError, match="`overwrite`"):
            make(source, out=tmp_path / out)
        make(source, out=tmp_path / out, overwrite=True)
    with pytest.raises(ValueError, match="exists already"):
        import_hf(str(tmp_path / "hf"), out=trained_gpt, overwrite=True)


def test_an_encoder_without_a_published_architecture_is_refused_and_the_error_names_a_recipe_that_has_one(
    in_process, trained_bert
):
    done = in_process("export-hf", trained_bert, "--out", "out")
    assert done.returncode == 1
    assert "the recipe bert-tiny has the architecture of ModernBERT" in done.stderr


@pytest.mark.parametrize(
    ("name", "opened"), [("bert-tiny", "ModernBertForMaskedLM"), ("bert-tiny-published", "BertForMaskedLM")]
)
def test_small_encoders_are_exported_with_their_logits(name, opened, dataset_folder, tmp_path):
    recipe = load_recipe(name)
    shape = replace(recipe.model, context_length=34, layers=2, width=32)
    train = replace(recipe.train, tokens=2560, batch_tokens=256, validation_tokens=640, device="cpu", dtype="float32")
    pretrain(replace(recipe, model=shape, train=train), data=dataset_folder, out=tmp_path / "run")
    out = export_hf(tmp_path / "run", out=tmp_path / "out")
    model = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    assert type(model).__name__ == opened
    ours = load_trained(Run(tmp_path / "run"), device="cpu").model
    ids = torch.randint(5, 200, (2, 34), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, ours.logits(ours(ids)), atol=1e-5, rtol=1e-5)
    assert "pipeline_tag: fill-mask" in (out / "README.md").read_text()


def test_a_shell_completes_verbs_and_options(bytelm, tmp_path):
    script = bytelm("--completion", "bash")
    assert script.returncode == 0
    (tmp_path / "completion").write_text(script.stdout)
    ask = 'source completion; COMP_WORDS=(bytelm {}); COMP_CWORD={}; _tyro_bytelm; echo "${{COMPREPLY[@]}}"'
    for words, position, answer in (
        ("pretr", 1, "pretrain"),
        ("pretrain gpt-tiny --train.tok", 3, "--train.tokens"),
        ("params gpt2 --model.contex", 3, "--model.context-length"),
        ("generate x --qui", 3, "--quiet"),
        ("sweep-vocabulary x --reci", 3, "--recipe"),  # a name, while that of pretrain has fields
        ("train-tokenizer x --kin", 3, "--kind"),
    ):
        command = ["bash", "-c", ask.format(words, position)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [answer]
    assert bytelm("--completion", "zsh").stdout.startswith("#compdef bytelm")
    assert "choose one of bash, zsh, fish" in bytelm("--completion", "basic").stderr
