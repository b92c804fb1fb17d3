"""Files with the offsets of the samples of other files."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl, write_tar
from tests.sources.test_framed_files import TEXT, bgzip
from zindex.errors import ConfigError
from zindex.sources import offset_files, sample_offsets
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.part_files import PartFiles
from zindex.sources.tar_files import TarFiles
from zindex.streaming import JsonlIterableDataset, write_offsets


@pytest.fixture(autouse=True)
def all_files(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for offsets of small files, too."""
    monkeypatch.setattr(sample_offsets, "MIN_KEPT_NBYTES", 0)


def samples_of(files: PartFiles) -> list[dict[str, Any]]:
    found = files.find_samples()
    assert found is not None
    return [*files.parse_samples(files.read_samples([(0, found.num_samples)]))]


def forget(caches: Path) -> None:
    """Be a node of which no process has read the files."""
    for path in caches.rglob("*"):
        if path.is_file():
            path.unlink()


def make(folder: Path, kind: str) -> tuple[type[PartFiles], Path]:
    if kind == "tar":
        members = [(f"{n:03}.{end}", b"x" * n) for n in range(40) for end in ("id", "png")]
        return TarFiles, write_tar(folder / "a.tar", members)
    if kind == "jsonl":
        rows = [{"id": n, "x": "y" * (n % 300)} for n in range(400)]
        return JsonlFiles, write_jsonl(folder / "a.jsonl", rows)
    path = folder / "a.jsonl.gz"
    path.write_bytes(bgzip(TEXT)[0])
    return JsonlFiles, path


@pytest.mark.parametrize("kind", ["tar", "jsonl", "bgzip"])
def test_files_are_not_searched(
    kind: str, tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener, path = make(tmp_path, kind)
    files = opener(str(path))  # type: ignore[call-arg, arg-type]
    expected, content = samples_of(files), files.content()
    assert files.write_offsets() == [str(path)]
    forget(caches)
    monkeypatch.setattr(opener, "_scan", None)
    monkeypatch.setattr("zindex.sources.framed_files._Blocks", None)
    again = opener(str(path))  # type: ignore[call-arg, arg-type]
    assert samples_of(again) == expected
    assert again.content() == content
    assert not offset_files._held
    Path(f"{path}{offset_files.SUFFIX}").unlink()  # they are kept
    assert samples_of(opener(str(path))) == expected  # type: ignore[call-arg, arg-type]


def test_offsets_that_do_not_fit(
    tmp_path: Path, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opener, path = make(tmp_path, "jsonl")
    offsets = Path(f"{path}{offset_files.SUFFIX}")
    assert write_offsets(JsonlIterableDataset(str(path))) == [str(path)]
    good = offsets.read_bytes()
    head, _, payload = good.partition(b"\n")

    def read(content: bytes) -> str:
        offsets.write_bytes(content)
        os.utime(offsets)
        forget(caches)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert len(samples_of(opener(str(path)))) == 400  # type: ignore[call-arg, arg-type]
        return caplog.text

    def change(**facts: object) -> bytes:
        return json.dumps(json.loads(head) | facts).encode() + b"\n" + payload

    assert "is not used" not in read(good)
    assert "a.jsonl.offsets is not used, its checksum is wrong" in read(good[:-1] + b"\7")
    assert "the file was written after it; write the offsets again" in read(change(nbytes=9))
    assert "it is of version 2" in read(change(version=2))
    tables = json.loads(head)["tables"]
    for damage in ({"rows": 0}, {"columns": []}, {"columns": [[0, "O"]]}, {"rows": 10**12}):
        assert "is not used" in read(change(tables=[tables[0] | damage]))
    assert "is not used" in read(b"nonsense")
    # Offsets beyond the file are of no use either; those of other settings are not meant.
    read(change(tables=[tables[0] | {"columns": [[10**9, tables[0]["columns"][0][1]]]}]))
    assert "is not used" not in read(change(tables=[tables[0] | {"of": "other"}]))
    # A file that is as long, but was written later.
    later = os.stat(offsets).st_mtime + 9
    path.write_bytes(path.read_bytes().replace(b'"id": 11,', b'"id": 99,'))
    offsets.write_bytes(good)
    os.utime(path, (later, later))
    with caplog.at_level(logging.WARNING):
        found = samples_of(opener(str(path)))  # type: ignore[call-arg, arg-type]
    assert found[11]["id"] == 99
    assert "the file was written after it" in caplog.text


def test_what_has_no_offsets(tmp_path: Path) -> None:
    _, path = make(tmp_path, "jsonl")
    with pytest.raises(ConfigError, match=r"for jsonl files and tar archives, got list"):
        write_offsets([str(path)])  # type: ignore[arg-type]
    import gzip

    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert write_offsets(JsonlIterableDataset(str(packed))) == []
    with pytest.raises(ConfigError, match=r"must have at most prepare_nbytes bytes .*, 0; raise"):
        write_offsets(JsonlIterableDataset(str(packed), prepare_nbytes=0))
