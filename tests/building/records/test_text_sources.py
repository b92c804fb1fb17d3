"""Which kind of texts a name stands for."""

from pathlib import Path

import pytest

from tests.building.records.sources import write_jsonl
from tests.sources.test_parquet_files import write_parquet
from zindex.building.records.text_sources import find_text_kind, open_texts
from zindex.errors import ConfigError


def test_kinds_by_names_and_folders(tmp_path: Path) -> None:
    lines = write_jsonl(tmp_path / "lines/a.jsonl", [{"text": "a"}])
    table = write_parquet(tmp_path / "tables/a.parquet", ["a"])
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a")
    for kind, path in (("jsonl", lines), ("parquet", table), ("text", tmp_path / "texts/a.txt")):
        assert find_text_kind(path) == find_text_kind(path.parent) == kind
        files, fingerprint = open_texts(path, None, None, "error", ["text"])
        assert [row["text"] for row in files.read_part(0)] == ["a"]
        assert len(fingerprint) == 64
    with pytest.raises(ConfigError, match="must be 'jsonl', 'parquet' or 'text', got 'tar'; name"):
        open_texts(lines, "tar", None, "error")  # type: ignore[arg-type]
