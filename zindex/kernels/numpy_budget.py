"""How much work numpy does before kernels are loaded, which takes as long.

Short-lived processes and small runs do without numba; then kernels take over.
"""

_MOST_VALUES = 1 << 20
_num_values = 0
_has_ended = False


def is_early(count: int) -> bool:
    """Count the work of a call, and return whether this process has had too little for kernels.

    Parameters
    ----------
    count
        Work in values of a keyed permutation: about 0.3 us of numpy each.
    """
    global _num_values
    _num_values += count
    return not _has_ended and _num_values <= _MOST_VALUES


def end() -> None:
    """Use kernels for all further work of this process."""
    global _has_ended
    _has_ended = True


def has_ended() -> bool:
    """Return whether this process must use kernels."""
    return _has_ended
