"""Stream the samples of jsonl files, tar archives and stores of records, part by part."""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from zindex.arrays import Int64Array
from zindex.errors import ConfigError
from zindex.io.objects import PlaceLike
from zindex.plan.settings import check_whole
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.opened_files import PREPARE_NBYTES
from zindex.sources.sample_files import OnDamage, Paths, SampleFiles
from zindex.sources.sample_offsets import SampleCount
from zindex.sources.sample_requests import SampleRequests
from zindex.sources.tar_files import TarFiles
from zindex.store.commit import fingerprint
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import KIND
from zindex.streaming.sample_units import UNIT_NBYTES, SampleUnits, choose_units

#: Default number of records per part.
PART_LENGTH = 4096
# Units of an epoch, unless these would be too large: the samples of any two worker slots differ by
# one unit at most. A process function is called for each unit.
_NUM_UNITS, _NUM_CALLS = 2048, 512
# Maximum records of a batched read, and their approximate bytes.
_MAX_ROUND, _ROUND_NBYTES = 64, 1 << 23
# Units that are requested in advance.
_MAX_AHEAD = 64


class StoredRecords(SampleFiles):
    """Records of ``zindex import``, with the interface of `JsonlFiles` and `TarFiles`.

    Parameters
    ----------
    path
        Path or URL of the store.
    fields
        Fields to read; None reads all.
    part_length
        Records per part; the last part of each imported file may have fewer.

    Raises
    ------
    ConfigError
        If the store lacks a field, or ``part_length`` is < 1.
    StoreNotFoundError
        If the store does not exist or is not committed.
    StoreError
        If it is not a store of records imported from files.
    """

    #: Damaged records were skipped by the import.
    num_skipped = 0

    def __init__(
        self,
        path: PlaceLike,
        *,
        fields: Sequence[str] | None = None,
        part_length: int = PART_LENGTH,
    ) -> None:
        self.part_length = check_whole("part_length", part_length, 1)
        self.store = open_store(path, kind=KIND)
        self._reader = RecordReader(self.store, fields)
        bounds = self._reader.url_bounds
        counts = [max(1, -(-(stop - start) // part_length)) for start, stop in pairwise(bounds)]
        super().__init__([*map(self._reader.name_url, range(len(counts)))], counts)
        nbytes = sum(layout.nbytes for layout in self.store.layouts.values())
        fitting = _ROUND_NBYTES * len(self) // max(1, nbytes)
        self._round = max(1, min(_MAX_ROUND, fitting))

    def __len__(self) -> int:
        return self._reader.num_records

    def read_part(self, part: int) -> Iterator[dict[str, Any]]:
        """Yield the records of a part, in the order of its file.

        Raises
        ------
        VerificationError
            If bytes fail their checksum.
        StoreUnavailableError, StoreUnreadableError
            If they cannot be read.
        """
        number, inner = self.locate(part)
        first, stop = self._reader.url_bounds[number : number + 2]
        first += inner * self.part_length
        stop = min(stop, first + self.part_length)
        for start in range(first, stop, self._round):
            yield from self._reader.read_many(range(start, min(start + self._round, stop)))

    def find_samples(self) -> SampleCount:
        """Return the number of records and their bytes."""
        nbytes = sum(layout.nbytes for layout in self.store.layouts.values())
        return SampleCount(len(self), nbytes)

    def read_samples(self, ranges: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return records; see `SampleFiles.read_samples`."""
        numbers = np.concatenate([np.arange(start, stop) for start, stop in ranges])
        return self._reader.read_many(numbers)

    def parse_samples(self, raws: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield records, which have been parsed."""
        yield from raws

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the store's content and the grid of parts."""
        return fingerprint({"store": self.store.fingerprint, "part_length": self.part_length})


class Unit(NamedTuple):
    """A unit of samples to read."""

    part: int
    #: Seed, name and epoch of the order of samples; None for that of the files.
    order: tuple[int, str, int] | None = None
    #: Samples to leave out at the start, without parsing them; 0 unless the dataset `can_skip`.
    skip: int = 0


Sample = dict[str, Any]
#: Maps the raw samples of a part to those of the dataset; called once for each part.
ProcessFn = Callable[[Iterator[Sample]], Iterable[Sample]]


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
        ``fingerprint()``, if present, are added to the dataset's.
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
        if process_fn is not None and not callable(process_fn):
            raise ConfigError(
                "process_fn must be a function from samples to samples, or None, got "
                f"{type(process_fn).__name__}"
            )
        self.shuffle_buffer = check_whole("shuffle_buffer", shuffle_buffer, 0)
        self.files = files
        # Whether any sample can be skipped.
        self.may_skip = on_damage == "skip" or hasattr(process_fn, "num_skipped")
        self.process_fn = process_fn
        self.urls = list(files.urls)
        # Units that are requested in advance, by process.
        self._requested: dict[tuple[int, Unit], SampleRequests] = {}

    @cached_property
    def units(self) -> SampleUnits | None:
        """Units in which workers share the samples; None if files can only be read in order."""
        count = self.files.find_samples()
        if count is None:
            return None
        is_called = self.process_fn is not None and not self.packs
        most = _NUM_CALLS if is_called or count.is_remote else _NUM_UNITS
        return choose_units(count, most, shuffle=self.shuffle_buffer > 1)

    @property
    def num_parts(self) -> int:
        """Units or, if files can only be read in order, parts of files."""
        return self.files.num_parts if self.units is None else self.units.num_units

    @property
    def num_skipped(self) -> int:
        """Number of damaged samples, and truncated files, skipped so far in this process."""
        return self.files.num_skipped + getattr(self.process_fn, "num_skipped", 0)

    def read_part(self, part: int) -> Iterator[Sample]:
        """Return the samples of a part in the order of the files.

        Raises the errors of the files' ``read_part`` or ``read_samples``.
        """
        if self.units is None:
            return self._process(self.files.read_part(part))
        return self.read_unit(Unit(part))

    def read_unit(self, unit: Unit, upcoming: Iterator[Unit] | None = None) -> Iterator[Sample]:
        """Return the samples of a unit in the order of its epoch.

        Parameters
        ----------
        unit
            The unit.
        upcoming
            Units that are read next, which are requested from object stores in advance.
        """
        return self._process(self._parse(unit, upcoming or iter(())))

    @property
    def packs(self) -> bool:
        """Whether the process function packs samples, and is called once for all parts."""
        return hasattr(self.process_fn, "pack")

    def without_process_fn(self) -> "FilesDataset":
        """Return a dataset of the same parts, whose samples are those of the files."""
        raw = copy.copy(self)
        raw.process_fn = None
        return raw

    @property
    def can_skip(self) -> bool:
        """Whether each sample is one that was read, so that delivered ones need no parsing."""
        return self.process_fn is None and not self.may_skip

    def _parse(self, unit: Unit, upcoming: Iterator[Unit]) -> Iterator[Sample]:
        """Yield the samples of a unit."""
        self.files.find_samples()
        raws: Iterable[Any]
        if self.files.is_requested:
            raws = self._request(unit, upcoming)
        else:
            ranges, order = self._locate(unit)
            raws = self.files.read_samples(ranges)
            if order is not None:
                raws = [raws[place] for place in order.tolist()]
            raws = raws[unit.skip :]
        yield from self.files.parse_samples(raws)

    def _locate(self, unit: Unit) -> tuple[list[tuple[int, int]], Int64Array | None]:
        """Return the ranges of samples of a unit, and the order of an epoch if it has one."""
        assert self.units is not None
        if unit.order is None:
            return [self.units.range_of(unit.part)], None
        seed, name, epoch = unit.order
        return self.units.shuffled(unit.part, seed=seed, name=name, epoch=epoch)

    def _request(self, unit: Unit, upcoming: Iterator[Unit]) -> Iterator[Any]:
        """Yield the raw samples of a unit; its others, and more units, are requested after the first.

        As many units are requested in advance as a large one has bytes.
        """
        process = os.getpid()  # requests of a process are lost after a fork
        requests = self._requested.get((process, unit)) or self._begin(unit)
        raws = iter(requests)
        yield from islice(raws, 1)
        requests.begin()
        num_ahead = UNIT_NBYTES // max(1, self.part_nbytes(unit.part) or 0)
        before, self._requested = self._requested, {}
        for one in islice(upcoming, max(1, min(num_ahead, _MAX_AHEAD))):
            found = before.get((process, one)) or self._begin(one)
            found.begin()
            self._requested[process, one] = found
        yield from raws

    def _begin(self, unit: Unit) -> SampleRequests:
        """Return the requests for a unit."""
        ranges, order = self._locate(unit)
        if unit.skip and order is None:
            order = np.arange(sum(stop - start for start, stop in ranges))
        return self.files.request_samples(ranges, None if order is None else order[unit.skip :])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_requested": {}}

    def part_nbytes(self, part: int) -> int | None:
        """Return the bytes of a part, an average; None if that would take a request to a store."""
        if self.units is None:
            return self.files.part_nbytes(part)
        nbytes, num_samples = self.units.nbytes, max(1, self.units.num_samples)
        start, stop = (nbytes * sample // num_samples for sample in self.units.range_of(part))
        return stop - start

    def read_url(self, number: int) -> Iterator[Sample]:
        """Return the samples of a file, through one call of the process function."""
        parts = self.files.url_parts(number)
        return self._process(sample for part in parts for sample in self.files.read_part(part))

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the files, and of the process function if it has one.

        See `PartFiles.content` for what it has of the files' content.
        """
        facts: dict[str, Any] = {"files": self.files.fingerprint()}
        if self.units is not None:
            facts["units"] = asdict(self.units)
        if content := self.files.content():
            facts["content"] = content
        of_function = getattr(self.process_fn, "fingerprint", None)
        if of_function is not None:
            facts["process_fn"] = of_function()
        return fingerprint(facts)

    def _process(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        return samples if self.process_fn is None else _processed(samples, self.process_fn)

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for part in range(first, self.num_parts, step):
            yield from self.read_part(part)


def _processed(samples: Iterator[Sample], process_fn: ProcessFn) -> Iterator[Sample]:
    """Yield processed samples, and check that each has ``__url__`` and ``__key__``."""
    for sample in process_fn(samples):
        if type(sample) is not dict or "__key__" not in sample or "__url__" not in sample:
            what = sorted(sample) if isinstance(sample, dict) else type(sample).__name__
            raise ConfigError(
                "a process function must yield dicts that keep __url__ and __key__ of the sample "
                f"they are made of, {process_fn!r} yields {what}; copy both"
            )
        yield sample


class JsonlIterableDataset(FilesDataset):
    """Lines of jsonl files as samples; see `JsonlFiles` for the files.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas, or a list.
    process_fn
        Takes an iterator over the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of an input. It is called once per part and must yield buffered
        samples when its input ends. None leaves samples unchanged.
    shuffle_buffer
        Size of the shuffle buffer in `MergedDataset`, in samples; 0 keeps the order of the files.
    on_damage
        ``"error"``, or ``"skip"`` to skip damaged lines, which ``num_skipped`` counts.
    part_nbytes
        Bytes of a part of a plain local file, of which cogdata's order of files reads one after the
        other. Other orders share units of samples, whose size follows from the samples.
    prepare_nbytes
        Compressed files and files at URLs with at most as many bytes together, as they are stored,
        are read in advance to read their samples in any order; 0, or more bytes, reads file by
        file.

    Raises
    ------
    ConfigError
        If a setting or a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder does not exist.
    SourceError
        If no file is given.

    Notes
    -----
    Iterating over it yields the parts in order, shared between the workers of a DataLoader, without
    shuffling or resuming, which `MergedDataset` does.
    """

    def __init__(
        self,
        path: Paths,
        process_fn: ProcessFn | None = None,
        *,
        shuffle_buffer: int = 1000,
        on_damage: OnDamage = "error",
        part_nbytes: int = 8 << 20,
        prepare_nbytes: int = PREPARE_NBYTES,
    ) -> None:
        files = JsonlFiles(
            path, part_nbytes=part_nbytes, on_damage=on_damage, prepare_nbytes=prepare_nbytes
        )
        super().__init__(files, process_fn, shuffle_buffer, on_damage)


class MetaDistributedWebDataset(FilesDataset):
    """Samples of tar archives with their metadata files; see `TarFiles` for the files.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas, or a list; may be ``""`` with
        ``include_dirs``.
    process_fn
        Takes an iterator over the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of an input. It is called once per part and must yield buffered
        samples when its input ends. None leaves samples unchanged.
    meta_names
        Fields of the metadata to add to samples; None adds none.
    include_dirs
        Additional folders, separated by commas; the suffix ``*n`` repeats the files of a folder n
        times.
    shuffle_buffer
        Size of the shuffle buffer in `MergedDataset`, in samples; 0 keeps the order of the files.
    on_damage
        ``"error"``, or ``"skip"`` to skip damaged samples, which ``num_skipped`` counts.
    part_nbytes
        Bytes of a part of a plain local file, of which cogdata's order of files reads one after the
        other. Other orders share units of samples, whose size follows from the samples.
    prepare_nbytes
        Compressed files and files at URLs with at most as many bytes together, as they are stored,
        are read in advance to read their samples in any order; 0, or more bytes, reads file by
        file.

    Raises
    ------
    ConfigError
        If a setting or a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder does not exist.
    SourceError
        If no file is given.

    Notes
    -----
    Iterating over it yields the parts in order, shared between the workers of a DataLoader, without
    shuffling or resuming, which `MergedDataset` does.
    """

    def __init__(
        self,
        path: Paths,
        process_fn: ProcessFn | None = None,
        *,
        meta_names: Sequence[str] | None = None,
        include_dirs: str | None = None,
        shuffle_buffer: int = 1000,
        on_damage: OnDamage = "error",
        part_nbytes: int = 64 << 20,
        prepare_nbytes: int = PREPARE_NBYTES,
    ) -> None:
        files = TarFiles(
            path,
            meta_names=() if meta_names is None else meta_names,
            include_dirs=include_dirs,
            part_nbytes=part_nbytes,
            on_damage=on_damage,
            prepare_nbytes=prepare_nbytes,
        )
        super().__init__(files, process_fn, shuffle_buffer, on_damage)


class SimpleDistributedWebDataset(MetaDistributedWebDataset):
    """Samples of tar archives without metadata.

    Parameters
    ----------
    path
        As for `MetaDistributedWebDataset`.
    process_fn
        As for `MetaDistributedWebDataset`.
    seed
        Accepted for compatibility and ignored: the seed is set on `MergedDataset`.
    shuffle_buffer
        As for `MetaDistributedWebDataset`.
    """

    def __init__(
        self,
        path: Paths,
        process_fn: ProcessFn | None = None,
        seed: int | None = None,
        *,
        shuffle_buffer: int = 1000,
    ) -> None:
        super().__init__(path, process_fn, shuffle_buffer=shuffle_buffer)
        self.seed = seed


class RecordIterableDataset(FilesDataset):
    """Records of an imported store, as a replacement for the files that they were imported from.

    Samples and process functions are the same as for `MetaDistributedWebDataset` and
    `JsonlIterableDataset` on those files. Seeking to a part takes constant time.

    Parameters
    ----------
    path
        Path or URL of a store written by ``zindex import``.
    process_fn
        As for `JsonlIterableDataset`.
    fields
        Fields to read; None reads all.
    shuffle_buffer
        Size of the shuffle buffer in `MergedDataset`, in samples; 0 keeps the order of the files.
    part_length
        Records per part.

    Raises
    ------
    ConfigError
        If a setting is invalid, or the store has no such field.
    StoreNotFoundError
        If the store does not exist or is not committed.
    StoreError
        If it is not a store of records.

    Notes
    -----
    Iterating over it yields the parts in order, shared between the workers of a DataLoader, without
    shuffling or resuming, which `MergedDataset` does.
    """

    def __init__(
        self,
        path: PlaceLike,
        process_fn: ProcessFn | None = None,
        *,
        fields: Sequence[str] | None = None,
        shuffle_buffer: int = 1000,
        part_length: int = PART_LENGTH,
    ) -> None:
        files = StoredRecords(path, fields=fields, part_length=part_length)
        super().__init__(files, process_fn, shuffle_buffer)
