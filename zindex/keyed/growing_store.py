"""A growing store at one generation as a keyed store, which datasets open like any other."""

from collections.abc import Mapping
from typing import Any, Self, cast

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import check_whole
from zindex.growing.fields import TEXT_SHAPES, GrowingSchema
from zindex.growing.generations import Generations
from zindex.growing.growing_log import GrowingLog
from zindex.growing.homes import FieldArrays
from zindex.io.objects import Place, PlaceLike
from zindex.keyed.columns import Column
from zindex.keyed.store import KeyedStore
from zindex.store.record_reader import FieldColumn, FieldReader
from zindex.store.records import LENGTH_SUFFIX, Form
from zindex.store.rows import RowReader


class GrowingStore(KeyedStore):
    """The records of a growing store at one of its generations, which never change.

    Parameters
    ----------
    generation
        Number of a commit; None for the head when the store is loaded.

    Notes
    -----
    Records are numbered from 0, without evicted ones. It reads on when generations are compacted.
    Its fingerprint names the generation, so states of loaders belong to one of them: keep
    `generation` next to a state, and load the store at it to resume.
    """

    format = "growing"

    def __init__(self, generation: int | None = None) -> None:
        super().__init__()
        if generation is not None:
            generation = check_whole("generation", generation, 1)
        self.generation = generation

    def _open(self, path: Place, *, strict: bool) -> tuple[Mapping[str, Column], str]:
        log = GrowingLog(path)
        self.generation, live = log.choose(self.generation)
        self._take(log, live, is_dense=True)
        assert self._columns is not None
        return self._columns, log.fingerprint_at(self.generation)

    def _take(self, log: GrowingLog, chosen: Int64Array, *, is_dense: bool) -> None:
        """Use some generations of a store."""
        self.num_ids = log.read_num_ids()
        self.path = log.root
        generations = Generations(log, chosen, is_dense=is_dense)
        joined = generations.join()
        self._columns = _make_columns(log.schema, joined)
        texts = [
            FieldColumn(name, *_readers_of(joined[name]), None, form, np.empty(0, dtype))
            for name, dtype, form in log.schema.fields
            if form != Form.NUMBERS
        ]
        self._texts = FieldReader(texts, generations.num_records) if texts else None

    @classmethod
    def over(cls, log: GrowingLog, chosen: Int64Array, *, is_dense: bool) -> Self:
        """Return a store of some generations; parameters as of `Generations`."""
        store = cls(log.history.number)
        store._take(log, chosen, is_dense=is_dense)
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            return type(self), (self.generation,)
        return _load, (type(self), self.generation, self.path)


def _load(kind: type[GrowingStore], generation: int | None, path: Place) -> GrowingStore:
    return kind(generation).load(path)


def open_growing(store: PlaceLike, generation: int | None = None) -> GrowingStore:
    """Return the records of a growing store at a generation, for ``BaseDataset.open``.

    Parameters
    ----------
    store
        Path or URL of the store.
    generation
        Number of a commit; None for the head.

    Raises
    ------
    StoreNotFoundError
        If there is no growing store, or it has no such generation.
    SourceError
        If it has no records at the generation.
    """
    return GrowingStore(generation).load(store)


def _make_columns(schema: GrowingSchema, joined: Mapping[str, FieldArrays]) -> dict[str, Column]:
    """Return the numeric keys as columns."""
    columns = {}
    for key in schema.keys:
        if key.shape in TEXT_SHAPES:
            continue
        lengths = None
        if key.shape == "group":
            name = f"{key.name}{LENGTH_SUFFIX}"
            lengths = Column(name, *_readers_of(joined[name]))
        columns[key.name] = Column(key.name, *_readers_of(joined[key.name]), lengths)
    return columns


def _readers_of(arrays: FieldArrays) -> tuple[RowReader, RowReader]:
    """Return the values and offsets of a joined field."""
    return cast("RowReader", arrays.values), cast("RowReader", arrays.offsets)
