import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import zarr

from tests.indexing.blends import GRID, naive_greedy
from zindex.errors import StoreError, VerificationError
from zindex.execution.executor import SerialExecutor, embedded_client, open_executor, run_builds
from zindex.indexing import blend as module
from zindex.indexing import store_build, uniform_shuffle
from zindex.indexing.blend import Permutation
from zindex.indexing.blend_arrays import compute_blend_arrays, open_blend_arrays
from zindex.indexing.ensure import build_store
from zindex.indexing.store_build import find_index
from zindex.io import create_only
from zindex.plan.blend_plan import BlendPlan
from zindex.store.commit import begin_store
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.verify import verify_store

RNG = np.random.default_rng(11)
SIZES = RNG.integers(1, 60, 9)
PLANS = {
    "weighted": lambda **settings: BlendPlan.weighted(SIZES.tolist(), 300, **settings),
    "exhaustive": lambda **settings: BlendPlan.exhaustive(SIZES, **settings),
}


def make_plan(kind: str = "weighted", **settings) -> BlendPlan:
    return PLANS[kind](**({"split": "train", "seed": 5, "grid": GRID} | settings))


def build(plan: BlendPlan, folder, executor=None):
    return run_builds(build_store(plan, None, folder, executor or SerialExecutor()))


def assert_computed(plan: BlendPlan, store) -> None:
    """Compare a stored blend with the one that is computed in memory."""
    for ours, theirs in zip(open_blend_arrays(store), compute_blend_arrays(plan), strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours[:], theirs)


def assert_naive(plan: BlendPlan, store) -> None:
    """Compare a stored greedy blend with the naive one."""
    arrays = open_blend_arrays(store)
    datasets, samples = naive_greedy(plan.weights, plan.num_samples, plan.sizes)
    assert arrays.dataset_index[:].tolist() == datasets
    assert arrays.dataset_sample_index[:].tolist() == samples
    assert arrays.dataset_count.tolist() == np.bincount(datasets).tolist()
    borders = store.attributes["certificate"]["borders"]
    assert len(borders) == plan.dataset_layout.num_shards + 1
    for shard, border in enumerate(borders):
        drawn = datasets[: min(16 * shard, len(datasets))]
        counts = np.bincount(drawn, minlength=len(plan.weights)).astype(np.int64)
        assert module.digest_counts(counts) == border


@pytest.fixture(scope="module")
def dask_executor():
    with embedded_client(3) as client, open_executor(client) as executor:
        yield executor


@pytest.fixture
def short_warm_up(monkeypatch):
    """Start every chunk where it begins, so that most guesses are wrong."""
    monkeypatch.setattr(module, "_WARM_UP", 0)
    monkeypatch.setattr(module, "_WARM_UP_PER_DATASET", 0)


@pytest.mark.parametrize("kind", PLANS)
def test_greedy_chunks_make_the_serial_order(tmp_path, kind, dask_executor):
    plan = make_plan(kind)
    for name, executor in {"serial": SerialExecutor(), "dask": dask_executor}.items():
        done = build(plan, tmp_path / name, executor)
        assert done.num_written == done.num_shards == 2 * plan.dataset_layout.num_shards + 2
        assert_naive(plan, done.store)


@pytest.mark.parametrize("kind", PLANS)
def test_a_chunk_that_does_not_fit_is_computed_again(
    tmp_path, kind, short_warm_up, monkeypatch, dask_executor
):
    wrong = np.array([5, *[0] * 8])
    monkeypatch.setattr(module, "guess_counts", lambda shares, position: wrong * (position > 0))
    plan = make_plan(kind, grid=GRID)
    num_shards = plan.dataset_layout.num_shards
    for name, executor in {"serial": SerialExecutor(), "dask": dask_executor}.items():
        done = build(plan, tmp_path / name, executor)
        assert_naive(plan, done.store)
        again = f"again-{done.store.root.name[:28]}"
        keys = [span.key for span in executor.timeline.spans if span.key.startswith(again)]
        assert len(keys) == num_shards - 1


