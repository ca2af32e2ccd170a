"""Statistics of a text without a model: entropy rates, divergences, mutual information, laws of frequency."""
