"""The lazy tree of a run: equal to what is built, and computed only where it is used."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from dask.callbacks import Callback
from dask.utils import key_split

import zindex
from tests.conftest import WriteCorpus
from tests.indexing.runs import make_config
from zindex.config import DatasetConfig
from zindex.errors import PlanError
from zindex.execution.executor import SerialExecutor
from zindex.indexing import blend, packing
from zindex.plan.packing import PackingPlan, PackingRules

WEIGHTS = (0.5, 0.2, 0.3)


class Ran(Callback):
    """Counts the tasks that run, by stage."""

    def __init__(self) -> None:
        super().__init__(pretask=lambda key, graph, state: self.stages.update([key_split(key)]))
        self.stages = Counter[str]()


def make_run(tmp_path: Path, write_corpus: WriteCorpus, **settings: Any) -> Any:
    rng = np.random.default_rng(3)
    datasets = [
        DatasetConfig(write_corpus(rng.integers(0, 12, 40 + 9 * i).tolist(), name=name), weight=w)
        for i, (name, w) in enumerate(zip(("web", "code", "books"), WEIGHTS, strict=True))
    ]
    settings = {"samples": {"train": 90, "valid": 7}} | settings
    return make_config(tmp_path, *datasets, **settings)


def chunks_of(tree: Any) -> dict[tuple[str, str, int], np.ndarray[Any, Any]]:
    found = {
        (node.path, str(name), number): chunk
        for node in tree.subtree
        for name, array in node.data_vars.items()
        for number, chunk in enumerate(array.data.partitions)
    }
    computed = dask.compute(*found.values(), scheduler="sync", optimize_graph=False)
    return dict(zip(found, computed, strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"order": "megatron"},
        {"order": "scalable"},
        {"order": "scalable", "shuffle": "uniform"},
        {"order": "scalable", "store": "minimal"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_every_chunk_equals_the_built_one(
    tmp_path: Path, write_corpus: WriteCorpus, settings: dict[str, Any]
) -> None:
    config = make_run(tmp_path, write_corpus, **settings)
    lazy = zindex.open_index(config)
    assert not Path(config.index).exists()
    computed = chunks_of(lazy)
    zindex.build(config)
    tree = zindex.open_index(config)
    assert {node.attrs.get("is_built") for node in tree.leaves} == {1}
    read = chunks_of(tree)
    assert computed.keys() == read.keys()
    for place, values in computed.items():
        np.testing.assert_array_equal(values, read[place], str(place), strict=True)
    # As a user of plain xarray sees them.
    xarray_blend = tree["train/blend"]
    assert xarray_blend["dataset"].values.tolist() == ["web", "code", "books"]
    drawn = xarray_blend.dataset_index.isel(sample=slice(3, 40, 5)).compute()
    assert drawn.sample.values.tolist() == list(range(3, 40, 5))
    assert drawn.attrs["units"] == "dataset id"


def test_only_what_is_used_is_computed(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    tree = zindex.open_index(make_run(tmp_path, write_corpus, order="scalable"))
    dataset = tree["train/datasets/web"]
    num_shards = len(dataset.document_index.chunks[0])
    for array, expected in (
        (dataset.shuffle_index[5:6], {"shuffle_index-web-train": 1}),
        (dataset.document_index[:1], {"document_index-web-train": 1}),
        (tree["train/blend"].dataset_index[-1:], {"draw-blend-train": 1}),
        (
            dataset.sample_index[4:5],
            {"count-web-train": num_shards, "document_index-web-train": num_shards},
        ),
    ):
        with Ran() as ran:
            array.compute(scheduler="sync", optimize_graph=False)
        assert expected.items() <= ran.stages.items()
        assert ran.stages.keys() <= {
            *expected,
            "dataset_index-blend-train",
            "sample_index-web-train",
            "starts-web-train",
            "getitem",
            "finalize-hlgfinalizecompute",
        }


def test_keys_are_readable_and_differ_by_content(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    first, second = (
        zindex.open_index(make_run(tmp_path, write_corpus, order="scalable", seed=seed))
        for seed in (1, 2)
    )
    names = [tree["train/datasets/web"].sample_index.data.name for tree in (first, second)]
    assert {key_split(name) for name in names} == {"sample_index-web-train"}
    assert names[0] != names[1]
    layers = first["train/datasets/web"].sample_index.data.dask.dependencies
    stages = {key_split(name): set(map(key_split, needed)) for name, needed in layers.items()}
    assert stages == {
        "sample_index-web-train": {"starts-web-train"},
        "starts-web-train": {"count-web-train"},
        "count-web-train": {"document_index-web-train"},
        "document_index-web-train": set(),
    }


def test_a_wrong_guess_is_computed_again(
    tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path, write_corpus)
    right = chunks_of(zindex.open_index(config)["train/blend"])
    monkeypatch.setattr(blend, "_warm_up", lambda plan, start: np.zeros(3, np.int64))
    assert len(right) > 6
    for place, values in chunks_of(zindex.open_index(config)["train/blend"]).items():
        np.testing.assert_array_equal(values, right[place])


def test_a_distributed_scheduler_computes_it(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    from zindex.execution.executor import embedded_client

    tree = zindex.open_index(make_run(tmp_path, write_corpus))
    with embedded_client(2) as client, client.as_current():
        values = dask.compute(tree["train/datasets/web"].sample_index.data)[0]
        kept = tree["train/blend"].dataset_index.persist()
    assert len(values) == tree["train/datasets/web"].sizes["boundary"]
    assert kept.sizes["sample"] == 90


@pytest.fixture
def packed_run(tmp_path: Path, write_corpus: WriteCorpus) -> Any:
    """A packed run whose indices have several partitions, epochs and shards."""
    samples = {"train": 90, "valid": 7, "test": 0}
    return make_run(tmp_path, write_corpus, packing=PackingRules(4, "truncate"), samples=samples)


@pytest.fixture
def short_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = PackingPlan.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "partition_length", 8)
    monkeypatch.setattr(packing.PackingBuild, "task_length", 16)


@pytest.mark.parametrize("store", ["all", "minimal"])
@pytest.mark.usefixtures("short_partitions")
def test_a_packed_run_is_counted_when_it_is_opened(packed_run: Any, store: Any) -> None:
    config = dataclasses.replace(packed_run, store=store, order="scalable")
    lazy = zindex.open_index(config)
    assert not Path(config.index).exists()
    computed = chunks_of(lazy)
    dataset = lazy["train/datasets/web"]
    assert len(dataset.partition_offset) > 8
    assert len(dataset.part_index.chunks[0]) > 8
    with Ran() as ran:
        dataset.part_index[:1].compute(scheduler="sync", optimize_graph=False)
    assert ran.stages["pack-web-train"] == 1
    zindex.build(config)
    tree = zindex.open_index(config)
    read = chunks_of(tree)
    assert computed.keys() == read.keys()
    for place, values in computed.items():
        np.testing.assert_array_equal(values, read[place], str(place), strict=True)
    for node, other in zip(lazy.leaves, tree.leaves, strict=True):
        assert node.dims == other.dims


def test_counts_of_an_interrupted_build_are_read(
    packed_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = zindex.build(packed_run, SerialExecutor())
    read = chunks_of(zindex.open_index(packed_run))
    for done in built.values():
        (done.store.root / "zarr.json").unlink()
    monkeypatch.setattr(packing, "count_packed", None)
    tree = zindex.open_index(packed_run)
    assert {node.attrs["is_built"] for node in tree.leaves} == {0}
    for place, values in chunks_of(tree).items():
        np.testing.assert_array_equal(values, read[place], str(place), strict=True)


def test_nothing_is_left_to_pack(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    prefix = write_corpus([9] * 10, name="web")
    config = make_config(tmp_path, prefix, packing=PackingRules(4, "drop"), split="1,0,0")
    with pytest.raises(PlanError, match=r"train of .*web must hold documents to pack, none of"):
        zindex.open_index(config)
