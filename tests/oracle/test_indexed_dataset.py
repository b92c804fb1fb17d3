"""Files of ours and of Megatron Core's builder, compared byte by byte and read crosswise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from megatron.core.datasets import indexed_dataset as megatron  # noqa: E402

from zindex.datasets import indexed_dataset as ours  # noqa: E402

NAMES = [dtype.name for dtype in ours.DType]


def random_calls(seed: int, name: str, multimodal: bool) -> list[Callable[[Any], None]]:
    """Return random calls of a builder: items, documents and empty documents."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(name)
    limits = np.iinfo(dtype) if dtype.kind != "f" else None
    calls: list[Callable[[Any], None]] = []
    for _ in range(40):
        lengths = rng.integers(0, 6, int(rng.integers(0, 4))).tolist()
        total = sum(lengths)
        if limits is None:
            tokens = rng.integers(0, 2**20, total).astype(dtype)
        else:
            tokens = rng.integers(limits.min, limits.max, total, dtype=dtype, endpoint=True)
        modes = rng.integers(-128, 128, len(lengths)).tolist() if multimodal else None
        if rng.random() < 0.5:
            form = tokens.tolist() if rng.random() < 0.5 else tokens
            calls.append(lambda b, t=form, n=lengths, m=modes: b.add_document(t, n, m))
            continue
        parts = np.split(tokens, np.cumsum(lengths)[:-1]) if lengths else []
        for number, part in enumerate(parts):
            # torch has no uint16 arithmetic but carries its values
            tensor = torch.from_numpy(part.copy())
            mode = modes[number] if modes else 0
            calls.append(lambda b, t=tensor, m=mode: b.add_item(t, m))
        calls.append(lambda b: b.end_document())
    return calls


def build(module: Any, prefix: Path, name: str, multimodal: bool, calls: list[Any]) -> str:
    builder = module.IndexedDatasetBuilder(
        f"{prefix}.bin", dtype=getattr(np, name), multimodal=multimodal
    )
    for call in calls:
        call(builder)
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def both(folder: Path, name: str, multimodal: bool, calls: list[Any]) -> tuple[str, str]:
    """Build the same pair twice and compare the bytes."""
    mine = build(ours, folder / "ours", name, multimodal, calls)
    theirs = build(megatron, folder / "theirs", name, multimodal, calls)
    for suffix in (".bin", ".idx"):
        assert Path(mine + suffix).read_bytes() == Path(theirs + suffix).read_bytes()
    return mine, theirs


def assert_same(a: Any, b: Any) -> None:
    """Compare items: arrays, or arrays with modes, or lists of them."""
    assert type(a) is type(b)
    if a is None:
        return
    if isinstance(a, tuple | list):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same(left, right)
    else:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_same_bytes_and_same_items(tmp_path: Path, name: str, multimodal: bool) -> None:
    calls = random_calls(NAMES.index(name), name, multimodal)
    mine, theirs = both(tmp_path, name, multimodal, calls)
    for mmap in (True, False):
        left = ours.IndexedDataset(theirs, multimodal=multimodal, mmap=mmap)
        right = megatron.IndexedDataset(mine, multimodal=multimodal, mmap=mmap)
        assert len(left) == len(right)
        for key in ("sequence_lengths", "document_indices"):
            assert_same(getattr(left, key), getattr(right, key))
        for key in ("sequence_lengths", "sequence_pointers", "document_indices"):
            assert_same(getattr(left.index, key), getattr(right.index, key))
        for key in ("dtype", "dtype_size", "sequence_count", "document_count"):
            assert getattr(left.index, key) == getattr(right.index, key)
        for i in [*range(len(left)), -1, -len(left)]:
            assert_same(left[i], right[i])
            assert_same(left.index[i], right.index[i])
            for offset in range(int(left.sequence_lengths[i]) + 1):
                assert_same(left.get(i, offset), right.get(i, offset))
                assert_same(left.get(i, offset, 0), right.get(i, offset, 0))
        for start in range(0, len(left) - 1, 5):
            assert_same(left[start : start + 7], right[start : start + 7])
        assert_same(left[:], right[:])
        assert_same(left[-4:], right[-4:])


@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("name", ["uint16", "int32", "float64"])
def test_added_pairs(tmp_path: Path, name: str, multimodal: bool) -> None:
    parts = []
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        calls = random_calls(seed, name, multimodal)
        parts.append(both(tmp_path / str(seed), name, multimodal, calls)[seed % 2])
    more = [lambda b, part=part: b.add_index(part) for part in parts]
    both(tmp_path, name, multimodal, [more[0], *random_calls(9, name, multimodal), *more[1:]])


def test_index_writer(tmp_path: Path) -> None:
    for module, name in ((ours, "ours"), (megatron, "theirs")):
        with module._IndexWriter(str(tmp_path / name), np.uint16) as writer:
            writer.write([3, 0, 5, 1], [0, 1, 0, 1], [0, 1, 2, 4])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_dtype_table() -> None:
    assert {d.name: d.value for d in ours.DType} == {d.name: d.value for d in megatron.DType}
    for member in megatron.DType:
        dtype = getattr(np, member.name)
        assert ours.DType.code_from_dtype(dtype) == megatron.DType.code_from_dtype(dtype)
        assert ours.DType.dtype_from_code(member.value) is dtype
        assert ours.DType.size(dtype) == megatron.DType.size(dtype)
        assert ours.DType.size(member.value) == megatron.DType.size(member.value)
    for cardinality in (None, 0, 65499, 65500, 2**20):
        mine = ours.DType.optimal_dtype(cardinality)
        assert mine is megatron.DType.optimal_dtype(cardinality)
