"""zindex and its peers on little data; peers that are not installed are left out."""

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import bench_peers
from tests.benchmarks.peers import measuring, run_numpy, run_zindex
from tests.benchmarks.peers.__main__ import DEFAULT_FOLDER, PEERS, python_of
from tests.benchmarks.peers.measuring import Work
from tests.benchmarks.record import Record
from tests.forked import run_python

SHORT = [
    *["--samples", "2e4", "--datasets", "5", "--mixed-samples", "2e4"],
    *["--epoch-samples", "2e4", "--together"],
]


def run_short(folder: Path, tmp_path: Path) -> Record:
    """Return the record of a short run with the peers of a folder."""
    figures = tmp_path / "figures.json"
    options = [*SHORT, "--peers-folder", str(folder), "--json", str(figures)]
    command = ["-W", "ignore", "-m", "tests.benchmarks.bench_peers", *options]
    run_python(*command, check=True, forks=True)
    return Record.read(figures)


def test_every_table_without_peers(tmp_path: Path) -> None:
    record = run_short(tmp_path / "none", tmp_path)
    assert [table.key for table in record.tables] == [
        "shuffle_20000",
        "access_20000",
        "mixture_5",
        "prefixes_10",
        "epoch_20000",
    ]
    for table in record.tables:
        contenders = bench_peers.CONTENDERS[table.key.partition("_")[0]]
        ours = [name for name, file in contenders.items() if file in ("numpy", "zindex")]
        assert [row.contender for row in table.rows] == ours
        assert "Grain is not there: python -m tests.benchmarks.peers grain" in table.notes
    greedy = record.tables[3].row("zindex, greedy")
    assert greedy is not None
    # Never further than one sample from its weights, with a few datasets.
    assert greedy.median("largest_samples") < 2  # type: ignore[operator]


@pytest.mark.skipif(
    not any(python_of(DEFAULT_FOLDER, name).exists() for name in PEERS),
    reason="python -m tests.benchmarks.peers makes the environments",
)
def test_every_table_with_peers(tmp_path: Path) -> None:
    record = run_short(DEFAULT_FOLDER, tmp_path)
    there = [name for name in PEERS if python_of(DEFAULT_FOLDER, name).exists()]
    for table in record.tables:
        contenders = bench_peers.CONTENDERS[table.key.partition("_")[0]]
        expected = [
            name for name, file in contenders.items() if file in ("numpy", "zindex", *there)
        ]
        assert [row.contender for row in table.rows] == expected
    assert {bench_peers.DISTRIBUTIONS[name] for name in there} <= set(record.versions)


def test_every_contender_has_its_file() -> None:
    """Names are written twice: where tables are made, and in the environment that runs them."""
    for file, module in (("numpy", run_numpy), ("zindex", run_zindex)):
        for kind, contenders in bench_peers.CONTENDERS.items():
            names = [name for name, each in contenders.items() if each == file]
            assert names == list(module.CONTENDERS[kind])


def test_legacy_order_is_numpys() -> None:
    work = Work("shuffle", 1000)
    _, order = run_zindex.shuffle_legacy(work)
    np.testing.assert_array_equal(order, run_numpy.shuffle_legacy(work)[1])


def test_deviations_of_prefixes() -> None:
    # Weights 1/4 and 3/4: after 1 sample 1 - 1/4 are too many, after 4 all is even.
    deviations = measuring.find_deviations(np.array([0, 1, 1, 1]), np.array([0.25, 0.75]))
    assert deviations.tolist() == [0.75, 0.5, 0.25, 0.0]


def test_neighbours_of_one_shard() -> None:
    length = measuring.SHARD_LENGTH
    order = np.array([0, 1, length, 5, length + 1, length + 2])
    # Two of five pairs: (0, 1) and (length + 1, length + 2).
    assert measuring.count_same_shard(order) == 40.0


def test_work_is_the_same_for_all() -> None:
    work = Work("mixture", 1000, num_wanted=10, num_datasets=7)
    assert work.weights.sum() == pytest.approx(1)
    # A quarter more than is drawn, and at least one sample.
    assert min(np.array(work.dataset_sizes) - work.weights * 1250) > 0
    assert measuring.split_shards(measuring.SHARD_LENGTH + 1) == [measuring.SHARD_LENGTH, 1]
    assert len(work.positions) == 10
