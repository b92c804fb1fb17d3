"""Remove exact and near duplicates, and records that overlap with benchmarks.

The source is read once: a task per partition keeps its lines, with what is compared of each, in the
work folder ``TARGET.work``. This process finds the duplicates of all partitions, and tasks compare
those that may be similar. Tasks then write the kept lines; the finished folder is renamed. All
stages keep finished work, so an interrupted call resumes.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zindex.arrays import AnyArray
from zindex.errors import ConfigError, FingerprintMismatchError, check_whole
from zindex.execution.executor import run_builds, run_together
from zindex.ingest.dedup.benchmarks import Benchmarks, read_benchmarks
from zindex.ingest.dedup.duplicates import (
    Candidates,
    Decisions,
    Near,
    Reason,
    Table,
    compare,
    find_exact,
    find_groups,
    plan_candidates,
)
from zindex.ingest.dedup.sketches import (
    SHINGLE_LENGTH,
    Sketched,
    Sketcher,
    choose_bands,
    load_minhash,
    sketch_partition,
)
from zindex.ingest.dedup.write_kept import DROPPED, Dropped, Written, write_kept
from zindex.ingest.driver import Claim, Workers, open_workers
from zindex.ingest.length_source import is_store
from zindex.ingest.records.open_files import open_files
from zindex.ingest.records.partitions import count_all_lines, plan_partitions, return_value
from zindex.ingest.records.read_partitions import Partition
from zindex.io import files
from zindex.io.file_list import named_paths
from zindex.io.local import local_path, sync_directory
from zindex.sources.damage_log import OnDamage
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.sample_files import Paths
from zindex.store.commit import fingerprint, read_sealed, seal

#: The summary of a finished target, written last.
SUMMARY = "summary.json"
_SEAL = "sha256"
# Bytes of a task, unless the files of the target are smaller.
_LEAST_NBYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class BenchmarkCount:
    """What was found of one benchmark file."""

    file: str
    #: Texts, those too short to be found, and different n-grams.
    num_texts: int
    num_short: int
    num_ngrams: int
    #: Records that share an n-gram with this file, and with none before it.
    num_dropped: int


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """Result of `dedup`."""

    #: The folder of kept lines.
    target: str
    num_records: int
    num_kept: int
    #: Dropped records, by reason.
    num_exact: int
    num_near: int
    num_contaminated: int
    #: Damaged lines, in neither list.
    num_skipped: int
    #: Bytes of the kept lines.
    nbytes: int
    benchmarks: tuple[BenchmarkCount, ...] = ()


def dedup(
    source: Paths,
    target: str | os.PathLike[str],
    *,
    near: float | None = None,
    field: str | None = None,
    decontaminate: Paths = (),
    ngram: int = 13,
    list_only: bool = False,
    part_nbytes: int = 1 << 25,
    on_damage: OnDamage = "error",
    restart: bool = False,
    client: Any = None,
    num_processes: int | None = None,
    progress: bool = False,
) -> Deduplicated:
    """Write the lines of jsonl files without duplicate and contaminated records.

    Parameters
    ----------
    source
        Jsonl files, folders or brace patterns, plain or compressed, local or in an object store.
    target
        The new folder, on a file system that all workers share.
    near
        Least Jaccard similarity, in (0, 1], of the sets of shingles (five consecutive words) of
        near duplicates, such as 0.8; None removes exact duplicates only.
    field
        The field to compare: a text or a list of messages. None compares documents,
        conversations, pairs and groups as `zindex.tokenize` reads them.
    decontaminate
        Jsonl, Parquet or text files of benchmarks. Records that share an n-gram with one of their
        texts are dropped.
    ngram
        Words of an n-gram.
    list_only
        Whether to write only the lists of what would be dropped.
    part_nbytes
        Bytes of lines in a file of the target.
    on_damage
        Whether lines that are not JSON objects with a text are an error, or are left out and
        counted.
    restart
        Whether to remove unfinished output first; no other process may be writing to it.
    client, num_processes, progress
        See `zindex.ingest.records.import_records.import_records`.

    Returns
    -------
    result
        The counts, which ``target/summary.json`` keeps. ``target/part-*.jsonl`` has the kept
        lines, unchanged and in order; ``target/dropped/part-*.ndjson`` has file and line of each
        dropped record, the reason, and what it duplicates.

    Raises
    ------
    ConfigError
        If a setting is out of range, a source is a store, or ``near`` is given without the library
        ``rensa``.
    SourceError
        If a line is damaged and damage is not skipped.
    StoreNotFoundError
        If a file is missing.
    FingerprintMismatchError
        If the target exists with other content.

    Notes
    -----
    Law: the result depends only on the lines, their order and the settings, not on the number of
    workers or interruptions. Contaminated records are dropped first; of exact duplicates, and then
    of similar records, the first is kept. Exact duplicates have equal texts after Unicode
    normalisation (NFC), with runs of white space as one blank; of conversations all messages are
    compared. No near duplicate is dropped below the threshold, because candidates are compared by
    their exact shingles; of pairs at the threshold at least 99% are found.

    Cost: the lines are written twice, first to ``target.work``. This process needs about 80 bytes
    per record, and with ``near`` as much for each band in which a record has a candidate. A task
    needs about 300 MiB, and with ``near`` the shingles of 4,096 texts.

    Source: MinHash by ``rensa`` (Broder, 1997; Dahlgaard, Knudsen, Thorup, 2017). 13-grams of
    words as in Brown et al., "Language Models are Few-Shot Learners", 2020, appendix C.
    """
    if near is not None and not 0 < near <= 1:
        raise ConfigError(
            f"near (--near) must be a similarity above 0 and at most 1, got {near}; 0.8 is usual"
        )
    if ngram < 1:
        raise ConfigError(f"ngram (--ngram) must be at least 1 word, got {ngram}; 13 is usual")
    check_whole("part_nbytes (--part-nbytes)", part_nbytes, 1)
    for path in filter(is_store, named_paths(source)):
        raise ConfigError(
            f"dedup reads jsonl files, {path} is a store; remove the duplicates of the files that "
            "it was made of, and make it again"
        )
    least = min(part_nbytes, _LEAST_NBYTES)
    opened, identity = open_files(source, "jsonl", on_damage=on_damage, least_nbytes=least)
    assert isinstance(opened, JsonlFiles)
    bands = None if near is None else choose_bands(near)
    benchmarks = read_benchmarks(decontaminate, ngram) if decontaminate else None
    sketcher = Sketcher(opened, field, bands, benchmarks, on_damage == "skip", part_nbytes)
    folder = local_path(target, "a folder of kept lines")
    identity = {
        "source": identity["source"],
        "near": near,
        "shingle": SHINGLE_LENGTH,
        "minhash": None if near is None else load_minhash().ALGORITHM_VERSION,
        "field": field,
        "ngram": ngram if benchmarks else None,
        "decontaminate": benchmarks and benchmarks.identity(),
        "list_only": list_only,
        "part_nbytes": part_nbytes,
        "skip_damaged": sketcher.skip_damaged,
        "format_version": 1,
    }
    work_folder = folder.with_name(f"{folder.name}.work")
    claim = Claim(work_folder, identity, kind="dedup")
    with open_workers(client, num_processes, progress, sketch_partition, source=opened) as workers:
        kept = work_folder / "_zindex" / f"kept-{fingerprint(identity)[:12]}"
        work = _Dedup(sketcher, near, folder, kept, claim, list_only, workers)
        return run_builds(claim.run(work.find, work.make, restart=restart))


@dataclass(frozen=True, slots=True)
class _Dedup:
    """One removal of duplicates."""

    sketcher: Sketcher
    near: float | None
    folder: Path
    #: The folder while it is written; its name depends on the settings.
    kept: Path
    claim: Claim
    list_only: bool
    workers: Workers

    def find(self) -> Deduplicated | None:
        """Return the finished result, or None; other content is an error."""
        names = files.list_names(self.folder)
        if not names and not os.path.exists(self.folder):
            return None
        facts = read_sealed(self.folder / SUMMARY, _SEAL) if SUMMARY in names else {}
        if facts.get("made_of") != self.claim.identity:
            raise FingerprintMismatchError(
                f"{self.folder} must be new, it exists with other content or settings; choose "
                "another place or remove it"
            )
        files.remove_tree(self.claim.root)
        rows = (BenchmarkCount(**row) for row in facts["benchmarks"])
        counts = {name: facts[name] for name in Deduplicated.__slots__ if name in facts}
        return Deduplicated(**counts | {"target": str(self.folder), "benchmarks": tuple(rows)})

    async def make(self) -> Deduplicated:
        """Read the source, find duplicates, write what is kept, and rename the folder."""
        sketcher, executor = self.sketcher, self.workers.executor
        least = min(sketcher.block_nbytes, _LEAST_NBYTES)
        partitions = list(plan_partitions(sketcher.source, self.claim.identity, "dedup", least))
        source = await count_all_lines(sketcher.source, executor, self.folder.name)
        assert isinstance(source, JsonlFiles)
        shared = await executor.hold(
            return_value,
            replace(sketcher, source=source),
            key=f"dedup-{partitions[0].name}-settings",
        )
        sketched = await self._run(
            "read", [(sketch_partition, shared, self.claim.root, item) for item in partitions]
        )
        table = Table(self.claim.root, [block for item in sketched for block in item.blocks])
        decisions = await self._decide(shared, table, partitions)
        written = await self._write(shared, table, decisions)
        result = self._summarise(sketched, decisions, written)
        await asyncio.to_thread(self._commit, result)
        return result

    async def _run(self, verb: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run the tasks of a stage and return their results in order."""
        name = self.folder.name
        with self.workers.shown.step(f"{name}: {verb}", len(calls)) as advance:

            async def run(number: int, call: tuple[Any, ...]) -> Any:
                key = f"dedup-{fingerprint(self.claim.identity)[:12]}-{verb}-{number}"
                result = await self.workers.executor.run(*call, key=key)
                await asyncio.to_thread(self.claim.check)
                advance(1)
                return result

            return await run_together(run(number, call) for number, call in enumerate(calls))

    async def _decide(
        self, shared: Any, table: Table, partitions: Sequence[Partition]
    ) -> Decisions:
        """Return which records are dropped."""
        decisions = await asyncio.to_thread(find_exact, table)
        bands = self.sketcher.bands
        if bands is None or self.near is None:
            return decisions
        groups = await asyncio.to_thread(find_groups, table, decisions.reasons, bands.num_bands)
        tag = partitions[0].name
        planned: list[Candidates] = list(plan_candidates(table, groups, tag))
        calls = [(compare, shared, self.claim.root, item, self.near) for item in planned]
        found: list[list[Near]] = await self._run("compare", calls)
        for record, other, similarity in (near for nears in found for near in nears):
            decisions.reasons[record] = Reason.NEAR
            decisions.others[record] = other
            decisions.similarities[record] = similarity
        return decisions

    async def _write(self, shared: Any, table: Table, decisions: Decisions) -> list[Written]:
        """Write the blocks and return what was written of each."""
        root, folder = self.claim.root, self.kept
        files.make_folder(folder / DROPPED)
        numbers = await asyncio.to_thread(table.read, "number")
        calls = []
        for number, block in enumerate(table.blocks):
            span = slice(*table.starts[number : number + 2].tolist())
            dropped = _cut(table, decisions, numbers, span)
            name = f"part-{number:06d}"
            calls.append(
                (write_kept, shared, root, folder, name, block, dropped, not self.list_only)
            )
        return await self._run("write", calls)

    def _summarise(
        self, sketched: Sequence[Sketched], decisions: Decisions, written: Sequence[Written]
    ) -> Deduplicated:
        """Return the counts."""
        reasons = np.bincount(decisions.reasons, minlength=len(Reason)).tolist()
        is_contaminated = decisions.reasons == Reason.CONTAMINATED
        return Deduplicated(
            target=str(self.folder),
            num_records=len(decisions.reasons),
            num_kept=reasons[Reason.NONE],
            num_exact=reasons[Reason.EXACT],
            num_near=reasons[Reason.NEAR],
            num_contaminated=reasons[Reason.CONTAMINATED],
            num_skipped=sum(item.num_skipped for item in sketched),
            nbytes=sum(item.nbytes for item in written),
            benchmarks=_count(self.sketcher.benchmarks, decisions.others[is_contaminated]),
        )

    def _commit(self, result: Deduplicated) -> None:
        """Write the summary, give the folder its name, and remove the work folder."""
        kept = self.kept
        facts = asdict(result) | {"made_of": self.claim.identity}
        del facts["target"]
        files.write_once(kept / SUMMARY, [seal(json.loads(json.dumps(facts)), _SEAL)])
        with suppress(OSError):
            os.rmdir(kept / DROPPED)  # of nothing
        sync_directory(kept)
        os.rename(kept, self.folder)
        sync_directory(self.folder.parent)
        files.remove_tree(self.claim.root)


def _cut(table: Table, decisions: Decisions, numbers: AnyArray, span: slice) -> Dropped:
    """Return the dropped records of a block, which are a span of all records."""
    rows = np.flatnonzero(decisions.reasons[span])
    reasons = decisions.reasons[span][rows]
    others, is_contaminated = decisions.others[span][rows], reasons == Reason.CONTAMINATED
    records = np.where(is_contaminated, 0, others)
    urls = np.where(is_contaminated, others, table.locate_urls(records) if len(rows) else others)
    return Dropped(rows, reasons, urls, numbers[records], decisions.similarities[span][rows])


def _count(benchmarks: Benchmarks | None, owners: AnyArray) -> tuple[BenchmarkCount, ...]:
    """Return the counts of each benchmark file."""
    if benchmarks is None:
        return ()
    counts = np.bincount(owners, minlength=len(benchmarks.files)).tolist()
    return tuple(
        BenchmarkCount(file.url, file.num_texts, file.num_short, file.num_ngrams, count)
        for file, count in zip(benchmarks.files, counts, strict=True)
    )
