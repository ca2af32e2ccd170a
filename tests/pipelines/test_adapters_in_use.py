"""A peft adapter beside a run: every verb computes what peft computes on the export of the run."""

import json
from dataclasses import replace

import pytest
import torch

import bytelm
from pipelines.recipes.recipe import load_recipe
from tests.tasks.files import write

transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
TRAIN = {"epochs": 1, "device": "cpu", "dtype": "float32"}
TEXT = "import os"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


def adapted(model, out, targets, **options):
    """Give a model of transformers an adapter with random weights, save it to `out`, and return the model of peft."""
    made = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, **options))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in made.named_parameters():
        if parameter.requires_grad and "original_module" not in name:
            parameter.data.normal_(0, 0.2, generator=generator)
    made.eval().save_pretrained(out)
    return made


@pytest.fixture(scope="module")
def gpt_adapter(trained_gpt, folder):
    """Return (folder, model of peft) of an adapter for the export of a decoder."""
    out = bytelm.export_hf(trained_gpt, out=folder / "gpt-hf")
    base = transformers.AutoModelForCausalLM.from_pretrained(out)
    return folder / "gpt-lora", adapted(base, folder / "gpt-lora", "all-linear", task_type="CAUSAL_LM")


CASES = {
    "encoder": ("classes", "bert-tiny", {"mlp_width": 48}, {}, ["Wqkv", "Wo", "dense"]),
    "numbers": ("regression", "bert-tiny-published", {"initialization": "xavier"}, {"pooling": "first"}, ["query"]),
    "decoder": ("classes", "gpt-tiny", {}, {}, "all-linear"),
}
"""Task, recipe, changes of its model, options of the task, and the layers that get adapters"""


@pytest.fixture(scope="module", params=list(CASES))
def tuned(request, dataset_folder, folder):
    """Return (run, folder of an adapter, model of peft) of a model with a head, which peft trains too."""
    name = request.param
    task, recipe, changes, options, targets = CASES[name]
    rows = [{"text": f"{'yes' if i % 2 else 'no'} {i}", "label": i % 2, "score": 10 + i} for i in range(40)]
    data, base, out = write(folder / f"{name}.jsonl", rows), folder / recipe, folder / name
    small, context = load_recipe(recipe), 32 if recipe == "gpt-tiny" else 34
    small = replace(
        small,
        model=replace(small.model, width=32, dropout=0.0, context_length=context, **changes),
        train=replace(small.train, tokens=512, batch_tokens=256, device="cpu", dtype="float32"),
    )
    bytelm.pretrain(small, data=dataset_folder, out=base)
    bytelm.finetune(base, task=task, data=data, out=out, train=TRAIN, options=options, compare_scratch=False)
    exported = bytelm.export_hf(out, out=folder / f"{name}-hf")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(exported)
    made = adapted(base, folder / f"{name}-lora", targets, task_type="SEQ_CLS")
    return out, folder / f"{name}-lora", made


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids])).logits


def test_a_loaded_run_has_the_logits_of_peft(trained_gpt, gpt_adapter):
    out, theirs = gpt_adapter
    run, base = bytelm.load_run(trained_gpt, adapter=out), bytelm.load_run(trained_gpt)
    expected = logits_of(theirs, run.ids(TEXT))[0]
    assert float((base.logits(TEXT) - expected).abs().max()) > 0.1
    torch.testing.assert_close(run.logits(TEXT), expected, rtol=1e-5, atol=1e-5)


def test_generate_writes_what_peft_writes(trained_gpt, gpt_adapter, in_process):
    out, theirs = gpt_adapter
    done = in_process("generate", trained_gpt, "--adapter", out, "--prompt", TEXT, "--greedy", "--tokens", 8)
    run = bytelm.load_run(trained_gpt)
    ids = run.ids(TEXT)
    for _ in range(8):
        ids.append(int(logits_of(theirs, ids)[0, -1].argmax()))
    expected = run.tokenizer.decode(ids[len(run.ids(TEXT)) :])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(TEXT + expected.partition("<|endoftext|>")[0])
    assert done.stdout != in_process("generate", trained_gpt, "--prompt", TEXT, "--greedy", "--tokens", 8).stdout


