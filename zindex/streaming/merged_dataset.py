"""Mix datasets into one stream that worker slots share and that resumes exactly."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from zindex.errors import ConfigError, check_choice, check_whole
from zindex.loading.data_parallel import find_place
from zindex.loading.iteration_counter import IterationCounter, fail_at_first
from zindex.loading.resharding import refuse_resharding
from zindex.loading.sampler import check_ranks
from zindex.loading.stateful_loaders import join_workers
from zindex.loading.worker_lifetime import exit_with_parent
from zindex.mixing.mixture_tree import describe_mixtures, list_leaves, name_children
from zindex.mixing.percent_board import PercentBoard
from zindex.mixing.percent_schedules import is_read
from zindex.mixing.percents import check_even_changes
from zindex.plan.tail import Tail, TailName, parse_tail
from zindex.processing.collate import collate_dicts
from zindex.streaming import mixture_changes, mixture_checks, resuming, stream_starts
from zindex.streaming.even_slots import EvenStream
from zindex.streaming.mixed_streams import MixedStream, Stream, YieldFunction, YieldStream
from zindex.streaming.mixture_changes import MixtureFacts
from zindex.streaming.open_source import GrownStream, open_source
from zindex.streaming.protocols import Sample
from zindex.streaming.source_streams import SourceStream
from zindex.streaming.sources import StreamSource, is_streaming, make_source
from zindex.streaming.state import BEGUN_PERCENTS, LoadedState, State, load_state, slot_state
from zindex.streaming.worker_slots import StreamStart, WorkerSlot

# Samples of several kinds fail in torch's function before it comes to their states.
default_collate_fn_map[dict] = collate_dicts
_MIXINGS = ("exact", "cogdata_mix")


class MergedDataset(torch.utils.data.IterableDataset[Sample]):
    """A weighted stream of the samples of several datasets.

    Parameters
    ----------
    datasets
        Map-style datasets (``__len__`` and ``__getitem__``), partitioned ones
        (`zindex.streaming.protocols.PartitionedDataset`) and other ``MergedDataset``. Each has an
        attribute ``percent``, a number >= 0 of which only the ratios matter, and a ``name`` that is
        unique in the whole tree (a ``MergedDataset`` needs none). A dataset of percent 0 is not
        read. A percent that changes is a mapping from samples of this mixture, of all ranks
        together, to numbers: ``{0: 0.5, 1_000_000: 0.2}``. With ``cyclic=True``, a dataset may have
        an attribute ``max_epochs``, after which it is exhausted.
    cyclic
        Whether an exhausted dataset starts its next epoch, so that the stream is infinite unless
        all datasets have ``max_epochs``; the others take the picks of exhausted ones, by percent.
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
        ``"exact"`` keeps the number of samples of each dataset, also of nested ones, within one of
        its share at all times, over all worker slots and nearly always in each of them
        (`zindex.mixing.pick_orders.ExactMixing`); ``"cogdata_mix"`` is cogdata's order.
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
        self.datasets = mixture_checks.list_datasets(datasets)
        self.cyclic, self.seed = cyclic, check_whole("seed", seed, 0)
        self.customized_yield_fn, self.stop_on_first = customized_yield_fn, stop_on_first
        self.yield_segment = check_whole("yield_segment", yield_segment, 1)
        check_choice("cyclic", cyclic, (True, False))
        check_choice("stop_on_first", stop_on_first, (True, False))
        self._item_order = mixture_checks.choose_order(
            "shuffle_unstreaming_subsets", shuffle_unstreaming_subsets, "cogdata_block2m"
        )
        self._part_order = mixture_checks.choose_order(
            "shuffle_streaming_subsets", shuffle_streaming_subsets, "cogdata_urlbuffer"
        )
        check_choice("mixing", mixing, _MIXINGS)
        self.mixing = mixing
        self._iterations = IterationCounter()
        self._board = PercentBoard()
        self._place: tuple[int, int] | None = None
        # What was loaded last; later iterations know its origins.
        self._state: State | None = None
        self._from_url_level = self.is_compared = False
        # The stream that this process iterates over, and its start.
        self._running: tuple[Stream, StreamStart] | None = None
        self.samples_per_pick = check_whole("samples_per_pick", samples_per_pick, 1)
        self.tail = parse_tail(tail, (Tail.EXACT, Tail.PAD, Tail.DROP_LAST))
        mixture_checks.check_datasets(self)
        if self.tail is not Tail.EXACT:
            mixture_checks.check_even(self)
        mixture_checks.check_names(self.sources())

    def sources(self, *, read: bool = False) -> list[StreamSource]:
        """Return all sources of this dataset and of nested ones, or those of percent > 0."""
        found: list[StreamSource] = []
        for dataset in self.datasets:
            if isinstance(dataset, MergedDataset):
                found += dataset.sources(read=read) if is_read(dataset.percent) or not read else []
            elif is_read(dataset.percent) or not read:
                found.append(self._make_source(dataset))
        return found

    def _make_source(self, dataset: Any) -> StreamSource:
        order = self._part_order if is_streaming(dataset) else self._item_order
        return make_source(dataset, self.seed, self.cyclic, order)

    def _facts(self) -> MixtureFacts:
        return MixtureFacts(self.sources(), dict(describe_mixtures(self)))

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

    @property
    def place(self) -> tuple[int, int]:
        """Data-parallel rank of this process, and the number of ranks."""
        return self._place or find_place()

    def set_dataloader_states(
        self, dataloader_states: State | None, reload_from_url_level: bool = False
    ) -> None:
        """Resume the next iterations from a state, also in loader workers.

        Parameters
        ----------
        dataloader_states
            The union of `to_state` of all delivered samples: of this rank alone if the number of
            ranks and loader workers is the same, or merged by `merge_states`; or the state of a
            torchdata ``StatefulDataLoader``, for any number of workers. Empty or None starts from
            the first sample. Cogdata's orders also accept a state in cogdata's own form.
        reload_from_url_level
            Reread partly read parts from their first sample. Needed if the samples of a part have
            changed, for instance with another sequence length; delivered samples of these parts are
            repeated.

        Raises
        ------
        StateMismatchError
            If the state belongs to other datasets.
        """
        given = join_workers(dataloader_states or {})
        loaded, changes = self._check_state(given, reload_from_url_level)
        self._state, self._running = given or None, None
        self._from_url_level = reload_from_url_level
        if self.place[0] == 0:
            mixture_changes.report(changes)
        self._start_at(stream_starts.first_iteration(self._state), resumes=bool(given))
        if loaded is not None:
            self._board.start(loaded.origin.iteration, loaded.sample, loaded.changes)

    def set_percents(
        self,
        percents: Mapping[str, float],
        at: int | None = None,
        group: Any = None,
        state: State | None = None,
    ) -> State:
        """Change percents while the stream is read, at the same sample in all worker slots.

        Call it on every rank with the same arguments at the same step; under ``torch.distributed``
        it is a collective call, which checks that. The change takes effect in loader workers, too,
        after the samples that are prefetched. Other percents stay as they are.

        Parameters
        ----------
        percents
            New percents, by the names of datasets of this mixture; of nested mixtures, their names.
        at
            Samples of all ranks together, in this iteration, from which on they are valid. None
            takes the first sample that no loader worker of any rank has begun to read. With
            ``samples_per_pick``, they are valid from the next pick on.
        group
            The process group of all ranks that read the stream; the default group if None.
        state
            The one dict of this rank. With it, changes are forgotten as soon as it needs them no
            longer; without it, after some thousand samples of each worker slot.

        Returns
        -------
        changes
            Those that are kept, for ``dict.update`` of the one dict, so that a resumed run repeats
            them. `StreamLoader.set_percents` does both.

        Raises
        ------
        ConfigError
            If a name or percent is invalid, no percent is > 0, ranks differ, a sample after `at`
            has been read, a tail counts the samples of a dataset that is added or left out, or
            there are too many changes.
        """
        asked = percents, at, group, state or {}
        return {"percents": stream_starts.change_percents(self, self._board, *asked)}

    def state_dict(self) -> State:
        """Return the state of this process after the last sample that it has yielded.

        In a loader worker, where torchdata's ``StatefulDataLoader`` calls it, it is that of the
        worker alone, for as many ranks and workers. For others, give `set_dataloader_states` the
        loader's whole state, or `merge_states` of those of all ranks.
        """
        if self._running is None:
            return dict(self._state or {}) if self._iterations.resumes else {}
        stream, start = self._running
        return stream_starts.add_percents(slot_state(start, stream.entries()), start)

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
        loaded, changes = self._check_state(state, from_url_level=False)
        _, num_ranks = self.place
        stream_starts.check_one_worker(loaded, changes, num_ranks, worker.num_workers)
        self._state, self._from_url_level = state or None, False
        self._iterations.start_worker(stream_starts.first_iteration(self._state))

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration, which determines its order.

        Without it, each iteration over the dataset has the next number. A loaded state that is of
        that iteration, and has not been used, keeps its position.

        Parameters
        ----------
        epoch
            Number of the iteration, >= 0. With ``cyclic=False``, an iteration is an epoch.
        """
        is_next = check_whole("epoch", epoch, 0) == self.next_iteration
        if not (is_next and self._iterations.resumes) or self._iterations.has_begun:
            self._start_at(epoch, resumes=False)

    def _start_at(self, iteration: int, *, resumes: bool) -> None:
        self._iterations.start(iteration, resumes=resumes)
        self._board.start(iteration, 0)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with the rank, which a loader worker cannot determine."""
        place = self.place
        refuse_resharding(place[1])
        # One rank of one may have been found before others were started.
        known = self._place or (None if place == (0, 1) else place)
        return {**self.__dict__, "_place": known, "_running": None}

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
        loaded, changes = self._check_state(dataloader_states, reload_from_url_level)
        mixture_changes.report(changes)
        return self._iterate(
            dataloader_states or None,
            reload_from_url_level,
            iteration=0,
            ignore_yield=ignore_customized_yield_fn,
            board=PercentBoard(() if loaded is None else loaded.changes),
        )

    def __iter__(self) -> Iterator[Sample]:
        try:
            iteration, resumes = self._iterations.begin()
        except ConfigError as error:
            return fail_at_first(error)
        state = self._state if resumes else None
        return self._iterate(state, self._from_url_level, iteration=iteration)

    @property
    def next_iteration(self) -> int:
        """Number of the next iteration."""
        return self._iterations.next_number

    def __len__(self) -> int:
        """Return the number of samples in the next iteration of a rank that has most.

        It is for one loader worker; the `len()` of a `zindex.stream_loader` in batches is exact.

        Raises
        ------
        TypeError
            If it is infinite, or not known: with a ``customized_yield_fn``, ``stop_on_first``,
            ``max_epochs``, a percent that ends with 0, or process functions.
        """
        return int(mixture_checks.count_samples(self, 1).max())

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
        return mixture_checks.list_lengths(self, required_samples)

    def _check_state(
        self, state: State | None, from_url_level: bool
    ) -> tuple[LoadedState | None, list[str]]:
        """Return a parsed state of these datasets, and the changes of the mixture since then."""
        if not state or resuming.is_of_cogdata(state):
            return None, []
        loaded = load_state(state)
        _, changes = mixture_changes.adapt(loaded, self._facts(), any_content=from_url_level)
        return loaded, changes

    def _iterate(
        self,
        state: State | None,
        from_url_level: bool,
        *,
        iteration: int,
        ignore_yield: bool = False,
        board: PercentBoard | None = None,
    ) -> Iterator[Sample]:
        worker = torch.utils.data.get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        rank, num_ranks = self.place
        refuse_resharding(num_ranks)
        board = self._board if board is None else board
        mixture_checks.compare_ranks(self)
        if worker is not None:
            exit_with_parent()
        slot, facts = WorkerSlot(rank, num_ranks, number, num_workers, worker=number), self._facts()
        if state is None:
            origin = stream_starts.begin_iteration(
                facts, iteration, self._state, slot, self._from_url_level
            )
            start, begin = StreamStart(slot, origin, {}), State()
        else:
            start, begin = stream_starts.resume_mixture(
                facts, state, slot, from_url_level=from_url_level
            )
        begin |= {"origin": start.origin.to_json()}
        if board.changes:
            begin[BEGUN_PERCENTS] = [[*change] for change in board.changes]
        start = replace(start, board=board)
        stream = self._open("/", start, ignore_yield)
        if self.tail is not Tail.EXACT:
            check_even_changes(self, (percents for *_, percents in board.changes))
            stream = EvenStream(stream, self.sources(read=True), start, self.tail)
        self._running = stream, start
        samples = resuming.attach_start(iter(stream), begin)
        return resuming.name_states(samples) if isinstance(stream, YieldStream) else samples

    def _open(self, path: str, start: StreamStart, ignore_yield: bool = False) -> Stream:
        """Return the stream of this dataset in a worker slot."""
        open_mixed = partial(self._open_mixed, path)
        if self.customized_yield_fn is None or ignore_yield:
            return open_mixed(start)
        return YieldStream(path, self.customized_yield_fn, self.yield_segment, open_mixed, start)

    def _open_mixed(self, path: str, start: StreamStart) -> Stream:
        # The mixtures of an earlier job, while a segment is finished that it has begun.
        mixtures = start.origin.mixtures
        if path not in mixtures:
            mixtures = dict(describe_mixtures(self, path))
        streams: list[Stream | SourceStream | GrownStream] = []
        for leaf in list_leaves(mixtures, path):
            owner, place = self, path
            for name, inner in leaf.groups:
                owner, place = name_children(owner, place)[name], inner
            dataset = name_children(owner, place)[leaf.name]
            if isinstance(dataset, MergedDataset):
                number = [id(one) for one in owner.datasets].index(id(dataset))
                streams.append(dataset._open(f"{place}{number}/", start))
            else:
                streams.append(open_source(owner._make_source(dataset), start))
        return MixedStream(path, streams, mixtures, start, stop_on_first=self.stop_on_first)
