"""Nats, bits and perplexity. Imports no torch."""

import math

NATS_PER_BIT = math.log(2.0)


def bits(nats: float) -> float:
    """Return nats / ln 2."""
    return nats / NATS_PER_BIT


def perplexity(cross_entropy: float) -> float | None:
    """Return exp of a cross-entropy in nats per token; None above 1.8e308 (e^709), the largest float."""
    try:
        return math.exp(cross_entropy)
    except OverflowError:
        return None


def bits_per_byte(total_nats: float, total_bytes: int) -> float | None:
    """Return total nats / ln 2 / total bytes, or None without bytes. For causal models only."""
    return bits(total_nats) / total_bytes if total_bytes else None
