"""The loader: batches of a run, read ahead, for any number of ranks, resumable at any step."""

import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, get_args

import torch

from zindex.config import RunConfig
from zindex.datasets.run_datasets import open_run
from zindex.errors import ConfigError
from zindex.loading.collate import collate as join_samples
from zindex.loading.place import find_place
from zindex.loading.reading import BatchReader, WorkerPool, read_ahead, start_workers
from zindex.loading.sampler import BatchPlan, Cursor, Tail, count_samples
from zindex.loading.state import dataset_fingerprint

logger = logging.getLogger(__name__)

SplitName = Literal["train", "valid", "test"]

# Batches read ahead: by threads in all, by processes each.
_THREADS_AHEAD, _WORKER_AHEAD = 4, 2
# What forked processes found and must not touch.
_of_parents: list[Any] = []


class Loader:
    """Batches of this rank, and where all ranks together stand.

    An iterable of batches with ``state_dict()`` and ``load_state_dict()``, as
    ``torch.distributed.checkpoint``, Lightning and Accelerate look for them. `loader` makes one.

    A loader of a run (``num_epochs`` or ``num_samples``) goes on where the trainer stands whenever
    it is iterated, after a ``break`` too, and ends once: when all is consumed, iterating it again
    gives nothing. One with ``num_epochs=None`` makes a pass over the dataset in each iteration;
    only after ``load_state_dict()`` the pass that was under way is finished first. All iterators of
    a loader share its place.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    plan
        Which samples this rank takes.
    num_workers, prefetch, multiprocessing_context, pin_memory, collate
        As for `loader`.
    """

    def __init__(
        self,
        dataset: Any,
        plan: BatchPlan,
        *,
        num_workers: int = 0,
        prefetch: int | None = None,
        multiprocessing_context: Any = None,
        pin_memory: bool | None = None,
        collate: Callable[[Any], Any] | None = None,
    ) -> None:
        self.dataset = dataset
        self.plan = plan
        self.num_workers = num_workers
        is_ours = isinstance(getattr(dataset, "fingerprint", None), str)
        self.prefetch = _choose_prefetch(prefetch, num_workers, is_ours=is_ours)
        self.pin_memory = _choose_pinning(pin_memory)
        if multiprocessing_context is not None and not num_workers:
            raise ConfigError(
                "multiprocessing_context must come with num_workers > 0, got "
                f"{multiprocessing_context!r} and no workers; leave it out"
            )
        self._context = multiprocessing_context
        # Workers hand their batches to this process, which pins them.
        self._reader = BatchReader(
            dataset, collate or join_samples, self.pin_memory and not num_workers
        )
        if plan.tail == "pad" and not (is_ours and collate is None):
            self._reader.check_padding()
        self._cursor = Cursor(plan)
        self._workers: WorkerPool | None = None
        self._batches: Iterator[Any] | None = None
        self._place = (0, 0)
        self._process = os.getpid()

    def __len__(self) -> int:
        """Return the batches of the whole run, or of one pass, wherever the trainer stands."""
        return self.plan.count_steps(0, self.plan.pass_length)

    @property
    def consumed_samples(self) -> int:
        """Samples that all ranks together have been handed, padding not counted."""
        return self._cursor.consumed_samples

    @property
    def epoch(self) -> int:
        """Times that the dataset was passed over in full."""
        return self._cursor.state.epoch

    @property
    def num_batches_left(self) -> int:
        """Batches until the run, or the pass under way, ends."""
        return self.plan.count_steps(self._cursor.consumed_samples, self._cursor.stop)

    def __iter__(self) -> Iterator[Any]:
        # A generator, so that all of this happens at the first batch: trainers may make iterators
        # that they do not use.
        self._cursor.begin()
        if self._cursor.peek() is None:
            logger.warning(
                "no batch is left of this run, %d of its %d samples are consumed: to pass over the "
                "dataset at every iteration, for example for validation, give num_epochs=None",
                self.consumed_samples,
                self.plan.pass_length,
            )
        while (step := self._cursor.peek()) is not None:
            batch = self._take()
            self._cursor.advance(step)
            self._place = (self._cursor.consumed_samples, self._cursor.stop)
            yield batch
        if self.plan.num_samples is not None:
            self.close()

    def _take(self) -> Any:
        """Return the batch of the next step."""
        self._leave_parent()
        try:
            place = (self._cursor.consumed_samples, self._cursor.stop)
            if self._batches is None or self._place != place:
                self._batches = self._open()
            return next(self._batches)
        except BaseException as error:
            # What was read ahead is read again, so that the batch that failed is not skipped.
            self.close()
            if isinstance(error, Exception):
                error.add_note(f"while reading the batch after {self.consumed_samples:,} samples")
            raise

    def _open(self) -> Iterator[Any]:
        """Return the batches from where the trainer stands, read ahead."""
        self._stop_reading()
        ahead = self.plan.plan_batches(self._cursor.consumed_samples, self._cursor.stop)
        if not self.num_workers:
            return read_ahead(self._reader, ahead, self.prefetch)
        if self._workers is None:
            self._workers = start_workers(
                self._reader,
                num_workers=self.num_workers,
                prefetch=self.prefetch,
                pin_memory=self.pin_memory,
                context=self._context,
            )
        return self._workers.read(ahead)

    def state_dict(self) -> dict[str, Any]:
        """Return where all ranks stand, equal on each of them at the same step.

        Returns
        -------
        state
            ``version``, ``fingerprint``, ``consumed_samples`` and ``epoch``: plain values. Batches
            count once they are handed over, not when they are read ahead.
        """
        return self._cursor.state.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where all ranks stood; an iteration that is under way goes on from there.

        Parameters
        ----------
        state_dict
            What ``state_dict()`` returned, with any number of ranks, workers and micro-batches.

        Raises
        ------
        StateMismatchError
            If the state belongs to other samples; the loader stays where it is.
        """
        self._cursor.load(state_dict)

    def close(self) -> None:
        """Stop threads and worker processes; iterating the loader starts them again."""
        self._leave_parent()
        self._stop_reading()
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.stop()

    def _leave_parent(self) -> None:
        """Let threads and workers be if this process was forked: it has none, they are another's.

        They are kept, since whoever deletes them stops them.
        """
        if self._process != os.getpid():
            _of_parents.append((self._batches, self._workers))
            self._batches = self._workers = None
            self._process = os.getpid()

    def _stop_reading(self) -> None:
        """Forget what was read ahead."""
        batches, self._batches = self._batches, None
        if isinstance(batches, Generator):
            batches.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def loader(
    run: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | Any,
    tokenizer: Any = None,
    *,
    micro_batch_size: int,
    split: SplitName = "train",
    data_parallel_rank: int | None = None,
    data_parallel_size: int | None = None,
    num_epochs: int | None = 1,
    num_samples: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    tail: Tail = "drop_last",
    num_workers: int = 0,
    prefetch: int | None = None,
    multiprocessing_context: Any = None,
    pin_memory: bool | None = None,
    collate: Callable[[Any], Any] | None = None,
    state: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Loader:
    """Return the batches of a run, as every rank of a training job takes its part of them.

    Parameters
    ----------
    run
        A run: its YAML file, its mapping or a ``RunConfig``, opened as ``open_run`` does, what is
        not built yet included. Or a map-style dataset, whatever it is made of.
    tokenizer
        The tokenizer of the run.
    micro_batch_size
        Samples of this rank in each batch, the same on all ranks.
    split
        The split of the run.
    data_parallel_rank, data_parallel_size
        This rank's part; by default of ``torch.distributed``, or of ``torchrun``'s environment.
    num_epochs
        Passes over the dataset. None makes one in every iteration, as validation needs it, and
        trainers that count epochs themselves.
    num_samples
        Samples of the run, in place of ``num_epochs``.
    shuffle, seed
        Give each pass an order of its own. The samples of a run are in a shuffled order already,
        and without this every pass has that order.
    tail
        What becomes of the last samples if they are too few for all ranks: ``drop_last``, ``pad``
        or ``exact``, as ``ElasticSampler`` says.
    num_workers
        Processes that read. Without any, threads of this process do, which suits datasets of
        zindex: their kernels and their reads hold no lock.
    prefetch
        Batches read ahead of the trainer, all threads or workers together. By default 4 by threads
        and 2 by each worker; other datasets than ours are read without threads, since they may
        not stand them.
    multiprocessing_context
        How workers start: ``"fork"``, ``"forkserver"``, ``"spawn"`` or a context. By default as on
        this platform, but never by a fork of a process that has used an object store.
    pin_memory
        Copy batches to page-locked memory; by default where there is CUDA.
    collate
        Makes a batch of what the dataset gives for several positions; by default their tensors
        stacked, which ours give without a copy.
    state
        Where to begin: what ``state_dict()`` returned.
    settings
        Further settings of ``GPTDatasetConfig``. Without ``create_attention_mask=True`` there are
        no attention masks.

    Returns
    -------
    loader
        The batches.

    Raises
    ------
    ConfigError, PlanError
        If a setting is wrong, or there is not one step.
    StateMismatchError
        If the state belongs to other samples.
    ZindexError
        If the run cannot be opened.
    """
    dataset = _open_dataset(run, tokenizer, split, settings)
    rank, size = find_place(data_parallel_rank, data_parallel_size)
    num_positions = len(dataset)
    plan = BatchPlan(
        num_positions=num_positions,
        num_samples=count_samples(num_positions, num_epochs, num_samples),
        micro_batch_size=micro_batch_size,
        data_parallel_rank=rank,
        data_parallel_size=size,
        tail=tail,
        shuffle=shuffle,
        seed=seed,
        fingerprint=dataset_fingerprint(dataset),
        ancestors=getattr(dataset, "previous_fingerprints", ()),
    )
    made = Loader(
        dataset,
        plan,
        num_workers=num_workers,
        prefetch=prefetch,
        multiprocessing_context=multiprocessing_context,
        pin_memory=pin_memory,
        collate=collate,
    )
    if state is not None:
        made.load_state_dict(state)
    return made


def _open_dataset(run: Any, tokenizer: Any, split: str, settings: dict[str, Any]) -> Any:
    """Return the dataset to load from."""
    if split not in get_args(SplitName):
        raise ConfigError(
            f"split must be one of {', '.join(get_args(SplitName))}, got {split!r}; choose one"
        )
    if not isinstance(run, RunConfig | Mapping | str | os.PathLike):
        if not (hasattr(run, "__len__") and hasattr(run, "__getitem__")):
            raise ConfigError(
                "a loader needs a run or a dataset with a length, got "
                f"{type(run).__name__}; give the run's YAML file"
            )
        if settings or tokenizer is not None:
            raise ConfigError(
                "a tokenizer and settings of GPTDatasetConfig must come with a run, got a dataset "
                f"and {sorted(settings) or 'a tokenizer'}; set them where the dataset is made"
            )
        return run
    if tokenizer is None:
        raise ConfigError("a loader of a run needs a tokenizer, got None; give the run's tokenizer")
    found = open_run(run, tokenizer, **({"create_attention_mask": False} | settings))
    if split not in found:
        raise ConfigError(
            f"split must be one that the run has samples of, {', '.join(found)}, got {split!r}; "
            "give it a share in the run's split"
        )
    dataset = found[split]
    if not isinstance(dataset, list):
        return dataset
    if len(dataset) > 1:
        raise ConfigError(
            f"a loader needs one dataset, got a run of {len(dataset)} that are not blended; give "
            "them weights, set blend: sizes, or choose one of open_run(...)"
        )
    return dataset[0]


def _choose_prefetch(prefetch: int | None, num_workers: int, *, is_ours: bool) -> int:
    """Return how many batches are read ahead."""
    for name, value in (("num_workers", num_workers), ("prefetch", prefetch or 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be a whole number of at least 0, got {value!r}")
    if prefetch is not None:
        return prefetch
    if num_workers:
        return _WORKER_AHEAD * num_workers
    return _THREADS_AHEAD if is_ours else 0


def _choose_pinning(pin_memory: bool | None) -> bool:
    """Return whether batches are copied to page-locked memory."""
    has_cuda = torch.cuda.is_available()
    if pin_memory and not has_cuda:
        raise ConfigError(
            "pin_memory=True needs CUDA, which torch does not find here; leave it out"
        )
    return has_cuda if pin_memory is None else pin_memory
