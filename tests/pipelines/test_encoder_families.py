"""BERT, RoBERTa and DistilBERT with published tokenizers, as transformers saves them, work with every verb."""

import json
import shutil
from dataclasses import replace

import datasets
import pytest
import torch

from pipelines.run.folder import Run
from pipelines.tasks.data import reader_of
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.finetune import finetune
from pipelines.verbs.generate import generate
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from pipelines.verbs.score import score
from tests.pipelines.exchange_cases import our_model
from tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

CONTEXT = 32
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
FAMILIES = {
    "bert": ("BertForPreTraining", "bert-uncased", {**SHAPE, "intermediate_size": 24}),
    "bert-cased": ("BertForMaskedLM", "bert-cased", {**SHAPE, "intermediate_size": 24, "vocab_size": 28996}),
    "roberta": (
        "RobertaForMaskedLM",
        "roberta",
        {**SHAPE, "intermediate_size": 24, "vocab_size": 50265, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ),
    "distilbert": ("DistilBertForMaskedLM", "bert-uncased", {**SHAPE, "hidden_dim": 24}),
}
TEXTS = (
    "The capital of France is Paris, isn't it?",
    "a  {mask} b{mask}\n {mask}",
    "Naïve CAFÉ — 漢字 🙂\r\n\t x\u00a0\u200b ﬁ\u0301",
    "{first}a {last} b{last}{mask}",
    "",
    " ",
    "\x00\ufffd\ud7ff",
    "supercalifragilistic" * 12,
)
LEFT_OUT = {"architectures", "dtype", "transformers_version", "initializer_range", "use_cache", "classifier_dropout"}
LEFT_OUT |= {"qa_dropout", "seq_classif_dropout", "is_decoder", "add_cross_attention"}  # at their defaults here


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name in ("bert-cased", "distilbert") else [])
        for name in FAMILIES
    ],
)
def family(request, shared, tmp_path_factory):
    """Return a random model of transformers, its tokenizer, the folder of both, and the run imported from it."""
    cls, vectors, shape = FAMILIES[request.param]
    name = cls[: cls.index("For")]
    positions = CONTEXT + (2 if name == "Roberta" else 0)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(max_position_embeddings=positions, **shape)
    peer = getattr(transformers, cls)(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp(request.param)
    peer.save_pretrained(folder / "hub")
    source = shared / "vectors" / vectors
    if name == "Roberta":
        tok = transformers.RobertaTokenizerFast(tokenizer_file=str(source / "tokenizer.json"))
    else:
        lower = vectors == "bert-uncased"
        tok = getattr(transformers, f"{name}TokenizerFast")(vocab=str(source / "vocab.txt"), do_lower_case=lower)
    tok.save_pretrained(folder / "hub")
    return peer, tok, folder / "hub", import_hf(str(folder / "hub"), out=folder / "run")


def texts(tok):
    return [text.format(mask=tok.mask_token, first=tok.cls_token, last=tok.sep_token) for text in TEXTS]


def assert_same_ids(ours, theirs):
    """Compare ids of texts, special tokens in them included."""
    before, after = ours.ids_around_text
    for text in texts(theirs):
        assert [*before, *ours.encode(text, allowed_special="all"), *after] == theirs(text)["input_ids"], text


def padded_rows(tok, vocab_size):
    """Return padded rows with a full context, 7 ids and 1 id, and a mask that is true at the ids."""
    ids = torch.randint(1000, vocab_size, (3, CONTEXT), generator=torch.Generator().manual_seed(1))
    present = torch.arange(CONTEXT) < torch.tensor([[CONTEXT], [7], [1]])
    return ids.where(present, tok.pad_token_id), present


@torch.no_grad()
def logits(model, ids, present):
    """Return the logits (N, V) at the positions without padding; `model` is ours or one of transformers."""
    if isinstance(model, transformers.PreTrainedModel):
        output = model(ids, attention_mask=present.long())
        return (output.logits if "logits" in output else output.prediction_logits)[present]
    return model.logits(model(ids, present=present))[present]


def test_ids_and_logits_are_those_of_transformers(family):
    peer, tok, _, run = family
    assert_same_ids(Tokenizer.load(run), tok)
    rows = padded_rows(tok, peer.config.vocab_size)
    expected = logits(peer, *rows)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits(our_model(run), *rows), expected, atol=1e-4, rtol=0)


