"""Recognise trainers among the callers of a stream, as none of them can be asked.

Accelerate shares samples between ranks a second time, which is refused. Lightning reads a batch
ahead, which states must not count. Both save the state of one rank only.
"""

import sys
from types import FrameType
from typing import Any

from zindex.errors import ConfigError

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
