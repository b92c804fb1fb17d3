"""Scatter and shuffle equal their definitions, are exactly uniform, and never change."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.kernels import scatter_shuffle as module
from zindex.kernels.scatter_shuffle import (
    KEY_DTYPE,
    KEY_LENGTH,
    draw_targets,
    fill_words,
    scatter,
    shuffle,
)

KERNELS = ["fill_words", "draw_targets", "_shuffle", "_draw_buckets", "_place"]
WORD, HALF = 2**64 - 1, 2**32 - 1


def make_key(*entropy):
    return np.random.SeedSequence(list(entropy)).generate_state(KEY_LENGTH, KEY_DTYPE)


def make_keys(seed, count):
    keys = np.random.default_rng(seed).integers(0, 2**64, (count, KEY_LENGTH), dtype=np.uint64)
    return list(keys)


def naive_words(key):
    """xoshiro256++ in Python integers."""
    s = [int(word) for word in key]
    while True:
        total = s[0] + s[3] & WORD
        yield (total << 23 | total >> 41) + s[0] & WORD
        shifted = s[1] << 17 & WORD
        s[2], s[3] = s[2] ^ s[0], s[3] ^ s[1]
        s[1], s[0] = s[1] ^ s[2], s[0] ^ s[3]
        s[2] ^= shifted
        s[3] = (s[3] << 45 | s[3] >> 19) & WORD


class NaiveDraws:
    """Lemire's bounded draws in Python integers."""

    def __init__(self, key):
        self.halves = (half for word in naive_words(key) for half in (word & HALF, word >> 32))
        self.num_rejected = 0

    def below(self, bound):
        while True:
            product = next(self.halves) * bound
            if product & HALF >= 2**32 % bound:
                return product >> 32
            self.num_rejected += 1


def naive_shuffle(values, key):
    draws = NaiveDraws(key)
    for position in range(len(values) - 1, 0, -1):
        target = draws.below(position + 1)
        values[position], values[target] = values[target], values[position]
    return draws.num_rejected


def naive_scatter(start, size, num_buckets, key):
    draws = NaiveDraws(key)
    buckets = [[] for _ in range(num_buckets)]
    for element in range(start, start + size):
        buckets[draws.below(num_buckets)].append(element)
    return buckets, draws.num_rejected


def check_scatter(start, size, num_buckets, key, dtype=np.uint64):
    """Compare with the definition; return how many draws that rejected."""
    out = np.empty(size, dtype)
    counts = scatter(start, size, num_buckets, key, out)
    buckets, num_rejected = naive_scatter(start, size, num_buckets, key)
    assert counts.tolist() == [len(bucket) for bucket in buckets]
    assert out.tolist() == [*itertools.chain.from_iterable(buckets)]
    assert counts.dtype == np.int64
    return num_rejected


def chi_square_is_plausible(counts, expected):
    """Whether a larger chi-square has a probability below one in a million (Wilson, Hilferty)."""
    degrees = counts.size - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    spread = math.sqrt(2 / (9 * degrees))
    return chi_square < degrees * (1 - spread**2 + 4.75 * spread) ** 3


def count_orders(orders):
    """Count every order of a few elements, given one in each row."""
    size = orders.shape[1]
    _, counts = np.unique(orders @ size ** np.arange(size), return_counts=True)
    return np.pad(counts, (0, math.factorial(size) - counts.size))


def shuffled(size, key):
    values = np.arange(size)
    shuffle(values, key)
    return values


def test_the_words_are_those_of_the_generators_authors():
    words = np.empty(10, np.uint64)
    fill_words(np.array([1, 2, 3, 4], np.uint64), words)
    assert words.tolist() == [
        41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205,
        9973669472204895162, 14011001112246962877, 12406186145184390807, 15849039046786891736,
        10450023813501588000,
    ]  # fmt: skip


