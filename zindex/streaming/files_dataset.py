"""Stream the samples of jsonl files and tar archives, part by part."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, check_whole
from zindex.io.request_threads import DaemonPool
from zindex.loading.sample_units import UNIT_NBYTES, Order, SampleUnits, choose_units
from zindex.loading.stream_orders import keyed_order, take_turns
from zindex.processing.process_function import (
    ProcessFn,
    Sample,
    call_process_fn,
    check_process_fn,
)
from zindex.processing.sample_generator import GENERATOR_FIELDS
from zindex.sources.damage_log import OnDamage
from zindex.sources.part_files import PartFiles
from zindex.sources.sample_blocks import SampleBlocks
from zindex.sources.sample_files import SampleFiles
from zindex.sources.sample_requests import SampleRequests
from zindex.sources.unit_requests import OpenedGroup, Unit, UnitRequests
from zindex.store.commit import fingerprint

# Units of an epoch, unless these would be too large: the samples of any two worker slots differ by
# one unit at most. A process function that is not one-to-one is called for each of fewer units.
_NUM_UNITS, _NUM_CALLS = 3840, 768
_NUM_REMOTE = 576  # in object stores, where the blocks of a unit are requests
# Files that are read at a time if they can only be read in order, and groups of them that are left.
_MAX_TOGETHER, _MIN_GROUPS = 6, 32
#: Samples that are cut out of their blocks and parsed together, of a unit or of several small ones.
NUM_PARSED = 64
_NO_LABELS: Sample = {}


class FilesDataset(IterableDataset[Sample]):
    """Samples of files, after a process function.

    Parameters
    ----------
    files
        Files of the raw samples.
    process_fn
        Takes an iterator over the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of an input. It is called once per part and must yield buffered
        samples when its input ends. None leaves samples unchanged. Its ``num_skipped`` and
        ``fingerprint()``, if present, are added to the dataset's. ``one_to_one = True`` declares
        that it makes one output of each input, in order and independently: resuming then makes only
        new ones, and the number of samples is known. In a `MergedDataset`, random
        choices of `zindex.processing.sample_generator.sample_generator` do not depend on workers.
    shuffle_buffer
        Size of the shuffle buffer in `MergedDataset`, in samples; 0 keeps the order of the files.
    on_damage
        ``"error"``, or ``"skip"`` if the files skip damaged samples.

    Raises
    ------
    ConfigError
        If a setting is invalid.

    Notes
    -----
    Iterating over it yields the parts in order, shared between the workers of a DataLoader, without
    shuffling or resuming, which `MergedDataset` does.
    """

    def __init__(
        self,
        files: SampleFiles,
        process_fn: ProcessFn | None,
        shuffle_buffer: int,
        on_damage: OnDamage = "error",
    ) -> None:
        check_process_fn(process_fn)
        for url in files.urls:
            if url.lower().endswith(".parquet"):
                raise ConfigError(
                    f"a stream must read jsonl files or tar archives, got {url}; convert it with "
                    "`zindex tokenize --for pretrain` and read the store as ZarrText, or mix a "
                    "map-style dataset of its rows"
                )
        self.shuffle_buffer = check_whole("shuffle_buffer", shuffle_buffer, 0)
        self.files = files
        # Whether any sample can be skipped.
        self.may_skip = on_damage == "skip" or (
            hasattr(process_fn, "num_skipped") and not getattr(process_fn, "one_to_one", False)
        )
        self.process_fn = process_fn
        self.urls = list(files.urls)
        self._requests, self._group = UnitRequests(), OpenedGroup()
        self._labels: Sample = {}

    @cached_property
    def units(self) -> SampleUnits | None:
        """Units in which workers share the samples; None if files can only be read in order."""
        count = self.files.find_samples()
        if count is None:
            return None
        one_to_one = getattr(self.process_fn, "one_to_one", False)
        is_called = self.process_fn is not None and not (self.packs or one_to_one)
        most = _NUM_CALLS if is_called else _NUM_UNITS
        if count.is_remote:
            most = _NUM_REMOTE
        shuffle, grouped = self.shuffle_buffer > 1, self.files.reads_blocks
        return choose_units(count, most, shuffle=shuffle, grouped=grouped)

    @cached_property
    def num_together(self) -> int:
        """Files that are mixed if files can only be read in order: those of a part."""
        return max(1, min(_MAX_TOGETHER, self.files.num_parts // _MIN_GROUPS))

    @property
    def num_parts(self) -> int:
        """Units or, if files can only be read in order, groups of files or of parts of files."""
        if self.units is None:
            return -(-self.files.num_parts // self.num_together)
        return self.units.num_units

    @property
    def takes_requests(self) -> bool:
        """Whether samples are read from an object store, not from files of this node."""
        self.files.find_samples()
        return self.files.is_requested

    @property
    def num_skipped(self) -> int:
        """Number of damaged samples, and truncated files, skipped so far in this process."""
        return self.files.num_skipped + getattr(self.process_fn, "num_skipped", 0)

    def read_part(self, part: int) -> Iterator[Sample]:
        """Return the samples of a part in the order of the files.

        Raises the errors of the files' ``read_part`` or ``read_samples``.
        """
        if self.units is None:
            members = self._members(part)
            return self.process(chain.from_iterable(map(self.files.read_part, members)))
        return self.read_unit(Unit(part))

    def read_parts(self, parts: Iterable[int]) -> Iterator[Sample]:
        """Return the samples of parts; packed ones continue from part to part."""
        if not self.packs:
            return chain.from_iterable(map(self.read_part, parts))
        raw = self.without_process_fn()
        return self.process(chain.from_iterable(map(raw.read_part, parts)))

    def read_mixed(self, part: int, *, seed: int, name: str, epoch: int) -> Iterator[Sample]:
        """Return the samples of a group of files in turn, for files that are read in order.

        Parameters
        ----------
        part
            Number of the group in the epoch.
        seed, name, epoch
            Key of the order of files.
        """
        members = self._find_members(Unit(part, (seed, name, epoch)))
        return self.process(take_turns(map(self.files.read_part, members)))

    def begin(self, units: Iterable[Unit]) -> None:
        """Request the starts of the files of some groups, if files can only be read in order."""
        parts = [part for unit in units for part in self._find_members(unit)]
        self.begin_urls(dict.fromkeys(self.files.locate(part)[0] for part in parts))

    def begin_urls(self, numbers: Iterable[int]) -> None:
        """Request the starts of some files."""
        self.files.begin_files(numbers)

    def _find_members(self, unit: Unit) -> Sequence[int]:
        """Return the numbers of the files of a group in an epoch, or of their parts."""
        members = self._members(unit.part)
        if unit.order is None:
            return members
        seed, name, epoch = unit.order
        key: Any = {"seed": seed, "name": name, "epoch": epoch}
        found: list[int] = keyed_order(np.array(members), self.files.num_parts, **key).tolist()
        return found

    def _members(self, part: int) -> range:
        """Return the numbers of the files of a group, or of their parts."""
        first = part * self.num_together
        return range(first, min(first + self.num_together, self.files.num_parts))

    def read_unit(self, unit: Unit, upcoming: Iterator[Unit] | None = None) -> Iterator[Sample]:
        """Return the samples of a unit in the order of its epoch.

        Parameters
        ----------
        unit
            The unit.
        upcoming
            Units that are read next, which are requested from object stores in advance.
        """
        return self.process(chain.from_iterable(self.read_blocks(unit, _NO_LABELS, upcoming)))

    def read_blocks(
        self, unit: Unit, labels: Sample, upcoming: Iterator[Unit] | None = None
    ) -> Iterator[Sequence[Sample]]:
        """Return the samples of a unit, not processed, with further fields, some at a time.

        Parameters
        ----------
        unit, upcoming
            As of `read_unit`.
        labels
            Fields that are added.
        """
        return self.files.parse_blocks(self._read_raw(unit, upcoming or iter(())), labels)

    def read_runs(
        self, parts: Int64Array, order: Order, skip: int, labels: Sample
    ) -> Iterator[tuple[Sequence[Sample], list[int]]]:
        """Yield the samples of some units, not processed, those of several small units together.

        It ends before a unit that must be read by `read_blocks`.

        Parameters
        ----------
        parts
            Shape (units,), int64, ascending: units of one group.
        order, skip
            As in `Unit`; ``skip`` is for the first unit.
        labels
            Fields that are added.

        Yields
        ------
        samples, ends
            Samples of some units, and where each of these but the last ends among them.
        """
        units, files = self.units, self.files
        assert units is not None
        if files.is_slow_at_first:
            return
        group, number = divmod(int(parts[0]), units.share)
        firsts, lasts = units.spans_of(group, parts % units.share, order)
        firsts[0] += skip
        borders = np.cumsum(lasts - firsts)
        step = max(2, NUM_PARSED * len(parts) // max(1, int(borders[-1])))
        is_adjacent = bool((firsts[1:] == lasts[:-1]).all())
        # Before the first sample of the group, in the order of the files.
        before = 0 if order else units.range_of(int(parts[0]))[0] - units.part_of(number, None)[0]
        raws = self._open_group(Unit(int(parts[0]), order)) if order else ()
        if order and not is_adjacent and not isinstance(raws, SampleBlocks):
            return
        starts, stops, ends = firsts.tolist(), lasts.tolist(), [0, *borders.tolist()]
        if not is_adjacent:
            places = np.arange(ends[-1]) + np.repeat(firsts - ends[:-1], lasts - firsts)
        for first in range(0, len(parts), step):
            last = min(first + step, len(parts))
            if order is None:
                spans = [*zip(starts[first:last], stops[first:last], strict=True)]
                spans = [(starts[first], stops[last - 1])] if is_adjacent else spans
                chosen = files.read_samples((before + a, before + b) for a, b in spans)
            elif is_adjacent:
                chosen = raws[starts[first] : stops[last - 1]]
            else:
                chosen = raws[places[ends[first] : ends[last]]]
            samples = files.parse_together(chosen, labels)
            if samples is None:
                return
            yield samples, [end - ends[first] for end in ends[first + 1 : last]]

    def as_listed(self, listing: str) -> "FilesDataset":
        """Return a dataset of earlier files; see `PartFiles.as_listed`. Not of stored records."""
        assert isinstance(self.files, PartFiles)
        made = copy.copy(self)
        for name in ("units", "num_together"):
            made.__dict__.pop(name, None)
        made._requests, made._group = UnitRequests(), OpenedGroup()
        made.files = self.files.as_listed(listing)
        made.urls = list(made.files.urls)
        return made

    @property
    def packs(self) -> bool:
        """Whether the process function packs samples, and is called once for all parts."""
        return hasattr(self.process_fn, "pack")

    @property
    def packs_whole(self) -> bool:
        """Whether each worker of a finite stream packs all samples, because they are few."""
        if not self.packs or self.may_skip or self.units is None:
            return False
        return self.units.nbytes <= getattr(self.process_fn, "whole_nbytes", 0)

    def without_process_fn(self) -> "FilesDataset":
        """Return a dataset of the same parts, whose samples are those of the files."""
        raw = copy.copy(self)
        raw.process_fn = None
        return raw

    def labelled(self, labels: Sample) -> "FilesDataset":
        """Return a dataset of the same parts, whose process function gets samples with labels."""
        if self.process_fn is None:
            return self
        labelled = copy.copy(self)
        labelled._labels = {name: labels[name] for name in GENERATOR_FIELDS}
        return labelled

    @property
    def can_skip(self) -> bool:
        """Whether each sample is made of one, so that delivered ones need not be made again."""
        one_to_one = self.process_fn is None or getattr(self.process_fn, "one_to_one", False)
        return one_to_one and not self.may_skip

    def _read_raw(self, unit: Unit, upcoming: Iterator[Unit]) -> Iterator[Iterable[Any]]:
        """Yield some samples of a unit at a time, without parsing them."""
        self.files.find_samples()
        if self.files.is_requested:
            num_ahead = UNIT_NBYTES // max(1, self.part_nbytes(unit.part) or 0)
            yield self._requests.read(unit, upcoming, num_ahead, self._begin)
            return
        assert self.units is not None
        if unit.order is None:
            start, stop = self.units.range_of(unit.part)
            # Few at a time stay in the processor's cache until they are parsed.
            step = NUM_PARSED if self.files.reads_blocks else max(1, stop - start)
            for span in self._divide(start + unit.skip, stop, step):
                yield self.files.read_samples([span])
            return
        start, stop = self.units.part_of(unit.part, unit.order)
        start += unit.skip
        if start < stop:
            raws = self._open_group(unit)
            for first, last in self._divide(start, stop, NUM_PARSED):
                yield raws[first:last]

    def _divide(self, start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
        """Yield spans of some samples, of the first one alone where it should not wait for more."""
        if self.files.is_slow_at_first and start < stop:
            yield start, start + 1
            start += 1
        for first in range(start, stop, step):
            yield first, min(first + step, stop)

    def _open_group(self, unit: Unit) -> Sequence[Any]:
        """Return the samples of the group of a unit in the order of an epoch."""
        assert self.units is not None
        # The units of a group follow each other, so its blocks are kept for the next ones.
        key = unit.part // self.units.share, unit.order
        return self._group.read(key, lambda: self.files.open_samples(*self._locate(unit)))

    def _locate(self, unit: Unit) -> tuple[list[tuple[int, int]], Int64Array | None]:
        """Return the ranges of samples of a unit, or of its group in an epoch, and their order."""
        assert self.units is not None
        if unit.order is None:
            return [self.units.range_of(unit.part)], None
        return self.units.shuffled(unit.part // self.units.share, unit.order)

    def _begin(self, unit: Unit, threads: DaemonPool) -> SampleRequests:
        """Return the requests for a unit, which is a group of its own in object stores."""
        ranges, order = self._locate(unit)
        if unit.skip and order is None:
            order = np.arange(sum(stop - start for start, stop in ranges))
        wanted = None if order is None else order[unit.skip :]
        return self.files.request_samples(ranges, wanted, threads)

    def part_nbytes(self, part: int) -> int | None:
        """Return the bytes of a part, an average; None if that would take a request to a store."""
        if self.units is None:
            sizes = [*map(self.files.part_nbytes, self._members(part))]
            return None if None in sizes else sum(size or 0 for size in sizes)
        nbytes, num_samples = self.units.nbytes, max(1, self.units.num_samples)
        start, stop = (nbytes * sample // num_samples for sample in self.units.range_of(part))
        return stop - start

    def read_url(self, number: int) -> Iterator[Sample]:
        """Return the samples of a file, through one call of the process function."""
        parts = self.files.url_parts(number)
        return self.process(sample for part in parts for sample in self.files.read_part(part))

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the files, and of the process function if it has one.

        See `PartFiles.content` for what it has of the files' content.
        """
        facts: dict[str, Any] = {"files": self.files.fingerprint()}
        if self.units is not None:
            facts["units"] = asdict(self.units)
        elif self.num_together > 1:
            facts["together"] = self.num_together
        if content := self.files.content():
            facts["content"] = content
        of_function = getattr(self.process_fn, "fingerprint", None)
        if of_function is not None:
            facts["process_fn"] = of_function()
        return fingerprint(facts)

    def process(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Return the outputs of the process function, if any, for raw samples."""
        if self.process_fn is None:
            return samples
        return call_process_fn(self.process_fn, samples, self._labels)

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from self.read_parts(range(first, self.num_parts, step))
