"""Sequence mixers equal their formulas, read the past only, and give the same from a state as from whole sequences."""

import copy
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch.overrides import TorchFunctionMode

from lm.config_costs import cache_bytes
from lm.decoding.cache import KVCache
from lm.decoding.generation import generate
from lm.decoding.hybrid_state import HybridState
from lm.decoding.packed import prepare
from lm.decoding.slots import Slots
from lm.decoding.state import DecodeState, pad_left, read
from lm.initialization import Initializer
from lm.introspection.attention_maps import attention_maps
from lm.masks import Mask
from lm.mixers.mixer import mixer_class
from lm.mixers.performer import Performer
from lm.mixers.scan_costs import CHUNK
from lm.model import LanguageModel
from tests.lm.mixer_cases import (
    FORMULAS,
    HYBRIDS,
    MIXERS,
    RECURRENT,
    SMALL,
    VOCABULARY,
    random_ids,
    random_model,
    read_pieces,
)

LENGTH = 2 * CHUNK + 20
WITH_DOCUMENTS = [m for m in MIXERS if "document_mask" in mixer_class(m).fields]
each_mixer = pytest.mark.parametrize("mixer", MIXERS)
each_pattern = pytest.mark.parametrize("mixer", [*MIXERS, *HYBRIDS])


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def close(one, other, tolerance):
    """Whether two tensors differ by at most `tolerance` times the largest value."""
    return float((one - other).abs().max()) <= tolerance * float(other.abs().max())


def stored(cache):
    """Return the tensors of a decoding state."""
    if isinstance(cache, HybridState):
        return [tensor for state in cache.states for tensor in stored(state)]
    return [*cache.keys, *cache.values] if isinstance(cache, KVCache) else [*chain(*cache.states)]


def test_every_mixer_has_a_formula():
    assert FORMULAS.keys() == {*MIXERS}


