"""Numba kernels: arrays in, arrays out; no I/O, no configuration, no hidden random state."""
