"""Numba kernels: arrays in, arrays out; no I/O, no configuration, no hidden random state."""

import time

#: Time at which this process began to import kernels, in seconds since the epoch.
IMPORTED = time.time()
