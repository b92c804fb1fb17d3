"""The order of each pass over a dataset: keyed, upstream's, or that of the dataset itself."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from zindex.errors import ConfigError
from zindex.store.identity import fingerprint as fingerprint_of

Int64Array = npt.NDArray[np.int64]
Order = Literal["keyed", "astrai_randperm"]


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """Which sample stands at which place of each pass: pure arithmetic, no state."""

    num_samples: int
    """Samples of the dataset, > 0."""
    seed: int
    """Seed of the order, >= 0."""
    kind: Order | None
    """Order of the passes; None for that of the dataset."""
    dataset: str
    """Fingerprint of the dataset."""

    @property
    def fingerprint(self) -> str:
        """What decides the order, as SHA-256 in hex; of the first kind, as a ``Loader`` has it."""
        if self.kind is None:
            return self.dataset
        if self.kind == "keyed":
            return fingerprint_of({"dataset": self.dataset, "shuffle": 1, "seed": self.seed})
        return fingerprint_of({"dataset": self.dataset, "order": self.kind, "seed": self.seed})

    def open_pass(self, epoch: int) -> "Pass":
        """Return the order of one pass.

        Parameters
        ----------
        epoch
            Number of the pass, >= 0.
        """
        if self.kind is None:
            return Pass(self.num_samples)
        if self.kind == "astrai_randperm":
            order = astrai_randperm(self.num_samples, self.seed, epoch)
            return Pass(self.num_samples, order=order)
        # Only shuffling needs numba.
        from zindex.plan.keys import Stage, round_keys

        keys = round_keys(
            self.seed,
            Stage.PASS,
            source_digest=fingerprint_of({"dataset": self.dataset}),
            split="train",
            epoch=epoch,
        )
        return Pass(self.num_samples, keys=keys)


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """The order of one pass: by keys, by a list, or none."""

    num_samples: int
    """Samples of the dataset."""
    keys: npt.NDArray[np.uint64] | None = None
    """Round keys of the permutation."""
    order: Int64Array | None = None
    """Shape (samples,), int64: the permutation itself."""

    def find(self, places: Int64Array) -> Int64Array:
        """Return the samples that stand at places of the pass.

        Parameters
        ----------
        places
            Shape (places,), int64, each in ``[0, num_samples)``.

        Returns
        -------
        samples
            Shape (places,), int64: positions in the dataset.
        """
        if self.order is not None:
            return self.order[places]
        if self.keys is None:
            return places
        from zindex.kernels.bijection import permute

        return permute(places, self.num_samples, self.keys)


def astrai_randperm(num_samples: int, seed: int, epoch: int) -> Int64Array:
    """Return AstrAI's order of one pass, which takes 8 bytes for each sample.

    Parameters
    ----------
    num_samples
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
    order: Int64Array = torch.randperm(num_samples, generator=generator).numpy()
    return order
