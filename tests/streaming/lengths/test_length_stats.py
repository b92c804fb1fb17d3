"""The printed lengths of datasets: colors on terminals only, percents of the whole run."""

import io
from typing import Any

import pytest

from tests.streaming.tiny_sources import Items, Parts
from zindex.streaming import MergedDataset, print_dataset_length_stats


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(info: Any, terminal: bool = False) -> list[str]:
    file = Terminal() if terminal else io.StringIO()
    print_dataset_length_stats(info, file)
    return file.getvalue().splitlines()


def test_nested_lists_as_check_length_gives_them() -> None:
    inner = MergedDataset([Items("b", 40, 1), Parts("c", [1, 2], 3)])
    inner.percent = 0.5
    packed = Items("packed", 1, 1.5)
    packed.length, packed.length_multiplier, packed.length_divisor = 6000, 2, 5  # type: ignore[attr-defined]
    mix = MergedDataset([packed, inner])
    assert printed(mix.check_length(2000)) == [
        "dataset  samples  required  percent",
        "packed     2,400     1,500    75.0%",
        "  b           40       125     6.2%",
        "  c            ?       375    18.8%",
    ]


@pytest.mark.parametrize(
    ("length", "color"),
    [(24, "\033[31m"), (25, ""), (200, ""), (201, "\033[32m"), (None, "")],
)
def test_colors_say_too_few_and_plenty(length: int | None, color: str) -> None:
    line = printed([("a", length, 100)], terminal=True)[1]
    assert line.startswith(f"{color}a ")
    assert line.endswith("\033[0m") == bool(color)


def test_files_get_no_colors(capsys: pytest.CaptureFixture[str]) -> None:
    print_dataset_length_stats([("a", 1, 100)])
    assert capsys.readouterr().out == (
        "dataset  samples  required  percent\na              1       100   100.0%\n"
    )


def test_nothing_required() -> None:
    assert printed([("a", 1, 0)])[1].endswith("0.0%")
