"""Apply edits to a run that a loader is reading, at the same step on all ranks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from zindex.errors import ConfigError, StoreUnavailableError
from zindex.io.backoff import Backoff
from zindex.loading.sampler import BatchPlan
from zindex.maintenance.edits.edit import edit
from zindex.samples.collectives import gather_objects, is_distributed

# Waits for edits that other ranks see already, on file systems that cache folders.
_FIRST_WAIT, _LONGEST_WAIT, _TIMEOUT = 0.1, 2.0, 120.0


@dataclass(frozen=True)
class LoadedRun:
    """The run of a loader."""

    #: As given to ``zindex.loader``.
    config: Any
    split: str
    num_ranks: int
    #: Opens its dataset with all edits.
    open_dataset: Callable[[], Any]
    make_plan: Callable[[Any], BatchPlan]

    def reweight(self, weights: Mapping[str, float], position: int) -> None:
        """Write an edit of weights on one rank; its errors are raised on all ranks."""
        if not is_distributed():
            if self.num_ranks > 1:
                raise ConfigError(
                    f"{self.num_ranks} ranks need torch.distributed to edit their run together; "
                    "edit it once with zindex.edit, at a later position, and refresh() all loaders"
                )
            edit(self.config, position, reweight=weights, split=self.split)
            return
        error: list[Any] = [None]
        if dist.get_rank() == 0:
            try:
                edit(self.config, position, reweight=weights, split=self.split)
            except Exception as found:
                error = [found]
        dist.broadcast_object_list(error, src=0)
        if error[0] is not None:
            raise error[0]

    def open_edited(self) -> Any:
        """Return the dataset with the edits that any rank sees."""
        dataset = self.open_dataset()
        counts = gather_objects(count_edits(dataset))
        backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT, timeout=_TIMEOUT)
        while count_edits(dataset) < max(counts):
            if not backoff.wait():
                raise StoreUnavailableError(
                    f"all ranks must see the {max(counts)} edits of the run, this one sees "
                    f"{count_edits(dataset)} after {_TIMEOUT:.0f} s; check its index folder"
                )
            dataset = self.open_dataset()
        return dataset


def count_edits(dataset: Any) -> int:
    """Return the edits that a dataset includes."""
    return len(getattr(dataset, "previous_fingerprints", ()))
