"""Pairs of .bin and .idx in object storage, as datasets."""

import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cloud.servers import Bucket
from tests.conftest import WriteCorpus
from tests.datasets.configs import build_datasets, plain_config
from tests.forked import run_python
from tests.indexing.runs import GRID
from tests.io.test_remote_files import make_msc
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.datasets.indexed_dataset import (
    IndexedDataset,
    ObjectStorageConfig,
    S3Config,
    _MultiStorageClientBinReader,
    _S3BinReader,
)
from zindex.datasets.object_storage_utils import (
    OBJECT_STORAGE_BIN_READERS,
    _ObjectBinReader,
    _s3_download_file,
    _s3_object_exists,
    cache_index_file,
    find_storage,
    get_index_cache_path,
    get_object_storage_access,
    is_object_storage_path,
    parse_s3_path,
)
from zindex.errors import ConfigError, SourceError
from zindex.execution.executor import SerialExecutor
from zindex.ingest.convert import convert
from zindex.ingest.corpora.pairs import count_sequences
from zindex.ingest.merge import merge
from zindex.io import remote_files
from zindex.loading.loader import loader
from zindex.store.chunk_cache import reader_statistics

SERIAL = SerialExecutor()
LENGTHS = [5, 0, 7, 3, 12, 1, 9, 4]


def upload(bucket: Bucket, prefix: str, key: str) -> str:
    for suffix in ("bin", "idx"):
        bucket.write(f"{key}.{suffix}", Path(f"{prefix}.{suffix}").read_bytes())
    return f"{bucket.url}/{key}"


@pytest.fixture
def prefix(write_corpus: WriteCorpus) -> str:
    return write_corpus(LENGTHS, sequences_per_document=3, modes=range(8))


@pytest.fixture
def url(bucket: Bucket, prefix: str) -> str:
    return upload(bucket, prefix, "corpora/a b")


@pytest.fixture
def config(tmp_path: Path) -> ObjectStorageConfig:
    return ObjectStorageConfig(str(tmp_path / "cache"))


def check_equal(remote: IndexedDataset, local: IndexedDataset) -> None:
    assert len(remote) == len(local) == len(LENGTHS)
    for i in (*range(len(LENGTHS)), -1):
        tokens, right = remote[i], local[i]
        assert tokens.dtype == right.dtype
        assert tokens.tolist() == right.tolist()
    assert [part.tolist() for part in remote[2:6]] == [part.tolist() for part in local[2:6]]
    assert remote.get(4, offset=3, length=5).tolist() == local.get(4, 3, 5).tolist()
    for name in ("sequence_lengths", "document_indices"):
        np.testing.assert_array_equal(getattr(remote, name), getattr(local, name))


@pytest.mark.parametrize("block", [None, 1, 11, 256 << 20])
def test_items_are_those_of_the_files(
    url: str, prefix: str, config: ObjectStorageConfig, block: int | None
) -> None:
    config.bin_chunk_nbytes = block
    remote = IndexedDataset(url, mmap=False, object_storage_config=config)
    assert type(remote.bin_reader) is _S3BinReader
    check_equal(remote, IndexedDataset(prefix))
    check_equal(pickle.loads(pickle.dumps(remote)), IndexedDataset(prefix))
    starts = np.array([3, 30, 8])
    right = IndexedDataset(prefix).tokens.read_spans(starts, starts + 9)
    assert remote.tokens.read_spans(starts, starts + 9).tolist() == right.tolist()


def test_modes_and_the_older_name(url: str, prefix: str, config: ObjectStorageConfig) -> None:
    remote = IndexedDataset(url, multimodal=True, s3_config=S3Config(config.path_to_idx_cache))
    tokens, mode = remote[2]
    assert (tokens.tolist(), int(mode)) == ([5, 6, 7, 8, 9, 10, 11], 2)
    assert remote.sequence_modes.tolist() == [*range(8)]


