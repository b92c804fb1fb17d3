"""The table of a measurement, from made-up figures."""

from dataclasses import replace

from zindex.forecast.cost_model import Costs, Machines, forecast_build
from zindex.forecast.job import Job
from zindex.inspection.bench.bandwidths import Bandwidths
from zindex.inspection.bench.bench import BenchBuilds, BenchResult, LoadRate
from zindex.inspection.bench.fitting import MeasuredBuild
from zindex.inspection.tables.bench_table import bench_lines

JOB = Job(2e12, num_datasets=10)
DONE = replace(forecast_build(Job(1e10, num_datasets=2), Machines()), seconds=123.4, bound="store")
RESULT = BenchResult(
    folder="/indices",
    machine={"processor": "A processor", "num_processors": 2, "memory_nbytes": 24 << 30},
    versions={},
    bandwidths=Bandwidths(5 << 30, 1.2e8, 4 << 30, 1 << 30, 2 << 30, None, 2.5e-3),
    task_seconds=2.25e-3,
    builds=(
        BenchBuilds(
            "scalable",
            (MeasuredBuild(Job(3e9), 1.0, {}),),
            Costs(),
            0.05,
            31.25,
            38.45,
            8e6,
            "memory",
            {1: DONE, 10: replace(DONE, seconds=12.34)},
        ),
    ),
    job=JOB,
    loading=LoadRate("synthetic", 1e5, 4.096e8, 100, 32),
    notes=("something to know",),
)


def test_lines() -> None:
    assert bench_lines(RESULT) == [
        "A processor, 2 processors, 24.0 GiB; indices at /indices",
        "memory: 5.00 GiB/s copied, 120 M random reads/s; crc32c 4.00 GiB/s",
        "place: 1.00 GiB/s written and synced, 2.00 GiB/s read, perhaps out of memory; "
        "2.5 ms for a small file",
        "Dask and Python: 2.25 ms for a task",
        "",
        "this machine, 10 datasets, documents of 800 tokens, samples of 4,096:",
        "  what is built  s per trillion tokens  bytes per sample  samples/s  bound by  error",
        "  scalable                        31.2              38.5     8.00 M  memory       5%",
        "from builds of up to 3.00 B tokens; error: of the cost model, for these builds",
        "",
        "loading synthetic data: 100,000 samples/s, 410 M tokens/s, in batches of 32, one process",
        "",
        "forecast for 2.00 T tokens on nodes like this one:",
        "  nodes  scalable s  bound by",
        "      1         123  store",
        "     10        12.3  store",
        "something to know",
    ]


def test_without_loading_nothing_is_said_of_it() -> None:
    lines = bench_lines(replace(RESULT, loading=None, notes=()))
    assert not any("loading" in line for line in lines)
