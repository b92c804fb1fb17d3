"""Many datasets as one stream: mixed by percent, shared by lanes, resumed exactly."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import torch

from zindex.errors import ConfigError, StateMismatchError
from zindex.loading.place import find_place
from zindex.streaming.cogdata_states import is_of_cogdata, read_cogdata_state
from zindex.streaming.lanes import Entries, Lane, Origin
from zindex.streaming.leaf_streams import open_leaf
from zindex.streaming.leaves import Leaf, describe, is_streaming, known_length
from zindex.streaming.mixed_streams import MixedStream, Mixing, Stream, YieldFunction, YieldStream
from zindex.streaming.mixing import CogdataMixing, ExactMixing
from zindex.streaming.parted import Sample
from zindex.streaming.resuming import go_on, mark_first, mark_outputs, reread_parts
from zindex.streaming.state import LoadedState, State, digest, load_state

_MIXINGS: dict[str, Callable[[Sequence[float]], Mixing]] = {
    "exact": ExactMixing,
    "cogdata_mix": CogdataMixing,
}


class MergedDataset(torch.utils.data.IterableDataset[Sample]):
    """A stream of the samples of several datasets.

    Parameters
    ----------
    datasets
        Map-style datasets (``__len__`` and ``__getitem__``), parted ones
        (`zindex.streaming.parted.PartedDataset`) and other ``MergedDataset``. Each has the
        attribute ``percent``, a number > 0 of which only the ratios matter, and a ``name`` that no
        other dataset of the whole tree has (a ``MergedDataset`` needs none).
    cyclic
        Whether an ended dataset begins its next epoch, so that the stream never ends. Otherwise
        each dataset gives one epoch, and the stream ends with the last of them.
    shuffle_unstreaming_subsets
        The order of map-style datasets: True for a permutation of its own in each epoch, False for
        the order of the dataset, ``"cogdata_block2m"`` for cogdata's.
    shuffle_streaming_subsets
        The order of parted datasets: True for their parts in a permutation of its own in each epoch
        and their samples mixed in a buffer, False for the order of the files, and
        ``"cogdata_urlbuffer"`` for cogdata's, which shares whole files.
    seed
        >= 0. Every order depends on it, and on the dataset's name and the epoch.
    customized_yield_fn
        Makes other samples of the mixed ones: called with an iterator of samples, it yields
        dicts. It is called afresh for every ``yield_segment`` samples and must yield what it holds
        when its source ends.
    mixing
        ``"exact"`` keeps the number of samples of each dataset within one of its share at all
        times (lanes begin at different places of that order); ``"cogdata_mix"`` is cogdata's order.
    yield_segment
        Samples that the yield function gets in one call, which is what is read again on resuming.
        A run that goes on keeps to the number that it began with until its ranks or workers change.
    stop_on_first
        With ``cyclic=False``: end with the dataset that ends first.

    Raises
    ------
    ConfigError
        If a dataset is of no such kind, lacks a name or a percent, or shares its name.

    Notes
    -----
    Each sample is a dict of its dataset's fields and ``__datasetname__``, ``__dprank__``,
    ``__workerid__``, ``__seed__``, ``__epoch__``, ``__state__``, and ``__url__`` and ``__key__`` or
    ``__index__``. A sample that is no dict comes as ``{"data": sample}``. What a
    ``customized_yield_fn`` makes has ``__states__``.

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
    ) -> None:
        self.datasets = list(datasets)
        self.cyclic, self.seed = cyclic, seed
        self.customized_yield_fn = customized_yield_fn
        self.yield_segment, self.stop_on_first = yield_segment, stop_on_first
        self._item_order = _choose_order(
            "shuffle_unstreaming_subsets", shuffle_unstreaming_subsets, "cogdata_block2m"
        )
        self._part_order = _choose_order(
            "shuffle_streaming_subsets", shuffle_streaming_subsets, "cogdata_urlbuffer"
        )
        self.mixing = mixing
        self._place: tuple[int, int] | None = None
        self._state: State | None = None
        self._from_url_level = False
        self._check_settings()
        self._check_datasets()

    def _check_settings(self) -> None:
        if self.mixing not in _MIXINGS:
            raise ConfigError(
                f"mixing must be one of {sorted(_MIXINGS)}, got {self.mixing!r}; choose one"
            )
        for name, least in (("seed", 0), ("yield_segment", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name} must be a whole number >= {least}, got {value!r}; give such a number"
                )
        if not self.datasets:
            raise ConfigError("a MergedDataset must have datasets, got none; give at least one")

    def _check_datasets(self) -> None:
        for number, dataset in enumerate(self.datasets):
            percent: Any = getattr(dataset, "percent", None)
            is_number = isinstance(percent, int | float) and not isinstance(percent, bool)
            if not is_number or not 0 < percent < math.inf:
                raise ConfigError(
                    f"the percent of dataset {number} ({describe(dataset)}) must be a number > 0, "
                    f"got {percent!r}; set its attribute percent, or leave the dataset out"
                )
        names = [leaf.name for leaf in self.leaves()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"the names of all datasets must differ, {twice[0]!r} came {names.count(twice[0])} "
                "times; states are kept by name: rename all but one"
            )

    def leaves(self) -> list[Leaf]:
        """Return all sources of this dataset and of those in it, in order."""
        found: list[Leaf] = []
        for number, dataset in enumerate(self.datasets):
            if isinstance(dataset, MergedDataset):
                found += dataset.leaves()
            else:
                found.append(self._leaf(number, dataset))
        return found

    def _leaf(self, number: int, dataset: Any) -> Leaf:
        name = getattr(dataset, "name", None)
        if not isinstance(name, str) or not name or "@" in name:
            raise ConfigError(
                f"dataset {number} ({describe(dataset)}) must have a name without '@', got "
                f"{name!r}; set its attribute name, by which its state is kept"
            )
        order = self._part_order if is_streaming(dataset) else self._item_order
        return Leaf(name, dataset, self.seed, self.cyclic, order).check()

    def set_data_parallel(self, dp_size: int, dp_rank: int) -> None:
        """Give this process its part of the samples.

        Without this call it is found as ``zindex.loader`` finds it: from ``torch.distributed`` or
        the environment that ``torchrun`` sets. Set it where several processes share the same data,
        as those of one tensor-parallel group do.

        Parameters
        ----------
        dp_size, dp_rank
            Data-parallel ranks, and which of them this is.

        Raises
        ------
        ConfigError
            If the rank is not one of them.
        """
        if not 0 <= dp_rank < dp_size:
            raise ConfigError(
                f"dp_rank must lie in [0, dp_size), got {dp_rank} of {dp_size}; give "
                "set_data_parallel(dp_size, dp_rank)"
            )
        self._place = dp_rank, dp_size

    def set_dataloader_states(
        self, dataloader_states: State | None, reload_from_url_level: bool = False
    ) -> None:
        """Let the next iterations, also those in loader workers, go on from a state.

        Parameters
        ----------
        dataloader_states
            What `to_state` of all delivered samples came to: of this rank alone if the number of
            ranks and loader workers is the same, or merged by `merge_states`. Empty or None begins
            from the first sample. A state in cogdata's own form is taken for cogdata's orders.
        reload_from_url_level
            Read the parts that were begun again from their first sample. Needed where the samples
            of a part have changed, as with another sequence length; what was delivered of them
            comes twice.

        Raises
        ------
        StateMismatchError
            If it is the state of other datasets.
        """
        self._check_state(dataloader_states, reload_from_url_level)
        self._state = dataloader_states or None
        self._from_url_level = reload_from_url_level

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to a loader worker, which cannot find out the rank by itself."""
        place = self._place or find_place()
        return {**self.__dict__, "_place": None if place == (0, 1) else place}

    def __iter_from__(
        self,
        dataloader_states: State,
        reload_from_url_level: bool = False,
        ignore_customized_yield_fn: bool = False,
    ) -> Iterator[Sample]:
        """Return an iterator that goes on from a state, and leave this dataset as it is.

        Parameters
        ----------
        dataloader_states, reload_from_url_level
            See `set_dataloader_states`.
        ignore_customized_yield_fn
            Give the mixed samples themselves. Their state does not tell what the function has made
            of them: go on from it without the function.
        """
        self._check_state(dataloader_states, reload_from_url_level)
        return self._iterate(
            dataloader_states or None, reload_from_url_level, ignore_customized_yield_fn
        )

    def __iter__(self) -> Iterator[Sample]:
        return self._iterate(self._state, self._from_url_level, ignore_yield=False)

    def check_length(self, required_samples: int) -> list[Any]:
        """Return how many samples each dataset has, and how many are required of it.

        Parameters
        ----------
        required_samples
            Samples to be drawn from this dataset.

        Returns
        -------
        lengths
            ``(name, samples, required)`` of each dataset, in nested lists like the datasets.
            Samples are the dataset's ``length``, or its ``len()``, times ``length_multiplier`` and
            divided by ``length_divisor`` where it has these; None if it has none of them.
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
        return {leaf.name: leaf.identity() for leaf in self.leaves()}

    def _check_state(self, state: State | None, from_url_level: bool) -> None:
        """Check that a state is one of these datasets."""
        if not state or is_of_cogdata(state):
            return
        own, other = self._identities(), load_state(state).origin.identities
        if own.keys() != other.keys():
            raise StateMismatchError(
                f"a state must be of the datasets {sorted(own)}, got one of {sorted(other)}; load "
                "it into the datasets that it was saved of"
            )
        for name, identity in own.items():
            if identity != other[name] and not from_url_level:
                raise StateMismatchError(
                    f"the state of {name!r} must be of the same files, seed and order, and made "
                    f"alike: it is of [{other[name]}], these are [{identity}]; take those back, or "
                    "set reload_from_url_level to read begun parts again, or begin anew"
                )

    def _iterate(
        self, state: State | None, from_url_level: bool, ignore_yield: bool
    ) -> Iterator[Sample]:
        worker = torch.utils.data.get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        rank, num_ranks = self._place or find_place()
        lane = Lane(rank, num_ranks, number, num_workers, worker=number)
        origin, entries = Origin("", self._identities()), Entries()
        begin: State = {}
        origin = replace(origin, id=digest(origin.to_json()))
        if state is not None:
            loaded = self._load(state, lane, origin)
            if from_url_level:
                loaded = reread_parts(loaded, self._identities())
            lane, origin, entries, begin = go_on(loaded, lane, tells_all=from_url_level)
        begin |= {"origin": origin.to_json()}
        stream = self._open("/", lane, origin, entries, ignore_yield)
        samples = chain.from_iterable(mark_first(stream, begin))
        return mark_outputs(samples) if isinstance(stream, YieldStream) else samples

    def _load(self, state: State, lane: Lane, origin: Origin) -> LoadedState:
        """Return what a state of either form holds."""
        if not is_of_cogdata(state):
            return load_state(state)
        slots = [replace(lane, slot=slot, worker=slot) for slot in range(lane.num_slots)]
        lanes = {one.index: read_cogdata_state(state, self.leaves(), one) for one in slots}
        own = (lane.rank, lane.num_ranks)
        return LoadedState(origin, lanes, lane.num_ranks, lane.num_slots, {}, own)

    def _open(
        self, path: str, lane: Lane, origin: Origin, entries: Entries, ignore_yield: bool = False
    ) -> Stream:
        """Return the stream of this dataset in a lane."""
        if self.customized_yield_fn is None or ignore_yield:
            return self._open_mixed(path, lane, origin, entries)
        return YieldStream(
            path,
            self.customized_yield_fn,
            self.yield_segment,
            lambda lane, origin, entries: self._open_mixed(path, lane, origin, entries),
            lane=lane,
            origin=origin,
            entries=entries,
        )

    def _open_mixed(self, path: str, lane: Lane, origin: Origin, entries: Entries) -> Stream:
        streams: list[Stream] = []
        for number, dataset in enumerate(self.datasets):
            if isinstance(dataset, MergedDataset):
                streams.append(dataset._open(f"{path}{number}/", lane, origin, entries))
                continue
            leaf = self._leaf(number, dataset)
            streams.append(open_leaf(leaf, lane, origin, entries))
        mixing = _MIXINGS[self.mixing]([dataset.percent for dataset in self.datasets])
        return MixedStream(
            path,
            streams,
            mixing,
            lane=lane.rank if self.mixing == "cogdata_mix" else lane.index,
            stop_on_first=self.stop_on_first,
            entries=entries,
        )


def _choose_order(setting: str, given: bool | str, mode: str) -> str:
    """Return the order that a setting asks for."""
    if given is True or given is False:
        return "keyed" if given else "none"
    if given != mode:
        raise ConfigError(f"{setting} must be True, False or {mode!r}, got {given!r}; choose one")
    return mode
