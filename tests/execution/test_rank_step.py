"""Errors of ranks reach the others, and silent ranks delay no other."""

import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from tests.clocks import Clock
from zindex.errors import ConfigError, NotReadyError, PlanError, SourceError, ZindexError
from zindex.execution import rank_step
from zindex.execution.rank_step import RankStep


class Patient(RankStep):
    """A step whose limits, but for those that are given, outlast any test."""

    grace = linger = answer = 1e6

    def __init__(self, *args: Any, **limits: float) -> None:
        super().__init__(*args)
        vars(self).update(limits)


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def run_ranks(steps: list[Callable[[RankStep], Any]], store: Any) -> list[Any]:
    """Return what each rank's step gives, or its error; each rank is a thread."""
    outcomes: list[Any] = [None] * len(steps)

    def run(rank: int) -> None:
        try:
            with Patient("0", rank, len(steps), store) as step:
                outcomes[rank] = steps[rank](step)
        except Exception as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=[rank]) for rank in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive()
    return outcomes


def fail(error: Exception) -> Callable[[RankStep], None]:
    def run(step: RankStep) -> None:
        raise error

    return run


def test_all_done(store: Any) -> None:
    assert run_ranks([lambda step: step.rank] * 4, store) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (SourceError("a.idx must be whole"), SourceError, "rank 1: a.idx must be whole"),
        (PlanError("no tokens"), PlanError, "rank 1: no tokens"),
        (ValueError("3"), ZindexError, "rank 1: ValueError: 3"),
        (MemoryError(), ZindexError, "rank 1: MemoryError: "),
        (NotReadyError("not built", num_done=1, num_shards=2), ZindexError, "rank 1: not built"),
    ],
)
def test_an_error_reaches_all_ranks(
    store: Any, error: Exception, kind: type[Exception], text: str
) -> None:
    """Ranks raise it at the end of the step, and while they wait for an index."""

    def wait_for_index(step: RankStep) -> None:
        while True:
            step.listen()
            time.sleep(0.01)

    steps = [lambda step: "done", fail(error), wait_for_index, lambda step: "done"]
    outcomes = run_ranks(steps, store)
    assert outcomes[1] is error
    for rank in (0, 2, 3):
        assert type(outcomes[rank]) is kind
        assert str(outcomes[rank]) == text


def test_all_ranks_fail_together(store: Any) -> None:
    errors = [PlanError(f"{rank}") for rank in range(3)]
    assert run_ranks([fail(error) for error in errors], store) == errors


def test_ranks_that_skip_the_step(store: Any) -> None:
    steps = [lambda step: "done", RankStep.leave, RankStep.leave]
    assert run_ranks(steps, store) == ["done", None, None]


