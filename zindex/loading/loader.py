"""Prefetched batches of a run for each rank, resumable at any step on any number of ranks."""

import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, get_args

from zindex.config import RunConfig
from zindex.datasets.run_datasets import open_run
from zindex.errors import ConfigError, check_choice, check_whole
from zindex.loading.collate import collate as stack_samples
from zindex.loading.data_parallel import find_place
from zindex.loading.edited_runs import LoadedRun, count_edits
from zindex.loading.hf_format import HFDataset, check_hf
from zindex.loading.order import SampleOrder
from zindex.loading.reading import BatchReader, WorkerPool, choose_pinning, read_ahead
from zindex.loading.run_split import choose_dataset
from zindex.loading.sampler import BATCH_TAILS, BatchPlan, Cursor, count_samples
from zindex.loading.state import dataset_fingerprint
from zindex.loading.token_batches import TokenBatchPlan, TokenOrder, sizes_of
from zindex.plan.tail import Tail, TailName, parse_tail
from zindex.plan.token_batches import TokenBudget

logger = logging.getLogger(__name__)

SplitName = Literal["train", "valid", "test"]
FormatName = Literal["megatron", "hf"]

# Prefetched batches: of all threads together, and of each worker process.
_THREADS_AHEAD, _WORKER_AHEAD = 4, 2
# Threads and workers of parent processes, kept alive in forked children.
_of_parents: list[Any] = []


class ReadSettings(TypedDict, total=False):
    """How a `Loader` reads batches; see `loader`."""

    num_workers: int
    prefetch: int | None
    multiprocessing_context: Any
    pin_memory: bool | None
    collate: Callable[[Any], Any] | None


