"""Servers of object storage, and buckets in them."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cloud.servers import Bucket, ObjectServer, free_port, moto_server, wait_for_port
from tests.conftest import reset_cache
from tests.forked import Forked
from zindex.io import object_calls

_numbers = count()


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    pytest.importorskip("moto", reason="needs the extra 'test'")
    with moto_server(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def server(moto: ObjectServer) -> ObjectServer:
    """The server that tests use; a class may have another."""
    return moto


@pytest.fixture
def bucket(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket that the environment leads to."""
    pytest.importorskip("obstore", reason="needs the extra 'cloud'")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{next(_numbers)}"
    server.client.create_bucket(Bucket=name)
    object_calls.forget_clients()
    reset_cache()
    yield Bucket(server, name)
    object_calls.forget_clients()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL under which a server of static files shows it."""
    pytest.importorskip("obstore", reason="needs the extra 'cloud'")
    folder, port = tmp_path / "served folder", free_port()
    folder.mkdir()
    with Forked("-m", "tests.benchmarks.latency_server", str(folder), str(port), "0"):
        wait_for_port(port)
        reset_cache()
        yield folder, f"http://127.0.0.1:{port}"
