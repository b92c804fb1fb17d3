"""The keyed bijection is one at every size, looks random, and never changes its values."""

import hashlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.kernels import bijection as module
from zindex.kernels import numpy_budget
from zindex.kernels.bijection import (
    BIJECTION_VERSION,
    KEY_DTYPE,
    MAX_SIZE,
    NUM_ROUNDS,
    NUM_WORDS,
    permute,
    permute_range,
    unpermute,
)

SIZES = st.one_of(st.integers(1, 300), st.integers(1, MAX_SIZE))
KERNELS = ["_evaluate", "_finish", "_map_range", "_map_each"]


def make_keys(*entropy):
    return np.random.SeedSequence(list(entropy)).generate_state(NUM_ROUNDS, KEY_DTYPE)


def whole(size, keys):
    out = np.empty(size, np.int64)
    permute_range(0, size, keys, 0, out)
    return out


def add_round(target, source, key, radix):
    """Add the round function of one half, or of several as uint64, to the other half."""
    word = (source ^ key) & 0xFFFFFFFF
    word = (word ^ word >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    word = word + (key >> 32) & 0xFFFFFFFF
    word = (word ^ word >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (target + ((word ^ word >> 16) * radix >> 32)) % radix


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_budget, "MAX_VALUES", -1)
        yield


def naive_image(position, size, keys):
    """Evaluate the definition in Python integers."""
    high_radix = math.isqrt(size - 1) + 1
    high_radix += high_radix % 2
    keys = keys if size < 2**16 else keys[:12]
    low_radix = -(-size // high_radix)

    while True:
        high, low = divmod(position, low_radix)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            high = add_round(high, low, even, high_radix)
            low = add_round(low, high, odd, low_radix)
        position = high * low_radix + low
        if position < size:
            return position


def is_bijection(size, keys):
    return np.array_equal(np.bincount(whole(size, keys), minlength=size), np.ones(size, int))


@given(seed=st.integers(0, 99), size=SIZES, picks=st.lists(st.integers(0, MAX_SIZE), max_size=8))
def test_images_equal_the_definition(seed, size, picks):
    keys = make_keys(seed)
    positions = np.array([pick % size for pick in picks], np.int64)
    values = permute(positions, size, keys)
    assert values.tolist() == [naive_image(p, size, keys.tolist()) for p in positions.tolist()]


@given(seed=st.integers(0, 99), size=SIZES, start=st.integers(0, MAX_SIZE))
def test_numpy_maps_the_first_values_alike(seed, size, start):
    keys, start = make_keys(seed), start % size
    positions = np.arange(start, min(size, start + 50))
    expected, ranged = permute(positions, size, keys), np.empty(positions.size, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_budget, "MAX_VALUES", 1 << 62)
        patch.setattr(module, "_map_range", None)
        patch.setattr(module, "_map_each", None)
        mapped = permute(positions, size, keys)
        permute_range(start, size, keys, 7, ranged)
    assert mapped.dtype == expected.dtype
    assert mapped.tolist() == expected.tolist() == (ranged - 7).tolist()


def test_every_size_to_2048_is_a_bijection():
    keys = make_keys(1)
    assert all(is_bijection(size, keys) for size in range(2**11 + 1))


@pytest.mark.parametrize("power", range(1, 12))
def test_sizes_next_to_powers_of_four_are_bijections(power):
    assert all(is_bijection(4**power + step, make_keys(power)) for step in (-1, 0, 1))


def test_a_sample_of_larger_sizes_is_bijective():
    sizes = np.random.default_rng(5).integers(2**11, 2**16, 300)
    assert all(is_bijection(int(size), make_keys(int(size))) for size in sizes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_size_to_65536_is_a_bijection():
    keys = make_keys(2)
    assert all(is_bijection(size, keys) for size in range(2**16 + 1))


@given(
    size=st.one_of(st.integers(1, 5000), st.integers(2**31 - 9, 2**31 - 1)),
    start=st.integers(0, 2**31),
    count=st.integers(0, 3000),
    cuts=st.lists(st.integers(0, 3000), max_size=4),
    offset=st.sampled_from([0, 1, 1000]),
    dtype=st.sampled_from([np.int32, np.uint32, np.int64]),
)
def test_ranges_equal_single_evaluations_however_they_are_cut(
    size, start, count, cuts, offset, dtype
):
    keys = make_keys(3)
    size = min(size, np.iinfo(dtype).max - offset)
    start %= size
    count = min(count, size - start)
    expected = permute(np.arange(start, start + count), size, keys) + offset
    out = np.empty(count, dtype)
    for first, stop in itertools.pairwise(sorted({0, count, *(c % (count + 1) for c in cuts)})):
        permute_range(start + first, size, keys, offset, out[first:stop])
    assert np.array_equal(out, expected)


def store_lanes(array, at, lanes):
    array[at : at + NUM_WORDS] = lanes


LANES = {
    "load_lanes": lambda array, at: array[at : at + NUM_WORDS].astype(np.uint64),
    "store_lanes": store_lanes,
    "add_round": lambda target, source, key, radix: add_round(
        target, source, key, np.uint64(radix)
    ),
}


def test_the_python_originals_equal_the_kernels(monkeypatch):
    keys = make_keys(9)
    expected = {size: whole(size, keys) for size in (1, 2, 3, 10, 83)}
    for name in KERNELS:
        monkeypatch.setattr(module, name, getattr(module, name).py_func)
    for name, function in LANES.items():
        monkeypatch.setattr(module, name, function)
    with np.errstate(over="ignore"):
        for size, values in expected.items():
            assert np.array_equal(whole(size, keys), values)
            assert np.array_equal(permute(np.arange(size), size, keys), values)


def chi_square_is_plausible(counts, expected):
    """Whether a chi-square is within five standard deviations of its mean."""
    degrees = counts.size - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return abs(chi_square - degrees) < 5 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_elements_are_equally_likely(size):
    trials = 20_000
    keys = np.random.default_rng(0).integers(0, 2**64, (trials, NUM_ROUNDS), dtype=np.uint64)
    weights = size ** np.arange(size)
    codes = np.array([whole(size, key) @ weights for key in keys])
    _, counts = np.unique(codes, return_counts=True)
    orders = math.factorial(size)
    assert chi_square_is_plausible(np.pad(counts, (0, orders - counts.size)), trials / orders)


@pytest.mark.parametrize("size", [10**6, 4**10 + 1, 999_983])
def test_windows_of_the_order_are_uniform(size):
    values = whole(size, make_keys(size))
    for window in (64, 1000):
        windows = values[: size // window * window].reshape(-1, window) / size
        means = (windows.mean(axis=1) - 0.5) * math.sqrt(12 * window)
        assert abs(means.mean()) < 0.05 * 5
        assert abs(means.std() - 1) < 5 / math.sqrt(2 * len(means))
        for quantile in (0.1, 0.5, 0.9):
            spread = math.sqrt(quantile * (1 - quantile) * window)
            below = ((windows < quantile).sum(axis=1) - quantile * window) / spread
            assert abs(below.std() - 1) < 5 / math.sqrt(2 * len(below)) + 0.01


@pytest.mark.parametrize("size", [10**6, 4**10 + 1, 1000**2 - 1])
@pytest.mark.parametrize("lag", [1, 2, 1000, 1024])
def test_neighbour_differences_are_uniform(size, lag):
    values = whole(size, make_keys(17))
    differences = (values[lag:] - values[:-lag]) % size
    counts = np.bincount(differences * 1000 // size, minlength=1000)
    assert chi_square_is_plausible(counts, differences.size / 1000)
    assert differences.min() > 0


def test_pairs_of_neighbours_fill_the_square():
    size = 10**6
    values = whole(size, make_keys(23)) * 40 // size
    counts = np.bincount(values[1:] * 40 + values[:-1], minlength=1600)
    assert chi_square_is_plausible(counts, (size - 1) / 1600)


def test_different_keys_give_unrelated_orders():
    size = 10**5
    orders = [whole(size, make_keys(1, epoch)) for epoch in range(5)]
    for first, second in itertools.combinations(orders, 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(size)
        assert (first == second).sum() < 12  # about one by chance
        counts = np.bincount((first - second) % size * 100 // size, minlength=100)
        assert chi_square_is_plausible(counts, size / 100)


GOLDEN = {
    1: "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc",
    2: "4cbbd8ca5215b8d161aec181a74b694f4e24b001d5b081dc0030ed797a8973e0",
    1000: "6efaab20628153e098ba6c0541b6e015f2abfd6d24c73a556ccd3249793d5264",
    65_537: "67c17160b11824d0c54636cd2c102f46100782fd90004532f1440e6840418a75",
    1_000_000: "32303a375dabbb1f21022b55353d30d3629c6de7e4577ed9f356719a8954396a",
}
LARGEST = "10ca3e70d0dfea81907fc03c4caafda8337373f54733b33ed464c8578e988be1"


def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values, "<i8").tobytes()).hexdigest()


# Frozen: stores hold orders made by this map. A changed digest needs a new BIJECTION_VERSION.
@pytest.mark.parametrize("size", GOLDEN)
def test_the_frozen_orders(size):
    assert BIJECTION_VERSION == 1
    assert digest(whole(size, np.arange(NUM_ROUNDS, dtype=np.uint64) * 0x9E3779B9)) == GOLDEN[size]


def test_the_frozen_order_of_the_largest_sizes():
    keys = np.arange(NUM_ROUNDS, dtype=np.uint64) * 0x9E3779B9
    positions = np.arange(1000) * 4_000_000_007
    images = [permute(positions, size, keys) for size in (2**42, 2**53 + 1, 2**62)]
    assert digest(np.concatenate(images)) == LARGEST


def test_out_of_range_requests_are_named():
    keys = make_keys(1)
    with pytest.raises(PlanError, match=r"size in \[0, 2\*\*62\], got -1"):
        permute(np.arange(0), -1, keys)
    with pytest.raises(PlanError, match=rf"got {2**62 + 1}"):
        permute(np.arange(0), 2**62 + 1, keys)
    with pytest.raises(PlanError, match=r"needs 32 round keys of uint64, got shape \(3,\)"):
        permute(np.arange(3), 10, keys[:3])
    with pytest.raises(PlanError, match=r"\[0, 10\), got \[8, 13\)"):
        permute_range(8, 10, keys, 0, np.empty(5, np.int64))
    with pytest.raises(PlanError, match=r"\[0, 10\), got 0 to 10"):
        permute(np.arange(11), 10, keys)
    with pytest.raises(PlanError, match=r"\[0, 10\), got -1 to 3"):
        permute(np.arange(-1, 4), 10, keys)


def test_empty_permutations_are_empty():
    keys = make_keys(1)
    assert permute(np.empty(0, np.int64), 0, keys).size == 0
    assert whole(0, keys).size == 0
    assert whole(1, keys).tolist() == [0]


@given(st.integers(1, MAX_SIZE), st.integers(0, 2**32), st.data())
def test_inverse_undoes_the_permutation(size, seed, data):
    keys = make_keys(seed)
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), np.int64)
    assert np.array_equal(unpermute(permute(positions, size, keys), size, keys), positions)
    assert np.array_equal(permute(unpermute(positions, size, keys), size, keys), positions)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 300, 4**4 + 1])
def test_inverse_of_every_element(size):
    keys = make_keys(size)
    assert np.array_equal(unpermute(whole(size, keys), size, keys), np.arange(size))


def test_inverse_refuses_what_is_no_element():
    with pytest.raises(PlanError, match=r"elements must lie in \[0, 5\), got 0 to 5"):
        unpermute(np.array([0, 5]), 5, make_keys(1))
