"""Which indices and blends a configuration needs."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import GRID, LENGTHS, make_config
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import ConfigError, PlanError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.run_plan import (
    find_dataset,
    known_blends,
    known_permutations,
    label_paths,
    plan_run,
)
from zindex.store.commit import StoreStatus


def plan(config: RunConfig) -> dict[str, tuple[int, int, int | None]]:
    """First and last document and the samples asked for, by split."""
    return {
        item.plan.split: (item.plan.start, item.plan.stop, item.num_requested)
        for item in plan_run(config).indices
    }


class TestPlanRun:
    def test_splits_are_ranges_of_documents(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        config = make_config(tmp_path, write_corpus(LENGTHS), samples={"train": 20})
        assert plan(config) == {"train": (0, 6, 20), "valid": (6, 9, None), "test": (9, 10, None)}

    def test_splits_without_documents_are_left_out(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix = write_corpus(LENGTHS)
        assert plan(make_config(tmp_path, prefix, split="1")) == {"train": (0, 10, None)}
        # 1 % of ten documents is none of them.
        assert plan(make_config(tmp_path, prefix, split="99,1")) == {"train": (0, 10, None)}
        assert plan(make_config(tmp_path, prefix, split="0,1")) == {"valid": (0, 10, None)}

    def test_splits_without_tokens_are_left_out(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        prefix = write_corpus([0, 0, 0, 8, 0])
        assert plan(make_config(tmp_path, prefix, split="3,2")) == {"valid": (3, 5, None)}

    def test_no_samples_means_no_index(self, write_corpus: WriteCorpus, tmp_path: Path) -> None:
        samples = {"train": 0, "valid": None, "test": 1}
        config = make_config(tmp_path, write_corpus(LENGTHS), samples=samples)
        assert plan(config) == {"valid": (6, 9, None), "test": (9, 10, 1)}

    def test_samples_of_a_dataset_replace_those_of_the_run(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        special = DatasetConfig(write_corpus(LENGTHS), samples={"valid": 3})
        usual = write_corpus(LENGTHS[::-1], name="usual")
        config = make_config(tmp_path, special, usual, samples={"train": 11, "test": 0})
        labels = label_paths([special.path, usual])
        requested = [(item.name(labels), item.num_requested) for item in plan_run(config).indices]
        assert requested == [
            ("corpus train", None),
            ("corpus valid", 3),
            ("corpus test", None),
            ("usual train", 11),
            ("usual valid", None),
        ]

    def test_too_small_split_is_refused(self, write_corpus: WriteCorpus, tmp_path: Path) -> None:
        prefix = write_corpus(LENGTHS)
        config = make_config(tmp_path, prefix, split="99,1,0", samples={"valid": 25})
        message = (
            r"valid of .*corpus must hold tokens to give 25 samples, split '99,1,0' gives it "
            r"documents \[10, 10\) of 10; give it a larger share or set its samples to 0"
        )
        with pytest.raises(PlanError, match=message):
            plan_run(config)
        with pytest.raises(PlanError, match=r"give 2 samples.* documents \[0, 0\) of 10"):
            plan_run(dataclasses.replace(config, samples={"test": 2}))

    def test_settings_reach_the_plan(self, write_corpus: WriteCorpus, tmp_path: Path) -> None:
        config = make_config(
            tmp_path,
            write_corpus(LENGTHS),
            seed=99,
            order="scalable",
            store="minimal",
            add_extra_token_to_sequence=False,
            drop_last_partial_validation_sequence=False,
        )
        for item in plan_run(config).indices:
            made = item.plan
            assert (made.seed, made.order, made.stored) == (99, "scalable", "minimal")
            assert (made.extra_token, made.sequence_length, made.grid) == (0, 4, GRID)
            assert made.drop_last is (made.split != "valid")

    def test_missing_dataset_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StoreNotFoundError, match=r"no dataset at .*/nothing"):
            plan_run(make_config(tmp_path, str(tmp_path / "nothing")))


class TestPlanBlends:
    @pytest.fixture
    def members(self, write_corpus: WriteCorpus) -> list[DatasetConfig]:
        return [
            DatasetConfig(write_corpus(LENGTHS, name="web"), weight=3.0),
            DatasetConfig("/nowhere/old", weight=0.0),
            DatasetConfig(write_corpus(LENGTHS * 2, name="code"), weight=1.0),
        ]

    def test_weights_ask_for_samples_of_each_member(
        self, members: list[DatasetConfig], tmp_path: Path
    ) -> None:
        config = make_config(
            tmp_path, *members, samples={"train": 40, "valid": 0}, split="60,40,0", surplus=0.5
        )
        run = plan_run(config)
        labels = label_paths([member.path for member in members])
        requested = [(item.name(labels), item.num_requested) for item in run.indices]
        assert requested == [("web train", 45), ("code train", 15)]
        (blend,) = run.blends
        assert blend.name(labels) == "blend train"
        assert [Path(path).name for path in blend.datasets] == ["web", "code"]
        assert blend.plan.weights.tolist() == [0.75, 0.25]
        assert (blend.plan.num_samples, blend.plan.order, blend.plan.grid) == (40, "megatron", GRID)
        assert [item.name(labels) for item in run] == ["web train", "code train", "blend train"]

    def test_such_a_blend_is_known_before_its_datasets(self, tmp_path: Path) -> None:
        members = [DatasetConfig(f"/nowhere/{weight}", weight=weight) for weight in (1.0, 2.0)]
        config = make_config(tmp_path, *members, samples={"train": 9, "test": 3})
        assert [(blend.split, blend.plan.num_samples) for blend in known_blends(config)] == [
            ("train", 9),
            ("test", 3),
        ]
        assert known_permutations(config) == ()
        with pytest.raises(StoreNotFoundError, match=r"no dataset at /nowhere/1\.0"):
            plan_run(config)

    def test_one_epoch_of_all_needs_the_datasets(
        self, members: list[DatasetConfig], tmp_path: Path
    ) -> None:
        config = make_config(tmp_path, *members, samples={"train": 10}, split="60,40,0")
        assert [blend.split for blend in known_blends(config)] == ["train"]
        train, valid = plan_run(config).blends
        assert train.split == "train"
        # 22 and 38 tokens of the last four and eight documents, in samples of 4 + 1.
        web, code = (sum((LENGTHS * n)[round(6 * n) :]) for n in (1, 2))
        assert valid.plan.sizes is not None
        assert valid.plan.sizes.tolist() == [(web - 1) // 4, (code - 1) // 4]

    def test_the_size_of_a_permutation_may_be_known_before_what_it_orders(
        self, write_corpus: WriteCorpus, tmp_path: Path
    ) -> None:
        members = [DatasetConfig(write_corpus(LENGTHS), epochs=2.0)]
        config = make_config(
            tmp_path, *members, samples={"train": 12}, order="scalable", split="1", seed=8
        )
        assert known_blends(config) == ()
        (permutation,) = known_permutations(config)
        (blend,) = plan_run(config).blends
        assert permutation == blend.plan.permutation
        assert known_permutations(dataclasses.replace(config, order="megatron")) == ()
        assert known_permutations(dataclasses.replace(config, store="minimal")) == ()

    def test_the_settings_reach_the_plan(
        self, members: list[DatasetConfig], tmp_path: Path
    ) -> None:
        config = make_config(
            tmp_path, *members, samples={"train": 12}, order="scalable", shuffle="uniform", seed=5
        )
        plan = plan_run(config).blends[0].plan
        assert (plan.order, plan.shuffle, plan.seed, plan.stored) == (
            "scalable",
            "uniform",
            5,
            "all",
        )
        assert np.array_equal(plan.counts, [9, 3])


def test_status_counts_shards(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    config = make_config(tmp_path, write_corpus(LENGTHS), split="1")
    (item,) = plan_run(config).indices
    planned = item.plan.store_plan(config.index)
    num_shards = planned.read_status().num_shards
    assert planned.read_status() == StoreStatus(0, num_shards, committed=False)
    ((_, result),) = zindex.build(config, SerialExecutor()).items()
    assert planned.read_status() == StoreStatus(num_shards, num_shards, committed=True)
    (result.store.root / "zarr.json").unlink()
    (result.store.root / "shuffle_index" / "c" / "0").unlink()
    assert planned.read_status() == StoreStatus(num_shards - 1, num_shards, False)


def test_a_dataset_has_one_name_everywhere() -> None:
    paths = ["/a/web.zarr", "s3://b/web", "more/code", "old/0"]
    assert label_paths(paths) == dict(zip(paths, ["web", "web-2", "code", "0"], strict=True))
    for name in ("web", "/a/web.zarr", "a/web", "/a/./web.zarr"):
        assert find_dataset(paths, name) == 0
    assert [find_dataset(paths, name) for name in ("b/web", "more/code", "0", 2, "1")] == [
        *(1, 2, 3, 2, 1)
    ]
    assert find_dataset(["corpora/web.zarr"], "corpora/web") == 0
    for name in ("eb", "web-3", 4, "-1"):
        with pytest.raises(ConfigError, match=r"got .*; it has web, web-2, code, 0; give one of"):
            find_dataset(paths, name)