def test_the_words_go_on_where_they_stopped():
    key = make_key(1)
    whole, pieces = np.empty(1000, np.uint64), np.empty(1000, np.uint64)
    fill_words(key.copy(), whole)
    state = key.copy()
    for start, stop in ((0, 1), (1, 1), (1, 77), (77, 1000)):
        fill_words(state, pieces[start:stop])
    assert np.array_equal(whole, pieces)
    naive = naive_words(key)
    assert whole.tolist() == [next(naive) for _ in range(1000)]


@given(
    seed=st.integers(0, 99),
    size=st.integers(0, 9000),
    dtype=st.sampled_from([np.int32, np.uint32, np.int64, np.uint64]),
)
@example(0, 4097, np.int64).via("one block of draws")
@example(0, 4098, np.int64).via("one more")
def test_a_shuffle_equals_the_definition(seed, size, dtype):
    key = make_key(seed)
    kept = key.copy()
    values, expected = np.arange(size).astype(dtype), list(range(size))
    shuffle(values, key)
    naive_shuffle(expected, key)
    assert values.tolist() == expected
    assert np.array_equal(key, kept)


@given(
    seed=st.integers(0, 99),
    start=st.integers(0, 2**62),
    size=st.integers(0, 9000),
    num_buckets=st.one_of(st.integers(1, 40), st.integers(1, 2**16)),
)
def test_a_scatter_equals_the_definition(seed, start, size, num_buckets):
    check_scatter(start, size, num_buckets, make_key(seed))
    check_scatter(start % 2**31, size, num_buckets, make_key(seed), np.uint32)
    check_scatter(start % 2**31, size, 1, make_key(seed), np.uint32)


def test_rejected_draws_are_passed_over_by_both_steps():
    size, key = 300_000, make_key(11)
    expected = np.arange(size).tolist()
    assert naive_shuffle(expected, key) > 0
    assert shuffled(size, key).tolist() == expected
    num_buckets = max(range(2**16), key=lambda k: 2**32 % (k + 1)) + 1
    assert sum(check_scatter(0, size, num_buckets, make_key(seed)) for seed in range(3)) > 0


@given(size=st.integers(0, 900), num_words=st.integers(1, 300), seed=st.integers(0, 99))
def test_the_size_of_the_blocks_changes_nothing(size, num_words, seed):
    values, words = np.arange(size), np.empty(num_words, np.uint64)
    module._shuffle(values, make_key(seed), words, np.empty(2 * num_words, np.uint64))
    assert np.array_equal(values, shuffled(size, make_key(seed)))
    buckets, counts = np.empty(size, np.uint16), np.zeros(7, np.int64)
    module._draw_buckets(make_key(seed), words, buckets, counts)
    out = np.empty(size, np.uint32)
    assert np.array_equal(scatter(0, size, 7, make_key(seed), out), counts)
    assert np.array_equal(np.argsort(buckets, kind="stable"), out)


