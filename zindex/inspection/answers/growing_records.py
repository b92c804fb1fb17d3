"""Open stores of records for answers: those written at once, and growing ones at a generation."""

from dataclasses import dataclass, field
from typing import Any

from zindex.arrays import AnyArray
from zindex.errors import ConfigError
from zindex.growing.generations import Generations
from zindex.growing.growing_log import GrowingLog, is_growing
from zindex.growing.homes import describe_records
from zindex.ingest.length_source import is_store
from zindex.io.objects import Place, PlaceLike, place_of
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store, open_store
from zindex.store.records import KIND
from zindex.store.rows import RowReader


class _MemoryRows(RowReader):
    """An array in memory."""

    def __init__(self, layout: ArrayLayout, values: AnyArray) -> None:
        super().__init__(layout)
        self._values = values

    def _read(self, start: int, stop: int, out: AnyArray) -> None:
        out[:] = self._values[start:stop]


@dataclass(frozen=True, slots=True)
class GenerationStore(Store):
    """A growing store at a generation, as a store of records; pickled as these two."""

    generation: int = 0
    arrays: dict[str, RowReader] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_generation, (self.root, self.generation)

    def _reader(self, name: str) -> RowReader:
        return self.arrays[name]


def holds_records(path: str) -> bool:
    """Return whether there is a store at a path, written at once or growing."""
    return is_store(path) or is_growing(path)


def open_records(url: PlaceLike, generation: int | None = None) -> Store:
    """Return a store of records.

    Parameters
    ----------
    url
        Path or URL of a store, or of a growing store.
    generation
        Generation of a growing store; None is its head. Its records are numbered from 0, without
        evicted ones, as in ``zindex.keyed.open_growing``.

    Raises
    ------
    ConfigError
        If a generation is given of another store.
    StoreNotFoundError, StoreError, SourceError
        If there is no such store or generation, or it has no records.
    """
    place = place_of(url)
    if is_growing(place):
        return _open_generation(place, generation)
    if generation is not None:
        raise ConfigError(
            f"generation (--generation) must come with a growing store, {place} is none; leave it "
            "out"
        )
    return open_store(place, kind=KIND)


def _open_generation(root: Place, generation: int | None) -> GenerationStore:
    """Return the records of a growing store at a generation."""
    log = GrowingLog(root)
    number, live = log.choose(generation)
    spec, layouts, arrays = describe_records(log.schema, [*Generations(log, live).join().values()])
    kind = log.schema.kind
    if kind is not None:
        spec["import"] = {"train_type": kind.get("name"), "schema": kind}
    readers = {
        layout.name: values if isinstance(values, RowReader) else _MemoryRows(layout, values)
        for layout, values in ((layout, arrays[layout.name]) for layout in layouts)
    }
    return GenerationStore(
        root,
        KIND,
        log.fingerprint_at(number),
        spec,
        {"url_prefix": str(root), "spec": spec},
        {layout.name: layout for layout in layouts},
        generation=number,
        arrays=readers,
    )
