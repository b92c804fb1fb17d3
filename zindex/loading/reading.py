"""Read batches by position, and prefetch them with threads or worker processes.

Batches are delivered in the order of their positions. The caller chooses the positions and counts
the batches that the trainer has received.
"""

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from zindex.errors import ConfigError
from zindex.io.object_calls import may_fork
from zindex.loading.sampler import Positions
from zindex.loading.worker_lifetime import exit_with_parent

Collate = Callable[[Any], Any]

# Tensors that weight the loss, and their value for samples without weight.
_WEIGHTS = ("loss_mask", "target_ids", "chosen_mask", "rejected_mask", "masks", "group_mask")
_NO_WEIGHT = dict.fromkeys(_WEIGHTS, 0) | {"target_ids": -100}


@dataclass(frozen=True, slots=True)
class BatchReader:
    """Reads the batch at given positions; usable as the dataset of a ``DataLoader``.

    None among the positions is padding: a copy of a sample of the batch, or of the dataset's last
    one, without any weight in the loss. An empty list of positions gives an empty batch, with the
    shapes and dtypes of the last sample.
    """

    #: Any map-style dataset.
    dataset: Any
    #: Collates the samples of several positions into one batch.
    collate: Collate
    #: Whether to copy tensors to page-locked memory.
    pin_memory: bool = False

    def __getitems__(self, positions: Positions) -> Any:
        """Return the batch at some positions."""
        # Padding has the length of its batch, as an edited run may have samples of two lengths. A
        # rank without samples is at the end of the order, where the other ranks have the last
        # samples.
        last = len(self.dataset) - 1
        filler = next((position for position in positions if position is not None), last)
        wanted = [filler if position is None else position for position in positions] or [last]
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(wanted)
        else:
            items = [self.dataset[position] for position in wanted]
        batch = self.collate(items)
        if not positions:
            batch = _empty(batch)
        if None in positions:
            _mask_padding(batch, [i for i, position in enumerate(positions) if position is None])
        return _pin(batch) if self.pin_memory else batch

    def check_padding(self) -> None:
        """Check that padding can be masked in the loss, before a run needs it."""
        _mask_padding(self.__getitems__([0]), [])


def _mask_padding(batch: Any, rows: list[int]) -> None:
    """Remove the weight of some rows of a batch in the loss."""
    named = batch if isinstance(batch, Mapping) else {}
    weights = {
        name: named[name] for name in _NO_WEIGHT if isinstance(named.get(name), torch.Tensor)
    }
    if not weights:  # of another kind of records
        weights = {
            name: value
            for name, value in named.items()
            if str(name).endswith("_mask") and isinstance(value, torch.Tensor)
        }
    if not weights:
        raise ConfigError(
            f"tail='pad' needs batches that are mappings with one of {', '.join(_NO_WEIGHT)}, from "
            "which padding takes its weight, or others that end in _mask, got "
            f"{type(batch).__name__}; choose tail='exact' or 'drop_last'"
        )
    for name, tensor in weights.items():
        tensor[rows] = _NO_WEIGHT.get(name, 0)


