"""Object stores that fail: right results or a clear error, in bounded time."""

import random
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import zindex
from tests.cloud.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.cloud.servers import CANARY, Bucket
from tests.conftest import WriteCorpus, reset_cache
from tests.indexing.runs import GRID, LENGTHS, make_config
from tests.store.stores import ONE, TWO, build_arrays, count_up
from zindex.errors import ConfigError, StoreUnavailableError, VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.index_arrays import open_index_arrays
from zindex.io import object_calls
from zindex.io.objects import Place, place_of
from zindex.store.open import Store, open_store

ARRAYS = {ONE: count_up(10), TWO: count_up(4, num_columns=2)}


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy that the environment leads to; clients pause for moments only."""
    monkeypatch.setattr(object_calls, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(object_calls, "_LONGEST_PAUSE", 0.02)
    with fault_proxy(bucket.server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.fixture
def root(bucket: Bucket, proxy: FaultProxy) -> Place:
    """A store that was written before anything fails."""
    place = place_of(f"{bucket.url}/store")
    build_arrays(place, ARRAYS)
    proxy.requests.clear()
    return place


def is_shard(path: str) -> bool:
    return "/c/" in path


def open_impatiently(root: Place, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Open a store whose later reads wait for moments only if answers will stall."""
    store = open_store(root)
    if fault == "stall":
        monkeypatch.setattr(object_calls, "READ_TIMEOUT", 0.5)
        object_calls.forget_clients()
    return store


def test_a_store_is_opened_by_one_request(proxy: FaultProxy, root: Place) -> None:
    open_store(root)
    assert [method for method, _ in proxy.requests] == ["GET"]


@pytest.mark.parametrize("fault", [500, 503, 429, "reset", "short", "stall", "lost", "wrong"])
def test_a_read_that_fails_once_is_made_again(
    proxy: FaultProxy, root: Place, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: set[str] = set()

    def once(method: str, path: str, number: int) -> Fault:
        if not is_shard(path) or path in failed:
            return None
        failed.add(path)
        return fault

    store = open_impatiently(root, fault, monkeypatch)
    proxy.faults = once
    for item, values in ARRAYS.items():
        np.testing.assert_array_equal(store[item.name], values)
    assert len(failed) == 3


@pytest.mark.parametrize("fault", [500, "reset", "short", "stall", "lost"])
def test_a_read_that_never_succeeds_is_given_up(
    proxy: FaultProxy, root: Place, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_impatiently(root, fault, monkeypatch)
    monkeypatch.setattr(object_calls, "NUM_ATTEMPTS", 2)
    proxy.faults = lambda method, path, number: fault if is_shard(path) else None
    message = r"^s3://bucket-\d+/store/one/c/0 must be read, 2 tries in [\d.]+ s gave .*; check the"
    with pytest.raises(StoreUnavailableError, match=message) as caught:
        store["one"].read(0, 3)
    assert "RetryError" not in str(caught.value)


def test_bytes_that_stay_wrong_are_refused(proxy: FaultProxy, root: Place) -> None:
    store = open_store(root)
    proxy.faults = lambda method, path, number: "wrong" if is_shard(path) else None
    with pytest.raises(VerificationError, match=r"shard one/c/0 (fails|of .* is not what was)"):
        store["one"].read(0, 3)


def test_a_refusal_is_told_without_secrets(proxy: FaultProxy, root: Place) -> None:
    proxy.faults = lambda method, path, number: 403
    with pytest.raises(
        StoreUnavailableError, match=r"status 403 .*check the credentials"
    ) as caught:
        open_store(root)
    text = "".join(traceback.format_exception(caught.value))
    assert CANARY not in text
    assert len(proxy.requests) == 1


def test_a_bucket_that_does_not_exist(bucket: Bucket) -> None:
    with pytest.raises(StoreUnavailableError, match=r"NoSuchBucket; create the bucket, or check"):
        build_arrays(place_of("s3://no-such-bucket/store"), ARRAYS)


def test_a_store_without_conditional_writes(proxy: FaultProxy, bucket: Bucket) -> None:
    proxy.faults = lambda method, path, number: 501 if method == "PUT" else None
    with pytest.raises(StoreUnavailableError, match=r"501 .*the store must support conditional"):
        build_arrays(place_of(f"{bucket.url}/store"), ARRAYS)


def test_plain_http_is_asked_for(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    message = r"AWS_ENDPOINT_URL must be https:// unless AWS_ALLOW_HTTP is true, got http://127"
    with pytest.raises(ConfigError, match=message):
        open_store(f"{bucket.url}/store")


def test_connection_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(object_calls, "NUM_ATTEMPTS", 1)
    with pytest.raises(StoreUnavailableError, match=r"error sending request; check the network"):
        open_store(f"{bucket.url}/store")


def test_answers_to_writes_may_be_lost_anywhere(bucket: Bucket, proxy: FaultProxy) -> None:
    build_arrays(place_of(f"{bucket.url}/sound"), ARRAYS)
    sound = bucket.contents("sound/")
    num_writes = sum(method == "PUT" for method, _ in proxy.requests)
    assert num_writes == len(sound) == 8
    for lost in range(num_writes):

        def once(method: str, path: str, number: int, lost: int = lost) -> Fault:
            before = sum(m == "PUT" for m, _ in proxy.requests[:number])
            return "lost" if method == "PUT" and before == lost else None

        proxy.requests.clear()
        proxy.faults = once
        build_arrays(place_of(f"{bucket.url}/lost-{lost}"), ARRAYS)
        assert bucket.contents(f"lost-{lost}/") == sound


@pytest.mark.parametrize("seed", range(3))
def test_builds_survive_a_bad_day(
    bucket: Bucket, proxy: FaultProxy, write_corpus: WriteCorpus, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    faults: tuple[Fault, ...] = (500, 503, "reset", "lost", "short")

    def sometimes(method: str, path: str, number: int) -> Fault:
        return rng.choice(faults) if rng.random() < 0.2 and is_shard(path) else None

    [corpus] = zindex.convert(
        write_corpus(LENGTHS), f"{bucket.url}/corpus.zarr", client=SerialExecutor(), grid=GRID
    )
    proxy.faults = sometimes
    made = []
    for place in (f"{bucket.url}/index", f"{bucket.url}/again"):
        config = make_config(tmp_path, str(corpus.root), index=place, order="scalable")
        results = zindex.build(config, SerialExecutor())
        reset_cache()
        arrays = [open_index_arrays(result.store) for result in results.values()]
        made.append([np.asarray(array).tolist() for index in arrays for array in index])
        proxy.faults = lambda method, path, number: None
    assert made[0] == made[1]
