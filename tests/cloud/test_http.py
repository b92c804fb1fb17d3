"""Stores behind an HTTP server, which are only read; and what lies in file systems only."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import zindex
from tests.cloud.servers import Bucket
from tests.conftest import WriteCorpus
from tests.indexing.runs import GRID, LENGTHS, make_config
from tests.store.stores import ONE, build_arrays, count_up, plan_arrays
from zindex.config import DatasetConfig
from zindex.errors import (
    ConfigError,
    NotReadyError,
    SourceError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from zindex.execution.executor import SerialExecutor
from zindex.sources.jsonl_files import JsonlFiles
from zindex.store.commit import begin_store
from zindex.store.open import open_store

SERIAL = SerialExecutor()


def test_a_store_is_read_over_http(served: tuple[Path, str]) -> None:
    folder, url = served
    build_arrays(folder / "my store", {ONE: count_up(10)})
    for name in ("my store", "my%20store/"):
        store = open_store(f"{url}/{name}")
        np.testing.assert_array_equal(store["one"], count_up(10))
        assert str(store.root) == f"{url}/my%20store"


def test_a_run_is_built_from_a_corpus_over_http(
    served: tuple[Path, str], write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    folder, url = served
    [plain] = zindex.convert(write_corpus(LENGTHS), folder / "a.zarr", client=SERIAL, grid=GRID)
    config = make_config(tmp_path, f"{url}/a.zarr", split="100,0,0")
    [result] = zindex.build(config, SERIAL).values()
    assert result.num_written == result.num_shards
    # It is the same corpus, so this is the same index.
    [again] = zindex.build(make_config(tmp_path, str(plain.root), split="100,0,0"), SERIAL).values()
    assert again.num_written == 0
    config = make_config(tmp_path, f"{url}/a.zarr", split="100,0,0", index=f"{url}/index")
    with pytest.raises(ConfigError, match=r"cannot be written: over http stores are only read"):
        zindex.build(config, SERIAL)


def test_a_store_over_http_that_is_not_there_or_not_ready(served: tuple[Path, str]) -> None:
    folder, url = served
    with pytest.raises(StoreNotFoundError, match=r"no zindex store at http://.*/nothing; check"):
        open_store(f"{url}/nothing")
    begin_store(plan_arrays(folder / "begun", {ONE: count_up(10)}))
    with pytest.raises(NotReadyError, match=r"http://.*/begun is not built yet"):
        open_store(f"{url}/begun")


def test_pairs_that_are_not_there(bucket: Bucket, tmp_path: Path) -> None:
    message = (
        r"must be in object storage, but there is no s3://bucket-\d+/corpus\.bin; give the URL"
    )
    with pytest.raises(SourceError, match=message):
        zindex.convert(f"{bucket.url}/corpus", tmp_path / "corpus.zarr", client=SERIAL)
    build_arrays(tmp_path / "store", {ONE: count_up(10)})
    message = r"no zindex store at s3://bucket-\d+/corpus; check the URL, or convert the corpus to"
    with pytest.raises(StoreNotFoundError, match=message):
        zindex.build(make_config(tmp_path, f"{bucket.url}/corpus"), SERIAL)


def test_pairs_are_written_to_file_systems_only(
    bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    [store] = zindex.convert(write_corpus(LENGTHS), tmp_path / "a.zarr", client=SERIAL, grid=GRID)
    with pytest.raises(ConfigError, match=r"a .bin/.idx pair must be a path .* got scheme 's3'"):
        zindex.export(store.root, f"{bucket.url}/back", client=SERIAL)


def test_a_timeline_needs_a_file_system(
    bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    config = make_config(tmp_path, write_corpus(LENGTHS))
    with pytest.raises(ConfigError, match=r"a timeline must be a path .* got scheme 's3'"):
        zindex.build(config, SERIAL, timeline=f"{bucket.url}/timeline.json")


def test_a_uniform_shuffle_needs_a_file_system(
    bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    corpus = write_corpus(LENGTHS)
    config = make_config(
        tmp_path,
        DatasetConfig(corpus, weight=1.0),
        index=f"{bucket.url}/index",
        order="scalable",
        shuffle="uniform",
        samples={"train": 20},
    )
    message = r"shuffle: uniform needs an index folder in a file system .* set shuffle: keyed"
    with pytest.raises(ConfigError, match=message):
        zindex.build(config, SERIAL)


class WholeFiles(SimpleHTTPRequestHandler):
    """Answers with whole files, without ranges."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def test_a_server_without_ranges(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    handler = partial(WholeFiles, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        files = JsonlFiles(f"http://127.0.0.1:{server.server_port}/a.jsonl")
        with pytest.raises(StoreUnavailableError, match="the server must answer requests for ran"):
            list(files.read_part(0))
        server.shutdown()
        thread.join()
