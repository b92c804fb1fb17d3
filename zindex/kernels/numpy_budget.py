"""Budget of the numpy work that a process does before it loads kernels.

Loading kernels takes about as long as this work, so short-lived processes and small runs do without
numba.
"""

#: The budget, in values of a keyed permutation: about 0.3 us of numpy each.
MAX_VALUES = 1 << 20

_num_values = 0
_is_exhausted = False


def use_numpy(count: int) -> bool:
    """Spend a part of the budget, and return whether there was enough of it left.

    Parameters
    ----------
    count
        Work of a call, in the unit of `MAX_VALUES`.
    """
    global _num_values
    _num_values += count
    return not _is_exhausted and _num_values <= MAX_VALUES


def exhaust() -> None:
    """Use kernels for all further work of this process."""
    global _is_exhausted
    _is_exhausted = True


def is_exhausted() -> bool:
    """Return whether `exhaust` was called: this process must use kernels."""
    return _is_exhausted
