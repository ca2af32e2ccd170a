"""Recurrent encoder-decoders: mixers that read in both directions, and additive attention, equal plain formulas."""

from dataclasses import replace

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lm.config import ModelConfig
from lm.config_costs import cache_bytes
from lm.decoding.beam import beam_search
from lm.decoding.cache import CrossAttentionCache
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.decoding.state import DecodeState, pad_right
from lm.exchange import to_hugging_face
from lm.introspection.activations import observed
from lm.introspection.attention_maps import attention_maps
from lm.masks import Mask
from lm.mixers.additive import AdditiveAttention
from lm.model import LanguageModel
from pipelines.exchange.possible_exports import check_onnx
from tests.lm.mixer_cases import RECURRENT, VOCABULARY, random_ids, random_model

TRANSLATOR = {"architecture": "encoder-decoder", "positions": "none"}
LENGTHS = (11, 7, 1, 4)
each_recurrent = pytest.mark.parametrize("mixer", RECURRENT)
each_translator = pytest.mark.parametrize(
    ("mixer", "options"),
    [
        ("gru", {"cross": "additive", "mlp": False}),
        ("lstm", {"cross": "additive", "heads": 1}),
        ("gru", {"cross": "dot"}),
        ("attention", {"cross": "additive", "kv_heads": 1, "qk_norm": True}),
        ("mamba2 + gru", {"cross": "additive"}),
    ],
    ids=str,
)


def texts():
    return [random_ids(length, seed=length).tolist() for length in LENGTHS]


@each_recurrent
@torch.no_grad()
def test_an_encoder_adds_a_mixer_of_the_reversed_text(mixer):
    layer = random_model(mixer, architecture="encoder").stack.blocks[0].mixer
    x = torch.randn(2, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    causal = Mask(causal=True)
    one, other = (
        part(read, None, part.parallel_form(causal))
        for part, read in ((layer.forwards, x), (layer.backwards, x.flip(1)))
    )
    mixed = layer(x, None, layer.parallel_form(Mask()))
    torch.testing.assert_close(mixed, one + other.flip(1), rtol=1e-12, atol=1e-12)
    rows, present = torch.tensor([0, 5, 9, 14]), torch.arange(9) < torch.tensor([[9], [6]])
    for mask in (Mask(), Mask(present=present)):
        mixed = layer(x, None, layer.parallel_form(mask))
        torch.testing.assert_close(layer(x, None, layer.parallel_form(mask), rows=rows), mixed.flatten(0, 1)[rows])


@pytest.mark.parametrize(("mixer", "peer"), [("gru", torch.nn.GRU), ("lstm", torch.nn.LSTM)])
@torch.no_grad()
def test_gru_and_lstm_with_padding_equal_the_bidirectional_layers_of_torch_on_packed_texts(mixer, peer):
    layer = random_model(mixer, architecture="encoder").stack.blocks[0].mixer
    width, lengths = layer.forwards.width, torch.tensor(LENGTHS)
    oracle = peer(width, width, batch_first=True, bidirectional=True, dtype=torch.float64)
    for part, suffix in ((layer.forwards, "_l0"), (layer.backwards, "_l0_reverse")):
        for name, linear in (("ih", part.input), ("hh", part.recurrent)):
            getattr(oracle, f"weight_{name}{suffix}").copy_(linear.weight)
            getattr(oracle, f"bias_{name}{suffix}").copy_(linear.bias)
    x = torch.randn(len(LENGTHS), max(LENGTHS), width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(oracle(packed)[0], batch_first=True)
    matrix = torch.cat((layer.forwards.output.weight, layer.backwards.output.weight), dim=1)  # of both states together
    expected = states @ matrix.T + layer.forwards.output.bias + layer.backwards.output.bias
    present = torch.arange(max(LENGTHS)) < lengths[:, None]
    mixed = layer(x, None, layer.parallel_form(Mask(present=present)))
    torch.testing.assert_close(mixed[present], expected[present], rtol=1e-9, atol=1e-10)


@each_recurrent
@torch.no_grad()
def test_padding_changes_nothing_in_an_encoder(mixer):
    model = random_model(mixer, architecture="encoder")
    ids, present = pad_right(texts())
    together = model(ids, present=present)
    for row, text in enumerate(texts()):
        alone = model(torch.tensor([text]))[0]
        torch.testing.assert_close(together[row, : len(text)], alone, rtol=1e-9, atol=1e-10)


@each_recurrent
@torch.no_grad()
def test_every_position_of_an_encoder_reads_every_other(mixer):
    model, ids = random_model(mixer, architecture="encoder", layers=1), random_ids(1, 8)
    before = model(ids)
    for place in (0, 4, 7):
        other = ids.clone()
        other[0, place] = (other[0, place] + 1) % VOCABULARY
        changed = (model(other) - before).abs().amax(dim=-1)[0]
        assert bool((changed > 1e-12).all()), place


def additive(heads=3, **options):
    """Return additive attention with random parameters."""
    config = ModelConfig(width=12, heads=heads, architecture="encoder-decoder", cross="additive", **options)
    layer = AdditiveAttention(config).double()
    generator = torch.Generator().manual_seed(3)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, dtype=torch.float64, generator=generator) / 2
    return layer


@pytest.mark.parametrize("heads", [1, 3])
@torch.no_grad()
def test_additive_attention_equals_its_formula(heads):
    """One query, one key and one head at a time."""
    layer, generator = additive(heads), torch.Generator().manual_seed(4)
    x, hidden = (torch.randn(2, length, 12, dtype=torch.float64, generator=generator) for length in (5, 7))
    present = torch.arange(7) < torch.tensor([[7], [3]])
    width = 12 // heads
    expected = torch.zeros_like(x)
    for row in range(2):
        for place in range(5):
            read = []
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                scores = [
                    layer.score[part] @ torch.tanh(layer.query(x[row, place])[part] + layer.key(annotation)[part])
                    for annotation in hidden[row][present[row]]
                ]
                weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                values = layer.value(hidden[row][present[row]])[:, part]
                read.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
            expected[row, place] = layer.output(torch.cat(read))
    mixed = layer.cross(x, layer.cross_attend(hidden, Mask(present=present)))
    torch.testing.assert_close(mixed, expected, rtol=1e-9, atol=1e-10)


def test_gradients_of_additive_attention_are_those_of_finite_differences():
    layer = additive(heads=2, kv_heads=1)
    present = torch.tensor([[True, True, True], [True, False, False]])

    def attend(x, hidden, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(Reading(), given, (x, hidden))

    class Reading(torch.nn.Module):
        """Calls `cross`, which is no `forward`, with the parameters of `functional_call`."""

        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, hidden):
            return self.layer.cross(x, self.layer.cross_attend(hidden, Mask(present=present)))

    names, parameters = zip(*Reading().named_parameters(), strict=True)
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(2, s, 12, dtype=torch.float64, generator=generator, requires_grad=True) for s in (2, 3)]
    assert torch.autograd.gradcheck(attend, (*inputs, *parameters), fast_mode=True)


