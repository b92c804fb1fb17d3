"""Simulated reads, against a plain cache and against what a loader really requests."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import zindex
from tests.conftest import FakeTokenizer, WriteCorpus, reset_cache
from zindex.config import DatasetConfig, RunConfig
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers.run_order import RunOrder
from zindex.io.objects import ObjectPath
from zindex.reporting.chunks_read import find_chunks
from zindex.reporting.read_simulator import (
    ReadFigures,
    ReadSettings,
    choose_settings,
    simulate_reads,
)
from zindex.store.chunk_cache import reader_statistics, set_chunk_cache
from zindex.store.layout import ChunkGrid

CHUNK = 256
ORDERS: dict[str, dict[str, Any]] = {
    "megatron": {},
    "scalable": {"order": "scalable"},
    "minimal": {"order": "scalable", "store": "minimal"},
}


def make_run(folder: Any, write_corpus: WriteCorpus, **settings: Any) -> RunConfig:
    """Return a built run of 400 samples of two corpora with small chunks."""
    rng = np.random.default_rng(0)
    members = []
    for number in range(2):
        lengths = rng.integers(50, 900, 300 + number).tolist()
        pair = write_corpus(lengths, name=f"corpus-{number}", tokens=np.arange(sum(lengths)))
        place = f"{folder}/corpus-{number}.zarr"
        zindex.convert(pair, place, client=SerialExecutor(), grid=ChunkGrid(CHUNK, 4096))
        members.append(DatasetConfig(place, weight=2.0 - number))
    config = RunConfig(
        tuple(members),
        sequence_length=128,
        samples={"train": 400, "valid": 0, "test": 0},
        split="100,0,0",
        index=f"{folder}/index",
        grid=ChunkGrid(64, 512),
        **settings,
    )
    zindex.build(config, SerialExecutor())
    return config


def read_really(config: RunConfig, found: ReadFigures) -> tuple[int, int, int, int, int]:
    """Return requests, bytes, hits, misses and read-ahead of a loader in this process."""
    opened: Any = zindex.open_run(
        config,
        FakeTokenizer(),
        create_attention_mask=False,
        max_computed_rows=found.settings.max_computed_rows,
    )
    size = found.settings.global_batch_size
    reset_cache()
    set_chunk_cache(found.settings.cache_nbytes)
    reader_statistics(reset=True)
    for step in range(found.num_steps):
        opened["train"].__getitems__(list(range(size * step, size * (step + 1))))
    counts = reader_statistics(reset=True)
    return (
        *(counts.num_requests, counts.nbytes, counts.num_hits, counts.num_misses),
        counts.num_ahead,
    )


@pytest.mark.parametrize("name", ORDERS)
def test_a_loader_reads_what_is_simulated(
    name: str, objects: ObjectPath, write_corpus: WriteCorpus
) -> None:
    config = make_run(objects, write_corpus, **ORDERS[name])
    order = RunOrder(config)
    for limit in (0, 40_000, 1 << 26):
        settings = ReadSettings(16, None, 1, 1, 1, cache_nbytes=limit, max_computed_rows=0)
        found = simulate_reads(order, settings)
        *counts, num_ahead = read_really(config, found)
        own = found.workers[0]
        simulated = [own.num_requests, own.nbytes, own.num_hits, own.num_misses]
        if num_ahead == 0:
            assert counts == simulated
        else:  # sequential reads of the blend are ahead of their batch
            assert counts == pytest.approx(simulated, rel=0.05)
        assert (found.num_requests, found.nbytes) == (own.num_requests, own.nbytes)
        assert sum(found.array_nbytes.values()) == found.nbytes


def test_ranks_workers_and_caches(tmp_path: Any, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    order = RunOrder(config)
    settings = ReadSettings(
        24, micro_batch_size=3, num_ranks=4, num_nodes=2, num_workers=2, cache_nbytes=60_000
    )
    found = simulate_reads(order, settings)
    assert (found.num_steps, found.num_run_steps) == (16, 16)
    hits, misses = _count_plainly(order, settings, found.num_steps)
    for worker in found.workers:
        key = worker.rank, worker.worker
        assert (worker.num_hits, worker.num_misses) == (hits[key], misses[key])
    for node in found.nodes:
        own = [each for each in found.workers if each.rank // 2 == node.node]
        assert node.nbytes == sum(each.nbytes for each in own)
    assert sum(found.step_nbytes) * 2 == pytest.approx(found.nbytes)
    sizes = 384 * 129 * 4
    assert found.useful_nbytes == sizes
    assert [*found.other_caches] == [0, 15_000, 240_000]
    shares = [share for _, share in found.other_caches.values()]
    assert shares[0] == 0
    assert shares[1] <= found.hit_share <= shares[2]


def _count_plainly(
    order: RunOrder, settings: ReadSettings, num_steps: int
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Return hits and misses of every worker, from the samples of each of its batches."""
    keys = list(product(range(settings.num_ranks), range(settings.num_workers)))
    hits, misses = dict.fromkeys(keys, 0), dict.fromkeys(keys, 0)
    caches: dict[tuple[int, int], list[tuple[Any, int]]] = {key: [] for key in keys}
    share = settings.micro_batch_size or 0
    starts = range(0, num_steps * settings.global_batch_size, share * settings.num_ranks)
    for batch, start in enumerate(starts):
        for rank in range(settings.num_ranks):
            key = rank, batch % settings.num_workers
            positions = np.arange(share) + start + rank * share
            # Round by round, each chunk once, and kept in the order of its array.
            reads = find_chunks(order, positions)
            for number in sorted({read.round for read in reads}):
                wanted = [
                    ((read.name, read.form.length, chunk), read.chunk_nbytes)
                    for read in reads
                    if read.round == number
                    for chunk in np.unique(read.chunks).tolist()
                ]
                known = {name for name, _ in caches[key]}
                missed = [item for item in wanted if item[0] not in known]
                hits[key] += len(wanted) - len(missed)
                misses[key] += len(missed)
                kept = [item for item in wanted if item[0] in known]
                names = {name for name, _ in kept}
                caches[key] = [item for item in caches[key] if item[0] not in names] + kept
                if 4 * sum(nbytes for _, nbytes in missed) <= settings.cache_nbytes:
                    caches[key] += missed
                while sum(nbytes for _, nbytes in caches[key]) > settings.cache_nbytes:
                    caches[key].pop(0)
    return hits, misses


