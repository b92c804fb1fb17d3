"""Stores of keyed tokens whose files are damaged are made from their source again."""

from pathlib import Path
from typing import Any

import pytest

from tests.building.keyed.keyed_files import (
    grpo_records,
    sft_records,
    write_bin,
    write_h5,
    write_lines,
)
from tests.store.stores import all_files
from zindex.building.executor import SerialExecutor
from zindex.building.keyed.convert_keyed import convert_keyed
from zindex.building.repairs.repair import repair
from zindex.errors import ConfigError, FingerprintMismatchError
from zindex.store.layout import ChunkGrid
from zindex.store.verify import verify_store

SERIAL = SerialExecutor()


@pytest.fixture(params=["h5", "bin", "zstd", "jsonl"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A source whose store is beside it."""
    grid = ChunkGrid(16, 64, "zstd" if request.param == "zstd" else "none")
    settings: dict[str, Any] = {}
    if request.param == "jsonl":
        path = write_lines(tmp_path / "in/a.jsonl", [*grpo_records()[0], {}])
        settings["on_damage"] = "skip"
    else:
        path = (write_h5 if request.param == "h5" else write_bin)(tmp_path / "in", grpo_records())
    convert_keyed(path, tmp_path / "s", grid=grid, client=SERIAL, **settings)
    return str(path)


def test_what_is_damaged_is_converted_again(source: str, tmp_path: Path) -> None:
    root = tmp_path / "s"
    before = all_files(root)
    shards = [key for key in before if "/c/" in key]
    for key in (*shards[::3], "_zindex/manifest.json"):
        path = root / key
        path.write_bytes(path.read_bytes()[:-1])
    assert not verify_store(root).is_sound
    [result] = repair(root, source=source)
    assert result.num_rebuilt == len(shards[::3])
    assert all_files(root) == before
    (root / "zarr.json").write_bytes(b"")
    repair(root, source=source)
    assert all_files(root) == before


def test_the_source_must_be_named_and_be_the_one(tmp_path: Path) -> None:
    convert_keyed(write_bin(tmp_path / "in", grpo_records()), tmp_path / "s", client=SERIAL)
    (tmp_path / "s/rewards_value/c/0").unlink()
    with pytest.raises(ConfigError, match="was converted from keyed files, which must be named to"):
        repair(tmp_path / "s")
    other = write_bin(tmp_path / "other", sft_records())
    with pytest.raises(FingerprintMismatchError, match=r"must be what .* was converted from, it"):
        repair(tmp_path / "s", source=str(other))
