"""Streams of files in object stores: mixed, resumed with few requests, and requested in advance."""

import asyncio
import json
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import zindex
from tests.benchmarks.latency_server import Connection, LatencyServer
from tests.cloud.servers import Bucket
from tests.loading.test_sample_units import entropy
from tests.sources.archives import write_jsonl, write_tar
from tests.streaming.simulated_ranks import Run
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.io import object_calls
from zindex.io.file_list import list_files
from zindex.io.growing_copy import GrowingCopy
from zindex.sources import opened_files, sample_offsets
from zindex.sources.tar_files import TarFiles
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    merge_states,
    to_state,
    write_offsets,
)

NUM_FILES, NUM_LINES = 6, 1500


class CountingServer(LatencyServer):
    """Notes the requests of content, as the name of the file and the range."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        super().__init__(folder, seconds)
        self.asked: list[tuple[str, int, int]] = []

    def answer(self, head: bytes) -> list[bytes | memoryview]:
        """Note a request and answer it."""
        found = re.match(rb"GET /([^ ]*) .*\r\nrange: *bytes=(\d+)-(\d+)", head, re.S | re.I)
        if found is not None:
            self.asked.append((found[1].decode(), int(found[2]), int(found[3]) + 1))
        self.read.cache_clear()
        return super().answer(head)


@contextmanager
def serving(server: LatencyServer) -> Iterator[str]:
    """Serve in a thread, and yield the URL."""
    loop = asyncio.new_event_loop()
    opened: list[asyncio.Transport] = []

    class Noted(Connection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            opened.append(self.transport)

    def close() -> None:
        listener.close()
        loop.call_later(0.1, abort)  # connections that were accepted have been made by then

    def abort() -> None:
        for transport in opened:
            transport.abort()
        loop.call_soon(loop.stop)

    listener = loop.run_until_complete(
        loop.create_server(lambda: Noted(server), "127.0.0.1", 0, backlog=1024)
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        object_calls.forget_clients()
        loop.call_soon_threadsafe(close)
        thread.join()
        loop.close()


@pytest.fixture
def counted(tmp_path: Path, caches: Path) -> Iterator[tuple[CountingServer, str]]:
    """A server of six jsonl files in a folder, and its URL."""
    pytest.importorskip("obstore", reason="needs the extra 'cloud'")
    for number in range(NUM_FILES):
        rows = ({"id": f"{number}:{n}", "x": "y" * 200} for n in range(NUM_LINES))
        write_jsonl(tmp_path / "served" / f"{number}.jsonl", rows)
    server = CountingServer(tmp_path / "served")
    with serving(server) as url:
        yield server, url


def make(*urls: str, cyclic: bool = False, **settings: Any) -> MergedDataset:
    source: Any = JsonlIterableDataset(urls, **settings)
    source.name, source.percent = "texts", 1
    return MergedDataset([source], cyclic=cyclic)


def names(url: str) -> list[str]:
    return [f"{url}/{number}.jsonl" for number in range(NUM_FILES)]


def of_files(samples: list[dict[str, Any]]) -> list[str]:
    return [sample["id"].partition(":")[0] for sample in samples]


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_files_are_mixed_and_shared(
    counted: tuple[CountingServer, str], monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", small)
    server, url = counted
    run = Run(lambda: make(*names(url)), 2, 1).drain()
    expected = {f"{i}:{n}" for i in range(NUM_FILES) for n in range(NUM_LINES)}
    assert run.ids() == Counter(expected)
    samples = list(islice(make(*names(url)), 2600))
    files = of_files(samples)
    entropies = [entropy(files[at : at + 256]) for at in range(0, 2560, 256)]
    assert sum(entropies) / len(entropies) > 2.5
    # Each lane ends within a unit of the others.
    counts = [len(rank.delivered) for rank in run.ranks]
    assert max(counts) - min(counts) <= 2 * len(expected) / 512 + 2
    if small:  # one copy for all ranks and workers, and for the second stream
        content = sum(stop - start for _, start, stop in server.asked)
        assert content == sum(path.stat().st_size for path in server.folder.iterdir())


@pytest.mark.parametrize("order", [True, False])
def test_resuming_takes_one_request_of_a_range(
    counted: tuple[CountingServer, str], monkeypatch: pytest.MonkeyPatch, order: bool
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    server, url = counted

    def stream() -> MergedDataset:
        source: Any = JsonlIterableDataset(f"{url}/0.jsonl")
        source.name, source.percent = "texts", 1
        return MergedDataset([source], cyclic=False, shuffle_streaming_subsets=order)

    samples = list(stream())
    assert len({sample["id"] for sample in samples}) == NUM_LINES
    states = to_state(samples[:678])
    server.asked.clear()
    resumed = stream()
    resumed.set_dataloader_states(states)
    rest = iter(resumed)
    assert next(rest)["id"] == samples[678]["id"]
    [(_, start, stop)] = server.asked
    assert stop - start < 1 << 20
    assert [sample["id"] for sample in rest] == [sample["id"] for sample in samples[679:]]


@pytest.mark.parametrize("order", [True, False])
def test_a_file_that_is_copied_is_first_read_by_a_range(
    counted: tuple[CountingServer, str],
    caches: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: bool,
) -> None:
    monkeypatch.setattr(sample_offsets, "MIN_KEPT_NBYTES", 0)
    server, url = counted

    def stream() -> MergedDataset:
        source: Any = JsonlIterableDataset(names(url)[:2])
        source.name, source.percent = "texts", 1
        return MergedDataset([source], cyclic=False, shuffle_streaming_subsets=order)

    samples = list(stream())
    states = to_state(samples[:678])
    # Of another node, which shares the folder of tables.
    monkeypatch.setattr(tempfile, "tempdir", str(caches / "other"))
    server.asked.clear()
    (caches / "other").mkdir()
    run, may_run = GrowingCopy._run, threading.Event()

    def wait_and_run(copy: GrowingCopy) -> None:
        may_run.wait()
        run(copy)

    monkeypatch.setattr(GrowingCopy, "_run", wait_and_run)
    resumed = stream()
    resumed.set_dataloader_states(states)
    rest = iter(resumed)
    assert next(rest)["id"] == samples[678]["id"]
    [(_, start, stop)] = server.asked
    assert stop - start < 1 << 16
    may_run.set()
    assert [sample["id"] for sample in rest] == [sample["id"] for sample in samples[679:]]
    content = sum(path.stat().st_size for path in server.folder.iterdir() if path.name < "2")
    assert sum(stop - start for _, start, stop in server.asked[1:]) == content


def test_offsets_beside_files_are_requested_instead_of_these(
    counted: tuple[CountingServer, str],
    tmp_path: Path,
    caches: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample_offsets, "MIN_KEPT_NBYTES", 0)
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    server, url = counted
    expected = [sample["id"] for sample in make(f"{url}/0.jsonl")]
    write_offsets(JsonlIterableDataset(str(server.folder / "0.jsonl")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    server.asked.clear()
    samples = iter(make(f"{url}/0.jsonl"))
    assert next(samples)["id"] == expected[0]
    assert len(server.asked) == 1  # the offsets are requested without a range
    assert [sample["id"] for sample in samples] == expected[1:]
    with pytest.raises(ConfigError, match=r"0\.jsonl\.offsets cannot be written: over http"):
        write_offsets(JsonlIterableDataset(f"{url}/0.jsonl"))


def test_resuming_with_other_ranks(
    counted: tuple[CountingServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    _, url = counted
    run = Run(lambda: make(*names(url)[:2]), 2, 1)
    run.advance(1111)
    rest = Run(lambda: make(*names(url)[:2]), 3, 2, run.merged_states()).drain()
    assert run.ids() + rest.ids() == Counter(f"{i}:{n}" for i in range(2) for n in range(NUM_LINES))


def test_units_are_requested_in_advance(
    counted: tuple[CountingServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    server, url = counted
    samples = iter(make(f"{url}/0.jsonl"))
    server.asked.clear()
    list(islice(samples, 2))
    first = len(server.asked)
    assert len([*samples]) == NUM_LINES - 2
    assert 10 < first < len(server.asked)
    assert len(set(server.asked)) == len(server.asked)


@pytest.mark.slow
def test_workers_are_not_forked_from_a_process_that_made_requests(
    counted: tuple[CountingServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    _, url = counted
    loader = zindex.stream_loader(make(*names(url)[:2]), 100, num_workers=1)
    assert len(loader) == 2 * NUM_LINES / 100
    found = Counter(sample["id"] for batch in loader for sample in batch)
    assert found == Counter(f"{i}:{n}" for i in range(2) for n in range(NUM_LINES))


def test_an_object_that_changes(
    counted: tuple[CountingServer, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    server, url = counted
    samples = iter(make(f"{url}/0.jsonl"))
    next(samples)
    write_jsonl(server.folder / "0.jsonl", [{"id": f"0:{n}"} for n in range(NUM_LINES)])
    with pytest.raises(SourceError, match=r"0\.jsonl must stay as it is while it is read"):
        list(samples)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("d/*.jsonl", ["d/a.jsonl", "d/b.jsonl"]),
        ("d/*", ["d/a.jsonl", "d/b.jsonl", "d/e/f.jsonl.gz", "d/note.txt"]),
        ("*/e/f*", ["d/e/f.jsonl.gz"]),
        ("d/**/*.jsonl*", ["d/a.jsonl", "d/b.jsonl", "d/e/f.jsonl.gz"]),
        ("{d,x}/[b-z].jsonl", ["d/b.jsonl"]),
        ("x/[1].jsonl", ["x/[1].jsonl"]),
    ],
)
def test_stars_stand_for_objects(bucket: Bucket, pattern: str, found: list[str]) -> None:
    for name in ("d/a.jsonl", "d/b.jsonl", "d/.c.jsonl", "d/e/f.jsonl.gz", "d/note.txt"):
        bucket.write(name, b"{}\n")
    bucket.write("x/[1].jsonl", b"{}\n")
    if "{" in pattern:
        with pytest.raises(StoreNotFoundError, match=r"no object matches s3://.*/x/\[b-z\]\.jsonl"):
            list_files(f"{bucket.url}/{pattern}", [".jsonl"])
        pattern = pattern.replace("{d,x}", "d")
    files = list_files(f"{bucket.url}/{pattern}", [".jsonl"])
    assert [file.url.removeprefix(f"{bucket.url}/") for file in files] == found


def test_archives_in_a_bucket(
    bucket: Bucket, tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_files, "SMALL_NBYTES", 0)
    for name in "ab":
        members = [(f"{name}{n:03}.{end}", b"x" * n) for n in range(9) for end in ("id", "png")]
        bucket.write(f"data/{name}.tar", write_tar(tmp_path / f"{name}.tar", members).read_bytes())
        lines = (json.dumps({"key": f"{name}{n:03}", "text": f"{name}:{n}"}) for n in range(9))
        bucket.write(f"data/{name}.meta.jsonl", "\n".join(lines).encode())

    def stream() -> MergedDataset:
        source: Any = MetaDistributedWebDataset(f"{bucket.url}/data", meta_names=["text"])
        source.name, source.percent = "images", 1
        return MergedDataset([source], cyclic=False)

    source = MetaDistributedWebDataset(f"{bucket.url}/data", meta_names=["text"])
    assert write_offsets(source) == [f"{bucket.url}/data/{name}.tar" for name in "ab"]
    assert bucket.read("data/a.tar.offsets")
    monkeypatch.setattr(sample_offsets, "MIN_KEPT_NBYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(TarFiles, "_scan", None)
    samples = list(stream())
    texts = Counter(sample["text"] for sample in samples)
    assert texts == Counter(f"{name}:{n}" for name in "ab" for n in range(9))
    assert all(len(sample["png"]) == int(sample["text"][2:]) for sample in samples)
    states = merge_states([to_state(samples[:7])])
    assert [s["__key__"] for s in stream().__iter_from__(states)] == [
        sample["__key__"] for sample in samples[7:]
    ]
