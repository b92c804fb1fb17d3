"""A token store has the surface of the .bin/.idx pair that it was made from."""

import multiprocessing
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.datasets.zarr_dataset import ZarrIndexedDataset
from zindex.errors import ConfigError, StoreError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.store.layout import ChunkGrid

LENGTHS = [3, 0, 5, 1, 0, 7]
# What does not depend on how the tokens are laid out.
one_layout = pytest.mark.parametrize("pair", ["store"], indirect=True)


@pytest.fixture(params=["store", "link", "one element chunks"])
def pair(
    request: pytest.FixtureRequest, write_corpus: Any, tmp_path: Path
) -> tuple[IndexedDataset, ZarrIndexedDataset]:
    prefix = write_corpus(LENGTHS, dtype=np.uint16, sequences_per_document=2)
    url = str(tmp_path / "corpus.zarr")
    grid = ChunkGrid(1, 4) if "chunks" in request.param else None
    link = request.param == "link"
    zindex.convert(prefix, url, client=SerialExecutor(), link=link, grid=grid)
    return IndexedDataset(prefix), ZarrIndexedDataset(url)


def test_same_surface(pair: tuple[IndexedDataset, ZarrIndexedDataset]) -> None:
    theirs, ours = pair
    assert len(ours) == len(theirs)
    for i in range(-6, 6):
        np.testing.assert_array_equal(ours[i], theirs[i])
        assert ours[i].dtype == theirs[i].dtype == ours.dtype
    for name in ("sequence_lengths", "document_indices"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert getattr(ours, name).dtype == getattr(theirs, name).dtype
    np.testing.assert_array_equal(ours.get_document_indices(), theirs.get_document_indices())
    for i, length in enumerate(LENGTHS):
        for offset in range(length + 1):
            np.testing.assert_array_equal(ours.get(i, offset), theirs.get(i, offset))
            np.testing.assert_array_equal(ours.get(i, 0, offset), theirs.get(i, 0, offset))


@pytest.mark.parametrize("span", [slice(None), slice(1, 4), slice(-2, None), slice(4, 2), slice(9)])
def test_slices(pair: tuple[IndexedDataset, ZarrIndexedDataset], span: slice) -> None:
    theirs, ours = pair
    assert [part.tolist() for part in ours[span]] == [part.tolist() for part in theirs[span]]


@one_layout
@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (6, IndexError, "a sequence must lie within [-6, 6), but 6 was asked"),
        (-7, IndexError, "but -7 was asked"),
        (slice(0, 4, 2), ValueError, "the step of slice(0, 4, 2) is 2"),
        ("a", TypeError, "by a whole number or a slice, not by str"),
    ],
)
def test_refused(
    pair: tuple[IndexedDataset, ZarrIndexedDataset], index: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        pair[1][index]


@one_layout
@pytest.mark.parametrize(("offset", "length"), [(-1, None), (4, None), (0, 4), (2, 2), (0, -1)])
def test_spans_must_be_within_their_sequence(
    pair: tuple[IndexedDataset, ZarrIndexedDataset], offset: int, length: int | None
) -> None:
    for dataset in pair:
        with pytest.raises(IndexError, match="must lie within its sequence of 3 tokens"):
            dataset.get(0, offset, length)


def read_third(dataset: ZarrIndexedDataset, results: Any) -> None:
    results.put(dataset[2].tolist())


@one_layout
@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children(pair: tuple[IndexedDataset, ZarrIndexedDataset], method: str) -> None:
    ours = pair[1]
    expected = ours[2].tolist()
    context = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=read_third, args=(ours, results))
    child.start()
    assert results.get(timeout=60) == expected
    child.join(60)
    assert child.exitcode == 0


@one_layout
def test_pickle_is_small(pair: tuple[IndexedDataset, ZarrIndexedDataset]) -> None:
    content = pickle.dumps(pair[1])
    assert len(content) < 8_000
    assert pickle.loads(content)[0].tolist() == [0, 1, 2]


def test_modes(write_corpus: Any, tmp_path: Path) -> None:
    prefix = write_corpus([2, 3], modes=[0, 1])
    url = str(tmp_path / "corpus.zarr")
    zindex.convert(prefix, url, client=SerialExecutor())
    dataset = ZarrIndexedDataset(url, multimodal=True)
    tokens, mode = dataset[1]
    assert (tokens.tolist(), int(mode)) == ([2, 3, 4], 1)
    sequences, modes = dataset[0:2]
    assert ([part.tolist() for part in sequences], modes.tolist()) == ([[0, 1], [2, 3, 4]], [0, 1])
    assert dataset.sequence_modes.tolist() == [0, 1]


@one_layout
def test_modes_must_be_there(pair: tuple[IndexedDataset, ZarrIndexedDataset]) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.zarr has none"):
        ZarrIndexedDataset(pair[1].path_prefix, multimodal=True)
    with pytest.raises(ConfigError, match=r"corpus\.zarr has none"):
        _ = pair[1].sequence_modes


def test_must_be_a_token_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"nowhere\.zarr"):
        ZarrIndexedDataset(str(tmp_path / "nowhere.zarr"))
    (tmp_path / "zarr.json").write_text("{}")
    with pytest.raises(StoreError):
        ZarrIndexedDataset(str(tmp_path))
