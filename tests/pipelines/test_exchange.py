"""Runs go to `transformers` and ONNX and come back, by the command line, with the same logits and ids."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipelines.evaluate import evaluate
from pipelines.export_hf import export_hf
from pipelines.export_onnx import export_onnx
from pipelines.finetune import finetune
from pipelines.generate import generate
from pipelines.import_hf import import_hf
from pipelines.loading import load_trained
from pipelines.report import report
from pipelines.samples import samples_of
from pipelines.text_ids import text_ids
from pipelines.training.run import Run
from tokenizer import CLS, END_OF_TEXT, SEP, Tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = ("import os\n\n\ndef main() -> int:\n    return 0\n", "naïve — 漢字 🙂\r\n\t x", "  ", "<|endoftext|x")
AUTO = {
    "gpt2": transformers.AutoModelForCausalLM,
    "llama": transformers.AutoModelForCausalLM,
    "gpt_neox": transformers.AutoModelForCausalLM,
    "bert": transformers.AutoModelForMaskedLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
}
SHAPE = {
    "max_position_embeddings": 34,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SHAPES = {
    "gpt2": {"n_positions": 34, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "llama": {**SHAPE, "num_key_value_heads": 2},
    "bert": SHAPE,
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
}


IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 0}


def save_peer(folder, kind, tokenizer_folder, entries=512, ids=IDS, **options):
    """A random model of `transformers` and a tokenizer, as a folder of the hub has them."""
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, vocab_size=entries, **SHAPES[kind], **ids)
    peer = AUTO[kind].from_config(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    peer.save_pretrained(folder, **options)
    shutil.copy(tokenizer_folder / "tokenizer.json", folder)
    return peer


@pytest.fixture(scope="module")
def peers(tmp_path_factory, tokenizer_folder):
    """Of each kind such a folder, the model, and the run that was imported from it."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("peers") / kind
            peer = save_peer(folder, kind, tokenizer_folder)
            made[kind] = folder, peer, import_hf(str(folder), out=folder.with_name("run"))
        return made[kind]

    return get


@torch.no_grad()
def logits(model, ids, source):
    """Of our model, or of one of `transformers`."""
    if isinstance(model, transformers.PreTrainedModel):
        if model.config.is_encoder_decoder:
            return model(input_ids=source, decoder_input_ids=ids).logits
        return model(ids).logits
    return model.logits(model(ids, source) if model.config.architecture == "encoder-decoder" else model(ids))


def assert_same_logits(*models):
    generator = torch.Generator().manual_seed(2)
    ids, source = (torch.randint(512, (2, length), generator=generator) for length in (34, 30))
    first, *others = (logits(model, ids, source) for model in models)
    for other in others:
        torch.testing.assert_close(other, first, atol=1e-4, rtol=1e-4)


def our_model(run):
    return load_trained(Run(run), device="cpu").model


@pytest.mark.parametrize("kind", list(SHAPES))
def test_a_model_of_transformers_becomes_a_run_and_goes_back(kind, peers, tmp_path):
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


def test_a_trained_decoder_opens_in_transformers(bytelm, trained_gpt, tmp_path):
    done = bytelm("export-hf", trained_gpt, "--out", "out")
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


def test_an_imported_run_is_evaluated_generated_from_and_reported(bytelm, peers, dataset_folder, tmp_path):
    folder, peer, _ = peers("gpt2")
    done = bytelm("import-hf", folder, "--out", "run")
    assert done.returncode == 0, done.stderr
    refused = bytelm("evaluate", "run")
    assert refused.returncode == 1
    assert "run was imported and has no dataset" in refused.stderr

    numbers = evaluate(tmp_path / "run", data=dataset_folder, device="cpu")["splits"]["validation"]
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


@pytest.mark.parametrize("kind", list(SHAPES))
def test_a_vocabulary_padded_beyond_the_tokenizer_is_imported_and_writes_only_what_the_tokenizer_knows(
    kind, tmp_path, tokenizer_folder, dataset_folder
):
    save_peer(tmp_path / "padded", kind, tokenizer_folder, entries=576)
    weights = load_file(tmp_path / "padded" / "model.safetensors")
    for tensor in weights.values():
        if len(tensor) == 576:
            tensor[512:] *= 50  # what stands for nothing is the likeliest
    save_file(weights, tmp_path / "padded" / "model.safetensors", metadata={"format": "pt"})
    run = import_hf(str(tmp_path / "padded"), out=tmp_path / "run")
    if kind == "llama":
        assert evaluate(run, data=dataset_folder, device="cpu")["splits"]["validation"]["perplexity"] > 1
    prompt = "import <|mask|>" if kind == "bert" else "import "
    for options in ({}, {"beams": 0}):
        assert generate(run, prompt=prompt, tokens=30, device="cpu", **options)
    assert report([run]).is_file()


