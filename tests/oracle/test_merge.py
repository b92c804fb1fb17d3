"""Merged pairs against Megatron Core's builder, byte for byte."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import numbers
from zindex.execution.executor import SerialExecutor
from zindex.ingest.corpora.pairs import count_sequences
from zindex.ingest.merge import merge

megatron: Any = pytest.importorskip("megatron.core.datasets.indexed_dataset")


@pytest.mark.parametrize("seed", numbers(8, 300))
def test_merged_pairs_are_those_of_add_index(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    multimodal = bool(draw.integers(2))
    dtype: Any = [np.uint16, np.int32][draw.integers(2)]
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(int(draw.integers(1, 6))):
        builder = megatron.IndexedDatasetBuilder(f"{folder}/{part}.bin", dtype, multimodal)
        for _ in range(int(draw.integers(1, 6))):
            lengths = draw.integers(0, 9, draw.integers(1, 4)).tolist()
            tokens = draw.integers(0, 60_000, sum(lengths))
            modes = draw.integers(0, 3, len(lengths)).tolist() if multimodal else None
            builder.add_document(tokens, lengths, modes)
        builder.finalize(f"{folder}/{part}.idx")
    names = sorted(path.stem for path in folder.glob("*.idx"))
    builder = megatron.IndexedDatasetBuilder(f"{tmp_path}/right.bin", dtype, multimodal)
    for name in names:
        builder.add_index(f"{folder}/{name}")
    builder.finalize(f"{tmp_path}/right.idx")
    merge(folder, tmp_path / "made", client=SerialExecutor())
    for suffix in ("bin", "idx"):
        made, right = (tmp_path / f"{name}.{suffix}" for name in ("made", "right"))
        assert made.read_bytes() == right.read_bytes()
    index = megatron._IndexReader(f"{tmp_path}/made.idx", multimodal)
    counts = (index.sequence_count, index.document_count)
    assert count_sequences(tmp_path / "made", client=SerialExecutor()) == {
        str(tmp_path / "made"): counts
    }
