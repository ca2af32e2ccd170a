"""The best size of a model for a number of training tokens: a power law whose two numbers come from measured runs."""

# Source: Besiroglu et al. 2024 (Chinchilla's runs, fitted again). Weights w and tokens d reduce the loss by A / w^ALPHA
# and B / d^BETA. At equal compute, proportional to w d, the sum is least where ALPHA A / w^ALPHA = BETA B / d^BETA.
ALPHA, BETA = 0.348, 0.366
# Weights that suit `AT_TOKENS` tokens. docs/training.md has the runs.
AT_WEIGHTS, AT_TOKENS = 1.4e6, 7e6


def best_weights(tokens: float) -> float:
    """Return the number of weights, applied to each token, of the best model that trains on `tokens` tokens."""
    best: float = AT_WEIGHTS * (tokens / AT_TOKENS) ** (BETA / ALPHA)
    return best
