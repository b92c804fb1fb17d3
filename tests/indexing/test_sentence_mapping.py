"""Stored mappings equal those in memory, on any grid, executor, after any interruption."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.forked import run_python
from tests.trees import all_files
from zindex.errors import PlanError
from zindex.execution.executor import SerialExecutor, embedded_client, open_executor, run_builds
from zindex.formats.idx_writer import write_index
from zindex.indexing import mapping_tasks as tasks_module
from zindex.indexing.ensure import build_store
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.indexing.sentence_mapping import MappingArrays, compute_mapping, plan_mapping
from zindex.ingest.length_source import LengthSource, open_source
from zindex.store.layout import ChunkGrid
from zindex.store.verify import verify_store

COUNTS = [3, 1, 0, 4, 30, 2, 2, 0, 7, 1, 12, 5, 3, 3, 9]
EXPECTED_SPANS = {"train": range(0, 11), "valid": range(11, 15)}


@pytest.fixture
def source(tmp_path: Path) -> SentenceSource:
    """Documents of 0 to 30 sentences, one of them too long, with titles."""
    rng = np.random.default_rng(5)
    bounds = np.cumsum([0, *COUNTS])
    lengths = rng.integers(0, 40, bounds[-1]).astype(np.int32)
    lengths[bounds[8] + 2] = 513
    titles = rng.integers(0, 9, len(COUNTS)).astype(np.int32)
    write_index(tmp_path / "a.idx", np.uint16, lengths, bounds, None)
    write_index(tmp_path / "t.idx", np.uint16, titles, np.arange(len(COUNTS) + 1), None)
    pairs = [open_source(tmp_path / name, require_bin=False) for name in "at"]
    return SentenceSource(*pairs)


def make_plan(source: SentenceSource, split: str = "train", **settings: Any) -> Any:
    values = {
        "max_sequence_length": 50,
        "seed": 7,
        "grid": ChunkGrid(4, 8),
        "partition_length": 10,
    } | settings
    if values.get("kind") != "blocks":
        source = SentenceSource(source.sentences)
    return plan_mapping(source, EXPECTED_SPANS[split], split=split, **values)


def source_of(plan: Any, source: SentenceSource) -> SentenceSource:
    return source if plan.kind == "blocks" else SentenceSource(source.sentences)


def build(
    plan: Any,
    source: SentenceSource,
    folder: Path,
    executor: Any = None,
    advance: Any = lambda num_shards: None,
    **options: Any,
) -> Any:
    executor = executor or SerialExecutor()
    return run_builds(
        build_store(plan, source_of(plan, source), folder, executor, advance, **options)
    )


def compute(plan: Any, source: SentenceSource) -> np.ndarray:
    titles = source.titles.lengths(plan.start, plan.stop) if plan.kind == "blocks" else None
    bounds = source.bounds(plan.start, plan.stop)
    lengths = source.sentences.lengths(int(bounds[0]), int(bounds[-1]))
    return compute_mapping(plan, bounds, lengths, titles)


PLANS: dict[str, dict[str, Any]] = {
    "one epoch": {},
    "repeated": {"num_requested": 60, "min_num_sentences": 2},
    "drawn": {"num_requested": 90, "short_sequence_probability": 0.3},
    "drawn once": {"short_sequence_probability": 1.0, "split": "valid"},
    "keyed": {"order": "scalable", "num_requested": 90, "short_sequence_probability": 0.3},
    "keyed, valid": {"order": "scalable", "split": "valid", "num_requested": 3},
    "minimal": {
        "order": "scalable",
        "stored": "minimal",
        "num_requested": 40,
        "short_sequence_probability": 0.5,
    },
    "minimal, repeated": {"order": "scalable", "stored": "minimal", "num_requested": 40},
    "blocks": {"kind": "blocks", "num_requested": 70, "min_num_sentences": 2},
    "single blocks": {"kind": "blocks", "order": "scalable", "split": "valid"},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_stored_mapping_is_the_one_in_memory(
    tmp_path: Path, source: SentenceSource, name: str
) -> None:
    plan = make_plan(source, **PLANS[name])
    expected = compute(plan, source)
    store = build(plan, source, tmp_path / "index").store
    arrays = MappingArrays.open(store)
    assert arrays.plan.spec == plan.spec
    samples = arrays.sample_index
    assert samples.dtype == expected.dtype
    assert np.array_equal(np.asarray(samples), expected)
    assert np.array_equal(samples[-1], expected[-1])
    positions = np.array([len(expected) - 1, 0, 0, len(expected) // 2])
    assert np.array_equal(arrays.find_samples(positions), expected[positions])
    assert store.attributes["num_samples"] == len(expected) == len(arrays.shuffle_index)
    assert len(expected) >= (plan.num_requested or 1)
    epochs = arrays.epochs_of(np.arange(len(expected)))
    assert epochs[0] == 0
    assert epochs[-1] == store.attributes["num_epochs"] - 1
    assert verify_store(store.root).is_sound


@pytest.mark.parametrize("name", ["drawn", "keyed", "blocks"])
def test_grid_partitions_and_tasks_change_no_sample(
    tmp_path: Path, source: SentenceSource, name: str
) -> None:
    expected = compute(make_plan(source, **PLANS[name]), source)
    for number, (partition, task, grid) in enumerate(
        [(1, 1, ChunkGrid(1, 3)), (5, 100, ChunkGrid(3, 6, "zstd")), (1 << 22, 1, ChunkGrid())]
    ):
        settings = PLANS[name] | {"partition_length": partition, "grid": grid}
        plan = make_plan(source, **settings)
        store = build(plan, source, tmp_path / str(number), task_length=task).store
        assert np.array_equal(np.asarray(MappingArrays.open(store).sample_index), expected)


@pytest.mark.parametrize("name", ["drawn", "keyed"])
def test_a_cluster_gives_the_same_bytes(tmp_path: Path, source: SentenceSource, name: str) -> None:
    plan = make_plan(source, **PLANS[name])
    build(plan, source, tmp_path / "serial")
    with embedded_client(2) as client, open_executor(client) as executor:
        build(plan, source, tmp_path / "dask", executor)
    assert all_files(tmp_path / "serial") == all_files(tmp_path / "dask")


class _DiedError(Exception):
    """The end of a build."""


class _Dying(SerialExecutor):
    """Dies at its n-th task that stores anything."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.left = tasks

    async def run(self, function: Any, *args: Any, key: str, priority: int = 0) -> Any:
        if not self.left:
            raise _DiedError
        self.left -= not key.startswith("count")
        return await super().run(function, *args, key=key, priority=priority)


