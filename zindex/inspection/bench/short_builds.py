"""Run and measure short builds of synthetic data."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zindex.execution.executor import open_executor, run_together
from zindex.execution.timeline import Timeline
from zindex.forecast.job import Job
from zindex.formats.idx_writer import write_index
from zindex.indexing.run import build
from zindex.ingest.length_source import open_source
from zindex.inspection.bench.fitting import MeasuredBuild
from zindex.plan.build_plan import Order, Stored
from zindex.store.layout import CHUNK_LENGTH, SHARD_LENGTH

#: Order, and what is stored.
Kind = tuple[Order, Stored]

KINDS: dict[str, Kind] = {
    "scalable": ("scalable", "all"),
    "scalable, minimal": ("scalable", "minimal"),
    "megatron": ("megatron", "all"),
}
_SEQUENCE_LENGTH = 4096
# Sigma of the lognormal document lengths, similar to web pages.
_SIGMA = 1.2
_MAX_LENGTH = 100_000
_BLOCK = 1 << 22
# Share of all tokens that the blend draws; with all of them, rounding would require more.
_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class SyntheticData:
    """Synthetic datasets without tokens: ``.idx`` files and sparse ``.bin`` files."""

    prefixes: tuple[str, ...]
    num_documents: int
    num_tokens: int


def write_synthetic(
    folder: Path, *, num_datasets: int, num_documents: int, document_length: float
) -> SyntheticData:
    """Write datasets whose documents have lognormal lengths.

    Parameters
    ----------
    folder
        Created if missing.
    num_datasets, num_documents
        Datasets, and documents of the first; each further dataset has one more, so all differ.
    document_length
        Mean tokens per document.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefixes, total_documents, total_tokens = [], 0, 0
    mean = np.log(document_length) - _SIGMA**2 / 2
    for dataset in range(num_datasets):
        generator = np.random.default_rng([num_documents, dataset])
        lengths = np.empty(num_documents + dataset, np.int32)
        for start in range(0, len(lengths), _BLOCK):
            part = lengths[start : start + _BLOCK]
            drawn = generator.lognormal(mean, _SIGMA, len(part))
            part[:] = np.clip(drawn, 1, _MAX_LENGTH)
        prefix = str(folder / f"dataset-{dataset}")
        write_index(f"{prefix}.idx", np.uint16, lengths, np.arange(len(lengths) + 1))
        num_tokens = int(lengths.sum(dtype=np.int64))
        with open(f"{prefix}.bin", "wb") as stream:
            stream.truncate(2 * num_tokens)
        prefixes.append(prefix)
        total_documents += len(lengths)
        total_tokens += num_tokens
    return SyntheticData(tuple(prefixes), total_documents, total_tokens)


def describe_build(
    data: SyntheticData, index: str, kind: Kind, *, shard_length: int = SHARD_LENGTH
) -> tuple[dict[str, Any], Job]:
    """Return the run that builds the indices and the blend of synthetic data, and its job."""
    order, stored = kind
    run = {
        "datasets": [{"path": prefix, "weight": 1.0} for prefix in data.prefixes],
        "sequence_length": _SEQUENCE_LENGTH,
        "split": "100,0,0",
        "samples": {"train": max(1, int(_SHARE * data.num_tokens / _SEQUENCE_LENGTH))},
        "surplus": 0,
        "order": order,
        "store": stored,
        "index": index,
        "grid": {"chunk_length": min(CHUNK_LENGTH, shard_length), "shard_length": shard_length},
    }
    job = Job(
        data.num_tokens,
        num_datasets=len(data.prefixes),
        document_length=data.num_tokens / data.num_documents,
        sequence_length=_SEQUENCE_LENGTH,
        order=order,
        stored=stored,
        shard_length=shard_length,
    )
    return run, job


def run_build(run: Mapping[str, Any], job: Job, client: Any) -> MeasuredBuild:
    """Build and measure; the time to open the datasets is measured separately before."""
    check_seconds = _measure_checks([item["path"] for item in run["datasets"]])
    timeline = Timeline()
    start, process_start = time.perf_counter(), time.process_time()
    build(run, client, timeline=timeline)
    seconds, process_seconds = time.perf_counter() - start, time.process_time() - process_start
    measured = MeasuredBuild.of(job, seconds, timeline.spans)
    sums = dict(measured.stage_seconds) | {"check": check_seconds}
    return replace(measured, stage_seconds=sums, process_seconds=process_seconds)


def _measure_checks(prefixes: Sequence[str]) -> float:
    """Return the seconds that one thread takes to open datasets."""
    start = time.perf_counter()
    for prefix in prefixes:
        open_source(prefix)
    return time.perf_counter() - start


def measure_task_seconds(client: Any, num_tasks: int = 200) -> tuple[float, float]:
    """Return the wall-clock and the processor seconds of an empty task."""
    with open_executor(client) as executor:

        async def run(number: int) -> None:
            await run_together(
                executor.run(_do_nothing, key=f"nothing-{number}-{task}")
                for task in range(num_tasks)
            )

        asyncio.run(run(0))
        start, processor_start = time.perf_counter(), time.process_time()
        asyncio.run(run(1))
        seconds, processor_seconds = time.perf_counter() - start, time.process_time()
        return seconds / num_tasks, (processor_seconds - processor_start) / num_tasks


def _do_nothing() -> None:
    """Task that does nothing."""
