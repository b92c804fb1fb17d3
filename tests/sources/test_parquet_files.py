"""Parquet: row groups in order, nulls, damage, what is missing."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.sources.parquet_files import ParquetFiles


def write_parquet(path: Path, texts: list[str | None], rows: int = 3, name: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"id": list(range(len(texts))), name: texts})
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return path


def read_all(files: ParquetFiles) -> list[dict[str, Any]]:
    return [row for part in range(files.num_parts) for row in files.read_part(part)]


def test_rows_come_in_order(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", ["a", None, "c", "d"])
    write_parquet(tmp_path / "b.parquet", ["e"])
    files = ParquetFiles(tmp_path, columns=["text"])
    assert files.num_parts == 3
    assert [list(files.url_parts(number)) for number in range(2)] == [[0, 1], [2]]
    rows = read_all(files)
    assert [(row["text"], row["__key__"]) for row in rows] == [
        *(("a", "0"), ("", "1"), ("c", "2"), ("d", "3"), ("e", "0"))
    ]
    assert "id" not in rows[0]
    assert rows[-1]["__url__"] == files.part_url(2) == str(tmp_path / "b.parquet")
    assert (files.part_nbytes(0) or 0) > 0
    assert read_all(ParquetFiles(tmp_path / "a.parquet"))[3]["id"] == 3
    assert read_all(pickle.loads(pickle.dumps(files))) == rows
    with pytest.raises(IndexError, match=r"a part must be in \[0, 3\), got 3"):
        files.part_nbytes(3)


def test_cuts_do_not_identify_files(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", ["a", "b", "c", "d"])
    files = ParquetFiles(file)
    assert files.fingerprint() == ParquetFiles(file, columns=["id"]).fingerprint()
    write_parquet(file, ["a", "b", "c", "longer"])
    assert files.fingerprint() != ParquetFiles(file).fingerprint()


def test_damage(tmp_path: Path) -> None:
    good = write_parquet(tmp_path / "a.parquet", ["a"])
    content = good.read_bytes()
    (tmp_path / "b.parquet").write_bytes(b"no Parquet at all")
    with pytest.raises(SourceError, match=r"b.parquet must be a file of Parquet, but at byte 0 "):
        ParquetFiles(tmp_path)
    files = ParquetFiles(tmp_path, on_damage="skip")
    assert [row["text"] for row in read_all(files)] == ["a"]
    assert files.num_skipped == 1
    good.write_bytes(content[:4] + bytes(60) + content[64:])
    with pytest.raises(SourceError, match="the rest of this row group"):
        read_all(ParquetFiles(good))
    good.unlink()
    with pytest.raises(StoreNotFoundError, match=r"no file .*a.parquet any more; restore it"):
        read_all(files)


def test_columns_that_are_missing(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", ["a"], name="body")
    with pytest.raises(SourceError, match=r"must have a column 'text', it has id, body; name the"):
        ParquetFiles(file, columns=["text"])


def test_pyarrow_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match="needs the library pyarrow, which is not installed"):
        ParquetFiles(tmp_path)
