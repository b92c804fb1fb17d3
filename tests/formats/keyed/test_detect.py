"""Which format the files at a path have."""

from pathlib import Path

import pytest

from zindex.errors import ConfigError, StoreNotFoundError
from zindex.formats.keyed.detect import detect_format


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


# The decision table: files of a folder, and what it is.
@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["a.h5"], "h5"),
        (["deep/down/a.hdf5"], "h5"),
        (["meta.json", "k.bin"], "bin"),
        (["x/shard_0000/meta.json", "x/shard_0000/k.bin"], "bin"),
        (["zarr.json", "k/zarr.json", "k/c/0"], "zarr"),
        (["_zindex/plan.json", "k/c/0"], "zarr"),
        (["_zindex/import.json"], "zarr"),
        (["a.jsonl"], "jsonl"),
        (["a.jsonl", "b.h5"], "h5"),
        (["a.jsonl", "meta.json", "k.bin"], "bin"),
        (["a.h5", "meta.json"], "h5"),
        (["a.h5", "k.bin"], "h5"),
    ],
)
def test_folders(tmp_path: Path, names: list[str], wanted: str) -> None:
    touch(tmp_path, *names)
    assert detect_format(tmp_path) == detect_format(str(tmp_path)) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("a.h5", "h5"), ("a.b.hdf5", "h5"), ("a.jsonl", "jsonl")],
)
def test_files(tmp_path: Path, name: str, wanted: str) -> None:
    touch(tmp_path, name)
    assert detect_format(tmp_path / name) == wanted


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert detect_format("s3://bucket/store") == detect_format("https://host/store") == "zarr"
    assert detect_format(object()) == "zarr"
    touch(tmp_path, "a b/a.h5")
    assert detect_format(f"file://{tmp_path}/a%20b") == "h5"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert detect_format("~/a b") == "h5"


@pytest.mark.parametrize("name", ["a.bin", "a.txt", "meta.json", "h5", ".h5"])
def test_files_of_other_endings(tmp_path: Path, name: str) -> None:
    touch(tmp_path, name)
    with pytest.raises(ConfigError, match=rf"Unsupported file format: .*jsonl, got '\S+{name}'"):
        detect_format(tmp_path / name)


@pytest.mark.parametrize(
    "names", [[], ["k.bin"], ["meta.json"], ["a.txt"], ["x/zarr.json", "x/a.h5"]]
)
def test_folders_without_any(tmp_path: Path, names: list[str]) -> None:
    touch(tmp_path, *names)
    message = r"No supported data files found: '\S+' must be a folder with zarr\.json, \.h5 or"
    with pytest.raises(StoreNotFoundError, match=message):
        detect_format(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No supported data files found: '\S+/none'"):
        detect_format(tmp_path / "none")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.h5", "x/meta.json", "x/k.bin"], "h5 and bin"),
        (["zarr.json", "a.h5"], "zarr and h5"),
        (["zarr.json", "x/meta.json", "y/k.bin"], "zarr and bin"),
    ],
)
def test_two_formats(tmp_path: Path, names: list[str], found: str) -> None:
    touch(tmp_path, *names)
    message = rf"must have files of one format, '\S+' has {found}; give storage_type='{found[:2]}"
    with pytest.raises(ConfigError, match=message):
        detect_format(tmp_path)
