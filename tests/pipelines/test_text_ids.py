"""Imported models begin and end texts with the same ids as in `transformers`."""

import json
from dataclasses import replace

import pytest
import torch

from pipelines.reporting.samples import samples_of
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.generate import generate
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.exchange_cases import our_model, save_peer
from tokenizer import CLS, END_OF_TEXT, MASK, PAD, SEP, Tokenizer

transformers = pytest.importorskip("transformers")


def with_template(folder, *before):
    """Add a template to the tokenizer of a folder that puts special tokens before a text, as in Llama 3."""
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
    """Return a model with Llama 3's special tokens, which most likely ends a text after the start and "import "."""
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
    assert sample.title == "without a prompt"
    assert "<|" not in sample.text


def test_a_prompt_for_gpt2_is_read_without_a_beginning_unless_it_is_empty(peers):
    _, peer, run = peers("gpt2")
    tok = Run(run).tokenizer()
    for prompt in ("import ", ""):
        read = torch.tensor([tok.encode(prompt) or [0]])
        options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 0, "pad_token_id": 0}
        new = peer.generate(read, attention_mask=torch.ones_like(read), **options)[0, read.shape[1] :].tolist()
        expected = tok.decode(token for token in new if token != 0)
        assert generate(run, prompt=prompt, tokens=12, greedy=True, device="cpu") == expected


@pytest.fixture(scope="module")
def padded_start(tokenizer_folder, tmp_path_factory):
    """Return a T5 whose targets begin with padding, as in T5, and end with one of two ids. Sources begin with an id."""
    folder = tmp_path_factory.mktemp("t5")
    ids = {"eos_token_id": [0, 7], "pad_token_id": 1, "decoder_start_token_id": 1}
    peer = save_peer(folder / "model", "t5", tokenizer_folder, ids=ids)
    with_template(folder / "model", CLS)
    return peer, import_hf(str(folder / "model"), out=folder / "run")


def test_targets_begin_and_end_with_the_ids_of_transformers(padded_start):
    peer, run = padded_start
    tok = Run(run).tokenizer()
    for source in ("import os", "def f(x):", "return"):
        read = torch.tensor([[tok.special_tokens[CLS], *tok.encode(source), 0]])
        for beams in (0, 3):
            options = {"num_beams": beams or 1, "early_stopping": bool(beams), "do_sample": False}
            new = peer.generate(read, max_new_tokens=12, **options)[0, 1:].tolist()
            expected = tok.decode(token for token in new if token not in (0, 1, 7))
            how = {"beams": beams} if beams else {"greedy": True}
            assert generate(run, prompt=source, tokens=12, device="cpu", **how) == expected


def test_targets_are_scored_from_their_start_id(padded_start, tokenizer_folder, tmp_path):
    peer, run = padded_start
    tok = Run(run).tokenizer()
    rows = [("import os", "import sys"), ("def f(x):", "return x"), ("x", "y")] * 9
    path = tmp_path / "pairs.validation.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in rows))
    path.with_name("pairs.train.jsonl").write_text(path.read_text())
    build_dataset([str(tmp_path / "*.jsonl")], pairs=("a", "b"), tokenizer=tokenizer_folder, out=tmp_path / "data")
    nats = tokens = 0
    for source, target in rows:
        labels = torch.tensor([[*tok.encode(target), 0]])
        with torch.no_grad():
            read = torch.tensor([[tok.special_tokens[CLS], *tok.encode(source), 0]])
            nats += peer(read, labels=labels).loss.item() * labels.numel()
        tokens += labels.numel()
    found = evaluate(run, data=tmp_path / "data", beams=0, device="cpu").to_json()["splits"]["validation"]
    assert found["tokens"] == tokens
    assert found["cross_entropy"] == pytest.approx(nats / tokens, rel=1e-5)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_ids_around_texts_survive_import_and_export(kind, llama_3, peers, tmp_path):
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


def test_an_exported_and_imported_run_generates_the_same_text(trained_gpt, tmp_path):
    again = import_hf(str(export_hf(trained_gpt, out=tmp_path / "out")), out=tmp_path / "again")
    for prompt in ("import ", "def ", ""):
        first, second = (generate(run, prompt=prompt, tokens=20, seed=3, device="cpu") for run in (trained_gpt, again))
        assert first == second
    assert text_ids(Run(again), Run(again).tokenizer()) == text_ids(Run(trained_gpt), Run(trained_gpt).tokenizer())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("bert-uncased/vocab.txt", {MASK: "[MASK]", PAD: "[PAD]", CLS: "[CLS]", SEP: "[SEP]", END_OF_TEXT: "[SEP]"}),
        ("roberta/tokenizer.json", {MASK: "<mask>", PAD: "<pad>", CLS: "<s>", SEP: "</s>", END_OF_TEXT: "</s>"}),
        ("sentencepiece/test_model.model", {END_OF_TEXT: "</s>"}),
    ],
)
def test_a_run_on_a_published_tokenizer_has_its_special_tokens(path, expected, shared, small_recipe, tmp_path):
    file = shared / "vectors" / path
    tok = Tokenizer.load(file, pattern="bert-uncased" if file.name == "vocab.txt" else None)
    tok.save(tmp_path / "tok")
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 40)
    options = {"tokenizer": tmp_path / "tok", "context_length": 32, "split": "tail:0.4"}
    build_dataset([str(tmp_path / "text.txt")], out=tmp_path / "data", **options)
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=64))
    if MASK in expected:
        model = replace(recipe.model, architecture="encoder", context_length=34)
        recipe = replace(recipe, objective="masked-token", model=model)
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    found = text_ids(Run(tmp_path / "run"), tok)
    assert {ours: found.special[ours] for ours in expected} == {
        ours: tok.special_tokens[spelling] for ours, spelling in expected.items()
    }
    assert found.stops == (tok.special_tokens[expected[END_OF_TEXT]],)


def test_special_ids_unknown_to_the_tokenizer_count_as_missing(tokenizer_folder, tmp_path):
    save_peer(tmp_path / "model", "gpt2", tokenizer_folder, ids={"bos_token_id": 50256, "eos_token_id": 50256})
    run = import_hf(str(tmp_path / "model"), out=tmp_path / "run")
    assert text_ids(Run(run), Run(run).tokenizer()).stops == (0,)
