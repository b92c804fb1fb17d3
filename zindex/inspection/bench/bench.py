"""Benchmark this machine and a folder, and forecast builds, for ``zindex bench``.

It also measures how fast a loader reads the batches of a run.
"""

import json
import logging
import math
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zindex.config import RunConfig, as_config
from zindex.errors import ConfigError
from zindex.execution.executor import embedded_client
from zindex.forecast.cost_model import Costs, Forecast, Machines, forecast_build
from zindex.forecast.job import Job
from zindex.indexing.run_plan import plan_run
from zindex.indexing.store_build import find_index
from zindex.inspection.bench import fitting
from zindex.inspection.bench.bandwidths import Bandwidths, measure_bandwidths, scratch_place
from zindex.inspection.bench.machine import describe_machine, list_versions
from zindex.inspection.bench.short_builds import (
    KINDS,
    describe_build,
    measure_task_seconds,
    run_build,
    write_synthetic,
)
from zindex.io.objects import Place, place_of
from zindex.store.layout import SHARD_LENGTH

_SEQUENCE_LENGTH, _BATCH = 4096, 32
_VOCABULARY = 50_000
# At least so many to load, of any length: enough for a sample.
_LOADED_DOCUMENTS = 64
# Larger than any measurement needs.
_MANY_PASSES = 1_000_000


@dataclass(frozen=True, slots=True)
class LoadRate:
    """Read rate of one process, with torch's default number of threads."""

    #: ``"synthetic"``, or the user's run.
    source: str
    samples_per_second: float
    tokens_per_second: float
    num_batches: int
    batch_size: int


class _Tokenizer:
    """Minimal tokenizer for datasets, without an end-of-document token in the data."""

    vocab_size = 2**31 - 1
    eod = -1
    pad = -2
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict(name="none")


def can_load() -> bool:
    """Return whether torch is installed."""
    return find_spec("torch") is not None


def write_tokens(folder: Path, *, num_tokens: int, document_length: float) -> dict[str, Any]:
    """Write a small pair of random tokens, and return a run that reads it.

    Parameters
    ----------
    folder
        Created if missing.
    Approximate total number of tokens, and mean document length.
        Tokens in all, about, and of a document on average.
    """
    num_documents = max(_LOADED_DOCUMENTS, int(num_tokens / document_length))
    data = write_synthetic(
        folder, num_datasets=1, num_documents=num_documents, document_length=document_length
    )
    tokens = np.random.default_rng(1).integers(1, _VOCABULARY, data.num_tokens, np.uint16)
    tokens.tofile(f"{data.prefixes[0]}.bin")
    return {
        "datasets": [*data.prefixes],
        "sequence_length": _SEQUENCE_LENGTH,
        "split": "1,0,0",
        "order": "scalable",
        "index": str(folder / "index"),
    }


def measure_loading(
    run: RunConfig | Mapping[str, Any], seconds: float, *, source: str = "synthetic"
) -> LoadRate:
    """Measure the read rate of a run's loader.

    Parameters
    ----------
    run
        The run, whose first split is read. Missing indices are built first.
    seconds
        Duration in seconds.
    source
        Name of the data.
    """
    from zindex.loading.loader import loader

    num_batches = num_samples = num_tokens = 0
    with loader(
        run,
        _Tokenizer(),
        micro_batch_size=_BATCH,
        num_epochs=_MANY_PASSES,
        data_parallel_rank=0,
        data_parallel_size=1,
        pin_memory=False,
    ) as batches:
        stream = iter(batches)
        next(stream)  # kernels are compiled, files opened
        start = time.perf_counter()
        while not num_batches or time.perf_counter() - start < seconds:
            batch = next(stream)
            num_batches += 1
            num_samples += len(batch["tokens"])
            num_tokens += batch["tokens"].numel()
        spent = time.perf_counter() - start
    return LoadRate(source, num_samples / spent, num_tokens / spent, num_batches, _BATCH)


logger = logging.getLogger(__name__)

# Documents to build per second of measuring, and their bounds.
_DOCUMENTS_PER_SECOND, _MIN_DOCUMENTS, _MAX_DOCUMENTS = 100_000, 20_000, 10_000_000
# Many small indices built in bundles, and a few larger ones built individually.
_NUM_MANY, _MANY_DOCUMENTS, _NUM_FEW = 32, 1000, 8
# Tasks of one dataset with small shards.
_NUM_CUTS = 100
# Shares of the time for bandwidths and loading; builds get the rest.
_BANDWIDTH_SHARE, _LOADING_SHARE = 0.1, 0.15
_TOKENS_PER_SECOND, _MIN_TOKENS, _MAX_TOKENS = 8_000_000, 1 << 19, 50_000_000
# Overhead of a task in the processes of client, scheduler and worker, relative to that of one
# process for all three, without a network.
_APART: dict[str, Any] = {
    "client_task_seconds": 0.6,
    "scheduler_task_seconds": 0.8,
    "worker_task_seconds": 0.75,
}
# Busy share of CPU time above which memory is the bottleneck.
_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BenchBuilds:
    """Measured builds and forecasts of one order and one setting of ``store``."""

    #: Key of `zindex.inspection.bench.short_builds.KINDS`.
    kind: str
    #: The measured builds.
    builds: tuple[fitting.MeasuredBuild, ...]
    costs: Costs
    #: Typical relative error of the cost model for these builds.
    error: float
    #: Forecast for a trillion tokens on this machine.
    seconds_per_trillion: float
    bytes_per_sample: float
    samples_per_second: float
    #: Bottleneck on this machine.
    bound: str
    #: Forecast of the requested build, by number of nodes like this machine.
    forecasts: dict[int, Forecast]