@pytest.mark.parametrize("shard_length", [4, 20, 64, 4096])
def test_the_result_is_the_same_on_every_grid(tmp_path, shard_length):
    plan = make_plan(grid=ChunkGrid(chunk_length=4, shard_length=shard_length))
    store = build(plan, tmp_path).store
    datasets, samples = naive_greedy(plan.weights, plan.num_samples)
    arrays = open_blend_arrays(store)
    assert arrays.dataset_index[:].tolist() == datasets
    assert arrays.dataset_sample_index[:].tolist() == samples


class StoppingExecutor(SerialExecutor):
    """Dies after so many tasks."""

    def __init__(self, num_tasks: int):
        super().__init__()
        self.num_left = num_tasks

    async def run(self, function, *args, key, priority=0):
        if not self.num_left:
            raise KeyboardInterrupt
        self.num_left -= 1
        await asyncio.sleep(0)
        return await super().run(function, *args, key=key, priority=priority)


class GrowingExecutor(SerialExecutor):
    """Has one thread until a task has run, then four."""

    def __init__(self):
        super().__init__()
        self.begun, self.most, self.num_done = set(), 0, 0

    @property
    def num_threads(self):
        return 4 if self.num_done else 1

    async def run(self, function, *args, key, priority=0):
        shard = key.rpartition("-")[2]
        self.begun.add(shard)
        self.most = max(self.most, len(self.begun))
        for _ in range(100):
            await asyncio.sleep(0)
        if not self.num_done:
            assert self.most == 3
        if function in (module.store_chunk, module.store_scalable_shards):
            self.begun.remove(shard)
            self.num_done += 1
        return await super().run(function, *args, key=key, priority=priority)


@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_workers_that_join_late_get_work(tmp_path, order):
    executor = GrowingExecutor()
    done = run_builds(build_store(make_plan(order=order), None, tmp_path, executor))
    assert done.num_written == done.num_shards
    assert executor.most == 12


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("order", ["megatron", "scalable"])
def test_a_build_that_died_is_resumed(tmp_path, kind, order):
    plan = make_plan(kind, order=order)
    for num_tasks in range(0, 60, 3):
        folder = tmp_path / str(num_tasks)
        try:
            first = run_builds(
                build_store(plan, None, folder, StoppingExecutor(num_tasks))
            ).num_written
        except KeyboardInterrupt:
            assert find_index(plan.store_plan(folder)) is None
            first = len(list(folder.rglob("dataset_*index/c/*")))
        done = build(plan, folder)
        assert done.num_written + first == done.num_shards or done.num_written == 0
        assert_computed(plan, done.store)


def test_a_resumed_build_with_wrong_guesses_keeps_what_is_there(
    tmp_path, short_warm_up, monkeypatch
):
    plan = make_plan()
    with pytest.raises(KeyboardInterrupt):
        build(plan, tmp_path, StoppingExecutor(20))
    written = {path: path.stat().st_ino for path in tmp_path.rglob("dataset_*index/c/*")}
    assert written
    monkeypatch.setattr(
        module, "guess_counts", lambda shares, position: np.zeros(len(shares), np.int64)
    )
    done = build(plan, tmp_path)
    assert_naive(plan, done.store)
    assert {path: path.stat().st_ino for path in written} == written


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("shuffle", ["keyed", "uniform"])
def test_scalable_equals_what_is_computed_in_memory(tmp_path, kind, shuffle, dask_executor):
    plan = make_plan(kind, order="scalable", shuffle=shuffle)
    for name, executor in {"serial": SerialExecutor(), "dask": dask_executor}.items():
        done = build(plan, tmp_path / name, executor)
        assert_computed(plan, done.store)
        assert [path.name for path in (tmp_path / name).iterdir()] == [done.store.root.name]


