"""Servers of object storage, and buckets in them."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cloud.servers import Bucket, ObjectServer, moto_server
from zindex.store import object_calls
from zindex.store.chunk_cache import cache

pytest.importorskip("obstore", reason="needs the extra 'cloud'")
pytest.importorskip("moto", reason="needs the extra 'test'")

_numbers = count()


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def server(moto: ObjectServer) -> ObjectServer:
    """The server that tests use; a class may have another."""
    return moto


@pytest.fixture
def bucket(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket that the environment leads to."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    # moto hands out times in seconds, and so a test must not depend on them.
    name = f"bucket-{next(_numbers)}"
    server.client.create_bucket(Bucket=name)
    object_calls.forget_clients()
    cache.reset()
    yield Bucket(server, name)
    object_calls.forget_clients()


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A directory for what is compared with."""
    folder = tmp_path / "local"
    folder.mkdir()
    return folder
