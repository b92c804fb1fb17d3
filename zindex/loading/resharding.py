"""Recognise trainers among the callers of a stream, as none of them can be asked.

Accelerate shares samples between ranks a second time, which is refused. Lightning reads a batch
ahead, which states must not count. Both save the state of one rank only. Datasets that are already
shared are found by their lengths.
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from zindex.errors import ConfigError
from zindex.samples.collectives import is_distributed

logger = logging.getLogger(__name__)

# Classes that give each rank a share of all samples that one rank reads.
_SHARING = {"IterableDatasetShard", "DataLoaderDispatcher"}, {"accelerate", "transformers"}
# Lightning's class that reads a batch ahead of a loader without a length.
_READING_AHEAD = {"_PrefetchDataFetcher"}, {"lightning", "pytorch_lightning"}
# Packages that ask every rank for the state of a loader, and save that of the first.
_SAVING = {"accelerate", "lightning", "pytorch_lightning"}


def refuse_resharding(num_ranks: int) -> None:
    """Raise if an object of another library shares samples that are already those of one rank.

    Called where a stream begins. In a forked loader worker the callers include those of the process
    that forked it.

    Parameters
    ----------
    num_ranks
        Ranks that share the stream.

    Raises
    ------
    ConfigError
        If there is such an object, and several ranks.
    """
    found = None if num_ranks == 1 else _find_caller(*_SHARING)
    if found is not None:
        raise ConfigError(
            f"a stream must be shared between ranks once, its {num_ranks} ranks have "
            f"disjoint samples and {found[0]} would share them again, so that most "
            "were never seen; leave the DataLoader out of accelerator.prepare(), or call "
            "dataset.set_data_parallel(1, 0) and set dispatch_batches=False"
        )


# By the names of datasets, the streams that have been compared.
_num_compared = Counter[str]()


def warn_of_shares(lengths: Mapping[str, int], rank: int, num_ranks: int) -> None:
    """Warn if datasets have other lengths on an adjacent rank, as if each had a share of them.

    It is no collective call: ranks leave their lengths in the store of ``torch.distributed``, and
    do not wait for those of others. Of two ranks the later one finds a difference.

    Parameters
    ----------
    lengths
        Items of the map-style datasets of a stream, by name.
    rank, num_ranks
        Of this process.
    """
    if num_ranks == 1 or not lengths or not is_distributed():
        return
    store: Any = torch.distributed.distributed_c10d._get_default_store()
    if store is None:  # of MPI
        return
    names = json.dumps([*lengths])
    _num_compared[names] += 1
    key = f"zindex lengths {names} {_num_compared[names]}"
    store.set(f"{key} {rank}", json.dumps([*lengths.values()]))
    for other in (rank - 1, rank + 1):
        if not 0 <= other < num_ranks or not store.check([f"{key} {other}"]):
            continue
        found = json.loads(store.get(f"{key} {other}"))
        for (name, here), there in zip(lengths.items(), found, strict=True):
            if here != there:
                logger.warning(
                    "%r must be the same dataset on all ranks, which share its items, it has %d on "
                    "rank %d and %d on rank %d; do not give each rank a share (Subset, "
                    "split_dataset_by_node), or call set_data_parallel(1, 0)",
                    *(name, here, rank, there, other),
                )


def is_read_ahead() -> bool:
    """Return whether the caller of an iterator asks for a batch before it uses the last one."""
    found = _find_caller(*_READING_AHEAD)
    return found is not None and found[1].length is None


def is_saved_by_trainer() -> bool:
    """Return whether the caller's caller asks all ranks for a state, but saves that of one."""
    return _package_of(sys._getframe(2)) in _SAVING


def _package_of(frame: FrameType) -> str:
    return (frame.f_globals.get("__name__") or "").partition(".")[0]


def _find_caller(classes: set[str], packages: set[str]) -> tuple[str, Any] | None:
    """Return the name of the class of a caller's ``self``, and the object; None without any."""
    if packages.isdisjoint(sys.modules):
        return None
    frame = sys._getframe(1)
    while frame is not None:
        # The locals of other frames are not asked for: that would keep them alive.
        if _package_of(frame) in packages:
            caller = frame.f_locals.get("self")
            kind = type(caller).__name__
            if kind in classes:
                return f"{frame.f_globals['__name__']}.{kind}", caller
        frame = frame.f_back  # type: ignore[assignment]
    return None
