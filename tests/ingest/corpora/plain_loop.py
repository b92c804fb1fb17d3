"""The loop that every corpus must equal: one text after the other into Megatron's builder."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy.typing as npt

from zindex.datasets.indexed_dataset import IndexedDatasetBuilder


def write_in_a_loop(
    prefix: Path,
    texts: Iterable[str],
    encode: Callable[[str], Sequence[int]],
    *,
    dtype: npt.DTypeLike,
    end: int | None = None,
    split: Callable[[str], list[str]] | None = None,
) -> dict[str, bytes]:
    """Write a pair as Megatron's tool does; return the bytes of both files."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for text in texts:
        ids: list[int] = []
        lengths: list[int] = []
        for sentence in [text] if split is None else split(text):
            found = list(encode(sentence))
            if found:
                ids += found
                lengths.append(len(found))
        if ids and end is not None:
            ids.append(end)
            lengths[-1] += 1
        builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}.idx")
    return read_pair(prefix)


def read_pair(prefix: Path) -> dict[str, bytes]:
    """Return the bytes of both files of a pair."""
    return {end: Path(f"{prefix}.{end}").read_bytes() for end in ("bin", "idx")}
