"""Imported stores whose files are damaged are made from their source again."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.building.records.sources import ListFiles, write_jsonl, write_tar
from tests.store.stores import all_files
from zindex.building.executor import SerialExecutor
from zindex.building.records.import_records import import_records
from zindex.building.repairs.repair import repair
from zindex.cli import main
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.store.layout import ChunkGrid

SERIAL = SerialExecutor()
SMALL = ChunkGrid(chunk_length=32, shard_length=128)


@pytest.fixture(params=["jsonl", "tar", "zstd"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A source whose store is beside it."""
    grid = SMALL
    if request.param == "tar":
        path = write_tar(tmp_path / "in/a.tar", [(f"{i}.id", b"x" * i) for i in range(40)])
        write_jsonl(tmp_path / "in/a.meta.jsonl", [{"key": str(i), "c": i} for i in range(40)])
        import_records(path, tmp_path / "s", client=SERIAL, grid=grid, meta_names=["c"])
        return str(path)
    path = write_jsonl(tmp_path / "in/a.jsonl", [{"x": "é" * i, "n": [i]} for i in range(40)])
    with path.open("a") as stream:
        stream.write("no JSON\n")
    if request.param == "zstd":
        grid = ChunkGrid(32, 128, "zstd")
    settings = {"dtypes": {"n": "int16"}, "fields": ["n", "x"], "on_damage": "skip"}
    import_records(path, tmp_path / "s", client=SERIAL, grid=grid, **settings)  # type: ignore[arg-type]
    return str(path)


def test_what_is_damaged_is_imported_again(source: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    before = all_files(root)
    shards = [key for key in before if "/c/" in key]
    for key in (*shards[::5], "_zindex/manifest.json"):
        path = root / key
        path.write_bytes(path.read_bytes()[:-1])
    [result] = repair(root, source=source)
    assert result.num_rebuilt == len(shards[::5])
    assert all_files(root) == before
    (root / "zarr.json").write_bytes(b"")
    assert CliRunner().invoke(main, ["repair", str(root), "--source", source]).exit_code == 0
    assert all_files(root) == before


def test_the_source_must_be_named_and_be_the_one(source: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    (root / "key_text/c/0").unlink()
    with pytest.raises(ConfigError, match="was imported from files, which must be named to repair"):
        repair(root)
    Path(source).write_bytes(
        Path(source).read_bytes() * (2 if "jsonl" in source else 1) + b"\0" * 512
    )
    with pytest.raises(
        FingerprintMismatchError, match=r"must be what .* was imported from, it gives"
    ):
        repair(root, source=source)


def test_records_of_no_files_cannot_be_made_again(tmp_path: Path) -> None:
    import_records(ListFiles({"a": [[{"x": 1}]]}), tmp_path / "s", client=SERIAL)
    (tmp_path / "s/key_text/c/0").unlink()
    with pytest.raises(ConfigError, match="or import them again at another place"):
        repair(tmp_path / "s", source="a.jsonl")