def test_a_silent_rank_delays_no_other(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    start = time.monotonic()
    with Patient("0", 0, 3, store, grace=0.3):
        pass
    assert time.monotonic() - start >= 0.3
    assert "rank 0 continues without 2 of 3 ranks, which made no progress for 0 s" in caplog.text


def test_a_single_failure_ends_soon(store: Any) -> None:
    start = time.monotonic()
    with pytest.raises(PlanError, match="alone"), Patient("0", 0, 3, store, linger=0.3):
        raise PlanError("alone")
    assert time.monotonic() - start >= 0.3


def test_an_interrupt_is_not_broadcast(store: Any) -> None:
    def interrupt() -> None:
        with RankStep("0", 0, 2, store):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert not store.check(["zindex/0/failed"])


def request(num_datasets: int) -> Callable[[RankStep], None]:
    return lambda step: step.agree({"seed": 1, "paths": ["a", "b", "c"][:num_datasets]})


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_that_agree(store: Any, num_ranks: int) -> None:
    assert run_ranks([request(3)] * num_ranks, store) == [None] * num_ranks


@pytest.mark.parametrize(("num_ranks", "divergent"), [(2, 1), (4, 0), (8, 5)])
def test_ranks_that_request_something_else_fail_on_all_ranks(
    store: Any, num_ranks: int, divergent: int
) -> None:
    """Whichever rank is first, each error has the divergent rank and the field."""
    requests = [request(3)] * num_ranks
    requests[divergent] = request(2)
    for error in run_ranks(requests, store):
        assert type(error) is ConfigError
        text = "all ranks must request the same datasets, they differ in the number of paths: "
        assert text in str(error)
        assert f"rank {divergent} has 2" in str(error)
        assert str(error).endswith(" has 3; start every rank with the same arguments") or (
            f"has 3, rank {divergent} has 2; " in str(error)
        )


def test_a_late_rank_that_requests_something_else(store: Any) -> None:
    with Patient("0", 0, 2, store, grace=0.0) as step:
        step.agree({"seed": 1})
    text = "differ in seed: rank 1 has 2, rank 0 has 1; start"
    with (
        pytest.raises(ConfigError, match=text),
        Patient("0", 1, 2, store, linger=0.0) as step,
    ):
        step.agree({"seed": 2})


def test_the_first_rank_died_before_it_wrote_its_request(store: Any) -> None:
    store.set("zindex/0/request", "0 digest")
    text = "differ in some field: rank 1 has 'one request', rank 0 has 'another'; start"
    with (
        pytest.raises(ConfigError, match=text),
        Patient("0", 1, 2, store, answer=0.2, linger=0.0) as step,
    ):
        step.agree({"seed": 2})


class DeadStore:
    """A store whose server is gone; or it does not answer, for some time."""

    def __init__(self, answers: threading.Event | None = None) -> None:
        self.answers = answers
        self.num_asked = 0

    def _answer(self, *args: Any) -> Any:
        self.num_asked += 1
        if self.answers is not None:
            self.answers.wait()
        raise RuntimeError("Broken pipe")

    check = get = add = set = compare_set = _answer


@pytest.mark.parametrize("answers", [None, threading.Event()])
def test_a_dead_store_is_ignored(answers: threading.Event | None) -> None:
    store = DeadStore(answers)
    with Patient("0", 0, 2, store, answer=0.2) as step:
        step.agree({"seed": 1})
        step.listen()
    with pytest.raises(PlanError, match="here"), Patient("1", 0, 2, store, answer=0.2):
        raise PlanError("here")
    assert store.num_asked == 2
    if answers is not None:
        answers.set()


def test_steps_have_unique_names(store: Any) -> None:
    store.set("zindex/0/failed", json.dumps([1, "PlanError", "no"]))
    RankStep("1", 0, 2, store).listen()
    with pytest.raises(PlanError, match="rank 1: no"):
        RankStep("0", 0, 2, store).listen()


@pytest.mark.parametrize("is_begun", [True, False])
def test_exactly_one_rank_takes_over(
    store: Any, is_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 is not there, or does not write heartbeats; the new builder does."""
    clock = Clock()
    # Not the clock of heartbeats, whose thread may be late.
    here = SimpleNamespace(monotonic=clock.monotonic, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(rank_step, "time", here)
    if is_begun:
        store.set("zindex/0/builder", "0 0")
    steps = [Lively("0", rank, 3, store) for rank in (1, 2)]
    for step in steps:
        step.__enter__()
        assert not step.is_builder
    while not (builders := [step for step in steps if step.take_over()]):
        clock.sleep(0.1 * Lively.silence)
    [builder] = builders
    with builder.building():
        for _ in range(4):
            assert not any(step.take_over() for step in steps if step is not builder)
            last = store.get("zindex/0/builder")
            while store.get("zindex/0/builder") == last:
                time.sleep(0.01)
            clock.sleep(0.9 * Lively.silence)
    late = Lively("0", 0, 3, store)
    late.__enter__()
    assert not late.is_builder
    for step in (late, *steps):
        step.leave()
        step.__exit__(None, None, None)


class Lively(RankStep):
    """A step whose heartbeats are frequent, and which outlasts any test without them."""

    grace = lateness = 1e6
    interval, silence, linger = 0.02, 0.2, 0.0


def test_rank_0_that_skips_the_step_is_replaced_at_once(store: Any) -> None:
    with Lively("0", 0, 2, store) as first:
        first.leave()
    with Lively("0", 1, 2, store) as step:
        while not step.take_over():
            time.sleep(0.01)


def test_a_dead_rank_is_not_awaited(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    store.add("zindex/0/arrived", 1)
    with Lively("0", 0, 2, store):
        pass
    assert "rank 0 continues without 1 of 2 ranks, which have died" in caplog.text


def test_a_late_rank_is_awaited_for_some_time(
    store: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lively, "lateness", 0.4)
    start = time.monotonic()
    with Lively("0", 0, 2, store):
        pass
    assert time.monotonic() - start >= 0.4
    assert "rank 0 continues without 1 of 2 ranks, which have died or not begun" in caplog.text


def test_a_lost_store_is_known(store: Any) -> None:
    step = Patient("0", 1, 2, DeadStore())
    assert not step.is_lost
    assert not step.take_over()
    assert step.is_lost
