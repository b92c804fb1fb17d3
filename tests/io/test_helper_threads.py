"""Helper threads: every part of some work is done once, and nobody waits for one that is late."""

import os
import threading
from itertools import count

import pytest

from tests.killing import exit_code, fork
from zindex.io.helper_threads import run_with_helpers


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_part_is_done_once(num_threads: int) -> None:
    for _ in range(50):
        parts = count()
        done: list[int] = []

        def work(parts: "count[int]" = parts, done: list[int] = done) -> int:
            found = 0
            while (part := next(parts)) < 100:
                done.append(part)
                found += 1
            return found

        assert run_with_helpers(work, num_threads) == 100
        assert sorted(done) == list(range(100))


def test_a_helper_that_has_begun_is_waited_for() -> None:
    began, go_on = threading.Event(), threading.Event()
    main = threading.get_ident()

    def work() -> int:
        if threading.get_ident() == main:
            assert began.wait(60)
            go_on.set()
            return 1
        began.set()
        assert go_on.wait(60)
        return 10

    assert run_with_helpers(work, 2) == 11


def test_an_error_here_is_raised_once_helpers_have_ended() -> None:
    began, ended = threading.Event(), threading.Event()
    main = threading.get_ident()

    def work() -> int:
        if threading.get_ident() == main:
            assert began.wait(60)
            raise MemoryError
        began.set()
        ended.set()
        return 1

    with pytest.raises(MemoryError):
        run_with_helpers(work, 2)
    assert ended.is_set()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_its_own_helpers() -> None:
    barrier_parties = 2

    def share() -> int:
        barrier = threading.Barrier(barrier_parties)

        def work() -> int:
            barrier.wait(60)  # passed only if two threads come
            return 1

        return run_with_helpers(work, barrier_parties)

    assert share() == 2
    assert exit_code(fork(lambda: os._exit(share()))) == 2
