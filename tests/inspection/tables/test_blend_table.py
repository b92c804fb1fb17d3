"""Tables of blends: every column by hand, few lines for many datasets, the same numbers as JSON."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.inspection.tables.test_plan_table import make_row
from zindex.config import DatasetConfig, RunConfig
from zindex.indexing.run_plan import plan_run
from zindex.inspection.tables.blend_table import (
    MAX_SHOWN,
    BlendReport,
    BlendRow,
    largest_rows,
    size_fields,
)
from zindex.inspection.tables.plan_table import PlanReport, make_report, report_run
from zindex.store.commit import StoreStatus

WriteCorpus = Callable[..., str]


@pytest.fixture
def make_config(tmp_path: Path, write_corpus: WriteCorpus) -> Callable[..., RunConfig]:
    """Return runs of two datasets; train has 18 and 12 of their tokens, valid 9 and 6."""
    paths = [write_corpus([3] * 9, name="web"), write_corpus([2] * 9, name="code")]

    def make(*shares: dict[str, Any], **settings: Any) -> RunConfig:
        datasets = tuple(
            DatasetConfig(path, **share) for path, share in zip(paths, shares, strict=True)
        )
        return RunConfig(datasets, 4, split="6,3,0", index=str(tmp_path / "index"), **settings)

    return make


def test_a_blend_by_weights(make_config: Callable[..., RunConfig]) -> None:
    config = make_config({"weight": 3}, {"weight": 1}, samples={"train": 10})
    report = report_run(config)
    assert [(blend.split, blend.kind) for blend in report.blends] == [
        ("train", "weight"),
        ("valid", "sizes"),
    ]
    train, valid = report.blends
    # Ceilings of 7.5 and 2.5; of 11 samples 8.25 and 2.75 are drawn.
    assert (train.num_samples, train.exhaustive) == (11, False)
    assert (train.order, train.shuffle) == ("megatron", None)
    web, code = config.datasets
    assert train.rows == (
        # 8 samples are 32 tokens of 18; 9 are asked for, three epochs hold 13.
        BlendRow(web.path, 3, 8, 8 / 11, 32 / 18, False, 9, 13),
        # 3 samples are 12 tokens of 12; 4 are asked for, two epochs hold 5.
        BlendRow(code.path, 1, 3, 3 / 11, 1.0, False, 4, 5),
    )
    # 11 ids of int16 and samples of int32, two weights and two counts.
    assert train.nbytes == train.missing_nbytes == 11 * 2 + 11 * 4 + 2 * 8 + 2 * 8
    assert (train.num_done, train.num_shards, train.committed) == (0, 4, False)
    assert (valid.num_samples, valid.exhaustive) == (3, True)
    assert [row.num_requested for row in valid.rows] == [None, None]
    assert [row.num_index_samples for row in valid.rows] == [2, 1]
    text = report.to_text()
    assert "\n".join(train.to_lines()) in text
    assert train.to_lines() == [
        "blend of train by weight: 11 samples of 2 datasets; order megatron; 98 B, 0/4 shards",
        "  weight  samples  share  epochs  to build  dataset",
        f"       3        8  72.7%    1.78        13  {web.path}",
        f"       1        3  27.3%    1.00         5  {code.path}",
    ]
    assert valid.to_lines() == [
        "blend of valid by sizes: 3 samples, one epoch of 2 datasets; order megatron; 50 B, "
        "0/4 shards",
        "  samples  share  epochs  to build  dataset",
        f"        2  66.7%    0.89         2  {web.path}",
        f"        1  33.3%    0.67         1  {code.path}",
    ]
    assert "4 indices and 2 blends, 0 of them built; 21 samples" in text
    assert report.missing_nbytes == sum(row.nbytes for row in report.rows) + 98 + 50


def test_budgets_that_are_capped(make_config: Callable[..., RunConfig]) -> None:
    config = make_config({"tokens": 10**6}, {"tokens": 6}, max_epochs=2, order="scalable")
    train = report_run(config).blends[0]
    # Two epochs of 18 tokens are 8 samples.
    assert [row.capped for row in train.rows] == [True, False]
    assert train.to_lines() == [
        "blend of train by tokens: 10 samples of 2 datasets; order scalable, shuffle keyed; "
        "92 B, 0/4 shards",
        "  tokens  samples  share  epochs  to build  limit   dataset",
        f"  1.00 M        8    80%    1.78         8  capped  {config.datasets[0].path}",
        f"       6        2    20%    0.67         2          {config.datasets[1].path}",
    ]


def test_budgets_of_epochs(make_config: Callable[..., RunConfig]) -> None:
    config = make_config({"epochs": 2.5}, {"epochs": 1}, samples={"valid": 0})
    report = report_run(config)
    assert [blend.split for blend in report.blends] == ["train"]
    assert [row.given for row in report.blends[0].rows] == [2.5, 1]
    assert report.blends[0].to_lines()[1:3] == [
        "  given  samples  share  epochs  to build  dataset",
        f"    2.5       11  84.6%    2.44        13  {config.datasets[0].path}",
    ]


def test_a_blend_of_sizes_cut_short(make_config: Callable[..., RunConfig]) -> None:
    config = make_config({}, {}, blend="sizes", samples={"train": 4, "valid": 0})
    (train,) = report_run(config).blends
    assert train.to_lines()[0].startswith("blend of train by sizes: 4 samples of 2 datasets; ")
    assert [row.num_samples for row in train.rows] == [3, 1]  # of 4 and 2, 2.67 and 1.33


def test_a_dataset_that_is_left_out_is_not_shown(make_config: Callable[..., RunConfig]) -> None:
    config = make_config({"weight": 1}, {"weight": 0}, samples={"train": 10})
    config = replace(config, datasets=(config.datasets[0], DatasetConfig("/none", weight=0)))
    report = report_run(config)
    assert [row.dataset for row in report.blends[0].rows] == [config.datasets[0].path]
    assert "of 1 dataset;" in report.to_text()
    assert "/none" not in report.to_text()


def test_status_of_blends(make_config: Callable[..., RunConfig]) -> None:
    config = make_config({"weight": 3}, {"weight": 1}, samples={"train": 10, "valid": 0})
    plan = plan_run(config)
    done = StoreStatus(num_done=3, num_shards=3, committed=True)
    begun = StoreStatus(num_done=1, num_shards=4, committed=False)
    report = make_report(config, plan, [done, done, begun], free=73)
    assert (report.missing_nbytes, report.to_json()["fits"]) == (73, True)  # 98 * 3 / 4
    assert "98 B, 1/4 shards" in report.to_text()
    report = make_report(config, plan, [done, done, replace(done, num_shards=4)], free=0)
    assert report.missing_nbytes == 0
    assert "98 B, built" in report.to_text()
    assert "2 indices and 1 blend, 3 of them built" in report.to_text()


def test_json_holds_the_blends(make_config: Callable[..., RunConfig]) -> None:
    config = make_config({"weight": 3}, {"weight": 1}, samples={"train": 10})
    values = json.loads(json.dumps(report_run(config).to_json()))
    assert [blend["split"] for blend in values["blends"]] == ["train", "valid"]
    assert values["blends"][0]["rows"][1] == {
        "dataset": config.datasets[1].path,
        "given": 1,
        "num_samples": 3,
        "share": 3 / 11,
        "num_epochs": 1.0,
        "capped": False,
        "num_requested": 4,
        "num_index_samples": 5,
    }
    assert values["totals"]["num_samples"] == 13 + 5 + 2 + 1  # of indices
    assert values["totals"]["num_shards"] == 4 * 3 + 2 * 4


def make_blend(num_datasets: int) -> BlendReport:
    """Return a blend whose datasets give 1, 2, ... samples, every tenth of them capped."""
    total = num_datasets * (num_datasets + 1) // 2
    rows = tuple(
        BlendRow(f"set{i}", 1.0, i + 1, (i + 1) / total, 1.0, i % 10 == 0, i + 1, i + 1)
        for i in range(num_datasets)
    )
    size = size_fields(10, 4, StoreStatus(0, 4, False))
    return BlendReport("train", "weight", "megatron", None, False, total, rows, **size)


def test_many_datasets_take_few_lines() -> None:
    blend = make_blend(1000)
    rows = tuple(
        make_row(dataset=f"set{i}", num_documents=9, num_tokens=1000 - i, split=split)
        for i in range(1000)
        for split in ("train", "valid")
    )
    report = PlanReport("megatron", 1234, 4096, "99,1,0", "index", 1 << 40, rows, (blend,))
    lines = report.to_text().splitlines()
    assert len(lines) < 100
    # The largest of each, in the order of the run.
    assert [line for line in lines if line.startswith("set")] == [
        f"set{i}: 9 documents, {1000 - i:,} tokens" for i in range(MAX_SHOWN)
    ]
    assert [line.split()[-1] for line in blend.to_lines()[2:-1]] == [
        f"set{i}" for i in range(980, 1000)
    ]
    assert "and 980 smaller datasets with 1,960 indices; --json lists all" in lines
    assert (
        blend.to_lines()[-1]
        == "  and 980 datasets more with 96%, 98 of them capped; --json lists all"
    )
    assert len(report.to_json()["blends"][0]["rows"]) == 1000


def test_few_datasets_are_all_shown() -> None:
    assert len(make_blend(MAX_SHOWN).to_lines()) == MAX_SHOWN + 2
    last = make_blend(MAX_SHOWN + 1).to_lines()[-1]
    assert last == "  and 1 dataset more with 0.433%, 1 of them capped; --json lists all"


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([], []),
        ([3, 1, 2], [0, 1, 2]),
        ([5] * 30, list(range(20))),  # the first of equals
        ([1, *([5] * 20), 1], list(range(1, 21))),
    ],
)
def test_the_largest_rows(sizes: list[int], rows: list[int]) -> None:
    assert largest_rows(sizes) == rows