@dataclass(frozen=True)
class BenchResult:
    """Measurements of a machine and a folder, and forecasts."""

    folder: str
    machine: dict[str, Any]
    versions: dict[str, str]
    bandwidths: Bandwidths
    #: Seconds of Python and Dask for an empty task, all in one process.
    task_seconds: float
    builds: tuple[BenchBuilds, ...]
    #: The forecast build.
    job: Job
    #: None without torch.
    loading: LoadRate | None
    #: Notes for the user.
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; infinity becomes None."""
        facts: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return facts


def measure(
    folder: str | os.PathLike[str] = ".",
    *,
    seconds: float = 30.0,
    num_tokens: float = 5e12,
    num_datasets: int = 1000,
    document_length: float = 800.0,
    nodes: Sequence[int] = (1, 10, 100),
    run: RunConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
) -> BenchResult:
    """Benchmark this machine and a folder, and forecast builds.

    Parameters
    ----------
    folder
        Folder of future indices: a path or the URL of an object store. All that is written there
        is removed.
    seconds
        Approximate duration, besides compiling the kernels of each order.
    The build to forecast: number of tokens and datasets, and mean document length.
        The build to forecast: its tokens, its datasets, and the mean tokens of a document.
    nodes
        Numbers of nodes like this machine to forecast for.
    run
        A run to forecast instead of these numbers; its loading is measured if it is built.

    Raises
    ------
    ConfigError
        If the folder is not writable, or a number is invalid.
    ZindexError
        If the run's data are missing or damaged.
    """
    if not (seconds > 0 and min(nodes, default=0) >= 1):
        raise ConfigError(
            f"seconds must be positive and nodes at least 1, got {seconds} and {list(nodes)}"
        )
    job = Job(num_tokens, num_datasets=num_datasets, document_length=document_length)
    config = None if run is None else as_config(run)
    if config is not None:
        job = describe_run(config)
    place = place_of(folder)
    logger.info("measuring memory and %s", place)
    bandwidths = measure_bandwidths(place, _BANDWIDTH_SHARE * seconds)
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_place(place))
        sources = scratch
        if not isinstance(scratch, Path):
            sources = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zindex-bench-")))
        assert isinstance(sources, Path)
        share = 1 - _BANDWIDTH_SHARE - _LOADING_SHARE
        task_seconds, builds = _measure_builds(
            sources, scratch, share * seconds, job, bandwidths, tuple(nodes)
        )
        loading, notes = _measure_loads(sources, _LOADING_SHARE * seconds, job, config)
    return BenchResult(
        folder=str(place),
        machine=describe_machine(folder if isinstance(place, Path) else "."),
        versions=list_versions(),
        bandwidths=bandwidths,
        task_seconds=task_seconds,
        builds=builds,
        job=job,
        loading=loading,
        notes=tuple(notes),
    )


def describe_run(config: RunConfig) -> Job:
    """Describe a run as a forecast job, assuming equally large datasets."""
    plan = plan_run(config, require_bin=False)
    facts = {item.dataset: item.source.facts for item in plan.members}
    if not facts:
        raise ConfigError("a run must draw from at least one dataset to be forecast, got none")
    num_tokens = sum(fact.num_tokens for fact in facts.values())
    num_documents = sum(fact.num_sequences for fact in facts.values())
    return Job(
        num_tokens,
        num_datasets=len(facts),
        document_length=num_tokens / num_documents,
        sequence_length=config.sequence_length,
        blend=config.blend_kind is not None,
        shard_length=config.grid.shard_length,
    )


def _measure_builds(
    sources: Path,
    place: Place,
    seconds: float,
    job: Job,
    bandwidths: Bandwidths,
    nodes: tuple[int, ...],
) -> tuple[float, tuple[BenchBuilds, ...]]:
    """Return the seconds of an empty task, and measured builds of each kind."""
    num_documents = int(_DOCUMENTS_PER_SECOND * seconds)
    num_documents = min(_MAX_DOCUMENTS, max(_MIN_DOCUMENTS, num_documents))
    write = partial(write_synthetic, document_length=job.document_length)
    many = write(sources / "many", num_datasets=_NUM_MANY, num_documents=_MANY_DOCUMENTS)
    one = write(sources / "one", num_datasets=1, num_documents=num_documents)
    few = write(sources / "few", num_datasets=_NUM_FEW, num_documents=num_documents // _NUM_FEW)
    cut = 1 << max(8, (num_documents // _NUM_CUTS).bit_length())
    works = [*((each, SHARD_LENGTH) for each in (many, one, few)), (one, cut)]
    measured: dict[str, list[fitting.MeasuredBuild]] = {kind: [] for kind in KINDS}
    places = (str(place / f"index-{number}") for number in count())
    with embedded_client() as client:
        num_threads = sum(client.nthreads().values())
        logger.info("compiling kernels")
        for kind in KINDS:
            # Few documents in many shards run every step.
            run = describe_build(many, next(places), KINDS[kind], shard_length=256)
            run_build(*run, client)
        logger.info("building indices of %s documents", f"{num_documents:,}")
        task_seconds = measure_task_seconds(client)[0]
        start = time.monotonic()
        while not any(measured.values()) or time.monotonic() - start < seconds:
            for each, shard_length in works:
                for kind, setting in KINDS.items():
                    run = describe_build(each, next(places), setting, shard_length=shard_length)
                    measured[kind].append(run_build(*run, client))
    costs = Costs(
        client_task_seconds=task_seconds / 2,
        scheduler_task_seconds=task_seconds / 2,
        worker_task_seconds=0.0,
        base_seconds=0.05,
        memory_bandwidth=max(2 * bandwidths.copy, 64 * bandwidths.gathers_per_second),
        write_bandwidth=bandwidths.write,
        read_bandwidth=bandwidths.read,
        store_bandwidth=math.inf,
    )
    return task_seconds, tuple(
        _forecast_kind(kind, measured[kind], costs, num_threads, job, nodes) for kind in KINDS
    )


def _forecast_kind(
    kind: str,
    measured: list[fitting.MeasuredBuild],
    costs: Costs,
    num_threads: int,
    job: Job,
    nodes: tuple[int, ...],
) -> BenchBuilds:
    """Return forecasts from measured builds of one kind."""
    here = Machines(1, num_threads, scheduler_in_client=True)
    builds = fitting.keep_medians(measured)
    # Recently written data are cached; those of a large build are not.
    cached = replace(costs, read_bandwidth=math.inf)
    cached = fitting.calibrate(builds, fitting.fit_costs(builds, cached), here)
    error = fitting.prediction_error(builds, cached, here)
    costs = replace(cached, read_bandwidth=costs.read_bandwidth)
    job = replace(job, order=KINDS[kind][0], stored=KINDS[kind][1])
    trillion = forecast_build(replace(job, num_tokens=1e12), here, costs)
    task_seconds = costs.client_task_seconds + costs.scheduler_task_seconds
    apart = replace(costs, **{name: share * task_seconds for name, share in _APART.items()})
    return BenchBuilds(
        kind=kind,
        builds=tuple(builds),
        costs=costs,
        error=error,
        seconds_per_trillion=trillion.seconds,
        bytes_per_sample=job.nbytes / job.num_samples,
        samples_per_second=1e12 / job.sequence_length / trillion.seconds,
        bound=name_bound(trillion),
        forecasts={
            number: forecast_build(job, here, costs)
            if number == 1
            else forecast_build(job, Machines(number, num_threads), apart)
            for number in nodes
        },
    )


def name_bound(forecast: Forecast) -> str:
    """Return a readable name of the bottleneck of a build."""
    bound, busy = forecast.bound, forecast.busy
    if bound == "processors" and busy["memory"] >= _MEMORY_SHARE * busy["processors"]:
        return "memory"
    names = {
        "client": "Python",
        "scheduler": "Dask",
        "node's writes": "writes",
        "node's reads": "reads",
        "checks": "opening",
        "order": "waiting",
    }
    if bound == "client" and "scheduler" not in busy:
        return "Python and Dask"
    return names.get(bound, bound)


def _measure_loads(
    folder: Path, seconds: float, job: Job, config: RunConfig | None
) -> tuple[LoadRate | None, list[str]]:
    """Return the read rate of a loader, of the user's run if it is built, and remarks."""
    if not can_load():
        return None, ["loading is left out: torch is not installed (zindex[torch])"]
    logger.info("reading batches")
    if config is not None:
        plan = plan_run(config)
        if all(find_index(item.plan.store_plan(config.index)) is not None for item in plan):
            return measure_loading(config, seconds, source="the run"), []
    notes = [] if config is None else ["the run is not built: batches are of synthetic tokens"]
    num_tokens = min(_MAX_TOKENS, max(_MIN_TOKENS, int(_TOKENS_PER_SECOND * seconds)))
    length = job.document_length
    run = write_tokens(folder / "tokens", num_tokens=num_tokens, document_length=length)
    return measure_loading(run, seconds), notes
