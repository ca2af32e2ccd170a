"""The fits by which `bytelm train` chooses a size and learning rates: least squares over runs of benchmarks.budget_fit.

`docs/training.md` has the runs and the intervals.
"""

from lm.metrics.scaling_law import ScalingLaw

# Bits per byte by weights and training tokens. The exponents are those of Besiroglu et al. 2024, because our runs do
# not determine them.
LAW = ScalingLaw(entropy=1.2868, size_factor=25.088, size_exponent=0.348, token_factor=64.721, token_exponent=0.366)

# Muon's best rate is RATE_FACTOR * tokens^RATE_EXPONENT. None of the best rates is above HIGHEST_RATE.
RATE_FACTOR, RATE_EXPONENT = 0.436, -0.300
HIGHEST_RATE = 0.012


def muon_rate(tokens: float) -> float:
    """Return the learning rate of Muon with the fewest bits per byte after `tokens` tokens of the recipe gpt-tiny."""
    return min(HIGHEST_RATE, float(RATE_FACTOR * tokens**RATE_EXPONENT))


# Training in batches of the critical size takes twice the tokens of training in tiny ones, for the same loss.
CRITICAL_BATCH_FACTOR, CRITICAL_BATCH_EXPONENT = 16.9, 0.47


def equal_tokens(tokens: float, batch_tokens: int, usual: int) -> float:
    """Return how many tokens in batches of `usual` tokens teach as much as `tokens` in batches of `batch_tokens`.

    The tokens to a loss are proportional to 1 + batch / critical batch (McCandlish et al. 2018, equation 2.11), and the
    critical batch grows with the tokens (Zhang et al. 2025).
    """
    critical = CRITICAL_BATCH_FACTOR * tokens**CRITICAL_BATCH_EXPONENT
    return float(tokens * (critical + usual) / (critical + batch_tokens))
