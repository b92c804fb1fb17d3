"""A growing store at one generation as a keyed store, which datasets open like any other."""

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import SourceError, StoreNotFoundError
from zindex.io.objects import Place, PlaceLike
from zindex.keyed.columns import Column
from zindex.keyed.growing.fields import TEXT_SHAPES, GrowingSchema
from zindex.keyed.growing.generations import Generations
from zindex.keyed.growing.growing_log import GrowingLog
from zindex.keyed.growing.homes import FieldArrays
from zindex.keyed.store import KeyedStore
from zindex.plan.settings import check_whole
from zindex.store.records import LENGTH_SUFFIX, decode_value
from zindex.store.rows import RowReader, Spans, read_many
from zindex.store.tokenizer_note import read_note


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
        self._generations: Generations | None = None
        self._joined: dict[str, FieldArrays] = {}

    def _open(self, path: Place, *, strict: bool) -> tuple[Mapping[str, Column], str]:
        log = GrowingLog(path)
        if self.generation is None:
            self.generation = log.history.number
        if self.generation > log.history.number:
            raise StoreNotFoundError(
                f"{path} must have generation {self.generation}, its head is "
                f"{log.history.number}; wait for it, or give an earlier one"
            )
        live = np.flatnonzero(log.history.find_live(self.generation))
        if not len(live):
            raise SourceError(
                f"{path} must have records to be a keyed store, generation {self.generation} has "
                "none; append records, or give a generation before the eviction"
            )
        self._take(log, live, is_dense=True)
        assert self._columns is not None
        return self._columns, log.fingerprint_at(self.generation)

    def _take(self, log: GrowingLog, chosen: Int64Array, *, is_dense: bool) -> None:
        """Use some generations of a store."""
        note = read_note(log.root)
        known = log.schema.num_ids
        self.num_ids = note.vocab_size if known is None and note is not None else known
        self.path = log.root
        self._generations = Generations(log, chosen, is_dense=is_dense)
        self._joined = self._generations.join()
        self._columns = _make_columns(log.schema, self._joined)

    @property
    def text_keys(self) -> list[str]:
        """Sorted names of texts, bytes and JSON values."""
        if self._generations is None:
            return []
        keys = self._generations.log.schema.keys
        return sorted(key.name for key in keys if key.shape in TEXT_SHAPES)

    @property
    def num_text_records(self) -> int | None:
        """Records of texts; None if there are no texts."""
        return self.num_records if self.text_keys else None

    def read_texts(self, keys: Sequence[str], records: Int64Array) -> dict[str, list[Any]]:
        """Return the texts, bytes or JSON values of records, by key.

        Parameters
        ----------
        keys
            Of ``text_keys``.
        records
            Shape (records,), int64, in any order.
        """
        if self._generations is None or not keys:
            return {}
        forms = {name: form for name, _, form in self._generations.log.schema.fields}
        arrays = [self._joined[key] for key in keys]
        wanted = [Spans(each.offsets, records, records + 2) for each in arrays]
        bounds = [found.reshape(-1, 2).T.copy() for found in read_many(wanted)]
        wanted = [
            Spans(each.values, starts, stops)
            for each, (starts, stops) in zip(arrays, bounds, strict=True)
        ]
        texts = {}
        for key, values, (starts, stops) in zip(keys, read_many(wanted), bounds, strict=True):
            parts = np.split(values, np.cumsum(stops - starts)[:-1]) if len(records) else []
            texts[key] = [decode_value(forms[key], part.tobytes()) for part in parts]
        return texts

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
        values, offsets = (cast("RowReader", each) for each in joined[key.name])
        lengths = None
        if key.shape == "group":
            name = f"{key.name}{LENGTH_SUFFIX}"
            items = joined[name]
            lengths = Column(
                name, cast("RowReader", items.values), cast("RowReader", items.offsets)
            )
        columns[key.name] = Column(key.name, values, offsets, lengths)
    return columns