def _empty(batch: Any) -> Any:
    """Return an empty batch of the same structure."""
    if isinstance(batch, torch.Tensor):
        return batch[:0] if batch.dim() else torch.zeros_like(batch)
    if isinstance(batch, Mapping):
        empty = {key: _empty(value) for key, value in batch.items()}
        bounds = batch.get("cu_seqlens")
        if isinstance(bounds, torch.Tensor) and bounds.dim() == 1:  # those of the whole batch
            empty["cu_seqlens"] = bounds[:1]
        return empty
    if isinstance(batch, list | tuple) and all(
        isinstance(value, torch.Tensor | Mapping | list | tuple) for value in batch
    ):
        return type(batch)(map(_empty, batch))
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
    reader: BatchReader,
    batches: Iterable[Positions],
    prefetch: int,
    *,
    close_timeout: float = 5.0,
) -> Generator[Any, None, None]:
    """Yield batches prefetched by threads of this process.

    Parameters
    ----------
    reader
        Reads one batch.
    batches
        The positions of each batch.
    prefetch
        Batches read concurrently, each by a thread; 0 reads without threads.
    close_timeout
        Seconds that closing the generator waits for running reads.

    Yields
    ------
    batch
        One for each entry of ``batches``, in order. An error of a read is raised in place of its
        batch.
    """
    left = iter(batches)
    if not prefetch:
        yield from map(reader.__getitems__, left)
        return
    is_finalizing = sys.is_finalizing  # a local: globals are gone when the interpreter exits
    threads = ThreadPoolExecutor(prefetch, thread_name_prefix="zindex-batch")
    pending: deque[Future[Any]] = deque()

    def fill() -> None:
        while len(pending) < prefetch and (positions := next(left, None)) is not None:
            pending.append(threads.submit(reader.__getitems__, positions))

    try:
        # The first batch alone: threads should not open the same files, or compile a kernel,
        # concurrently.
        if (first := next(left, None)) is not None:
            batch = reader.__getitems__(first)
            fill()
            yield batch
        while pending:
            batch = pending.popleft().result()
            fill()
            yield batch
    finally:
        if not is_finalizing():  # otherwise Python has joined the threads
            for future in pending:
                future.cancel()
            # Requests to an unreachable store could block the caller for minutes.
            late = wait(pending, close_timeout).not_done
            threads.shutdown(wait=not late)


class WorkerPool:
    """Worker processes, which start with the first batch and persist between iterations.

    Parameters
    ----------
    reader
        Reads one batch; each worker has a copy.
    num_workers
        Processes, > 0.
    prefetch
        Batches prefetched by all workers together.
    pin_memory
        Whether this process copies tensors to page-locked memory.
    context
        How processes start: ``"fork"``, ``"forkserver"``, ``"spawn"``, a multiprocessing context,
        or None for the platform's default; ``"forkserver"`` if this process has used an object
        store, whose clients do not survive a fork.
    """

    def __init__(
        self,
        reader: BatchReader,
        *,
        num_workers: int,
        prefetch: int,
        pin_memory: bool,
        context: Any,
    ) -> None:
        if context is None and not may_fork():
            context = "forkserver"
        self.batches = _Batches()
        self.loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            reader,  # type: ignore[arg-type]
            batch_sampler=self.batches,
            collate_fn=_keep,
            num_workers=num_workers,
            prefetch_factor=max(1, -(-prefetch // num_workers)),
            persistent_workers=True,
            pin_memory=pin_memory,
            multiprocessing_context=context,
            worker_init_fn=_begin_worker,
            # A separate generator, so that seeding workers does not advance the model's generator.
            generator=torch.Generator(),
        )

    def read(self, batches: Iterator[Positions]) -> Iterator[Any]:
        """Return batches in the order of their positions; earlier requests are discarded."""
        self.batches.left = batches
        return iter(self.loader)

    def stop(self) -> None:
        """Stop the processes."""
        # Torch has no public way to stop persistent workers, and a stored traceback may refer to
        # them.
        running, self.loader._iterator = self.loader._iterator, None
        if running is not None:
            running._shutdown_workers()  # type: ignore[attr-defined]


class _Batches:
    """The batch sampler of a ``DataLoader``, replaced before each iteration."""

    def __init__(self) -> None:
        self.left: Iterator[Positions] = iter(())

    def __iter__(self) -> Iterator[Positions]:
        return self.left


def _begin_worker(_: int) -> None:
    exit_with_parent()


def _keep(batch: Any) -> Any:
    """Return a batch unchanged."""
    return batch


def choose_pinning(pin_memory: bool | None) -> bool:
    """Return whether to copy batches to page-locked memory."""
    has_cuda = torch.cuda.is_available()
    if pin_memory and not has_cuda:
        raise ConfigError(
            "pin_memory=True needs CUDA, which torch does not find here; leave it out"
        )
    return has_cuda if pin_memory is None else pin_memory
