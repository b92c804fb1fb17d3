"""How batches are read: one from its positions, and many ahead of the trainer.

Batches come in the order of their positions, whatever reads them. Which ones are read is decided
by the caller, and what the trainer has been handed is counted by it.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from zindex.errors import ConfigError
from zindex.loading.sampler import Positions
from zindex.store.object_calls import may_fork

Collate = Callable[[Any], Any]

# Tensors that say what counts in the loss, and their value where nothing does.
_NO_WEIGHT = {
    "loss_mask": 0,
    "target_ids": -100,
    "chosen_mask": 0,
    "rejected_mask": 0,
    "masks": 0,
    "group_mask": 0,
}

# Seconds that reads may still take which nobody wants any more.
_LAST_WAIT = 5.0


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Reads the batch of given positions; itself a dataset, of which a ``DataLoader`` can ask it.

    None among the positions is padding: a sample of the batch, or the dataset's last one, without
    any weight in the loss.
    No positions at all give a batch of no samples, with the shapes and dtypes of the last one.
    """

    dataset: Any
    """Any map-style dataset."""
    collate: Collate
    """Makes one batch of what the dataset gives for several positions."""
    pin_memory: bool = False
    """Whether tensors are copied to page-locked memory."""

    def __getitems__(self, positions: Positions) -> Any:
        """Return the batch of some positions."""
        # As long as the others: an edited run may have samples of two lengths. Where this rank has
        # no sample of its own the order ends, and the other ranks have its last ones.
        last = len(self.dataset) - 1
        filler = next((position for position in positions if position is not None), last)
        wanted = [filler if position is None else position for position in positions] or [last]
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(wanted)
        else:
            items = [self.dataset[position] for position in wanted]
        batch = self.collate(items)
        if not positions:
            batch = _cut(batch)
        if None in positions:
            _silence(batch, [i for i, position in enumerate(positions) if position is None])
        return _pin(batch) if self.pin_memory else batch

    def check_padding(self) -> None:
        """Check that padding can be told from samples, before a run comes to need it."""
        _silence(self.collate([self.dataset[0]]), [])


def _silence(batch: Any, rows: list[int]) -> None:
    """Take all weight in the loss from rows of a batch."""
    named = batch if isinstance(batch, Mapping) else {}
    weights = {
        name: named[name] for name in _NO_WEIGHT if isinstance(named.get(name), torch.Tensor)
    }
    if not weights:
        raise ConfigError(
            f"tail='pad' needs batches that are mappings with one of {', '.join(_NO_WEIGHT)}, from "
            f"which padding takes its weight, got {type(batch).__name__}; choose tail='exact' or "
            "'drop_last'"
        )
    for name, tensor in weights.items():
        tensor[rows] = _NO_WEIGHT[name]


def _cut(batch: Any) -> Any:
    """Return a batch without its samples."""
    if isinstance(batch, torch.Tensor):
        return batch[:0]
    if isinstance(batch, Mapping):
        return {key: _cut(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple) and all(
        isinstance(value, torch.Tensor | Mapping | list | tuple) for value in batch
    ):
        return type(batch)(map(_cut, batch))
    return batch[:0] if isinstance(batch, list) else batch


def _pin(batch: Any) -> Any:
    """Return a batch with its tensors in page-locked memory."""
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        return {key: _pin(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return type(batch)(map(_pin, batch))
    return batch


def read_ahead(
    reader: BatchReader, batches: Iterable[Positions], prefetch: int
) -> Generator[Any, None, None]:
    """Yield batches that threads of this process read ahead.

    Parameters
    ----------
    reader
        What reads a batch.
    batches
        The positions of each.
    prefetch
        Batches that are read ahead at the same time, each by a thread; 0 reads without threads.

    Yields
    ------
    batch
        One for each entry of ``batches``, in their order. An error of a read is raised where its
        batch would stand.
    """
    left = iter(batches)
    if not prefetch:
        yield from map(reader.__getitems__, left)
        return
    threads = ThreadPoolExecutor(prefetch, thread_name_prefix="zindex-batch")
    pending: deque[Future[Any]] = deque()

    def fill() -> None:
        while len(pending) < prefetch and (positions := next(left, None)) is not None:
            pending.append(threads.submit(reader.__getitems__, positions))

    try:
        # Alone, so that no two threads open the same files at once, nor compile a kernel twice.
        if (first := next(left, None)) is not None:
            batch = reader.__getitems__(first)
            fill()
            yield batch
        while pending:
            batch = pending.popleft().result()
            fill()
            yield batch
    finally:
        for future in pending:
            future.cancel()
        # What a store that is gone does not answer would keep whoever stops here for minutes.
        late = wait(pending, _LAST_WAIT).not_done
        threads.shutdown(wait=not late)


@dataclass(slots=True)
class WorkerPool:
    """Loader workers that stay alive from one iteration to the next."""

    loader: torch.utils.data.DataLoader[Any]
    batches: "_Batches"

    def read(self, batches: Iterator[Positions]) -> Iterator[Any]:
        """Return batches in the order of their positions; those asked for before are forgotten."""
        self.batches.left = batches
        return iter(self.loader)

    def stop(self) -> None:
        """Stop the processes."""
        # Nothing public stops those that persist, and an error that is kept keeps them too.
        running, self.loader._iterator = self.loader._iterator, None
        if running is not None:
            running._shutdown_workers()  # type: ignore[attr-defined]


class _Batches:
    """The positions that a ``DataLoader`` asks for at the start of an iteration."""

    def __init__(self) -> None:
        self.left: Iterator[Positions] = iter(())

    def __iter__(self) -> Iterator[Positions]:
        return self.left


def start_workers(
    reader: BatchReader, *, num_workers: int, prefetch: int, pin_memory: bool, context: Any
) -> WorkerPool:
    """Return loader workers, processes that start with the first batch.

    Parameters
    ----------
    reader
        What reads a batch; the workers get a copy.
    num_workers
        Processes, > 0.
    prefetch
        Batches that are asked for ahead of the trainer, all workers together.
    pin_memory
        Whether this process copies tensors to page-locked memory.
    context
        How processes start: ``"fork"``, ``"forkserver"``, ``"spawn"``, a multiprocessing context,
        or None for the default of this platform; ``"forkserver"`` where this process has used an
        object store, whose clients do not survive a fork.
    """
    if context is None and not may_fork():
        context = "forkserver"
    batches = _Batches()
    loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
        reader,  # type: ignore[arg-type]
        batch_sampler=batches,
        collate_fn=_keep,
        num_workers=num_workers,
        prefetch_factor=max(1, -(-prefetch // num_workers)),
        persistent_workers=True,
        pin_memory=pin_memory,
        multiprocessing_context=context,
        # Its own, so that workers do not draw from the generator that the model draws from.
        generator=torch.Generator(),
    )
    return WorkerPool(loader, batches)


def _keep(batch: Any) -> Any:
    """Return a batch as it is."""
    return batch
