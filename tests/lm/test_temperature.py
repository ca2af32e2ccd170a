"""The best temperature agrees with scipy, and undoes a known one."""

import math

import pytest
import scipy.optimize
import torch

from lm.metrics.temperature_scaling import best_temperature


def predictions(scale, count=4000, vocab=50):
    """Return random logits times `scale`, and targets drawn from the unscaled logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, vocab, generator=generator) * 2
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return logits * scale, targets


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
def test_the_best_temperature_is_scipys_minimum(scale):
    logits, targets = predictions(scale)

    def loss(log_temperature):
        return float(torch.nn.functional.cross_entropy(logits.double() / math.exp(log_temperature), targets))

    temperature, gain = best_temperature(lambda: zip(logits.split(999), targets.split(999), strict=True))
    found = scipy.optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert temperature == pytest.approx(math.exp(found.x), rel=1e-3)
    assert gain == pytest.approx(loss(0) - found.fun, abs=1e-6)
    assert temperature == pytest.approx(scale, rel=0.05)


def test_a_uniform_model_has_the_temperature_1_and_no_gain():
    targets = torch.arange(8)
    assert best_temperature(lambda: [(torch.zeros(8, 20), targets)]) == (1.0, 0.0)


def test_a_model_that_is_always_right_or_always_wrong_stays_in_the_limits():
    logits = torch.eye(10) * 8
    right, gain = best_temperature(lambda: [(logits, torch.arange(10))])
    assert 0.05 <= right < 1 and gain >= 0
    wrong, gain = best_temperature(lambda: [(logits, torch.arange(10).roll(1))])
    assert wrong == pytest.approx(20, rel=0.01) and gain > 0


@pytest.mark.parametrize(
    ("gap", "targets", "temperature", "gain"),
    [(200.0, [0, 0, 1], 20, 63), (200.0, [0, 0, 0], 1, 0), (-200.0, [0, 0, 0], 20, 190)],
)
def test_predictions_of_probability_1_have_the_best_temperature_in_the_limits(gap, targets, temperature, gain):
    logits = torch.tensor([[gap, 0.0]]).repeat(3, 1)
    assert best_temperature(lambda: [(logits, torch.tensor(targets))]) == pytest.approx((temperature, gain), rel=0.01)


@pytest.mark.parametrize("shift", [0.0, -100.0, 1000.0])
def test_the_gain_of_float32_logits_is_that_of_float64(shift):
    """A nearly calibrated model of GPT-2's vocabulary: its gain is small beside its loss."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(64, 50_257, generator=generator) + shift
    targets = torch.multinomial((logits.double() - shift).softmax(-1), 1, generator=generator).squeeze(-1)
    logits[:32, 5] += 14  # half of the predictions are nearly certain
    temperature, gain = best_temperature(lambda: [(logits, targets)])
    losses = [torch.nn.functional.cross_entropy(logits.double() / t, targets).item() for t in (1.0, temperature)]
    assert gain == pytest.approx(losses[0] - losses[1], rel=1e-5)
