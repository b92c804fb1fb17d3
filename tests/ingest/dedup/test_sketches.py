"""Bands of MinHash signatures, and the blocks of a partition."""

from pathlib import Path

import numpy as np
import pytest

from tests.sources.archives import write_jsonl
from zindex.errors import SourceError
from zindex.ingest.dedup.sketches import (
    LEAST_RECALL,
    NUM_HASHES,
    Sketcher,
    choose_bands,
    hash_bands,
    sketch_partition,
)
from zindex.ingest.records.read_partitions import Partition
from zindex.sources.jsonl_files import JsonlFiles


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_find_pairs_at_the_threshold(threshold: float) -> None:
    bands = choose_bands(threshold)
    assert bands.num_bands * bands.num_rows <= NUM_HASHES
    assert bands.recall(threshold) >= LEAST_RECALL


@pytest.mark.parametrize(("similarity", "threshold"), [(0.8, 0.8), (0.5, 0.5), (0.5, 0.8)])
def test_pairs_share_a_band_as_often_as_computed(similarity: float, threshold: float) -> None:
    pytest.importorskip("rensa")
    rng = np.random.default_rng(3)
    bands, num_pairs, size = choose_bands(threshold), 600, 90
    num_shared = round(2 * size * similarity / (1 + similarity))
    pairs = []
    for _ in range(num_pairs):
        values = rng.integers(1, 1 << 63, 2 * size - num_shared).astype(np.uint64)
        pairs += [values[:size], values[-size:]]
    keys = hash_bands(pairs, bands)
    found = (keys[:, ::2] == keys[:, 1::2]).any(axis=0).mean()
    exact = num_shared / (2 * size - num_shared)
    assert found == pytest.approx(bands.recall(exact), abs=0.06)


def test_keys_do_not_depend_on_order_repeats_or_neighbours() -> None:
    pytest.importorskip("rensa")
    texts = [np.array(x, np.uint64) for x in ([5, 9, 2], [2, 9, 5, 5], [], [7])]
    keys = hash_bands(texts, choose_bands(0.8))
    assert keys[:, 0].tolist() == keys[:, 1].tolist()
    assert not keys[:, 2].any()
    assert (keys[:, [0, 3]] & np.uint64(1)).all()
    assert hash_bands(texts[3:], choose_bands(0.8))[:, 0].tolist() == keys[:, 3].tolist()


def test_blocks_of_a_partition(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}"} for number in range(10)]
    paths = [write_jsonl(tmp_path / f"{i}.jsonl", rows[5 * i : 5 * i + 5]) for i in range(2)]
    sketcher = Sketcher(JsonlFiles(paths), block_nbytes=300)
    partition = Partition("p", 0, (0, 1))
    found = sketch_partition(sketcher, tmp_path / "work", partition)
    assert [block.urls for block in found.blocks] == [((0, 4),), ((0, 1), (1, 3)), ((1, 2),)]
    first = found.blocks[0]
    lines = paths[0].read_bytes().split(b"\n")
    assert first.read(tmp_path / "work", 0, "uint8", 0, 17).tobytes() == lines[0][:17]
    assert first.read(tmp_path / "work", 1, "int64", 1, 3).tolist() == [len(lines[1])] * 2
    # Finished partitions are not read again.
    paths[0].unlink()
    assert sketch_partition(sketcher, tmp_path / "work", partition) == found


def test_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n[]\n{"id": 3}\n{"text": "b"}\n')
    partition = Partition("p", 0, (0,))
    with pytest.raises(SourceError, match=r"a\.jsonl, line 2: there must be a JSON object"):
        sketch_partition(Sketcher(JsonlFiles(path)), tmp_path / "one", partition)
    sketcher = Sketcher(JsonlFiles(path), skip_damaged=True)
    found = sketch_partition(sketcher, tmp_path / "two", partition)
    assert found.num_skipped == 2
    [block] = found.blocks
    assert block.read(tmp_path / "two", 2, "int64", 0, 2).tolist() == [0, 3]