@each_mixer
def test_a_mixer_equals_its_formula(mixer):
    layer = random_model(mixer).stack.blocks[0].mixer
    x = torch.randn(2, CHUNK + 5, SMALL.width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        mixed = layer(x, None, layer.parallel_form(Mask(causal=True)))
        torch.testing.assert_close(mixed, FORMULAS[mixer](layer, x), rtol=1e-9, atol=1e-10)


@each_pattern
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@torch.no_grad()
def test_tokens_read_one_by_one_or_in_pieces_give_the_outputs_of_the_whole_sequence(mixer, dtype, tolerance):
    model, ids = random_model(mixer, dtype), random_ids(2, LENGTH)
    whole = model(ids)
    assert close(read_pieces(model, ids, [CHUNK + 9, 1, 1, 60, LENGTH - CHUNK - 71]), whole, tolerance)
    assert close(read_pieces(model, ids, [1] * LENGTH), whole, tolerance)


@each_pattern
@torch.no_grad()
def test_a_later_token_changes_no_earlier_output(mixer):
    model, ids = random_model(mixer), random_ids(2, LENGTH)
    before = model(ids)
    for changed in (1, CHUNK, LENGTH - 1):
        other = ids.clone()
        other[:, changed] = (other[:, changed] + 1) % VOCABULARY
        after = model(other)
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert not torch.equal(after[:, changed], before[:, changed])


@pytest.mark.parametrize("mixer", [*WITH_DOCUMENTS, "mamba2 + attention"])
@torch.no_grad()
def test_a_document_reads_nothing_of_the_documents_before_it(mixer):
    model = random_model(mixer, document_mask=True, positions="none")
    lengths = [3, CHUNK + 20, 1, 2, LENGTH - CHUNK - 26]
    ids, segments = random_ids(1, LENGTH), torch.repeat_interleave(torch.arange(5), torch.tensor(lengths))
    together = model(ids, segments=segments[None])
    alone = torch.cat([model(document) for document in ids.split(lengths, dim=1)], dim=1)
    assert close(together, alone, 1e-10)
    assert not close(model(ids), alone, 1e-2)


@pytest.mark.parametrize("mixer", [mixer for mixer in MIXERS if mixer not in WITH_DOCUMENTS])
def test_a_mixer_that_cannot_tell_documents_apart_refuses_the_mask_by_name(mixer):
    with pytest.raises(ValueError, match=f"model.mixer is '{mixer}', which does not support model.document_mask=True"):
        LanguageModel(replace(SMALL, mixer=mixer, document_mask=True))


@each_pattern
@torch.no_grad()
def test_padding_on_the_left_changes_no_output(mixer):
    model = random_model(mixer, positions="none")
    rows = [random_ids(length, seed=length).tolist() for length in (40, 33, 1)]
    ids, present = pad_left(rows)
    stepped = read_pieces(model, ids, [20, 1, 1, 18], present)
    whole = model(ids, present=present)
    for row, tokens in enumerate(rows):
        alone = model(torch.tensor([tokens]))[0]
        assert close(whole[row, -len(tokens) :], alone, 1e-10)
        assert close(stepped[row, -len(tokens) :], alone, 1e-10)


@each_pattern
def test_training_gives_every_parameter_a_finite_gradient(mixer):
    """Also with padding, as fine-tuning has it."""
    model, ids = random_model(mixer, torch.float32).train(), random_ids(2, LENGTH)
    present = torch.ones_like(ids, dtype=torch.bool)
    present[0, 30:] = False
    hidden = model(ids, present=present)
    model.loss(hidden[present], ids[present]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()) and bool(parameter.grad.any()), name


class TrainArguments(TorchFunctionMode):
    """Keeps the argument `train` of PyTorch's recurrent layers."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.gru, torch.lstm):
            self.kept.append(args[6])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mixer", ["gru", "lstm"])
def test_gradients_in_evaluation_mode_are_those_of_training_also_with_cudnn(mixer):
    """cuDNN has a backward pass only with train=True."""
    model, ids, gradients = random_model(mixer), random_ids(2, 12), []
    for training in (True, False):
        with TrainArguments() as arguments:
            model.train(training)(ids).square().sum().backward()
        assert arguments.kept == [True, True]
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.zero_grad()
    assert all(map(torch.equal, *gradients))
    with TrainArguments() as arguments, torch.inference_mode():
        model(ids)
    assert arguments.kept == [False, False]


@each_pattern
def test_a_text_generated_with_the_state_is_that_without(mixer):
    model = random_model(mixer, torch.float32, context_length=48)
    prompts, present = pad_left([[7, 8, 9], [10, 11, 12, 13, 14], [15]])
    options = {"present": present, "temperature": 0.0}
    cached, uncached = (generate(model, prompts, 60, use_cache=use, **options) for use in (True, False))
    assert cached.tolist() == uncached.tolist()  # also after the sequences have outgrown the context


@each_pattern
def test_a_state_can_be_copied_and_reordered(mixer):
    """As beam search and batches that finish do."""
    model, rows = prepare(random_model(mixer)), torch.tensor([2, 0, 0])
    prompts, present = pad_left([[7, 8, 9], [10, 11, 12, 13, 14], [15]])
    state = DecodeState(model, prompts, room=9, present=present)
    state.logits()
    state.select(rows)
    other = DecodeState(model, prompts[rows], room=9, present=present[rows])
    other.logits()
    for token in (3, 4):
        for each in (state, other):
            each.append(torch.tensor([token, token + 1, token + 2]))
        assert close(state.logits(), other.logits(), 1e-12)


@pytest.mark.parametrize("mixer", [*RECURRENT, *HYBRIDS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_state_has_the_size_that_costs_tell(mixer, dtype):
    model = random_model(mixer, torch.float32)
    model.compute_dtype = dtype
    state = DecodeState(prepare(model), torch.ones(1, 60, dtype=torch.int64), room=100)
    told = cache_bytes(model.config, str(dtype).removeprefix("torch."), 160, on_cpu=True)
    for _ in range(2):
        assert sum(tensor.untyped_storage().nbytes() for tensor in stored(state.cache)) == told
        state.logits()
        state.append(torch.tensor([3]))


@each_pattern
@torch.no_grad()
def test_bfloat16_is_close_to_float32(mixer):
    model, ids = random_model(mixer, torch.float32), random_ids(2, LENGTH)
    exact = model(ids)
    model.compute_dtype = torch.bfloat16
    rounded = model(ids)
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.float() - exact).std()) < 0.05 * float(exact.std())


@pytest.mark.parametrize("mixer", ["mamba2", "gated-linear", "performer"])
@torch.no_grad()
def test_generation_in_bfloat16_has_the_decays_and_random_features_of_the_whole_pass(mixer):
    model, ids = random_model(mixer, torch.float32), random_ids(2, LENGTH)
    model.compute_dtype = torch.bfloat16
    ready, rounded = prepare(model).model, copy.deepcopy(model).bfloat16()
    for block, source in zip(ready.stack.blocks, model.stack.blocks, strict=True):
        own = [*source.mixer.named_parameters(recurse=False), *source.mixer.named_buffers(recurse=False)]
        assert own and all(torch.equal(getattr(block.mixer, name), tensor) for name, tensor in own)
    last = model(ids)[:, -1].float()
    errors = [(read_pieces(each, ids, [LENGTH - 1, 1])[:, -1] - last).abs().mean() for each in (ready, rounded)]
    assert errors[0] < errors[1]


@torch.no_grad()
def test_random_features_of_a_performer_approach_softmax():
    """The mean weight over many draws of the features is the exponential of the score."""
    generator = torch.Generator().manual_seed(0)
    config = replace(SMALL, mixer="performer")
    q, k = (0.4 * torch.randn(1, 3, 20, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    layer, weights = Performer(config).double(), torch.zeros(1, 3, 20, 20, dtype=torch.float64)
    initializer = Initializer(config, generator)
    for _ in range(500):
        layer.reset_parameters(initializer)
        features = layer.feature_map(q, queries=False) @ layer.feature_map(k, queries=False).transpose(-1, -2)
        weights += features / layer.mapped / 500
    exact = torch.exp(q @ k.transpose(-1, -2) / 8**0.5)
    assert float(((weights - exact) / exact).abs().mean()) < 0.02
    blocks = layer.directions.unflatten(0, (-1, 8))
    products = blocks @ blocks.transpose(-1, -2)
    assert float((products - products.diagonal(dim1=-2, dim2=-1).diag_embed()).abs().max()) < 1e-5


@torch.no_grad()
def test_a_window_limits_the_attention_of_a_hybrid_and_its_cache():
    model, ids = random_model("gated-linear + attention", layers=4, window=7), random_ids(2, LENGTH)
    whole = model(ids)
    assert close(read_pieces(model, ids, [CHUNK + 9, 1, 1, 60, LENGTH - CHUNK - 71]), whole, 1e-10)
    assert not close(random_model("gated-linear + attention", layers=4)(ids), whole, 1e-3)
    recurrent = cache_bytes(replace(model.config, mixers=("gated-linear",), window=0, layers=2), "float32", 300)
    assert cache_bytes(model.config, "float32", 300) == recurrent + 4 * 2 * 7 * 2 * SMALL.width


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"layers": 4, "mixers": ("mamba2", "mamba2", "attention")},
            "3 mixers, which model.layers=4 .* model.layers=6",
        ),
        ({"layers": 1, "mixers": ("mamba2", "attention")}, "2 mixers, which model.layers=1 .* model.layers=2"),
        ({"mixer": "gru", "mixers": ("mamba2", "attention")}, "model.mixer is 'gru', but model.mixers names"),
        ({"mixers": ("mamba2", "round")}, "model.mixers is .* must be"),
        (
            {"mixers": ("attention", "gru"), "document_mask": True},
            "model.mixers has 'gru', .* model.document_mask=True",
        ),
        (
            {"mixers": ("attention", "gru"), "value_embeddings": 1},
            "model.mixers has 'gru', .* model.value_embeddings=1",
        ),
        (
            {"mixers": ("attention", "hopfield"), "architecture": "encoder"},
            "model.mixers has 'hopfield', .* model.architecture='encoder'",
        ),
        ({"mixers": ("lstm", "gru"), "window": 5}, "model.mixers has 'lstm', .* model.window=5"),
        ({"mixers": ("lstm", "hopfield"), "positions": "alibi"}, "model.mixers has 'lstm', .* model.positions='alibi'"),
        *(
            ({"mixers": ("attention", "hopfield"), field: value}, f"model.mixers has 'hopfield', .* model.{field}=")
            for field, value in [
                ("positions", "alibi"),
                ("positions", "relative"),
                ("scaled_attention", False),
                ("attention_pattern", "strided"),
            ]
        ),
    ],
)
def test_a_pattern_that_no_model_can_have_is_refused_by_name(options, error):
    with pytest.raises(ValueError, match=error):
        LanguageModel(replace(SMALL, **options))


@pytest.mark.parametrize("mixer", HYBRIDS)
@torch.no_grad()
def test_a_state_that_is_cut_reads_the_sequences_again(mixer):
    model, ids = random_model(mixer), random_ids(2, 30)
    state = HybridState(model.stack, 2, 30, dtype=model.compute_dtype, device=ids.device)
    read(prepare(model), state, ids)
    state.crop(20)
    assert state.length == 0
    again = read(prepare(model), state, ids[:, :25])
    assert close(again, model(ids[:, :25])[:, -1], 1e-12)


def test_what_needs_attention_in_all_layers_refuses_a_hybrid_by_name():
    model = random_model("attention + gru")
    for refused in (lambda: Slots(prepare(model), rows=2), lambda: attention_maps(model, random_ids(1, 5))):
        with pytest.raises(ValueError, match=r"model.mixers has 'gru', but .* needs .* model.mixer='attention'"):
            refused()
