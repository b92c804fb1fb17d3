"""Files of object stores through each client."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from zindex.errors import ConfigError, StoreUnavailableError
from zindex.io import object_client, remote_files
from zindex.io.objects import ObjectPath
from zindex.io.remote_files import UNKNOWN, BotoFile, MscFile, ObjectFile, open_remote, split_s3_url

CONTENT = bytes(range(100))


def make_msc(folder: Path, *, tells: bool) -> ModuleType:
    """Return a package that finds the files of every profile in a folder."""

    class Client:
        def read(self, path: str, byte_range: Any) -> bytes:
            content = (folder / path).read_bytes()
            return content[byte_range.offset : byte_range.offset + byte_range.size]

    def info(path: str) -> Any:
        nbytes = (folder / path).stat().st_size
        return SimpleNamespace(content_length=nbytes, etag="e", last_modified="now")

    def resolve(url: str) -> tuple[Any, str]:
        client = Client()
        if tells:
            client.info = info  # type: ignore[attr-defined]
        return client, url.removeprefix("msc://profile/")

    def download(url: str, path: str) -> None:
        Path(path).write_bytes((folder / url.removeprefix("msc://profile/")).read_bytes())

    package: Any = ModuleType("multistorageclient")
    package.types = SimpleNamespace(Range=SimpleNamespace)
    package.resolve_storage_client = resolve
    package.download_file = download
    return package  # type: ignore[no-any-return]


def test_an_object(objects: ObjectPath, tmp_path: Path) -> None:
    place = objects / "a"
    object_client.put(place, [CONTENT])
    file = open_remote(str(place))
    assert isinstance(file, ObjectFile)
    found = file.look_up()
    assert found is not None
    assert (found.nbytes, bool(found.version)) == (100, True)
    parts = file.read_ranges([5, 98], [9, 120])
    assert [bytes(part) for part in parts] == [CONTENT[5:9], CONTENT[98:]]
    assert not file.download(str(tmp_path / "copy"))
    assert open_remote(f"{objects}/b").look_up() is None


def test_msc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    monkeypatch.setitem(sys.modules, "multistorageclient", make_msc(tmp_path, tells=True))
    file = open_remote("msc://profile/a")
    assert isinstance(file, MscFile)
    assert file.look_up() == object_client.Head(100, "e now")
    assert open_remote("msc://profile/b").look_up() is None
    parts = file.read_ranges([5, 98], [9, 100])
    assert [bytes(part) for part in parts] == [CONTENT[5:9], CONTENT[98:]]
    assert file.download(str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == CONTENT
    monkeypatch.setitem(sys.modules, "multistorageclient", make_msc(tmp_path, tells=False))
    assert open_remote("msc://profile/a").look_up() is UNKNOWN
    monkeypatch.setitem(sys.modules, "multistorageclient", None)
    message = r"msc://profile/a needs the library multistorageclient, .* install multi-storage"
    with pytest.raises(ConfigError, match=message):
        open_remote("msc://profile/a")


class Refusing:
    """A client of boto3's kind that is refused."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __getattr__(self, name: str) -> Any:
        import botocore.exceptions as exceptions

        def call(*arguments: Any, **where: Any) -> Any:
            raise exceptions.ClientError({"Error": {"Code": self.code}}, name)

        return call


def test_errors_of_boto3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3", reason="needs the extra 'test'")
    monkeypatch.setattr(remote_files, "is_usable", lambda: False)
    code = ""
    monkeypatch.setattr(boto3, "client", lambda name: Refusing(code))
    file = open_remote("s3://bucket/a")
    assert isinstance(file, BotoFile)
    code = "404"
    assert file.look_up() is None
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/a"):
        file.read_ranges([0], [1])
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/a"):
        file.download(str(tmp_path / "a"))
    remote_files._boto_client.cache_clear()
    code = "InvalidRange"
    assert [bytes(part) for part in file.read_ranges([0], [1])] == [b""]
    remote_files._boto_client.cache_clear()
    code = "AccessDenied"
    with pytest.raises(StoreUnavailableError, match=r"s3://bucket/a must be .* boto3 got AccessD"):
        file.look_up()

    def find_nothing(name: str) -> Any:
        import botocore.exceptions as exceptions

        raise exceptions.NoCredentialsError()

    monkeypatch.setattr(boto3, "client", find_nothing)
    with pytest.raises(StoreUnavailableError, match=r"boto3 got NoCredentialsError; check"):
        file.look_up()
    remote_files._boto_client.cache_clear()


def test_boto3_may_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3", reason="needs the extra 'test'")
    client = SimpleNamespace(head_object=lambda Bucket, Key: {})  # noqa: N803
    monkeypatch.setattr(boto3, "client", lambda name: client)
    assert open_remote("s3:///no/bucket").look_up() is UNKNOWN


def test_urls_of_s3() -> None:
    assert split_s3_url("s3://bucket/a/b") == ("bucket", "a/b")
    assert split_s3_url("s3://bucket") == ("bucket", "")
    with pytest.raises(ConfigError, match=r"must be named by s3://bucket/key, got gs://b/a"):
        split_s3_url("gs://b/a")
