"""Tail probabilities, against tables."""

import pytest

from zindex.reporting.significance import chi_square_tail, normal_tails


@pytest.mark.parametrize(
    ("statistic", "degrees", "tail"),
    [
        (0.0, 3, 1.0),
        (6.635, 1, 0.01),
        (2.705543, 1, 0.10),
        (29.588, 10, 0.001),
        (3.940, 10, 0.95),
        (124.342, 100, 0.05),
        (77.929, 100, 0.95),
        (1074.679, 1000, 0.05),
        (1e6, 10, 0.0),
        (1e-9, 10**5, 1.0),
    ],
)
def test_chi_square(statistic: float, degrees: int, tail: float) -> None:
    assert chi_square_tail(statistic, degrees) == pytest.approx(tail, abs=2e-5)


def test_normal() -> None:
    assert normal_tails(0) == 1
    assert normal_tails(2.5758) == pytest.approx(0.01, abs=1e-5)
    assert normal_tails(-40) == pytest.approx(0)
