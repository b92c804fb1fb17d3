"""An object store in memory, for tests of what is built on one."""

from collections.abc import Iterator
from typing import Any

import pytest

from zindex.store import object_calls
from zindex.store.chunk_cache import CACHE_NBYTES, cache
from zindex.store.objects import ObjectPath


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPath]:
    """A place in an empty store in memory; tests/cloud has stores that listen."""
    store = pytest.importorskip("obstore.store", reason="needs the extra 'cloud'").MemoryStore()

    def make_client(path: ObjectPath, *, writes: bool) -> Any:
        return store

    monkeypatch.setattr(object_calls, "_make_client", make_client)
    object_calls.forget_clients()
    cache.reset()
    yield ObjectPath("s3", "memory", "store")
    object_calls.forget_clients()
    cache.set_limit(CACHE_NBYTES)
    cache.reset()
