"""Writing pairs sequence by sequence; Megatron's calls on top of it are tested with the builder."""

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from tests.killing import exit_code, fork
from tests.trees import num_descriptors
from zindex.errors import SourceError, VerificationError
from zindex.formats import bin_writer
from zindex.formats.bin_idx import IdxFile, read_index
from zindex.formats.bin_writer import PairWriter


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_pair(folder: Path, name: str, *documents: list[int], dtype: type = np.uint16) -> str:
    writer = PairWriter(folder / f"{name}.bin", dtype)
    for document in documents:
        writer.append(document)
        writer.end_document()
    writer.finalize(folder / f"{name}.idx")
    return str(folder / name)


def test_neither_file_has_its_name_before_the_end(tmp_path: Path) -> None:
    write_pair(tmp_path, "a", [1, 2])
    writer = PairWriter(tmp_path / "a.bin", np.uint16)
    assert writer.append([3, 4, 5], [1, 2]) == 2
    writer.end_document()
    assert read_index(tmp_path / "a").num_tokens == 2
    writer.finalize(tmp_path / "a.idx")
    assert read_index(tmp_path / "a").num_tokens == 3
    assert names(tmp_path) == ["a.bin", "a.idx"]


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    writer = PairWriter(tmp_path / "a.bin", np.uint16)
    writer.append([1])
    assert len(names(tmp_path)) == 1
    del writer
    gc.collect()
    assert names(tmp_path) == []


def test_a_forked_child_leaves_its_parents_file_alone(tmp_path: Path) -> None:
    writer = PairWriter(tmp_path / "a.bin", np.uint16)
    assert exit_code(fork(writer._discard)) == 0
    writer.append([1])
    writer.end_document()
    writer.finalize(tmp_path / "a.idx")
    assert read_index(tmp_path / "a").num_tokens == 1


def test_a_pair_may_be_added_to_its_own_successor(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path, "a", [1, 2], [])
    writer = PairWriter(tmp_path / "a.bin", np.uint16)
    writer.append_pair(prefix)
    writer.append_pair(prefix)
    writer.finalize(tmp_path / "a.idx")
    index = read_index(prefix)
    assert index.sequence_lengths(0, 4).tolist() == [2, 0, 2, 0]
    assert index.document_indices(0, 5).tolist() == [0, 1, 2, 3, 4]


def test_blocks_of_an_added_pair_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_pair(tmp_path, "a", [1, 2], [], [3], [4, 5, 6])
    monkeypatch.setattr(bin_writer, "_COPY_NBYTES", 5)
    writer = PairWriter(tmp_path / "b.bin", np.uint16)
    writer.append_pair(prefix)
    writer.finalize(tmp_path / "b.idx")
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"b{suffix}").read_bytes() == (tmp_path / f"a{suffix}").read_bytes()


def test_a_pair_of_another_dtype_adds_nothing(tmp_path: Path) -> None:
    prefix = write_pair(tmp_path, "a", [1], dtype=np.int32)
    writer = PairWriter(tmp_path / "b.bin", np.uint16)
    with pytest.raises(SourceError, match=r"a\.idx has int32 and \S+b\.bin has uint16"):
        writer.append_pair(prefix)
    writer.finalize(tmp_path / "b.idx")
    assert read_index(tmp_path / "b").num_sequences == 0


def test_a_pair_cut_while_it_is_added_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = write_pair(tmp_path, "a", [1, 2, 3])
    real = bin_writer.read_index

    def read_then_cut(path: str, *, multimodal: bool) -> IdxFile:
        index = real(path, multimodal=multimodal)
        os.truncate(f"{path}.bin", 4)
        return index

    writer = PairWriter(tmp_path / "b.bin", np.uint16, has_modes=False)
    writer.append([9])
    writer.end_document()
    monkeypatch.setattr(bin_writer, "read_index", read_then_cut)
    with pytest.raises(VerificationError, match=r"must hold 6 bytes, .* ended after 4;"):
        writer.append_pair(prefix)
    writer.finalize(tmp_path / "b.idx")
    assert read_index(tmp_path / "b").num_tokens == 1


def test_sequences_without_a_document(tmp_path: Path) -> None:
    writer = PairWriter(tmp_path / "a.bin", np.uint16)
    writer.append([1])
    writer.end_document()
    writer.append([2])
    with pytest.raises(SourceError, match=r"has 2 sequences and its last document ends after 1;"):
        writer.finalize(tmp_path / "a.idx")
    writer.end_document()
    writer.finalize(tmp_path / "a.idx")
    with pytest.raises(SourceError, match=r"a\.bin is closed already"):
        writer.finalize(tmp_path / "a.idx")
    assert read_index(tmp_path / "a").num_documents == 2


def test_a_write_that_failed_half_way(tmp_path: Path) -> None:
    writer = PairWriter(tmp_path / "a.bin", np.uint16)
    writer.append([1])
    writer.data_file.write(b"\0")
    writer.end_document()
    with pytest.raises(VerificationError, match=r"take 2 bytes, but 3 were written"):
        writer.finalize(tmp_path / "a.idx")
    assert "a.idx" not in names(tmp_path)


@pytest.mark.parametrize("failing", ["pwrite", "fsync", "replace"])
def test_a_full_disk_leaves_the_older_pair_and_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    prefix = write_pair(tmp_path, "a", [1, 2, 3])
    before = [Path(f"{prefix}.{suffix}").read_bytes() for suffix in ("bin", "idx")]
    writer = PairWriter(tmp_path / "a.bin", np.uint16)
    writer.append([7, 8])
    writer.end_document()
    num_open = num_descriptors(tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, fail)
        with pytest.raises(OSError, match="No space left on device"):
            writer.finalize(tmp_path / "a.idx")
    assert [Path(f"{prefix}.{suffix}").read_bytes() for suffix in ("bin", "idx")] == before
    assert len(names(tmp_path)) == 3  # the pair and the new .bin under its other name
    assert num_descriptors(tmp_path) == num_open
    writer.finalize(tmp_path / "a.idx")
    assert names(tmp_path) == ["a.bin", "a.idx"]
    assert read_index(prefix).sequence_lengths(0, 1).tolist() == [2]


def test_lists_are_equal(tmp_path: Path) -> None:
    """Code that knows Megatron Core's builder compares its attributes with lists."""
    builder = PairWriter(tmp_path / "a.bin", np.int32, has_modes=True)
    builder.append([1, 2, 3], [2, 1], [0, 5])
    builder.end_document()
    assert builder.sequence_lengths == [2, 1]
    assert builder.sequence_lengths != [2, 2]
    assert builder.sequence_modes == [0, 5] == list(builder.sequence_modes or ())
    assert builder.document_indices == [0, 2]
    assert builder.document_indices == builder.document_indices[:]
