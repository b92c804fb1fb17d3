"""Sample boundaries equal the searchsorted rules however the documents are cut."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.kernels import samples as module
from zindex.kernels.samples import fill_boundaries, gather_lengths

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=40)


def naive_boundaries(lengths, sequence_length, extra_token):
    lengths = np.asarray(lengths, np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) - extra_token
    tokens = np.arange(1, max(total, 0) // sequence_length + 1) * sequence_length
    rows = np.searchsorted(ends, tokens, side="right" if extra_token else "left")
    offsets = tokens - (ends - lengths)[rows]
    return np.concatenate([[[0, 0]], np.stack([rows, offsets], axis=1)])


def cut(size, cuts):
    bounds = sorted({0, size, *(c % (size + 1) for c in cuts)})
    return list(itertools.pairwise(bounds))


def boundaries_by_runs(fill, lengths, sequence_length, extra_token, runs, chunks, dtype):
    """Fill arrays of consecutive boundaries from runs of consecutive documents, like a build."""
    lengths = np.asarray(lengths, np.int32)
    filled = []
    for first, stop in chunks:
        out = np.full((stop - first, 2), -1, dtype)
        next_boundary, tokens = first, 0
        for start, end in runs:
            # A run that ends before this chunk's first boundary holds none of its rows.
            after = tokens + int(lengths[start:end].sum())
            token = next_boundary * sequence_length
            if token < after or (token == after and not extra_token) or next_boundary == 0:
                next_boundary = fill(
                    lengths[start:end], start, tokens, sequence_length, extra_token, out, first,
                    next_boundary,
                )  # fmt: skip
            tokens = after
        assert next_boundary == stop
        filled.append(out)
    return np.concatenate(filled)


@given(
    lengths=LENGTHS,
    sequence_length=st.integers(1, 12),
    extra_token=st.integers(0, 1),
    cuts=st.lists(st.integers(0, 50), max_size=5),
    chunk_cuts=st.lists(st.integers(0, 400), max_size=4),
    dtype=st.sampled_from([np.int32, np.int64]),
    python=st.booleans(),
)
def test_boundaries_equal_the_rules_for_every_cut(
    lengths, sequence_length, extra_token, cuts, chunk_cuts, dtype, python
):
    expected = naive_boundaries(lengths, sequence_length, extra_token)
    fill = fill_boundaries.py_func if python else fill_boundaries
    result = boundaries_by_runs(
        fill, lengths, sequence_length, extra_token, cut(len(lengths), cuts),
        cut(len(expected), chunk_cuts), dtype,
    )  # fmt: skip
    assert np.array_equal(result, expected)
    assert result.dtype == dtype


@pytest.mark.parametrize(
    ("lengths", "extra_token", "expected"),
    [
        ([0, 0, 4, 4], 1, [[0, 0], [3, 0]]),  # row 0 is (0, 0), also before empty documents
        ([4, 0, 0, 5], 1, [[0, 0], [3, 0], [3, 4]]),  # an end at the boundary: the next non-empty
        ([4, 0, 0, 4], 0, [[0, 0], [0, 4], [3, 4]]),  # without extra token: the one that ends
        ([3, 5, 0, 1], 1, [[0, 0], [1, 1], [3, 0]]),
    ],
)
def test_empty_documents(lengths, extra_token, expected):
    assert naive_boundaries(lengths, 4, extra_token).tolist() == expected
    out = np.empty((len(expected), 2), np.int32)
    end = fill_boundaries(np.array(lengths, np.int32), 0, 0, 4, extra_token, out, 0, 0)
    assert end == len(expected)
    assert out.tolist() == expected


def test_positions_beyond_32_bits_are_exact():
    out = np.empty((2, 2), np.int64)
    row, token = 5 * 2**30, 3 * 2**40
    lengths = np.array([1, 7, 6], np.int32)
    boundary = token // 4 + 1
    end = fill_boundaries(lengths, row, token, 4, 1, out, boundary, boundary)
    assert end == boundary + 2
    assert out.tolist() == [[row + 1, 3], [row + 2, 0]]


@given(
    lengths=LENGTHS,
    picks=st.lists(st.integers(0, 1000), max_size=50),
    base=st.sampled_from([0, 7, 2**30]),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_gathers_equal_indexing(lengths, picks, base, dtype):
    lengths = np.array(lengths, np.int32)
    documents = (np.array(picks, np.int64) % len(lengths) + base).astype(dtype)
    expected = lengths[documents - base]
    out, python_out = np.empty(len(picks), np.int32), np.empty(len(picks), np.int32)
    gather_lengths(lengths, documents, base, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "prefetch", lambda array, index: None)
        gather_lengths.py_func(lengths, documents, base, python_out)
    assert np.array_equal(out, expected)
    assert np.array_equal(python_out, expected)
