"""A process that builds, edits, repairs and trains, for a few cycles; see the module for long."""

from tests.harnesses.soak import Soak, compare, is_flat, private_folder

#: Most growth of the memory in MB in so few cycles, in which libraries still warm up.
_GROWTH = 30.0


def test_nothing_grows() -> None:
    with private_folder():
        soak = Soak(0)
        for _ in range(4):  # with an embedded cluster, and a worker that dies
            soak.cycle()
        found = []
        for _ in range(3):
            soak.cycle()
            found.append(soak.usage())
    second, last = compare(found)
    assert is_flat(second, last, _GROWTH), (second, last)
    assert soak.num_deaths > 0
    assert soak.num_lost_workers > 0