def test_an_export_has_the_settings_tokenizer_and_weights_of_the_original(family, tmp_path):
    peer, tok, hub, run = family
    out = export_hf(run, out=tmp_path / "out")
    settings, published = (json.loads((folder / "config.json").read_text()) for folder in (out, hub))
    assert settings["architectures"] == [type(peer).__name__.replace("ForPreTraining", "ForMaskedLM")]
    assert {key: settings.get(key) for key in published.keys() - LEFT_OUT} == {
        key: value for key, value in published.items() if key not in LEFT_OUT
    }
    kind = "Byte-level BPE" if settings["model_type"] == "roberta" else "WordPiece"
    assert f"{kind} with {len(tok):,} entries" in (out / "README.md").read_text(encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs.special_tokens_map == tok.special_tokens_map
    assert theirs.model_input_names == tok.model_input_names
    assert [dict(theirs(text, "b")) for text in texts(tok)] == [dict(tok(text, "b")) for text in texts(tok)]
    assert [theirs(text)["input_ids"] for text in texts(tok)] == [tok(text)["input_ids"] for text in texts(tok)]
    again, loading = transformers.AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not any(loading.values()), loading
    rows = padded_rows(tok, peer.config.vocab_size)
    torch.testing.assert_close(logits(again.eval(), *rows), logits(peer, *rows), atol=1e-4, rtol=0)
    back = import_hf(str(out), out=tmp_path / "back")
    assert Run(back).recipe.model == Run(run).recipe.model
    for name, weight in our_model(run).state_dict().items():
        assert torch.equal(our_model(back).state_dict()[name], weight)


@torch.no_grad()
def test_masks_are_filled_as_transformers_fills_them(family):
    peer, tok, _, run = family
    text = f"The  {tok.mask_token} of France is {tok.mask_token}."
    found = generate(run, prompt=text, device="cpu")
    ids = tok(text, return_tensors="pt")["input_ids"]
    expected = logits(peer, ids, torch.ones_like(ids, dtype=torch.bool)).softmax(-1)[ids[0] == tok.mask_token_id]
    assert [mask["position"] for mask in found] == (ids[0] == tok.mask_token_id).nonzero()[:, 0].tolist()
    for mask, row in zip(found, expected, strict=True):
        assert mask["probabilities"] == pytest.approx(row.topk(len(mask["probabilities"])).values.tolist(), rel=1e-3)


@torch.no_grad()
def test_a_score_is_the_pseudo_log_likelihood_under_transformers(family):
    """Each token is masked alone, between the first and the last token of the family."""
    peer, tok, _, run = family
    text = "The capital of France"
    ids = torch.tensor(tok(text)["input_ids"])
    nats = 0.0
    for place in range(1, len(ids) - 1):
        masked = ids.clone()
        masked[place] = tok.mask_token_id
        row = logits(peer, masked[None], torch.ones(1, len(ids), dtype=torch.bool))[place]
        nats -= row.log_softmax(-1)[ids[place]].item()
    found = score(run, text, device="cpu")
    assert -found.log_probability == pytest.approx(nats, rel=1e-4)


@pytest.fixture(scope="module")
def data(family, text_folder):
    """Return a dataset with the run's tokenizer, of a few documents."""
    run = family[3]
    some = run.parent / "text"
    some.mkdir()
    for path in sorted(text_folder.glob("*.txt"))[:6]:
        shutil.copy(path, some)
    out = run.parent / "data"
    build_dataset([str(some)], tokenizer=run, context_length=CONTEXT - 2, split="tail:0.1", out=out)
    return out


def test_a_dataset_separates_documents_as_the_family_does(family, data):
    _, tok, _, run = family
    info = json.loads((data / "dataset.json").read_text())
    assert info["separator"] == tok.sep_token_id
    train = datasets.load_from_disk(str(data))["train"]["input_ids"][:]
    stream = [i for block in train for i in block]
    assert stream[0] == tok.sep_token_id
    assert 4 <= stream.count(tok.sep_token_id) <= 6
    ours = Tokenizer.load(run)
    end = stream.index(tok.sep_token_id, 1)
    first = sorted((data.parent / "text").glob("*.txt"))[0].read_text(encoding="utf-8")
    assert stream[1:end] == ours.encode_ordinary(first)
    assert stream[1:end] == tok(first, add_special_tokens=False)["input_ids"]


@pytest.mark.slow
def test_a_run_is_evaluated_reported_and_trained_further(family, data, tmp_path):
    peer, tok, _, run = family
    assert evaluate(run, data=data, device="cpu").validation.cross_entropy > 0
    assert "imported_from" in report([run], out=tmp_path / "page.html").read_text(encoding="utf-8")
    recipe = Run(run).recipe
    recipe = replace(recipe, train=replace(recipe.train, tokens=240, batch_tokens=120, device="cpu", dtype="float32"))
    pretrain(recipe, data=data, out=tmp_path / "more", init_from=run)
    out = export_hf(tmp_path / "more", out=tmp_path / "out")
    trained = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    assert type(trained).__name__ == type(peer).__name__.replace("ForPreTraining", "ForMaskedLM")
    rows = padded_rows(tok, peer.config.vocab_size)
    expected = logits(our_model(tmp_path / "more"), *rows)
    torch.testing.assert_close(logits(trained, *rows), expected, atol=1e-4, rtol=0)
    assert not torch.equal(logits(peer, *rows), expected)
    assert transformers.AutoTokenizer.from_pretrained(out).special_tokens_map == tok.special_tokens_map


@pytest.mark.slow
def test_a_task_reads_pairs_as_the_family_does(family, tmp_path):
    _, tok, _, run = family
    rows = [{"text": f"{word} {n}", "label": word} for n in range(20) for word in ("good", "bad")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = {"epochs": 2, "device": "cpu"}
    made = finetune(run, data=tmp_path / "rows.jsonl", out=tmp_path / "out", compare_scratch=False, train=train)
    reader = reader_of(made.run, made.config.task)
    ids, types, _ = reader.join(reader.ids(["good 3", "bad 7"]))
    pair = tok("good 3", "bad 7", return_token_type_ids=True)
    assert ids.tolist() == pair["input_ids"]
    assert made.config.model.token_types < 2 or types.tolist() == pair["token_type_ids"]
    assert {one["prediction"] for one in made.predict(["good 3", "bad 7"])} <= {"good", "bad"}


def test_folders_without_tokenizer_json_give_the_same_ids_and_export(family, tmp_path):
    """Such folders have vocab.txt, or RoBERTa's vocab.json and merges.txt, and settings that name no token."""
    _, tok, hub, _ = family
    old = shutil.copytree(hub, tmp_path / "old")
    content = json.loads((old / "tokenizer.json").read_text(encoding="utf-8"))
    (old / "tokenizer.json").unlink()
    vocab = content["model"]["vocab"]
    config = {"tokenizer_class": "RobertaTokenizer"}
    if "merges" in content["model"]:
        merges = "\n".join(merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"])
        (old / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
        (old / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    else:
        (old / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n", encoding="utf-8")
        config = {"do_lower_case": content["normalizer"]["lowercase"]}
    (old / "tokenizer_config.json").write_text(json.dumps(config))
    run = import_hf(str(old), out=tmp_path / "run")
    assert_same_ids(Tokenizer.load(run), tok)
    theirs = transformers.AutoTokenizer.from_pretrained(export_hf(run, out=tmp_path / "out"))
    assert theirs.special_tokens_map == tok.special_tokens_map
    assert [theirs(text)["input_ids"] for text in texts(tok)] == [tok(text)["input_ids"] for text in texts(tok)]
