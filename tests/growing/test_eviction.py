"""Eviction and garbage: what no reader can reach is removed, and nothing else."""

import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.growing.rollouts import die_before_write, grow, numbers_of
from zindex.errors import ConfigError, StateMismatchError, StoreNotFoundError
from zindex.growing.compaction import compact
from zindex.growing.eviction import (
    evict,
    find_unused,
    release,
    remove_unused,
)
from zindex.growing.growing_log import GrowingLog
from zindex.keyed.growing_dataset import GrowingDataset, growing_loader
from zindex.keyed.growing_store import open_growing


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for version in range(6):
        grow(tmp_path / "store", range(4 * version, 4 * version + 4), version)
    return tmp_path / "store"


def train(store: Path, num_steps: int, state: Any = None) -> tuple[list[list[int]], Any]:
    """Return the numbers of some batches, and the state after them."""
    dataset = GrowingDataset("grpo", store, round_size=4, priority="old", patience=0.0)
    batches = growing_loader(dataset, 4, rank=0, num_ranks=1, state=state)
    found = [numbers_of(batch) for batch in islice(batches, num_steps)]
    return found, batches.state_dict()


def reasons(store: Path, **settings: Any) -> list[str]:
    return [item.reason for item in find_unused(store, hours=-1, **settings)]


def test_old_versions_and_generations_are_evicted(store: Path) -> None:
    assert evict(store, keep_versions=6) == 0
    assert evict(store, keep_versions=4) == 7
    assert evict(store, keep_versions=4) == 0
    assert open_growing(store).num_records == 16
    assert evict(store, keep_generations=3) == 8
    assert evict(store, keep_generations=100) == 0
    assert open_growing(store).num_records == 12
    assert open_growing(store, 7).num_records == 16


def test_only_what_is_unreachable_is_removed(store: Path) -> None:
    first, middle = train(store, 2)
    rest, last = train(store, 2, middle)
    assert reasons(store) == []
    evict(store, keep_versions=1)
    assert len(find_unused(store, hours=24)) == 0  # the eviction is too young
    # Versions 0 to 3 were read by rounds that could be replayed; version 4 was not.
    assert reasons(store) == ["evicted, and no reader can reach it"]
    remove_unused(find_unused(store, hours=-1))
    assert train(store, 4)[0] == first + rest
    release(store, "train", middle)  # earlier states are given up
    assert len(reasons(store)) == 2
    remove_unused(find_unused(store, hours=-1))
    assert train(store, 2, middle)[0] == rest
    assert reasons(store, states=[{"generation": 6}]) == []
    with pytest.raises(
        StoreNotFoundError, match=r"generations 1 to 1 of .* were evicted, and remo"
    ):
        train(store, 1)
    release(store, "train", None)
    release(store, "train", last)  # a release is never taken back
    assert len(reasons(store)) == 2
    remove_unused(find_unused(store, hours=-1))
    assert [path.name for path in (store / "_zindex" / "files").iterdir()] == [
        f"{GrowingLog(store).history.homes[-1].name}.bin"
    ]


def test_compacted_files_are_removed_and_what_killed_writers_left(store: Path) -> None:
    for call in range(3):
        die_before_write(call, lambda: grow(store, [99]))
    compact(store, min_count=7)
    (store / "_zindex" / "log" / "000000" / "008.json.0123456789ab.partial").write_text("")
    for each in (store / "_zindex" / "files").iterdir():
        os.utime(each, (0, 0))
    found = find_unused(store)
    assert {item.reason for item in found} == {"compacted, or left by a killed writer"}
    assert len(find_unused(store, hours=-1)) == len(found) + 1
    remove_unused(find_unused(store, hours=-1))
    assert reasons(store) == []
    assert open_growing(store).num_records == 25
    assert not list((store / "_zindex" / "files").iterdir())


def test_a_compacted_store_is_removed_as_a_whole(store: Path) -> None:
    compact(store, min_count=2)
    grow(store, [100], 9)
    evict(store, keep_versions=1)
    [stored] = [item for item in find_unused(store, hours=-1) if item.path.is_dir()]
    assert stored.reason == "evicted, and no reader can reach it"
    remove_unused([stored])
    assert not stored.path.exists()
    assert open_growing(store).num_records == 1


def test_wrong_settings(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got neither keep_versions nor keep_generations; give"):
        evict(store)
    with pytest.raises(ConfigError, match=r"keep_versions must be a whole number of at least 1"):
        evict(store, keep_versions=0)
    with pytest.raises(StoreNotFoundError, match=r"no growing store at"):
        evict(tmp_path / "nothing", keep_versions=1)
    with pytest.raises(StoreNotFoundError, match=r"must have the reader 'train', it has \[\]"):
        release(store, "train", None)
    train(store, 1)
    with pytest.raises(StateMismatchError, match=r"must have consumed_samples, got \{\}; give"):
        release(store, "train", {})
    with pytest.raises(StateMismatchError, match=r"a state must have a generation, got \{\}"):
        find_unused(store, states=[{}])
