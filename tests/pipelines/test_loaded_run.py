"""A run that answers from Python: methods, results, and verbs that take the loaded run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import bytelm
from pipelines.run.loaded_run import LoadedRun
from tests.pipelines.gguf_cases import ENCODER, random_run
from tests.tasks.files import write
from tokenizer import CLS, SEP, Tokenizer


@pytest.fixture
def run(trained_gpt, tmp_path):
    return bytelm.load_run(shutil.copytree(trained_gpt, tmp_path / "gpt"), device="cpu")


def test_methods_return_what_the_functions_return_for_the_folder(run):
    text = "def main(self):"
    assert run.generate("import", tokens=5) == bytelm.generate(run.path, prompt="import", tokens=5)
    assert run.generate(["import", "def"], tokens=3) == bytelm.generate(run.path, prompt=["import", "def"], tokens=3)
    assert run.score(text).log_probability == bytelm.score(run.path, text).log_probability
    evaluated = run.evaluate(splits="validation")
    assert evaluated.validation.cross_entropy == bytelm.evaluate(run.path).validation.cross_entropy
    assert (run.path / "evaluation.json").exists()
    with pytest.raises(TypeError, match=r"generate\(\) has no argument `topk`: did you mean `top_k`\?"):
        run.generate("import", topk=5)


def test_a_list_of_prompts_gives_a_list_of_texts(run):
    text, result = run.generate("import", tokens=3), run.generate("import", tokens=3, probabilities=True)
    assert run.generate(["import"], tokens=3) == [text]
    assert (result["prompt"], result["text"], len(result["steps"])) == ("import", text, 3)
    assert run.generate(["import"], tokens=3, probabilities=True) == [result]


def test_a_loaded_run_predicts_for_one_text_several_or_none(trained_bert, tmp_path):
    rows = [{"text": f"return {i}", "label": i % 2} for i in range(8)]
    data, train = write(tmp_path / "rows.jsonl", rows), {"epochs": 1, "device": "cpu", "dtype": "float32"}
    run = bytelm.finetune(trained_bert, data=data, out=tmp_path / "run", train=train, compare_scratch=False)
    assert run.predict("return 3") == run.predict(["return 3"]) == bytelm.predict(run, text="return 3")
    assert run.predict([]) == []
    assert len(run.predict([], file=data)) == 8


def test_a_loaded_encoder_fills_masks(run, trained_bert):
    bert, text = bytelm.load_run(trained_bert, device="cpu"), "def <|mask|>(self):"
    assert bert.fill_masks(text) == bytelm.generate(trained_bert, prompt=text)
    several = "def <|mask|><|mask|><|mask|>(self):"
    assert bert.fill_masks(several, steps=3) == bytelm.generate(trained_bert, prompt=several, steps=3)
    with pytest.raises(ValueError, match="`steps` is 0, but must be at least 1"):
        bert.fill_masks(several, steps=0)
    with pytest.raises(ValueError, match="`steps` is for an encoder"):
        run.generate(text, steps=2)
    with pytest.raises(ValueError, match="is an encoder, which fills masks: call fill_masks"):
        bert.generate(text)
    with pytest.raises(ValueError, match="has architecture 'decoder', but only an encoder fills masks"):
        run.fill_masks(text)


def test_functions_compute_with_the_loaded_model_and_load_it_once(run, tmp_path):
    """The weights of the loaded model are changed, so a model from the folder would give other numbers."""
    with torch.no_grad():
        run.model.embedding.weight.mul_(0.5)
    text = "def main(self):"
    logits = run.logits(text)
    expected = -torch.log_softmax(logits[:-1].double(), -1)[range(len(logits) - 1), run.ids(text)[1:]].sum().item()
    assert bytelm.score(run, text).log_probability == pytest.approx(-expected, rel=1e-5)
    assert bytelm.evaluate([run])[0].validation.cross_entropy == bytelm.evaluate(run).validation.cross_entropy
    folder = bytelm.load_run(run.path, device="cpu")
    assert bytelm.evaluate(run).validation.cross_entropy != folder.evaluate().validation.cross_entropy
    assert bytelm.evaluate(folder, against=run).validation.kl_bits > 0
    assert bytelm.report(run, out=tmp_path / "page.html", inside=False).exists()
    exported = bytelm.export_hf(run, out=tmp_path / "hf")
    from safetensors.torch import load_file

    (name,) = [name for name in load_file(exported / "model.safetensors") if name.endswith(("wte.weight", "in.weight"))]
    assert torch.equal(load_file(exported / "model.safetensors")[name], run.model.embedding.weight)


def test_a_loaded_run_stands_for_its_folder_everywhere_else(run, tmp_path):
    assert bytelm.load_run(run) is run
    assert bytelm.params(run)["parameters"]["total"] == bytelm.params(str(run.path))["parameters"]["total"]
    assert bytelm.tokenize("some text", tokenizer=run).tolist() == run.tokenizer.encode("some text")
    assert [found.run for found in bytelm.runs(run)] == [str(run.path)]
    assert Path(run) == run.path


@pytest.mark.parametrize("options", [{"checkpoint": "best"}, {"dtype": "bfloat16"}, {"device": "cuda"}])
def test_a_loaded_run_keeps_its_checkpoint_device_and_dtype(run, options):
    (name,) = options
    for function in (bytelm.evaluate, bytelm.generate, bytelm.load_run):
        with pytest.raises(ValueError, match=f"`{name}` is .*, but .*gpt is loaded already: give `{name}` to load_run"):
            function(run, **options)


def test_pretrain_takes_fields_of_the_recipe_and_returns_the_run(dataset_folder, tmp_path):
    model = {"layers": 1, "width": 32, "heads": 2, "context_length": 32}
    train = {"tokens": 2560, "batch_tokens": 256, "warmup_tokens": 0, "device": "cpu", "dtype": "float32"}
    out = tmp_path / "gpt"
    run = bytelm.pretrain("gpt-tiny", data=dataset_folder, out=out, model=model, train=train)
    assert isinstance(run, LoadedRun) and run.path == out
    assert (run.config.model.layers, run.config.train.tokens) == (1, 2560)
    assert run.logits("def").shape[1] == run.tokenizer.vocab_size
    shown = str(run).splitlines()
    parameters = sum(each.numel() for each in run.model.parameters())
    assert shown[0].startswith(f"gpt: decoder, {parameters:,} parameters, 1 layers of width 32, context 32")
    assert "trained on 2,560 tokens (next-token)" in shown[1]
    assert shown[2].startswith("validation loss ") and "perplexity" in shown[2] and len(shown) == 3
    with pytest.raises(ValueError, match=r"`train` has no field 'token': did you mean 'tokens'\?"):
        bytelm.pretrain("gpt-tiny", data=dataset_folder, out=out, train={"token": 5})
    with pytest.raises(ValueError, match=r"train\.tokens is '2M', but must be a whole number"):
        bytelm.pretrain("gpt-tiny", data=dataset_folder, out=out, train={"tokens": "2M"})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bytelm.pretrain("gpt-tiny", data="d", out="o", tokens=5), "`train={'tokens': ...}`"),
        (lambda: bytelm.pretrain("gpt-tiny", data="d", out="o", layers=5), "`model={'layers': ...}`"),
        (lambda: bytelm.finetune("r", data="d", out="o", epochs=5), r"`train={'epochs': ...}`"),
        (
            lambda: bytelm.train_tokenizer("c", vocab_size=300, out="o", split_digits=True),
            r"`pieces=PieceRules\(split_digits=...\)`",
        ),
    ],
)
def test_an_unknown_argument_that_is_a_field_says_where_it_belongs(call, words):
    with pytest.raises(TypeError, match=rf"has no argument `\w+`: it belongs in {words}"):
        call()


def test_an_unknown_argument_of_a_verb_is_named_with_the_nearest_one():
    with pytest.raises(TypeError, match=r"evaluate\(\) has no argument `split`: did you mean `splits`\?"):
        bytelm.evaluate("r", split="validation")


def test_metrics_are_columns_of_the_training_log(run):
    train, validation = run.metrics(), run.metrics("validation")
    assert train["step"].dtype == train["tokens"].dtype == np.int64 and train["loss"].dtype == np.float64
    assert {len(column) for column in train.values()} == {len(train["step"])}
    lines = [line for line in run.run.metrics() if line["split"] == "train"]
    assert train["loss"].tolist() == [line["loss"] for line in lines]
    assert train["lr"].max() == run.config.train.lr
    assert validation["loss"][-1] < validation["loss"][0]
    with pytest.raises(ValueError, match="`split` is 'test', but must be 'train' or 'validation'"):
        run.metrics("test")


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5"])
def test_features_are_the_hidden_states_of_transformers(peers, kind):
    _, peer, imported = peers(kind)
    run = bytelm.load_run(imported, device="cpu")
    text = "a few words"
    ids = torch.tensor([run.ids(text)])
    target = "some words" if kind == "t5" else None
    with torch.no_grad():
        if target is None:
            theirs = peer(ids, output_hidden_states=True).hidden_states
        else:
            written = torch.tensor([run.target_ids(target)])
            found = peer(ids, decoder_input_ids=written, output_hidden_states=True)
            theirs = found.encoder_hidden_states
            for layer, states in enumerate(found.decoder_hidden_states):
                torch.testing.assert_close(run.features(text, target, layer=layer), states[0], atol=1e-4, rtol=1e-4)
    for layer, states in enumerate(theirs):
        ours = run.features(text, layer=layer)
        assert ours.shape == (len(run.ids(text)), run.config.model.width) and ours.dtype == torch.float32
        torch.testing.assert_close(ours, states[0], atol=1e-4, rtol=1e-4)
    assert torch.equal(run.features(text), run.features(text, layer=len(theirs) - 1))
    with pytest.raises(ValueError, match="`layer` is 99, but must be from 0 to"):
        run.features(text, layer=99)


def test_an_apple_gpu_leaves_trained_models_to_the_cpu(run, monkeypatch):
    """Scores are computed in float64, which Apple GPUs lack."""
    expected = run.score("def main(self):").log_probability
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert bytelm.load_run(run.path).loaded.machine.device_name == "cpu"
    assert bytelm.score(run.path, "def main(self):").log_probability == expected


def test_an_encoder_without_the_tokens_around_a_text_names_them_and_needs_no_mask(tmp_path):
    around = Tokenizer.train(["import os"], 258, special_tokens=(CLS, SEP))
    encoder = bytelm.load_run(random_run(tmp_path / "around", around, **ENCODER), device="cpu")
    assert encoder.ids("a b") == [around.special_tokens[CLS], *around.encode("a b"), around.special_tokens[SEP]]
    other = Tokenizer.train(["import os"], 258, special_tokens=("<s>",))
    encoder = bytelm.load_run(random_run(tmp_path / "other", other, **ENCODER), device="cpu")
    with pytest.raises(ValueError, match=r"an encoder needs the special token <\|cls\|>, which the tokenizer lacks"):
        encoder.ids("a b")
