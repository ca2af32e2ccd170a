"""Sequence mixers: the sub-layers of a block in which positions read one another."""
