"""Mix datasets into one stream that worker slots share and that resumes exactly."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from zindex.errors import ConfigError, StateMismatchError, check_choice
from zindex.loading.data_parallel import find_place
from zindex.loading.sampler import check_ranks
from zindex.loading.worker_lifetime import exit_with_parent
from zindex.plan.settings import check_whole
from zindex.plan.tail import Tail, TailName, parse_tail
from zindex.processing.collate import refuse_default_collate
from zindex.streaming import resuming
from zindex.streaming.even_slots import EvenStream
from zindex.streaming.mixed_streams import MixedStream, Stream, YieldFunction, YieldStream
from zindex.streaming.mixing import CogdataMixing, ExactMixing, Mixing
from zindex.streaming.protocols import Sample, find_fault
from zindex.streaming.resharding import refuse_resharding
from zindex.streaming.source_streams import open_source
from zindex.streaming.sources import StreamSource, describe, is_streaming, known_length
from zindex.streaming.state import LoadedState, State, digest, load_state, slot_state
from zindex.streaming.worker_slots import Head, StreamOrigin, StreamStart, WorkerSlot

# Every sample's state begins with a Head.
default_collate_fn_map[Head] = refuse_default_collate
_MAX_WORKERS = 1022
# Earlier iterations of which a trainer's dict may still have entries.
_MAX_ANCESTORS = 64
_MIXINGS: dict[str, type[Mixing]] = {"exact": ExactMixing, "cogdata_mix": CogdataMixing}


class MergedDataset(torch.utils.data.IterableDataset[Sample]):
    """A weighted stream of the samples of several datasets.

    Parameters
    ----------
    datasets
        Map-style datasets (``__len__`` and ``__getitem__``), partitioned ones
        (`zindex.streaming.protocols.PartitionedDataset`) and other ``MergedDataset``. Each has an
        attribute ``percent``, a number >= 0 of which only the ratios matter, and a ``name`` that is
        unique in the whole tree (a ``MergedDataset`` needs none). A dataset of percent 0 is not
        read.
    cyclic
        Whether an exhausted dataset starts its next epoch, so that the stream is infinite.
        Otherwise each dataset gives one epoch, and the stream ends with the last one. Each
        iteration over the dataset has another order; see `set_epoch`.
    shuffle_unstreaming_subsets
        Order of map-style datasets: True for another permutation in each epoch, False for the
        order of the dataset, ``"cogdata_block2m"`` for cogdata's.
    shuffle_streaming_subsets
        Order of partitioned datasets: True for another permutation of parts in each epoch and a
        shuffle buffer for their samples, False for the order of the files, ``"cogdata_urlbuffer"``
        for cogdata's, which shares whole files.
    seed
        >= 0. Every order depends on the seed, the dataset's name and the epoch.
    customized_yield_fn
        Called with an iterator over mixed samples, it yields other samples (dicts). It is called
        again every ``yield_segment`` samples, and must yield buffered samples when its input ends.
    mixing
        ``"exact"`` keeps the number of samples of each dataset within one of its share at all
        times, in each worker slot and nearly always over all of them
        (`zindex.streaming.mixing.ExactMixing`); ``"cogdata_mix"`` is cogdata's order.
    yield_segment
        Samples per call of the yield function, which are reread on resuming. A resumed run keeps
        this number until its ranks or workers change.
    stop_on_first
        With ``cyclic=False``: end with the first exhausted dataset.
    samples_per_pick
        Adjacent samples of one dataset; 1 mixes best. Nested datasets should have the same number.
    tail
        With ``cyclic=False``: ``"pad"`` and ``"drop_last"`` give every worker slot, and therefore
        every rank and batch, equally many samples; see `zindex.plan.tail.Tail`. The numbers of
        worker slots differ by one unit of each source at most. Padding is a copy of the first
        sample with ``__padding__`` True and a zero ``loss_mask``, if it has one. Of nested datasets
        the setting of the outermost applies.

    Raises
    ------
    ConfigError
        If a dataset is of another type, lacks a name or a percent, or its name is not unique, or
        a tail needs the number of samples, which is not known.

    Notes
    -----
    Each sample is a dict of its dataset's fields and ``__datasetname__``, ``__dprank__``,
    ``__workerid__``, ``__seed__``, ``__epoch__``, ``__state__``, and ``__url__`` and ``__key__`` or
    ``__index__``. A sample that is no dict becomes ``{"data": sample}``. Outputs of a
    ``customized_yield_fn`` have ``__states__``.

    Source: the interface is that of ``cogdata.streaming``.
    """

    name = ""
    percent: float | None = None

    def __init__(
        self,
        datasets: Sequence[Any],
        cyclic: bool = True,
        shuffle_unstreaming_subsets: bool | Literal["cogdata_block2m"] = True,
        shuffle_streaming_subsets: bool | Literal["cogdata_urlbuffer"] = True,
        seed: int = 0,
        customized_yield_fn: YieldFunction | None = None,
        *,
        mixing: Literal["exact", "cogdata_mix"] = "exact",
        yield_segment: int = 1024,
        stop_on_first: bool = False,
        tail: Tail | TailName = Tail.EXACT,
        samples_per_pick: int = 1,
    ) -> None:
        self.datasets = list(datasets)
        self.cyclic, self.seed = cyclic, check_whole("seed", seed, 0)
        self.customized_yield_fn = customized_yield_fn
        self.yield_segment = check_whole("yield_segment", yield_segment, 1)
        self.stop_on_first = stop_on_first
        check_choice("cyclic", cyclic, (True, False))
        check_choice("stop_on_first", stop_on_first, (True, False))
        self._item_order = _choose_order(
            "shuffle_unstreaming_subsets", shuffle_unstreaming_subsets, "cogdata_block2m"
        )
        self._part_order = _choose_order(
            "shuffle_streaming_subsets", shuffle_streaming_subsets, "cogdata_urlbuffer"
        )
        check_choice("mixing", mixing, _MIXINGS)
        self.mixing = mixing
        # Shared with loader workers: the number of the next iteration, and how many iterations the
        # main process and each worker have begun since that was set.
        self._iterations = torch.zeros(2 + _MAX_WORKERS, dtype=torch.int64)
        self._iterations.share_memory_()  # type: ignore[no-untyped-call]
        self._place: tuple[int, int] | None = None
        self._state: State | None = None
        self._from_url_level = False
        # The stream that this process iterates over, and its start.
        self._running: tuple[Stream, StreamStart] | None = None
        self.samples_per_pick = check_whole("samples_per_pick", samples_per_pick, 1)
        self.tail = parse_tail(tail, (Tail.EXACT, Tail.PAD, Tail.DROP_LAST))
        if self.tail is not Tail.EXACT and (cyclic or stop_on_first or customized_yield_fn):
            raise ConfigError(
                f"tail={self.tail.value!r} needs a finite stream of a known number of samples; set "
                "cyclic=False, and neither stop_on_first nor customized_yield_fn"
            )
        self._check_datasets()

    def _check_datasets(self) -> None:
        if not self.datasets:
            raise ConfigError("a MergedDataset must have datasets, got none; give at least one")
        for number, dataset in enumerate(self.datasets):
            fault = find_fault(dataset)
            if fault is not None:
                raise ConfigError(
                    f"dataset {number} ({describe(dataset)}) must have {fault[1]}, or leave it out"
                )
        percents = [dataset.percent for dataset in self.datasets]
        if not any(percents) or (self.mixing == "cogdata_mix" and not all(percents)):
            raise ConfigError(
                "one dataset of a mixture must have a percent > 0, and with mixing='cogdata_mix' "
                f"all, got {percents}; set the attribute percent"
            )
        names = [source.name for source in self.sources()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"the names of all datasets must differ, {twice[0]!r} came {names.count(twice[0])} "
                "times; states are kept by name: rename all but one"
            )

    def sources(self, *, read: bool = False) -> list[StreamSource]:
        """Return all sources of this dataset and of nested ones, or those of percent > 0."""
        found: list[StreamSource] = []
        for dataset in self.datasets:
            if isinstance(dataset, MergedDataset):
                found += dataset.sources(read=read) if dataset.percent or not read else []
            elif dataset.percent or not read:
                found.append(self._make_source(dataset))
        return found

    def _make_source(self, dataset: Any) -> StreamSource:
        order = self._part_order if is_streaming(dataset) else self._item_order
        return StreamSource(dataset.name, dataset, self.seed, self.cyclic, order).check()

    def set_data_parallel(self, dp_size: int, dp_rank: int) -> None:
        """Set the data-parallel rank of this process.

        By default it is determined as in ``zindex.loader``: from ``torch.distributed`` or the
        environment of ``torchrun``. Set it if several processes read the same data, as in a
        tensor-parallel group.

        Parameters
        ----------
        dp_size, dp_rank
            Number of data-parallel ranks, and the rank of this process.

        Raises
        ------
        ConfigError
            If the rank is out of range.
        """
        self._place = check_ranks(dp_rank, dp_size, ("dp_rank", "dp_size"))

    def set_dataloader_states(
        self, dataloader_states: State | None, reload_from_url_level: bool = False
    ) -> None:
        """Resume the next iterations from a state, also in loader workers.

        Parameters
        ----------
        dataloader_states
            The union of `to_state` of all delivered samples: of this rank alone if the number of
            ranks and loader workers is the same, or merged by `merge_states`. Empty or None starts
            from the first sample. Cogdata's orders also accept a state in cogdata's own form.
        reload_from_url_level
            Reread partly read parts from their first sample. Needed if the samples of a part have
            changed, for instance with another sequence length; delivered samples of these parts are
            repeated.

        Raises
        ------
        StateMismatchError
            If the state belongs to other datasets.
        """
        self._check_state(dataloader_states, reload_from_url_level)
        self._state = dataloader_states or None
        self._from_url_level = reload_from_url_level
        self._start_at(self._first_iteration)

    def state_dict(self) -> State:
        """Return the state of this process after the last sample that it has yielded.

        In a loader worker, where torchdata's ``StatefulDataLoader`` calls it, it is that of the
        worker alone, for as many ranks and workers; `zindex.stream_loader` has states for others.
        """
        if self._running is None:
            return dict(self._state or {})
        stream, start = self._running
        return slot_state(start, stream.entries())

    def load_state_dict(self, state: State) -> None:
        """Resume the next iteration of this process from a state of `state_dict`.

        Raises
        ------
        StateMismatchError
            If the state belongs to other datasets.
        """
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            self.set_dataloader_states(state)
            return
        self._check_state(state, from_url_level=False)
        self._state, self._from_url_level = state or None, False
        # Other workers load theirs at their own times.
        self._iterations[0], self._iterations[2 + worker.id] = self._first_iteration, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration, which determines its order.

        Without it, each iteration over the dataset has the next number. A loaded state that is of
        that iteration, and has not been used, keeps its position.

        Parameters
        ----------
        epoch
            Number of the iteration, >= 0. With ``cyclic=False``, an iteration is an epoch.
        """
        if check_whole("epoch", epoch, 0) != self._first_iteration or self._iterations[1:].any():
            self._state = None
        self._start_at(epoch)

    def _start_at(self, iteration: int) -> None:
        self._iterations.zero_()
        self._iterations[0] = iteration

    @property
    def _first_iteration(self) -> int:
        """Number of the iteration that the loaded state is of; 0 without one."""
        if self._state is None or resuming.is_of_cogdata(self._state):
            return 0
        return load_state(self._state).origin.iteration

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with the rank, which a loader worker cannot determine."""
        place = self._place or find_place()
        refuse_resharding(place[1])
        place_or_none = None if place == (0, 1) else place
        return {**self.__dict__, "_place": place_or_none, "_running": None}

    def __iter_from__(
        self,
        dataloader_states: State,
        reload_from_url_level: bool = False,
        ignore_customized_yield_fn: bool = False,
    ) -> Iterator[Sample]:
        """Return an iterator that resumes from a state, without changing this dataset.

        Parameters
        ----------
        dataloader_states, reload_from_url_level
            See `set_dataloader_states`.
        ignore_customized_yield_fn
            Yield the mixed samples themselves. Their state has no outputs of the function, so
            resume from it without the function.
        """
        self._check_state(dataloader_states, reload_from_url_level)
        return self._iterate(
            dataloader_states or None,
            reload_from_url_level,
            iteration=0,
            ignore_yield=ignore_customized_yield_fn,
        )

    def __iter__(self) -> Iterator[Sample]:
        worker = torch.utils.data.get_worker_info()
        slot = 1 if worker is None else 2 + worker.id
        first, begun = int(self._iterations[0]), int(self._iterations[slot])
        self._iterations[slot] += 1
        if not begun:
            return self._iterate(self._state, self._from_url_level, iteration=first)
        return self._iterate(None, from_url_level=False, iteration=first + begun)

    def __len__(self) -> int:
        """Return the number of samples of one iteration, of this rank at most.

        Ranks share units of about a 2,000th of a source, so that a rank may have fewer. Padding,
        which depends on the number of loader workers, is not counted.

        Raises
        ------
        TypeError
            If it is infinite, or not known: with a ``customized_yield_fn``, or process functions.
        """
        if self.cyclic or self.customized_yield_fn is not None or self.stop_on_first:
            raise TypeError("an infinite stream, or the outputs of a function, have no length")
        _, num_ranks = self._place or find_place()
        counts = [source.count_samples(num_ranks) for source in self.sources(read=True)]
        if None in counts:
            raise TypeError("a process function, or a file read in order, has no known length")
        return sum(count for count in counts if count is not None)

    def check_length(self, required_samples: int) -> list[Any]:
        """Return how many samples each dataset has, and how many a run requires.

        Parameters
        ----------
        required_samples
            Samples that the run draws from this dataset.

        Returns
        -------
        lengths
            ``(name, samples, required)`` of each dataset, in lists nested like the datasets. The
            number of samples is the dataset's ``length`` or ``len()``, times ``length_multiplier``
            and divided by ``length_divisor`` if present; None if unknown.
        """
        whole = sum(dataset.percent for dataset in self.datasets)
        found: list[Any] = []
        for dataset in self.datasets:
            required = int(required_samples * dataset.percent / whole)
            if isinstance(dataset, MergedDataset):
                found.append(dataset.check_length(required))
            else:
                found.append((dataset.name, known_length(dataset), required))
        return found

    def _identities(self) -> dict[str, str]:
        return {source.name: source.identity() for source in self.sources()}

    def _check_state(self, state: State | None, from_url_level: bool) -> None:
        """Check that a state is of these datasets."""
        if not state or resuming.is_of_cogdata(state):
            return
        own, loaded = self._identities(), load_state(state)
        loaded.check_names(own)
        other = loaded.origin.identities
        for name, identity in own.items():
            if identity != other[name] and not from_url_level:
                raise StateMismatchError(
                    f"the state of {name!r} must be of the same files, seed and order, and made "
                    f"alike: it is of [{other[name]}], these are [{identity}]; take those back, or "
                    "set reload_from_url_level to read begun parts again, or begin anew"
                )

    def _iterate(
        self,
        state: State | None,
        from_url_level: bool,
        *,
        iteration: int,
        ignore_yield: bool = False,
    ) -> Iterator[Sample]:
        worker = torch.utils.data.get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        rank, num_ranks = self._place or find_place()
        refuse_resharding(num_ranks)
        if worker is not None:
            exit_with_parent()
        slot = WorkerSlot(rank, num_ranks, number, num_workers, worker=number)
        if state is None:
            start, begin = StreamStart(slot, self._make_origin(iteration, slot), {}), State()
        else:
            start, begin = self._resume(state, from_url_level, slot)
        begin |= {"origin": start.origin.to_json()}
        stream = self._open("/", start, ignore_yield)
        if self.tail is not Tail.EXACT:
            stream = EvenStream(stream, self.sources(read=True), start, self.tail)
        self._running = stream, start
        samples = resuming.attach_start(iter(stream), begin)
        return resuming.name_states(samples) if isinstance(stream, YieldStream) else samples

    def _resume(
        self, state: State, from_url_level: bool, slot: WorkerSlot
    ) -> tuple[StreamStart, State]:
        """Return where a worker slot starts from a state, and its first report."""
        loaded = self._load(state, slot)
        if from_url_level:
            loaded = resuming.rewind_parts(loaded, self._identities())
        return resuming.resume(loaded, slot, include_all=from_url_level)

    def _make_origin(self, iteration: int, slot: WorkerSlot) -> StreamOrigin:
        """Return the origin of an iteration from its first sample on.

        A trainer's dict may have entries of earlier iterations, whose origins it therefore knows.
        """
        identities = self._identities()

        def make(number: int) -> StreamOrigin:
            origin = StreamOrigin("", identities, iteration=number)
            return replace(origin, id=digest(origin.to_json()))

        ids = [make(n).id for n in range(max(0, iteration - _MAX_ANCESTORS), iteration)]
        if iteration and self._state and not resuming.is_of_cogdata(self._state):
            before = self._resume(self._state, self._from_url_level, slot)[0].origin
            ids += [*before.ancestors, before.id]
        return replace(make(iteration), ancestors=tuple(ids))

    def _load(self, state: State, slot: WorkerSlot) -> LoadedState:
        """Parse a state of either form."""
        if not resuming.is_of_cogdata(state):
            return load_state(state)
        sources = self.sources()
        slots = [replace(slot, slot=each, worker=each) for each in range(slot.num_slots)]
        entries = {each.index: resuming.read_cogdata_state(state, sources, each) for each in slots}
        own = (slot.rank, slot.num_ranks)
        origin = self._make_origin(0, slot)
        return LoadedState(origin, entries, slot.num_ranks, slot.num_slots, {}, own)

    def _open(self, path: str, start: StreamStart, ignore_yield: bool = False) -> Stream:
        """Return the stream of this dataset in a worker slot."""
        open_mixed = partial(self._open_mixed, path)
        if self.customized_yield_fn is None or ignore_yield:
            return open_mixed(start)
        return YieldStream(path, self.customized_yield_fn, self.yield_segment, open_mixed, start)

    def _open_mixed(self, path: str, start: StreamStart) -> Stream:
        streams: list[Stream] = []
        for number, dataset in enumerate(self.datasets):
            if isinstance(dataset, MergedDataset):
                streams.append(dataset._open(f"{path}{number}/", start))
            else:
                streams.append(open_source(self._make_source(dataset), start))
        mixing = _MIXINGS[self.mixing]([dataset.percent for dataset in self.datasets])
        return MixedStream(
            path,
            streams,
            mixing,
            start,
            stop_on_first=self.stop_on_first,
            samples_per_pick=self.samples_per_pick,
        )


def _choose_order(setting: str, given: bool | str, mode: str) -> str:
    """Return the order that a setting selects."""
    check_choice(setting, given, (True, False, mode))
    return mode if given == mode else "keyed" if given else "none"