def test_chunks_hold_the_tokens(tmp_path: Any, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    order = RunOrder(config)
    positions = np.arange(0, 400, 7)
    corpora = {path: zindex.open_store(path) for path in order.paths}
    opened: Any = zindex.open_run(config, FakeTokenizer(), create_attention_mask=False)["train"]
    wanted = set()
    for row, position in enumerate(positions.tolist()):
        item = opened[position]
        tokens = [*item["tokens"].tolist(), int(item["labels"][-1])]
        path = order.paths[order.read(positions[row : row + 1]).datasets[0]]
        length = len(corpora[path]["tokens"])
        wanted |= {(row, length, token // CHUNK) for token in tokens}
    found = {
        (row, read.form.length, chunk)
        for read in find_chunks(order, positions)
        if read.name == "tokens"
        for row, chunk in zip(read.owners.tolist(), read.chunks.tolist(), strict=True)
    }
    assert found == wanted


def test_time_and_small_indices(tmp_path: Any, write_corpus: WriteCorpus) -> None:
    order = RunOrder(make_run(tmp_path, write_corpus))
    slow = simulate_reads(order, ReadSettings(16, num_ranks=2, latency=0.0, bandwidth=1e4))
    assert slow.limited_by == "bandwidth"
    assert slow.first_batch_seconds == slow.nodes[0].first_batch_seconds
    later = slow.step_nbytes[slow.num_steps // 2 :]
    assert slow.step_seconds == pytest.approx(sum(later) / len(later) / 1e4)
    far = simulate_reads(order, ReadSettings(16, num_ranks=2, latency=5.0, bandwidth=1e12))
    assert far.limited_by == "latency"
    # Small indices are computed, so there are two rounds of requests: offsets, then tokens.
    assert far.first_batch_seconds == pytest.approx(10.0, abs=1e-3)
    assert 10 < far.ahead_seconds < 20.001  # two batches of each worker
    assert {name for name, nbytes in far.array_nbytes.items() if nbytes} == {"offset", "tokens"}
    with pytest.raises(ConfigError, match="the run has 401 samples and a step 512"):
        simulate_reads(order, ReadSettings(512))


def test_settings() -> None:
    assert choose_settings(10**6) == ReadSettings()
    assert choose_settings(100).global_batch_size == 96
    assert choose_settings(3) == ReadSettings(1, num_ranks=1)
    assert choose_settings(10**6, num_ranks=64, num_nodes=8).global_batch_size == 2048
    assert choose_settings(10**6, num_nodes=4).num_ranks == 32
    assert choose_settings(10**6, global_batch_size=12, micro_batch_size=3).num_ranks == 4
    with pytest.raises(ConfigError, match="equally many ranks, got 8 ranks on 3 nodes"):
        ReadSettings(num_nodes=3)
    with pytest.raises(ConfigError, match=r"bandwidth must be above 0 .* got 0 B/s"):
        ReadSettings(bandwidth=0.0)
    with pytest.raises(ConfigError, match="num_workers"):
        ReadSettings(num_workers=0)
    with pytest.raises(ConfigError, match="whole micro-batches"):
        ReadSettings(global_batch_size=10)
