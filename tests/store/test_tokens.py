"""Tokens from the array of a store, or from a linked ``.bin``."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.store.stores import DTYPES, GRID, ONE, build_arrays, count_up
from zindex import schema
from zindex.errors import SourceError, StoreError, VerificationError
from zindex.store.commit import StorePlan, begin_store, commit_store
from zindex.store.open import Store, open_store
from zindex.store.reader import LocalReader
from zindex.store.tokens import LINK, FlatFile, open_tokens


def link_tokens(root: Path, dtype: str, link: Any) -> Store:
    """Commit a store without arrays that names a ``.bin``."""
    plan = StorePlan(root, "tokens", {"token_dtype": dtype}, ())
    begin_store(plan)
    commit_store(plan, [], {LINK: link})
    return open_store(root, kind="tokens")


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "uint32"])
def test_stored_and_linked_tokens_are_the_same(tmp_path: Path, dtype: str) -> None:
    values = count_up(20, dtype=dtype)
    build_arrays(tmp_path / "stored", {schema.TOKENS: values}, GRID)
    (tmp_path / "corpus.bin").write_bytes(values.tobytes())
    link = {"path": str(tmp_path / "corpus.bin"), "nbytes": values.nbytes}
    stored = open_tokens(open_store(tmp_path / "stored"))
    linked = open_tokens(link_tokens(tmp_path / "linked", dtype, link))
    assert isinstance(stored, LocalReader)
    assert isinstance(linked, FlatFile)
    for start in range(21):
        for stop in range(start, 21):
            for reader in (stored, linked):
                got = reader.read(start, stop)
                assert got.dtype == dtype
                np.testing.assert_array_equal(got, values[start:stop])


def test_a_store_without_tokens_is_refused(tmp_path: Path) -> None:
    build_arrays(tmp_path, {ONE: count_up(3)})
    message = f"{tmp_path} must hold tokens or name their .bin, it does neither"
    with pytest.raises(StoreError, match=re.escape(message)):
        open_tokens(open_store(tmp_path))


@pytest.mark.parametrize("link", [None, "corpus.bin", 7])
def test_a_link_of_another_shape_is_refused(tmp_path: Path, link: Any) -> None:
    with pytest.raises(StoreError, match=r"must hold tokens or name their .bin, it does neither"):
        open_tokens(link_tokens(tmp_path / "linked", "int32", link))


@pytest.mark.parametrize(
    ("nbytes", "found"),
    [(None, "it is missing"), (0, "it has 0"), (39, "it has 39"), (41, "it has 41")],
)
def test_a_linked_file_that_is_not_what_it_was_is_refused(
    tmp_path: Path, nbytes: int | None, found: str
) -> None:
    path = tmp_path / "corpus.bin"
    if nbytes is not None:
        path.write_bytes(bytes(nbytes))
    store = link_tokens(tmp_path / "linked", "int32", {"path": str(path), "nbytes": 40})
    message = f"{path} must have 40 bytes, as when it was linked to {store.root}, {found};"
    with pytest.raises(SourceError, match=re.escape(message)):
        open_tokens(store)


def test_a_linked_file_that_is_cut_under_a_reader_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corpus.bin"
    path.write_bytes(bytes(40))
    reader = open_tokens(
        link_tokens(tmp_path / "linked", "int32", {"path": str(path), "nbytes": 40})
    )
    path.write_bytes(bytes(39))
    message = f"{path} must hold 40 bytes, as when it was checked, but now holds 39"
    with pytest.raises(VerificationError, match=re.escape(message)):
        reader.read(0, 1)


def test_a_rewritten_file_is_read_after_reopening(tmp_path: Path) -> None:
    path, other = tmp_path / "corpus.bin", tmp_path / "other.bin"
    path.write_bytes(count_up(20).tobytes())
    before = FlatFile(str(path), path.stat().st_size, count_up(20).dtype)
    np.testing.assert_array_equal(before.read(0, 20), count_up(20))
    other.write_bytes((count_up(20) + 100).tobytes())
    other.replace(path)
    after = FlatFile(str(path), path.stat().st_size, count_up(20).dtype)
    np.testing.assert_array_equal(after.read(0, 20), count_up(20) + 100)
