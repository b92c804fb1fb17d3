"""Refuse trainers that would share the samples of a stream between ranks a second time."""

import sys

from zindex.errors import ConfigError

# Classes that give each rank a share of all samples that one rank reads.
_CLASSES = {"IterableDatasetShard", "DataLoaderDispatcher"}
_PACKAGES = {"accelerate", "transformers"}


def refuse_resharding(num_ranks: int) -> None:
    """Raise if an object of another library shares samples that are already those of one rank.

    Called where a stream begins, it looks for that object among the callers: Accelerate wraps
    the dataset or the loader, and neither can be asked. In a forked loader worker the callers
    include those of the process that forked it.

    Parameters
    ----------
    num_ranks
        Ranks that share the stream.

    Raises
    ------
    ConfigError
        If there is such an object, and several ranks.
    """
    if num_ranks == 1 or _PACKAGES.isdisjoint(sys.modules):
        return
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        # The locals of other frames are not asked for: that would keep them alive.
        if module.partition(".")[0] in _PACKAGES:
            kind = type(frame.f_locals.get("self")).__name__
            if kind in _CLASSES:
                raise ConfigError(
                    f"a stream must be shared between ranks once, its {num_ranks} ranks have "
                    f"disjoint samples and {module}.{kind} would share them again, so that most "
                    "were never seen; leave the DataLoader out of accelerator.prepare(), or call "
                    "dataset.set_data_parallel(1, 0) and set dispatch_batches=False"
                )
        frame = frame.f_back  # type: ignore[assignment]
