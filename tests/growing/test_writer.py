"""Appends and writers: all records of a generation or none, once, from any number of processes."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.growing.rollouts import die_before_write, grow, rollout
from tests.killing import exit_code, fork
from tests.trees import all_files
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    SourceError,
    VerificationError,
)
from zindex.growing.compaction import compact
from zindex.growing.eviction import find_unused, remove_unused
from zindex.growing.growing_log import GrowingLog
from zindex.growing.numbered_log import NumberedLog
from zindex.growing.writer import GrowingWriter, append
from zindex.keyed.growing_store import open_growing


def read_numbers(store: Path) -> list[int]:
    found = open_growing(store)
    tokens = found.fetch(0, found.column("prompts").length, "prompts")
    return [int(token) for token in tokens[::2]]


def test_generations_are_numbered(tmp_path: Path) -> None:
    store = tmp_path / "new" / "store"
    assert [grow(store, range(n, n + 3)) for n in (0, 3, 6)] == [1, 2, 3]
    assert read_numbers(store) == list(range(9))
    assert GrowingLog(store).history.number == 3


def test_an_append_with_a_key_is_done_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, [0])
    first = append(store, [rollout(1)], key="worker 0, step 5")
    grow(store, [2])
    before = all_files(store)
    # What the worker makes again may differ; what was committed stays.
    assert append(store, [rollout(9)], key="worker 0, step 5") == first == 2
    assert all_files(store) == before
    assert append(store, [rollout(3)], key="worker 0, step 6") == 4
    assert read_numbers(store) == [0, 1, 2, 3]


def test_values_that_were_collected_before_their_commit_are_written_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, [0])
    die_before_write(2, lambda: append(store, [rollout(1)], key="a key"))
    remove_unused(find_unused(store, hours=-1))
    assert append(store, [rollout(1)], key="a key") == 2
    assert append(store, [rollout(1)], key="a key") == 2
    assert read_numbers(store) == [0, 1]
    compact(store, min_count=2)
    remove_unused(find_unused(store, hours=-1))
    assert append(store, [rollout(1)], key="a key") == 2
    assert read_numbers(store) == [0, 1]


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("key", [None, "a key"])
def test_a_death_leaves_all_or_nothing(tmp_path: Path, call: int, key: str | None) -> None:
    store = tmp_path / "store"
    grow(store, [0])
    die_before_write(call, lambda: append(store, [rollout(1), rollout(2)], key=key))
    seen = read_numbers(store)
    assert seen in ([0], [0, 1, 2])
    append(store, [rollout(1), rollout(2)], key=key)
    expected = [0, 1, 2] if key else [*seen, 1, 2]
    assert read_numbers(store) == expected


def test_processes_append_at_once(tmp_path: Path) -> None:
    store = tmp_path / "store"

    def work(worker: int) -> None:
        with GrowingWriter(store, max_records=2) as writer:
            for number in range(10):
                writer.add(rollout(100 * worker + number))

    children = [fork(lambda worker=worker: work(worker)) for worker in range(4)]  # type: ignore[misc]
    assert [exit_code(child) for child in children] == [0] * 4
    found = read_numbers(store)
    assert sorted(found) == sorted(100 * w + n for w in range(4) for n in range(10))
    for worker in range(4):  # each writer's records are in its order
        assert [n for n in found if n // 100 == worker] == [100 * worker + n for n in range(10)]
    assert GrowingLog(store).history.number == 20


def test_a_writer_collects_records_of_one_version(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with GrowingWriter(store, max_records=3) as writer:
        assert [writer.add(rollout(n)) for n in range(4)] == [None, None, 1, None]
        writer.set_version(0)
        writer.set_version(2)
        assert writer.commit() is None
        writer.add(rollout(4))
        assert writer.append([rollout(5)], version=1) == 3
    history = GrowingLog(store).history
    assert history.rows[:, :3].tolist() == [[1, 3, 0], [2, 1, 0], [3, 1, 1], [4, 1, 2]]
    assert read_numbers(store) == [0, 1, 2, 3, 5, 4]


def test_a_record_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grow(store, [0])
    before = all_files(store)
    with pytest.raises(SourceError, match=r"record 0 has more"):
        append(store, [rollout(1) | {"more": 1}])
    with pytest.raises(SourceError, match=r"a record must be a mapping .* got 'prompts'; append a"):
        append(store, rollout(1))  # type: ignore[arg-type]
    assert all_files(store) == before
    with GrowingWriter(store) as writer:
        writer.add(rollout(1))
        with pytest.raises(SourceError, match=r"token ids of 'prompts' must be from 0 to"):
            writer.add(rollout(2) | {"prompts": [-1]})
        writer.add(rollout(3))
    assert read_numbers(store) == [0, 1, 3]


def test_nothing_is_written_for_a_first_record_that_does_not_fit(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with pytest.raises(SourceError, match=r"from 0 to 4, got 7 in record 0; fix the record"):
        append(store, [rollout(1)], vocab_size=5)
    assert not store.exists()
    with pytest.raises(ConfigError, match=r"a generation must have records, got none for .*store;"):
        append(store, [])
    with pytest.raises(ConfigError, match=r"version must be a whole number of at least 0, got -1"):
        append(store, [rollout(1)], version=-1)
    with suppress(RuntimeError), GrowingWriter(store) as writer:
        writer.add(rollout(1))
        raise RuntimeError("the block fails")
    assert not store.exists()


def test_other_places_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        grow(tmp_path / "store", [number])
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("years of work")
    with pytest.raises(FingerprintMismatchError, match=r"must be empty or a zindex store"):
        grow(tmp_path / "thesis", [1])
    compact(tmp_path / "store", min_count=2)
    [finished] = (tmp_path / "store").glob("records-*")
    with pytest.raises(FingerprintMismatchError, match=r"it is a store that was written at once;"):
        grow(finished, [1])


def test_a_large_generation_is_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    grow(store, range(3))
    monkeypatch.setattr("zindex.growing.writer.MAX_FILE_NBYTES", 100)
    grow(store, range(3, 9))
    assert [home.is_store for home in GrowingLog(store).history.homes] == [False, True]
    assert read_numbers(store) == list(range(9))


def test_many_commits_are_summarised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    monkeypatch.setattr("zindex.growing.growing_log._SUMMARY_INTERVAL", 4)
    with GrowingWriter(store) as writer:
        for number in range(10):
            writer.append([rollout(number)])
    summary = json.loads((store / "_zindex" / "summary.json").read_bytes())
    assert summary["number"] == 8
    whole, looked, read = GrowingLog(store).history.to_json(), list[int](), NumberedLog.read
    monkeypatch.setattr(
        NumberedLog, "read", lambda self, number: looked.append(number) or read(self, number)
    )
    assert GrowingLog(store).history.to_json() == whole
    assert looked == [9, 10, 11]
    for content in (b"", b'{"number": 8}', b"[1]"):  # not needed, so damage does no harm
        (store / "_zindex" / "summary.json").write_bytes(content)
        assert GrowingLog(store).history.to_json() == whole


def test_a_lost_commit_is_noticed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number in range(3):
        grow(store, [number])
    (store / "_zindex" / "log" / "000000" / "002.json").unlink()
    with pytest.raises(VerificationError, match=r"002.json must exist, as commit 3 does; restore"):
        grow(store, [3])


def test_arrays_are_stored_as_given(tmp_path: Path) -> None:
    record = {"ids": np.arange(5, dtype=np.uint16), "label": True}
    append(tmp_path / "s", [record], dtypes={"label": "int8"})
    store = open_growing(tmp_path / "s")
    assert store.keys == ["ids", "label", "policy_version"]
    assert store.fetch(0, 5, "ids").numpy().dtype == np.uint16
    assert store.column("label").dtype == np.int8