@each_translator
@torch.no_grad()
def test_decoding_step_by_step_equals_teacher_forcing(mixer, options):
    model = random_model(mixer, **TRANSLATOR, **options)
    source, present = pad_right(texts())
    target = random_ids(len(LENGTHS), 9, seed=5)
    expected = model.logits(model(target, source, source_present=present))
    for cached in (True, False):
        prepared = prepare(model)
        cache = CrossAttentionCache(prepared.stack, prepared.model.encode(source, present), present)
        state = DecodeState(prepared, target[:, :1], room=8, cross_cache=cache, use_cache=cached)
        for place in range(9):
            torch.testing.assert_close(state.logits(), expected[:, place], rtol=1e-9, atol=1e-9)
            if place < 8:
                state.append(target[:, place + 1])


@each_translator
@torch.no_grad()
def test_a_later_target_changes_no_earlier_output_and_padding_of_the_source_changes_nothing(mixer, options):
    model = random_model(mixer, **TRANSLATOR, **options)
    source, present = pad_right(texts())
    target = random_ids(len(LENGTHS), 9, seed=5)
    before = model(target, source, source_present=present)
    other = target.clone()
    other[:, 6] = (other[:, 6] + 1) % VOCABULARY
    after = model(other, source, source_present=present)
    torch.testing.assert_close(after[:, :6], before[:, :6], rtol=0, atol=1e-13)
    assert bool(((after - before)[:, 6].abs().amax(-1) > 1e-9).all())
    for row, text in enumerate(texts()):
        alone = model(target[row : row + 1], torch.tensor([text]))[0]
        torch.testing.assert_close(before[row], alone, rtol=1e-9, atol=1e-10)


