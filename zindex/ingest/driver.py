"""The driver of ingestion: claim a location, run tasks per partition or shard, commit, resume."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from zindex.arrays import AnyArray
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    SourceError,
    StoreNotFoundError,
)
from zindex.execution.executor import Executor, run_together
from zindex.execution.process_executor import choose_executor
from zindex.execution.progress import Progress, open_progress
from zindex.io import files
from zindex.io.machine import count_cpus
from zindex.io.objects import Place
from zindex.sources.sample_files import SampleFiles
from zindex.store.commit import (
    PLAN_KEY,
    ROOT_KEY,
    StorePlan,
    begin_store,
    commit_store,
    parse_json,
    read_plan,
)
from zindex.store.layout import ArrayLayout
from zindex.store.open import Store, open_store
from zindex.store.records import KIND
from zindex.store.scratch import IMPORT_KEY, begin_import, end_import, has_notes
from zindex.store.shard_files import ShardResult, store_shard

R = TypeVar("R")
#: Returns the task of one shard: a function and its arguments.
ShardTask = Callable[[ArrayLayout, int], tuple[Any, ...]]

# One process reads this much in less time than others take to start.
_NBYTES_ALONE = 1 << 20
#: Attribute of a store with what it is made of.
SOURCES = "sources"
#: Maximum number of sources that a store names.
MAX_SOURCES = 64
# User-facing names of the entries of an identity.
_NAMES = {
    "source": "the files, or their sizes",
    "meta_names": "meta_names (--meta)",
    "fields": "fields (--field)",
    "dtypes": "dtypes (--dtype)",
    "skip_damaged": "on_damage (--on-damage)",
    "column": "column (--column)",
    "end_id": "append_eod (--append-eod)",
    "sentences": "split_sentences (--split-sentences), language or sentencex",
    "token_dtype": "token_dtype (--token-dtype)",
}


class Workers(NamedTuple):
    """Where tasks run and where progress is shown."""

    executor: Executor
    shown: Progress


@contextmanager
def open_workers(
    client: Any,
    num_processes: int | None,
    progress: bool,
    *tasks: Callable[..., Any],
    source: SampleFiles | None = None,
) -> Iterator[Workers]:
    """Open the executor for a client or for processes of this machine, and the progress display.

    Parameters
    ----------
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    num_processes
        Processes to start instead of using a client; 1 is this process, 0 one per core unless the
        source is small, None none.
    progress
        Whether to show progress bars on a terminal, or log lines otherwise.
    tasks
        Functions whose modules the processes import at startup.
    source
        The input of the tasks.

    Raises
    ------
    ConfigError
        If both are given.
    """
    if num_processes == 0:
        is_small = source is not None and _is_small(source)
        num_processes = 1 if is_small else count_cpus()
    chosen = choose_executor(client, num_processes, *tasks)
    with chosen as executor, open_progress(progress) as shown:
        yield Workers(executor, shown)


def _is_small(source: SampleFiles) -> bool:
    """Return whether one process reads a source faster than others start."""
    sizes = map(source.part_nbytes, range(source.num_parts))
    return sum(_NBYTES_ALONE if size is None else size for size in sizes) < _NBYTES_ALONE


async def write_store(
    plan: StorePlan,
    workers: Workers,
    title: str,
    task: ShardTask,
    *,
    stage: str = "convert",
    facts: Mapping[str, Any] | None = None,
    sources: Sequence[str] = (),
    rows: Mapping[str, AnyArray] = MappingProxyType({}),
    keep: Callable[[Place], None] | None = None,
) -> Store:
    """Write and commit a planned store, keeping committed stores and finished shards.

    Parameters
    ----------
    plan
        The store.
    workers, title
        Where tasks run and progress is shown, and the name of the step.
    task
        Returns the task of a shard. Large arrays are submitted first, so that none is left for the
        end.
    stage
        First word of the keys of the tasks.
    facts
        Attributes of the store that are not part of its identity.
    sources
        Files or corpora that it is made of; the first ones are kept among its attributes.
    rows
        In-memory arrays by name, which need no tasks.
    keep
        Called with the location of the store before the commit, to add what the store keeps next to
        its arrays; also if it is already committed.

    Raises
    ------
    FingerprintMismatchError
        If a store with other content exists.
    """
    with workers.shown.step(title, plan.num_shards) as advance:
        try:
            store = open_store(plan.root, kind=plan.kind, expected=plan.fingerprint)
        except StoreNotFoundError:
            plan = await asyncio.to_thread(begin_store, plan)
        else:
            advance(plan.num_shards)
            if keep is not None:
                await asyncio.to_thread(keep, plan.root)
            return store

        async def write(layout: ArrayLayout, shard: int) -> ShardResult:
            values, (start, stop) = rows.get(layout.name), layout.shard_bounds(shard)
            if values is None:
                key = f"{stage}-{plan.root.name[:28]}-{layout.name}-{shard}"
                result: ShardResult = await workers.executor.run(*task(layout, shard), key=key)
            else:
                result = await asyncio.to_thread(
                    store_shard, plan.root, layout, shard, lambda: values[start:stop]
                )
            advance(1)
            return result

        results = await run_together(
            write(layout, shard)
            for layout in sorted(plan.layouts, key=lambda layout: -layout.nbytes)
            for shard in range(layout.num_shards)
        )
    if keep is not None:
        await asyncio.to_thread(keep, plan.root)
    receipts = [result.receipt for result in results]
    made = dict(facts or {})
    if sources:
        # No local folder: the bytes of a store do not depend on where it was made.
        named = [url if "://" in url else os.path.basename(url) for url in sources[:MAX_SOURCES]]
        made |= {SOURCES: named, "num_sources": len(sources)}
    await asyncio.to_thread(commit_store, plan, receipts, made)
    return open_store(plan.root, kind=plan.kind, expected=plan.fingerprint)


@dataclass(frozen=True, slots=True)
class Claim:
    """A location claimed for one import; concurrent imports of the same content share the claim."""

    #: Location of the store, or the work folder of a pair.
    root: Place
    #: Everything that determines the content.
    identity: dict[str, Any]
    #: Kind of the store.
    kind: str = KIND

    async def run(
        self, find: Callable[[], R | None], make: Callable[[], Awaitable[R]], *, restart: bool
    ) -> R:
        """Return the finished result, or claim the location and create it.

        Parameters
        ----------
        find
            Returns the finished result, or None.
        make
            Creates it, keeping finished partitions and shards of an earlier call.
        restart
            See `take`.
        """
        found = await asyncio.to_thread(find)
        if found is not None:
            return found
        await asyncio.to_thread(self.take, restart=restart)
        try:
            return await make()
        except FileNotFoundError:  # such as StoreNotFoundError
            # A concurrent call with the same result removes the scratch files when it has finished.
            found = await asyncio.to_thread(find)
            if found is None:
                raise
            return found
        except (ConfigError, SourceError):
            await asyncio.to_thread(self._leave)
            raise

    def _leave(self) -> None:
        """Remove a refused import, unless it has finished partitions to resume from."""
        if has_notes(self.root) or files.exists(self.root / PLAN_KEY):
            return
        self._remove()
        if isinstance(self.root, Path):
            with suppress(OSError):  # another import has begun
                (self.root / PLAN_KEY).parent.rmdir()
                self.root.rmdir()

    def take(self, *, restart: bool) -> None:
        """Claim the location, unless it has an unfinished import of other content.

        An import without finished partitions, for example because its first call had a wrong
        setting, is replaced. If it is still running, it fails after its next partition: see
        `check`.

        Parameters
        ----------
        restart
            Whether to first remove any unfinished import, also of the same content. No other import
            may be running at this location.

        Raises
        ------
        FingerprintMismatchError
            If the location has other files, or another import that is not to be removed.
        """
        path = self.root / IMPORT_KEY
        if files.exists(path):
            names = [] if restart else self._differences()
            if restart:
                self._remove()
            elif names and not has_notes(self.root) and not files.exists(self.root / PLAN_KEY):
                # Compare again, because a concurrent import of this content may have claimed the
                # location.
                if self._differences():
                    files.remove_file(path)
            elif names:
                raise FingerprintMismatchError(
                    f"{self.root} holds an unfinished import of another source, or with other "
                    f"settings; what differs: {', '.join(names)}; choose another place or, if no "
                    "import is running there, remove that one with restart=True (--restart)"
                )
        begin_import(self.root, self.identity)

    def check(self) -> None:
        """Check that no other import has claimed the location since.

        Raises
        ------
        FingerprintMismatchError
            If one has.
        """
        names = self._differences()
        if names:
            raise FingerprintMismatchError(
                f"{self.root} must have one import at a time, another one has begun there; "
                f"what differs: {', '.join(names)}; choose another place"
            )

    def find_store(self, identify: Callable[[Store], Any], what: str) -> Store | None:
        """Return the committed store and release the claim; None if it is not committed.

        Parameters
        ----------
        identify
            Returns the identity with which a store was created.
        what
            Description of other stores, for the message.

        Raises
        ------
        FingerprintMismatchError
            If the store has another identity.
        """
        try:
            store = open_store(self.root, kind=self.kind)
        except StoreNotFoundError:
            return None
        if identify(store) != self.identity:
            raise FingerprintMismatchError(
                f"{self.root} holds {what}; choose another place or remove the store"
            )
        end_import(self.root)
        return store

    def _differences(self) -> list[str]:
        """Return the differences to the import that claimed the location, in user-facing terms."""
        path = self.root / IMPORT_KEY
        try:
            content = files.read_file(path)
            if not content:  # just created, or by a process that died; `begin_import` decides
                return []
            stored = parse_json(content, str(path))
        except StoreNotFoundError:  # a concurrent import just finished, or replaces another
            return []
        return [
            _NAMES.get(name, name)
            for name in sorted({*stored, *self.identity})
            if stored.get(name) != self.identity.get(name)
        ]

    def _remove(self) -> None:
        """Remove the files of an unfinished import, but never a committed store."""
        root = self.root
        if files.exists(root / ROOT_KEY):
            return
        try:
            plan = read_plan(root)
        except StoreNotFoundError:
            plan = {"kind": self.kind, "arrays": []}
        if plan["kind"] != self.kind:
            raise FingerprintMismatchError(
                f"{root} must hold an unfinished import to be removed, it holds an unfinished "
                f"store of kind {plan['kind']!r}; choose another place"
            )
        for array in plan["arrays"]:
            files.remove_tree(root / array["name"])
        metadata = (root / PLAN_KEY).parent
        for key in sorted(files.list_keys(metadata)):
            if key != IMPORT_KEY.rpartition("/")[2]:
                files.remove_file(metadata / key)
        # The claim is removed last, so that an interrupted removal is repeated.
        end_import(root)
