"""One order of names on every machine."""

import random
from pathlib import Path

import pytest

from zindex.errors import StoreUnreadableError
from zindex.formats.keyed.natural_order import list_below, natural_key


def test_numbers_count_as_numbers() -> None:
    wanted = [f"data_{i}" for i in range(120)]
    shuffled = wanted.copy()
    random.Random(7).shuffle(shuffled)
    assert sorted(shuffled, key=natural_key) == wanted


def test_no_two_names_are_equal() -> None:
    names = ["a1", "a01", "a001", "a1b", "a", "", "1", "01", "a/1", "a/01", "a/1/b"]
    assert len({natural_key(name) for name in names}) == len(names)
    sorted(names, key=natural_key)


def test_numbers_of_any_length() -> None:
    long = "9" * 10_000
    names = ["d7", f"d{long}", f"d1{long}"]
    assert sorted(reversed(names), key=natural_key) == names


def test_a_text_is_never_compared_with_a_number() -> None:
    assert sorted(["a", "1", "a1", "1a", ""], key=natural_key) == ["", "1", "1a", "a", "a1"]


def test_files_below(tmp_path: Path) -> None:
    for name in ("b/x_10.h5", "b/x_9.h5", "a.h5", "b/c/meta.json", "10/x", "9/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_below(str(tmp_path)) == [
        "9/x", "10/x", "a.h5", "b/c/meta.json", "b/x_9.h5", "b/x_10.h5"
    ]  # fmt: skip


def test_a_link_to_a_folder_around_it_ends(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").touch()
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "other").symlink_to(tmp_path / "a")
    assert list_below(str(tmp_path)) == ["a/x", "other/x"]


def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    message = r"a must be readable, the system says: Not a directory; check"
    with pytest.raises(StoreUnreadableError, match=message):
        list_below(str(tmp_path / "a"))


def test_zarr_stores_below_are_left_out(tmp_path: Path) -> None:
    for name in ("zarr.json", "values/zarr.json", "values/c/0.bin", "other/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_below(str(tmp_path)) == ["other/x", "zarr.json"]