def test_evaluate_writes_its_numbers_beside_the_adapter(trained_gpt, gpt_adapter, in_process):
    out, _ = gpt_adapter
    plain = bytelm.evaluate(trained_gpt).validation
    before = (trained_gpt / "evaluation.json").read_bytes()
    done = in_process("evaluate", trained_gpt, "--adapter", out, "--json")
    assert done.returncode == 0, done.stderr
    saved = json.loads((out / "evaluation.json").read_text())
    assert (trained_gpt / "evaluation.json").read_bytes() == before
    found = bytelm.evaluate(bytelm.load_run(trained_gpt, adapter=out)).validation
    assert found.cross_entropy == pytest.approx(saved["splits"]["validation"]["cross_entropy"], rel=1e-6)
    assert found.cross_entropy > 1.01 * plain.cross_entropy
    assert found.measured.checkpoint_sha256 != plain.measured.checkpoint_sha256


def test_predict_gives_what_peft_gives_with_a_trained_head(tuned):
    run, out, theirs = tuned
    texts = ["yes 3", "no 4", "maybe"]
    loaded = bytelm.load_run(run)
    ids = [loaded.ids(text) for text in texts]
    expected = torch.cat([logits_of(theirs, row) for row in ids])
    found = bytelm.predict(run, text=tuple(texts), adapter=out)
    if expected.shape[1] == 1:
        torch.testing.assert_close(
            torch.tensor([one["prediction"] for one in found]), expected[:, 0], rtol=1e-4, atol=1e-4
        )
    else:
        named = [[one["probabilities"][str(label)] for label in (0, 1)] for one in found]
        torch.testing.assert_close(torch.tensor(named), expected.softmax(dim=-1), rtol=1e-5, atol=1e-5)
    assert found != bytelm.predict(run, text=tuple(texts))


@pytest.mark.parametrize("verb", ["generate", "evaluate", "serve"])
def test_a_folder_that_is_no_adapter_is_refused(verb, trained_gpt, in_process, tmp_path):
    (tmp_path / "empty").mkdir()
    done = in_process(verb, trained_gpt, "--adapter", "empty")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "empty/adapter_config.json" in done.stderr and "peft's save_pretrained" in done.stderr


def test_mistakes_are_named(trained_gpt, trained_bert, gpt_adapter, tmp_path, in_process):
    out, _ = gpt_adapter
    with pytest.raises(ValueError, match=f"the adapter {out} does not fit {trained_bert}: "):
        bytelm.load_run(trained_bert, adapter=out)
    with pytest.raises(ValueError, match="is loaded already: give `adapter` to load_run"):
        bytelm.generate(bytelm.load_run(trained_gpt), prompt="a", adapter=out)
    done = in_process("evaluate", trained_gpt, trained_bert, "--adapter", out)
    assert done.returncode == 1 and "to one run, but 2 runs are named" in done.stderr
    half = tmp_path / "half"
    half.mkdir()
    (half / "adapter_config.json").write_bytes((out / "adapter_config.json").read_bytes())
    with pytest.raises(ValueError, match=r"adapter_model.safetensors is missing"):
        bytelm.load_run(trained_gpt, adapter=half)
    (half / "adapter_model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match=r"adapter_model.safetensors is damaged"):
        bytelm.load_run(trained_gpt, adapter=half)


def test_a_run_whose_layers_share_weights_refuses_an_adapter(small_recipe, dataset_folder, gpt_adapter, tmp_path):
    recipe = replace(small_recipe, model=replace(small_recipe.model, layers=2, layer_groups=1))
    bytelm.pretrain(recipe, data=dataset_folder, out=tmp_path / "shared")
    with pytest.raises(ValueError, match=r"does not fit .* model\.layer_groups=1 shares .* export-hf"):
        bytelm.load_run(tmp_path / "shared", adapter=gpt_adapter[0])
