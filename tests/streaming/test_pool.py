"""What is left of a source, against sets."""

import json
import random

import numpy as np
import pytest

from zindex.streaming.pool import Pool


def row(pool: Pool, length: int) -> list[int]:
    return pool.items(np.arange(length)).tolist()


def test_a_new_pool_is_all_parts_in_order() -> None:
    assert row(Pool(), 5) == [0, 1, 2, 3, 4]
    assert Pool().item(7) == (7, 0)


def test_begun_parts_come_first() -> None:
    pool = Pool(2, ((4, 6),), ((1, 9), (3, 2)))
    assert [pool.item(i) for i in range(5)] == [(1, 9), (3, 2), (2, 0), (6, 0), (7, 0)]
    assert row(pool, 5) == [1, 3, 2, 6, 7]


@pytest.mark.parametrize("seed", range(200))
def test_after_lanes_took_their_items_the_rest_is_left(seed: int) -> None:
    rng = random.Random(seed)
    pool, finished, begun = Pool(), set[int](), dict[int, int]()
    for _ in range(6):
        num_lanes = rng.randint(1, 6)
        base, cursors = rng.randint(0, 3), {}
        for lane in range(num_lanes):
            if rng.random() < 0.9:
                cursors[lane] = (base + rng.randint(0, 4), rng.choice([0, 0, 3, 11]))
        for lane, (count, delivered) in cursors.items():
            for turn in range(count):
                part, _ = pool.item(lane + num_lanes * turn)
                assert part not in finished
                finished.add(part)
                begun.pop(part, None)
            part, before = pool.item(lane + num_lanes * count)
            if delivered:
                cursors[lane] = (count, before + delivered)
                begun[part] = before + delivered
        pool = pool.after(cursors, num_lanes)
        assert Pool.from_json(json.loads(json.dumps(pool.to_json()))) == pool
        assert dict(pool.begun) == begun
        left = [part for part in range(2000) if part not in finished and part not in begun]
        assert row(pool, 100) == [*sorted(begun), *left][:100]
        assert len(pool.ahead) <= len(finished)
