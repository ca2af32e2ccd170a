"""The fits by which `bytelm train` chooses a size and learning rates. `docs/training.md` has the runs behind them."""

from lm.metrics.scaling_law import ScalingLaw

# Bits per byte by weights and training tokens. The exponents are those of Besiroglu et al. 2024: the runs of Hoffmann
# et al. 2022, fitted again. The other numbers are least squares over the runs of benchmarks.budget_fit.
LAW = ScalingLaw(entropy=1.576, size_factor=1124.0, size_exponent=0.707, token_factor=328.5, token_exponent=0.5185)

# Muon's best rate is RATE_FACTOR * tokens^RATE_EXPONENT. None of the best rates is above HIGHEST_RATE.
RATE_FACTOR, RATE_EXPONENT = 0.436, -0.300
HIGHEST_RATE = 0.012


def muon_rate(tokens: float) -> float:
    """Return the learning rate of Muon with the fewest bits per byte after `tokens` tokens of the recipe gpt-tiny."""
    return min(HIGHEST_RATE, float(RATE_FACTOR * tokens**RATE_EXPONENT))
