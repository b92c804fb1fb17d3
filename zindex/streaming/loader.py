"""A loader of streams, which keeps the state of the delivered batches."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from torch.utils.data import DataLoader, IterableDataset

from zindex.errors import ConfigError, StateMismatchError, check_choice, check_whole
from zindex.io.object_calls import may_fork
from zindex.loading.file_agreement import agree_on_files
from zindex.loading.resharding import is_read_ahead, is_saved_by_trainer
from zindex.loading.stateful_loaders import join_workers
from zindex.processing.collate import mixed_collate
from zindex.samples.collectives import is_distributed
from zindex.streaming.merged_dataset import MergedDataset
from zindex.streaming.mixture_checks import compare_ranks, count_samples
from zindex.streaming.protocols import Sample
from zindex.streaming.state import State, gather_states, merge_states, to_state

#: What the samples of a batch are of.
BatchFrom = Literal["mixture", "source"]


class StreamLoader:
    """Batches of a stream; see `stream_loader`."""

    def __init__(
        self,
        dataset: MergedDataset,
        batch_size: int,
        *,
        num_workers: int = 0,
        collate: Callable[[list[Sample]], Any] = mixed_collate,
        drop_last: bool = False,
        batch_from: BatchFrom = "mixture",
        state: State | Sequence[State] | None = None,
        **settings: Any,
    ) -> None:
        check_whole("batch_size", batch_size, 1)
        check_choice("batch_from", batch_from, get_args(BatchFrom))
        self.dataset = dataset
        batches: Any = {"dataset": dataset, "batch_size": batch_size, "drop_last": drop_last}
        if batch_from == "source":
            _set_samples_per_pick(dataset, batch_size)
            of_sources = SourceBatches(dataset, batch_size, drop_last=drop_last)
            batches = {"dataset": of_sources, "batch_size": None}
        self._make_loader: Callable[[], DataLoader[Any]] = partial(
            DataLoader,
            **batches,
            num_workers=check_whole("num_workers", num_workers, 0),
            collate_fn=_WithState(collate),
            **settings,
        )
        self._loader = self._make_loader()
        self._state: State = {}
        self._changes: State = {}
        if state:
            self.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches that are left of this iteration, or those of the next one."""
        compare_ranks(self.dataset)
        if self._loader.num_workers and not self._loader.multiprocessing_context:
            sources = self.dataset.sources()
            if not may_fork() and any(getattr(s.dataset, "takes_requests", False) for s in sources):
                self._loader.multiprocessing_context = "forkserver"
        is_ahead = is_read_ahead()
        for state, batch in self._loader:
            # With the batch, so that prefetched ones are not counted.
            if is_ahead:
                yield batch
            self._state.update(state | self._changes)
            if not is_ahead:
                yield batch

    def __len__(self) -> int:
        """Return the number of batches of the next iteration; TypeError if it is not known.

        It is that of the whole iteration, also if a state is loaded, as trainers expect it.
        """
        size, (rank, _) = self._loader.batch_size, self.dataset.place
        if size is None:
            raise TypeError("batches of a single source have no known number")
        counts = count_samples(self.dataset, max(1, self._loader.num_workers))[rank]
        # Each worker has a last, shorter batch of its own.
        return int((counts // size if self._loader.drop_last else -(-counts // size)).sum())

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration; see `MergedDataset.set_epoch`."""
        self.dataset.set_epoch(epoch)

    def set_percents(
        self, percents: Mapping[str, float], at: int | None = None, group: Any = None
    ) -> None:
        """Change percents while training; see `MergedDataset.set_percents`.

        Call it on every rank with the same arguments at the same step. The state has the change.
        """
        self._changes = self.dataset.set_percents(percents, at, group, self._state)
        if self._state:
            self._state.update(self._changes)

    def state_dict(self) -> State:
        """Return the state of this rank after the last delivered batch, as JSON values.

        It resumes with the same number of ranks and loader workers. For other numbers, load the
        list of the states of all ranks, or `gather_state`. Lightning and Accelerate, which save the
        state of one rank, get that of all ranks.
        """
        if is_distributed() and self.dataset.place[1] > 1 and is_saved_by_trainer():
            return self.gather_state()
        return dict(self._state)

    def gather_state(self, group: Any = None) -> State:
        """Return the state of all ranks, on every rank: a collective call.

        Parameters
        ----------
        group
            The data-parallel process group; the default group if None.
        """
        return gather_states(self._state, group)

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Resume the next iteration from a state.

        Under ``torch.distributed`` it is a collective call, in which all ranks agree on the files
        that the first rank has, if others were added meanwhile.

        Parameters
        ----------
        state
            A state of `state_dict` or `gather_state`, or of a torchdata ``StatefulDataLoader`` over
            the dataset, or the list of the states of all ranks.

        Raises
        ------
        StateMismatchError
            If it is not a state of these datasets.
        SourceError
            If a rank lacks files of the first one.
        """
        if isinstance(state, Sequence) and not isinstance(state, str):
            state = merge_states(state)
        if not isinstance(state, Mapping):
            raise StateMismatchError(
                f"a state must be a dict, or the list of those of all ranks, got "
                f"{type(state).__name__}; load what state_dict returned"
            )
        sources = [source.dataset for source in self.dataset.sources()]
        agree_on_files(sources, self.dataset.place[1])
        own = join_workers(state)
        if self._loader.persistent_workers:  # which take no later state
            self._loader = self._make_loader()
        self.dataset.set_dataloader_states(own)
        self._state, self._changes = own, {}


class SourceBatches(IterableDataset[list[Sample]]):
    """Batches of a stream, each of samples of one source.

    Parameters
    ----------
    dataset
        Its ``samples_per_pick`` is the batch size.
    batch_size
        Samples of a batch. At the end of a finite source it has fewer.
    drop_last
        Whether such batches are left out.
    """

    def __init__(self, dataset: MergedDataset, batch_size: int, *, drop_last: bool) -> None:
        if _has_function(dataset):
            raise ConfigError(
                "batch_from='source' needs samples of sources, a customized_yield_fn gives others; "
                "leave one of them out"
            )
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Sample]]:
        batch: list[Sample] = []
        for sample in self.dataset:
            if batch and sample["__datasetname__"] != batch[0]["__datasetname__"]:
                if not self.drop_last:
                    yield batch
                batch = []
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch


