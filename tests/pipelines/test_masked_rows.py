"""One decoder trained on next tokens and on masked tokens, as GPT-BERT: batches, losses, evaluation and export."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import bytelm
from lm.masks import Mask
from lm.model import LanguageModel
from lm.objectives import MASKED, REPLACED
from pipelines.dataset.reader import TokenDataset
from pipelines.run.folder import Run
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import summed_loss, target_nats
from pipelines.training.batch_objectives import make_objective, validation_batch
from pipelines.training.data import open_training_data
from pipelines.training.masking import Masking
from pipelines.training.mixture import Mixture
from pipelines.verbs.build_dataset import build_dataset
from tests.pipelines.training_cases import assert_same_run, stop_after, with_train
from tokenizer import Tokenizer

SHARE = 0.3


@pytest.fixture(scope="module")
def recipe(small_recipe):
    return with_train(small_recipe, masked_rows=0.5, masked_share=SHARE)


@pytest.fixture(scope="module")
def run(recipe, dataset_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("hybrid") / "run"
    bytelm.pretrain(recipe, data=dataset_folder, out=out)
    return out


@pytest.fixture(scope="module")
def stream(dataset_folder):
    return TokenDataset(dataset_folder).split("train")


@pytest.fixture(scope="module")
def tok(dataset_folder):
    return Tokenizer.load(dataset_folder)


def objective(tok, rows):
    return make_objective("next-token", 32, tok, masking=Masking(share=SHARE, rows=rows))


def batch_of(stream, tok, rows=0.5, blocks=24):
    numbers = np.arange(blocks)
    draws = np.stack([0 * numbers + 7, 0 * numbers, numbers], axis=1)
    return objective(tok, rows).batch(stream, numbers * 32, draws)


def plain_row(block, generator, tok):
    """Return inputs, targets, weights of a masked row, token by token: the oracle of `NextOrMaskedToken`."""
    special = set(tok.special_tokens.values())
    ordinary = [token for token in range(tok.vocab_size) if token not in special]
    draws = [generator.random() for _ in block]
    chosen = [draw < SHARE and token not in special for draw, token in zip(draws, block, strict=True)]
    replaced = [SHARE * MASKED <= draw < SHARE * (MASKED + REPLACED) for draw in draws]
    others = iter(generator.integers(len(ordinary), size=sum(c and r for c, r in zip(chosen, replaced, strict=True))))
    read = list(block)
    for place, draw in enumerate(draws):
        if chosen[place] and draw < SHARE * MASKED:
            read[place] = tok.special_tokens["<|mask|>"]
        elif chosen[place] and replaced[place]:
            read[place] = ordinary[next(others)]
    return read[:-1], block[1:], [float(one) for one in chosen[1:]]


def test_rows_are_causal_or_masked_by_their_draws(stream, tok):
    batch = batch_of(stream, tok)
    assert 0 < batch.causal.sum() < len(batch.causal)
    for row in range(len(batch.inputs)):
        block = stream.read(row * 32, 33).tolist()
        generator = np.random.default_rng((7, 0, row))
        causal = generator.random() >= 0.5
        assert batch.causal[row] == causal
        expected = (block[:-1], block[1:], [1.0] * 32) if causal else plain_row(block, generator, tok)
        assert batch.inputs[row].tolist() == expected[0] and batch.targets[row].tolist() == expected[1]
        scale = 1.0 if causal else 1 / SHARE
        np.testing.assert_allclose(batch.weights[row], np.array(expected[2]) * scale, rtol=1e-6)


def test_both_kinds_of_rows_weigh_the_same_on_average(stream, tok):
    batch = batch_of(stream, tok, blocks=stream.blocks - 1)
    special = np.isin(batch.targets, [*tok.special_tokens.values()]).mean()
    masked = batch.weights[~batch.causal[:, 0]].mean()
    assert batch.weights[batch.causal[:, 0]].mean() == 1.0
    assert masked == pytest.approx(1 - special, abs=0.1)


@pytest.fixture(scope="module")
def model(recipe, tok):
    model = LanguageModel(replace(recipe.model, vocab_size=tok.vocab_size), seed=1).double().eval()
    model.compute_dtype = torch.float64
    return model


def hidden(model, batch):
    return model(torch.from_numpy(batch.inputs), causal=torch.from_numpy(batch.causal))


@torch.no_grad()
def test_rows_of_a_mixed_batch_equal_those_of_a_causal_and_of_a_bidirectional_model(model, stream, tok):
    batch = batch_of(stream, tok)
    ids, causal = torch.from_numpy(batch.inputs), batch.causal[:, 0]
    mixed = hidden(model, batch)
    both_sides = model.stack(model.embed(ids), ids, dtype=torch.float64, mask=Mask())
    torch.testing.assert_close(mixed[causal], model(ids)[causal], atol=1e-12, rtol=0)
    torch.testing.assert_close(mixed[~causal], both_sides[~causal], atol=1e-12, rtol=0)


def test_no_prediction_sees_its_target(model, stream, tok):
    """Gradients by the embedded inputs: a causal row sees nothing later. A masked row sees all, but not its targets."""
    batch = batch_of(stream, tok)
    ids = torch.from_numpy(batch.inputs)
    embedded = model.embed(ids).detach().requires_grad_()
    mask = model.mask(model.stack, causal=torch.from_numpy(batch.causal))
    out = model.stack(embedded, ids, dtype=torch.float64, mask=mask)
    place = 10
    direction = torch.arange(out.shape[-1], dtype=torch.float64)  # a norm makes the sum constant
    (gradient,) = torch.autograd.grad((out[:, place] @ direction).sum(), embedded)
    reached = gradient.abs().amax(-1) > 0
    causal = batch.causal[:, 0]
    assert reached[~causal].all()
    assert reached[causal][:, : place + 1].all() and not reached[causal][:, place + 1 :].any()
    # In masked rows the inputs do not depend on the token below a mask.
    masked = (batch.inputs == tok.special_tokens["<|mask|>"]) & ~batch.causal
    other = np.where(np.arange(tok.vocab_size) < tok.vocab_size - 1, np.arange(tok.vocab_size) + 1, 10)

    class Changed:
        """The stream with another token below each mask."""

        tokens = stream.tokens

        def gather(self, starts, length):
            blocks = stream.gather(starts, length).astype(np.int64)
            for row, start in enumerate(starts.tolist()):
                hidden_places = np.flatnonzero(masked[start // 32])
                blocks[row, hidden_places] = other[blocks[row, hidden_places]]
            return blocks

    again = batch_of(Changed(), tok)
    changed = ~batch.causal[:, 0]
    assert np.array_equal(again.inputs[changed], batch.inputs[changed])
    assert (again.targets[changed] != batch.targets[changed]).any()


@torch.no_grad()
def test_the_loss_of_a_batch_is_the_sum_of_both_losses_alone(model, stream, tok):
    batch = batch_of(stream, tok)
    total = float(summed_loss(model, model, batch, device=torch.device("cpu")))
    causal = np.flatnonzero(batch.causal[:, 0])
    alone = make_objective("next-token", 32, tok).batch(stream, causal * 32)
    next_nats = float(target_nats(model, alone, alone.weights > 0).sum())
    rows = np.flatnonzero(~batch.causal[:, 0])
    masked = Batch(batch.inputs[rows], batch.targets[rows], batch.weights[rows], causal=batch.causal[rows])
    masked_nats = float(target_nats(model, masked, masked.weights > 0).sum())
    assert total == pytest.approx(next_nats + masked_nats / SHARE, rel=1e-6)


def test_validation_measures_next_tokens(run, recipe, dataset_folder, tok):
    dataset = TokenDataset(dataset_folder)
    data = open_training_data(recipe, Mixture([dataset]), tok)
    first = next(iter(data.validation(dataset.place.name, 256, 8)))
    alone = validation_batch(dataset.split("validation"), make_objective("next-token", 32, tok), 0, 8)
    assert first.causal is None and np.array_equal(first.inputs, alone.inputs)
    evaluated = bytelm.evaluate(run).splits["validation"]
    bits = Run(run).metrics()[-1]["loss"] / math.log(2)
    assert evaluated.cross_entropy_bits == pytest.approx(bits, rel=0.1)  # validation read a part of the split


def test_evaluation_reports_the_loss_of_both_kinds(run, dataset_folder, tok):
    evaluated = bytelm.evaluate(run).splits["validation"]
    stream, model = TokenDataset(dataset_folder).split("validation"), bytelm.load_run(run).model
    nats, size = [], 0
    masking = make_objective("next-token", 32, tok, masking=Masking(rows=1.0))
    for number in range(stream.blocks):
        batch = validation_batch(stream, masking, number, 1)
        scored = batch.weights[0] > 0
        ids = torch.from_numpy(batch.inputs)
        with torch.no_grad():
            out = model.stack(model.embed(ids), ids, dtype=torch.float32, mask=Mask())
            log_p = torch.log_softmax(model.logits(out).double(), dim=-1)[0]
        nats += [-float(log_p[place, batch.targets[0, place]]) for place in np.flatnonzero(scored)]
        size += sum(len(tok.token_bytes(token)) for token in batch.targets[0, scored].tolist())
    assert evaluated.masked_tokens == len(nats)
    assert evaluated.masked_cross_entropy == pytest.approx(np.mean(nats), rel=1e-5)
    assert evaluated.bits_per_masked_byte == pytest.approx(sum(nats) / math.log(2) / size, rel=1e-5)
    assert evaluated.masked_tokens == pytest.approx(0.15 * stream.tokens, rel=0.2)


@pytest.mark.parametrize("blocks", [16, 64])
def test_masked_tokens_of_a_dataset_with_other_blocks_are_those_of_the_whole_text(
    run, text_folder, tokenizer_folder, tmp_path, blocks
):
    build_dataset([text_folder], tokenizer=tokenizer_folder, context_length=blocks, out=tmp_path / "data")
    evaluated = bytelm.evaluate(run, data=tmp_path / "data").splits["validation"]
    assert evaluated.masked_tokens == pytest.approx(0.15 * evaluated.tokens, rel=0.2)


def test_it_generates_and_is_exported_as_any_decoder(run, tmp_path):
    assert bytelm.generate(run, prompt="the", tokens=5, seed=0)
    out = bytelm.export_hf(run, out=tmp_path / "hf")
    card = (out / "README.md").read_text()
    assert "50 % of the blocks trained masked tokens, but the exported model predicts next tokens only" in card
    ours, ids = bytelm.load_run(run).model, torch.arange(5, 25)[None]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours(ids)), theirs(ids).logits, atol=2e-4, rtol=1e-4)


def test_a_run_resumes_with_the_same_rows(recipe, dataset_folder, tmp_path, monkeypatch):
    recipe = with_train(recipe, tokens=1280, masked_unit="span")
    bytelm.pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(2, patch)
        bytelm.pretrain(recipe, data=dataset_folder, out=tmp_path / "cut")
    bytelm.pretrain(recipe, data=dataset_folder, out=tmp_path / "cut")
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize(
    ("model", "train", "words"),
    [
        ({}, {"masked_rows": 1.5}, r"train\.masked_rows is 1\.5, but must be in \[0, 1\]"),
        ({"mixer": "average", "positions": "none"}, {"masked_rows": 0.5}, "mixers other than attention"),
        ({"positions": "relative"}, {"masked_rows": 0.5}, "see the past only"),
        ({"positions": "relative-keys"}, {"masked_rows": 0.5}, "'relative-keys' of a decoder, see the past only"),
    ],
)
def test_models_that_cannot_look_ahead_are_refused(small_recipe, model, train, words):
    with pytest.raises(ValueError, match=words):
        replace(small_recipe, model=replace(small_recipe.model, **model), train=replace(small_recipe.train, **train))
