"""Several builders of one store in object storage: some die, some race, some wait."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.cloud.servers import Bucket
from tests.conftest import WriteCorpus
from tests.forked import Forked
from tests.indexing.runs import LENGTHS, ensure_index
from zindex.config import RunConfig
from zindex.errors import NotReadyError
from zindex.execution.executor import SerialExecutor
from zindex.indexing.coordination import Rank
from zindex.indexing.run_plan import plan_run
from zindex.store.heartbeat import read_heartbeat, write_heartbeat

SERIAL = SerialExecutor()


@pytest.fixture
def settings(bucket: Bucket, write_corpus: WriteCorpus) -> dict[str, Any]:
    """A run of one index: its corpus and its index are in object storage."""
    [corpus] = zindex.convert(write_corpus(LENGTHS), f"{bucket.url}/corpus.zarr", client=SERIAL)
    return {
        "datasets": [str(corpus.root)],
        "sequence_length": 4,
        "split": "100,0,0",
        "index": f"{bucket.url}/index",
        "grid": {"chunk_length": 2, "shard_length": 4},
    }


@contextmanager
def builder(
    bucket: Bucket, tmp_path: Path, settings: dict[str, Any], *arguments: str
) -> Iterator[Forked]:
    """Start a builder that waits for a line."""
    run_file = tmp_path / "run.json"
    run_file.write_text(json.dumps(settings))
    command = ["-m", "tests.cloud.build_process", str(run_file), *arguments]
    with Forked(*command, env=os.environ | bucket.server.environment) as process:
        yield process


def say(process: Forked) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: Forked) -> str:
    return process.stdout.readline().strip()


@pytest.mark.parametrize("order", [pytest.param("megatron", marks=pytest.mark.slow), "scalable"])
def test_the_shards_of_a_killed_builder_are_kept(
    bucket: Bucket, tmp_path: Path, settings: dict[str, Any], order: str
) -> None:
    settings["order"] = order
    with builder(bucket, tmp_path, settings, "7") as process:
        say(process)
        assert [hear(process), hear(process)] == ["ready", "midway"]
        process.kill()
    before = {key: value for key, value in bucket.contents().items() if "index" in key}
    kept = {key for key in before if "/c/" in key}
    assert kept
    config = RunConfig.from_json(settings)
    [item] = plan_run(config)
    with pytest.raises(NotReadyError, match=rf"{len(kept)} of \d+ shards are finished"):
        zindex.open_store(item.plan.store_plan(config.index).root)
    [result] = zindex.build(config, SERIAL).values()
    assert result.num_written == result.num_shards - len(kept)
    after = bucket.contents()
    assert all(after[key] == value for key, value in before.items())


def test_two_concurrent_builders_commit_one_store(
    bucket: Bucket, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with builder(bucket, tmp_path, settings) as one, builder(bucket, tmp_path, settings) as two:
        assert [hear(one), hear(two)] == ["ready", "ready"]
        say(one)
        say(two)
        [first], [second] = json.loads(hear(one)), json.loads(hear(two))
        assert one.wait() == two.wait() == 0
    [result] = zindex.build(RunConfig.from_json(settings), SERIAL).values()
    # A shard that both wrote at the same time counts for one of them: the other's PUT is refused.
    assert first + second == result.num_shards
    assert result.num_written == 0


def test_other_ranks_wait_for_the_commit(bucket: Bucket, settings: dict[str, Any]) -> None:
    config = RunConfig.from_json(settings)
    [item] = plan_run(config)
    found: list[Any] = []

    def wait() -> None:
        rank = Rank(3, timeout=60, takeover=60)
        found.append(ensure_index(item.plan, item.source, config.index, rank))

    thread = threading.Thread(target=wait)
    thread.start()
    built = ensure_index(item.plan, item.source, config.index, Rank(0))
    thread.join()
    assert found == [built]
    np.testing.assert_array_equal(found[0]["shuffle_index"], built["shuffle_index"])


def test_a_rank_that_sees_no_life_builds(bucket: Bucket, settings: dict[str, Any]) -> None:
    config = RunConfig.from_json(settings)
    [item] = plan_run(config)
    store = ensure_index(item.plan, item.source, config.index, Rank(1, 60, takeover=0.2))
    assert store.root == item.plan.store_plan(config.index).root


def test_signs_of_life_are_seen(bucket: Bucket, settings: dict[str, Any]) -> None:
    config = RunConfig.from_json(settings)
    [item] = plan_run(config)
    root = item.plan.store_plan(config.index).root
    seen = [read_heartbeat(root)]
    for _ in range(3):
        write_heartbeat(root)
        seen.append(read_heartbeat(root))
    assert seen[0] is None
    assert len(set(seen)) == 4
