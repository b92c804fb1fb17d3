"""Packed indices: every document once an epoch, on any grid, executor, after any interruption."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import WriteCorpus
from tests.indexing.runs import cut_before_every_write
from tests.kernels.test_packing import cut_document, naive_packing
from tests.trees import all_files
from zindex import schema
from zindex.errors import PlanError, VerificationError
from zindex.execution.executor import SerialExecutor, embedded_client, open_executor, run_builds
from zindex.indexing import packing as module
from zindex.indexing import store_build
from zindex.indexing.coordination import Rank
from zindex.indexing.ensure import BuildRequest, Builds, build_store
from zindex.indexing.store_build import find_index, find_starts
from zindex.ingest.length_source import LengthSource, open_source
from zindex.io import files
from zindex.kernels.bijection import permute
from zindex.plan.keys import Stage, round_keys
from zindex.plan.packing import LONG_DOCUMENTS, PackingPlan, PackingRules
from zindex.store.commit import PLAN_KEY
from zindex.store.heartbeat import read_heartbeat
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store

LENGTHS = [3, 0, 5, 2, 7, 0, 0, 4, 6, 40, 1, 9, 8, 2, 2, 30, 5, 6, 7, 3]


def plan_packing(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    max_documents: int = 4,
    long_documents: Any = "split",
    chunk: int = 4,
    **values: Any,
) -> tuple[PackingPlan, LengthSource]:
    """Plan a packed index over all sequences of a dataset, or some of them."""
    source = open_source(path)
    stop = source.facts.num_sequences if stop is None else stop
    settings: dict[str, Any] = {"sequence_length": 8, "extra_token": 1, "partition_length": 6}
    plan = PackingPlan(
        source=source.facts,
        split="train",
        start=start,
        stop=stop,
        tokens_per_epoch=source.count_tokens(start, stop),
        seed=7,
        rules=PackingRules(max_documents, long_documents),
        grid=ChunkGrid(chunk_length=chunk, shard_length=4 * chunk),
        **(settings | values),
    )
    return plan, source


def build(plan: Any, source: Any, folder: Path, executor: Any = None, **options: Any) -> Any:
    executor = executor or SerialExecutor()
    return run_builds(build_store(plan, source, folder, executor, **options))


def shuffled(plan: PackingPlan, stage: Stage, epoch: int, size: int) -> np.ndarray:
    digest = plan.source.length_digest
    keys = round_keys(plan.seed, stage, source_digest=digest, split=plan.split, epoch=epoch)
    return permute(np.arange(size), size, keys)


def naive_index(plan: PackingPlan, lengths: list[int]) -> tuple[list[Any], list[int]]:
    """Samples of all epochs, and the order in which they are seen, from plain Python."""
    samples: list[Any] = []
    order: list[int] = []
    num_partitions = max(1, plan.num_documents // plan.partition_length)
    epoch = 0
    while not epoch or len(samples) < (plan.num_requested or 0):
        documents = plan.start + shuffled(plan, Stage.DOCUMENT, epoch, plan.num_documents)
        first = len(samples)
        for place in range(num_partitions):
            cuts = [plan.num_documents * (place + i) // num_partitions for i in (0, 1)]
            part = documents[slice(*cuts)].tolist()
            samples += naive_packing(
                [lengths[document] for document in part],
                part,
                plan.sequence_length,
                plan.extra_token,
                plan.rules.max_documents,
                LONG_DOCUMENTS[plan.rules.long_documents],
            )
        size = len(samples) - first
        order += (first + shuffled(plan, Stage.SAMPLE, epoch, size)).tolist()
        epoch += 1
    return samples, order


def read_samples(store: Any) -> list[Any]:
    bounds = store["sample_offset"][:].tolist()
    parts = [tuple(row) for row in store["part_index"][:].tolist()]
    return [parts[start:stop] for start, stop in pairwise(bounds)]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=40).filter(any),
    num_requested=st.none() | st.integers(0, 60),
    sequence_length=st.integers(1, 25),
    extra_token=st.integers(0, 1),
    max_documents=st.integers(1, 6),
    partition_length=st.integers(1, 50),
    chunk=st.sampled_from([1, 2, 3, 7, 1000]),
    task_length=st.sampled_from([1, 20, 1000]),
)
def test_every_index_equals_plain_python(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], task_length: int, **choices: Any
) -> None:
    from zindex.formats.idx_writer import write_index

    folder = tmp_path_factory.mktemp("law")
    write_index(folder / "a.idx", np.uint16, lengths, range(len(lengths) + 1), None)
    np.zeros(sum(lengths), np.uint16).tofile(folder / "a.bin")
    plan, source = plan_packing(str(folder / "a"), **choices)
    result = build(plan, source, folder / "index", task_length=task_length)
    store = result.store
    samples, order = naive_index(plan, lengths)
    assert read_samples(store) == samples
    assert store["shuffle_index"][:].tolist() == order
    assert result.num_written == result.num_shards
    num_epochs = store.attributes["num_epochs"]
    parts = Counter(part for sample in samples for part in sample)
    rules = (plan.sequence_length, plan.extra_token, LONG_DOCUMENTS["split"])
    assert parts == {
        (document, offset): num_epochs
        for document, length in enumerate(lengths)
        for offset, _ in cut_document(length, *rules)
    }
    facts = store.attributes
    assert (facts["num_samples"], facts["num_parts"]) == (len(samples), parts.total())
    room = plan.room * len(samples)
    assert facts["padding_share"] == pytest.approx(1 - facts["num_tokens"] / room)
    if num_epochs > 1:  # no epoch more than it takes
        assert plan.num_requested is not None
        last_epoch = store["partition_offset"][-1 - plan.partitions_per_epoch, 0]
        assert last_epoch < plan.num_requested <= len(samples)


@pytest.mark.parametrize("long_documents", ["truncate", "drop"])
def test_other_rules_for_long_documents(
    write_corpus: WriteCorpus, tmp_path: Path, long_documents: str
) -> None:
    settings: dict[str, Any] = {"long_documents": long_documents, "num_requested": 30}
    plan, source = plan_packing(write_corpus(LENGTHS), **settings)
    store = build(plan, source, tmp_path).store
    samples, order = naive_index(plan, LENGTHS)
    assert read_samples(store) == samples
    assert store["shuffle_index"][:].tolist() == order
    assert len(samples) >= 30
    documents = {document for sample in samples for document, _ in sample}
    short = {i for i, length in enumerate(LENGTHS) if 0 < length <= 9}
    assert documents - short == (set() if long_documents == "drop" else {9, 15})


def test_part_of_a_dataset_names_its_own_documents(
    write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS), start=4, stop=15)
    store = build(plan, source, tmp_path).store
    assert read_samples(store) == naive_index(plan, LENGTHS)[0]
    assert set(store["part_index"][:, 0]) == set(range(4, 15)) - {5, 6}


def test_nothing_left_to_pack_is_an_error(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    plan, source = plan_packing(write_corpus([20, 30]), long_documents="drop")
    with pytest.raises(PlanError, match=r"none of its 2 is left .* room for 9 tokens; use split"):
        build(plan, source, tmp_path)


def test_lengths_that_do_not_add_up_are_refused(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS), extra_token=0)
    order = module.order_lengths
    monkeypatch.setattr(module, "order_lengths", lambda *args: np.maximum(order(*args), 1))
    with pytest.raises(VerificationError, match="must hold 140 tokens in train, its lengths sum"):
        build(plan, source, tmp_path)
    assert find_index(plan.store_plan(tmp_path)) is None


def test_names_depend_on_what_decides_the_values_and_nothing_else(
    write_corpus: WriteCorpus,
) -> None:
    prefix = write_corpus(LENGTHS)
    base: dict[str, Any] = {"num_requested": 40}
    root = plan_packing(prefix, **base)[0].store_plan("i").root
    assert root == plan_packing(prefix, chunk=64, **base)[0].store_plan("i").root
    others: list[dict[str, Any]] = [
        {"num_requested": 41},
        {"max_documents": 5},
        {"long_documents": "drop"},
        {"sequence_length": 9},
        {"extra_token": 0},
        {"partition_length": 7},
        {"stored": "minimal"},
        {"stop": 19},
    ]
    roots = {plan_packing(prefix, **(base | o))[0].store_plan("i").root for o in others}
    assert len(roots | {root}) == len(others) + 1


def test_one_epoch_that_is_enough_is_one_index(write_corpus: WriteCorpus) -> None:
    """140 tokens make 16 samples of 9 at least."""
    prefix = write_corpus(LENGTHS)
    whole, few, more = (
        plan_packing(prefix, num_requested=number)[0].store_plan("i").root
        for number in (None, 16, 17)
    )
    assert whole == few != more


def test_executors_and_grids_agree(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS), num_requested=60, chunk=1)
    serial = build(plan, source, tmp_path / "serial").store
    with embedded_client(2) as client, open_executor(client) as executor:
        embedded = build(plan, source, tmp_path / "embedded", executor).store
    assert all_files(serial.root) == all_files(embedded.root)
    coarse, _ = plan_packing(source.path, num_requested=60, chunk=64)
    other = build(coarse, source, tmp_path / "coarse").store
    for name in serial.layouts:
        np.testing.assert_array_equal(serial[name][:], other[name][:])


def test_minimal_leaves_out_the_shuffle(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS), stored="minimal", num_requested=40)
    store = build(plan, source, tmp_path).store
    assert sorted(store.layouts) == ["part_index", "partition_offset", "sample_offset"]
    assert read_samples(store) == naive_index(plan, LENGTHS)[0]


def test_finished_index_is_opened_not_built(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS))
    first = build(plan, source, tmp_path)
    again = build(plan, source, tmp_path)
    assert (again.num_written, again.num_shards) == (0, first.num_shards)
    assert again.store == first.store


def test_death_before_every_write(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at the k-th write for every k: not ready, then resumed with no finished shard redone."""
    plan, source = plan_packing(write_corpus(LENGTHS), chunk=2)
    golden = read_samples(build(plan, source, tmp_path / "golden").store)

    def check(store: Store) -> None:
        assert read_samples(store) == golden

    total = cut_before_every_write(plan, source, tmp_path, monkeypatch, check)
    assert total > 8


