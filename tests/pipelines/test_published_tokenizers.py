"""Imported models read texts with their own WordPiece tokenizer, as transformers does."""

import json
import shutil

import pytest
import tokenizers
import torch

import bytelm
from pipelines.exchange.possible_exports import possible_exports
from pipelines.run.folder import Run, check_folder
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.runs import runs
from tests.pipelines.exchange_cases import our_model, save_peer
from tests.pipelines.gguf_cases import random_run
from tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
TEXTS = ("Import os, def main(): return None!", "Naïve CAFÉ — 漢字 🙂\r\n\t x", "the class [MASK] defines")


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def folder(request, text_folder, tmp_path_factory):
    """Return the folder of a random BERT with a WordPiece tokenizer of its own, as transformers saves them."""
    trained = tokenizers.BertWordPieceTokenizer(lowercase=request.param)
    files = [str(path) for path in sorted(text_folder.glob("*.txt"))]
    trained.train(files, 512, show_progress=False, special_tokens=[*SPECIAL.values()])
    hub = tmp_path_factory.mktemp("bert") / "hub"
    tok = transformers.BertTokenizerFast(vocab=trained.get_vocab(), do_lower_case=request.param, **SPECIAL)
    tok.save_pretrained(hub)
    save_peer(hub, "bert", hub, entries=tok.vocab_size, ids={"pad_token_id": 0})
    return hub


def peer_of(folder):
    """Return the tokenizer and the model of transformers."""
    return (
        transformers.AutoTokenizer.from_pretrained(folder),
        transformers.AutoModelForMaskedLM.from_pretrained(folder),
    )


@torch.no_grad()
def test_a_bert_with_its_own_tokenizer_has_the_ids_and_logits_of_transformers(folder, tmp_path):
    run = bytelm.load_run(import_hf(str(folder), out=tmp_path / "run"), device="cpu")
    tok, peer = peer_of(folder)
    for text in TEXTS:
        ids = tok(text)["input_ids"]
        assert run.ids(text) == ids
        assert len({*ids}) > 3, "all words are [UNK]"
        torch.testing.assert_close(run.logits(text), peer(torch.tensor([ids])).logits[0], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_bert_with_its_own_tokenizer_fills_masks_as_transformers_does(folder, tmp_path):
    (mask,) = bytelm.generate(import_hf(str(folder), out=tmp_path / "run"), prompt=[TEXTS[-1]])
    tok, peer = peer_of(folder)
    ids = torch.tensor([tok(TEXTS[-1])["input_ids"]])
    best = peer(ids).logits[ids == tok.mask_token_id][0].softmax(-1).topk(5)
    assert mask["probabilities"] == pytest.approx(best.values.tolist(), rel=1e-3)


def test_a_folder_saved_after_a_padded_call_is_imported_and_exported_with_both_settings(folder, tmp_path):
    source = shutil.copytree(folder, tmp_path / "hub")
    tok = transformers.AutoTokenizer.from_pretrained(source)
    tok(TEXTS, padding="max_length", truncation=True, max_length=4)
    tok.save_pretrained(source)

    def lengths(place):
        content = json.loads((place / "tokenizer.json").read_text(encoding="utf-8"))
        return content["truncation"], content["padding"]

    assert lengths(source)[0]["max_length"] == 4
    run = import_hf(str(source), out=tmp_path / "run")
    text = TEXTS[0] * 2
    assert bytelm.load_run(run, device="cpu").ids(text) == tok(text)["input_ids"]
    exported = export_hf(run, out=tmp_path / "exported")
    assert lengths(exported) == lengths(run) == lengths(source)
    assert transformers.AutoTokenizer.from_pretrained(exported)(text)["input_ids"] == tok(text)["input_ids"]


def test_the_split_pattern_of_a_tokenizer_without_one_is_given_by_pattern(tokenizer_folder, in_process, tmp_path):
    source = tmp_path / "hub"
    peer = save_peer(source, "gpt2", tokenizer_folder)
    (source / "tokenizer.json").unlink()
    tok = Tokenizer.load(tokenizer_folder)
    tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json")).model.save(str(source))
    (source / "added_tokens.json").write_text(json.dumps(tok.special_tokens))
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "MyTokenizer"}')
    refused = in_process("import-hf", source, "--out", "run")
    assert refused.returncode == 1
    assert "'MyTokenizer', which does not say how text is split" in refused.stderr
    assert "or add --pattern with one of gpt2, " in refused.stderr
    done = in_process("import-hf", source, "--out", "run", "--pattern", tok.pattern)
    assert done.returncode == 0, done.stderr
    assert Tokenizer.load(tmp_path / "run").fingerprint == tok.fingerprint
    ids = torch.tensor([tok.encode(TEXTS[0])])
    model = our_model(tmp_path / "run")
    torch.testing.assert_close(model.logits(model(ids)), peer(ids).logits, atol=1e-4, rtol=1e-4)