class Loader:
    """Batches of this rank, with the state of all ranks; created by `loader`.

    It is an iterable with ``state_dict()`` and ``load_state_dict()``, as
    ``torch.distributed.checkpoint``, Lightning and Accelerate expect.

    The loader of a run (``num_epochs`` or ``num_samples``) resumes at the current position in each
    iteration, also after a ``break``, and yields nothing once the run is consumed. With
    ``num_epochs=None``, each iteration is a pass over the dataset, but the first one after
    ``load_state_dict()`` finishes the interrupted pass. All iterators of a loader share its
    position.

    Parameters
    ----------
    dataset
        Any map-style dataset.
    plan
        Samples of this rank.
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
        if any(
            getattr(one, "is_sequential", False) for one in getattr(dataset, "datasets", [dataset])
        ):
            raise ConfigError(
                "samples of a loader must not depend on the reads before them, as with fim_draws="
                "'sequential'; use torch's DataLoader with Megatron's samplers, or 'keyed'"
            )
        self.dataset = dataset
        self.plan = plan
        self.num_workers = num_workers
        is_ours = isinstance(getattr(dataset, "fingerprint", None), str)
        self.prefetch = _choose_prefetch(prefetch, num_workers, is_ours=is_ours)
        self.pin_memory = choose_pinning(pin_memory)
        if multiprocessing_context is not None and not num_workers:
            raise ConfigError(
                "multiprocessing_context must come with num_workers > 0, got "
                f"{multiprocessing_context!r} and no workers; leave it out"
            )
        self._context = multiprocessing_context
        # Batches of workers are pinned in this process.
        self._reader = BatchReader(
            dataset, collate or stack_samples, self.pin_memory and not num_workers
        )
        if plan.tail is Tail.PAD and not (is_ours and collate is None):
            self._reader.check_padding()
        #: The run, if it is one; set by `loader`.
        self.run: LoadedRun | None = None
        self._cursor = Cursor(plan)
        self._workers: WorkerPool | None = None
        self._batches: Iterator[Any] | None = None
        # Position of the next prefetched batch.
        self._position: tuple[int, int | None] | None = None
        self._process = os.getpid()

    def __len__(self) -> int:
        """Return the number of batches of the whole run, or of one pass."""
        return self.plan.count_steps(0, self.plan.pass_length)

    @property
    def consumed_samples(self) -> int:
        """Samples delivered to all ranks together, without padding."""
        return self._cursor.consumed_samples

    @property
    def epoch(self) -> int:
        """Completed passes over the dataset."""
        return self._cursor.state.epoch

    @property
    def num_batches_left(self) -> int:
        """Batches left in the run, or in the current pass."""
        return self.plan.count_steps(self._cursor.consumed_samples, self._cursor.stop)

    def __iter__(self) -> Iterator[Any]:
        # A generator, so that nothing happens before the first batch: trainers may create iterators
        # without using them.
        self._cursor.begin()
        if self._cursor.peek() is None:
            logger.warning(
                f"this run has no batches left: {self.consumed_samples} of its "
                f"{self.plan.pass_length} samples are consumed; to iterate over the dataset again "
                "each time, for example for validation, set num_epochs=None"
            )
        while (step := self._cursor.peek()) is not None:
            batch = self._take()
            # A batch counts if and only if it is delivered. torch raises the death of a worker from
            # a signal handler, which CPython runs at calls and jumps, and there are none from here
            # on.
            self._position = step.consumed_samples, self._cursor.stop
            self._cursor.consumed_samples = step.consumed_samples
            yield batch
        if self.plan.num_samples is not None:
            self.close()

    def _take(self) -> Any:
        """Return the batch of the next step."""
        self._leave_parent()
        try:
            position = (self._cursor.consumed_samples, self._cursor.stop)
            if self._batches is None or self._position != position:
                self._batches = self._open()
            self._position = None  # until the batch is counted
            return next(self._batches)
        except BaseException as error:
            # Prefetched batches are read again, so that the failed batch is not skipped.
            self.close()
            if isinstance(error, Exception):
                error.add_note(f"while reading the batch after {self.consumed_samples:,} samples")
            raise

    def _open(self) -> Iterator[Any]:
        """Return prefetched batches from the current position."""
        self._stop_reading()
        ahead = self.plan.plan_batches(self._cursor.consumed_samples, self._cursor.stop)
        if not self.num_workers:
            return read_ahead(self._reader, ahead, self.prefetch)
        if self._workers is None:
            self._workers = WorkerPool(
                self._reader,
                num_workers=self.num_workers,
                prefetch=self.prefetch,
                pin_memory=self.pin_memory,
                context=self._context,
            )
        return self._workers.read(ahead)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, equal on all ranks at the same step.

        Returns
        -------
        state
            ``version``, ``fingerprint``, ``consumed_samples`` and ``epoch``: plain values. Batches
            count when they are delivered, not when they are prefetched.
        """
        return self._cursor.state.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state; a running iteration continues from it.

        Parameters
        ----------
        state_dict
            The result of ``state_dict()``, with any number of ranks and workers and any batch size.

        Raises
        ------
        StateMismatchError
            If the state belongs to other samples; the loader is then unchanged.
        """
        self._cursor.load(state_dict)

    def refresh(self) -> bool:
        """Apply the edits that were made since the run was opened, without losing the position.

        Under ``torch.distributed`` a collective call: call it on every rank at the same step.
        Without it, all ranks must call it before the position of the edit. A running iteration
        continues with the edited run; see `zindex.edit`.

        Returns
        -------
        edited
            Whether there was an edit.

        Raises
        ------
        ConfigError
            If it is not the loader of a run.
        StateMismatchError
            If the position of an edit has been passed; the loader is then unchanged.
        """
        run = self._opened_run
        dataset = run.open_edited()
        if count_edits(dataset) == count_edits(self.dataset):
            return False
        plan = run.make_plan(dataset)
        cursor = Cursor(plan)
        cursor.load(self.state_dict())
        self.close()
        self.dataset, self.plan, self._cursor = dataset, plan, cursor
        self._reader = replace(self._reader, dataset=dataset)
        return True

    def reweight(self, weights: Mapping[str, float], at: int | None = None) -> None:
        """Change weights of the run while training: an edit at this position, and `refresh`.

        A collective call, with the same arguments on every rank at the same step.

        Parameters
        ----------
        weights
            New weights by dataset (its short name or path), in the scale of the unchanged ones;
            see `zindex.edit`.
        at
            Position of the edit; by default the consumed samples, so that the next batch has the
            new weights.

        Raises
        ------
        ZindexError
            If the edit is refused, as by `zindex.edit`.
        """
        self._opened_run.reweight(weights, self.consumed_samples if at is None else at)
        self.refresh()

    @property
    def _opened_run(self) -> LoadedRun:
        if self.run is None:
            raise ConfigError(
                "a loader must be of a run to be edited, got one of a dataset; open the run's YAML "
                "file with zindex.loader"
            )
        return self.run

    def close(self) -> None:
        """Stop threads and worker processes; the next iteration restarts them."""
        self._leave_parent()
        self._stop_reading()
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.stop()

    def _leave_parent(self) -> None:
        """After a fork, drop the threads and workers of the parent without stopping them.

        The objects are kept alive, because their finalizers would stop them.
        """
        if self._process != os.getpid():
            _of_parents.append((self._batches, self._workers))
            self._batches = self._workers = None
            self._process = os.getpid()

    def _stop_reading(self) -> None:
        """Discard prefetched batches."""
        batches, self._batches = self._batches, None
        if isinstance(batches, Generator):
            batches.close()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def loader(
    run: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | Any,
    tokenizer: Any = None,
    *,
    micro_batch_size: int | TokenBudget,
    split: SplitName = "train",
    data_parallel_rank: int | None = None,
    data_parallel_size: int | None = None,
    num_epochs: int | None = 1,
    num_samples: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
    tail: Tail | TailName = Tail.DROP_LAST,
    num_workers: int = 0,
    prefetch: int | None = None,
    multiprocessing_context: Any = None,
    pin_memory: bool | None = None,
    collate: Callable[[Any], Any] | None = None,
    state: Mapping[str, Any] | None = None,
    format: FormatName = "megatron",
    **settings: Any,
) -> Loader:
    """Return the batches of a run for this rank of a training job.

    Parameters
    ----------
    run
        A run: its YAML file, mapping or ``RunConfig``, opened as by ``open_run``, which also builds
        missing indices. Or any map-style dataset.
    tokenizer
        The tokenizer of the run: a path, a Megatron tokenizer, or an object of tokenizers,
        transformers, tiktoken or sentencepiece. None uses the one kept in the corpora.
    micro_batch_size
        Samples of this rank in each batch, the same on all ranks; or a
        `zindex.plan.token_batches.TokenBudget`, for datasets with ``sample_sizes``.
    split
        The split of the run.
    data_parallel_rank, data_parallel_size
        This rank; by default of ``torch.distributed``, or of ``torchrun``'s environment.
    num_epochs
        Passes over the dataset. None makes one pass per iteration, for validation and for trainers
        that count epochs themselves.
    num_samples
        Samples of the run, in place of ``num_epochs``.
    shuffle, seed
        Shuffle each pass. The samples of a run are already shuffled; without this setting every
        pass has the same order.
    tail
        How to treat a last step that is not full: ``drop_last``, ``pad`` or ``exact``; see
        `zindex.plan.tail.Tail`.
    num_workers
        Worker processes. With 0, threads of this process read, which suits datasets of zindex:
        their kernels and reads release the GIL.
    prefetch
        Batches prefetched by all threads or workers together. By default 4 with threads, and 2 per
        worker; other datasets are read without threads, as they may not be thread-safe.
    multiprocessing_context
        Start method of workers: ``"fork"``, ``"forkserver"``, ``"spawn"`` or a context. Defaults to
        the platform's, but never forks after this process has used an object store.
    pin_memory
        Copy batches to page-locked memory; by default if CUDA is available.
    collate
        Collates samples into a batch; by default stacks their tensors, without a copy for datasets
        of zindex.
    state
        State to resume from, as ``state_dict()`` returned it.
    format
        Names and labels of the samples: ``"megatron"``, or ``"hf"`` for ``input_ids``, ``labels``
        and ``attention_mask`` as Hugging Face models expect them; see
        `zindex.loading.hf_format.HFDataset`. The state is the same.
    settings
        Further settings of ``GPTDatasetConfig``. Attention masks need
        ``create_attention_mask=True``.

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
    check_choice("format", format, get_args(FormatName))
    tail = parse_tail(tail, BATCH_TAILS)
    if format == "hf":
        check_hf(tail, settings)
    rank, size = find_place(data_parallel_rank, data_parallel_size)

    def open_dataset() -> Any:
        dataset = _open_dataset(run, tokenizer, split, settings)
        return HFDataset(dataset) if format == "hf" else dataset

    def make_plan(dataset: Any) -> BatchPlan:
        num_positions = len(dataset)
        order = SampleOrder(
            num_positions, "keyed" if shuffle else None, seed, dataset_fingerprint(dataset)
        )
        if isinstance(micro_batch_size, TokenBudget):
            batches = TokenOrder(order, sizes_of(dataset), micro_batch_size)
            return TokenBatchPlan(batches, num_epochs, rank, size, tail, num_samples)
        return BatchPlan(
            order,
            count_samples(num_positions, num_epochs, num_samples),
            micro_batch_size,
            rank,
            size,
            tail,
            ancestors=getattr(dataset, "previous_fingerprints", ()),
        )

    dataset = open_dataset()
    made = Loader(
        dataset,
        make_plan(dataset),
        num_workers=num_workers,
        prefetch=prefetch,
        multiprocessing_context=multiprocessing_context,
        pin_memory=pin_memory,
        collate=collate,
    )
    if dataset is not run:
        made.run = LoadedRun(run, split, size, open_dataset, make_plan)
    if state is not None:
        made.load_state_dict(state)
    return made


def _open_dataset(run: Any, tokenizer: Any, split: str, settings: dict[str, Any]) -> Any:
    """Return the dataset to load from."""
    check_choice("split", split, get_args(SplitName))
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
    found = open_run(run, tokenizer, **({"create_attention_mask": False} | settings))
    return choose_dataset(found, split)


def _choose_prefetch(prefetch: int | None, num_workers: int, *, is_ours: bool) -> int:
    """Return the prefetch depth."""
    check_whole("num_workers", num_workers, 0)
    if prefetch is not None:
        return check_whole("prefetch", prefetch, 0)
    return _WORKER_AHEAD * num_workers or (_THREADS_AHEAD if is_ours else 0)
