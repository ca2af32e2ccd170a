"""Attention backends: implementations of one formula that agree to rounding."""