def test_requests_to_the_store(
    bucket: Bucket, url: str, config: ObjectStorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[tuple[str, str]] = []
    ask = remote_files.object_client.ask

    def counted(path: Any, action: str, *arguments: Any, **options: Any) -> Any:
        requests.append((action, path.key.rpartition(".")[2]))
        return ask(path, action, *arguments, **options)

    monkeypatch.setattr(remote_files.object_client, "ask", counted)
    IndexedDataset(url, object_storage_config=config)
    looks = [("looked up", "idx")] * 2 + [("looked up", "bin")]
    assert sorted(requests) == sorted([*looks, ("read", "idx")])
    requests.clear()
    dataset = IndexedDataset(url, object_storage_config=config)
    assert sorted(requests) == [("looked up", "bin"), ("looked up", "idx")]
    requests.clear()
    dataset = pickle.loads(pickle.dumps(dataset))
    assert requests == []
    reader_statistics(reset=True)
    dataset[4]
    statistics = reader_statistics(reset=True)
    assert (statistics.num_requests, statistics.nbytes) == (1, 12 * 4)
    # All spans of a batch: one round.
    monkeypatch.setattr("zindex.store.chunk_fetch.GAP_NBYTES", 0)
    starts = np.array([0, 10, 20, 30])
    dataset.tokens.read_spans(starts, starts + 2)
    statistics = reader_statistics(reset=True)
    assert (statistics.num_requests, statistics.nbytes) == (4, 4 * 2 * 4)


def test_another_idx_in_its_place(
    bucket: Bucket, url: str, config: ObjectStorageConfig, write_corpus: WriteCorpus
) -> None:
    before = IndexedDataset(url, object_storage_config=config)
    upload(bucket, write_corpus([3, 2], name="new"), "corpora/a b")
    after = IndexedDataset(url, object_storage_config=config)
    assert (len(before), len(after)) == (8, 2)
    assert before.sequence_lengths.tolist() == LENGTHS
    bucket.write("corpora/a b.bin", bytes(19))
    with pytest.raises(SourceError, match=r"a b\.bin must have 20 bytes, .* but has 19; it is cut"):
        IndexedDataset(url, object_storage_config=config)
    bucket.remove("corpora/a b.bin")
    with pytest.raises(SourceError, match=r"but there is no \S+a b\.bin; give the URL"):
        IndexedDataset(url, object_storage_config=config)
    with pytest.raises(SourceError, match=r"there is no \S+/none\.idx; give the URL of the pair"):
        IndexedDataset(f"{bucket.url}/none", object_storage_config=config)
    with pytest.raises(SourceError, match=r"but there is no \S+/none\.bin; give the URL"):
        _S3BinReader(f"{bucket.url}/none.bin", config)


def test_existence(bucket: Bucket, url: str) -> None:
    assert IndexedDataset.exists(url)
    bucket.remove("corpora/a b.bin")
    assert not IndexedDataset.exists(url)
    assert not IndexedDataset.exists(f"{bucket.url}/b")


def test_a_reader_alone(bucket: Bucket, url: str, config: ObjectStorageConfig) -> None:
    reader = _S3BinReader(f"{url}.bin", config)
    assert reader.read(np.int32, 3, 8).tolist() == [2, 3, 4]
    with pytest.raises(SourceError, match=r"must lie within the 164 bytes of .*, but 2 items of"):
        reader.read(np.int32, 2, 160)


def build(path: Path, blend: list[str], sizes: Any = (40, 3, 0), **settings: Any) -> list[Any]:
    defaults: dict[str, Any] = {
        "split": "90,10,0",
        "path_to_cache": str(path / "indices"),
        "mid_level_dataset_surplus": 0.3,
    }
    made = plain_config(**defaults | settings, blend=(blend, [0.7, 0.3]))
    return build_datasets(GPTDataset, list(sizes), made)


def test_runs_give_the_samples_of_files(
    bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    prefixes = [write_corpus([9, 3, 30] * 9, name="a"), write_corpus([11] * 20, name="b")]
    urls = [upload(bucket, prefix, prefix[-1]) for prefix in prefixes]
    cache = str(tmp_path / "cache")
    local = build(tmp_path, prefixes)
    remote = build(tmp_path, urls, object_storage_cache_path=cache, mmap_bin_files=False)
    for right, dataset in zip(local[:2], remote, strict=False):
        assert len(dataset) == len(right)
        for i in range(len(right)):
            for name, value in right[i].items():
                assert dataset[i][name].tolist() == value.tolist()
    reader_statistics(reset=True)
    with loader(remote[0], micro_batch_size=10, num_workers=0) as batches:
        for batch, right in zip(batches, range(0, 40, 10), strict=True):
            assert batch["tokens"][3].tolist() == local[0][right + 3]["tokens"].tolist()
    # Everything lies near together here, so that a batch is a request to each file.
    assert reader_statistics(reset=True).num_requests <= 8


def test_an_index_may_lie_beside_its_pair(bucket: Bucket, url: str, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    settings: dict[str, Any] = {"split": "100,0,0", "sizes": [4, 0, 0], "path_to_cache": None}
    settings["max_computed_rows"] = 0
    train = build(tmp_path, [url, url], object_storage_cache_path=cache, **settings)[0]
    assert train[0]["tokens"].shape == (8,)
    assert any("/cache/GPTDataset_indices/" in key for key in bucket.keys("corpora/a b/"))


def test_required_settings(bucket: Bucket, url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"object_storage_cache_path must .* got None for {url}"):
        build(tmp_path, [url, url])
    settings: dict[str, Any] = {"object_storage_cache_path": "cache", "path_to_cache": None}
    with pytest.raises(ConfigError, match=r"path_to_cache must be given for msc://profile/a, next"):
        build(tmp_path, ["msc://profile/a"] * 2, **settings)
    with pytest.raises(
        ConfigError, match=r"bin_chunk_nbytes must be a whole number of at least 1, got 0"
    ):
        ObjectStorageConfig("cache", 0)
    assert find_storage(str(tmp_path), None) is None


def test_pairs_are_converted_and_merged(
    bucket: Bucket, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    prefixes = [write_corpus([5, 0, 7], name="a", modes=[1, 2, 3]), write_corpus([9], name="b")]
    urls = [upload(bucket, prefix, f"x/{prefix[-1]}") for prefix in prefixes]
    stores = convert(urls, f"{bucket.url}/stores", client=SERIAL, grid=GRID)
    right = convert(prefixes, tmp_path / "right", client=SERIAL, grid=GRID)
    assert [store.fingerprint for store in stores] == [store.fingerprint for store in right]
    mixed = [urls[0], stores[1].root, prefixes[0]]
    merge(map(str, mixed), tmp_path / "made", to="bin", multimodal=False, client=SERIAL)
    merge(
        [prefixes[0], prefixes[1], prefixes[0]], tmp_path / "same", multimodal=False, client=SERIAL
    )
    for suffix in ("bin", "idx"):
        made, right_file = (tmp_path / f"{name}.{suffix}" for name in ("made", "same"))
        assert made.read_bytes() == right_file.read_bytes()
    assert count_sequences([urls[0], str(stores[1].root)], client=SERIAL) == {
        urls[0]: (3, 4),
        str(stores[1].root): (1, 2),
    }
    with pytest.raises(ConfigError, match=r"link must name a \.bin on a file system, got s3://"):
        convert(urls[0], f"{bucket.url}/linked", link=True, client=SERIAL)


def test_forked_workers_read_through_boto3(bucket: Bucket, url: str, tmp_path: Path) -> None:
    command = ["-m", "tests.cloud.pair_process", url, str(tmp_path / "cache")]
    done = run_python(*command, env=os.environ | bucket.server.environment, check=True)
    first, items = map(json.loads, done.stdout.splitlines())
    assert first == items[0] == [0, 1, 2, 3, 4]
    assert [len(item) for item in items] == LENGTHS
    assert [token for item in items for token in item] == [*range(sum(LENGTHS))]


def test_boto3_alone(
    url: str, prefix: str, config: ObjectStorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_files, "is_usable", lambda: False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    remote = IndexedDataset(url, object_storage_config=config)
    check_equal(remote, IndexedDataset(prefix))
    assert IndexedDataset.exists(url)
    assert not IndexedDataset.exists(f"{url}s")


class FileClient:
    """What Megatron Core's test of readers puts in boto3's place: it knows neither sizes nor
    versions, takes no bucket, and gives a byte less than a range asks for."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def download_file(self, Bucket: str, Key: str, Filename: str) -> None:  # noqa: N803
        Path(Filename).write_bytes(Path("/", Bucket, Key).read_bytes())

    def head_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        assert Path("/", Bucket, Key).exists()
        return {}

    def get_object(self, Bucket: str, Key: str, Range: str) -> dict[str, Any]:  # noqa: N803
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        content = Path("/", Bucket, Key).read_bytes()[first:last]
        return {"Body": SimpleNamespace(read=lambda: content)}


def test_a_client_in_boto3s_place(
    prefix: str, config: ObjectStorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    boto3 = pytest.importorskip("boto3", reason="needs the extra 'test'")
    monkeypatch.setattr(boto3, "client", FileClient)
    remote = IndexedDataset(f"s3://{prefix}", mmap=False, object_storage_config=config)
    assert type(remote.bin_reader) is _S3BinReader
    check_equal(remote, IndexedDataset(prefix))


def test_calls_of_a_client_of_boto3s_kind(bucket: Bucket, url: str, tmp_path: Path) -> None:
    client = bucket.server.client
    assert _s3_object_exists(client, f"{url}.idx")
    assert not _s3_object_exists(client, f"{url}.none")
    with pytest.raises(Exception, match=r"Parameter validation failed"):
        _s3_object_exists(client, "s3://a b/c")
    _s3_download_file(client, f"{url}.idx", str(tmp_path / "new" / "a.idx"))
    assert (tmp_path / "new" / "a.idx").read_bytes() == bucket.read("corpora/a b.idx")


@pytest.mark.parametrize("tells", [True, False])
def test_msc(
    prefix: str, config: ObjectStorageConfig, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    package = make_msc(Path(prefix).parent, tells=tells)
    monkeypatch.setitem(sys.modules, "multistorageclient", package)
    path = "msc://profile/corpus"
    remote = IndexedDataset(path, mmap=False, object_storage_config=config)
    assert type(remote.bin_reader) is _MultiStorageClientBinReader
    check_equal(remote, IndexedDataset(prefix))
    assert IndexedDataset.exists(path)
    reader = _MultiStorageClientBinReader(f"{path}.bin", config)
    assert reader.read(np.int32, 3, 8).tolist() == [2, 3, 4]


def test_http(served: tuple[Path, str], prefix: str, config: ObjectStorageConfig) -> None:
    folder, url = served
    for suffix in ("bin", "idx"):
        (folder / f"a.{suffix}").write_bytes(Path(f"{prefix}.{suffix}").read_bytes())
    remote = IndexedDataset(f"{url}/a", object_storage_config=config)
    assert type(remote.bin_reader) is _ObjectBinReader
    check_equal(remote, IndexedDataset(prefix))


def test_names_of_places() -> None:
    config = ObjectStorageConfig("cache")
    for path, access, copy in (
        ("s3://bucket/a/b.idx", "s3", "cache/bucket/a/b.idx"),
        ("s3:///tmp/b.idx", "s3", "cache/tmp/b.idx"),
        ("msc://profile/b.idx", "msc", "cache/profile/b.idx"),
        ("gs://bucket/b.idx", "gs", "cache/gs/bucket/b.idx"),
        ("https://host/b.idx", "https", "cache/https/host/b.idx"),
    ):
        assert is_object_storage_path(path)
        assert get_object_storage_access(path) == access
        assert get_index_cache_path(path, config) == copy
        assert access in OBJECT_STORAGE_BIN_READERS
    assert parse_s3_path("s3://bucket/a/b.idx") == ("bucket", "a/b.idx")
    assert not is_object_storage_path("/tmp/b")
    for call in (get_object_storage_access, lambda path: cache_index_file(path, "copy")):
        with pytest.raises(ConfigError, match=r"by a URL of msc, s3, gs, az, .* got /tmp/b; name"):
            call("/tmp/b")
