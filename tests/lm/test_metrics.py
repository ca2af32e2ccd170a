"""Metrics equal hand-computed values and scipy, and satisfy their identities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon
from scipy.special import log_softmax, softmax
from scipy.stats import entropy as scipy_entropy

from lm.metrics import predictions as metrics
from lm.metrics.predictions import PredictionAccumulator

LN2 = math.log(2)
FEW = settings(max_examples=50, deadline=None)


def logits_of(*rows):
    """Return logits whose softmax is exactly these distributions."""
    return torch.tensor(rows, dtype=torch.float64).log()


def finite(low=-20.0, high=20.0):
    return st.floats(low, high, allow_nan=False, width=32)


@st.composite
def pairs_of_logits(draw):
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 12)))
    return tuple(torch.from_numpy(draw(arrays(np.float64, shape, elements=finite()))) for _ in range(2))


@st.composite
def predictions(draw):
    """Draw logits (N, V), targets and positions."""
    rows, vocab = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    logits = draw(arrays(np.float64, (rows, vocab), elements=finite()))
    targets = draw(arrays(np.int64, rows, elements=st.integers(0, vocab - 1)))
    positions = draw(arrays(np.int64, rows, elements=st.integers(0, 4)))
    return torch.from_numpy(logits), torch.from_numpy(targets), torch.from_numpy(positions)


def accumulate(logits, targets, positions, byte_lengths=None, window=5):
    vocab = logits.shape[-1]
    gathered = PredictionAccumulator(vocab, byte_lengths or [1] * vocab, window)
    gathered.update(logits, targets, positions)
    return gathered.result()


def test_every_metric_equals_a_table_computed_by_hand():
    """Four tokens, vocabulary of three; token 0 is special and has no bytes, 1 and 2 have 2 and 3."""
    logits = logits_of([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75], [0.25, 0.25, 0.5])
    result = accumulate(
        logits, torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 0, 1]), byte_lengths=[0, 2, 3], window=3
    )
    total_bits = 1 + 1 + 3 + 1  # -log2 of 1/2, 1/2, 1/8, 1/2
    assert result["tokens"] == 4
    assert result["bytes"] == 0 + 2 + 2 + 3
    assert result["cross_entropy_bits"] == pytest.approx(total_bits / 4)
    assert result["cross_entropy"] == pytest.approx(total_bits / 4 * LN2)
    assert result["perplexity"] == pytest.approx(2 ** (total_bits / 4))
    assert result["bits_per_byte"] == pytest.approx(total_bits / 7)
    half_quarter_quarter = 1.5  # 1/2 * 1 + 2 * 1/4 * 2
    eighths = 2 * 3 / 8 + 0.75 * math.log2(4 / 3)
    assert result["entropy_bits"] == pytest.approx((3 * half_quarter_quarter + eighths) / 4)
    assert result["accuracy"] == 3 / 4
    # confidences 1/2 (right) three times, in bin (7/15, 8/15]; 3/4 (wrong) once
    assert result["calibration_error"] == pytest.approx((3 * 0.5 + 1 * 0.75) / 4)
    p, q = [0.25, 0.5, 0.25], [1.125 / 4, 1.125 / 4, 1.75 / 4]
    expected = sum(a * math.log2(a / b) for a, b in zip(p, q, strict=True))
    assert result["kl_unigram_bits"] == pytest.approx(expected)
    assert result["unigram_entropy_bits"] == pytest.approx(1.5)
    curve = result["curves"]["loss_by_position"]
    assert curve[:2] == [pytest.approx(2 * LN2), pytest.approx(LN2)]
    assert curve[2] is None
    reliability = result["curves"]["reliability"]
    assert len(reliability) == 15
    assert reliability[7] == {"confidence": pytest.approx(0.5), "accuracy": 1.0, "count": 3}
    assert reliability[11] == {"confidence": pytest.approx(0.75), "accuracy": 0.0, "count": 1}
    assert reliability[0] == {"confidence": None, "accuracy": None, "count": 0}


@FEW
@given(predictions())
def test_accumulated_metrics_equal_numpy_and_scipy(drawn):
    logits, targets, positions = drawn
    result = accumulate(logits, targets, positions)
    log_p = log_softmax(logits.numpy(), axis=-1)
    p = np.exp(log_p)
    rows = np.arange(len(p))
    nats = -log_p[rows, targets.numpy()]
    assert result["cross_entropy"] == pytest.approx(nats.mean(), abs=1e-9)
    assert result["bits_per_byte"] == pytest.approx(nats.sum() / LN2 / len(p), abs=1e-9)
    assert result["entropy_bits"] == pytest.approx(scipy_entropy(p, base=2, axis=-1).mean(), abs=1e-9)
    correct = logits.numpy().argmax(axis=-1) == targets.numpy()
    assert result["accuracy"] == pytest.approx(correct.mean())
    frequencies = np.bincount(targets, minlength=p.shape[1]) / len(p)
    divergence = scipy_entropy(frequencies, p.mean(axis=0), base=2)
    assert result["kl_unigram_bits"] == pytest.approx(divergence, abs=1e-9)
    assert result["unigram_entropy_bits"] == pytest.approx(scipy_entropy(frequencies, base=2), abs=1e-9)
    confidence = p.max(axis=-1)
    error = 0.0
    for m in range(15):
        inside = (confidence > m / 15) & (confidence <= (m + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert result["calibration_error"] == pytest.approx(error, abs=1e-9)
    for position, mean in enumerate(result["curves"]["loss_by_position"]):
        here = nats[positions.numpy() == position]
        assert (mean is None) == (len(here) == 0)
        assert mean is None or mean == pytest.approx(here.mean(), abs=1e-9)


@FEW
@given(predictions(), st.integers(1, 11))
def test_chunks_do_not_change_the_result(drawn, cut):
    logits, targets, positions = drawn
    whole = accumulate(*drawn)
    gathered = PredictionAccumulator(logits.shape[1], [1] * logits.shape[1], 5)
    for part in (slice(None, cut), slice(cut, None)):
        if len(targets[part]):
            gathered.update(logits[part], targets[part], positions[part])
    parts = gathered.result()
    for key in set(whole) - {"curves"}:
        assert parts[key] == pytest.approx(whole[key], abs=1e-9), key


def test_low_precision_logits_are_scored_in_float32():
    logits = torch.randn(300, 200, generator=torch.Generator().manual_seed(0)).bfloat16() * 4
    targets = torch.arange(300) % 200
    positions = torch.arange(300) % 5
    rough, exact = accumulate(logits, targets, positions), accumulate(logits.double(), targets, positions)
    for key in set(exact) - {"curves", "calibration_error"}:
        assert rough[key] == pytest.approx(exact[key], rel=1e-5, abs=1e-6), key


def gpt2_sized(kind):
    """Return logits (6, 50,257) in float32 and targets: what models of that vocabulary predict, well and badly."""
    generator = torch.Generator().manual_seed(0)
    rows, vocab = 6, 50_257
    targets = torch.arange(rows) * 8000
    logits = 3 * torch.randn(rows, vocab, generator=generator)
    if kind == "shifted":
        logits -= 100
    elif kind == "far away":
        logits += 1000
    elif kind == "peaked":
        logits = torch.zeros(rows, vocab)
        logits[torch.arange(rows), targets] = torch.tensor([12.0, 14.0, 17.0, 20.0, 30.0, 40.0])
    elif kind == "two peaks":
        logits = logits / 3 - 30
        logits[:, 7], logits[:, 11] = -12.5, -13.0
    elif kind == "overconfident":
        logits *= 1000
    return logits, targets


KINDS = ["plain", "shifted", "far away", "peaked", "two peaks", "overconfident"]
EXACT = {"rtol": 2e-6, "atol": 1e-12}


@pytest.mark.parametrize("kind", KINDS)
def test_every_metric_of_float32_logits_equals_that_of_float64(kind):
    logits, targets = gpt2_sized(kind)
    positions = torch.arange(len(logits)) % 5
    got = accumulate(logits, targets, positions)
    log_p = torch.from_numpy(log_softmax(logits.double().numpy(), axis=-1))
    nats = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    assert got["cross_entropy"] == pytest.approx(nats.mean().item(), rel=2e-6, abs=1e-12)
    entropies = scipy_entropy(log_p.exp().numpy(), base=2, axis=-1)
    assert got["entropy_bits"] == pytest.approx(entropies.mean(), rel=2e-6, abs=1e-12)
    confidence = log_p.amax(dim=-1).exp()
    correct = log_p.argmax(dim=-1) == targets
    sums = torch.zeros(3, 15, dtype=torch.float64)
    sums.index_add_(1, metrics.confidence_bin(confidence), torch.stack([confidence, correct.double(), torch.ones(6)]))
    assert got["calibration_error"] == pytest.approx(metrics.calibration_error(*sums), rel=2e-6, abs=1e-9)
    log_mean = torch.logsumexp(log_p, dim=0) - math.log(len(log_p))
    expected = (-math.log(len(log_p)) - log_mean[targets]).mean().item() / LN2
    assert got["kl_unigram_bits"] == pytest.approx(expected, rel=2e-6, abs=1e-9)
    torch.testing.assert_close(metrics.token_nll(logits, targets), nats, **EXACT)
    torch.testing.assert_close(metrics.entropy(logits) / LN2, torch.from_numpy(entropies), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_divergences_of_float32_logits_equal_those_of_float64(kind):
    logits, _ = gpt2_sized(kind)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    for size in (1e-3, 1.0):  # a model like the first, and one unlike it
        other = logits + size * noise
        log_p, log_q = (log_softmax(each.double().numpy(), axis=-1) for each in (logits, other))
        log_m = np.logaddexp(log_p, log_q) - LN2
        forward, reverse, first, second = (
            (np.exp(a) * (a - b)).sum(axis=-1) / LN2
            for a, b in ((log_p, log_q), (log_q, log_p), (log_p, log_m), (log_q, log_m))
        )
        expected = map(torch.from_numpy, (forward, reverse, (first + second) / 2))
        for got, want in zip(metrics.divergences(logits, other), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-12)


def test_the_divergence_of_the_mean_prediction_is_finite_where_it_underflows():
    """Two targets of probability exp(-5000), which no float64 holds, and one of probability 1/2."""
    logits = torch.tensor([[0.0, -5000.0, -9000.0], [0.0, -5000.0, -9000.0], [0.0, 0.0, -9000.0]])
    half = math.log(1 / 2)
    targets = torch.tensor([2, 2, 0])
    got = accumulate(logits, targets, torch.tensor([0, 1, 2]))
    log_mean = {0: math.log(2.5 / 3), 2: math.log((2 * math.exp(0) + math.exp(half)) / 3) - 9000}
    expected = sum(p * (math.log(p) - log_mean[v]) for v, p in ((2, 2 / 3), (0, 1 / 3))) / LN2
    assert got["kl_unigram_bits"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("vocab", [1, 2, 256, 8192])
def test_perplexity_of_the_uniform_model_is_the_vocabulary_size(vocab):
    result = accumulate(torch.zeros(7, vocab), torch.arange(7) % vocab, torch.arange(7) % 5)
    assert result["perplexity"] == pytest.approx(vocab, rel=1e-5)
    assert result["entropy_bits"] == pytest.approx(math.log2(vocab), abs=1e-5)


def test_bits_per_byte_is_none_without_bytes():
    assert accumulate(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0]), [0, 1])["bits_per_byte"] is None


def test_a_result_without_updates_is_refused():
    with pytest.raises(ValueError, match="no position was scored"):
        PredictionAccumulator(3, [1, 1, 1], 4).result()


def test_byte_lengths_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match=r"\(2,\).* 3 tokens"):
        PredictionAccumulator(3, [1, 1], 4)


@FEW
@given(pairs_of_logits())
def test_cross_entropy_is_entropy_plus_divergence(logits):
    """H(P, Q) = H(P) + D(P || Q), where H(P, Q) is the mean token NLL under P."""
    log_p, log_q = logits
    p = torch.softmax(log_p, dim=-1)
    rows = len(p)
    cross = sum(p[:, v] * metrics.token_nll(log_q, torch.full((rows,), v)) for v in range(log_p.shape[1]))
    forward, _, _ = metrics.divergences(log_p, log_q)
    torch.testing.assert_close(cross, metrics.entropy(log_p) + forward * LN2, atol=1e-9, rtol=1e-9)


@FEW
@given(pairs_of_logits())
def test_divergences_equal_scipy_and_stay_within_bounds(logits):
    p, q = (softmax(x.numpy(), axis=-1) for x in logits)
    forward, reverse, shannon = metrics.divergences(*logits)
    np.testing.assert_allclose(forward, scipy_entropy(p, q, base=2, axis=-1), atol=1e-8)
    np.testing.assert_allclose(reverse, scipy_entropy(q, p, base=2, axis=-1), atol=1e-8)
    np.testing.assert_allclose(shannon.sqrt(), np.nan_to_num(jensenshannon(p, q, base=2, axis=-1)), atol=1e-7)
    assert (forward >= 0).all()
    assert (reverse >= 0).all()
    assert (shannon >= 0).all()
    assert (shannon <= 1 + 1e-12).all()


@FEW
@given(pairs_of_logits())
def test_jensen_shannon_is_symmetric_and_swapping_models_swaps_the_divergences(logits):
    there, back = metrics.divergences(*logits), metrics.divergences(*reversed(logits))
    torch.testing.assert_close(there[2], back[2])
    torch.testing.assert_close(there[0], back[1])


def test_a_model_has_no_divergence_from_itself_even_in_bfloat16():
    logits = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    for divergence in metrics.divergences(logits, logits):
        assert (divergence < 1e-7).all()


def test_disjoint_distributions_are_one_bit_apart():
    forward, reverse, shannon = metrics.divergences(logits_of([1.0, 0.0]), logits_of([0.0, 1.0]))
    assert shannon.item() == pytest.approx(1.0)
    assert forward.item() == reverse.item() == math.inf


def test_models_of_different_vocabularies_are_refused():
    with pytest.raises(ValueError, match="one vocabulary"):
        metrics.divergences(torch.zeros(2, 3), torch.zeros(2, 4))


def test_divergence_from_a_source_by_hand():
    """From a model (1/4, 3/4), a fair coin diverges by 1/2 log2 2 + 1/2 log2(2/3), and certainty by log2 4."""
    source = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    logits = logits_of([0.25, 0.75], [0.25, 0.75])
    expected = [0.5 * math.log2(2) + 0.5 * math.log2(2 / 3), 2.0]
    assert metrics.kl_from_source(source, logits).tolist() == pytest.approx(expected)


@FEW
@given(pairs_of_logits())
def test_divergence_from_a_source_equals_that_from_its_logits(logits):
    forward, _, _ = metrics.divergences(*logits)
    source = torch.softmax(logits[0], dim=-1)
    torch.testing.assert_close(metrics.kl_from_source(source, logits[1]), forward, atol=1e-9, rtol=1e-9)


@FEW
@given(arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 1000)).filter(lambda c: c.sum() > 0))
def test_plug_in_entropy_equals_scipy(counts):
    expected = scipy_entropy(counts / counts.sum())
    assert metrics.plug_in_entropy(torch.from_numpy(counts)) == pytest.approx(expected, abs=1e-9)


def test_confidence_on_an_edge_belongs_to_the_bin_below():
    edges = torch.tensor([0.0, 1e-9, 1 / 15, 2 / 15, 1.0], dtype=torch.float64)
    assert metrics.confidence_bin(edges).tolist() == [0, 0, 0, 1, 14]


def test_accuracy_counts_the_first_of_equal_logits():
    logits = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    assert metrics.accuracy(logits, torch.tensor([0, 1])) == 0.5


def test_a_perplexity_that_no_float_holds_is_none():
    assert metrics.perplexity(709.7) == pytest.approx(math.exp(709.7))
    assert metrics.perplexity(709.8) is None
