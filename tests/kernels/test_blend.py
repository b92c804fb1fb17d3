"""The greedy blend equals its definition from any state, and does not depend on cuts."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.kernels import _greedy
from zindex.kernels.blend import MAX_POSITION, advance_blend, blend_range, guess_counts


def naive_blend(weights, counts, start, length, sizes=None):
    """Draw as the definition says, in Python floats: two roundings, the lowest index of equals."""
    weights, counts = weights.tolist(), counts.tolist()
    draws = []
    for position in range(start, start + length):
        errors = [
            w * float(max(position, 1)) - float(c) for w, c in zip(weights, counts, strict=True)
        ]
        open_ = [d for d in range(len(weights)) if sizes is None or counts[d] < sizes[d]]
        best = max(open_, key=errors.__getitem__)
        draws.append((best, counts[best]))
        counts[best] += 1
    return draws, counts


def draw(weights, counts, start, length, sizes=None, dtypes=(np.int16, np.int64)):
    """Draw a range from a copy of the counts; return draws and counts."""
    counts = counts.copy()
    dataset, sample = np.empty(length, dtypes[0]), np.empty(length, dtypes[1])
    blend_range(weights if sizes is None else sizes, counts, start, dataset, sample)
    return dataset, sample, counts


def assert_as_defined(weights, counts, start, length, sizes=None):
    draws, after = naive_blend(weights, counts, start, length, sizes)
    dataset, sample, ours = draw(weights, counts, start, length, sizes)
    assert list(zip(dataset.tolist(), sample.tolist(), strict=True)) == draws
    assert ours.tolist() == after
    assert np.array_equal(ours - counts, np.bincount(dataset, minlength=counts.size))


def zeros(datasets):
    return np.zeros(datasets, np.int64)


def normalised(*weights):
    return np.array(weights, np.float64) / np.sum(weights)


def make_weights(kind, datasets, seed):
    """Give weights of one of the shapes that blends have."""
    rng = np.random.default_rng(seed)
    weights = {
        "uniform": lambda: rng.random(datasets) + 1e-9,
        "heavy": lambda: rng.pareto(1.0, datasets) + 1e-6,
        "equal": lambda: np.ones(datasets),
        "tied": lambda: rng.integers(1, 8, datasets),
        "near": lambda: 1.0 + 1e-9 * rng.random(datasets),
        "nearest": lambda: 1.0 + 2.0**-52 * rng.integers(0, 99, datasets),
        "giant": lambda: np.append(rng.random(datasets - 1) + 1e-3, 999.0 * datasets),
    }[kind]()
    return weights / weights.sum()


KINDS = ["uniform", "heavy", "equal", "tied", "near", "nearest", "giant"]

# Greedy draws of Megatron Core (megatron.md 2.13 and 2.23). A fused multiply-subtract would draw
# otherwise in the fourth and fifth.
GOLDEN = [
    ((0.5, 0.25, 0.25), "0 1 2 0 0 1 2 0 0 1 2 0"),
    ((0.6, 0.3, 0.1), "0 1 0 2 0 1 0 0 1 0 0 1"),
    ((1, 1, 1), "0 1 2 0 1 2 0 1 2"),
    ((1, 4), "1 0 1 1 1 0 1 1 1"),
    ((3, 1, 3), "0 2 1 0 2 0 2"),
]


@pytest.mark.parametrize(("weights", "expected"), GOLDEN)
def test_the_orders_that_megatron_draws(weights, expected):
    draws = [int(word) for word in expected.split()]
    dataset, _, _ = draw(normalised(*weights), zeros(len(weights)), 0, len(draws))
    assert dataset.tolist() == draws


def test_the_exhaustive_order_that_megatron_draws():
    sizes = np.array([3, 1, 4])
    dataset, sample, counts = draw(None, zeros(3), 0, 8, sizes)
    assert dataset.tolist() == [2, 0, 1, 2, 0, 2, 0, 2]
    assert sample.tolist() == [0, 0, 0, 1, 1, 2, 2, 3]
    assert counts.tolist() == [3, 1, 4]


INSPECT = """
import numpy as np
from zindex.kernels import _greedy, blend
weights, counts = np.array([0.2, 0.8]), np.zeros(2, np.int64)
blend.blend_range(weights, counts, 0, np.empty(9, np.int16), np.empty(9, np.int64))
(assembly,) = _greedy.run_blend.inspect_asm().values()
assert len(assembly) > 1000
assert not [op for op in ("vfmadd", "vfmsub", "vfnmadd", "fmsub\\t") if op in assembly]
"""


def test_no_product_is_fused_with_its_difference(tmp_path):
    # Numba shows no code that another process has compiled.
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", INSPECT], check=True, env=environment)


STATES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=9)


@given(states=STATES, start=st.sampled_from([0, 1, 17, 10**6, 10**9, 10**12, 10**15]))
@example(states=[(1, 0)] * 5, start=0)
@example(states=[(2, 1), (2, 2), (2, 1), (3, 0)], start=5)
def test_any_state_at_any_position_draws_as_defined(states, start):
    weights = normalised(*(weight for weight, _ in states))
    counts = np.array([count for _, count in states])
    assert_as_defined(weights, counts, start, 70)
    if start:
        assert_as_defined(weights, guess_counts(weights, start) + counts, start, 70)


@given(states=STATES, start=st.integers(0, 50))
def test_any_state_of_an_exhaustive_blend_draws_as_defined(states, start):
    sizes = np.array([3 * weight for weight, _ in states])
    counts = np.array([min(count, 3 * weight) for weight, count in states])
    left = int((sizes - counts).sum())
    weights = sizes / float(sizes.sum())
    assert_as_defined(weights, counts, start, left, sizes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("datasets", "start"), [(60, 0), (150, 0), (150, 10**9), (300, 10**12)])
def test_many_datasets_draw_as_defined(kind, datasets, start):
    weights = make_weights(kind, datasets, datasets)
    assert_as_defined(weights, guess_counts(weights, start), start, 1500)


@pytest.mark.parametrize("kind", KINDS)
def test_states_far_from_any_greedy_one_draw_as_defined(kind):
    weights = make_weights(kind, 200, 3)
    rng = np.random.default_rng(4)
    for counts in (zeros(200), rng.integers(0, 50, 200), rng.integers(0, 10**6, 200)):
        assert_as_defined(weights, counts, 2000, 600)


def test_weights_that_do_not_sum_to_one_draw_as_defined():
    weights = make_weights("heavy", 200, 5)
    for factor in (0.01, 0.5, 1.0 / weights.max()):
        assert_as_defined(weights * factor, zeros(200), 0, 1500)


@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_datasets_draw_as_defined(kind):
    weights = make_weights(kind, 5000, 6)
    assert_as_defined(weights, guess_counts(weights, 10**7), 10**7, 100)


@given(
    kind=st.sampled_from(KINDS),
    datasets=st.integers(2, 400),
    cuts=st.lists(st.integers(0, 3000), max_size=5),
    exhaustive=st.booleans(),
)
def test_draws_do_not_depend_on_how_positions_are_cut(kind, datasets, cuts, exhaustive):
    weights = make_weights(kind, datasets, datasets)
    sizes = np.ceil(weights * 3000).astype(np.int64) if exhaustive else None
    whole = draw(weights, zeros(datasets), 0, 3000, sizes)
    counts, pieces = zeros(datasets), []
    advanced = zeros(datasets)
    bounds = sorted({0, 3000, *cuts})
    for first, stop in itertools.pairwise(bounds):
        dataset, sample, counts = draw(weights, counts, first, stop - first, sizes)
        pieces.append((dataset, sample))
        advance_blend(weights if sizes is None else sizes, advanced, first, stop)
        assert np.array_equal(advanced, counts)
    assert np.array_equal(np.concatenate([piece[0] for piece in pieces]), whole[0])
    assert np.array_equal(np.concatenate([piece[1] for piece in pieces]), whole[1])
    assert np.array_equal(counts, whole[2])


@pytest.mark.parametrize(
    "dtypes", [(np.int16, np.int32), (np.int32, np.int32), (np.int32, np.int64)]
)
def test_every_dtype_holds_the_same_draws(dtypes):
    weights = make_weights("heavy", 30, 1)
    expected, ours = (
        draw(weights, zeros(30), 0, 500, None, d) for d in ((np.int16, np.int64), dtypes)
    )
    assert ours[0].dtype == dtypes[0]
    assert all(np.array_equal(*pair) for pair in zip(expected, ours, strict=True))


@given(
    kind=st.sampled_from(KINDS),
    datasets=st.integers(2, 60),
    position=st.integers(0, MAX_POSITION),
    factor=st.sampled_from([1.0, 0.3]),
)
def test_guesses_sum_to_their_position(kind, datasets, position, factor):
    weights = make_weights(kind, datasets, datasets)
    counts = guess_counts(weights * factor, position)
    assert int(counts.sum()) == position
    assert int(counts.min()) >= 0
    if factor == 1.0:
        assert np.abs(counts - weights * position).max() <= 1 + position * 2.0**-50


@given(sizes=st.lists(st.integers(1, 10**12), min_size=1, max_size=20), share=st.floats(0, 1))
@example(sizes=[3, 1, 4], share=1.0)
def test_exhaustive_guesses_sum_to_their_position(sizes, share):
    position = int(sum(sizes) * share)
    counts = guess_counts(np.array(sizes), position)
    assert int(counts.sum()) == position
    for count, size in zip(counts.tolist(), sizes, strict=True):
        assert 0 <= count <= size
        assert abs(count * sum(sizes) - size * position) <= sum(sizes)


@pytest.mark.parametrize("start", [10**9, 10**12])
@pytest.mark.parametrize("kind", ["uniform", "heavy", "equal", "tied"])
def test_guessed_chunks_meet_at_large_positions(kind, start):
    weights = make_weights(kind, 50, 8)
    ends = []
    for chunk in (0, 1):
        first = start + chunk * 20_000
        counts = guess_counts(weights, first - 2**14)
        advance_blend(weights, counts, first - 2**14, first)
        ends.append(counts.copy())
        advance_blend(weights, counts, first, first + 20_000)
        ends.append(counts)
    assert np.array_equal(ends[1], ends[2])


def to_bits(mask):
    return sum(1 << lane for lane in np.flatnonzero(mask).tolist())


def to_mask(bits, width):
    return np.array([bool(bits >> lane & 1) for lane in range(width)])


def draw_largest(error, weight, count, after):
    top = error.max()
    count = count + (error == top)
    return top, to_bits(error == top), weight * after - count, count


def store_lanes(array, at, lanes):
    array[at : at + lanes.size] = lanes


LANES = {
    "lend": lambda arrays: arrays,
    "load_lanes": lambda array, at: array[at : at + _greedy.WIDTH].copy(),
    "find_errors": lambda weight, count, now: weight * now - count,
    "draw_largest": draw_largest,
    "set_lane": lambda lanes, lane, value: np.where(np.arange(lanes.size) == lane, value, lanes),
    "store_lanes": store_lanes,
    "find_reaching": lambda lanes, bound: to_bits(lanes >= bound),
    "raise_lanes": lambda lanes, others, bits: np.where(
        to_mask(bits, lanes.size), lanes, np.maximum(lanes, others)
    ),
    "find_largest": np.max,
    "count_bits": int.bit_count,
    "find_bit": lambda bits: (bits & -bits).bit_length() - 1,
}


def test_the_python_originals_equal_the_kernels(monkeypatch):
    cases = [
        (make_weights("uniform", 40, 2), zeros(40), 0, None),
        (make_weights("uniform", 400, 2), zeros(400), 0, None),
        (make_weights("nearest", 400, 2), zeros(400), 0, None),
        (make_weights("tied", 40, 2), np.arange(40), 900, None),
        (make_weights("uniform", 7, 2), zeros(7), 0, np.array([9, 2, 2, 7, 5, 30, 11])),
    ]
    for name in ("_find_line", "_choose_bound", "_draw_line", "_open", "_close", "_turn",
                 "_draw_one", "_draw_window"):  # fmt: skip
        monkeypatch.setattr(_greedy, name, getattr(_greedy, name).py_func)
    for name, function in LANES.items():
        monkeypatch.setattr(_greedy, name, function)
    monkeypatch.setattr(_greedy, "run_blend", _greedy.run_blend.py_func)
    for weights, counts, start, sizes in cases:
        weights = weights if sizes is None else sizes / float(sizes.sum())
        assert_as_defined(weights, counts, start, 60, sizes)


WEIGHTS = np.array([0.25, 0.75])
SIZES = np.array([3, 4])
ROOM = (np.empty(3, np.int16), np.empty(3, np.int64))


@pytest.mark.parametrize(
    ("message", "weights", "counts", "start", "outputs"),
    [
        (r"one entry for each .* got shapes \(2,\) and \(3,\)", WEIGHTS, zeros(3), 0, ROOM),
        (r"1 to \d+ datasets, got shapes \(0,\)", WEIGHTS[:0], zeros(0), 0, ROOM),
        (r"\(0, 1\], got 0.0 for dataset 1", np.array([1.0, 0.0]), zeros(2), 0, ROOM),
        (r"got -0.5 for dataset 0", np.array([-0.5, 1.0]), zeros(2), 0, ROOM),
        (r"got nan for dataset 1", np.array([1.0, np.nan]), zeros(2), 0, ROOM),
        (r"got inf for dataset 1", np.array([1.0, np.inf]), zeros(2), 0, ROOM),
        (r"of float64 or sizes of int64, got float32", np.float32(WEIGHTS), zeros(2), 0, ROOM),
        (r"counts must be >= 0, got -1", WEIGHTS, np.array([0, -1]), 0, ROOM),
        (r"counts must be int64, got float64", WEIGHTS, np.zeros(2), 0, ROOM),
        (r"positions must lie .* got \[-1, 2\)", WEIGHTS, zeros(2), -1, ROOM),
        (r"got \[9007199254740992, 9007199254740995\)", WEIGHTS, zeros(2), 2**53, ROOM),
        (r"shapes \(3,\) and \(2,\)", WEIGHTS, zeros(2), 0, (ROOM[0], ROOM[1][:2])),
        (r"int16 or int32, got int8", WEIGHTS, zeros(2), 0, (ROOM[0].astype(np.int8), ROOM[1])),
        (r"int32 or int64, got int16", WEIGHTS, zeros(2), 0, (ROOM[0], ROOM[0])),
        (r"int16 must hold .* got 40000 datasets", np.full(40000, 0.1), zeros(40000), 0, ROOM),
    ],
)  # fmt: skip
def test_invalid_weighted_blends(message, weights, counts, start, outputs):
    with pytest.raises(PlanError, match=message):
        blend_range(weights, counts, start, *outputs)


@pytest.mark.parametrize(
    ("message", "sizes", "counts"),
    [
        (r"sizes must be >= 1, got 0 for dataset 1", np.array([3, 0]), zeros(2)),
        (r"not exceed sizes, got 5 of 4 for dataset 1", SIZES, np.array([0, 5])),
        (r"got 2 for positions \[1, 4\)", SIZES, np.array([2, 3])),
        (r"got shapes \(2,\) and \(1,\)", SIZES, zeros(1)),
    ],
)
def test_invalid_exhaustive_blends(message, sizes, counts):
    with pytest.raises(PlanError, match=message):
        blend_range(sizes, counts, 1, *ROOM)


def test_samples_that_leave_their_dtype_are_refused():
    counts = np.array([2**31 - 2, 2**31 + 10])
    with pytest.raises(PlanError, match="int32 must hold every sample's number, got 2147483657"):
        blend_range(WEIGHTS, counts, 0, ROOM[0], np.empty(3, np.int32))


def test_guesses_outside_the_blend_are_refused():
    with pytest.raises(PlanError, match=r"got \[0, -1\)"):
        guess_counts(WEIGHTS, -1)
    with pytest.raises(PlanError, match=r"got 7 for positions \[0, 8\)"):
        guess_counts(SIZES, 8)


def test_empty_ranges_leave_the_counts():
    counts = np.array([1, 2])
    advance_blend(WEIGHTS, counts, 5, 5)
    blend_range(WEIGHTS, counts, 5, ROOM[0][:0], ROOM[1][:0])
    assert counts.tolist() == [1, 2]
