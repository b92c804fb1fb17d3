"""Unread partitions, compared with sets."""

import json
import random
from dataclasses import asdict

import numpy as np
import pytest

from zindex.store.checked_json import parse_as
from zindex.streaming.worker_slots import UnreadPartitions


def row(unread: UnreadPartitions, length: int) -> list[int]:
    return unread.items(np.arange(length)).tolist()


def test_at_first_all_parts_are_unread_in_order() -> None:
    assert row(UnreadPartitions(), 5) == [0, 1, 2, 3, 4]
    assert UnreadPartitions().item(7) == (7, 0)


def test_partly_read_parts_are_dispatched_first() -> None:
    unread = UnreadPartitions(2, ((4, 6),), ((1, 9), (3, 2)))
    assert [unread.item(i) for i in range(5)] == [(1, 9), (3, 2), (2, 0), (6, 0), (7, 0)]
    assert row(unread, 5) == [1, 3, 2, 6, 7]


@pytest.mark.parametrize("seed", range(200))
def test_unread_partitions_exclude_those_of_worker_slots(seed: int) -> None:
    rng = random.Random(seed)
    unread, finished, begun = UnreadPartitions(), set[int](), dict[int, int]()
    for _ in range(6):
        num_worker_slots = rng.randint(1, 6)
        base, cursors = rng.randint(0, 3), {}
        for worker_slot in range(num_worker_slots):
            if rng.random() < 0.9:
                cursors[worker_slot] = (base + rng.randint(0, 4), rng.choice([0, 0, 3, 11]))
        for worker_slot, (count, delivered) in cursors.items():
            for turn in range(count):
                part, _ = unread.item(worker_slot + num_worker_slots * turn)
                assert part not in finished
                finished.add(part)
                begun.pop(part, None)
            part, before = unread.item(worker_slot + num_worker_slots * count)
            if delivered:
                cursors[worker_slot] = (count, before + delivered)
                begun[part] = before + delivered
        unread = unread.after(
            [(*cursors.get(number, (0, 0)), 0) for number in range(num_worker_slots)]
        )
        assert parse_as(UnreadPartitions, json.loads(json.dumps(asdict(unread))), "") == unread
        assert dict(unread.begun) == begun
        left = [part for part in range(2000) if part not in finished and part not in begun]
        assert row(unread, 100) == [*sorted(begun), *left][:100]
        assert len(unread.ahead) <= len(finished)
