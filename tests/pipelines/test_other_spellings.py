"""Imported models whose special tokens have other spellings than ours."""

import json

import pytest
import torch

from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.planning import objective_of
from pipelines.reporting.introspection import look_inside
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from pipelines.training.batch_objectives import validation_batch
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.finetune import finetune
from pipelines.verbs.generate import generate
from pipelines.verbs.import_hf import import_hf
from tests.pipelines.exchange_cases import our_model, save_peer
from tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

MODULES = ("import ", "def main() -> int:", "   return", "x")


def named_files(folder, processor, named):
    """Write the files that transformers saves with the tokenizer in `folder`."""
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"post_processor": processor}))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))


def all_of_validation(run, data, length):
    """Return the validation split that a run is measured on, as one batch."""
    stream = TokenDataset(data).split("validation")
    return validation_batch(stream, objective_of(Run(run), length, Run(run).tokenizer()), 0, stream.blocks)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, text_folder):
    """Return the hub folder, the model in `transformers` and the run of an encoder that reads texts like RoBERTa."""
    folder = tmp_path_factory.mktemp("encoder")
    special = ("<s>", "<pad>", "</s>", "<mask>")
    Tokenizer.train(sorted(text_folder.iterdir()), vocab_size=512, special_tokens=special).save(folder)
    peer = save_peer(folder / "model", "bert", folder, ids={"pad_token_id": 1})
    named = {
        "cls_token": "<s>",
        "sep_token": {"__type": "AddedToken", "content": "</s>", "special": True},
        "mask_token": "<mask>",
    }
    processor = {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2], "trim_offsets": True}
    named_files(folder / "model", processor | {"add_prefix_space": False}, named)
    return folder / "model", peer, import_hf(str(folder / "model"), out=folder / "run")


def test_an_encoder_fills_masks_in_its_own_spelling(encoder):
    folder, peer, run = encoder
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    for prompt in ("import <mask>\n", "<mask> main() -> <mask>:"):
        read = tok(prompt, return_tensors="pt")["input_ids"]
        assert (read[0, 0].item(), read[0, -1].item()) == (0, 2)
        with torch.no_grad():
            expected = peer(read).logits.softmax(-1)[read == 3]
        found = generate(run, prompt=prompt, device="cpu")
        assert [mask["position"] for mask in found] == (read[0] == 3).nonzero()[:, 0].tolist()
        for mask, probabilities in zip(found, expected, strict=True):
            assert mask["probabilities"][0] == pytest.approx(probabilities.max().item(), rel=1e-4)
    with pytest.raises(ValueError, match="`prompt` has no <mask>: put it where"):
        generate(run, prompt="import <|mask|>", device="cpu")


