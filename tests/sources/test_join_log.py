"""Metadata that is joined to nothing is said once per file."""

import logging
from pathlib import Path

import pytest

from tests.sources.archives import read_all, write_lines, write_tar
from zindex.sources.tar_files import TarFiles

WITH_ID = [("0.txt", b""), ("0.id", b""), ("d/1.txt", b""), ("d/1.id", b"")]
WITHOUT = [("0.txt", b""), ("d/1.txt", b"")]


@pytest.mark.parametrize(
    ("members", "lines", "message"),
    [
        (WITH_ID, None, r"but there is no line of metadata in {}/a.meta.jsonl beside it"),
        (WITH_ID, [], r"but there is no line of metadata in {}/a.meta.jsonl beside it"),
        (
            WITHOUT,
            [{"key": "0", "w": 1}],
            "but none of 2 samples has a member .id, and only samples with one get metadata, from "
            "the line with their key in {}/a.meta.jsonl",
        ),
        (
            WITH_ID,
            [{"key": "0.txt", "w": 1}],
            "but no line of {}/a.meta.jsonl has the key of one of 2 samples with a member .id, "
            "such as 'd/1': its name, with its folder, up to the first dot",
        ),
        (WITH_ID, [{"key": "d/1"}], None),
        ([], None, None),
    ],
)
def test_what_is_said(
    tmp_path: Path,
    members: list[tuple[str, bytes]],
    lines: list[object] | None,
    message: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = write_tar(tmp_path / "a.tar", members)
    if lines is not None:
        write_lines(tmp_path / "a.meta.jsonl", lines)
    files = TarFiles(path, meta_names=["W"])
    with caplog.at_level(logging.WARNING, "zindex"):
        assert len(read_all(files)) == len(members) / (2 if members is WITH_ID else 1)
        read_all(files)
        read_all(TarFiles(path))
    said = [record.getMessage() for record in caplog.records]
    start = f"{path}: meta_names asks for ['w'], "
    assert said == ([] if message is None else [start + message.format(tmp_path)])
