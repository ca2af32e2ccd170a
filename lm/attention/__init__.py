"""Attention backends, which agree to rounding."""
