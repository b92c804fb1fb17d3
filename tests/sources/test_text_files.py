"""Text files are documents, whichever way they are named and compressed."""

import gzip
import logging
from pathlib import Path

import pytest

from zindex.errors import SourceError
from zindex.sources import text_files as module
from zindex.sources.text_files import TextFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("née\n\ntwo\r\n", newline="")
    (tmp_path / "a.md").write_text("\ufeffmarked")
    (tmp_path / "sub/c.txt.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "other.py").write_text("no")
    return tmp_path


def test_each_file_is_a_document(folder: Path) -> None:
    files = TextFiles(folder)
    found = [sample for part in range(files.num_parts) for sample in files.read_part(part)]
    assert [sample["text"] for sample in found] == ["marked", "née\n\ntwo\r\n", "packed"]
    assert [sample["__url__"] for sample in found] == [
        f"{folder}/{name}" for name in ("a.md", "b.txt", "sub/c.txt.gz")
    ]
    assert {sample["__key__"] for sample in found} == {"0"}
    one = TextFiles([folder / "b.txt", folder / "empty.txt"])
    assert [sample["text"] for part in (0, 1) for sample in one.read_part(part)][1] == ""
    assert one.fingerprint() == TextFiles([folder / "b.txt", folder / "empty.txt"]).fingerprint()
    assert one.fingerprint() != files.fingerprint()


def test_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "b.txt").write_bytes(b"ab\xff")
    message = r"b\.txt must be a text in UTF-8, but at byte 2 there is no UTF-8: invalid start byte"
    with pytest.raises(SourceError, match=message):
        list(TextFiles(folder).read_part(1))
    monkeypatch.setattr(module, "MAX_TEXT_NBYTES", 5)
    with pytest.raises(SourceError, match="it has more than 5 bytes, the most of one document; re"):
        list(TextFiles(folder).read_part(0))
    skipping = TextFiles(folder, on_damage="skip")
    with caplog.at_level(logging.WARNING):
        assert [sample for part in range(3) for sample in skipping.read_part(part)] == []
    assert skipping.num_skipped == 3
    assert len(caplog.records) == 3
