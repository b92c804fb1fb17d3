"""The uniform order: exactly uniform, the same from files as from memory, never from bad files."""

import hashlib
import itertools
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.damage import flipped
from tests.kernels.test_scatter_shuffle import (
    chi_square_is_plausible,
    count_orders,
    naive_scatter,
    naive_shuffle,
)
from zindex.errors import ConfigError, PlanError, VerificationError
from zindex.indexing import uniform_shuffle as module
from zindex.indexing.uniform_shuffle import (
    MAX_SAMPLES,
    UniformShuffle,
    locate_pieces,
    permute_all,
    read_positions,
    remove_scratch,
    scatter_part,
    shuffle_pieces,
    start_buckets,
)
from zindex.io import local
from zindex.kernels.scatter_shuffle import SCATTER_VERSION
from zindex.plan.keys import Stage

SMALL = UniformShuffle(100, 7, "train", 30)  # parts of 30, 30, 30 and 10


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let buckets of a few samples have several blocks in their files."""
    monkeypatch.setattr(module, "_BLOCK_LENGTH", 8)


def scatter_all(order: UniformShuffle, folder: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.stack([scatter_part(order, folder, part) for part in range(order.num_parts)])


def write_all(order: UniformShuffle, folder: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Run every task and return where buckets begin."""
    counts = scatter_all(order, folder)
    for bucket in range(order.num_parts):
        shuffle_pieces(order, folder, bucket, locate_pieces(counts, bucket))
    return start_buckets(counts)


def read_all(order: UniformShuffle, folder: Path) -> np.ndarray[Any, Any]:
    """Run every task that is left and return the order that the files hold."""
    starts = write_all(order, folder)
    return read_positions(order, folder, starts, 0, order.num_samples)


def find_refusal(order: UniformShuffle, folder: Path) -> str | None:
    """Return what is said against the files, or None if they are taken or mended."""
    try:
        read_all(order, folder)
    except VerificationError as error:
        return str(error)
    return None


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("num_samples", "part_length", "num_parts", "dtype"),
    [
        (0, 2**22, 1, np.uint32),  # one part, which is empty
        (1, 2**22, 1, np.uint32),
        (2**22, 2**22, 1, np.uint32),  # a single part, no need of files
        (2**22 + 1, 2**22, 2, np.uint32),
        (10**8, 2**22, 24, np.uint32),
        (2**32, 2**22, 1024, np.uint32),  # the last id is 2**32 - 1
        (2**32 + 1, 2**22, 1025, np.uint64),
        (2**34, 2**22, 4096, np.uint64),  # as many parts as there may be
        (2**34 + 1, 2**23, 2049, np.uint64),
        (10**12, 2**28, 3726, np.uint64),
        (MAX_SAMPLES, 2**31, 4096, np.uint64),  # a bucket has at most 2**32 samples
    ],
)
def test_parts_follow_from_the_number_of_samples(
    num_samples: int, part_length: int, num_parts: int, dtype: type
) -> None:
    order = UniformShuffle(num_samples, 1, "train")
    assert (order.part_length, order.num_parts, order.dtype) == (part_length, num_parts, dtype)
    assert order.part_bounds(0) == (0, min(part_length, num_samples))
    assert order.part_bounds(num_parts - 1) == ((num_parts - 1) * part_length, num_samples)


@pytest.mark.parametrize(
    ("num_samples", "min_part_length"),
    [(2, 1), (3, 1), (4, 1), (4, 2), (5, 2), (5, 4), (6, 2), (6, 4), (6, 6)],
)
def test_all_orders_are_equally_likely(num_samples: int, min_part_length: int) -> None:
    trials = 8000 if num_samples == 6 else 2000  # at least eleven for each order
    orders = [
        permute_all(UniformShuffle(num_samples, seed, "train", min_part_length))
        for seed in range(trials)
    ]
    counts = count_orders(np.array(orders, np.int64))
    assert chi_square_is_plausible(counts, trials / math.factorial(num_samples))


def restless_shuffle(values: np.ndarray[Any, Any], key: np.ndarray[Any, Any]) -> None:
    """Like Sattolo's: no value may stay where it is."""
    for position in range(len(values) - 1, 0, -1):
        target = int(key[position % 4]) % position
        values[[position, target]] = values[[target, position]]