@pytest.mark.parametrize(
    "key", ["part_index/c/2/0", "sample_offset/c/1", "shuffle_index/c/0", "partition_offset/c/0/0"]
)
def test_a_lost_shard_needs_only_the_partitions_in_it(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS), chunk=2, partition_length=2)
    store = build(plan, source, tmp_path, task_length=1).store
    golden = (store.root / key).read_bytes()
    num_partitions = plan.partitions_per_epoch
    (store.root / key).unlink()
    (store.root / "zarr.json").unlink()
    packed: list[int] = []
    pack = module.pack_partitions

    def counted(plan: Any, source: Any, start: int, stop: int) -> Any:
        packed.extend(range(start, stop))
        return pack(plan, source, start, stop)

    monkeypatch.setattr(module, "pack_partitions", counted)
    again = build(plan, source, tmp_path, task_length=1)
    assert again.num_written == 1
    assert (store.root / key).read_bytes() == golden
    expected = {"part_index/c/2/0": 5, "sample_offset/c/1": 5, "shuffle_index/c/0": 0}
    assert len(packed) <= expected.get(key, num_partitions)
    assert len(packed) == len(set(packed))


def test_a_missing_store_has_no_partition_starts(tmp_path: Path) -> None:
    assert find_starts(tmp_path / "none", schema.PARTITION_OFFSET) is None