def with_template(folder, *before):
    """Have the tokenizer of a folder put special tokens before a text, as Llama 3's does."""
    content = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    single = [{"SpecialToken": {"id": name, "type_id": 0}} for name in before]
    single.append({"Sequence": {"id": "A", "type_id": 0}})
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [special[name]], "tokens": [name]} for name in before},
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    content["post_processor"] = {"type": "Sequence", "processors": [byte_level, template]}
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def llama_3(tmp_path_factory, text_folder):
    """A model with the special tokens of Llama 3, whose likeliest token after a beginning and "import " is an end."""
    folder = tmp_path_factory.mktemp("llama-3")
    special = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    Tokenizer.train(min(text_folder.iterdir()), vocab_size=300, special_tokens=special).save(folder)
    with_template(folder, "<|begin_of_text|>")
    ids = {"bos_token_id": 0, "eos_token_id": [1, 2]}
    peer = save_peer(folder / "model", "llama", folder, entries=300, ids=ids)
    tok = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    with torch.no_grad():
        hidden = peer.model(tok("import ", return_tensors="pt")["input_ids"]).last_hidden_state[0, -1]
        peer.lm_head.weight[2] = 0.2 * hidden
    peer.save_pretrained(folder / "model")
    return folder / "model", peer, tok


def test_a_llama_begins_and_ends_texts_as_in_transformers(llama_3, tmp_path):
    folder, peer, tok = llama_3
    run = import_hf(str(folder), out=tmp_path / "run")
    written = {}
    for prompt in ("import ", "def f(x):", "   return", ""):
        read = torch.tensor([tok(prompt)["input_ids"]])
        new = peer.generate(read, attention_mask=torch.ones_like(read), do_sample=False, max_new_tokens=20)
        expected = tok.decode(new[0, read.shape[1] :], skip_special_tokens=True)
        written[prompt] = generate(run, prompt=prompt, tokens=20, greedy=True, device="cpu")
        assert written[prompt] == expected
    assert written["import "] == ""
    assert any(written.values())
    (sample,) = samples_of(Run(run), our_model(run))
    assert sample["title"] == "from nothing"
    assert "<|" not in sample["text"]


def test_a_prompt_for_gpt2_is_read_without_a_beginning_unless_it_is_empty(peers):
    _, peer, run = peers("gpt2")
    tok = Run(run).tokenizer()
    for prompt in ("import ", ""):
        read = torch.tensor([tok.encode(prompt) or [0]])
        options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 0, "pad_token_id": 0}
        new = peer.generate(read, attention_mask=torch.ones_like(read), **options)[0, read.shape[1] :].tolist()
        expected = tok.decode(token for token in new if token != 0)
        assert generate(run, prompt=prompt, tokens=12, greedy=True, device="cpu") == expected


