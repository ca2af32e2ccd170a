"""The loss by weights and training tokens: a scaling law whose numbers come from measured runs.
With w weights and d tokens, the loss above the entropy of the text is A / w^ALPHA + B / d^BETA (Hoffmann et al. 2022,
equation 2). Only the ratio of A and B matters for a choice. It follows from one pair of weights and tokens that suit
each other.
"""

# Besiroglu et al. 2024: the runs of Hoffmann et al., fitted again.
ALPHA, BETA = 0.348, 0.366
# Weights that suit `AT_TOKENS` tokens. Least squares for A, B and the entropy over four runs (docs/training.md) give
# A = 20.4 and B = 68.0 bits per byte; their residuals are below 0.002.
AT_WEIGHTS, AT_TOKENS = 0.43e6, 7e6


def reducible_loss(weights: float, tokens: float) -> float:
    """Return the loss above the entropy of the text, in units of B / AT_TOKENS^BETA.

    `weights` are those applied to each token. At equal compute, proportional to weights x tokens, the loss is least
    where ALPHA A / w^ALPHA = BETA B / d^BETA.
    """
    total: float = BETA / ALPHA * (AT_WEIGHTS / weights) ** ALPHA + (AT_TOKENS / tokens) ** BETA
    return total


def best_weights(tokens: float) -> float:
    """Return the weights that suit `tokens` tokens: at equal compute, no other model has a lower loss."""
    best: float = AT_WEIGHTS * (tokens / AT_TOKENS) ** (BETA / ALPHA)
    return best
