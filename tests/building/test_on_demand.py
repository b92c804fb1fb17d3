"""An index that is opened before it is built: built here, or waited for."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.building.conftest import PlanIndex, naive_megatron
from tests.conftest import WriteCorpus
from zindex.building import on_demand
from zindex.building.arrays import open_index_arrays
from zindex.building.executor import SerialExecutor, run_builds
from zindex.building.index import build_index, find_index, index_store_plan
from zindex.building.on_demand import ensure_index
from zindex.errors import NotReadyError, VerificationError

LENGTHS = [3, 0, 5, 2, 7, 4, 6]


@pytest.fixture
def planned(write_corpus: WriteCorpus, plan_index: PlanIndex) -> tuple[Any, Any]:
    return plan_index(write_corpus(LENGTHS), num_samples=9, chunk=2)


def build(plan: Any, source: Any, folder: Path) -> Any:
    return run_builds(build_index(plan, source, folder, SerialExecutor())).store


def test_builder_builds(planned: tuple[Any, Any], tmp_path: Path) -> None:
    plan, source = planned
    store = ensure_index(plan, source, str(tmp_path))
    for array, expected in zip(
        open_index_arrays(store), naive_megatron(plan, np.array(LENGTHS)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(array), expected)


def test_small_index_needs_no_cluster_and_large_one_gets_it(
    planned: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    open_executor = on_demand.open_executor

    def start() -> Any:
        started.append(0)
        return open_executor(SerialExecutor())

    monkeypatch.setattr(on_demand, "open_executor", start)
    small = ensure_index(*planned, str(tmp_path / "small"))
    assert not started
    monkeypatch.setattr(on_demand, "_SERIAL_ROWS", 10)
    large = ensure_index(*planned, str(tmp_path / "large"))
    assert started == [0]
    assert large.fingerprint == small.fingerprint


@pytest.mark.parametrize("is_builder", [True, False])
def test_finished_index_is_opened(
    planned: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_builder: bool
) -> None:
    expected = build(*planned, tmp_path)
    for name in ("_build", "time"):
        monkeypatch.setattr(on_demand, name, None)
    assert ensure_index(*planned, str(tmp_path), is_builder=is_builder, timeout=0) == expected


def test_waiting_process_gets_what_another_commits(
    planned: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    found = on_demand.find_index

    def look(store_plan: Any) -> Any:
        store = found(store_plan)
        looked.set()
        return store

    monkeypatch.setattr(on_demand, "find_index", look)

    def build_later() -> None:
        assert looked.wait(10)
        build(*planned, tmp_path)

    builder = threading.Thread(target=build_later)
    builder.start()
    store = ensure_index(*planned, str(tmp_path), is_builder=False, timeout=30)
    builder.join()
    assert store == find_index(index_store_plan(planned[0], tmp_path))


def test_wait_ends_with_what_is_missing(planned: tuple[Any, Any], tmp_path: Path) -> None:
    store = build(*planned, tmp_path)
    (store.root / "zarr.json").unlink()
    (store.root / "sample_index" / "c" / "0" / "0").unlink()
    num_shards = index_store_plan(planned[0], tmp_path).num_shards
    message = (
        rf"{store.root} must be committed within 0 s, {num_shards - 1} of {num_shards} shards are "
        "finished; check the building rank"
    )
    start = time.monotonic()
    with pytest.raises(NotReadyError, match=message) as caught:
        ensure_index(*planned, str(tmp_path), is_builder=False, timeout=0.1)
    assert time.monotonic() - start < 5
    assert (caught.value.num_done, caught.value.num_shards) == (num_shards - 1, num_shards)


def test_wait_for_nothing_at_all(planned: tuple[Any, Any], tmp_path: Path) -> None:
    num_shards = index_store_plan(planned[0], tmp_path).num_shards
    with pytest.raises(NotReadyError, match=f"0 of {num_shards} shards are finished"):
        ensure_index(*planned, str(tmp_path), is_builder=False, timeout=0)


def test_waits_grow_and_differ(
    planned: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of ranks do not ask at the same moment, nor more often than every few seconds."""
    clock, waits = 0.0, []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return clock

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal clock
            waits.append(seconds)
            clock += seconds

    monkeypatch.setattr(on_demand, "time", Clock)
    with pytest.raises(NotReadyError, match="within 60 s, 0 of"):
        ensure_index(*planned, str(tmp_path), is_builder=False, timeout=60)
    assert 60 <= sum(waits) < 63
    limits = [min(2.0, 0.05 * 2**i) for i in range(len(waits))]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True)), waits
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize("is_builder", [True, False])
def test_damage_is_told_at_once(planned: tuple[Any, Any], tmp_path: Path, is_builder: bool) -> None:
    """A rank does not wait an hour for an index that will never be right."""
    root = build(*planned, tmp_path).root / "zarr.json"
    content = root.read_text()
    root.write_text(content.replace('"seed":7', '"seed":8'))
    assert root.read_text() != content
    with pytest.raises(VerificationError, match=rf"{root} fails its digest"):
        ensure_index(*planned, str(tmp_path), is_builder=is_builder)