@each_translator
def test_beams_and_greedy_texts_are_those_of_whole_sequences(mixer, options):
    model = random_model(mixer, **TRANSLATOR, **options)
    source, present = pad_right(texts())
    rules = {"start_id": 0, "end_ids": [1], "max_new_tokens": 7, "source_present": present}
    cached, uncached = (beam_search(model, source, beams=3, use_cache=use, **rules) for use in (True, False))
    for one, other in zip(cached, uncached, strict=True):
        assert [each.ids for each in one] == [each.ids for each in other]
    greedy = [found[0].ids for found in beam_search(model, source, beams=1, **rules)]
    starts = torch.zeros(len(LENGTHS), 1, dtype=torch.int64)
    options = {"source": source, "source_present": present, "temperature": 0.0, "stop_ids": [1]}
    generated = generate(model, starts, 7, **options)
    for ids, expected in zip(generated.tolist(), greedy, strict=True):
        assert tuple(ids[-7:][: len(expected)]) == expected


@each_translator
def test_training_gives_every_parameter_a_finite_gradient(mixer, options):
    model = random_model(mixer, torch.float32, **TRANSLATOR, **options).train()
    source, present = pad_right(texts())
    target = random_ids(len(LENGTHS), 9, seed=5)
    model.loss(model(target, source, source_present=present).flatten(0, 1), target.flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name
        key_bias = options.get("cross") == "dot" and name.endswith("cross_attention.key.bias")
        assert key_bias or bool(parameter.grad.any()), name


@torch.no_grad()
def test_maps_of_additive_cross_attention_are_its_weights():
    model = random_model("attention", **TRANSLATOR, cross="additive")
    source, target = random_ids(2, 6), random_ids(2, 4, seed=1)
    cross = attention_maps(model, target, source).cross
    for layer, block in enumerate(model.decoder.blocks):
        name = f"decoder_blocks.{layer}.cross_attn."
        with observed(model, [name + part for part in ("hook_q", "hook_k", "hook_pattern")]) as found:
            model(target, source)
        q, k = (found[name + part].unsqueeze(place) for part, place in (("hook_q", 2), ("hook_k", 1)))
        scores = (torch.tanh(q + k) * block.cross_attention.score.view(3, 8)).sum(-1)  # (B, T, S, H)
        weights = torch.softmax(scores, dim=2).movedim(-1, 1)
        torch.testing.assert_close(cross[layer], weights, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(found[name + "hook_pattern"], weights, rtol=1e-9, atol=1e-10)


def test_what_a_recurrent_translator_lacks_is_refused_by_name():
    model = random_model("gru", torch.float32, **TRANSLATOR, cross="additive")
    with pytest.raises(ValueError, match=r"model.mixers has 'gru', but an attention map needs"):
        attention_maps(model, random_ids(1, 4), random_ids(1, 4))
    with pytest.raises(ValueError, match=r"model.cross = 'dot', not 'additive'"):
        to_hugging_face(model.config, model.state_dict())
    with pytest.raises(ValueError, match=r"model.cross is 'additive', but export-onnx needs"):
        check_onnx(replace(model.config, mixers=()))


def test_costs_tell_the_cache_of_a_translator():
    model = random_model("gru", torch.float32, **TRANSLATOR, cross="additive")
    source = random_ids(1, 6)
    cache = CrossAttentionCache(model.stack, model.encode(source))
    state = DecodeState(prepare(model), source[:, :1], room=3, cross_cache=cache)
    tensors = [tensor for pair in cache.keys_values for tensor in pair]
    tensors += [tensor for each in state.cache.states for tensor in each]
    assert sum(tensor.nbytes for tensor in tensors) == cache_bytes(model.config, "float32", 3, 6)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cross": "additive"}, "model.cross is 'additive', but model.architecture is 'decoder'"),
        ({"cross": "sum", **TRANSLATOR}, "model.cross"),
        (
            {"mixer": "gru", "cross": "additive", "scaled_attention": False, **TRANSLATOR},
            "model.scaled_attention=False",
        ),
        ({"mixer": "gru", "cross": "additive", "attention": "flex", **TRANSLATOR}, "model.attention='flex'"),
        ({"mixer": "hopfield", **TRANSLATOR}, "'hopfield', .* model.architecture='encoder-decoder'"),
    ],
)
def test_settings_that_no_part_reads_are_refused_by_name(options, error):
    small = ModelConfig(layers=1, width=12, heads=2, vocab_size=9)
    with pytest.raises(ValueError, match=error):
        LanguageModel(replace(small, **options))
