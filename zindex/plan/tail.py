"""The last items of a pass or a stream, where they do not fill a whole step or window.

Every sampler, loader and stream that has a ``tail`` setting follows the law of `Tail`.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError

#: The values of `Tail` as users write them, with their aliases.
TailName = Literal["drop_last", "drop", "exact", "short", "pad", "wrap"]

_WASTE = 0.5
_ALIASES = {"drop": "drop_last", "short": "exact"}


class Tail(StrEnum):
    """How to treat the items left over after the last full unit.

    A unit is one step of all ranks (``micro_batch_size * num_ranks`` samples) or one window of
    tokens. ``"drop"`` is an alias of ``"drop_last"``, and ``"short"`` of ``"exact"``.

    Notes
    -----
    Law, for n items in units of u, of which ``r = n % u`` are left over:

    - All values deliver the first ``n - r`` items in full units, each item once and in order.
    - ``DROP_LAST`` delivers nothing more; with ``r == 0`` all values agree.
    - ``EXACT`` delivers the r items once, in a last unit of r. Where ranks share the unit, their
      counts differ by one at most, and those with fewer, or none, have the highest ranks.
    - ``PAD`` delivers the same items on the same ranks, and fills the unit up to u with padding,
      which is no item and has no weight in the loss: None among the positions of a sampler, rows
      with an all-zero loss mask in a batch, ``pad_id`` with loss weight 0 (or targets of -100) in
      a window of tokens.
    - ``WRAP`` fills the unit up to u with the first items of the same pass, cyclically if the pass
      is shorter than a unit, so that these are delivered twice. AstrAI's sampler and torch's
      ``DistributedSampler`` do so.

    Streams share parts of sources between their worker slots: ``DROP_LAST`` leaves out, and ``PAD``
    fills up, the difference to the shortest or longest slot; see
    `zindex.streaming.merged_dataset.MergedDataset`.
    """

    DROP_LAST = "drop_last"
    EXACT = "exact"
    PAD = "pad"
    WRAP = "wrap"

    @classmethod
    def _missing_(cls, value: object) -> "Tail | None":
        alias = _ALIASES.get(value) if isinstance(value, str) else None
        return None if alias is None else cls(alias)

    @property
    def fingerprint_name(self) -> str:
        """The name in the fingerprints of window datasets, which predate the common names."""
        return {"drop_last": "drop", "exact": "short"}.get(self.value, self.value)

    def count_units(self, num_items: int, unit_size: int) -> int:
        """Return the number of units, the last one included unless it is dropped."""
        num_full, rest = divmod(num_items, unit_size)
        return num_full + (rest > 0 and self is not Tail.DROP_LAST)


def parse_tail(value: str, allowed: Sequence[Tail]) -> Tail:
    """Return a tail setting, after checking that it is one of those allowed.

    Parameters
    ----------
    value
        A `Tail`, its value or an alias.
    allowed
        The choices of the setting, in the order of the error message.

    Raises
    ------
    ConfigError
        If the value is not one of them.

    Examples
    --------
    >>> parse_tail("short", (Tail.PAD, Tail.EXACT))
    <Tail.EXACT: 'exact'>
    """
    name = _ALIASES.get(value, value) if isinstance(value, str) else None
    if name not in allowed:
        raise ConfigError(f"tail must be one of {', '.join(allowed)}, got {value!r}; choose one")
    return Tail(name)


def divide_evenly(num_items: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the first item of a rank and its count, where ranks share items in order.

    Examples
    --------
    >>> [divide_evenly(5, rank, 3) for rank in range(3)]
    [(0, 2), (2, 2), (4, 1)]
    """
    share, num_larger = divmod(num_items, num_ranks)
    return rank * share + min(rank, num_larger), share + (rank < num_larger)


def count_windows(
    lengths: Int64Array, window_size: int, stride: int, tail: Tail = Tail.DROP_LAST
) -> Int64Array:
    """Return the number of windows of each stream.

    Parameters
    ----------
    lengths
        Shape (streams,), int64, values.
    window_size, stride
        Values of a window, and from one window to the next, both > 0.
    tail
        ``DROP_LAST`` counts full windows only. Otherwise there is one more if targets are left.

    Returns
    -------
    counts
        Shape (streams,), int64.

    Notes
    -----
    A window of w inputs has w targets, each one value after its input, so it covers w + 1 values.
    Source: AstrAI's rule; at least one value must follow a window, as its last target.

    Examples
    --------
    >>> count_windows(np.array([64, 65, 128, 129]), 64, 64).tolist()
    [0, 1, 1, 2]
    >>> count_windows(np.array([64, 65, 128, 1]), 64, 64, Tail.PAD).tolist()
    [1, 1, 2, 0]
    """
    full = np.where(lengths <= window_size, 0, (lengths - 1 - window_size) // stride + 1)
    if tail is Tail.DROP_LAST:
        return full
    covered = np.where(full > 0, (full - 1) * stride + window_size, 0)
    # A window that starts after the last target would have none.
    has_tail = (covered < lengths - 1) & (full * stride < lengths - 1)
    counts: Int64Array = full + has_tail
    return counts


def describe_waste(
    lengths: Int64Array, counts: Int64Array, window_size: int, stride: int
) -> str | None:
    """Return what is lost or padded in windows of streams, if it is more than half; or None.

    Parameters
    ----------
    lengths, window_size, stride
        As of `count_windows`.
    counts
        The windows of each stream.

    Examples
    --------
    >>> lengths = np.array([5, 9, 80])
    >>> describe_waste(lengths, count_windows(lengths, 64, 64), 64, 64)
    >>> describe_waste(lengths, count_windows(lengths, 64, 64, Tail.PAD), 64, 64)
    'are padding to 64 %'
    >>> describe_waste(lengths[:2], count_windows(lengths[:2], 64, 64), 64, 64)
    'leave out 100 % of the values'
    """
    num_targets = np.maximum(lengths - 1, 0)
    ends = np.where(counts > 0, (counts - 1) * stride + window_size, 0)
    lost = 1 - float(np.minimum(ends, num_targets).sum()) / max(1, int(num_targets.sum()))
    padding = np.maximum(ends - num_targets, 0).sum() / max(1, int(counts.sum()) * window_size)
    if num_targets.any() and lost > _WASTE:
        return f"leave out {lost:.0%}".replace("%", " % of the values")
    return f"are padding to {padding:.0%}".replace("%", " %") if padding > _WASTE else None
