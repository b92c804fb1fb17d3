"""Tar and jsonl files to a ragged Zarr store, in which any record is found at once.

The first stage parses each part of the source once and leaves its values beside the store; sums
over what it found say where everything goes; the second stage writes each shard from the values
that cover it. Both skip what is done already, so an import that died goes on where it was.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zindex import schema
from zindex.building.executor import Executor, open_executor, run_builds, run_together
from zindex.building.process_executor import open_processes
from zindex.building.progress import Progress, open_progress
from zindex.building.records.gathering import Gathered, Kind, store_gathered_shard
from zindex.building.records.portions import (
    MAX_PARTS,
    PORTION_NBYTES,
    count_all_lines,
    cut_portions,
    return_value,
)
from zindex.building.records.reading import Portion, PortionResult, Settings, read_portion
from zindex.building.records.record_files import open_files
from zindex.building.records.unfinished import check_claim, check_unfinished
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    StoreNotFoundError,
)
from zindex.sources.sample_files import SampleFiles
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.objects import Place, PlaceLike, place_of
from zindex.store.open import Store, open_store
from zindex.store.records import BYTE_GRID, KIND, check_dtypes, plan_array, record_layouts
from zindex.store.scratch import begin_import, end_import
from zindex.store.shard_files import ShardResult, store_all_shards

logger = logging.getLogger(__name__)

_PORTION_NBYTES, _MAX_PARTS = PORTION_NBYTES, MAX_PARTS


def import_records(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | SampleFiles,
    target: PlaceLike,
    *,
    kind: Literal["jsonl", "tar"] | None = None,
    fields: Sequence[str] | None = None,
    dtypes: Mapping[str, npt.DTypeLike] | None = None,
    meta_names: Sequence[str] = (),
    include_dirs: str | None = None,
    part_nbytes: int | None = None,
    on_damage: Literal["error", "skip"] = "error",
    restart: bool = False,
    grid: ChunkGrid = BYTE_GRID,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
) -> Store:
    """Import the records of tar or jsonl files into a ragged Zarr store, in the source's order.

    Parameters
    ----------
    source
        Files, folders or brace patterns with commas between, here or in an object store, or a list
        of them; or files that are open already, whose own settings then hold.
    target
        Place of the store.
    kind
        What the files are; None tells it from their names.
    fields
        Fields to keep, in this order; None keeps all, in the order in which they come up.
    dtypes
        Dtype of fields that are flat lists of numbers, such as token ids: they come back as arrays.
        Floats are rounded to it; a null is no value.
    meta_names
        Fields of the sidecars of tar files to join; see ``TarFiles``.
    include_dirs
        Folders to read besides; see ``TarFiles``.
    part_nbytes
        Bytes of a file that are read in one go; the store is the same for any.
    on_damage
        ``"error"`` stops at the first damage; ``"skip"`` leaves damaged records out and counts them
        in the attribute ``num_skipped``.
    restart
        Whether to remove an unfinished import that is there, rather than to go on with it; another
        one would be an error. No other import may be running there. A finished store stays.
    grid
        Bytes per chunk and shard of every array, and the codec; the default is 64 KiB and 64 MiB,
        uncompressed.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``. Lines are
        parsed by Python, one at a time in each process: give workers one thread each.
    num_processes
        Processes of this machine that do the work in place of a client; the calling script must
        have its work below ``if __name__ == "__main__":``.
    progress
        Whether to show bars on a terminal, or log lines elsewhere.

    Returns
    -------
    store
        The opened store; ``zindex.datasets.record_dataset.RecordDataset`` is the torch dataset.

    Raises
    ------
    ConfigError
        If a setting does not fit the files, or there are more than 64 fields.
    SourceError
        If a file is damaged, a field that was asked for is in no record, or metadata is joined to
        none.
    StoreNotFoundError
        If a file is missing.
    FingerprintMismatchError
        If the place holds something else.

    Notes
    -----
    Law: record i of the store equals record i of the source, as the streaming datasets give it: a
    null at the top level of a line is an empty text. Cost: the source is read once, and written
    twice, the first time to ``_zindex/scratch`` in the store, which goes with the commit. Memory:
    about 100 MiB per thread, and twice the largest record.
    """
    settings = Settings(
        None if fields is None else tuple(dict.fromkeys(fields)),
        tuple(sorted(check_dtypes(dtypes or {}).items())),
        on_damage == "skip",
    )
    opened, identity = open_files(
        source,
        kind,
        meta_names=meta_names,
        include_dirs=include_dirs,
        part_nbytes=part_nbytes,
        on_damage=on_damage,
    )
    root = place_of(target)
    work = _Import(opened, root, settings, identity | settings.to_json(), grid, restart)
    if client is not None and num_processes is not None:
        raise ConfigError(
            "client (--scheduler) and num_processes (--processes) both say where the work is done; "
            "give one of them"
        )
    place = (
        open_executor(client)
        if num_processes is None
        else open_processes(num_processes, read_portion)
    )
    with place as executor, open_progress(progress) as shown:
        return run_builds(work.run(executor, shown))


class _Import:
    """One import.

    Parameters
    ----------
    source
        The files.
    root
        Place of the store.
    settings
        How they are read.
    identity
        Everything that decides the records.
    grid
        How the arrays are cut.
    restart
        Whether to remove an unfinished import first.
    """

    def __init__(
        self,
        source: SampleFiles,
        root: Place,
        settings: Settings,
        identity: dict[str, Any],
        grid: ChunkGrid,
        restart: bool,
    ) -> None:
        self.source = source
        self.root = root
        self.settings = settings
        self.identity = identity
        self.grid = grid
        self.restart = restart

    async def run(self, executor: Executor, shown: Progress) -> Store:
        """Return the store, finished."""
        found = await asyncio.to_thread(self._find)
        if found is not None:
            return found
        await asyncio.to_thread(check_unfinished, self.root, self.identity, restart=self.restart)
        await asyncio.to_thread(begin_import, self.root, self.identity)
        try:
            await self._make(executor, shown)
        except StoreNotFoundError:
            # Whoever imports the same at the same time has removed the scratch after the commit.
            found = await asyncio.to_thread(self._find)
            if found is None:
                raise
        await asyncio.to_thread(end_import, self.root)
        return open_store(self.root, kind=KIND)

    def _find(self) -> Store | None:
        """Return the store if it is finished, or None; another one is an error."""
        try:
            store = open_store(self.root, kind=KIND)
        except (NotReadyError, StoreNotFoundError):
            return None
        if store.spec.get("import") != self.identity:
            raise FingerprintMismatchError(
                f"{self.root} holds records of another source, or imported with other settings; "
                "choose another place or remove the store"
            )
        end_import(self.root)
        return store

    async def _make(self, executor: Executor, shown: Progress) -> None:
        """Read the source, write all shards, and commit."""
        name = self.root.name
        portions = list(cut_portions(self.source, self.identity, _PORTION_NBYTES, _MAX_PARTS))
        source = await count_all_lines(self.source, executor, name)
        held = await executor.hold(return_value, source, key=f"import-{name[:28]}-files")
        with shown.step(f"{name}: read", len(portions)) as advance:

            async def read(portion: Portion) -> PortionResult:
                key = f"import-{portion.name}"
                result = await executor.run(
                    read_portion, held, self.root, portion, self.settings, key=key
                )
                await asyncio.to_thread(check_claim, self.root, self.identity)
                advance(1)
                return result

            results = await run_together(map(read, portions))
        meta_fields = [name.lower() for name in self.identity["meta_names"]]
        gathered = Gathered(results, self.settings, meta_fields)
        prefix, urls = _split_prefix(self.source.urls)
        own = url_arrays(urls, gathered.count_of_urls(len(urls)))
        plan = await asyncio.to_thread(begin_store, self._plan(gathered, own))
        layouts = {layout.name: layout for layout in plan.layouts}
        wanted: list[tuple[Any, Kind, ArrayLayout]] = []
        for field in gathered.fields:
            wanted += [
                (field, "value", layouts[field.value.name]),
                (field, "offset", layouts[field.offset.name]),
            ]
            if field.has_forms:
                wanted.append((field, "form", layouts[field.form_array.name]))
        # The large ones first, so that no process is left alone with one at the end.
        wanted.sort(key=lambda item: -item[2].nbytes)
        with shown.step(f"{name}: write", plan.num_shards) as advance:

            async def write(field: Any, kind: Kind, layout: ArrayLayout, shard: int) -> ShardResult:
                pieces = tuple(gathered.pieces(field, kind, *layout.shard_bounds(shard)))
                key = f"gather-{name[:28]}-{layout.name}-{shard}"
                result = await executor.run(
                    store_gathered_shard, self.root, layout, shard, kind, pieces, key=key
                )
                advance(1)
                return result

            stored = await run_together(
                write(field, kind, layout, shard)
                for field, kind, layout in wanted
                for shard in range(layout.num_shards)
            )
            for array, values in own.items():
                stored += await asyncio.to_thread(
                    store_all_shards, self.root, layouts[array], values
                )
                advance(layouts[array].num_shards)
        receipts = [result.receipt for result in stored]
        facts = {"num_skipped": gathered.num_skipped, "url_prefix": prefix, **gathered.counts}
        await asyncio.to_thread(commit_store, plan, receipts, facts)
        if not gathered.num_records:
            logger.warning(
                "%s has no records: its source has none, or only damaged ones (left out: %s)",
                self.root,
                f"{gathered.num_skipped:,}",
            )

    def _plan(self, gathered: Gathered, own: Mapping[str, npt.NDArray[Any]]) -> StorePlan:
        """Return the plan of the store."""
        layouts = record_layouts(gathered.fields, gathered.num_records, self.grid)
        specs = (schema.URL_TEXT, schema.URL_TEXT_BOUND, schema.URL_RECORD_BOUND)
        for array in specs:
            values = own[array.name]
            layouts.append(plan_array(array, len(values), values.dtype.name, self.grid))
        spec = {
            "num_records": gathered.num_records,
            "num_urls": len(own[schema.URL_RECORD_BOUND.name]) - 1,
            "url_digest": hashlib.sha256(own[schema.URL_TEXT.name].tobytes()).hexdigest(),
            "fields": [field.to_json() for field in gathered.fields],
            "import": self.identity,
        }
        return StorePlan(self.root, KIND, spec, tuple(layouts))


def _split_prefix(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folder that all files are in, and their names below it."""
    first, last = min(urls), max(urls)
    pairs = enumerate(zip(first, last, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(first), len(last)))
    prefix = first[: first.rfind("/", 0, same) + 1]
    return prefix, [url[len(prefix) :] for url in urls]


def url_arrays(urls: Sequence[str], counts: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that say which file each record is from.

    Parameters
    ----------
    urls
        The files.
    counts
        Shape (files,), int64: records of each.
    """
    names = [url.encode("utf-8", "surrogateescape") for url in urls]
    bounds = list(accumulate(map(len, names), initial=0))
    return {
        schema.URL_TEXT.name: np.frombuffer(b"".join(names), np.uint8),
        schema.URL_TEXT_BOUND.name: np.array(bounds, np.int64),
        schema.URL_RECORD_BOUND.name: np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
    }
