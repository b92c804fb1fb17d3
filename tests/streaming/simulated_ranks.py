"""Ranks and loader workers in one process: what a DataLoader does, without its processes.

Each worker slot has its own copy of the dataset, like a worker process, and prefetches, so only the
states of samples know the progress of training.
"""

import json
import pickle
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data._utils import worker as torch_worker

from tests.streaming.tiny_sources import ids_of
from zindex.streaming import MergedDataset, merge_states, to_state

Make = Callable[[], MergedDataset]
Sample = dict[str, Any]


@contextmanager
def acting_as(worker: int, num_workers: int, dataset: Any) -> Iterator[None]:
    """Let ``get_worker_info`` answer as in a worker, or with none as in the main process."""
    if not num_workers:
        yield
        return
    info = torch_worker.WorkerInfo(id=worker, num_workers=num_workers, seed=0, dataset=dataset)
    before, torch_worker._worker_info = torch_worker._worker_info, info
    try:
        yield
    finally:
        torch_worker._worker_info = before


class WorkerSlot:
    """One loader worker of one rank, which makes batches ahead."""

    def __init__(
        self, dataset: Any, worker: int, num_workers: int, batch_size: int, ahead: int
    ) -> None:
        self.worker, self.num_workers, self.batch_size = worker, num_workers, batch_size
        self.dataset = pickle.loads(pickle.dumps(dataset))
        # Plain pickling copies what torch's shares between processes.
        self.dataset._board = dataset._board
        with acting_as(worker, num_workers, self.dataset):
            self.samples = iter(self.dataset)
        self.ready: deque[list[Sample]] = deque()
        for _ in range(ahead):
            self.make_batch()

    def make_batch(self) -> None:
        batch: list[Sample] = []
        with acting_as(self.worker, self.num_workers, self.dataset):
            for sample in self.samples:
                batch.append(sample)
                if len(batch) == self.batch_size:
                    break
        if batch:
            self.ready.append(batch)

    def next_batch(self) -> list[Sample] | None:
        self.make_batch()
        return self.ready.popleft() if self.ready else None


class Rank:
    """One rank: its worker slots in turn, its delivered samples and its state."""

    def __init__(
        self, dataset: MergedDataset, num_workers: int, *, batch_size: int = 1, ahead: int = 2
    ) -> None:
        self.worker_slots = deque(
            WorkerSlot(dataset, worker, num_workers, batch_size, ahead)
            for worker in range(max(num_workers, 1))
        )
        self.dataset = dataset
        self.delivered: list[Sample] = []
        self.states: dict[str, Any] = {}

    def step(self) -> int:
        """Train on the next batch and return its size; 0 at the end of all worker slots."""
        while self.worker_slots:
            batch = self.worker_slots[0].next_batch()
            if batch is not None:
                self.worker_slots.rotate(-1)
                self.delivered += batch
                self.states.update(to_state(batch))
                return len(batch)
            self.worker_slots.popleft()
        return 0


class Run:
    """All ranks of a training run, from the start or from states.

    States are one rank-free dict, or, of as many ranks as there are now, a list of each rank's own.
    """

    def __init__(
        self,
        make: Make,
        num_ranks: int,
        num_workers: int,
        states: Any = None,
        *,
        batch_size: int = 1,
        ahead: int = 2,
        **settings: Any,
    ) -> None:
        self.ranks: list[Rank] = []
        for rank in range(num_ranks):
            dataset = make()
            dataset.set_data_parallel(num_ranks, rank)
            own = states[rank] if isinstance(states, list) else states
            if own is not None:
                dataset.set_dataloader_states(own, **settings)
            self.ranks.append(Rank(dataset, num_workers, batch_size=batch_size, ahead=ahead))
            self.ranks[-1].states = dict(own or {})

    def advance(self, num_samples: int, turns: Callable[[int, int], int] | None = None) -> int:
        """Deliver samples, to ranks in turn or as ``turns(step, num_ranks)`` says."""
        done = step = idle = 0
        while done < num_samples and idle < 50 * len(self.ranks):
            number = step % len(self.ranks) if turns is None else turns(step, len(self.ranks))
            count = self.ranks[number].step()
            done, step, idle = done + count, step + 1, 0 if count else idle + 1
        return done

    def drain(self) -> "Run":
        """Deliver all that is left."""
        for rank in self.ranks:
            while rank.step():
                pass
        return self

    def set_percents(self, percents: dict[str, float], at: int | None = None) -> int:
        """Change percents on all ranks, by default as early as that is possible on all."""
        reached = [rank.dataset._board.reached[1] for rank in self.ranks]
        planned = [change[1] for rank in self.ranks for change in rank.dataset._board.changes]
        at = max([*reached, *planned]) if at is None else at
        for rank in self.ranks:
            rank.states.update(rank.dataset.set_percents(percents, at))
        return at

    def own_states(self) -> list[dict[str, Any]]:
        """Return each rank's own states, as a checkpoint in JSON gives them back."""
        return json.loads(json.dumps([rank.states for rank in self.ranks]))

    def merged_states(self) -> dict[str, Any]:
        """Return the rank-free states, as a checkpoint in JSON gives them back."""
        return json.loads(json.dumps(merge_states(self.own_states())))

    def samples(self) -> list[Sample]:
        return [sample for rank in self.ranks for sample in rank.delivered]

    def ids(self) -> Counter[str]:
        """Return how often each id was delivered."""
        return Counter(name for sample in self.samples() for name in ids_of(sample))

    def orders(self) -> list[list[str]]:
        """Return the ids in each rank's order."""
        return [
            [name for sample in rank.delivered for name in ids_of(sample)] for rank in self.ranks
        ]
