"""Sets as bits: every kernel against sets of Python, compiled and not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from zindex.kernels import bitset
from zindex.kernels.bitset import BLOCK_BITS, BLOCK_WORDS

Way = Callable[[Any], Any]


@pytest.fixture(params=["compiled", "python"])
def way(request: pytest.FixtureRequest) -> Way:
    """Choose how a kernel is run."""
    if request.param == "compiled":
        return lambda kernel: kernel
    return lambda kernel: kernel.py_func


def pack(numbers: set[int], num_words: int) -> np.ndarray:
    words = np.zeros(num_words, np.uint64)
    for number in numbers:
        words[number // 64] |= np.uint64(1) << np.uint64(number % 64)
    return words


def unpack(words: np.ndarray) -> set[int]:
    return {
        64 * i + bit for i, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1
    }


def draw(seed: int, size: int, share: float) -> set[int]:
    rng = np.random.default_rng(seed)
    return set(np.flatnonzero(rng.random(size) < share).tolist())


def test_mark_counts_what_is_new(way: Way) -> None:
    words = np.zeros(3, np.uint64)
    starts = np.array([0, 2])
    sets, numbers = np.array([0, 1, 0, 0], np.int16), np.array([70, 3, 0, 70], np.int32)
    assert way(bitset.mark)(sets, numbers, starts, words) == 3
    assert unpack(words) == {70, 0, 128 + 3}
    assert way(bitset.mark)(sets, numbers, starts, words) == 0


@pytest.mark.parametrize("first", [0, 5])
def test_images_of_used_numbers_are_marked(way: Way, first: int) -> None:
    used = draw(1, 90, 0.5)
    images = np.random.default_rng(2).permutation(100).astype(np.uint32)
    out = np.zeros(2, np.uint64)
    numbers = set(range(first)) | {first + bit for bit in used}
    expected = {int(images[number]) for number in numbers if 2 <= number < 98}
    found = way(bitset.mark_images)(images[2:98], 2, first, pack(used, 2), 90, out)
    assert found == len(expected)
    assert unpack(out) == expected


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_draws_go_to_unused_numbers(way: Way, share: float) -> None:
    used, drawn = draw(3, 100, 0.6), draw(4, 80, share)
    unused = [number for number in range(300) if number not in used]
    chosen = {unused[k] for k in drawn}
    out = np.zeros(5, np.uint64)
    shifted = {k + 7 for k in drawn}
    with np.errstate(over="ignore"):
        count = way(bitset.deposit)(pack(shifted, 2), 7, 80, pack(used, 2), 100, out, 300)
    assert count == len(used | chosen)
    assert unpack(out) == used | chosen


@pytest.mark.parametrize(
    ("numbers", "start", "num_bits", "expected"),
    [
        (set(), 0, 100, (0, 0)),
        (set(range(200)), 0, 200, (200, 200)),
        (set(range(70)) | {150}, 0, 200, (70, 151)),
        (set(range(5, 70)) | {150}, 5, 195, (65, 146)),
        ({3}, 0, 64, (0, 4)),
        (set(), 3, 0, (0, 0)),
        # Whole words are passed over, but only where they lie within the bits.
        (set(range(64, 256)), 64, 100, (100, 100)),
        ({199}, 0, 192, (0, 0)),
    ],
)
def test_ends_of_a_set(
    way: Way, numbers: set[int], start: int, num_bits: int, expected: tuple[int, int]
) -> None:
    assert way(bitset.find_ends)(pack(numbers, 4), start, num_bits) == expected


@pytest.mark.parametrize(("start", "num_bits"), [(0, 250), (64, 64), (3, 130), (63, 1), (9, 0)])
def test_bits_are_copied(way: Way, start: int, num_bits: int) -> None:
    numbers = draw(5, 256, 0.5)
    out = np.full(5, 7, np.uint64)
    with np.errstate(over="ignore"):
        way(bitset.copy_bits)(pack(numbers, 4), start, num_bits, out)
    assert unpack(out) == {n - start for n in numbers if start <= n < start + num_bits}


def test_the_kth_unused_number_is_found(way: Way) -> None:
    sizes, firsts = [2 * BLOCK_BITS + 100, 0, 70], [4, 9, 0]
    sets = [draw(6, sizes[0], 0.7), set(), draw(7, sizes[2], 0.5)]
    blocks = [-(-size // BLOCK_BITS) for size in sizes]
    starts = np.concatenate([[0], np.cumsum(blocks)])
    words = [
        pack(numbers, count * BLOCK_WORDS) for numbers, count in zip(sets, blocks, strict=True)
    ]
    counts = [np.empty(count, np.int64) for count in blocks]
    with np.errstate(over="ignore"):
        num_unused = [
            way(bitset.count_unused)(*args) for args in zip(words, sizes, counts, strict=True)
        ]
    expected: list[tuple[int, int, int]] = []
    for i, numbers in enumerate(sets):
        unused = [firsts[i] + bit for bit in range(sizes[i]) if bit not in numbers]
        assert num_unused[i] == len(unused)
        unused += range(firsts[i] + sizes[i], firsts[i] + sizes[i] + 9)
        step = 37 if len(unused) > 1000 else 1
        expected += [(i, k, unused[k]) for k in [*range(0, len(unused), step), len(unused) - 1]]
    which, numbers_k, wanted = (np.array(column) for column in zip(*expected, strict=True))
    rest, values = numbers_k.copy(), np.empty(len(wanted), np.int64)
    found = np.empty(len(wanted), np.int64)
    first, stop = np.array(firsts), np.array(firsts) + np.array(sizes)
    way(bitset.find_blocks)(
        which,
        rest,
        first,
        stop,
        np.array(num_unused),
        starts,
        np.concatenate(counts),
        values,
        found,
    )
    inside = found >= 0
    part = values[inside]
    with np.errstate(over="ignore"):
        way(bitset.select_unused)(
            np.concatenate(words).reshape(-1, BLOCK_WORDS), found[inside], rest[inside], part
        )
    values[inside] = part
    assert values.tolist() == wanted.tolist()


def test_digests_do_not_depend_on_order(way: Way) -> None:
    numbers = draw(8, 100, 0.5)
    with np.errstate(over="ignore"):
        used, unused = way(bitset.digest_set)(6, pack(numbers, 2), 100, 3)
        every = np.array([*range(6), *(6 + n for n in numbers)])
        rest = np.array([6 + n for n in range(100) if n not in numbers])
        assert way(bitset.digest_numbers)(every[::-1].copy(), 3) == used
        assert way(bitset.digest_numbers)(rest, 3) == unused
        assert way(bitset.digest_numbers)(rest, 4) != unused
        # What is here and what is not are together all there is.
        whole = way(bitset.digest_numbers)(np.arange(106), 3)
    assert (used + unused) % 2**64 == whole % 2**64


def test_the_mixing_is_splitmix64() -> None:
    # The first output of the reference generator with seed 0, whose salt is that output too.
    first = 0xE220A8397B1DCDAF
    assert bitset.digest_numbers(np.array([first], np.uint64), 0) % 2**64 == first
