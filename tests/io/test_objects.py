"""Places in object stores."""

import pickle
import re
from pathlib import Path

import pytest

from zindex.errors import ConfigError
from zindex.io.objects import ObjectPath, is_remote, mask, place_of


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket", ("s3", "bucket", "")),
        ("s3://bucket/", ("s3", "bucket", "")),
        ("s3://bucket/a/b.zarr", ("s3", "bucket", "a/b.zarr")),
        ("s3://bucket//a//b.zarr/", ("s3", "bucket", "a/b.zarr")),
        ("s3://bucket/a%20b", ("s3", "bucket", "a%20b")),
        ("gs://my_bucket.name/a", ("gs", "my_bucket.name", "a")),
        ("az://container/a", ("az", "container", "a")),
        ("http://127.0.0.1:8000/a%20b", ("http", "127.0.0.1:8000", "a b")),
        ("https://data.example.org/ü", ("https", "data.example.org", "ü")),
    ],
)
def test_parts_of_urls(url: str, parts: tuple[str, str, str]) -> None:
    place = place_of(url)
    assert isinstance(place, ObjectPath)
    assert (place.scheme, place.bucket, place.key) == parts
    assert place_of(str(place)) == place
    assert place_of(place) is place
    assert is_remote(url)
    assert is_remote(place)


def test_a_place_behaves_like_a_path() -> None:
    place = place_of("s3://bucket/corpora") / "code.zarr"
    assert str(place) == "s3://bucket/corpora/code.zarr"
    assert place / "tokens/c/0" == place / "tokens" / "c" / "0"
    assert (place.name, str(place.parent)) == ("code.zarr", "s3://bucket/corpora")
    assert place.parent.parent.parent == place_of("s3://bucket")
    assert {place: 1}[place_of("s3://bucket/corpora/code.zarr")] == 1
    assert sorted([place, place.parent])[0] == place.parent
    assert pickle.loads(pickle.dumps(place)) == place
    assert [place_of(f"{scheme}://b/k").is_read_only for scheme in ("s3", "https")] == [False, True]  # type: ignore[union-attr]


def test_paths_stay_paths(tmp_path: Path) -> None:
    assert place_of(tmp_path) == place_of(str(tmp_path)) == place_of(tmp_path.as_uri()) == tmp_path
    assert not is_remote(tmp_path)


@pytest.mark.parametrize("scheme", ["ftp", "hdfs", "S3", "memory"])
def test_other_schemes_are_refused(scheme: str) -> None:
    message = f"file, s3, gs, az, http, https, got scheme '{scheme}'; copy the data to one"
    with pytest.raises(ConfigError, match=re.escape(message)):
        place_of(f"{scheme}://bucket/corpus")


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2@host/key",
        "s3://AKIA:hunter2@bucket/key",
        "https://host/key?X-Amz-Signature=hunter2",
        "https://host?sig=hunter2",
        "https://host/key#hunter2",
    ],
)
def test_secrets_in_urls_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match=r"credentials belong in the environment") as caught:
        place_of(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in mask(f"GET {url} failed") + mask(url)


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "s3://bu cket/key"])
def test_a_bucket_must_have_a_name(url: str) -> None:
    with pytest.raises(ConfigError, match=r"must name a bucket, got '[bu cket]*'; write s3://"):
        place_of(url)


@pytest.mark.parametrize("key", ["..", "a/../b", "./a", "a\nb", "a\0"])
def test_keys_lead_nowhere_else(key: str) -> None:
    with pytest.raises(ConfigError, match=r"a key must have plain parts, got '.*' in"):
        place_of(f"s3://bucket/{key}")
    with pytest.raises(ConfigError, match=r"a key must have plain parts"):
        place_of("s3://bucket") / key


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from zindex.io import object_calls, object_client

    monkeypatch.setitem(sys.modules, "obstore", None)
    object_calls.forget_clients()
    with pytest.raises(ConfigError, match=r"of s3://b/k needs the library obstore, .*cloud\]"):
        object_client.head(ObjectPath("s3", "b", "k"))


def test_stores_over_http_are_not_written() -> None:
    from zindex.io import files

    with pytest.raises(ConfigError, match=r"http://host/key cannot be written: over http stores"):
        files.write_once(place_of("http://host/key"), [b"x"])
