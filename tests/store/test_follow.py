"""Stores that are read while they are built: equal to the finished store, or not ready."""

import os
import pickle
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.clocks import Clock
from tests.store.stores import ONE, TWO, commit_arrays, count_up, plan_arrays
from zindex.errors import (
    ConfigError,
    FingerprintMismatchError,
    NotReadyError,
    StoreError,
    VerificationError,
)
from zindex.io.backoff import Backoff
from zindex.store import heartbeat
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.layout import ChunkGrid
from zindex.store.open import FollowedStore, follow_plan, follow_store, open_store
from zindex.store.rows import Spans, read_many
from zindex.store.shard_files import store_shard
from zindex.store.tokens import LINK, open_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

ARRAYS = {ONE: count_up(20), TWO: count_up(20, num_columns=2)}


@pytest.fixture
def plan(tmp_path: Path) -> StorePlan:
    return plan_arrays(tmp_path / "store", ARRAYS)


def write(plan: StorePlan, name: str, *shards: int) -> None:
    """Write shards as a builder does."""
    for layout, values in zip(plan.layouts, ARRAYS.values(), strict=True):
        for shard in shards:
            if layout.name == name:
                start, stop = layout.shard_bounds(shard)
                store_shard(plan.root, layout, shard, lambda v=values, i=start, j=stop: v[i:j])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock, and a builder that works while others sleep."""
    made = Clock()
    injected = partial(Backoff, clock=made.monotonic, sleep=made.sleep)
    monkeypatch.setattr(heartbeat, "Backoff", injected)
    return made


def test_finished_shards_are_read_and_others_are_not_ready(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    write(plan, "one", 1, 3)
    array = follow_plan(plan, 0)["one"]
    np.testing.assert_array_equal(array[6:12], ARRAYS[ONE][6:12])
    assert array[19] == 19
    starts, stops = np.array([18, 7, 9]), np.array([20, 8, 9])
    assert array.read_spans(starts, stops).tolist() == [18, 19, 7]
    for start, stop in ((5, 7), (0, 1), (0, 20), (12, 13)):
        message = rf"shard one/c/{0 if start < 6 else 2} of {plan.root} must be there within 0 s, 2"
        with pytest.raises(NotReadyError, match=message) as caught:
            array.read(start, stop)
        assert (caught.value.num_done, caught.value.num_shards) == (2, 8)
    assert clock.pauses == []


def test_a_late_shard_is_waited_for(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    clock.work = [lambda: None, lambda: write(plan, "two", 0), lambda: None]
    clock.work += [lambda: write(plan, "two", 1)]
    array = follow_plan(plan, 60)["two"]
    np.testing.assert_array_equal(array[2:9], ARRAYS[TWO][2:9])
    assert len(clock.pauses) == 4
    array.read(0, 12)
    assert len(clock.pauses) == 4


def test_one_round_over_several_arrays(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    write(plan, "one", 0)
    clock.work = [lambda: write(plan, "two", 2)]
    store = follow_plan(plan, 60)
    starts, stops = np.array([0]), np.array([3])
    found = read_many(
        [Spans(store["one"], starts, stops), Spans(store["two"], starts + 12, stops + 12)]
    )
    assert [part.tolist() for part in found] == [[0, 1, 2], [[24, 25], [26, 27], [28, 29]]]


def test_waits_grow_differ_and_end(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    with pytest.raises(NotReadyError, match="must be there within 12 s, 0 of 8 shards are; wait"):
        follow_plan(plan, 12)["one"][0]
    assert sum(clock.pauses) == pytest.approx(12)
    limits = [min(1.0, 0.01 * 1.25**i) for i in range(len(clock.pauses))]
    pairs = list(zip(clock.pauses, limits, strict=True))[:-1]
    assert all(limit / 2 <= pause <= limit * 1.001 for pause, limit in pairs)
    assert len(set(clock.pauses)) == len(clock.pauses)


def test_nothing_is_begun(plan: StorePlan, clock: Clock) -> None:
    array = follow_plan(plan, 3)["one"]
    with pytest.raises(NotReadyError, match=r"the plan of .* within 3 s, its build has not begun"):
        array[0]
    clock.work = [lambda: begin_store(plan), lambda: write(plan, "one", 0)]
    assert array[0] == 0


def test_the_message_says_whether_somebody_builds(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    plan_file = plan.root / "_zindex/plan.json"
    clock.work = [lambda: os.utime(plan_file, ns=(7, 7))]
    with pytest.raises(
        NotReadyError, match="its build continues; wait longer, with a larger follow"
    ):
        follow_plan(plan, 30)["one"][0]
    with pytest.raises(
        NotReadyError, match="no process seems to build it any more; start the builder"
    ):
        follow_plan(plan, 30)["one"][0]


def test_a_failed_build_is_raised_at_the_next_read(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    write(plan, "one", 0)
    failed: list[Exception] = []

    def listen() -> None:
        if failed:
            raise failed[0]

    array = follow_plan(plan, 60, listen)["one"]
    assert array[0] == 0
    clock.work = [lambda: failed.append(StoreError("the disk is full"))]
    for row in (6, 0):
        with pytest.raises(StoreError, match="the disk is full"):
            array[row]
    assert len(clock.pauses) == 1


def test_a_damaged_shard_is_waited_for_like_a_missing_one(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    write(plan, "one", 0)
    shard = plan.root / "one/c/0"
    shard.write_bytes(shard.read_bytes()[:-3])
    clock.work = [lambda: write(plan, "one", 0)]
    assert follow_plan(plan, 9)["one"][0] == 0
    assert len(clock.pauses) == 1


def test_a_damaged_chunk_is_not_served(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    write(plan, "one", 0)
    shard = plan.root / "one/c/0"
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    with pytest.raises(VerificationError, match="chunk 0 of shard one/c/0 fails its checksum"):
        follow_plan(plan, 9)["one"][0]


def test_a_follower_is_bound_to_the_commit_once_it_is_there(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    array = follow_plan(plan, 9)["one"]
    write(plan, "one", 0)
    assert array[0] == 0
    commit_arrays(plan, ARRAYS)
    assert array[8] == 8
    (plan.root / "one/c/2").write_bytes((plan.root / "one/c/1").read_bytes())
    with pytest.raises(VerificationError, match=r"shard one/c/2 of .* is not what was committed"):
        array[14]


def test_a_commit_without_the_shard_is_damage(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    commit_arrays(plan, ARRAYS)
    (plan.root / "one/c/1").unlink()
    array = follow_plan(plan, 9)["one"]
    assert array[0] == 0
    with pytest.raises(VerificationError, match=r"shard .*one/c/1 is missing"):
        array[6]
    assert clock.pauses == []


def test_the_cut_of_the_first_builder_holds(plan: StorePlan, clock: Clock) -> None:
    other = plan_arrays(plan.root, ARRAYS, ChunkGrid(2, 4))
    begin_store(other)
    write(other, "one", 4)
    array = follow_plan(plan, 0)["one"]
    assert array[16:20].tolist() == [16, 17, 18, 19]
    with pytest.raises(NotReadyError, match="shard one/c/3 of"):
        array[15:20]


def test_other_content_is_refused(plan: StorePlan) -> None:
    begin_store(plan)
    other = plan_arrays(plan.root, ARRAYS, spec={"seed": 2})
    with pytest.raises(FingerprintMismatchError, match=f"have fingerprint {other.fingerprint[:9]}"):
        follow_plan(other, 0)["one"][0]


@pytest.mark.parametrize("rows", [(-1, 3), (4, 21), (3, 2)])
def test_rows_that_are_not_are_an_error_as_ever(plan: StorePlan, rows: tuple[int, int]) -> None:
    begin_store(plan)
    with pytest.raises(IndexError, match="are outside one of length 20"):
        follow_plan(plan, 0)["one"].read(*rows)


def test_copies_in_other_processes_wait_by_themselves(plan: StorePlan, clock: Clock) -> None:
    begin_store(plan)
    write(plan, "one", 0)
    store = follow_plan(plan, 5, lambda: None, verify="always")
    array = store["one"]
    assert array[0] == 0
    copy = pickle.loads(pickle.dumps(array))
    assert (copy.store, copy.store.patience, copy.store.verify) == (store, 5, "always")
    clock.work = [lambda: write(plan, "one", 1)]
    assert copy[0:12].tolist() == list(range(12))


def test_open_store_follows(plan: StorePlan, clock: Clock) -> None:
    clock.work = [lambda: None, lambda: begin_store(plan)]
    store = open_store(plan.root, follow=10, kind="index", expected=plan.fingerprint)
    assert isinstance(store, FollowedStore)
    write(plan, "one", 0)
    assert store["one"][5] == 5
    assert "two" in store
    with pytest.raises(KeyError, match="has no array 'three', it has"):
        store["three"]
    commit_arrays(plan, ARRAYS)
    assert open_store(plan.root, follow=10) == open_store(plan.root)
    np.testing.assert_array_equal(store["two"][:], ARRAYS[TWO])


def test_followed_reads_are_verified(plan: StorePlan, clock: Clock) -> None:
    with pytest.raises(NotReadyError, match=r"the plan of .* must be there within 1 s, its"):
        follow_store(plan.root, 1)
    with pytest.raises(ConfigError, match="follow must be 0 seconds or more, got -1"):
        follow_plan(plan, -1)
    begin_store(plan)
    with pytest.raises(StoreError, match="must hold tokens, it holds index"):
        follow_store(plan.root, 1, kind="tokens")
    with pytest.raises(FingerprintMismatchError, match="must have fingerprint abc"):
        follow_store(plan.root, 1, expected="abc")


class Following(RuleBasedStateMachine):
    """A builder, accidents and readers in any order: each read is right or not ready."""

    folder: Path
    count = 0

    @initialize(shard_length=st.sampled_from([3, 6, 9]), codec=st.sampled_from(["none", "zstd"]))
    def start(self, shard_length: int, codec: Any) -> None:
        type(self).count += 1
        root = self.folder / str(self.count)
        self.plan = plan_arrays(root, ARRAYS, ChunkGrid(3, shard_length, codec))
        self.arrays = {spec.name: values for spec, values in ARRAYS.items()}
        self.store = follow_plan(self.plan, 0)
        self.readers = {name: self.store[name] for name in self.arrays}
        self.is_begun = self.is_committed = False
        self.harmed: set[tuple[str, int]] = set()

    @rule()
    def begin(self) -> None:
        begin_store(self.plan)
        self.is_begun = True

    @precondition(lambda self: self.is_begun)
    @rule(name=st.sampled_from(["one", "two"]), shard=st.integers(0, 6))
    def build(self, name: str, shard: int) -> None:
        write(self.plan, name, shard % self.plan.layouts[0].num_shards)

    @precondition(lambda self: self.is_begun and not self.is_committed)
    @rule(name=st.sampled_from(["one", "two"]), shard=st.integers(0, 6), cut=st.integers(1, 30))
    def cut_short(self, name: str, shard: int, cut: int) -> None:
        """As a file system may after a crash; the next build puts it right."""
        layout = self.plan.layouts[name == "two"]
        path = self.plan.root / layout.shard_key(shard % layout.num_shards)
        # Readers that hold it open already are served from what they know.
        if path.exists():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content[:-cut])

    @precondition(lambda self: self.is_begun)
    @rule()
    def commit(self) -> None:
        commit_arrays(self.plan, ARRAYS)
        self.is_committed = True

    @rule()
    def reopen(self) -> None:
        self.readers = {name: self.store[name] for name in self.arrays}

    @rule(name=st.sampled_from(["one", "two"]), rows=st.tuples(*[st.integers(0, 20)] * 2))
    def read(self, name: str, rows: tuple[int, int]) -> None:
        start, stop = sorted(rows)
        try:
            found = self.readers[name].read(start, stop)
        except (NotReadyError, VerificationError):  # the other one where a shard was cut short
            assert not self.is_committed
        else:
            np.testing.assert_array_equal(found, self.arrays[name][start:stop])

    @invariant()
    def nothing_is_seen_before_the_commit(self) -> None:
        assert (self.plan.root / "zarr.json").exists() == self.is_committed


@pytest.mark.parametrize("num_examples", [12, pytest.param(2000, marks=pytest.mark.slow)])
def test_each_read_is_right_or_not_ready(tmp_path: Path, num_examples: int) -> None:
    Following.folder = tmp_path
    run_state_machine_as_test(
        Following,
        settings=settings(max_examples=num_examples, stateful_step_count=30),
    )


def begin_linked(tmp_path: Path) -> "Callable[[], None]":
    """Begin a token store that links to its ``.bin``; return what commits it."""
    plan = StorePlan(tmp_path / "linked", "tokens", {"token_dtype": "int32", "link": True}, ())
    begin_store(plan)
    (tmp_path / "corpus.bin").write_bytes(count_up(5).tobytes())
    link = {"path": str(tmp_path / "corpus.bin"), "nbytes": 20}
    return lambda: commit_store(plan, [], {LINK: link})


def test_the_link_of_a_linked_store_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    clock.work = [lambda: None, begin_linked(tmp_path)]
    store = open_store(tmp_path / "linked", kind="tokens", follow=60)
    assert open_tokens(store).read(1, 4).tolist() == [1, 2, 3]
    assert len(clock.pauses) == 2


def test_a_linked_store_that_is_not_committed_in_time(tmp_path: Path, clock: Clock) -> None:
    begin_linked(tmp_path)
    message = "the link to the .bin of .*linked must be there within 3 s, 0 of 0 shards are; wait"
    with pytest.raises(NotReadyError, match=message):
        open_store(tmp_path / "linked", follow=3)
    assert sum(clock.pauses) == pytest.approx(3)
