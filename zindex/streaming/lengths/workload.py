"""How many processes are worth their start for what there is to count."""

import os
from typing import Any

from zindex.streaming.lengths.statistics import list_leaves

# A process takes seconds to start, as it imports torch. One alone reads this much about as fast.
_NBYTES_ALONE = 4 << 20
# What a part of an unknown size, and an item, may have; samples are made by Python, images decoded.
_PART_NBYTES, _ITEM_NBYTES = 1 << 20, 4 << 10


def choose_processes(dataset: Any, num_samples: int | None = None) -> int:
    """Return in how many processes to count a dataset: in this one alone if it is small.

    Parameters
    ----------
    dataset, num_samples
        As for `zindex.streaming.count_lengths`.

    Raises
    ------
    ConfigError
        If the dataset is no source.
    """
    nbytes = 0
    for leaf in list_leaves(dataset):
        if not leaf.is_parted:
            nbytes += _ITEM_NBYTES * min(leaf.num_items, num_samples or leaf.num_items)
            continue
        part_nbytes = getattr(getattr(leaf.dataset, "files", None), "part_nbytes", None)
        for part in range(leaf.num_items):
            known = part_nbytes(part) if leaf.order != "cogdata_urlbuffer" and part_nbytes else None
            nbytes += _PART_NBYTES if known is None else known
            if nbytes > _NBYTES_ALONE:
                break
    return 1 if nbytes <= _NBYTES_ALONE else len(os.sched_getaffinity(0))
