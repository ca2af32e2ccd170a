"""Training reads every token, in an order that is a function of the seed."""

from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm.costs import flops_per_token, meta_model
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.training.batch import ROW_MULTIPLE, Batch, loss_inputs
from pipelines.training.batch_loss import ALIGNMENT, pack, to_device, unpack
from pipelines.training.batch_objectives import NextToken, make_objective, validation_batch
from pipelines.training.data import BlockLoader, open_training_data
from pipelines.training.mixture import Mixture
from pipelines.training.seeding import generators
from tests.lm.rows_of_objectives import masked_row
from tokenizer import Tokenizer


def test_each_epoch_visits_every_block_once_in_a_new_order():
    stream = TokenStream([np.arange(30, dtype=np.uint16)], 3)
    loader = BlockLoader(stream, NextToken(3), "permutation", seed=1)
    epochs = [[int(x) for x in loader.batch(np.arange(start, start + 10)).inputs[:, 0]] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(0, 30, 3)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_does_not_depend_on_the_batch_size():
    stream = TokenStream([np.arange(300, dtype=np.uint16)], 3)
    loader = BlockLoader(stream, NextToken(3), "permutation", seed=1)
    whole = loader.batch(np.arange(120)).inputs
    parts = loader.batch(np.arange(33)).inputs, loader.batch(np.arange(33, 120)).inputs
    assert np.array_equal(whole, np.concatenate(parts))


def test_every_token_but_the_first_is_a_target_exactly_once():
    stream = TokenStream([np.arange(12, dtype=np.uint16), np.arange(12, 30, dtype=np.uint16)], 3)
    batch = BlockLoader(stream, NextToken(3), "permutation", seed=1).batch(np.arange(10))
    assert sorted(batch.targets[batch.weights > 0].tolist()) == list(range(1, 30))
    follows = batch.targets[batch.weights > 0] - batch.inputs[batch.weights > 0]
    assert (follows == 1).all()


def test_crops_lie_in_the_stream_and_reach_both_ends():
    stream = TokenStream([np.arange(40, dtype=np.uint16)], 3)
    batch = BlockLoader(stream, NextToken(3), "crops", seed=1).batch(np.arange(500))
    assert (batch.weights == 1).all()
    assert (batch.targets == batch.inputs + 1).all()
    assert batch.inputs.min() == 0
    assert batch.targets.max() == 39
    assert len(np.unique(batch.inputs[:, 0])) == 37


NUMBERS = st.integers(0, 5) | st.integers(0, 2**32 - 1)


@given(st.integers(1, 6).flatmap(lambda k: st.lists(st.lists(NUMBERS, min_size=k, max_size=k), max_size=8)))
def test_generators_of_a_batch_are_those_of_numpy(seeds):
    made = generators(np.array(seeds, np.int64).reshape(len(seeds), -1) if seeds else np.empty((0, 3), np.int64))
    expected = [np.random.default_rng(seed) for seed in seeds]
    assert [one.bit_generator.state for one in made] == [one.bit_generator.state for one in expected]


def test_generators_of_large_seeds_are_those_of_numpy():
    seeds = np.array([[2**32, 0, 1], [2**63 - 1, 3, 2**40], [7, 0, 2**32]])
    expected = [np.random.default_rng(seed).bit_generator.state for seed in seeds.tolist()]
    assert [one.bit_generator.state for one in generators(seeds)] == expected


@pytest.mark.parametrize("seed", [0, 2**40])
def test_masks_and_crops_are_drawn_by_seed_epoch_and_block(dataset_folder, tokenizer_folder, seed):
    stream, tok = TokenDataset(dataset_folder).split("train"), Tokenizer.load(tokenizer_folder)
    objective, special = make_objective("masked-token", 32, tok), tok.special_tokens
    ids = {name: special[f"<|{name[:-3]}|>"] for name in ("mask_id", "cls_id", "sep_id")}
    options = {**ids, "special_ids": sorted(special.values()), "vocab_size": tok.vocab_size}
    first = stream.blocks - 3  # the batch crosses into the second epoch
    for sampling in ("permutation", "crops"):
        batch = BlockLoader(stream, objective, sampling, seed).batch(np.arange(first, first + 8))
        for row, number in enumerate(range(first, first + 8)):
            epoch, index = divmod(number, stream.blocks)
            block = np.random.default_rng((seed, epoch)).permutation(stream.blocks)[index]
            draw, start = (seed, epoch, block), 32 * block
            if sampling == "crops":
                draw, start = (
                    (seed, 0, number),
                    np.random.default_rng((seed, 0, number, 1)).integers(stream.tokens - 32),
                )
            expected = masked_row(stream.read(start, 32), np.random.default_rng(draw), **options)
            for part, made in zip(expected, (batch.inputs, batch.targets, batch.weights), strict=True):
                np.testing.assert_array_equal(made[row], part)


def test_a_token_costs_one_position_in_a_decoder_and_a_little_more_in_an_encoder(dataset_folder, small_recipe):
    dataset, tok = TokenDataset(dataset_folder), Tokenizer.load(dataset_folder)
    for objective, architecture, positions in (("next-token", "decoder", 32), ("masked-token", "encoder", 34)):
        shape = {"architecture": architecture, "context_length": positions, "vocab_size": dataset.vocab_size}
        recipe = replace(small_recipe, objective=objective, model=replace(small_recipe.model, **shape))
        model = meta_model(recipe.model)
        cost = open_training_data(recipe, Mixture([dataset]), tok).flops_per_token(model)
        assert cost == flops_per_token(model) * (positions / 32)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_loss_inputs_have_few_sizes_and_keep_their_weights(chosen):
    weights = np.array([chosen, chosen], np.float32)
    targets = np.arange(weights.size).reshape(weights.shape) + 7
    parts = loss_inputs(Batch(targets, targets, weights))
    count = len(parts["targets"])
    assert count == len(parts["weights"]) and parts["weights"].sum() == weights.sum()
    assert np.array_equal(parts["targets"][parts["weights"] > 0], targets[weights > 0])
    if all(chosen):
        assert "rows" not in parts and count == weights.size
    else:
        assert count % ROW_MULTIPLE == 0 and count - weights.sum() < ROW_MULTIPLE
        assert np.array_equal(parts["rows"][parts["weights"] > 0], weights.ravel().nonzero()[0])


def test_masks_change_with_the_epoch_but_not_in_validation(dataset_folder, tokenizer_folder):
    dataset = TokenDataset(dataset_folder)
    stream = dataset.split("validation")
    objective = make_objective("masked-token", 32, Tokenizer.load(tokenizer_folder))
    first, again = (validation_batch(stream, objective, 0, 8) for _ in range(2))
    assert np.array_equal(first.inputs, again.inputs)
    starts = np.arange(8) * 32
    later = objective.batch(stream, starts, np.array([(0, 1, block) for block in range(8)]))
    assert not np.array_equal(first.inputs, later.inputs)
    assert np.array_equal(first.targets, later.targets)


def test_masking_alone_hides_one_position(dataset_folder, tokenizer_folder):
    tok = Tokenizer.load(tokenizer_folder)
    batch = make_objective("masked-token", 4, tok).alone(
        np.array([[10, 11, 12, 13], [20, 21, 22, 23]]), np.array([0, 3])
    )
    cls, sep, mask = (tok.special_tokens[name] for name in ("<|cls|>", "<|sep|>", "<|mask|>"))
    assert batch.inputs.tolist() == [[cls, mask, 11, 12, 13, sep], [cls, 20, 21, 22, mask, sep]]
    assert batch.targets[batch.weights > 0].tolist() == [10, 23]


def test_prefetched_batches_equal_batches_made_on_demand():
    from pipelines.training.data import Prefetcher

    class Data:
        made = Queue()

        def step(self, consumed, position):
            self.made.put((consumed, position))
            return SimpleNamespace(number=(consumed, position))

        def size(self, consumed, position):
            examples = 1 + (consumed + position) % 3
            return examples, 2 * examples

    data, consumed, position = Data(), 5, 0
    batches = Prefetcher(data)
    for _ in range(20):
        batch = batches.step(consumed, position)
        assert batch.number == data.made.get(timeout=300) == (consumed, position)
        examples, more = data.size(consumed, position)
        consumed, position = consumed + examples, position + more
        batches.begin(consumed, position)
        # The next batch is prefetched before the trainer requests it.
        assert data.made.get(timeout=300) == (consumed, position)
        data.made.put((consumed, position))
    assert batches.step(2, 7).number == (2, 7)  # another position, as after resuming
    batches.close()


SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.sampled_from([np.int64, np.float32, np.bool_]), SHAPES), min_size=1, max_size=6))
def test_packed_arrays_are_unpacked_unchanged(kinds):
    generator = np.random.default_rng(0)
    parts = {f"{n}": generator.integers(0, 2**20, shape).astype(dtype) for n, (dtype, shape) in enumerate(kinds)}
    parts = {name: part % 2 if part.dtype == bool else part for name, part in parts.items()}
    assert all(there.data_ptr() % ALIGNMENT == 0 for there in unpack(pack(parts, pin=False), parts).values())
    arrived = unpack(pack(parts, pin=False).clone(), parts)
    assert list(arrived) == list(parts)
    for name, part in parts.items():
        assert arrived[name].numpy().dtype == part.dtype
        np.testing.assert_array_equal(arrived[name].numpy(), part)
        np.testing.assert_array_equal(to_device(parts, torch.device("cpu"))[name].numpy(), part)
