"""Bandwidths are plausible, and scratch folders are removed."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from zindex.errors import ConfigError
from zindex.inspection.bench.bandwidths import measure_bandwidths, scratch_place
from zindex.io.objects import place_of


def test_bandwidths_are_positive_and_leave_no_files(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"
    found = measure_bandwidths(place, seconds=0.05)
    facts = json.loads(json.dumps(asdict(found)))
    assert facts.pop("is_read_cached") in (True, False, None)
    assert len(facts) == 6
    assert all(value > 0 for value in facts.values())
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_folder_is_removed_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch_place(tmp_path / "indices") as folder:
            (folder / "deep").mkdir()
            (folder / "deep" / "file").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_other_files_of_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("kept")
    with scratch_place(tmp_path) as folder:
        assert folder.parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_place_that_takes_no_files_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file must be a place to write indices to, it is not"):
        measure_bandwidths(tmp_path / "file", seconds=0.01)
    with (
        pytest.raises(ConfigError, match="example/x must be a place to write indices to"),
        scratch_place(place_of("https://web.example/x")),
    ):
        pass
