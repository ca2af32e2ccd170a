"""Decoding: KV caches, sampling, generation and beam search."""