def test_a_permutation_that_is_ahead_is_used(tmp_path):
    plan = make_plan(order="scalable")
    executor = SerialExecutor()

    async def main():
        ahead = Permutation(plan.permutation, executor, tmp_path)
        ahead.start()
        for _ in range(50):
            await asyncio.sleep(0)
        stages = [span.stage for span in executor.timeline.spans]
        assert stages == ["permutation"] * plan.dataset_layout.num_shards
        return await build_store(plan, None, tmp_path, executor, permutation=ahead)

    done = run_builds(main())
    assert_computed(plan, done.store)
    stages = [span.stage for span in executor.timeline.spans]
    assert stages.count("permutation") == stages.count("blend") == plan.dataset_layout.num_shards


def test_a_permutation_of_another_size_is_not_used(tmp_path):
    plan = make_plan(order="scalable")
    other = Permutation(make_plan("exhaustive", order="scalable").permutation, None, tmp_path)
    done = run_builds(build_store(plan, None, tmp_path, SerialExecutor(), permutation=other))
    assert len(open_blend_arrays(done.store).dataset_index) == 300


def test_scratch_files_that_a_faster_builder_removed(tmp_path, monkeypatch):
    plan = make_plan(order="scalable", shuffle="uniform")
    read = module.uniform_shuffle.read_positions

    def come_second(*args):
        monkeypatch.setattr(module.uniform_shuffle, "read_positions", read)
        build(plan, tmp_path)
        return read(*args)

    monkeypatch.setattr(module.uniform_shuffle, "read_positions", come_second)
    done = build(plan, tmp_path)
    assert done.num_written == 0
    assert_computed(plan, done.store)


def test_scratch_files_that_another_blend_in_the_same_order_removed(tmp_path, monkeypatch):
    plans = [
        BlendPlan.weighted(weights, 300, split="train", order="scalable", shuffle="uniform")
        for weights in ([1, 2, 3], [3, 2, 1])
    ]
    read = module.uniform_shuffle.read_positions

    def come_second(*args):
        monkeypatch.setattr(module.uniform_shuffle, "read_positions", read)
        build(plans[0], tmp_path)
        return read(*args)

    monkeypatch.setattr(module.uniform_shuffle, "read_positions", come_second)
    for plan in reversed(plans):
        done = build(plan, tmp_path)
        assert_computed(plan, done.store)
    assert not list(tmp_path.glob("shuffle-*"))


def test_a_scratch_folder_that_is_removed_while_a_file_is_written(tmp_path, monkeypatch):
    plan = make_plan(order="scalable", shuffle="uniform")
    publish = create_only.publish

    def come_second(partial, path, status):
        if path.suffix == ".scratch":
            monkeypatch.setattr(create_only, "publish", publish)
            uniform_shuffle.remove_scratch(path.parent)
        return publish(partial, path, status)

    monkeypatch.setattr(create_only, "publish", come_second)
    done = build(plan, tmp_path)
    assert_computed(plan, done.store)
    assert not list(tmp_path.glob("shuffle-*"))


def test_no_scratch_files_outlive_a_builder_that_dies_at_the_commit(tmp_path, monkeypatch):
    commit_store = store_build.commit_store

    def die(*args):
        raise KeyboardInterrupt

    def commit_and_die(*args):
        commit_store(*args)
        raise KeyboardInterrupt

    plan = make_plan(order="scalable", shuffle="uniform")
    for commit in (die, commit_and_die):
        monkeypatch.setattr(store_build, "commit_store", commit)
        with pytest.raises(KeyboardInterrupt):
            build(plan, tmp_path)
        monkeypatch.undo()
        assert not list(tmp_path.glob("shuffle-*"))
    assert find_index(plan.store_plan(tmp_path)) is not None


@pytest.mark.parametrize("shuffle", ["keyed", "uniform"])
@pytest.mark.parametrize("shard_length", [8, 64])
def test_a_permutation_that_is_ahead_on_another_grid(
    tmp_path, shuffle, shard_length, dask_executor
):
    plan = make_plan(order="scalable", shuffle=shuffle)
    begun = replace(plan, grid=ChunkGrid(chunk_length=4, shard_length=shard_length))
    begin_store(begun.store_plan(tmp_path))

    async def main():
        ahead = Permutation(plan.permutation, dask_executor, tmp_path)
        ahead.start()
        await asyncio.gather(*ahead._shards.values())
        return await build_store(plan, None, tmp_path, dask_executor, permutation=ahead)

    done = run_builds(main())
    assert_computed(plan, done.store)


