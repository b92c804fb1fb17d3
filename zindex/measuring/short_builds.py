"""Short builds of synthetic data: few and many datasets, tasks and documents."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zindex.building.executor import open_executor, run_together
from zindex.building.run import build
from zindex.building.source import open_source
from zindex.building.timeline import Timeline
from zindex.formats.idx_writer import write_index
from zindex.measuring.build_model import Job
from zindex.measuring.fitting import MeasuredBuild
from zindex.plan.index_plan import Order, Stored
from zindex.store.layout import CHUNK_LENGTH, SHARD_LENGTH

#: What is built: order, and what is stored.
Kind = tuple[Order, Stored]

KINDS: dict[str, Kind] = {
    "scalable": ("scalable", "all"),
    "scalable, minimal": ("scalable", "minimal"),
    "megatron": ("megatron", "all"),
}
_SEQUENCE_LENGTH = 4096
# Lengths of documents: lognormal with this deviation, as those of web pages are about.
_SIGMA = 1.2
_MAX_LENGTH = 100_000
_BLOCK = 1 << 22
# Of the tokens of all datasets, how many the blend takes: with all of them rounding asks for more.
_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Corpus:
    """Synthetic datasets without tokens: ``.idx`` files, and ``.bin`` files that take no room."""

    prefixes: tuple[str, ...]
    num_documents: int
    num_tokens: int


def write_corpus(
    folder: Path, *, num_datasets: int, num_documents: int, document_length: float
) -> Corpus:
    """Write datasets whose documents have lognormal lengths.

    Parameters
    ----------
    folder
        Where; it is made if it is missing.
    num_datasets, num_documents
        Datasets, and documents of each: a few more with each dataset, so that none is another's.
    document_length
        Tokens of a document on average.
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
    return Corpus(tuple(prefixes), total_documents, total_tokens)


def describe_build(
    corpus: Corpus, index: str, kind: Kind, *, shard_length: int = SHARD_LENGTH
) -> tuple[dict[str, Any], Job]:
    """Return the run that builds the indices and the blend of a corpus, and its numbers."""
    order, stored = kind
    run = {
        "datasets": [{"path": prefix, "weight": 1.0} for prefix in corpus.prefixes],
        "sequence_length": _SEQUENCE_LENGTH,
        "split": "100,0,0",
        "samples": {"train": max(1, int(_SHARE * corpus.num_tokens / _SEQUENCE_LENGTH))},
        "surplus": 0,
        "order": order,
        "store": stored,
        "index": index,
        "grid": {
            "chunk_length": min(CHUNK_LENGTH, shard_length),
            "shard_length": shard_length,
        },
    }
    job = Job(
        corpus.num_tokens,
        num_datasets=len(corpus.prefixes),
        document_length=corpus.num_tokens / corpus.num_documents,
        sequence_length=_SEQUENCE_LENGTH,
        order=order,
        stored=stored,
        shard_length=shard_length,
    )
    return run, job


def run_build(run: Mapping[str, Any], job: Job, client: Any) -> MeasuredBuild:
    """Build, and return what it took; opening the datasets is measured before, by itself."""
    check_seconds = _measure_checks([item["path"] for item in run["datasets"]])
    timeline = Timeline()
    start, process_start = time.perf_counter(), time.process_time()
    build(run, client, timeline=timeline)
    seconds, process_seconds = time.perf_counter() - start, time.process_time() - process_start
    measured = MeasuredBuild.of(job, seconds, timeline.spans)
    sums = dict(measured.stage_seconds) | {"check": check_seconds}
    return replace(measured, stage_seconds=sums, process_seconds=process_seconds)


def _measure_checks(prefixes: Sequence[str]) -> float:
    """Return the seconds in which one thread opens datasets."""
    start = time.perf_counter()
    for prefix in prefixes:
        open_source(prefix)
    return time.perf_counter() - start


def measure_task_seconds(client: Any, num_tasks: int = 200) -> tuple[float, float]:
    """Return what a task takes that does nothing: seconds on the clock, and of this processor."""
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
    """Task: nothing."""
