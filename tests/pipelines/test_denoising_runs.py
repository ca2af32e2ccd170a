"""BART's denoising, from text to an evaluated encoder-decoder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import bytelm
from lm.model import LanguageModel
from pipelines.dataset.reader import TokenDataset
from pipelines.generation.prompts import source_ids
from pipelines.recipes.recipe import load_recipe
from pipelines.reporting.samples import samples_of
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.training.batch_loss import hidden_states
from pipelines.training.batch_objectives import Denoising, sentence_stops, validation_batch
from pipelines.training.data import open_training_data
from pipelines.training.mixture import Mixture
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from tokenizer import END_OF_TEXT, MASK, Tokenizer


@pytest.fixture(scope="module")
def recipe(small_recipe):
    bart = load_recipe("bart-tiny")
    model = replace(bart.model, layers=1, width=32, heads=2, context_length=33)
    return replace(bart, model=model, train=replace(small_recipe.train, tokens=9600))


@pytest.fixture(scope="module")
def run(tmp_path_factory, recipe, dataset_folder):
    folder = tmp_path_factory.mktemp("denoising") / "bart"
    pretrain(recipe, data=dataset_folder, out=folder)
    return folder


def test_sequences_too_short_to_corrupt_are_refused_before_anything_is_written(recipe, dataset_folder, tmp_path):
    short = replace(recipe, train=replace(recipe.train, length_start=1))
    with pytest.raises(ValueError, match="a block of 1 tokens is too short"):
        pretrain(short, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_decoder_restores_the_whole_block_from_a_corrupted_one(dataset_folder):
    tok, stream = Tokenizer.load(dataset_folder), TokenDataset(dataset_folder).split("train")
    batch = validation_batch(stream, Denoising(32, tok.special_tokens, sentence_stops(tok)), 0, 40)
    end, mask = tok.special_tokens[END_OF_TEXT], tok.special_tokens[MASK]
    orders = set()
    for row in range(40):
        block = stream.read(32 * row, 32).tolist()
        assert batch.targets[row].tolist() == [*block, end]
        assert batch.inputs[row].tolist() == [end, *block]
        source = batch.source[row][batch.source_present[row]].tolist()
        assert source.pop() == end
        kept = [token for token in source if token != mask]
        assert len(kept) == 32 - round(0.3 * 32)
        assert not set(kept) - set(block)
        rest = iter(block)
        orders.add(all(token in rest for token in kept))  # whether the kept tokens are in their order
    assert orders == {True, False}
    assert (batch.weights == 1).all()


def test_full_stops_end_sentences_even_before_quotes_and_space():
    tok = Tokenizer.train(['"No." He left.\n Why?! (Yes.) e.g. pi 3.14'] * 50, vocab_size=290)
    stops = {tok.token_bytes(token) for token in sentence_stops(tok).tolist()}
    assert {b".", b"?", b"!"} <= stops
    assert all(spelling.strip(b" \n\"')")[-1:] in (b".", b"?", b"!") for spelling in stops)
    assert not stops & {b",", b"a", b'"', b"\n"}


def test_flops_per_token_equal_those_that_torch_counts(recipe, dataset_folder):
    dataset = TokenDataset(dataset_folder)
    training = open_training_data(recipe, Mixture([dataset]), Tokenizer.load(dataset_folder))
    config = replace(recipe.model, vocab_size=dataset.vocab_size, attention="reference")
    model = LanguageModel(config, seed=0).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        batch = training.step(0, 0)
        model.logits(hidden_states(model, batch, np.ones(batch.inputs.shape, bool)))
    _, tokens = training.size(0, 0)
    assert training.flops_per_token(model) == pytest.approx(3 * counter.get_total_flops() / tokens)


def test_a_denoising_run_learns_and_is_evaluated_and_sampled(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validation = [line["loss"] for line in lines if line["split"] == "validation"]
    assert validation[-1] < validation[0] - 0.3
    numbers = evaluate(run, device="cpu").to_json()["splits"]["validation"]
    assert numbers["bits_per_byte"] is None  # the source holds most of the text
    assert numbers["tokens"] == TokenDataset(Run(run).data).split("validation").blocks * 33
    (sample,) = samples_of(Run(run), load_trained(Run(run)).model)
    assert sample.title.startswith("corrupted validation text") and "<|mask|>" in sample.before


def test_a_mask_in_the_source_is_the_mask_token(run):
    loaded = bytelm.load_run(run)
    score = bytelm.score_text(loaded, f"import {MASK}\n", target="import os\n")
    assert score.ids[-1] == loaded.tokenizer.special_tokens[END_OF_TEXT]
    with_text = bytelm.score_text(loaded, "import < | mask | >\n", target="import os\n")
    assert score.predictions.log_probabilities.tolist() != with_text.predictions.log_probabilities.tolist()
    (ids,) = source_ids(loaded.tokenizer, [f"import {MASK}\n"], loaded.config.model, loaded.around)
    assert ids.count(loaded.tokenizer.special_tokens[MASK]) == 1


def test_the_context_of_another_length_is_refused_with_the_right_one(tmp_path, recipe, dataset_folder):
    longer = replace(recipe, model=replace(recipe.model, context_length=32))
    with pytest.raises(ValueError, match=r"model reads 1 more.*`model.context_length=33`"):
        pretrain(longer, data=dataset_folder, out=tmp_path / "run")
