"""Changes that loader workers read while they pick."""

import random
import threading
from typing import Any

import pytest

from zindex.errors import ConfigError
from zindex.mixing.percent_board import PercentBoard


def test_too_many_changes_are_refused() -> None:
    board = PercentBoard()
    rng = random.Random(1)
    changes = [(0, n, {f"source-{s}": rng.random() for s in range(1000)}) for n in range(12)]
    with board.hold():
        board.write(changes[:6])
    with pytest.raises(ConfigError, match="at most 98,304 bytes"), board.hold():
        board.write(changes)
    assert board.changes == changes[:6]


def test_workers_wait_while_changes_are_written() -> None:
    board, found = PercentBoard(), list[Any]()
    with board.hold():
        worker = threading.Thread(target=lambda: found.append(board.reach(1, (0, 900), 2)))
        worker.start()
        worker.join(0.1)
        # It has waited, and takes nothing for read that was not before.
        assert not found
        board.write([(0, 64, {"a": 1.0})])
    worker.join()
    assert found == [[(0, 64, {"a": 1.0})]]
    assert board.reached == (0, 900)
