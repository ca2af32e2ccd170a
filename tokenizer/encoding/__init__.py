"""Encoding and decoding: text to ids and ids to bytes."""
