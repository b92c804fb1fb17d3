"""The search of boundaries, and lengths by document."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import WriteCorpus
from zindex.arrays import Int64Array
from zindex.ingest.length_source import open_source
from zindex.maintenance.edits import index_search
from zindex.maintenance.edits.index_search import open_lengths, search_sorted


class Counted:
    """Boundaries that count how many rows are read."""

    def __init__(self, column: Int64Array) -> None:
        self.rows = np.stack([column, column], 1)
        self.shape, self.dtype = self.rows.shape, self.rows.dtype
        self.num_rows = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> Int64Array:
        found: Int64Array = self.rows[rows]
        self.num_rows += len(found)
        return found


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=300),
    st.lists(st.integers(-1, 310), min_size=0, max_size=5),
)
def test_search_is_that_of_numpy(column: list[int], values: list[int]) -> None:
    ascending, wanted = np.sort(np.array(column)), np.array(values, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_search, "_BLOCK_ROWS", 4)
        for most in (0, int(ascending[-1]), 10**6):
            found = search_sorted(np.stack([ascending, ascending], 1), wanted, most)
            assert found.tolist() == np.searchsorted(ascending, wanted).tolist()


@pytest.mark.parametrize(("num_values", "num_rows"), [(1, 530), (100, 40 * 100)])
def test_even_boundaries_are_found_with_few_reads(num_values: int, num_rows: int) -> None:
    rng = np.random.default_rng(0)
    column = np.cumsum(rng.integers(0, 7, 1_000_000))
    for _ in range(20):
        boundaries = Counted(column)
        values = rng.integers(0, column[-1], num_values)
        found = search_sorted(boundaries, values, int(column[-1]))  # type: ignore[arg-type]
        assert found.tolist() == np.searchsorted(column, values).tolist()
        assert boundaries.num_rows < num_rows


def test_many_values_have_no_overflow() -> None:
    column = np.arange(0, 1 << 62, 1 << 50)
    values = column[1::7] + 1
    found = search_sorted(np.stack([column, column], 1), values, int(column[-1]))
    assert found.tolist() == np.searchsorted(column, values).tolist()


def test_lengths_of_documents(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    lengths = [5, 7, 3, 9]
    read = open_lengths(open_source(write_corpus(lengths)))
    assert read(np.array([3, 0, 3])).tolist() == [9, 5, 9]
    assert read(np.array([], np.int64)).tolist() == []
    with pytest.raises(IndexError, match="documents up to 4 are outside the 4 of"):
        read(np.array([1, 4]))
