"""The fits by which `bytelm train` chooses a size and learning rates: least squares over runs of benchmarks.budget_fit.

`docs/training.md` has the runs and the intervals.
"""

from lm.metrics.scaling_law import ScalingLaw

# Bits per byte by weights and training tokens.
LAW = ScalingLaw(entropy=1.572, size_factor=761.0, size_exponent=0.6746, token_factor=321.9, token_exponent=0.5168)

# Muon's best rate is RATE_FACTOR * tokens^RATE_EXPONENT. None of the best rates is above HIGHEST_RATE.
RATE_FACTOR, RATE_EXPONENT = 0.436, -0.300
HIGHEST_RATE = 0.012


def muon_rate(tokens: float) -> float:
    """Return the learning rate of Muon with the fewest bits per byte after `tokens` tokens of the recipe gpt-tiny."""
    return min(HIGHEST_RATE, float(RATE_FACTOR * tokens**RATE_EXPONENT))