def test_an_encoder_is_measured_shown_and_fine_tuned_with_its_own_special_tokens(encoder, text_folder, tmp_path):
    _, peer, run = encoder
    build_dataset([str(text_folder)], tokenizer=run, context_length=32, separator=False, out=tmp_path / "data")
    found = evaluate(run, data=tmp_path / "data", device="cpu").to_json()["splits"]["validation"]
    batch = all_of_validation(run, tmp_path / "data", 32)
    assert (batch.inputs[:, 0] == 0).all()
    assert (batch.inputs[:, -1] == 2).all()
    assert (batch.inputs == 3).sum() > 0.7 * batch.weights.sum()
    with torch.no_grad():
        logits = peer(torch.from_numpy(batch.inputs)).logits
    chosen = torch.from_numpy(batch.weights) > 0
    nats = torch.nn.functional.cross_entropy(logits[chosen], torch.from_numpy(batch.targets)[chosen])
    assert found["cross_entropy"] == pytest.approx(nats.item(), rel=1e-4)
    inside = look_inside(Run(run), our_model(run))
    assert (inside.attention[0].queries[0], inside.attention[0].queries[-1]) == ("<s>", "</s>")

    rows = [{"text": f"{text}{n}", "label": place} for n in range(20) for place, text in enumerate(MODULES)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = finetune(run, data=data, out=tmp_path / "out", compare_scratch=False, train={"epochs": 1})
    read = torch.tensor([[0, *made.tokenizer.encode(MODULES[0]), 2]])
    with torch.no_grad():
        expected = made.loaded.model(read).softmax(-1)[0, 0]
    probabilities = made.predict(MODULES[:1])[0]["probabilities"]
    assert [probabilities[str(i)] for i in range(len(MODULES))] == pytest.approx(expected.tolist(), rel=1e-4)


def test_special_spellings_of_an_encoder_survive_import_and_export(encoder, tmp_path):
    folder, _, run = encoder
    out = export_hf(run, out=tmp_path / "out")
    before, after = (transformers.AutoTokenizer.from_pretrained(each) for each in (folder, out))
    for role in ("cls_token", "sep_token", "mask_token", "pad_token"):
        assert getattr(after, role) == (getattr(before, role) or "<pad>")
    for text in (*MODULES, "a <mask> b"):
        assert after(text)["input_ids"] == before(text)["input_ids"]
    again = Run(import_hf(str(out), out=tmp_path / "again"))
    assert text_ids(again, again.tokenizer()).special == text_ids(Run(run), Run(run).tokenizer()).special


def test_an_encoder_whose_tokenizer_names_no_mask_is_imported_with_a_warning(encoder, tmp_path):
    folder, _, _ = encoder
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": "<s>", "sep_token": "</s>"}')
    with pytest.warns(UserWarning, match="tokenizer_config.json names no mask_token among"):
        import_hf(str(tmp_path), out=tmp_path / "run")


@pytest.fixture(scope="module")
def t5(tmp_path_factory, text_folder):
    """Return a T5 with its own sentinels, as in CodeT5's tokenizer, and its run, which restores spans."""
    folder = tmp_path_factory.mktemp("t5")
    marks = tuple(f"<extra_id_{number}>" for number in reversed(range(40)))
    special = ("<pad>", "<s>", "</s>", *marks, "<mask>")
    Tokenizer.train(sorted(text_folder.iterdir()), vocab_size=512, special_tokens=special).save(folder)
    peer = save_peer(
        folder / "model",
        "t5",
        folder,
        ids={"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1, "decoder_start_token_id": 0},
    )
    processor = {"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2], "trim_offsets": True}
    named_files(folder / "model", processor | {"add_prefix_space": False}, {"mask_token": "<mask>"})
    return folder / "model", peer, import_hf(str(folder / "model"), out=folder / "run", objective="span-corruption")


def test_sentinels_of_a_t5_stand_for_spans_in_its_sources(t5):
    folder, peer, run = t5
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    for prompt in ("import <extra_id_0>\n", "def <extra_id_0>(x):<extra_id_1> x"):
        read = tok(prompt, return_tensors="pt")["input_ids"]
        assert tok.convert_tokens_to_ids("<extra_id_0>") in read[0].tolist()
        new = peer.generate(read, do_sample=False, max_new_tokens=12)[0, 1:].tolist()
        expected = tok.decode([token for token in new if token not in (0, 2)])
        assert generate(run, prompt=prompt, tokens=12, greedy=True, device="cpu") == expected


def test_special_spellings_of_a_t5_survive_import_and_export(t5, tmp_path):
    folder, _, run = t5
    assert text_ids(Run(run), Run(run).tokenizer()).special["<|mask|>"] == 43
    out = export_hf(run, out=tmp_path / "out")
    before, after = (transformers.AutoTokenizer.from_pretrained(each) for each in (folder, out))
    for text in ("def <extra_id_0>(x):", "a <mask> b"):
        assert after(text)["input_ids"] == before(text)["input_ids"]
    again = Run(import_hf(str(out), out=tmp_path / "again"))
    assert text_ids(again, again.tokenizer()) == text_ids(Run(run), Run(run).tokenizer())


def test_a_t5_is_measured_on_spans_between_its_own_ids(t5, text_folder, tmp_path):
    _, peer, run = t5
    build_dataset([str(text_folder)], tokenizer=run, context_length=512, separator=False, out=tmp_path / "data")
    found = evaluate(run, data=tmp_path / "data", device="cpu").to_json()["splits"]["validation"]

    batch = all_of_validation(run, tmp_path / "data", 512)
    first = Run(run).tokenizer().special_tokens["<extra_id_0>"]
    assert (batch.inputs[:, 0] == 0).all()
    assert (batch.inputs[:, 1] == first).all()
    assert ((batch.source == first).sum(axis=1) == 1).all()
    assert (batch.source[:, -1] == 2).all()
    with torch.no_grad():
        source, inputs, targets = (torch.from_numpy(part) for part in (batch.source, batch.inputs, batch.targets))
        logits = peer(input_ids=source, decoder_input_ids=inputs).logits
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    weights = torch.from_numpy(batch.weights).flatten()
    assert found["cross_entropy"] == pytest.approx(float((nats * weights).sum() / weights.sum()), rel=1e-4)
