"""Imported models read texts with their own WordPiece tokenizer, as transformers does."""

import json
import shutil

import pytest
import tokenizers
import torch

import bytelm
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.import_hf import import_hf
from tests.pipelines.exchange_cases import save_peer

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