def sticky_scatter(
    start: int, size: int, num_buckets: int, key: np.ndarray[Any, Any], out: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """All samples of a part are in one bucket: uniform choices, but not independent."""
    out[:] = np.arange(start, start + size)
    return size * (np.arange(num_buckets) == int(key[0]) % num_buckets)


@pytest.mark.parametrize(
    ("name", "biased"), [("shuffle", restless_shuffle), ("scatter", sticky_scatter)]
)
def test_bias_in_either_step_would_be_noticed(
    name: str, biased: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.kernels, name, biased)
    trials = 8000
    orders = [permute_all(UniformShuffle(5, seed, "train", 4)) for seed in range(trials)]
    assert not chi_square_is_plausible(count_orders(np.array(orders, np.int64)), trials / 120)


def test_pairs_of_samples_are_anywhere() -> None:
    size, bins, trials = 1000, 10, 4000
    orders = [permute_all(UniformShuffle(size, seed, "valid", 300)) for seed in range(trials)]
    places = np.argsort(np.array(orders), axis=1)
    expected = np.full((bins, bins), (size / bins) ** 2)
    expected -= np.eye(bins) * size / bins  # two samples never share a position
    expected *= trials / (size * (size - 1))
    for first, second in ((0, 1), (0, 999), (299, 300), (998, 999), (123, 877)):
        bin_of = places[:, [first, second]] * bins // size
        counts = np.bincount(bin_of[:, 0] * bins + bin_of[:, 1], minlength=bins**2)
        assert chi_square_is_plausible(counts, expected.ravel())


@given(num_samples=st.integers(1, 300), seed=st.integers(0, 99), part_length=st.integers(20, 99))
def test_orders_equal_the_definition(num_samples: int, seed: int, part_length: int) -> None:
    def make_key(stage: int, part: int) -> Any:
        return np.random.SeedSequence(seed, spawn_key=(stage, 1, part)).generate_state(4, np.uint64)

    starts = range(0, num_samples, part_length)
    buckets: list[list[int]] = [[] for _ in starts]
    for part, start in enumerate(starts):
        size = min(part_length, num_samples - start)
        pieces, _ = naive_scatter(start, size, len(starts), make_key(4, part))
        for bucket, piece in zip(buckets, pieces, strict=True):
            bucket.extend(piece)
    for number, bucket in enumerate(buckets):
        naive_shuffle(bucket, make_key(5, number))
    order = permute_all(UniformShuffle(num_samples, seed, "valid", part_length))
    assert order.tolist() == [*itertools.chain.from_iterable(buckets)]


@settings(max_examples=30)
@given(
    num_samples=st.integers(0, 400),
    seed=st.integers(0, 99),
    parts=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    block_length=st.integers(1, 60),
)
def test_files_hold_the_order_however_it_is_read(
    num_samples: int, seed: int, parts: int, cuts: list[int], block_length: int
) -> None:
    order = UniformShuffle(num_samples, seed, "test", num_samples // parts + 1)
    expected = permute_all(order)
    bounds = sorted({0, num_samples, *(cut % (num_samples + 1) for cut in cuts)})
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_LENGTH", block_length)
        folder = Path(name)
        starts = write_all(order, folder)
        runs = [
            read_positions(order, folder, starts, start, stop)
            for start, stop in [(0, 0), *itertools.pairwise(bounds), (num_samples, num_samples)]
        ]
        assert np.array_equal(np.concatenate(runs), expected)
        assert {run.dtype for run in runs} == {order.dtype}


def test_every_range_of_positions_reads_alike(tmp_path: Path, short_blocks: None) -> None:
    order = UniformShuffle(40, 3, "train", 9)
    expected, starts = permute_all(order), write_all(order, tmp_path)
    for start, stop in itertools.combinations_with_replacement(range(41), 2):
        got = read_positions(order, tmp_path, starts, start, stop)
        assert np.array_equal(got, expected[start:stop]), (start, stop)


def test_full_size_parts_and_blocks(tmp_path: Path) -> None:
    order = UniformShuffle(2**22 + 2**21, 5, "train")
    expected, starts = permute_all(order), write_all(order, tmp_path)
    assert order.num_parts == 2
    assert np.array_equal(np.sort(expected), np.arange(order.num_samples))
    for start, stop in ((0, 2**22), (2**22, order.num_samples), (2**21 + 5, 2**21 + 6)):
        got = read_positions(order, tmp_path, starts, start, stop)
        assert np.array_equal(got, expected[start:stop])


def test_ids_beyond_32_bits(tmp_path: Path) -> None:
    """The last part of 2**32 + 1 samples holds one of them, the one before it is whole."""
    order = UniformShuffle(2**32 + 1, 5, "train")
    counts = scatter_part(order, tmp_path, 1024)
    assert (counts.sum(), counts.size) == (1, 1025)
    samples, counts = module._scatter(order, 1023)
    assert samples.dtype == np.uint64
    assert np.array_equal(np.sort(samples), np.arange(2**32 - 2**22, 2**32))
    # A bucket of nothing but that one sample.
    bucket = int(scatter_part(order, tmp_path, 1024).argmax())
    stored = order.part_path(tmp_path, 1024).read_bytes()
    assert stored[bucket * 4 : bucket * 4 + 8] == (2**32).to_bytes(8, "little")


def test_tasks_may_run_in_any_order_and_twice(
    tmp_path: Path, short_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = scatter_all(SMALL, tmp_path / "a")
    backwards = [scatter_part(SMALL, tmp_path / "b", part) for part in (3, 2, 1, 0)][::-1]
    assert np.array_equal(counts, backwards)
    for bucket in range(4):
        shuffle_pieces(SMALL, tmp_path / "a", bucket, locate_pieces(counts, bucket))
        shuffle_pieces(SMALL, tmp_path / "b", 3 - bucket, locate_pieces(counts, 3 - bucket))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert len(contents(tmp_path / "a")) == 8
    before = {path: path.stat() for path in (tmp_path / "a").iterdir()}
    monkeypatch.delattr(module.kernels, "scatter")
    monkeypatch.delattr(module.kernels, "shuffle")
    write_all(SMALL, tmp_path / "a")  # computes nothing
    assert {path: path.stat() for path in (tmp_path / "a").iterdir()} == before


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("survived", range(8))
def test_killed_between_two_files_and_resumed(
    survived: int, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies just before or just after its next file has its name."""
    write_all(SMALL, tmp_path / "whole")
    write_once, calls = local.write_once, iter(range(99))

    def die(path: Path, buffers: Any, **options: Any) -> bool:
        if next(calls) == survived:
            path.with_name(f"{path.name}.0.partial").write_bytes(b"half")
            if written:
                write_once(path, buffers, **options)
            raise KeyboardInterrupt
        return write_once(path, buffers, **options)

    folder = tmp_path / "killed"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(local, "write_once", die)
        with pytest.raises(KeyboardInterrupt):
            write_all(SMALL, folder)
    kept = {path: path.stat().st_ino for path in folder.iterdir()}
    assert len(kept) == survived + 1 + written
    assert np.array_equal(read_all(SMALL, folder), permute_all(SMALL))
    whole = contents(tmp_path / "whole")
    assert {name: contents(folder)[name] for name in whole} == whole
    assert all(path.stat().st_ino == inode for path, inode in kept.items())


def test_any_changed_byte_is_mended_or_refused(tmp_path: Path, short_blocks: None) -> None:
    """No byte of any file can change the order."""
    order = UniformShuffle(40, 7, "train", 15)
    expected = permute_all(order)
    counts = scatter_all(order, tmp_path)
    starts = start_buckets(counts)
    refused = mended = 0
    for path in [order.part_path(tmp_path, 1), order.bucket_path(tmp_path, 1)]:
        write_all(order, tmp_path)
        good = path.read_bytes()
        for place in range(len(good)):
            path.write_bytes(flipped(good, place, 1 << place % 8))
            if path == order.part_path(tmp_path, 1):
                for bucket in range(3):
                    order.bucket_path(tmp_path, bucket).unlink(missing_ok=True)
            message = find_refusal(order, tmp_path)
            if message is None:
                mended += 1
            else:
                assert path.name in message
                assert "fails its checksum; remove the file and build again" in message
                refused += 1
                path.unlink()
            assert np.array_equal(read_all(order, tmp_path), expected)
            assert path.read_bytes() == good
    # Bytes of samples and their checksums are refused, those of the footers mended.
    num_blocks = 3 + -(-int(starts[2] - starts[1]) // 8)
    assert refused == (15 + int(starts[2] - starts[1])) * 4 + num_blocks * 4
    assert mended == num_blocks * 8 + 2 * 4


@pytest.mark.parametrize("keep", [0, 1, 50, -1])
def test_a_file_cut_short_is_written_again(keep: int, tmp_path: Path) -> None:
    write_all(SMALL, tmp_path)
    whole = contents(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(whole[path.name][:keep])
    assert np.array_equal(read_all(SMALL, tmp_path), permute_all(SMALL))
    assert contents(tmp_path) == whole


@pytest.mark.parametrize(
    "other",
    [
        UniformShuffle(100, 8, "train", 30),
        UniformShuffle(100, 7, "valid", 30),
        UniformShuffle(100, 7, "train", 29),
        UniformShuffle(99, 7, "train", 30),
    ],
)
def test_files_of_another_order_are_not_taken(other: UniformShuffle, tmp_path: Path) -> None:
    write_all(other, tmp_path)
    assert np.array_equal(read_all(SMALL, tmp_path), permute_all(SMALL))


def test_blocks_of_another_order_are_refused(tmp_path: Path) -> None:
    """Even where sizes agree and no task looked at the file again."""
    other = UniformShuffle(20, 8, "train")
    starts = write_all(other, tmp_path)
    with pytest.raises(VerificationError, match=r"block 0 \(20 samples\) .*bucket-0000"):
        read_positions(UniformShuffle(20, 7, "train"), tmp_path, starts, 0, 20)


def test_missing_and_short_files_are_named(tmp_path: Path) -> None:
    counts = scatter_all(SMALL, tmp_path)
    starts = start_buckets(counts)
    with pytest.raises(
        VerificationError, match=r"bucket-0002.scratch must .* missing; build again"
    ):
        read_positions(SMALL, tmp_path, starts, int(starts[2]), int(starts[2]) + 1)
    SMALL.part_path(tmp_path, 1).unlink()
    with pytest.raises(VerificationError, match=r"part-0001.scratch must hold .* it is missing"):
        shuffle_pieces(SMALL, tmp_path, 0, locate_pieces(counts, 0))
    SMALL.part_path(tmp_path, 1).write_bytes(b"12345")
    with pytest.raises(
        VerificationError,
        match=rf"part-0001.scratch must hold {counts[1, 0] * 4} bytes .* byte 0 on, it is shorter",
    ):
        shuffle_pieces(SMALL, tmp_path, 0, locate_pieces(counts, 0))


def test_removal_leaves_what_is_not_scratch(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    remove_scratch(folder)  # nothing there
    write_all(SMALL, folder)
    (folder / "part-0000.scratch.0a1b.partial").touch()
    (folder / "notes.txt").touch()
    remove_scratch(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (folder / "notes.txt").unlink()
    remove_scratch(folder)
    assert not folder.exists()


def test_keys_are_distinct_and_unlike_other_stages() -> None:
    keys = {
        UniformShuffle(9, seed, split).key(stage, part).tobytes()
        for seed in (0, 1, 2**32, 2**32 + 1)
        for split in ("train", "valid", "test")
        for stage in (Stage.SCATTER, Stage.BUCKET)
        for part in (0, 1, 4095)
    }
    assert len(keys) == 4 * 3 * 2 * 3


def test_the_record_travels() -> None:
    assert pickle.loads(pickle.dumps(SMALL)) == SMALL


def test_invalid_arguments() -> None:
    with pytest.raises(PlanError, match=r"0 to 2\*\*43 samples, got -1"):
        UniformShuffle(-1, 1, "train")
    with pytest.raises(PlanError, match=rf"got {2**43 + 1}; use the keyed shuffle"):
        UniformShuffle(2**43 + 1, 1, "train")
    with pytest.raises(ConfigError, match=r"seed must be a whole number of at least 0, got -3"):
        UniformShuffle(1, -3, "train")
    with pytest.raises(ConfigError, match=r"train, valid, test, got 'dev'"):
        UniformShuffle(1, 3, "dev")


def digest(values: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values, "<u8").tobytes()).hexdigest()


FROZEN = {
    UniformShuffle(
        10, 1234, "train"
    ): "a9602465593bd03ac96bd1945a9fc9bdc118c06619187c1bb84b2af01c2f772a",
    UniformShuffle(
        100_003, 1234, "valid"
    ): "1e1c48128763a4b676179cb49b14165c31df95764e0cf0ebbe9ce69aa355779e",
    UniformShuffle(
        100_003, 1234, "valid", 4096
    ): "02f8bf7b4eec8435d9f104568b3b352de88e9d972a55a1f46c9df435edf3a7f7",
    UniformShuffle(
        20_003, 2**40, "test", 200
    ): "e1b4dfc37644097f34b2635110a46d0d61f4d3bf47f237db3e2da2290d4db612",
}


# Frozen: runs have begun in these orders. A changed digest needs a new SCATTER_VERSION.
@pytest.mark.parametrize("order", FROZEN, ids=str)
def test_the_frozen_orders(order: UniformShuffle) -> None:
    assert SCATTER_VERSION == 1
    assert digest(permute_all(order)) == FROZEN[order]


WHOLE_PARTS = "3ef8f5ab62bd4601b0ab68e5db98b67476850457a65273d8785229b4c02989b0"


def test_the_frozen_order_of_several_whole_parts() -> None:
    assert digest(permute_all(UniformShuffle(10_000_000, 1, "train"))) == WHOLE_PARTS


FILES = "0c3b3c93c1f848e3b860862c18653e9297cbca8e6776ca7ee720902f59e7e739"


def test_the_frozen_files(tmp_path: Path) -> None:
    """Their bytes may change only together with a way not to take the old ones for good."""
    write_all(SMALL, tmp_path)
    joined = b"".join(content for _, content in sorted(contents(tmp_path).items()))
    assert hashlib.sha256(joined).hexdigest() == FILES