def test_damage_to_scratch_files_is_an_error(tmp_path, monkeypatch):
    def fail(*args):
        raise VerificationError("part-0000.scratch fails its checksum")

    monkeypatch.setattr(module.uniform_shuffle, "read_positions", fail)
    with pytest.raises(VerificationError, match=r"part-0000\.scratch fails"):
        run_builds(
            build_store(
                make_plan(order="scalable", shuffle="uniform"), None, tmp_path, SerialExecutor()
            )
        )


def test_finished_shards_are_not_rebuilt(tmp_path):
    plan = make_plan()
    steps = []
    run_builds(build_store(plan, None, tmp_path, SerialExecutor(), steps.append))
    assert sum(steps) == plan.store_plan(tmp_path).num_shards
    steps.clear()
    done = run_builds(build_store(plan, None, tmp_path, StoppingExecutor(0), steps.append))
    assert done.num_written == 0
    assert sum(steps) == done.num_shards
    assert find_index(plan.store_plan(tmp_path)).fingerprint == done.store.fingerprint


def test_a_blend_is_plain_zarr(tmp_path):
    plan = make_plan()
    root = build(plan, tmp_path).store.root
    group = zarr.open_group(root, mode="r")
    assert group["dataset_index"].metadata.dimension_names == ("sample",)
    assert np.array_equal(group["dataset_weight"][:], plan.weights)
    assert group["dataset_count"][:].sum() == 300
    assert (
        json.loads((root / "zarr.json").read_text())["attributes"]["zindex"]["num_samples"] == 300
    )


def test_an_empty_blend_is_built(tmp_path):
    for order in ("megatron", "scalable"):
        plan = BlendPlan.weighted([1, 3], 0, split="train", order=order)
        done = build(plan, tmp_path)
        assert open_blend_arrays(done.store).dataset_count.tolist() == [0, 0]
        assert len(open_blend_arrays(done.store).dataset_index) == 0


def test_a_greedy_blend_does_not_depend_on_the_seed(tmp_path):
    names = {make_plan(seed=seed).store_plan(tmp_path).root for seed in (1, 2)}
    assert len(names) == 1
    orders = {make_plan(seed=seed, order="scalable").store_plan(tmp_path).root for seed in (1, 2)}
    assert len(orders) == 2


def test_no_room_for_the_blend(tmp_path, monkeypatch):
    monkeypatch.setattr("zindex.io.local.free_nbytes", lambda path: 100)
    with pytest.raises(StoreError, match=r"needs .* bytes more but its file system has 100 free"):
        build(make_plan(), tmp_path)


def test_more_datasets_than_int16_holds(tmp_path):
    plan = BlendPlan.exhaustive(np.ones(40_000, np.int64), split="train")
    store = build(plan, tmp_path).store
    arrays = open_blend_arrays(open_store(store.root))
    assert arrays.dataset_index.dtype == np.int32
    assert np.array_equal(arrays.dataset_index[:], np.arange(40_000))


def test_a_resumed_build_repairs_a_flipped_bit(tmp_path) -> None:
    """It resumes from the counts of the stored shards."""
    plan = make_plan()
    whole = build(plan, tmp_path).store
    (whole.root / "zarr.json").unlink()
    shards = [whole.root / name / "c" / "2" for name in ("dataset_index", "dataset_sample_index")]
    golden = [shard.read_bytes() for shard in shards]
    for shard, content in zip(shards, golden, strict=True):
        shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    done = build(plan, tmp_path)
    assert [shard.read_bytes() for shard in shards] == golden
    assert done.num_written == 2
    assert verify_store(done.store.root).is_sound
