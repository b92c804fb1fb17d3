"""How much work numpy does before kernels are loaded, which takes as long.

Short-lived processes and small runs do without numba; then kernels take over.
"""

_MOST_VALUES = 1 << 20
_num_values = 0


def is_early(count: int) -> bool:
    """Count the work of a call, and return whether this process has had too little for kernels.

    Parameters
    ----------
    count
        Work in values of a keyed permutation: about 0.3 us of numpy each.
    """
    global _num_values
    _num_values += count
    return _num_values <= _MOST_VALUES


def end() -> None:
    """Have kernels do all further work of this process."""
    is_early(_MOST_VALUES)
