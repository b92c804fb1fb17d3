"""The order of each pass over a dataset: keyed, AstrAI's, or the dataset's own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, check_whole
from zindex.store.commit import fingerprint as fingerprint_of

Order = Literal["keyed", "astrai_randperm"]


class PassOrder(Protocol):
    """An order of the samples of each pass, as a `BatchPlan` reads it."""

    @property
    def num_positions(self) -> int:
        """Samples of the dataset."""

    @property
    def kind(self) -> str | None:
        """None for the order of the dataset."""

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of what determines the order."""

    def find_range(self, epoch: int, start: int, stop: int) -> list[int]:
        """Return the positions in the dataset at places ``[start, stop)`` of a pass."""


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """A stream of passes over a dataset, each in its own order: pure arithmetic, no state."""

    #: Samples of the dataset, > 0.
    num_positions: int
    #: Order of the passes; None for that of the dataset.
    kind: Order | None = None
    #: Seed of the order, >= 0.
    seed: int = 0
    #: Fingerprint of the dataset.
    dataset: str = ""

    def __post_init__(self) -> None:
        # Plain ints, because fingerprints cannot contain numpy's.
        for name in ("num_positions", "seed"):
            object.__setattr__(self, name, check_whole(name, getattr(self, name), 0))

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of what determines the order; without shuffling, the dataset's."""
        if self.kind is None:
            return self.dataset
        name = {"shuffle": 1} if self.kind == "keyed" else {"order": self.kind}
        return fingerprint_of({"dataset": self.dataset, "seed": self.seed} | name)

    def open_pass(self, epoch: int) -> Callable[[Int64Array], Int64Array]:
        """Return the function from places of one pass to positions in the dataset.

        Parameters
        ----------
        epoch
            Number of the pass, >= 0.

        Returns
        -------
        find
            Takes and returns an int64 array of any shape (places,), of values in
            ``[0, num_positions)``. The keyed order computes each position in constant memory.
        """
        if self.kind is None:
            return lambda places: places
        if self.kind == "astrai_randperm":
            return astrai_randperm(self.num_positions, self.seed, epoch).__getitem__
        # Only shuffling needs numba.
        from zindex.kernels.bijection import permute

        keys = _pass_keys(self.dataset, self.seed, epoch)
        return lambda places: permute(places, self.num_positions, keys)

    def find_range(self, epoch: int, start: int, stop: int) -> list[int]:
        """Return the positions in the dataset at places ``[start, stop)`` of a pass."""
        positions = np.arange(start, stop)
        if self.kind == "keyed":
            from zindex.kernels.bijection import permute_range

            keys = _pass_keys(self.dataset, self.seed, epoch)
            permute_range(start, self.num_positions, keys, 0, positions)
        else:
            positions = self.open_pass(epoch)(positions)
        return positions.tolist()


@lru_cache(maxsize=4)
def _pass_keys(dataset: str, seed: int, epoch: int) -> Any:
    """Return the round keys of one pass over a dataset."""
    from zindex.plan.keys import Stage, round_keys

    source = fingerprint_of({"dataset": dataset})
    return round_keys(seed, Stage.PASS, source_digest=source, split="train", epoch=epoch)


def astrai_randperm(num_positions: int, seed: int, epoch: int) -> Int64Array:
    """Return AstrAI's order of one pass, which takes 8 bytes for each sample.

    Parameters
    ----------
    num_positions
        Samples of the dataset.
    seed, epoch
        Their sum seeds torch's generator, so that pass 1 of one seed is pass 0 of the next.

    Returns
    -------
    order
        Shape (samples,), int64.

    Raises
    ------
    ConfigError
        If the sum is more than torch takes.

    Examples
    --------
    >>> astrai_randperm(10, 42, 0)
    array([2, 6, 1, 8, 4, 5, 0, 9, 3, 7])
    """
    if seed + epoch >= 1 << 64:
        raise ConfigError(
            f"seed and epoch of order='astrai_randperm' must add up to less than 2**64, got {seed} "
            f"and {epoch}; choose a smaller seed"
        )
    generator = torch.Generator().manual_seed(seed + epoch)
    order: Int64Array = torch.randperm(num_positions, generator=generator).numpy()
    return order
