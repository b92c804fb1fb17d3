"""The plan of packed runs: numbers by hand before a build, and those of the index after it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import make_config
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import PlanError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.packing import measure_packing
from zindex.indexing.run_plan import plan_run
from zindex.inspection.tables.plan_table import report_run
from zindex.plan.packing import PackingRules
from zindex.store.layout import ChunkGrid


@pytest.fixture
def config(tmp_path: Path, write_corpus: WriteCorpus) -> RunConfig:
    """Samples of 4 + 1 tokens; train has documents of 3, 2, 4, 1, 9 and 0 tokens."""
    path = write_corpus([3, 2, 4, 1, 9, 0, 2, 2, 2])
    return make_config(tmp_path, path, split="6,3,0", samples={"train": 8}, packing=PackingRules(2))


def test_numbers_before_a_build(config: RunConfig) -> None:
    train, valid = report_run(config).packings
    # 9 tokens are two parts of 5 that share a token; then 4 + 1 and 3 + 2: no padding at all.
    assert (train.documents_per_epoch, train.tokens_per_epoch) == (6, 19)
    assert (train.num_epochs, train.num_samples, train.num_parts) == (2, 8, 12)
    assert (train.padding_share, train.basis) == (0, "computed")
    # Two of three documents of two tokens go together: 4 of 10 tokens are padding.
    assert valid.num_requested is None
    assert (valid.num_epochs, valid.num_samples, valid.num_parts) == (1, 2, 3)
    assert valid.padding_share == pytest.approx(0.4)
    # 2 partitions + 1 of three int64, 12 parts of two int32, 9 bounds of int32, 8 of uint32.
    assert train.nbytes == train.missing_nbytes == 3 * 24 + 12 * 8 + 9 * 4 + 8 * 4


def test_a_build_agrees_with_the_computed_sizes(config: RunConfig) -> None:
    before = report_run(config).packings
    zindex.build(config, SerialExecutor())
    after = report_run(config)
    for old, new in zip(before, after.packings, strict=True):
        assert (new.basis, new.committed, new.missing_nbytes) == ("built", True, 0)
        kept = ("num_epochs", "num_samples", "num_parts", "nbytes", "num_shards", "padding_share")
        assert [getattr(new, name) for name in kept] == [getattr(old, name) for name in kept]
    assert after.missing_nbytes == 0


def test_text(config: RunConfig) -> None:
    lines = report_run(config).to_text().splitlines()
    assert lines[2:8] == [
        "packed: at most 2 documents in a sample, long documents split",
        "",
        "  split  documents  tokens  wanted  epochs  samples  padding  to write  shards",
        f"{config.datasets[0].path}: 9 documents, 25 tokens",
        "  train          6      19       8       2        8       0%     236 B     0/9",
        "  valid          3       6     all       1        2      40%      92 B     0/4",
    ]
    assert lines[-2].startswith("2 indices, 0 of them built; 10 samples")
    zindex.build(config, SerialExecutor())
    assert "built" in report_run(config).to_text().splitlines()[6]


def test_json_holds_the_same(config: RunConfig) -> None:
    values = json.loads(json.dumps(report_run(config).to_json()))
    assert [row["padding_share"] for row in values["packings"]] == pytest.approx([0, 0.4])
    assert values["rows"] == []
    assert values["totals"]["num_samples"] == 10


def test_estimates_are_marked(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    """Packing a spread of 128 of 4,000 documents gives nearly the same as packing all."""
    path = write_corpus([1 + 7 * i % 40 for i in range(4000)])
    config = make_config(
        tmp_path,
        path,
        split="100,0,0",
        sequence_length=63,
        packing=PackingRules(),
        grid=ChunkGrid(),
    )
    report = report_run(replace(config, samples={"train": 4000}), num_packed=128)
    [row] = report.packings
    assert row.basis == "estimated"
    text = report.to_text()
    assert f"~{row.num_samples:,}" in text
    assert "~: estimated from some of the documents" in text
    [result] = zindex.build(replace(config, samples={"train": 4000}), SerialExecutor()).values()
    facts = result.store.attributes
    assert row.num_samples == pytest.approx(facts["num_samples"], rel=0.03)
    assert row.num_epochs == facts["num_epochs"]
    assert row.padding_share == pytest.approx(facts["padding_share"], abs=0.03)


def test_blends_show_the_status_of_their_members(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    members = [
        DatasetConfig(write_corpus([3, 4, 5] * 10, name=name), weight=1.0) for name in ("a", "b")
    ]
    config = make_config(
        tmp_path,
        *members,
        samples={"train": 30, "valid": 0, "test": 0},
        packing=PackingRules(),
        order="scalable",
    )
    report = report_run(config)
    [blend] = report.blends
    for row, packing in zip(blend.rows, report.packings, strict=True):
        assert row.num_index_samples == packing.num_samples >= row.num_samples


def test_nothing_left_to_pack_is_an_error(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    config = make_config(
        tmp_path, write_corpus([20, 30]), split="1,0,0", packing=PackingRules(4, "drop")
    )
    with pytest.raises(PlanError, match=r"none of its 2 is left .* room for 5 tokens; use split"):
        report_run(config)


def test_no_more_than_the_sample_is_read(config: RunConfig) -> None:
    item = plan_run(config).packings[0]
    sizes = measure_packing(item.plan, item.source, 5)
    assert sizes.basis == "estimated"
    assert sizes.num_samples >= 8
