"""The worked values and statements of a course on transformers hold for this package.

Each comment names the slip that teaching material often makes at this point.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora.synthetic import MarkovSource
from lm.attention.backends import reference
from lm.config import ModelConfig
from lm.config_costs import matrix_parameters, non_embedding_parameters
from lm.costs import meta_model, parameter_table
from lm.introspection.geometry import nearest_tokens
from lm.layers import ACTIVATIONS, LayerNorm, Linear
from lm.masks import Mask
from lm.metrics.predictions import divergences, kl_from_source, token_nll
from lm.metrics.predictions import entropy as entropy_of_logits
from lm.metrics.units import bits, perplexity
from lm.model import LanguageModel
from lm.optim.schedules import trapezoid
from lm.positions import rotary_tables, rotate, sinusoidal_table
from lm.presets import PRESETS, preset
from lm.text_statistics.distributions import cross_entropy, entropy, kl
from tokenizer import Tokenizer

FEW = settings(max_examples=20, deadline=None)
SEEDS = st.integers(0, 2**32)
TINY = ModelConfig(vocab_size=50, context_length=32, layers=2, width=64, heads=4, positions="learned")
GPT3 = [name for name in PRESETS if name.startswith("gpt3-")]


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def some_ids(batch, length, seed=0):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed))


# Information


def test_a_fair_coin_has_one_bit_and_a_biased_one_less_than_half():
    assert entropy([0.5, 0.5]) == pytest.approx(1.0)
    assert entropy([0.9, 0.1]) == pytest.approx(0.4690, abs=5e-5)  # slip: 0.3251, the same in nats
    logits = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    assert bits(entropy_of_logits(logits).item()) == pytest.approx(entropy([0.9, 0.1]))


def test_likely_tokens_are_less_surprising():
    rows = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64).log()
    nats = token_nll(rows, torch.tensor([0, 0])).tolist()
    assert [round(bits(x), 4) for x in nats] == [0.1520, 1.3219]
    assert [round(perplexity(x), 2) for x in nats] == [1.11, 2.50]  # slip: e to a surprisal in bits
    mean = perplexity(sum(nats) / 2)
    assert mean == pytest.approx((0.9 * 0.4) ** -0.5)  # slip: the mean of both perplexities, 1.81 instead of 1.67


def test_cross_entropy_is_entropy_plus_divergence():
    p, q = [0.7, 0.2, 0.1], [0.5, 0.3, 0.2]
    assert [round(x, 4) for x in (cross_entropy(p, q), entropy(p), kl(p, q))] == [1.2796, 1.1568, 0.1228]
    logits = torch.tensor([q], dtype=torch.float64).log()
    assert kl_from_source(torch.tensor([p]), logits).item() == pytest.approx(kl(p, q), abs=1e-6)
    assert perplexity(cross_entropy(p, q, math.e)) == pytest.approx(2 ** cross_entropy(p, q))


def test_divergence_is_not_symmetric():
    """So it is no distance."""
    p, q = (torch.tensor([row], dtype=torch.float64).log() for row in ([0.7, 0.2, 0.1], [0.5, 0.3, 0.2]))
    forward, reverse, _ = divergences(p, q)
    assert (round(forward.item(), 4), round(reverse.item(), 4)) == (0.1228, 0.1328)  # slip: one name for both


def test_an_untrained_model_guesses_among_all_tokens():
    """The initial loss is close to ln V. A much larger one shows that the initial logits are too large."""
    for entries in (50, 500):
        model = LanguageModel(replace(TINY, vocab_size=entries), seed=0)
        ids = torch.randint(entries, (8, 33), generator=torch.Generator().manual_seed(0))
        loss = model.loss(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item() / 256
        assert loss == pytest.approx(math.log(entries), abs=0.05)  # slip: log2 V, for a loss in nats


# Tokenizers


def bpe(*merges):
    tokens = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
    return Tokenizer.from_merges({token: i for i, token in enumerate(tokens)}, merges, pattern="gpt2")


def test_bpe_applies_merges_in_the_order_of_training_not_the_longest_token():
    tok = bpe((b"b", b"c"), (b"a", b"b"), (b"ab", b"c"))
    pieces = [tok.decode([i]) for i in tok.encode("abc")]
    assert pieces == ["a", "bc"]  # slip: the longest match, although "abc" is a token
    wordpiece = Tokenizer.from_wordpiece({"[UNK]": 0, "a": 1, "ab": 2, "##bc": 3, "##c": 4})
    assert wordpiece.encode("abc") == [2, 4]  # WordPiece does take the longest match


def test_wordpiece_merges_the_pair_whose_parts_seldom_occur_apart():
    """The score is count(ab) / (count(a) count(b)): 3 / (3 * 3) for "qu", 8 / (8 * 12) for "an"."""
    corpus = ["an"] * 8 + ["in"] * 4 + ["qu"] * 3
    options = {"vocab_size": 9, "kind": "wordpiece", "special_tokens": ["[UNK]"], "min_frequency": 1}
    by_score = Tokenizer.train(corpus, **options, merge_by="likelihood")
    by_count = Tokenizer.train(corpus, **options, merge_by="frequency")
    assert [list(tok.vocabulary.ids)[-1] for tok in (by_score, by_count)] == ["qu", "an"]  # slip: WordPiece by count


# Parameters


@pytest.mark.parametrize("name", GPT3)
def test_gpt3_has_twelve_squares_of_its_width_in_each_layer(name):
    """Embedding V d, positions L d, and in each of N layers 4 d^2 for attention and 8 d^2 for the MLP."""
    config = preset(name)
    d, layers = config.width, config.layers
    assert matrix_parameters(config) == 50257 * d + 2048 * d + 12 * d**2 * layers
    assert config.heads * config.head_features == d  # slip: 24 heads of 128 for XL, a width of 5,140 for 13B


def test_gpt3_has_174_588_899_328_weights_in_matrices():
    """Biases and norms add 0.01 %."""
    assert matrix_parameters(preset("gpt3-175b")) == 174_588_899_328
    assert parameter_table(meta_model(preset("gpt3-175b")))["total"] == 174_604_259_328
    assert (preset("gpt3-13b").width, preset("gpt3-xl").heads, preset("gpt3-xl").head_features) == (5120, 16, 128)


def test_gpt2_has_85_million_parameters_in_its_blocks():
    config = preset("gpt2")
    blocks = 12 * 12 * 768**2
    assert blocks == 84_934_656
    assert matrix_parameters(config) - (50257 + 1024) * 768 == blocks
    assert non_embedding_parameters(config) == pytest.approx(blocks, rel=2e-3)
    total = parameter_table(meta_model(config))["total"]
    assert total == 124_439_808  # slips: 117M, the paper's count; 163M, with the tied matrix counted twice


# Attention


@pytest.mark.parametrize("length", [1, 2, 7])
def test_causal_attention_without_scores_is_a_running_mean(length):
    """Two ways to write it: a lower triangle divided by its row sums, and the softmax of a masked matrix of zeros."""
    v, zeros = normal(1, 1, length, 3), torch.zeros(1, 1, length, 3, dtype=torch.float64)
    triangle = torch.ones(length, length, dtype=torch.float64).tril()
    weights = triangle / triangle.sum(dim=1, keepdim=True)
    additive = Mask(causal=True).additive(length, length, torch.float64, torch.device("cpu"))
    if additive is not None:  # one position has nothing to hide
        torch.testing.assert_close(additive[0, 0].softmax(dim=-1), weights)
    out = reference(zeros, zeros, v, Mask(causal=True))
    torch.testing.assert_close(out[0, 0], weights @ v[0, 0])
    # slip: zeroing weights after the softmax, which leaves rows that do not sum to 1
    torch.testing.assert_close(out, v.cumsum(dim=2) / torch.arange(1, length + 1)[:, None])


def test_printed_weights_times_printed_values_are_the_printed_outputs():
    """Outputs are the updates that attention adds to the residual stream."""
    q, k, v = (
        torch.tensor(rows, dtype=torch.float64)[None, None]
        for rows in ([[1, 0], [0.5, 1], [2, 1]], [[1, 0.5], [0, 2], [1.5, 0]], [[1, 0], [0, 2], [3, -1]])
    )
    eye = torch.eye(3, dtype=torch.float64)[None, None]
    weights, outputs = (reference(q, k, values, Mask(causal=True))[0, 0].numpy().round(2) for values in (eye, v))
    assert weights.tolist() == [[1, 0, 0], [0.33, 0.67, 0], [0.32, 0.22, 0.46]]
    # slip: 1.70 and -0.02 in the last row, from rounded weights; only rounding may differ
    assert outputs.tolist() == [[1, 0], [0.33, 1.34], [1.69, -0.01]]
    rounding = 0.005 * (v[0, 0].abs().sum(dim=0).numpy() + 1)
    assert (np.abs(weights @ v[0, 0].numpy() - outputs) <= rounding).all()


@pytest.mark.parametrize(("scale", "variance"), [(1.0, 64.0), (None, 1.0)])
def test_raw_scores_have_the_variance_of_the_head_width_and_scaled_ones_one(scale, variance):
    """With identity values the output is the weights. Their logarithms, up to the last key's, which is zero, are the
    scores."""
    q, k = normal(500, 1, 1, 64, seed=1), normal(500, 1, 9, 64, seed=2)
    k[:, :, 8] = 0.0
    weights = reference(q, k, torch.eye(9, dtype=torch.float64).expand(500, 1, 9, 9), Mask(), scale=scale)
    scores = (weights[..., :8] / weights[..., 8:]).log()
    assert scores.var().item() == pytest.approx(variance, rel=0.1)  # slip: division by the width, not by its root


@FEW
@given(seed=SEEDS, length=st.integers(1, 20))
def test_attention_does_not_see_the_order_of_its_keys(seed, length):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    q, k, v = normal(3, 1, 2, length, 4, seed=seed)
    torch.testing.assert_close(reference(q, k[:, :, order], v[:, :, order], Mask()), reference(q, k, v, Mask()))


def test_a_model_without_positions_permutes_its_hidden_states_with_its_input():
    ids, order = some_ids(2, 9), torch.randperm(9, generator=torch.Generator().manual_seed(1))
    encoder = LanguageModel(replace(TINY, architecture="encoder", positions="none"), seed=0).double().eval()
    decoder = LanguageModel(replace(TINY, positions="none"), seed=0).double().eval()
    encoder.compute_dtype = decoder.compute_dtype = torch.float64
    with torch.no_grad():
        torch.testing.assert_close(encoder(ids[:, order]), encoder(ids)[:, order])
        # slip: the same of a decoder, whose mask knows the order
        assert not torch.allclose(decoder(ids[:, order]), decoder(ids)[:, order], atol=1e-3)


@FEW
@given(seed=SEEDS, width=st.integers(1, 5), bandwidth=st.floats(0.5, 3))
def test_attention_is_the_nadaraya_watson_mean_of_a_gaussian_kernel(seed, width, bandwidth):
    """exp(-|q - k|^2 / 2 h^2) is exp(q k / h^2) exp(-|k|^2 / 2 h^2) times a factor that cancels."""
    q, k, v = normal(3, 1, 1, 6, width, seed=seed)
    kernel = (-torch.cdist(q, k).square() / (2 * bandwidth**2)).exp()
    expected = kernel @ v / kernel.sum(dim=-1, keepdim=True)
    # slip: no term for |k|^2; without it the kernel is exp(q k), and long keys weigh more
    bias = (-k.square().sum(dim=-1) / (2 * bandwidth**2)).unsqueeze(2).expand(1, 1, 6, 6)
    got = reference(q, k, v, Mask(bias=bias), scale=bandwidth**-2)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-8)


def test_one_update_of_a_modern_hopfield_network_is_attention_over_its_patterns():
    """The update x - dE/dx descends the energy E(x) = |x|^2 / 2 - logsumexp(beta X x) / beta (Ramsauer et al. 2021)."""
    patterns, beta = normal(7, 32), 4.0
    x = patterns[2] + 0.3 * normal(32, seed=1)

    def energy(x):
        return x.square().sum() / 2 - (beta * patterns @ x).logsumexp(dim=0) / beta

    gradient = torch.autograd.functional.jacobian(energy, x)
    rows = patterns[None, None]
    updated = reference(x.view(1, 1, 1, -1), rows, rows, Mask(), scale=beta)[0, 0, 0]
    torch.testing.assert_close(updated, x - gradient)
    assert energy(updated) < energy(x)
    torch.testing.assert_close(updated, patterns[2])  # slip: many updates; a separated pattern takes one


def test_permuting_heads_with_their_columns_of_the_output_matrix_changes_nothing():
    """y = x W^T: a head is rows of the query, key and value matrices, and columns of the output matrix."""
    model, ids = LanguageModel(TINY, seed=0), some_ids(2, 9)
    with torch.no_grad():
        before = model(ids)
        for block in model.stack.blocks:
            for layer in (block.attention.query, block.attention.key, block.attention.value):
                layer.weight.copy_(layer.weight.unflatten(0, (4, 16))[[2, 0, 3, 1]].flatten(0, 1))
        assert not torch.allclose(model(ids), before, atol=1e-3)  # slip: the output matrix is forgotten
        for block in model.stack.blocks:
            weight = block.attention.output.weight
            weight.copy_(weight.unflatten(1, (4, 16))[:, [2, 0, 3, 1]].flatten(1, 2))
        torch.testing.assert_close(model(ids), before, atol=1e-5, rtol=1e-5)


# Positions


@pytest.mark.parametrize("shift", [1, 7, 40])
def test_one_linear_map_shifts_all_sinusoidal_positions(shift):
    """The map is made of the sines and cosines in row `shift` of the table, so no position enters it."""
    table = sinusoidal_table(100, 16).double()
    turns = [torch.tensor([[cosine, sine], [-sine, cosine]]) for sine, cosine in table[shift].view(-1, 2).tolist()]
    shifted = table[: 100 - shift] @ torch.block_diag(*turns).double().T
    # slip: the shift is addition of a fixed vector
    torch.testing.assert_close(shifted, table[shift:], atol=1e-5, rtol=0)


def test_rotary_scores_depend_on_the_signed_offset_alone():
    tables = rotary_tables(replace(TINY, width=8, heads=1, positions="rotary"))
    query, key = normal(2, 1, 1, 1, 8).unbind()

    def score(m, n):
        turned = (rotate(x, *tables(slice(t, t + 1), torch.float64)) for x, t in ((query, m), (key, n)))
        return math.prod(turned).sum().item()

    assert score(25, 20) == pytest.approx(score(9, 4), abs=1e-5)
    assert abs(score(20, 25) - score(25, 20)) > 0.1  # slip: the distance |m - n|


# Depth


def stream_variance(layers, scaled):
    """Return the variance that `layers` blocks add to the residual stream at initialisation."""
    model = LanguageModel(replace(TINY, layers=layers), seed=0).eval()
    passed = []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda _, inputs, output: passed.append((inputs[0], output)))
        if not scaled:
            for layer in (block.attention.output, block.mlp.down):
                layer.weight.data *= math.sqrt(2 * layers)
    with torch.no_grad():
        model(some_ids(4, 32))
    return (passed[-1][1] - passed[0][0]).var().item()


def test_the_residual_variance_grows_with_depth_unless_its_writers_are_scaled():
    """Each of 2 N updates adds its variance. GPT-2 divides their standard deviation by sqrt(2 N)."""
    scaled, unscaled = ([stream_variance(n, which) for n in (4, 16)] for which in (True, False))
    assert scaled[1] / scaled[0] == pytest.approx(1.0, abs=0.1)  # slip: sqrt(N); a block writes twice
    assert unscaled[1] / unscaled[0] == pytest.approx(4.0, rel=0.2)  # slip: exponential growth, as without norms


def gradients_by_layer(layers, norm_position):
    """Return the norm of the gradient of each MLP's output matrix at initialisation, first layer first."""
    config = replace(TINY, layers=layers, norm_position=norm_position, initialization="xavier")
    model, ids = LanguageModel(config, seed=0), some_ids(4, 33)
    (model.loss(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / 128).backward()
    return [block.mlp.down.weight.grad.norm().item() for block in model.stack.blocks]


def test_depth_shrinks_the_last_gradients_of_pre_norm_but_not_of_post_norm():
    """At initialisation pre-norm's fall as 1 / sqrt(N); post-norm's do not, so it needs warm-up (Xiong et al. 2020)."""
    pre, post = ([gradients_by_layer(n, which)[-1] for n in (2, 16)] for which in ("pre", "post"))
    assert pre[1] / pre[0] == pytest.approx(8**-0.5, rel=0.25)
    assert post[1] / post[0] > 0.8  # slip: post-norm's gradients vanish in the last layers


def test_gradients_fall_from_layer_to_layer_in_pre_norm_and_stay_level_in_post_norm():
    """With unscaled writers, pre-norm's stream grows: each update is a smaller share of it than the one before."""
    pre, post = (gradients_by_layer(16, which) for which in ("pre", "post"))
    assert pre[0] > 2 * pre[-1]  # slip: the first layers get the smallest gradients, as in a stack without residuals
    assert max(post) < 2 * min(post)


@cache
def trained(norm_position, warmup):
    """Return the unigram entropy of a text, and after 100 steps on it the loss in nats and `gradients_by_layer`."""
    text = MarkovSource(order=1, symbols=16).sample(40_000, np.random.default_rng(0)).astype(np.int64)
    config = replace(TINY, vocab_size=16, layers=8, width=32, norm_position=norm_position, initialization="xavier")
    model, starts = LanguageModel(config, seed=2), torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for step in range(100):
        optimizer.param_groups[0]["lr"] = 3e-3 * trapezoid(step, warmup=warmup, decay=0, total=100)
        first = torch.randint(len(text) - 33, (8, 1), generator=starts)
        ids = torch.from_numpy(text)[first + torch.arange(33)]
        loss = model.loss(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / 256
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        gradients = [block.mlp.down.weight.grad.norm().item() for block in model.stack.blocks]
        optimizer.step()
    return entropy(np.bincount(text) / len(text), math.e), sum(losses[-10:]) / 10, gradients


@pytest.mark.slow
def test_post_norm_needs_warm_up_and_pre_norm_does_not():
    """Without warm-up, a post-norm model learns how frequent symbols are, but nothing about their order."""
    (unigram, post, _), (_, warmed, _), (_, pre, _) = trained("post", 1), trained("post", 100), trained("pre", 1)
    assert post > 0.97 * unigram
    assert warmed < 0.85 * unigram  # slip: post-norm cannot train at this rate
    assert pre < 0.85 * unigram


def test_gradients_after_100_steps_vanish_in_the_first_layers_of_post_norm_without_warm_up_only():
    (_, _, post), (_, _, warmed), (_, _, pre) = trained("post", 1), trained("post", 100), trained("pre", 1)
    assert post[0] < 1e-2 * post[-1]  # slip: that they vanish at initialisation, where they are level
    assert max(warmed) < 2 * min(warmed)
    assert max(pre) < 5 * min(pre)
    assert pre[0] > 2 * pre[-1]  # as at initialisation


def test_the_epsilon_of_layer_norm_is_under_the_root():
    norm = LayerNorm(2, eps=1e-5, bias=False)
    norm.weight.data.fill_(1.0)
    variance = 1e-6  # of [-0.001, 0.001], divided by d = 2; slip: by d - 1
    got = norm(torch.tensor([-1e-3, 1e-3]))[1].item()
    assert got == pytest.approx(1e-3 / math.sqrt(variance + 1e-5))  # 0.30; slip: 1e-3 / (sqrt(variance) + eps), 0.99


# Geometry


def test_many_more_directions_than_dimensions_are_almost_orthogonal():
    """A pair of random directions has a cosine above e with probability below exp(-d e^2 / 2). By the union bound, all
    pairs of n directions stay below sqrt(2 ln(n^2 / 0.01) / d) with probability 0.99."""
    width, count = 512, 2000
    found = nearest_tokens(normal(count, width), torch.arange(count), 1).cosines.max().item()
    bound = math.sqrt(2 * math.log(count**2 / 0.01) / width)
    assert 0.15 < found < bound < 0.3  # slip: at most `width` directions, which holds for exact orthogonality


def test_random_projections_keep_distances_within_the_bound_of_johnson_and_lindenstrauss():
    """With k >= 4 ln n / (e^2 / 2 - e^3 / 3) dimensions, some projection keeps all squared distances of n points within
    1 +- e (Dasgupta and Gupta 2003). The first random one does."""
    points, wide, error = 60, 2000, 0.3
    narrow = math.ceil(4 * math.log(points) / (error**2 / 2 - error**3 / 3))
    projection = Linear(wide, narrow, bias=False)
    projection.weight.data = normal(narrow, wide, seed=1) / math.sqrt(narrow)
    x = normal(points, wide)
    with torch.no_grad():
        ratios = (torch.pdist(projection(x)) / torch.pdist(x)).square()
    distortion = (ratios - 1).abs().max().item()
    assert 0.1 < distortion < error  # slip: k depends on the dimension of the points; it does not
    assert narrow < wide / 4


def superposed(density, activation=ACTIVATIONS["relu"], features=5, width=2, steps=800):
    """Return the length of each feature's direction in a trained toy model f(W^T W x + b) (Elhage et al. 2022)."""
    generator = torch.Generator().manual_seed(0)
    layer, bias = Linear(features, width, bias=False), torch.zeros(features, requires_grad=True)
    torch.nn.init.normal_(layer.weight, std=0.5, generator=generator)
    importance = 0.9 ** torch.arange(features)
    optimizer = torch.optim.Adam([*layer.parameters(), bias], lr=0.02)
    for _ in range(steps):
        x = torch.rand(256, features, generator=generator)
        x = x * (torch.rand(256, features, generator=generator) < density)
        rebuilt = activation(layer(x) @ layer.weight + bias)
        optimizer.zero_grad()
        (importance * (x - rebuilt).square()).mean().backward()
        optimizer.step()
    return layer.weight.detach().norm(dim=0).numpy()


def test_sparse_features_share_dimensions_and_dense_ones_do_not():
    dense, sparse = superposed(density=1.0), superposed(density=0.05)
    assert np.sum(dense > 0.5) == 2  # as many as dimensions, the most important ones
    assert np.all(dense[:2] > 0.5)
    assert np.sum(sparse > 0.5) == 5
    linear = superposed(density=0.05, activation=lambda x: x)
    assert np.sum(linear > 0.5) == 2  # slip: sparsity suffices; without the activation nothing is shared
