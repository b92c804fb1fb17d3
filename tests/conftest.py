"""Tiny corpora and a tokenizer, for every test."""

import gc
import logging
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.workers import pytest_addoption, pytest_runtestloop  # noqa: F401
from zindex.formats.bin_writer import PairWriter
from zindex.io import object_calls
from zindex.io.objects import ObjectPath
from zindex.store.chunk_cache import CACHE_NBYTES, cache
from zindex.store.reader import forget_all_files

# Kernels compile on first use and machines are shared, so no example depends on time.
_ignored = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("new", deadline=None, suppress_health_check=_ignored, print_blob=True)
settings.register_profile("same", settings.get_profile("new"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

WriteCorpus = Callable[..., str]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Spare the garbage collector the million objects that collected tests consist of."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def numbers(quick: int, total: int) -> list[Any]:
    """Return the numbers of drawn cases; those from `quick` on are slow."""
    slow = [pytest.param(number, marks=pytest.mark.slow) for number in range(quick, total)]
    return [*range(quick), *slow]


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    """Leave to later tests no open files and maps, no log handlers, and the same environment."""
    logger, root = logging.getLogger("zindex"), logging.getLogger()
    level, handlers, of_root = logger.level, [*logger.handlers], [*root.handlers]
    environment = dict(os.environ)
    yield
    forget_all_files()
    logger.setLevel(level)
    logger.handlers[:] = handlers
    for handler in {*root.handlers} - {*of_root}:
        if not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
    environment["PYTEST_CURRENT_TEST"] = os.environ["PYTEST_CURRENT_TEST"]
    if environment != os.environ:
        os.environ.clear()
        os.environ.update(environment)


def reset_cache() -> None:
    """Clear the cache of chunks, and end its threads."""
    cache.pool.close()
    cache.reset()


class FakeTokenizer:
    """Only what datasets ask of a tokenizer."""

    def __init__(
        self, *, vocab_size: int | None = 1 << 20, eod: int = 0, pad: int | None = -1
    ) -> None:
        self.vocab_size = vocab_size
        self.eod = eod
        if pad is not None:
            self.pad = pad
        self.unique_identifiers: OrderedDict[str, Any] = OrderedDict(a=1)


@pytest.fixture
def tokenizer() -> FakeTokenizer:
    return FakeTokenizer()


@pytest.fixture
def make_tokenizer() -> Callable[..., FakeTokenizer]:
    return FakeTokenizer


@pytest.fixture
def write_corpus(tmp_path: Path) -> WriteCorpus:
    """Write a .bin/.idx pair of sequences of the given lengths and return its prefix."""

    def write(
        lengths: Sequence[int],
        *,
        name: str = "corpus",
        tokens: Sequence[int] | None = None,
        dtype: Any = np.int32,
        modes: Sequence[int] | None = None,
        sequences_per_document: int = 1,
    ) -> str:
        prefix = str(tmp_path / name)
        values = np.arange(sum(lengths)) if tokens is None else np.asarray(tokens)
        writer = PairWriter(f"{prefix}.bin", dtype, has_modes=modes is not None)
        start = 0
        for i, length in enumerate(lengths):
            mode = None if modes is None else [modes[i]]
            writer.append(values[start : start + length], [length], mode)
            start += length
            if (i + 1) % sequences_per_document == 0 or i + 1 == len(lengths):
                writer.end_document()
        writer.finalize(f"{prefix}.idx")
        return prefix

    return write


@pytest.fixture
def megatron_checkout() -> str:
    """Give the checkout of Megatron-LM that the environment names, or skip the test."""
    path = os.environ.get("MEGATRON_CHECKOUT")
    if not path:
        pytest.skip("MEGATRON_CHECKOUT does not name a checkout of NVIDIA/Megatron-LM")
    return path


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what a node keeps: tables of samples, and copies of files."""
    folder = tmp_path / "caches"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPath]:
    """A place in an empty store in memory; tests/cloud has stores that listen."""
    store = pytest.importorskip("obstore.store", reason="needs the extra 'cloud'").MemoryStore()

    def make_client(path: ObjectPath, *, writes: bool) -> Any:
        return store

    monkeypatch.setattr(object_calls, "_make_client", make_client)
    object_calls.forget_clients()
    reset_cache()
    yield ObjectPath("s3", "memory", "store")
    object_calls.forget_clients()
    cache.set_limit(CACHE_NBYTES)
    reset_cache()