@given(bound=st.integers(2**25, 2**32), pick=st.integers(0, 2**32))
@example(2**32, 0)
@example(2**31 + 1, 2**31)
@example(2**32 - 1, 2**32 - 2)
def test_every_target_has_equally_many_draws(bound, pick):
    """Count the draws of one target, by trying all of them and their neighbours."""
    target = pick % bound
    first, stop = -(-target * 2**32 // bound), -(-(target + 1) * 2**32 // bound)
    draws = range(max(0, first - 2), min(2**32, stop + 2))
    found = np.empty(1, np.uint64)
    counts = [
        draw_targets(np.array([draw], np.uint32), bound, found) and int(found[0]) == target
        for draw in draws
    ]
    assert sum(counts) == 2**32 // bound


def test_targets_end_with_the_last_choice():
    draws, targets = np.full(9, HALF, np.uint32), np.full(9, 99, np.uint64)
    assert draw_targets(draws, 4, targets) == 3
    assert targets.tolist() == [3, 2, 1] + [99] * 6
    assert draw_targets(draws, 1, targets) == 0


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_all_orders_of_a_few_elements_are_equally_likely(size):
    trials = 40_000
    orders = np.array([shuffled(size, key) for key in make_keys(size, trials)])
    assert chi_square_is_plausible(count_orders(orders), trials / math.factorial(size))


@pytest.mark.parametrize("size", [3, 4, 5, 6])
def test_a_slightly_biased_shuffle_would_be_noticed(size):
    """The same test fails for targets that are four-bit words modulo the bound."""
    trials, random = 40_000, np.random.default_rng(size)
    orders = np.tile(np.arange(size), (trials, 1))
    rows = np.arange(trials)
    for position in range(size - 1, 0, -1):
        target = random.integers(0, 16, trials) % (position + 1)
        swapped = orders[rows, target]
        orders[rows, target] = orders[:, position]
        orders[:, position] = swapped
    assert not chi_square_is_plausible(count_orders(orders), trials / math.factorial(size))


def test_pairs_of_elements_stand_anywhere():
    size, bins, trials = 1000, 10, 20_000
    places = np.array([np.argsort(shuffled(size, key)) for key in make_keys(7, trials)])
    expected = np.full((bins, bins), (size / bins) ** 2)
    expected -= np.eye(bins) * size / bins  # two elements never share a position
    expected *= trials / (size * (size - 1))
    for first, second in ((0, 1), (0, 999), (499, 500), (998, 999), (123, 877)):
        bin_of = places[:, [first, second]] * bins // size
        counts = np.bincount(bin_of[:, 0] * bins + bin_of[:, 1], minlength=bins**2)
        assert chi_square_is_plausible(counts, expected.ravel())


@pytest.mark.parametrize("num_buckets", [2, 3, 24, 100])
def test_buckets_are_chosen_evenly_and_independently(num_buckets):
    size = 200_000
    out, of_element = np.empty(size, np.uint32), np.empty(size, np.int64)
    counts = scatter(0, size, num_buckets, make_key(num_buckets), out)
    assert chi_square_is_plausible(counts, size / num_buckets)
    of_element[out] = np.repeat(np.arange(num_buckets), counts)
    for lag in (1, 2, 3, 7):
        pairs = of_element[lag:] * num_buckets + of_element[:-lag]
        counts = np.bincount(pairs, minlength=num_buckets**2)
        assert chi_square_is_plausible(counts, pairs.size / num_buckets**2)


def test_the_python_originals_equal_the_kernels(monkeypatch):
    sizes = (0, 1, 2, 3, 40, 300)
    expected = [shuffled(size, make_key(size)) for size in sizes]
    for name in KERNELS:
        monkeypatch.setattr(module, name, getattr(module, name).py_func)
    monkeypatch.setattr(module, "prefetch", lambda values, target: values[target - target])
    with np.errstate(over="ignore"):
        for size, order in zip(sizes, expected, strict=True):
            assert np.array_equal(shuffled(size, make_key(size)), order)
            if size:
                check_scatter(5, size, 3, make_key(size), np.uint32)


def test_invalid_arguments():
    key, out = make_key(1), np.empty(3, np.uint32)
    with pytest.raises(PlanError, match=r"1 to 65536 buckets, got 0"):
        scatter(0, 3, 0, key, out)
    with pytest.raises(PlanError, match=r"got 65537; use longer parts"):
        scatter(0, 3, 2**16 + 1, key, out)
    with pytest.raises(PlanError, match=r"\[0, 4\) is needed, got shape \(3,\) of uint32"):
        scatter(0, 4, 2, key, out)
    with pytest.raises(PlanError, match=r"\[4294967294, 4294967297\) is needed"):
        scatter(2**32 - 2, 3, 2, key, out)
    assert scatter(2**32 - 3, 3, 1, key, out).tolist() == [3]
    for bad in (key[:3], key.astype(np.int64), np.zeros(4, np.uint64)):
        with pytest.raises(PlanError, match=rf"4 words of uint64, not all 0, .*{bad.dtype}"):
            shuffle(out, bad)
    many = np.broadcast_to(np.zeros(1, np.uint8), 2**32 + 1)
    with pytest.raises(PlanError, match=r"at most 4294967296 elements .* got 4294967297"):
        shuffle(many, key)
