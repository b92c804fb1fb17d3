"""What AstrAI's ResumableDistributedSampler does, by a small model of our own."""

from collections.abc import Iterator

import torch


class UpstreamSampler:
    """Its indices and its counter."""

    def __init__(
        self,
        num_samples: int,
        start_epoch: int = 0,
        start_iter: int = 0,
        *,
        seed: int = 42,
        drop_last: bool = False,
        shuffle: bool = True,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        share = num_samples // num_ranks
        self.per_replica = share if drop_last else -(-num_samples // num_ranks)
        self.num_samples, self.seed, self.shuffle = num_samples, seed, shuffle
        self.rank, self.num_ranks = rank, num_ranks
        self.epoch = start_epoch
        self.iter = start_iter % self.per_replica
        self._indices: list[int] | None = None

    def __iter__(self) -> Iterator[int]:
        if self._indices is None:
            self._indices = self._find_indices()
        for index in self._indices:
            self.iter += 1
            yield index
        self.epoch += 1
        self._indices = None

    def __len__(self) -> int:
        return self.per_replica - self.iter

    def _find_indices(self) -> list[int]:
        """Return the rest of this rank's indices of a pass, out of a list of all samples."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.num_samples, generator=generator).tolist()
        else:
            order = list(range(self.num_samples))
        total = self.per_replica * self.num_ranks
        order += order[: max(0, total - self.num_samples)]
        return order[self.rank : total : self.num_ranks][self.iter % self.per_replica :]
