"""T5 and T5 1.1 with the published tokenizer, as transformers saves them: every verb takes them."""

import json
import shutil
from dataclasses import replace

import pytest
import sentencepiece
import torch

from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.planning import objective_of
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from pipelines.training.batch_objectives import validation_batch
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.generate import generate
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from pipelines.verbs.score import score
from tests.pipelines.exchange_cases import our_model
from tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

CONTEXT = 32
SHAPE = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 3, "n_positions": CONTEXT}
FAMILIES = {
    "t5": SHAPE,
    "t5-1.1": {**SHAPE, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
TEXTS = (
    "translate English to German: The house is wonderful.",
    "The <extra_id_0> walks in<extra_id_1>  park <extra_id_99>",
    "Naïve CAFÉ — 漢字 🙂\r\n\t x\u00a0\u200b ﬁ\u0301",
    "a</s> b<pad><unk>c",
    "<|sentinel_0|> <extra_id_100> <extra_id_00>",
    "",
    " ",
    "\x00\ufffd\ud7ff",
    "supercalifragilistic" * 12,
)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, shared, tmp_path_factory):
    """Return a random model and its tokenizer of transformers, and the imported run."""
    torch.manual_seed(0)
    config = transformers.T5Config(decoder_start_token_id=0, **FAMILIES[request.param])
    peer = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp(request.param)
    hub = folder / "hub"
    peer.save_pretrained(hub)
    shutil.copy(shared / "vectors" / "t5-small" / "tokenizer.json", hub)
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (hub / "tokenizer_config.json").write_text(json.dumps(settings))
    tok = transformers.AutoTokenizer.from_pretrained(hub)
    return peer, tok, import_hf(str(hub), objective="span-corruption", out=folder / "run")


@torch.no_grad()
def logits(model, sources, targets):
    """Return the logits (B, N, V) of our model or one of transformers for sources (B, S) and decoder inputs (B, N)."""
    if isinstance(model, transformers.PreTrainedModel):
        return model(input_ids=sources, decoder_input_ids=targets).logits
    return model.logits(model(targets, source=sources))


def some_ids():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(32128, (2, CONTEXT), generator=generator), torch.randint(32128, (2, 9), generator=generator)


def assert_same_ids(ours, theirs):
    """Compare ids of texts, special tokens in them and `</s>` included."""
    before, after = ours.ids_around_text
    assert (before, [*after]) == ([], [1])
    for text in TEXTS:
        assert [*ours.encode(text, allowed_special="all"), *after] == theirs(text)["input_ids"], text


def test_ids_and_logits_are_those_of_transformers(family):
    peer, tok, run = family
    ours = Tokenizer.load(run)
    assert_same_ids(ours, tok)
    assert (ours.vocab_size, Run(run).recipe.model.vocab_size) == (32100, 32128)
    expected = logits(peer, *some_ids())
    assert expected.std() > 0.1
    torch.testing.assert_close(logits(our_model(run), *some_ids()), expected, atol=1e-4, rtol=0)


def test_a_folder_with_a_sentencepiece_model_alone_is_imported(family, tmp_path):
    hub = tmp_path / "hub"
    family[0].save_pretrained(hub)
    trainer = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False, "minloglevel": 3}
    words = ["the house is wonderful and the park is green"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words), model_prefix=str(hub / "spiece"), vocab_size=40, **trainer
    )
    run = import_hf(str(hub), objective="span-corruption", out=tmp_path / "run")
    ours, theirs = Tokenizer.load(run), transformers.T5Tokenizer.from_pretrained(hub)
    assert_same_ids(ours, theirs)
    roles = Run(run).facts["roles"]
    assert roles["<|sentinel_0|>"] == theirs.convert_tokens_to_ids("<extra_id_0>") == len(theirs) - 1


def test_a_folder_that_the_tokenizer_of_t5_saved_gives_the_same_ids(family, shared, tmp_path):
    hub = tmp_path / "hub"
    family[0].save_pretrained(hub)
    tok = transformers.T5TokenizerFast(tokenizer_file=str(shared / "vectors" / "t5-small" / "tokenizer.json"))
    tok.save_pretrained(hub)
    assert_same_ids(Tokenizer.load(import_hf(str(hub), out=tmp_path / "run")), tok)


def test_sentinels_keep_their_published_names(family):
    _, tok, run = family
    special = text_ids(Run(run), Tokenizer.load(run)).special
    numbers = range(100)
    assert [special[f"<|sentinel_{n}|>"] for n in numbers] == [
        tok.convert_tokens_to_ids(f"<extra_id_{n}>") for n in numbers
    ]


