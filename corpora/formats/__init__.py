"""Readers of the file formats, compressed or not."""
