"""Numba kernels: `nogil` functions over arrays, compiled on first use and cached on disk."""