def test_an_export_gives_the_published_format_back(family, tmp_path):
    peer, tok, run = family
    out = export_hf(run, out=tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs.special_tokens_map == tok.special_tokens_map
    assert [theirs(text, "b")["input_ids"] for text in TEXTS] == [tok(text, "b")["input_ids"] for text in TEXTS]
    again, loading = transformers.AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert not any(loading.values()), loading
    torch.testing.assert_close(logits(again.eval(), *some_ids()), logits(peer, *some_ids()), atol=1e-4, rtol=0)
    back = import_hf(str(out), objective="span-corruption", out=tmp_path / "back")
    assert Run(back).recipe == Run(run).recipe
    for name, weight in our_model(run).state_dict().items():
        assert torch.equal(our_model(back).state_dict()[name], weight)


def test_spans_are_filled_in_as_transformers_fills_them(family):
    peer, tok, run = family
    text = "The <extra_id_0> of France is <extra_id_1>."
    found = generate(run, prompt=text, tokens=8, greedy=True, device="cpu")
    source = tok(text, return_tensors="pt")["input_ids"]
    unused = [[i] for i in range(tok.vocab_size, peer.config.vocab_size)]
    ids = peer.generate(source, max_new_tokens=8, do_sample=False, bad_words_ids=unused)[0, 1:]
    expected = tok.decode(ids)
    assert found == expected


def test_sampled_targets_are_the_decoded_ids_without_a_blank_before_the_first_word(family):
    _, tok, run = family
    sampled = generate(run, prompt=["The house"] * 8, tokens=4, temperature=1.0, probabilities=True, device="cpu")
    ids = [[step["id"] for step in one["steps"] if step["id"] != tok.eos_token_id] for one in sampled]
    assert any(tok.convert_ids_to_tokens(first).startswith("▁") for first, *_ in ids)
    assert [one["text"] for one in sampled] == [Run(run).tokenizer().decode(each) for each in ids]


@torch.no_grad()
def test_a_score_is_the_log_likelihood_under_transformers(family):
    peer, tok, run = family
    source, target = "The <extra_id_0> walks in the park", "<extra_id_0> cute dog <extra_id_1>"
    sources, labels = (tok(text, return_tensors="pt")["input_ids"] for text in (source, target))
    nats = peer(input_ids=sources, labels=labels).loss.item() * labels.numel()
    found = score(run, source, target=target, device="cpu")
    assert -found.log_probability == pytest.approx(nats, rel=1e-4)


def test_training_from_scratch_uses_the_published_sentinels(shared, text_folder, small_recipe, tmp_path):
    published = shared / "vectors" / "t5-small" / "tokenizer.json"
    tok = transformers.PreTrainedTokenizerFast(tokenizer_file=str(published))
    data, run = tmp_path / "data", tmp_path / "run"
    text = [str(min(text_folder.iterdir()))]
    build_dataset(text, tokenizer=published, context_length=CONTEXT, split="tail:0.3", out=data)
    t5 = load_recipe("t5-tiny")
    model = replace(t5.model, layers=1, width=16, context_length=CONTEXT)
    pretrain(replace(t5, model=model, train=replace(small_recipe.train, tokens=64)), data=data, out=run)
    objective = objective_of(Run(run), CONTEXT, Tokenizer.load(run))
    batch = validation_batch(TokenDataset(data).split("validation"), objective, 0, 2)
    sentinel, end = tok.convert_tokens_to_ids(["<extra_id_0>", "</s>"])
    for source, target in zip(batch.source, batch.targets, strict=True):
        assert (source == sentinel).sum() == (target == sentinel).sum() == 1
        assert source[-1] == target[-1] == end
    theirs = transformers.AutoTokenizer.from_pretrained(export_hf(run, out=tmp_path / "out"))
    assert (theirs.eos_token, theirs.pad_token) == ("</s>", "<pad>")
    assert [theirs(text)["input_ids"] for text in TEXTS] == [tok(text)["input_ids"] for text in TEXTS]


@pytest.mark.slow
def test_a_run_is_evaluated_reported_trained_further_and_exported(family, text_folder, tmp_path):
    peer, tok, run = family
    (tmp_path / "text").mkdir()
    for path in sorted(text_folder.glob("*.txt"))[:4]:
        shutil.copy(path, tmp_path / "text")
    data = tmp_path / "data"
    build_dataset([str(tmp_path / "text")], tokenizer=run, context_length=CONTEXT, split="tail:0.1", out=data)
    assert json.loads((data / "dataset.json").read_text())["separator"] == tok.eos_token_id
    assert evaluate(run, data=data, device="cpu").validation.cross_entropy > 0
    assert "extra_id_0" in report([run], out=tmp_path / "page.html").read_text(encoding="utf-8")
    recipe = Run(run).recipe
    recipe = replace(recipe, train=replace(recipe.train, tokens=240, batch_tokens=120, device="cpu", dtype="float32"))
    pretrain(recipe, data=data, out=tmp_path / "more", init_from=run)
    out = export_hf(tmp_path / "more", out=tmp_path / "out")
    trained = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    expected = logits(our_model(tmp_path / "more"), *some_ids())
    torch.testing.assert_close(logits(trained, *some_ids()), expected, atol=1e-4, rtol=0)
    assert not torch.equal(logits(peer, *some_ids()), expected)
    assert transformers.AutoTokenizer.from_pretrained(out).special_tokens_map == tok.special_tokens_map