@pytest.mark.parametrize("name", ["drawn", "minimal", "blocks"])
def test_a_build_that_dies_is_resumed(tmp_path: Path, source: SentenceSource, name: str) -> None:
    plan = make_plan(source, **PLANS[name])
    build(plan, source, tmp_path / "whole")
    advanced: list[int] = []
    for tasks in (0, 1, 2, 3):
        with pytest.raises(_DiedError):
            build(plan, source, tmp_path / "cut", _Dying(tasks))
    again = build(plan, source, tmp_path / "cut", advance=advanced.append)
    assert 0 < again.num_written < again.num_shards == sum(advanced)
    assert all_files(tmp_path / "whole") == all_files(tmp_path / "cut")
    found = build(plan, source, tmp_path / "cut", _Dying(0))
    assert found.num_written == 0


def test_killed_builds_leave_the_bytes_of_one(tmp_path: Path, source: SentenceSource) -> None:
    """But for the unfinished files of writers that were killed, which a verification names."""
    command = ["-m", "tests.indexing.kill_mapping", source.sentences.path, str(tmp_path)]
    done = run_python(*command, check=True)
    assert int(done.stdout) > 5
    found = all_files(tmp_path / "cut")
    left = {name for name in found if name.endswith(".partial")}
    assert left
    kept = {name: content for name, content in found.items() if name not in left}
    assert kept == all_files(tmp_path / "whole")
    (root,) = (tmp_path / "cut").iterdir()
    report = verify_store(root)
    assert report.is_sound
    assert sum("is what a stopped build left" in note for note in report.notes) == len(left)


@pytest.mark.parametrize("name", ["drawn", "keyed", "blocks"])
def test_few_sentences_are_in_memory_at_a_time(
    tmp_path: Path, source: SentenceSource, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Partitions have as many documents each, however long those are."""
    plan = make_plan(source, **PLANS[name] | {"partition_length": 1 << 20})
    expected = compute(plan, source)
    longest = max(COUNTS)
    read = LengthSource.lengths

    def measured(self: LengthSource, start: int, stop: int) -> Any:
        assert stop - start <= longest
        return read(self, start, stop)

    monkeypatch.setattr(LengthSource, "lengths", measured)
    monkeypatch.setattr(tasks_module, "_RUN_LENGTH", 1)
    store = build(plan, source, tmp_path).store
    assert np.array_equal(np.asarray(MappingArrays.open(store).sample_index), expected)


def test_documents_without_samples_are_named(tmp_path: Path, source: SentenceSource) -> None:
    plan = make_plan(source, min_num_sentences=31, num_requested=5)
    with pytest.raises(
        PlanError, match=r"train of .*a must hold documents of at least 31 .*its 11"
    ):
        build(plan, source, tmp_path)
    assert compute(plan, source).shape == (0, 3)
