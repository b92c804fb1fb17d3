"""Google's and Azure's stores: what is asked of them, and what is said where they are not there.

The real services are reached by no test: a server of this process speaks as they do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.contract import ObjectStoreContract
from tests.cloud.dialects import DialectBucket, dialect_server
from tests.cloud.servers import free_port
from tests.conftest import WriteCorpus, reset_cache
from tests.store.stores import ONE, build_arrays, count_up
from zindex.errors import ConfigError, StoreUnavailableError
from zindex.io import files, object_calls, object_client
from zindex.io.objects import ObjectPath, place_of
from zindex.store.open import open_store

VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "SERVICE_ACCOUNT")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No settings of this machine's user, and patience for moments only."""
    pytest.importorskip("obstore", reason="needs the extra 'cloud'")
    for name in list(object_calls.os.environ):
        if name.startswith(VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(object_calls, "NUM_ATTEMPTS", 2)
    monkeypatch.setattr(object_calls, "FIRST_PAUSE", 0.01)
    object_calls.forget_clients()


@pytest.fixture(params=["gs", "az"])
def bucket(
    request: pytest.FixtureRequest, alone: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DialectBucket]:
    with dialect_server(request.param) as server:
        made = DialectBucket(server, request.param)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        reset_cache()
        yield made
    object_calls.forget_clients()


class TestGoogleAndAzure(ObjectStoreContract):
    """The contract, with a server that speaks as either."""

    # One case: what differs between them is no business of the store.
    @pytest.mark.parametrize(("order", "store", "codec"), [("scalable", "all", "zstd")])
    def test_a_run_gives_the_same_samples_as_on_disk(
        self,
        bucket: Any,
        write_corpus: WriteCorpus,
        tmp_path: Path,
        order: str,
        store: str,
        codec: str,
    ) -> None:
        super().test_a_run_gives_the_same_samples_as_on_disk(
            bucket, write_corpus, tmp_path, order, store, codec
        )


def test_objects_are_created_only(bucket: DialectBucket) -> None:
    """Two writers of one key: the later one finds what the first has written."""
    path = place_of(f"{bucket.url}/a/b")
    facts = {"zindexcrc32c": "17"}
    assert files.write_once(path, [b"one"], facts=facts)
    [(method, _, headers)] = bucket.server.requests
    create = {"gs": ("x-goog-if-generation-match", "0"), "az": ("if-none-match", "*")}
    name, value = create[bucket.scheme]
    assert (method, headers[name]) == ("PUT", value)
    assert headers[f"x-{'goog' if bucket.scheme == 'gs' else 'ms'}-meta-zindexcrc32c"] == "17"
    assert not files.write_once(path, [b"two"])
    files.write_once(path, [b"three"], replace=True)
    assert name not in bucket.server.requests[-1][2]
    assert bucket.contents() == {"a/b": b"three"}


def test_ends_of_objects(bucket: DialectBucket) -> None:
    """Azure knows no ranges from the end: the size is asked for first."""
    path = place_of(f"{bucket.url}/a/b")
    assert isinstance(path, ObjectPath)
    files.write_once(path, [b"one two"], facts={"zindexcrc32c": "17"})
    bucket.server.requests.clear()
    tail = object_client.get_tail(path, 3)
    assert (tail.content, tail.nbytes, tail.facts["zindexcrc32c"]) == (b"two", 7, "17")
    asked = [(method, headers.get("range")) for method, _, headers in bucket.server.requests]
    if bucket.scheme == "az":
        assert asked == [("HEAD", None), ("GET", "bytes=4-6")]
    else:
        assert asked == [("GET", "bytes=-3")]
    with pytest.raises(FileNotFoundError):
        object_client.get_tail(path.parent / "c", 3)


def test_requests_are_signed_and_tell_no_secret(bucket: DialectBucket) -> None:
    build_arrays(place_of(f"{bucket.url}/store"), {ONE: count_up(10)})  # type: ignore[arg-type]
    assert open_store(f"{bucket.url}/store")["one"].read(3, 5).tolist() == [3, 4]
    for _, path, headers in bucket.server.requests:
        if bucket.scheme == "az":
            assert headers["authorization"].startswith("SharedKey account:")
        assert bucket.secret not in path + str(headers)


@pytest.mark.parametrize(
    ("url", "settings", "message"),
    [
        ("az://container/x", {}, r"az://container/x/zarr.json needs the settings of its store"),
        (
            "az://container/x",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "no base64!"},
            r"az://container/x/zarr.json needs the settings of its store in the environment",
        ),
        (
            "gs://bucket/x",
            {"GOOGLE_SERVICE_ACCOUNT": "/nowhere/key.json"},
            r"needs the settings of its store in the environment: .*/nowhere/key.json: No such",
        ),
        (
            "gs://bucket/x",
            {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"},
            r"gs://bucket/x/zarr.json needs the settings of its store in the environment",
        ),
        (
            "az://container/x",
            {"AZURE_STORAGE_ENDPOINT": "http://me:hunter2@127.0.0.1:1"},
            r"AZURE_STORAGE_ENDPOINT must be https:// unless AZURE_ALLOW_HTTP is true, got http://"
            r"\*\*\*@127.0.0.1:1; set AZURE_ALLOW_HTTP=true",
        ),
        (
            "s3://bucket/x",
            {"AWS_ENDPOINT": "http://127.0.0.1:1"},
            r"AWS_ENDPOINT must be https:// unless AWS_ALLOW_HTTP is true",
        ),
    ],
)
def test_settings_that_do_not_do(
    alone: None, monkeypatch: pytest.MonkeyPatch, url: str, settings: dict[str, str], message: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_missing_credentials(alone: None, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Without any, the machine's own service is asked for some; here nothing is reached."""
    prefix = {"gs": "GOOGLE", "az": "AZURE"}[scheme]
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv(f"{prefix}_PROXY_URL", f"http://127.0.0.1:{free_port()}")
    message = (
        rf"{scheme}://bucket/x/zarr.json must be read, 2 tries in .*; check the (network|cred)"
    )
    with pytest.raises(StoreUnavailableError, match=message):
        open_store(f"{scheme}://bucket/x")


def test_connection_refused(bucket: DialectBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = DialectBucket(type(bucket.server)(port=free_port()), bucket.scheme)
    for name, value in closed.environment.items():
        monkeypatch.setenv(name, value)
    object_calls.forget_clients()
    with pytest.raises(StoreUnavailableError, match=r"error sending request; check the network"):
        open_store(f"{bucket.url}/store")


def test_a_pair_is_read(bucket: DialectBucket, write_corpus: WriteCorpus, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from zindex.datasets.indexed_dataset import IndexedDataset, ObjectStorageConfig

    prefix = write_corpus([5, 0, 7])
    for suffix in ("bin", "idx"):
        bucket.write(f"a.{suffix}", Path(f"{prefix}.{suffix}").read_bytes())
    config = ObjectStorageConfig(str(tmp_path / "cache"))
    for _ in range(2):
        remote = IndexedDataset(f"{bucket.url}/a", object_storage_config=config)
        assert [remote[i].tolist() for i in range(3)] == [[*range(5)], [], [*range(5, 12)]]
    gets = [path for method, path, _ in bucket.server.requests if method == "GET"]
    assert sum("idx" in path for path in gets) == 1
    assert not IndexedDataset.exists(f"{bucket.url}/b")
