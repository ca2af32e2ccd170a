"""Span corruption, from text to an evaluated encoder-decoder, with document masks and label smoothing."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lm.model import LanguageModel
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.training.batch_loss import hidden_states
from pipelines.training.batch_objectives import (
    MaskedToken,
    NextToken,
    SpanCorruption,
    document_numbers,
    validation_batch,
)
from pipelines.training.data import open_training_data
from pipelines.training.mixture import Mixture
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer
from tests.pipelines.training_cases import accept_config
from tokenizer import END_OF_TEXT, Tokenizer, sentinels


@pytest.fixture(scope="module")
def data(tmp_path_factory, text_folder):
    folder = tmp_path_factory.mktemp("spans")
    train_tokenizer([str(text_folder)], vocab_size=512, sentinels=4, out=folder / "tok")
    build_dataset([str(text_folder)], tokenizer=folder / "tok", context_length=48, out=folder / "data")
    return folder / "data"


@pytest.fixture(scope="module")
def recipe(small_recipe):
    t5 = load_recipe("t5-tiny")
    model = replace(t5.model, layers=1, width=32, heads=2, context_length=48)
    return replace(t5, model=model, train=replace(small_recipe.train, tokens=9600))


@pytest.fixture(scope="module")
def run(tmp_path_factory, recipe, data):
    folder = tmp_path_factory.mktemp("span-runs") / "t5"
    pretrain(recipe, data=data, out=folder)
    return folder


def metrics_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_source_and_target_together_are_the_block(data):
    tok, stream = Tokenizer.load(data), TokenDataset(data).split("train")
    objective = SpanCorruption(48, tok.special_tokens)
    batch = validation_batch(stream, objective, 0, 6)
    marks, end = {tok.special_tokens[name] for name in sentinels(4)}, tok.special_tokens["<|endoftext|>"]
    for row in range(6):
        source, target = batch.source[row].tolist(), batch.targets[row].tolist()
        assert source.pop() == target.pop() == end
        spans, current_span = {}, None
        for token in target:
            if token in marks and token not in spans:
                current_span = spans.setdefault(token, [])
            else:
                current_span.append(token)
        whole = [piece for token in source for piece in spans.get(token, [token])]
        assert whole == stream.read(48 * row, 48).tolist()
        assert batch.inputs[row].tolist() == [end, *batch.targets[row, :-1].tolist()]


def test_spans_change_with_the_epoch_but_not_in_validation(data):
    stream, objective = TokenDataset(data).split("validation"), SpanCorruption(48, Tokenizer.load(data).special_tokens)
    first, again = (validation_batch(stream, objective, 0, 8) for _ in range(2))
    assert np.array_equal(first.source, again.source)
    later = objective.batch(stream, np.arange(8) * 48, np.array([(0, 1, block) for block in range(8)]))
    assert later.source.shape == first.source.shape
    assert not np.array_equal(first.source, later.source)


def test_flops_per_token_equal_those_that_torch_counts(recipe, data):
    """The forward pass, with reference attention, sentinels and ends, takes a third of the FLOPs per token."""
    dataset, tok = TokenDataset(data), Tokenizer.load(data)
    training = open_training_data(recipe, Mixture([dataset]), tok)
    config = replace(recipe.model, vocab_size=dataset.vocab_size, attention="reference")
    model = LanguageModel(config, seed=0).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        batch = training.step(0, 0)
        model.logits(hidden_states(model, batch, np.ones(batch.inputs.shape, bool)))
    _, tokens = training.size(0, 0)
    assert training.flops_per_token(model) == pytest.approx(3 * counter.get_total_flops() / tokens)


def test_a_span_corruption_run_learns_and_is_evaluated(run):
    validation = [line["loss"] for line in metrics_of(run) if line["split"] == "validation"]
    assert validation[-1] < validation[0] - 0.3
    numbers = evaluate(run, device="cpu").to_json()["splits"]["validation"]
    assert numbers["bits_per_byte"] is None
    assert "pseudo_perplexity" not in numbers
    dataset = TokenDataset(Run(run).data)
    objective = SpanCorruption(48, Tokenizer.load(run).special_tokens)
    assert numbers["tokens"] == dataset.split("validation").blocks * objective.positions
    assert 0 < numbers["bigram_cross_entropy_bits"] < numbers["unigram_cross_entropy_bits"]
    with pytest.raises(ValueError, match="was trained on span-corruption: it reads whole blocks"):
        evaluate(run, stride=8)


def test_a_tokenizer_without_sentinels_is_refused_with_the_remedy(tmp_path, recipe, dataset_folder):
    short = replace(recipe, model=replace(recipe.model, context_length=32))
    with pytest.raises(ValueError, match=r"needs the special token <\|sentinel_0\|>.*`sentinels=100`"):
        pretrain(short, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_trains_and_resumes_with_published_names_of_special_tokens(tmp_path, text_folder, recipe):
    names = ("</s>", *(f"<extra_id_{number}>" for number in reversed(range(4))))
    train_tokenizer([str(text_folder)], vocab_size=512, special_tokens=names, out=tmp_path / "tok")
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=48, out=tmp_path / "data")
    short = replace(recipe, train=replace(recipe.train, tokens=960))
    pretrain(short, data=tmp_path / "data", out=tmp_path / "run")
    roles = Run(tmp_path / "run").facts["roles"]
    assert roles == {"<|sentinel_0|>": 4, "<|sentinel_1|>": 3, "<|sentinel_2|>": 2, "<|sentinel_3|>": 1, END_OF_TEXT: 0}
    pretrain(short, data=tmp_path / "data", out=tmp_path / "run")  # resumes


def test_documents_are_numbered_by_their_separators():
    ids = np.array([[5, 0, 6, 7, 0, 0, 8], [0, 1, 2, 3, 4, 5, 6]])
    assert document_numbers(ids, 0).tolist() == [[0, 1, 1, 1, 2, 3, 3], [1] * 7]
    assert document_numbers(ids, None) is None


def test_a_document_mask_hides_other_documents_in_training_and_evaluation(tmp_path, small_recipe, tokenizer_folder):
    """After its separator, a document is predicted as if there were no document before it."""
    tok = Tokenizer.load(tokenizer_folder)
    end = tok.special_tokens["<|endoftext|>"]
    documents = [[end, *np.random.default_rng(n).integers(300, 512, 15).tolist()] for n in range(4)]
    texts = tmp_path / "texts"
    texts.mkdir()
    for n, document in enumerate(documents * 8):
        (texts / f"{n:02d}.txt").write_bytes(tok.decode_bytes(document[1:]) + b"%d" % n)
    build_dataset([str(texts)], tokenizer=tokenizer_folder, context_length=32, out=tmp_path / "data")
    recipe = replace(
        small_recipe,
        model=replace(small_recipe.model, document_mask=True, dropout=0.0),
        train=replace(small_recipe.train, tokens=512, validate_every_tokens=256),
    )
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    numbers = evaluate(tmp_path / "run", splits=("train",), stride=16).to_json()["splits"]["train"]
    assert numbers["document_mask"] is True
    model = load_trained(Run(tmp_path / "run")).model
    stream = TokenDataset(tmp_path / "data").split("validation")
    ids = stream.read(0, 32).astype(np.int64)
    second = int(np.flatnonzero(ids == end)[1])
    objective = NextToken(32, end)
    batch = objective.batch(stream, np.array([0]))
    with torch.no_grad():
        whole = model(torch.from_numpy(batch.inputs), segments=torch.from_numpy(batch.segments))[0, second:]
        changed = torch.from_numpy(batch.inputs).clone()
        changed[0, :second] = 300
        again = model(changed, segments=torch.from_numpy(batch.segments))[0, second:]
    assert torch.equal(whole, again)
    plain = evaluate_without_mask(tmp_path, recipe)
    assert plain["cross_entropy"] != numbers["cross_entropy"]


def evaluate_without_mask(tmp_path, recipe):
    """Return the evaluation of the same weights without a document mask."""
    import shutil

    from pipelines.recipes.recipe import save_config

    copy = shutil.copytree(tmp_path / "run", tmp_path / "plain")
    this = Run(copy)
    unmasked = replace(this.recipe, model=replace(this.recipe.model, document_mask=False))
    save_config(copy / "config.toml", unmasked, this.facts)
    accept_config(copy)
    return evaluate(copy, splits=("train",), stride=16).to_json()["splits"]["train"]


def test_a_masked_model_numbers_documents_by_the_unmasked_tokens(dataset_folder, tokenizer_folder):
    tok, stream = Tokenizer.load(tokenizer_folder), TokenDataset(dataset_folder).split("validation")
    end = tok.special_tokens["<|endoftext|>"]
    batch = validation_batch(stream, MaskedToken(32, tok.special_tokens, tok.vocab_size, end), 0, 16)
    assert batch.segments.shape == batch.inputs.shape
    assert (np.diff(batch.segments, axis=1) == (batch.targets[:, 1:] == end)).all()


def test_a_document_mask_without_a_separator_is_refused(tmp_path, text_folder, small_recipe):
    train_tokenizer([str(text_folder)], vocab_size=300, out=tmp_path / "tok", special_tokens=())
    build_dataset(
        [str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data", separator=False
    )
    recipe = replace(small_recipe, model=replace(small_recipe.model, document_mask=True))
    with pytest.raises(ValueError, match=r"document_mask needs the special token <\|endoftext\|>"):
        pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")


def test_a_document_mask_on_a_dataset_without_separators_is_refused(
    tmp_path, text_folder, tokenizer_folder, small_recipe
):
    options = {"tokenizer": tokenizer_folder, "context_length": 32, "separator": False}
    build_dataset([str(text_folder)], out=tmp_path / "data", **options)
    recipe = replace(small_recipe, model=replace(small_recipe.model, document_mask=True))
    with pytest.raises(ValueError, match=r"document_mask .* but .*/data has no separators"):
        pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_smoothing_is_in_the_training_loss_alone(tmp_path, small_recipe, dataset_folder):
    """The first validation loss equals that of the plain recipe. The first training losses do not."""
    losses = {}
    for name, changes in {"plain": {}, "smoothed": {"label_smoothing": 0.2}, "z": {"z_loss": 0.1}}.items():
        train = replace(small_recipe.train, tokens=512, log_every_steps=1, **changes)
        pretrain(replace(small_recipe, train=train), data=dataset_folder, out=tmp_path / name)
        lines = metrics_of(tmp_path / name)
        losses[name] = {
            split: next(x["loss"] for x in lines if x["split"] == split) for split in ("train", "validation")
        }
    for name in ("smoothed", "z"):
        assert losses[name]["validation"] == losses["plain"]["validation"]
        assert losses[name]["train"] != losses["plain"]["train"]


@pytest.mark.parametrize(("field", "value"), [("label_smoothing", 1.0), ("label_smoothing", -0.1), ("z_loss", -1.0)])
def test_smoothing_out_of_range_is_refused_by_name(small_recipe, field, value):
    with pytest.raises(ValueError, match=f"train.{field} is {value}"):
        replace(small_recipe.train, **{field: value})


def test_a_stream_of_one_block_still_makes_a_batch():
    tok = Tokenizer.train(["abc"], vocab_size=265, special_tokens=("<|endoftext|>", *sentinels(4)))
    stream = TokenStream([np.arange(100, 148, dtype=np.uint16)], 48)
    assert len(validation_batch(stream, SpanCorruption(48, tok.special_tokens), 0, 16).inputs) == 1