def test_a_vocab_txt_without_settings_is_imported_with_the_pattern_that_the_error_names(folder, in_process, tmp_path):
    source = shutil.copytree(folder, tmp_path / "hub")
    vocab = Tokenizer.load(source).get_vocab()
    for path in source.glob("*token*.json"):
        path.unlink()
    (source / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocab, key=vocab.get)), encoding="utf-8")
    refused = in_process("import-hf", source, "--out", "run")
    assert refused.stderr.endswith(
        "does not say how text becomes words; add --pattern with bert-uncased or bert-cased\n"
    )
    done = in_process("import-hf", source, "--out", "run", "--pattern", "bert-uncased")
    assert done.returncode == 0, done.stderr
    assert Tokenizer.load(tmp_path / "run").pattern == "bert-uncased"
    refused = in_process("tokenize", "a", "--tokenizer", source / "vocab.txt")
    assert refused.stderr.endswith("add --pattern with bert-uncased or bert-cased\n")


@pytest.mark.parametrize("model_type", ["mistral", "clip_text_model", None])
def test_a_family_that_is_not_supported_is_named_before_its_tokenizer_and_weights(model_type, in_process, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "byte_fallback": true}}')
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    refused = in_process("import-hf", ".", "--out", "run")
    assert refused.returncode == 1
    assert f"config.json has model_type = {model_type!r}: bytelm reads 'gpt2', " in refused.stderr
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": {"bits": 4}}')
    assert "config.json has a quantization_config" in in_process("import-hf", ".", "--out", "run").stderr


@pytest.fixture
def sentencepiece_model(shared):
    return Tokenizer.load(shared / "vectors" / "sentencepiece" / "test_model.model")


@pytest.mark.parametrize("facts", [{}, {"imported_from": "a folder"}], ids=["trained", "imported"])
def test_a_run_on_a_sentencepiece_model_is_not_exported_with_other_ids(facts, sentencepiece_model, tmp_path):
    run = Run(random_run(tmp_path / "run", sentencepiece_model, facts))
    with pytest.raises(ValueError, match="the tokenizer is a SentencePiece model, which transformers reads") as refusal:
        export_hf(run.folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    sentences = possible_exports(run.recipe.model, sentencepiece_model, run.facts)
    assert f"export-hf could not write the run: {refusal.value}" in sentences


def test_a_run_on_a_sentencepiece_model_is_listed(sentencepiece_model, tmp_path):
    run = random_run(tmp_path / "run", sentencepiece_model, {"imported_from": "a folder"})
    assert [listed.run for listed in runs([tmp_path])] == [str(run)]


def test_a_start_that_was_killed_after_writing_a_sentencepiece_model_starts_again(
    sentencepiece_model, small_recipe, tmp_path
):
    sentencepiece_model.save(tmp_path)
    assert check_folder(tmp_path, small_recipe, {}, sentencepiece_model) == []
