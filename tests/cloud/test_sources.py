"""Raw samples of tar archives and jsonl files in object stores."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.servers import Bucket
from tests.sources.archives import numbered, plain, read_all, write_jsonl, write_tar
from zindex.errors import SourceError, StoreNotFoundError
from zindex.io import file_chunks as chunks
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.tar_files import TarFiles

ROOT = Path(__file__).parents[2]
LINES = [{"key": f"{number:04d}", "caption": f"caption {number}"} for number in range(20)]


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder with one archive and its metadata."""
    write_jsonl(tmp_path / "a.meta.jsonl", LINES)
    write_tar(tmp_path / "a.tar", numbered(20))
    return tmp_path


def samples_of(path: object, **settings: Any) -> list[dict[str, Any]]:
    return read_all(TarFiles(path, meta_names=["caption"], **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [3000, 5000, 8 << 20])
def test_archives_and_lines(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(chunks, "REMOTE_NBYTES", step)
    tar = (local / "a.tar").read_bytes()
    lines = (local / "a.meta.jsonl").read_bytes()
    for key, content in (
        ("data/b/0.tar", tar),
        ("data/b/0.meta.jsonl", lines),
        ("data/10.tar.gz", gzip.compress(tar)),
        ("data/10.meta.jsonl", lines),
        ("data/note.txt", b""),
        ("data/lines.jsonl.gz", gzip.compress(lines)),
    ):
        bucket.write(key, content)
    expected = plain(samples_of(local / "a.tar"))
    files = TarFiles(f"{bucket.url}/data", meta_names=["caption"])
    assert files.urls == [f"{bucket.url}/data/10.tar.gz", f"{bucket.url}/data/b/0.tar"]
    assert (files.num_parts, files.part_nbytes(0)) == (2, None)
    assert plain(read_all(files)) == expected * 2
    assert plain(samples_of(f"boto3://{bucket.name}/data/b/0.tar")) == expected
    assert plain(samples_of(f"metaboto3://{bucket.name}/data/{{10.tar.gz,b/0.tar}}")) == (
        expected * 2
    )
    assert plain(read_all(JsonlFiles(f"{bucket.url}/data/lines.jsonl.gz"))) == plain(
        read_all(JsonlFiles(local / "a.meta.jsonl"))
    )
    # One file is left early, with requests under way.
    samples = files.read_part(1)
    assert next(samples)["caption"] == "caption 0"
    samples.close()  # type: ignore[attr-defined]


def test_the_sidecar_may_have_to_be_there(bucket: Bucket, local: Path) -> None:
    bucket.write("a.tar", (local / "a.tar").read_bytes())
    assert samples_of(f"{bucket.url}/a.tar")[0]["caption"] is None
    with pytest.raises(
        StoreNotFoundError, match=r"must have its metadata in s3://.*/a\.meta\.json"
    ):
        read_all(TarFiles(f"metaboto3://{bucket.name}/a.tar"))


def test_missing_sources(bucket: Bucket) -> None:
    with pytest.raises(StoreNotFoundError, match=r"no object s3://.*/a\.tar; check the URL"):
        samples_of(f"{bucket.url}/a.tar")
    with pytest.raises(StoreNotFoundError, match=r"no object below s3://.*/data ends in tar"):
        samples_of(f"{bucket.url}/data")


def test_damage_in_a_bucket(bucket: Bucket, local: Path) -> None:
    bucket.write("a.tar", (local / "a.tar").read_bytes()[:9000])
    with pytest.raises(SourceError, match=r"/a\.tar must be a whole tar archive .* at byte 8,704"):
        samples_of(f"{bucket.url}/a.tar")
    files = TarFiles(f"{bucket.url}/a.tar", on_damage="skip")
    assert len(read_all(files)) == 3
    assert files.num_skipped == 1


def test_an_object_that_is_written_meanwhile(
    bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "REMOTE_NBYTES", 4000)
    monkeypatch.setattr(chunks, "FIRST_NBYTES", 4000)
    bucket.write("a.tar", (local / "a.tar").read_bytes())
    samples = TarFiles(f"{bucket.url}/a.tar").read_part(0)
    next(samples)
    bucket.write("a.tar", write_tar(local / "b.tar", numbered(20, size=130)).read_bytes())
    with pytest.raises(SourceError, match=r"it was written meanwhile"):
        list(samples)


def test_over_http(served: tuple[Path, str]) -> None:
    folder, url = served
    write_tar(folder / "a.tar", numbered(20))
    write_jsonl(folder / "a.meta.jsonl", LINES)
    assert plain(samples_of(f"{url}/a.tar")) == plain(samples_of(folder / "a.tar"))