def test_parallel_builders_share_the_work(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS), num_requested=60, chunk=1)
    barrier = threading.Barrier(3)

    def build_once(_: int) -> Any:
        barrier.wait()
        return build(plan, source, tmp_path)

    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(build_once, range(3)))
    golden = build(plan, source, tmp_path / "alone")
    assert {result.store.fingerprint for result in done} == {golden.store.fingerprint}
    assert sum(result.num_written for result in done) == golden.num_shards


def test_few_documents_are_packed_without_a_heartbeat(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, source = plan_packing(write_corpus(LENGTHS))
    monkeypatch.setattr(store_build, "write_first_heartbeat", None)
    monkeypatch.setattr(store_build, "remove_first_heartbeat", None)
    result = run_builds(build_store(plan, source, tmp_path, SerialExecutor()))
    assert result.num_written == result.num_shards > 0


def test_a_heartbeat_is_written_while_documents_are_packed(
    write_corpus: WriteCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard and no plan exists before all documents of an epoch are packed."""
    monkeypatch.setattr(store_build, "CHUNK_LENGTH", 5)
    plan, source = plan_packing(write_corpus(LENGTHS))
    needed = BuildRequest(plan, tmp_path, source)
    seen: list[str | None] = []
    pack = module.pack_partitions

    def watched(*args: Any) -> Any:
        assert not files.exists(needed.root / PLAN_KEY)
        seen.append(read_heartbeat(needed.root))
        deadline = time.monotonic() + 60
        while read_heartbeat(needed.root) == seen[0] and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(read_heartbeat(needed.root))
        return pack(*args)

    monkeypatch.setattr(module, "pack_partitions", watched)
    found: list[Store] = []
    with Builds(Rank(takeover=0.1)) as builds:
        builds.add(needed, found.append)
        builds.finish()
    assert None not in seen
    assert len(set(seen)) > 1
    assert files.list_names(found[0].root / "_zindex") == {"plan.json", "manifest.json"}
