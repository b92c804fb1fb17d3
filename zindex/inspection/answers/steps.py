"""Map training steps and ranks to positions, and back."""

from dataclasses import dataclass

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, check_whole


@dataclass(frozen=True, slots=True)
class Steps:
    """Batches of a training run, as `zindex.loader` and Megatron assign them to ranks."""

    #: Samples per step, over all ranks.
    global_batch_size: int
    #: Number of data-parallel ranks.
    num_ranks: int = 1
    #: Samples per rank and micro-batch; None for the whole share of the rank.
    micro_batch_size: int | None = None

    def __post_init__(self) -> None:
        check_whole("global_batch_size (--global-batch-size)", self.global_batch_size, 1)
        check_whole("num_ranks (--ranks)", self.num_ranks, 1)
        if self.micro_batch_size is not None:
            check_whole("micro_batch_size (--micro-batch-size)", self.micro_batch_size, 1)
        if self.global_batch_size % self._turn:
            raise ConfigError(
                "a global batch must be whole micro-batches of all ranks, got "
                f"{self.global_batch_size} samples for {self.num_ranks} ranks and micro-batches of "
                f"{self._micro}; change one of the three"
            )

    @property
    def _micro(self) -> int:
        if self.micro_batch_size is not None:
            return self.micro_batch_size
        return max(1, self.global_batch_size // self.num_ranks)

    @property
    def _turn(self) -> int:
        """Samples per micro-batch, over all ranks."""
        return self._micro * self.num_ranks

    def positions_of(self, step: int, rank: int | None = None) -> Int64Array:
        """Return the positions of a step, for one rank or for all ranks.

        Examples
        --------
        >>> Steps(8, num_ranks=2, micro_batch_size=2).positions_of(1, rank=1)
        array([10, 11, 14, 15])
        """
        return self.select_rank(np.arange(*self.span_of(step)), rank)

    def span_of(self, step: int) -> tuple[int, int]:
        """Return the positions of a step as a half-open range."""
        check_whole("step (--step)", step, 0)
        start = step * self.global_batch_size
        return start, start + self.global_batch_size

    def select_rank(self, positions: Int64Array, rank: int | None) -> Int64Array:
        """Return the positions that a rank consumes, or all of them for None."""
        if rank is None:
            return positions
        if not 0 <= rank < self.num_ranks:
            raise ConfigError(
                f"a rank must be in [0, {self.num_ranks}), got {rank}; give the number of ranks "
                "with num_ranks (--ranks)"
            )
        own: Int64Array = positions[self.ranks_of(positions) == rank]
        return own

    def steps_of(self, positions: Int64Array) -> Int64Array:
        """Return the step of each position."""
        return positions // self.global_batch_size

    def ranks_of(self, positions: Int64Array) -> Int64Array:
        """Return the rank of each position."""
        return positions % self._turn // self._micro


def make_steps(
    global_batch_size: int | None, num_ranks: int | None, micro_batch_size: int | None
) -> Steps | None:
    """Return the batches of a training run, or None if no batch size is given.

    Without a global batch size, a step is one micro-batch per rank.
    """
    if global_batch_size is None:
        if micro_batch_size is None:
            return None
        global_batch_size = micro_batch_size * (num_ranks or 1)
    return Steps(global_batch_size, num_ranks or 1, micro_batch_size)