def _set_samples_per_pick(dataset: MergedDataset, number: int) -> None:
    dataset.samples_per_pick = number
    for nested in dataset.datasets:
        if isinstance(nested, MergedDataset):
            _set_samples_per_pick(nested, number)


def _has_function(dataset: Any) -> bool:
    """Return whether a dataset, or one within it, has a ``customized_yield_fn``."""
    if not isinstance(dataset, MergedDataset):
        return False
    return dataset.customized_yield_fn is not None or any(map(_has_function, dataset.datasets))


class _WithState:
    """Collate function that returns the state of a batch beside it."""

    def __init__(self, collate: Callable[[list[Sample]], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list[Sample]) -> tuple[State, Any]:
        state = to_state(samples)
        for sample in samples:
            sample.pop("__state__", None)
            sample.pop("__states__", None)
        return state, self.collate(samples)


def stream_loader(
    mixture: Any,
    batch_size: int,
    *,
    num_workers: int = 0,
    collate: Callable[[list[Sample]], Any] = mixed_collate,
    drop_last: bool = False,
    batch_from: BatchFrom = "mixture",
    variables: Mapping[str, Any] | None = None,
    dynamic_objs: Mapping[str, Any] | None = None,
    targets: Mapping[str, Any] | None = None,
    allow_imports: Sequence[str] = (),
    state: State | Sequence[State] | None = None,
    **settings: Any,
) -> StreamLoader:
    """Return the batches of a stream for this rank.

    Parameters
    ----------
    mixture
        A `MergedDataset`, or the path of a YAML file for `instantiate_from_yaml`.
    batch_size
        Samples of a batch of this rank.
    num_workers
        Loader workers.
    collate
        Makes a batch of a list of samples, which have no state. torch's ``default_collate`` works
        for samples of equal fields.
    drop_last
        Whether a last, shorter batch of each worker is left out.
    batch_from
        ``"source"``: all samples of a batch are of one source, and the percents are those of
        batches. At the end of a finite source a batch is shorter.
    variables, dynamic_objs, targets, allow_imports
        Of the YAML file; see `instantiate_from_yaml`.
    state
        Resume from this state; see `StreamLoader.load_state_dict`.
    settings
        Further arguments of torch's ``DataLoader``. Without ``multiprocessing_context``, workers
        that read from an object store which this process has used are started by
        ``"forkserver"``, because its clients do not survive a fork.

    Returns
    -------
    loader
        Has ``state_dict`` and ``load_state_dict``, which count delivered batches only,
        ``set_percents`` and ``set_epoch``. Each iteration over it is the next epoch.

    Raises
    ------
    ConfigError
        If a setting is invalid.
    StateMismatchError
        If the state is of other datasets.

    Examples
    --------
    >>> from torch.utils.data import StackDataset
    >>> numbers = StackDataset(number=range(6))
    >>> numbers.name, numbers.percent = "numbers", 1
    >>> loader = stream_loader(MergedDataset([numbers], cyclic=False), 4)
    >>> [len(batch) for batch in loader]
    [4, 2]
    """
    if not isinstance(mixture, MergedDataset):
        from zindex.streaming.configuration.from_yaml import instantiate_from_yaml

        made, is_file = mixture, isinstance(mixture, str | os.PathLike)
        if is_file:
            made = instantiate_from_yaml(
                mixture,
                variables or {},
                dynamic_objs or {},
                targets=targets or {},
                allow_imports=allow_imports,
            )
        if not isinstance(made, MergedDataset):
            given = f"{mixture} describes" if is_file else "got"
            raise ConfigError(
                f"a stream must be a MergedDataset, or the path of a YAML file of one, {given} a "
                f"{type(made).__name__}; make it the only one of the datasets of a MergedDataset, "
                "with a name and a percent"
            )
        mixture = made
    return StreamLoader(
        mixture,
        batch_size,
        num_workers=num_workers,
        collate=collate,
        drop_last=drop_last,
        batch_from=batch_from,
        state=state,
        **settings,
    )
