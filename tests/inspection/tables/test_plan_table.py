"""The plan table: every column's value by hand, alignment, and the same numbers as JSON."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zindex.config import DatasetConfig, RunConfig
from zindex.errors import StoreNotFoundError
from zindex.forecast.nodes import NodeForecast
from zindex.indexing.run import build
from zindex.indexing.run_plan import plan_run
from zindex.inspection.tables.plan_table import PlanReport, PlanRow, make_report, report_run
from zindex.store.commit import StoreStatus

WriteCorpus = Callable[..., str]


@pytest.fixture
def config(tmp_path: Path, write_corpus: WriteCorpus) -> RunConfig:
    """Two datasets of 9 documents of 3 tokens; the split gives train 6 and valid 3 of them."""
    paths = [write_corpus([3] * 9, name=name) for name in ("web", "code")]
    return RunConfig(
        datasets=(
            DatasetConfig(paths[0], samples={"train": 5, "valid": 0}),
            DatasetConfig(paths[1]),
        ),
        sequence_length=4,
        split="6,3,0",
        samples={"train": 8},
        index=str(tmp_path / "index"),
    )


def test_rows(config: RunConfig) -> None:
    rows = report_run(config).rows
    assert [(Path(row.dataset).name, row.split) for row in rows] == [
        ("web", "train"),
        ("code", "train"),
        ("code", "valid"),
    ]
    # 18 tokens an epoch, one of them the extra one: 4 samples of 4; 5 want 21 tokens, 2 epochs.
    web = rows[0]
    assert (web.num_documents, web.num_tokens) == (9, 27)
    assert (web.documents_per_epoch, web.tokens_per_epoch) == (6, 18)
    assert (web.num_requested, web.num_epochs, web.num_samples) == (5, 2, 8)
    assert web.last_epoch == "apart"  # 1 of its 4 samples is wanted: less than 0.8 of them
    # 12 rows of int32, 9 boundaries of two int32, 8 samples of uint32.
    assert web.nbytes == web.missing_nbytes == 12 * 4 + 9 * 8 + 8 * 4
    assert (web.num_done, web.num_shards, web.committed) == (0, 3, False)
    # 8 samples want 33 tokens: two epochs again, but all of the last one.
    assert (rows[1].num_epochs, rows[1].last_epoch) == (2, "mixed")
    # 9 tokens: one epoch of 2 samples.
    assert rows[2].num_requested is None
    assert (rows[2].num_epochs, rows[2].last_epoch, rows[2].num_samples) == (1, "one epoch", 2)


def test_scalable_order_keeps_epochs_apart(config: RunConfig) -> None:
    from dataclasses import replace

    report = report_run(replace(config, order="scalable"))
    assert [row.last_epoch for row in report.rows] == ["each apart", "each apart", "one epoch"]
    assert "each apart: the samples of every epoch are shuffled by themselves" in report.to_text()


def test_built_and_partly_built_indices(config: RunConfig) -> None:
    missing = report_run(config).forecast
    assert missing is not None
    assert (missing.num_nodes, missing.seconds) == (1, missing.seconds_alone)
    build(config)
    built = report_run(config)
    assert built.forecast is None
    assert built.missing_nbytes == 0
    assert [row.committed for row in built.rows] == [True] * 3
    assert "3 indices, 3 of them built" in built.to_text()
    planned = plan_run(config)
    begun = [StoreStatus(num_done=2, num_shards=3, committed=False)] * 3
    report = make_report(config, planned, begun, free=1000)
    assert [row.missing_nbytes for row in report.rows] == [row.nbytes // 3 for row in built.rows]
    assert "2/3" in report.to_text()
    assert "Not enough room" not in report.to_text()
    assert report.to_json()["fits"] is True


def test_too_little_room_is_said(config: RunConfig) -> None:
    planned = plan_run(config)
    none = [StoreStatus(num_done=0, num_shards=3, committed=False)] * 3
    report = make_report(config, planned, none, free=10)
    assert report.to_text().endswith("Not enough room: free some, or set another index folder.")
    assert report.to_json()["fits"] is False


def test_the_nodes_that_a_long_build_makes_use_of(config: RunConfig) -> None:
    report = report_run(config)
    assert "forecast" not in report.to_text()  # it is built before one could read that
    long = dataclasses.replace(report, forecast=NodeForecast(1200.0, 16, 90.4))
    assert "forecast: 1,200 s on a machine like this one, 90 s on 16, more do not" in long.to_text()
    assert long.to_json()["forecast"]["num_nodes"] == 16


def test_json_holds_the_rows_and_their_sums(config: RunConfig) -> None:
    values = json.loads(json.dumps(report_run(config).to_json()))
    assert [row["num_samples"] for row in values["rows"]] == [8, 8, 2]
    assert values["totals"]["num_samples"] == 18
    assert values["totals"]["num_shards"] == 9
    assert (values["order"], values["sequence_length"], values["seed"]) == ("megatron", 4, 1234)


def test_missing_dataset_is_named(tmp_path: Path) -> None:
    config = RunConfig(datasets=(DatasetConfig(str(tmp_path / "none")),), sequence_length=4)
    with pytest.raises(StoreNotFoundError, match=f"no dataset at {tmp_path}/none"):
        report_run(config)


def make_row(**changes: Any) -> PlanRow:
    values: dict[str, Any] = {
        "dataset": "corpora/web.zarr",
        "num_documents": 20_000_000_000,
        "num_tokens": 15_000_000_000_000,
        "split": "train",
        "documents_per_epoch": 19_400_000_000,
        "tokens_per_epoch": 14_535_000_000_000,
        "num_requested": 5_000_000_000,
        "num_epochs": 2,
        "last_epoch": "mixed",
        "num_samples": 7_097_167_968,
        "nbytes": 1 << 38,
        "missing_nbytes": 1 << 38,
        "num_shards": 12_000,
        "num_done": 11_500,
        "committed": False,
    }
    return PlanRow(**(values | changes))


def test_lines_are_aligned_and_fit_a_terminal() -> None:
    rows = (
        make_row(),
        make_row(split="valid", num_requested=None, num_epochs=1, last_epoch="one epoch"),
        make_row(dataset="corpora/code.zarr", num_epochs=1000, last_epoch="each apart"),
    )
    report = PlanReport("megatron", 1234, 4096, "969,30,1", "/data/index", 1 << 40, rows)
    table = report.to_text().split("\n\n")[1].splitlines()
    aligned = [line for line in table if line.startswith("  ")]
    assert len(aligned) == 4
    assert len({len(line) for line in aligned}) == 1
    assert len(aligned[0]) <= 90
    stops = [aligned[0].index(name) + len(name) for name in ("documents", "wanted", "shards")]
    assert all(line[stop - 1] != " " for line in aligned for stop in stops)
    assert [line for line in table if not line.startswith("  ")] == [
        "corpora/web.zarr: 20.0 B documents, 15.0 T tokens",
        "corpora/code.zarr: 20.0 B documents, 15.0 T tokens",
    ]


@pytest.mark.parametrize("width", [50, 80])
def test_every_line_fits_a_terminal(
    width: int, tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = tuple(
        DatasetConfig(write_corpus([3] * 90, name=f"a-corpus-{n}"), weight=1.0) for n in range(3)
    )
    config = RunConfig(datasets, 4, str(tmp_path / "index"), samples={"train": 100, "valid": 20})
    monkeypatch.setenv("COLUMNS", str(width))
    lines = report_run(config).to_text().splitlines()
    # A path is not broken.
    assert all(len(line) <= width or str(tmp_path) in line.split()[-1] for line in lines)
