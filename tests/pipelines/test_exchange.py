"""Export to `transformers` and ONNX and import from the command line keep logits and ids."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.exchange.possible_exports import possible_exports
from pipelines.run.folder import Run
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.export_onnx import export_onnx
from pipelines.verbs.finetune import finetune
from pipelines.verbs.generate import generate
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from tests.pipelines.exchange_cases import AUTO, IDS, SHAPES, our_model, save_peer
from tests.pipelines.gguf_cases import ENCODER, random_run
from tokenizer import CLS, END_OF_TEXT, SEP, Tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = ("import os\n\n\ndef main() -> int:\n    return 0\n", "naïve — 漢字 🙂\r\n\t x", "  ", "<|endoftext|x")


@torch.no_grad()
def logits(model, ids, source):
    """Return the logits of our model or of a model of `transformers`."""
    if isinstance(model, transformers.PreTrainedModel):
        if model.config.is_encoder_decoder:
            return model(input_ids=source, decoder_input_ids=ids).logits
        return model(ids).logits
    return model.logits(model(ids, source) if model.config.architecture == "encoder-decoder" else model(ids))


def assert_same_logits(*models):
    generator = torch.Generator().manual_seed(2)
    # RoBERTa does not count padding, id 1, as a position.
    ids, source = (torch.randint(2, 512, (2, length), generator=generator) for length in (34, 30))
    first, *others = (logits(model, ids, source) for model in models)
    for other in others:
        torch.testing.assert_close(other, first, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", list(SHAPES))
def test_import_and_export_round_trip_a_model_of_transformers(kind, peers, tmp_path):
    _, peer, run = peers(kind)
    out = export_hf(run, out=tmp_path / "out")
    assert_same_logits(peer, our_model(run), AUTO[kind].from_pretrained(out).eval())
    again = import_hf(str(out), out=tmp_path / "again")
    for name, weight in our_model(run).state_dict().items():
        assert torch.equal(our_model(again).state_dict()[name], weight)
    assert Run(again).recipe.model == Run(run).recipe.model


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("llama", [], []), ("bert", [CLS], [SEP]), ("t5", [], [END_OF_TEXT])]
)
def test_the_exported_tokenizer_gives_the_ids_that_the_model_was_trained_on(kind, before, after, peers, tmp_path):
    _, _, run = peers(kind)
    ours = Run(run).tokenizer()
    theirs = transformers.AutoTokenizer.from_pretrained(export_hf(run, out=tmp_path / "out"))
    special = ours.special_tokens
    for text in TEXTS:
        expected = [*(special[t] for t in before), *ours.encode_ordinary(text), *(special[t] for t in after)]
        assert theirs(text)["input_ids"] == expected
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode_ordinary(text)
        assert theirs.decode(expected, skip_special_tokens=True) == text
    assert theirs.pad_token == "<|pad|>"
    assert theirs.model_max_length == Run(run).recipe.model.context_length


@pytest.fixture(scope="module")
def original_bert(tmp_path_factory, trained_bert, dataset_folder):
    """Return the run of an encoder in a shape that `transformers` has, trained here."""
    recipe = Run(trained_bert).recipe
    model = replace(recipe.model, positions="learned", norm_position="post", embedding_norm=True, bias=True)
    out = tmp_path_factory.mktemp("original") / "bert"
    recipe = replace(recipe, model=model, train=replace(recipe.train, tokens=256))
    pretrain(recipe, data=dataset_folder, out=out)
    return out


@pytest.mark.parametrize("fixture", ["original_bert", "trained_gpt"])
@pytest.mark.parametrize("kind", ["offsets", "template", "both"])
def test_exports_with_a_foreign_tokenizer_keep_the_ids_of_training(fixture, kind, request, tmp_path):
    """The tokenizer puts other tokens around a text than training did."""
    offsets = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    pad = {"id": "<|pad|>", "ids": [Run(request.getfixturevalue(fixture)).tokenizer().special_tokens["<|pad|>"]]}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|pad|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|pad|>": pad | {"tokens": ["<|pad|>"]}},
    }
    processors = {
        "offsets": offsets,
        "template": template,
        "both": {"type": "Sequence", "processors": [offsets, template]},
    }
    run = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "run")
    content = json.loads((run / "tokenizer.json").read_text(encoding="utf-8"))
    content["post_processor"] = processors[kind]
    (run / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    ids = [
        transformers.AutoTokenizer.from_pretrained(export_hf(folder, out=tmp_path / name))("hello")["input_ids"]
        for name, folder in (("odd", run), ("plain", request.getfixturevalue(fixture)))
    ]
    assert ids[0] == ids[1]
    left = json.loads((tmp_path / "odd" / "tokenizer.json").read_text(encoding="utf-8"))["post_processor"]
    assert (offsets in ((left or {}).get("processors") or [left])) == (kind != "template")


def test_a_trained_decoder_opens_in_transformers(in_process, trained_gpt, tmp_path):
    done = in_process("export-hf", trained_gpt, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "GPTNeoXForCausalLM" in done.stdout
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ours = our_model(trained_gpt)
    ids = torch.randint(512, (2, 32))
    torch.testing.assert_close(peer(ids).logits, ours.logits(ours(ids)), atol=1e-4, rtol=1e-4)

    tok = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    prompt = tok("<|endoftext|>import ", return_tensors="pt")
    written = peer.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    expected = generate(trained_gpt, prompt="import ", tokens=12, greedy=True, device="cpu")
    assert tok.decode(written, skip_special_tokens=True) == expected


def test_an_imported_run_is_evaluated_generated_from_and_reported(in_process, peers, dataset_folder, tmp_path):
    folder, peer, _ = peers("gpt2")
    done = in_process("import-hf", folder, "--out", "run")
    assert done.returncode == 0, done.stderr
    refused = in_process("evaluate", "run")
    assert refused.returncode == 1
    assert "run was imported and has no dataset" in refused.stderr

    numbers = evaluate(tmp_path / "run", data=dataset_folder, device="cpu").to_json()["splits"]["validation"]
    import datasets

    rows = datasets.load_from_disk(str(dataset_folder))["validation"].with_format("torch")["input_ids"][:]
    stream = torch.as_tensor(rows).long().flatten()
    blocks = [stream[start : start + 35] for start in range(0, len(stream) - 1, 34)]
    with torch.no_grad():
        nats = [
            torch.nn.functional.cross_entropy(peer(block[None, :-1]).logits[0], block[1:], reduction="sum")
            for block in blocks
        ]
    assert numbers["cross_entropy"] == pytest.approx(float(sum(nats)) / (len(stream) - 1), rel=1e-5)

    assert generate(tmp_path / "run", prompt="import ", tokens=5, device="cpu") is not None
    assert "imported_from" in report([tmp_path / "run"], out=tmp_path / "page.html").read_text()


def test_a_model_in_shards_is_imported(tmp_path, tokenizer_folder):
    peer = save_peer(tmp_path / "shards", "gpt2", tokenizer_folder, max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert_same_logits(peer, our_model(import_hf(str(tmp_path / "shards"), out=tmp_path / "run")))


@pytest.mark.parametrize(
    "kind",  # one of each architecture
    [pytest.param(kind, marks=() if kind in ("llama", "bert", "t5") else pytest.mark.slow) for kind in SHAPES],
)
def test_an_imported_model_with_a_padded_vocabulary_generates_only_tokens_of_its_tokenizer(
    kind, tmp_path, tokenizer_folder, dataset_folder
):
    save_peer(tmp_path / "padded", kind, tokenizer_folder, entries=576)
    weights = load_file(tmp_path / "padded" / "model.safetensors")
    for tensor in weights.values():
        if len(tensor) == 576:
            tensor[512:] *= 50  # the unused entries are the likeliest
    save_file(weights, tmp_path / "padded" / "model.safetensors", metadata={"format": "pt"})
    run = import_hf(str(tmp_path / "padded"), out=tmp_path / "run")
    if kind == "llama":
        assert evaluate(run, data=dataset_folder, device="cpu").validation.perplexity > 1
    prompt, length = ("import <|mask|>", {}) if "bert" in kind else ("import ", {"tokens": 30})
    for options in (length, length | {"beams": 0}):
        assert generate(run, prompt=prompt, device="cpu", **options)
    assert report([run]).is_file()


def spoil_config(folder):
    (folder / "config.json").write_text("{")


def with_an_end_that_is_no_id(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "eos_token_id": "<|endoftext|>"}))
    (folder / "generation_config.json").unlink()


def with_a_beginning_that_is_no_id(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "bytelm_before_text": [512]}))


def without_config(folder):
    (folder / "config.json").unlink()


def without_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def with_word_pieces(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["type"] = "WordPiece"
    (folder / "tokenizer.json").write_text(json.dumps(content))


def as_pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def index_elsewhere(folder):
    (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
    index = {"weight_map": {"transformer.wte.weight": "../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_a_shard(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"transformer.wte.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def with_few_entries(folder):
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "vocab_size": 300}))
    weights = load_file(folder / "model.safetensors")
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][:300].clone()
    save_file(weights, folder / "model.safetensors")


NORM, MATRIX = "transformer.h.1.ln_1.weight", "transformer.h.0.attn.c_attn.weight"


def with_weights(**changed):
    def spoil(folder):
        weights = load_file(folder / "model.safetensors")
        for name, change in ((NORM, changed.get("norm")), (MATRIX, changed.get("matrix"))):
            if change:
                weights[name] = change(weights[name])
        save_file(weights, folder / "model.safetensors")

    return spoil


def with_one(value, dtype=torch.float32):
    def change(weight):
        weight = weight.to(dtype)
        weight.view(-1)[3] = value
        return weight

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (with_weights(norm=with_one(float("nan"))), [NORM, "NaN or infinite"]),
        (with_weights(norm=with_one(float("inf"), torch.bfloat16)), [NORM, "NaN or infinite"]),
        (with_weights(norm=with_one(1e300, torch.float64)), [NORM, "NaN or infinite"]),
        (with_weights(matrix=lambda weight: weight.to(torch.int8)), [f"{MATRIX} is int8, not floating-point"]),
        (with_weights(matrix=lambda weight: weight > 0), [f"{MATRIX} is bool, not floating-point"]),
        (spoil_config, ["config.json is damaged"]),
        (without_config, ["config.json is missing"]),
        (with_an_end_that_is_no_id, ["config.json has eos_token_id = '<|endoftext|>', which is no id"]),
        (with_a_beginning_that_is_no_id, ["config.json has bytelm_before_text = [512], which are no ids"]),
        (without_tokenizer, ["has no tokenizer.json"]),
        (with_word_pieces, ["tokenizer.json", "has model.continuing_subword_prefix = None"]),
        (as_pickle, ["pytorch_model.bin is a pickle", "save_pretrained"]),
        (cut_weights, ["model.safetensors is damaged"]),
        (index_elsewhere, ["model.safetensors.index.json is damaged"]),
        (without_a_shard, ["model-00001-of-00001.safetensors is missing"]),
        (with_few_entries, ["the tokenizer has 512 entries, but the model only 300"]),
    ],
)
def test_a_folder_that_cannot_be_imported_leaves_nothing_behind(spoil, words, peers, tmp_path):
    folder = shutil.copytree(peers("gpt2")[0], tmp_path / "model")
    spoil(folder)
    with pytest.raises((ValueError, OSError)) as refusal:
        import_hf(str(folder), out=tmp_path / "run")
    for word in words:
        assert word in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_a_model_that_transformers_cannot_express_is_refused_by_field(in_process, trained_bert, tmp_path):
    done = in_process("export-hf", trained_bert, "--out", "out")
    assert done.returncode == 1
    assert "BERT would need model.positions = 'learned', not 'rotary'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_positions_that_roberta_would_number_otherwise_are_refused(tokenizer_folder, tmp_path):
    run = Run(random_run(tmp_path / "run", Tokenizer.load(tokenizer_folder), **ENCODER, position_offset=4))
    with pytest.raises(ValueError, match=r"the padding id of the run is \d+, but RoBERTa needs 3: ") as refusal:
        export_hf(run.folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    sentences = possible_exports(run.recipe.model, run.tokenizer(), run.facts)
    assert f"export-hf could not write the run: {refusal.value}" in sentences


@pytest.mark.parametrize("export", [export_hf, export_onnx])
def test_existing_files_are_not_replaced(export, peers, tmp_path):
    _, _, run = peers("gpt2")
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        export(run, out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_folder_and_a_hub_that_is_out_of_reach_are_named(in_process):
    for source, words in (("nowhere", "is not a folder"), ("hub:nobody/nothing", "cannot be fetched from the hub")):
        done = in_process("import-hf", source, "--out", "run")
        assert done.returncode == 1
        assert f"{source} {words}" in done.stderr
        assert "Traceback" not in done.stderr


def onnx_inputs(kind, batch, length):
    generator = torch.Generator().manual_seed(length)
    inputs = {"input_ids": torch.randint(512, (batch, length), generator=generator)}
    if kind in ("bert", "t5"):
        inputs["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
        inputs["attention_mask"][0, (length + 1) // 2 :] = 0
    if kind == "bert":
        inputs["token_type_ids"] = torch.randint(2, (batch, length), generator=generator)
    if kind == "t5":
        inputs["decoder_input_ids"] = torch.randint(512, (batch, length + 3), generator=generator)
    return inputs


@pytest.mark.parametrize(
    "kind", ["gpt2", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gpt_neox", "bert", "t5"))]
)
def test_an_onnx_file_and_its_card_give_the_logits_of_the_model_in_transformers(kind, peers, tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    _, peer, run = peers(kind)
    export_onnx(run, out=tmp_path / "new" / "model.onnx")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["model.onnx", "model.onnx.md"]
    session = onnxruntime.InferenceSession(tmp_path / "new" / "model.onnx")
    for batch, length in ((1, 1), (3, 7), (2, 30)):
        inputs = onnx_inputs(kind, batch, length)
        (got,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
        with torch.no_grad():
            expected = peer(**inputs).logits
        shown = inputs["attention_mask"].bool() if kind == "bert" else slice(None)
        torch.testing.assert_close(torch.from_numpy(got)[shown], expected[shown], atol=1e-4, rtol=1e-4)
    card = (tmp_path / "new" / "model.onnx.md").read_text()
    variables = {name: value.numpy() for name, value in inputs.items()}
    monkeypatch.chdir(tmp_path / "new")
    exec(card.split("```python\n")[1].split("```")[0], variables)
    assert (variables["logits"] == got).all()


@pytest.mark.slow
def test_an_onnx_file_keeps_a_window_that_short_texts_do_not_reach(small_recipe, dataset_folder, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    run = tmp_path / "run"
    pretrain(replace(small_recipe, model=replace(small_recipe.model, window=9)), data=dataset_folder, out=run)
    session = onnxruntime.InferenceSession(export_onnx(run, out=tmp_path / "model.onnx"))
    for length in (3, 9, 10, 32):
        ids = torch.randint(512, (2, length))
        (got,) = session.run(["logits"], {"input_ids": ids.numpy()})
        ours = our_model(run)
        torch.testing.assert_close(torch.from_numpy(got), logits(ours, ids, None), atol=1e-4, rtol=1e-4)
    ids[:, 0] = (ids[:, 0] + 1) % 512
    (other,) = session.run(["logits"], {"input_ids": ids.numpy()})
    changed = abs(other - got).max(axis=(0, 2)) > 1e-4
    assert changed.tolist() == [True] * 9 + [False] * 23  # one layer sees the last 9 positions


def test_a_missing_package_is_named(monkeypatch, peers, tmp_path):
    monkeypatch.setattr("pipelines.verbs.export_onnx.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'bytelm\[onnx\]'"):
        export_onnx(peers("gpt2")[2], out=tmp_path / "model.onnx")


def test_special_tokens_missing_from_an_imported_tokenizer_are_named_when_needed(tmp_path):
    Tokenizer.train(["import os\n" * 9], vocab_size=258, special_tokens=("<s>",)).save(tmp_path / "tok")
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    runs = {}
    for kind in ("bert", "t5"):
        save_peer(tmp_path / kind, kind, tmp_path / "tok", ids=dict.fromkeys(IDS))
        runs[kind] = import_hf(str(tmp_path / kind), out=tmp_path / f"{kind}-run")
        assert report([runs[kind]]).is_file()
    with pytest.raises(ValueError, match=r"an encoder needs the special token <\|cls\|>, which the tokenizer lacks"):
        generate(runs["bert"], prompt="a <|mask|>")
    with pytest.raises(ValueError, match=r"a task needs the special token <\|cls\|>"):
        finetune(runs["bert"], data=tmp_path / "rows.jsonl", test=tmp_path / "rows.jsonl", out=tmp_path / "out")
    for options in ({}, {"greedy": True}):
        with pytest.raises(ValueError, match=r"an encoder-decoder needs the special token <\|endoftext\|>"):
            generate(runs["t5"], prompt="a", **options)