def test_a_target_begins_with_the_id_that_transformers_begins_it_with(tokenizer_folder, tmp_path):
    ids = {"eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 1}
    peer = save_peer(tmp_path / "t5", "t5", tokenizer_folder, ids=ids)
    run = import_hf(str(tmp_path / "t5"), out=tmp_path / "run")
    tok = Run(run).tokenizer()
    for source in ("import os", "def f(x):", "return"):
        read = torch.tensor([[*tok.encode(source), 0]])
        for beams in (0, 3):
            options = {"num_beams": beams or 1, "early_stopping": bool(beams), "do_sample": False}
            new = peer.generate(read, max_new_tokens=12, **options)[0, 1:].tolist()
            expected = tok.decode(token for token in new if token > 1)
            how = {"beams": beams} if beams else {"greedy": True}
            assert generate(run, prompt=source, tokens=12, device="cpu", **how) == expected


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_ids_that_texts_begin_and_end_with_are_exported_as_they_were_imported(kind, llama_3, peers, tmp_path):
    folder = llama_3[0] if kind == "llama" else peers(kind)[0]
    run = import_hf(str(folder), out=tmp_path / "run")
    out = export_hf(run, out=tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        before, after = (json.loads((each / name).read_text()) for each in (folder, out))
        for key in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
            assert after.get(key) == before.get(key)
    first, again = Run(run), Run(import_hf(str(out), out=tmp_path / "again"))
    assert text_ids(again, again.tokenizer()) == text_ids(first, first.tokenizer())
    if kind == "llama":
        theirs = transformers.AutoTokenizer.from_pretrained(out)
        assert (theirs.bos_token, theirs.eos_token) == ("<|begin_of_text|>", "<|end_of_text|>")
        assert theirs("import ")["input_ids"] == llama_3[2]("import ")["input_ids"]


def test_a_run_that_went_out_and_came_back_writes_the_same(trained_gpt, tmp_path):
    again = import_hf(str(export_hf(trained_gpt, out=tmp_path / "out")), out=tmp_path / "again")
    for prompt in ("import ", "def ", ""):
        first, second = (generate(run, prompt=prompt, tokens=20, seed=3, device="cpu") for run in (trained_gpt, again))
        assert first == second
    assert text_ids(Run(again), Run(again).tokenizer()) == text_ids(Run(trained_gpt), Run(trained_gpt).tokenizer())


def test_ids_that_stand_for_nothing_in_the_tokenizer_are_taken_for_none(tokenizer_folder, tmp_path):
    save_peer(tmp_path / "model", "gpt2", tokenizer_folder, ids={"bos_token_id": 50256, "eos_token_id": 50256})
    run = import_hf(str(tmp_path / "model"), out=tmp_path / "run")
    assert text_ids(Run(run), Run(run).tokenizer()).stops == (0,)


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


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_config, ["config.json is damaged"]),
        (without_config, ["config.json is missing"]),
        (with_an_end_that_is_no_id, ["config.json has eos_token_id = '<|endoftext|>', which is no id"]),
        (with_a_beginning_that_is_no_id, ["config.json has bytelm_before_text = [512], which are no ids"]),
        (without_tokenizer, ["has no tokenizer.json"]),
        (with_word_pieces, ["tokenizer.json", "WordPiece", "not supported"]),
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


def test_what_transformers_cannot_express_is_refused_by_name(bytelm, trained_bert, tmp_path):
    done = bytelm("export-hf", trained_bert, "--out", "out")
    assert done.returncode == 1
    assert "BERT would need model.positions = 'learned', not 'rotary'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("export", [export_hf, export_onnx])
def test_what_is_there_is_not_replaced(export, peers, tmp_path):
    _, _, run = peers("gpt2")
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        export(run, out=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_missing_folder_and_a_hub_that_is_out_of_reach_are_named(bytelm):
    for source, words in (("nowhere", "is not a folder"), ("hub:nobody/nothing", "cannot be fetched from the hub")):
        done = bytelm("import-hf", source, "--out", "run")
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
    "kind", ["gpt2", pytest.param("bert", marks=pytest.mark.slow), pytest.param("t5", marks=pytest.mark.slow)]
)
def test_an_onnx_file_gives_the_logits_of_the_same_model_in_transformers(kind, peers, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    _, peer, run = peers(kind)
    export_onnx(run, out=tmp_path / "new" / "model.onnx")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "new" / "model.onnx")
    for batch, length in ((1, 1), (3, 7), (2, 30)):
        inputs = onnx_inputs(kind, batch, length)
        (got,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
        with torch.no_grad():
            expected = peer(**inputs).logits
        shown = inputs["attention_mask"].bool() if kind == "bert" else slice(None)
        torch.testing.assert_close(torch.from_numpy(got)[shown], expected[shown], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_an_onnx_file_keeps_a_window_that_short_texts_do_not_reach(trained_gpt, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    run = shutil.copytree(trained_gpt, tmp_path / "run")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("window = 0", "window = 9"))
    session = onnxruntime.InferenceSession(export_onnx(run, out=tmp_path / "model.onnx"))
    for length in (3, 9, 10, 32):
        ids = torch.randint(512, (2, length))
        (got,) = session.run(["logits"], {"input_ids": ids.numpy()})
        ours = our_model(run)
        torch.testing.assert_close(torch.from_numpy(got), logits(ours, ids, None), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(ours, ids, None), logits(our_model(trained_gpt), ids, None))


def test_a_missing_package_is_named(monkeypatch, peers, tmp_path):
    monkeypatch.setattr("pipelines.export_onnx.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'bytelm\[onnx\]'"):
        export_onnx(peers("gpt2")[2], out=tmp_path / "model.onnx")


def test_special_tokens_that_an_imported_tokenizer_has_not_are_named_where_they_are_needed(tmp_path):
    Tokenizer.train(["import os\n" * 9], vocab_size=258, special_tokens=("<s>",)).save(tmp_path / "tok")
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    runs = {}
    for kind in ("bert", "t5"):
        save_peer(tmp_path / kind, kind, tmp_path / "tok", ids=dict.fromkeys(IDS))
        runs[kind] = import_hf(str(tmp_path / kind), out=tmp_path / f"{kind}-run")
        assert report([runs[kind]]).is_file()
    with pytest.raises(ValueError, match=r"an encoder needs the special token <\|cls\|>, which the tokenizer lacks"):
        generate(runs["bert"], prompt="a <|mask|>")
    with pytest.raises(ValueError, match=r"a classifier needs the special token <\|cls\|>"):
        finetune(runs["bert"], data=tmp_path / "rows.jsonl", out=tmp_path / "out")
    for options in ({}, {"greedy": True}):
        with pytest.raises(ValueError, match=r"an encoder-decoder needs the special token <\|endoftext\|>"):
            generate(runs["t5"], prompt="a", **options)
