"""Reading, checking and writing .idx files."""

import os
import pickle
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zindex.errors import SourceError, VerificationError
from zindex.formats import bin_idx, idx_writer
from zindex.formats.bin_idx import MAGIC, IdxFile, bin_path, idx_path, read_index
from zindex.formats.idx_writer import write_index, write_index_blocks
from zindex.formats.token_dtypes import TOKEN_DTYPES, DType

# uint16; documents [1, 2, 3], [], [4, 5, 6, 7, 8], [9]
EXAMPLE = bytes.fromhex(
    "4d4d49444944580000 0100000000000000 08 0400000000000000 0500000000000000"
    "03000000 00000000 05000000 01000000"
    "0000000000000000 0600000000000000 0600000000000000 1000000000000000"
    "0000000000000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000"
)
LENGTHS = [3, 0, 5, 1]
ENTRIES = [0, 1, 2, 3, 4]
POINTERS_START = 34 + 4 * 4
ENTRIES_START = POINTERS_START + 8 * 4
NAMES = [dtype.name for dtype in TOKEN_DTYPES.values()]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    base = str(tmp_path / "example")
    Path(idx_path(base)).write_bytes(EXAMPLE)
    Path(bin_path(base)).write_bytes(np.arange(1, 10, dtype="<u2").tobytes())
    return base


def patch(prefix: str, offset: int, content: bytes) -> None:
    """Write bytes over the .idx of a pair."""
    with open(idx_path(prefix), "r+b") as stream:
        stream.seek(offset)
        stream.write(content)


class TestExample:
    def test_writer_gives_the_worked_example(self, tmp_path: Path) -> None:
        write_index(tmp_path / "a.idx", np.uint16, LENGTHS, ENTRIES)
        assert (tmp_path / "a.idx").read_bytes() == EXAMPLE

    def test_reader_gives_the_worked_example(self, prefix: str) -> None:
        index = read_index(prefix)
        assert index == IdxFile(idx_path(prefix), np.dtype("<u2"), 4, 4, 9, False)
        assert index.nbytes == len(EXAMPLE) == 122
        assert index.bin_nbytes == 18
        assert index.sequence_lengths(0, 4).tolist() == LENGTHS
        assert index.sequence_offsets(0, 5).tolist() == [0, 3, 3, 8, 9]
        assert index.document_indices(0, 5).tolist() == ENTRIES
        assert index.sequence_lengths(1, 3).tolist() == [0, 5]
        assert index.sequence_offsets(3, 3).tolist() == []
        assert index.document_indices(4, 5).tolist() == [4]
        assert index.sequence_lengths(0, 4).dtype == np.int32
        assert index.sequence_offsets(0, 4).dtype == np.int64
        assert index.sequence_lengths(0, 4).flags.writeable

    def test_mapped_views(self, prefix: str) -> None:
        arrays = read_index(prefix).map_arrays()
        assert arrays.sequence_lengths.tolist() == LENGTHS
        assert arrays.sequence_pointers.tolist() == [0, 6, 6, 16]
        assert arrays.document_indices.tolist() == ENTRIES
        assert arrays.sequence_modes is None
        assert not arrays.sequence_lengths.flags.writeable

    def test_pickles_as_its_fields(self, prefix: str) -> None:
        index = read_index(prefix)
        again = pickle.loads(pickle.dumps(index))
        assert again == index
        assert again.sequence_lengths(0, 4).tolist() == LENGTHS

    def test_without_bin(self, prefix: str) -> None:
        os.unlink(bin_path(prefix))
        assert read_index(prefix, require_bin=False).num_tokens == 9


class TestModes:
    def test_file_with_modes_is_read_with_and_without_them(self, prefix: str) -> None:
        write_index(idx_path(prefix), np.uint16, LENGTHS, ENTRIES, [0, 1, -1, 127])
        for multimodal in (None, False, True):
            index = read_index(prefix, multimodal=multimodal)
            assert index.has_modes
            assert index.sequence_modes(0, 4).tolist() == [0, 1, -1, 127]
            assert index.sequence_modes(2, 3).dtype == np.int8
        modes = index.map_arrays().sequence_modes
        assert modes is not None
        assert modes.tolist() == [0, 1, -1, 127]

    def test_modes_demanded_of_a_file_without(self, prefix: str) -> None:
        with pytest.raises(SourceError, match=r"must have 126 bytes, but \S+ has 122 and so no"):
            read_index(prefix, multimodal=True)

    def test_modes_read_from_a_file_without(self, prefix: str) -> None:
        with pytest.raises(SourceError, match=r"example\.idx has none"):
            read_index(prefix).sequence_modes(0, 1)

    def test_some_trailing_bytes_are_no_modes(self, prefix: str) -> None:
        patch(prefix, 122, b"\0\0\0")
        message = r"must have 122 bytes \(126 with modes\), but \S+ has 125"
        with pytest.raises(SourceError, match=message):
            read_index(prefix, multimodal=False)

    @pytest.mark.parametrize("multimodal", [None, True])
    def test_no_sequences(self, tmp_path: Path, multimodal: bool | None) -> None:
        write_index(tmp_path / "a.idx", np.int8, [], [0], [] if multimodal else None)
        (tmp_path / "a.bin").touch()
        index = read_index(tmp_path / "a", multimodal=multimodal)
        assert (index.num_sequences, index.num_documents, index.num_tokens) == (0, 0, 0)
        assert index.has_modes is bool(multimodal)
        assert index.map_arrays().sequence_lengths.size == 0


class TestRefusals:
    """Each law of the format, broken alone."""

    @pytest.mark.parametrize(
        ("offset", "content", "message"),
        [
            (0, b"X", r"begin with the 34 bytes .* begins with b'XMIDIDX\\x00\\x00'"),
            (9, b"\x02", r"must have version 1, but \S+ has version 2"),
            (9, b"\xff" * 8, r"has version 18446744073709551615"),
            (17, b"\x00", r"one of 1 to 8, but byte 17 of \S+ is 0"),
            (17, b"\x09", r"is 9;"),
            (26, struct.pack("<Q", 0), r"at least 1 entry, but the header of \S+ counts 0"),
            (18, struct.pack("<Q", 3), r"an .idx file of 3 sequences .* has 122"),
            (26, struct.pack("<Q", 6), r"6 document indices must have 130 bytes"),
            (18, struct.pack("<Q", 2**64 - 1), r"of 18446744073709551615 sequences"),
            (34, struct.pack("<i", -3), r"sequence_lengths\[0\] of \S+ is -3"),
            (46, struct.pack("<i", -(2**31)), r"sequence_lengths\[3\] of \S+ is -2147483648"),
            (34, struct.pack("<i", 4), r"before it, 8, but sequence_pointers\[1\] of \S+ is 6"),
            (
                POINTERS_START,
                struct.pack("<q", 1),
                r"it, 0, but sequence_pointers\[0\] of \S+ is 1",
            ),
            (POINTERS_START + 24, struct.pack("<q", -1), r"it, 16, but .*\[3\] of \S+ is -1"),
            (ENTRIES_START, struct.pack("<q", 1), r"document_indices\[0\] of \S+ is 1;"),
            (ENTRIES_START + 16, struct.pack("<q", 0), r"\[2\] of \S+ is 0 after 1;"),
            (ENTRIES_START + 8, struct.pack("<q", 2**62), r"\[2\] of \S+ is 2 after 4611686018427"),
            (ENTRIES_START + 32, struct.pack("<q", 3), r"sequences, 4, but .*\[4\] of \S+ is 3"),
            (ENTRIES_START + 32, struct.pack("<q", 5), r"sequences, 4, but .*\[4\] of \S+ is 5"),
            (46, struct.pack("<i", 2), r"example\.bin must have 20 bytes, .* but has 18;"),
            (17, b"\x04", r"before it, 12, but sequence_pointers\[1\] of \S+ is 6"),
        ],
    )
    def test_one_wrong_field(self, prefix: str, offset: int, content: bytes, message: str) -> None:
        patch(prefix, offset, content)
        with pytest.raises(SourceError, match=message):
            read_index(prefix)

    @pytest.mark.parametrize("size", [0, 8, 33])
    def test_no_whole_header(self, prefix: str, size: int) -> None:
        os.truncate(idx_path(prefix), size)
        with pytest.raises(SourceError, match=rf"has {size} bytes and begins with"):
            read_index(prefix)

    @pytest.mark.parametrize("size", [0, 17, 19, 36])
    def test_bin_of_another_size(self, prefix: str, size: int) -> None:
        os.truncate(bin_path(prefix), size)
        with pytest.raises(SourceError, match=rf"must have 18 bytes, .* but has {size};"):
            read_index(prefix)

    @pytest.mark.parametrize("suffix", [".idx", ".bin"])
    def test_missing_file(self, prefix: str, suffix: str) -> None:
        os.unlink(prefix + suffix)
        message = rf"example\{suffix} is not \(No such file or directory\)"
        with pytest.raises(SourceError, match=message):
            read_index(prefix)

    @pytest.mark.parametrize("suffix", [".idx", ".bin"])
    def test_a_pipe_is_refused_without_waiting(self, prefix: str, suffix: str) -> None:
        os.unlink(prefix + suffix)
        os.mkfifo(prefix + suffix)
        message = r"regular files, but \S+ is something else: Not a regular file \(mode 0o1"
        with pytest.raises(SourceError, match=message):
            read_index(prefix)

    def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.idx").mkdir()
        with pytest.raises(SourceError, match=r"a\.idx is something else"):
            read_index(tmp_path / "a")

    def test_sequences_beyond_any_file(self, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bin_idx, "_MAX_NBYTES", 10)
        with pytest.raises(
            SourceError, match=r"at most 10 bytes, but those up to sequence 4 .* 18;"
        ):
            read_index(prefix)

    @pytest.mark.parametrize("span", [(-1, 2), (2, 1), (0, 5)])
    def test_span_outside(self, prefix: str, span: tuple[int, int]) -> None:
        index = read_index(prefix)
        with pytest.raises(
            IndexError, match=re.escape(f"within [0, 4), but [{span[0]}, {span[1]}")
        ):
            index.sequence_lengths(*span)

    def test_cut_after_the_check(self, prefix: str) -> None:
        index = read_index(prefix)
        os.truncate(idx_path(prefix), 90)
        with pytest.raises(
            VerificationError, match=r"hold 40 bytes from byte 82 but ended after 8"
        ):
            index.document_indices(0, 5)
        with pytest.raises(VerificationError, match=r"must hold 122 bytes, .* now holds 90"):
            index.map_arrays()

    def test_cut_during_the_check(self, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real_size = bin_idx.open_regular(idx_path(prefix))[1]
        monkeypatch.setattr(
            bin_idx, "open_regular", lambda path: (os.open(path, os.O_RDONLY), real_size)
        )
        os.truncate(idx_path(prefix), 60)
        with pytest.raises(VerificationError, match=r"32 bytes from byte 50 but ended after 10"):
            read_index(prefix)


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5])
class TestBlocks:
    """The blocks in which a file is checked do not show."""

    def test_valid(self, prefix: str, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
        monkeypatch.setattr(bin_idx, "_BLOCK", block)
        assert read_index(prefix).num_tokens == 9

    @pytest.mark.parametrize("at", range(4))
    def test_wrong_pointer(
        self, prefix: str, monkeypatch: pytest.MonkeyPatch, block: int, at: int
    ) -> None:
        monkeypatch.setattr(bin_idx, "_BLOCK", block)
        patch(prefix, POINTERS_START + 8 * at, struct.pack("<q", 7))
        with pytest.raises(SourceError, match=rf"sequence_pointers\[{at}\] of \S+ is 7"):
            read_index(prefix)

    @pytest.mark.parametrize("at", range(1, 4))
    def test_falling_entry(
        self, prefix: str, monkeypatch: pytest.MonkeyPatch, block: int, at: int
    ) -> None:
        monkeypatch.setattr(bin_idx, "_BLOCK", block)
        patch(prefix, ENTRIES_START + 8 * at, struct.pack("<q", 4))
        message = rf"sequence|document_indices\[{at + 1}\] of \S+ is {at + 1} after 4"
        if at == 3:
            assert read_index(prefix).document_indices(3, 5).tolist() == [4, 4]
        else:
            with pytest.raises(SourceError, match=message):
                read_index(prefix)


def test_lengths_whose_sum_passes_32_bits(tmp_path: Path) -> None:
    lengths = np.full(70_000, 2**31 - 1)
    write_index(tmp_path / "a.idx", np.int64, lengths, [0, 70_000])
    index = read_index(tmp_path / "a", require_bin=False)
    assert index.num_tokens == 70_000 * (2**31 - 1)
    assert index.sequence_offsets(69_999, 70_000)[0] == 69_999 * (2**31 - 1)


@settings(max_examples=60)
@given(
    name=st.sampled_from(NAMES),
    lengths=st.lists(st.integers(0, 2**31 - 1), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=20),
    seed=st.integers(0, 2**32 - 1) | st.none(),
    block=st.integers(1, 7),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    lengths: list[int],
    cuts: list[int],
    seed: int | None,
    block: int,
) -> None:
    base = tmp_path_factory.mktemp("law") / "a"
    entries = [0, *sorted(min(cut, len(lengths)) for cut in cuts), len(lengths)]
    modes = None
    if seed is not None:
        modes = np.random.default_rng(seed).integers(-128, 128, len(lengths))
    write_index(f"{base}.idx", name, lengths, entries, modes)
    index = read_index(base, require_bin=False, multimodal=None if modes is None else True)
    assert index.dtype == np.dtype(name)
    assert index.num_tokens == sum(lengths)
    assert index.sequence_lengths(0, len(lengths)).tolist() == lengths
    assert index.sequence_offsets(0, len(lengths) + 1).tolist() == [
        sum(lengths[:i]) for i in range(len(lengths) + 1)
    ]
    assert index.document_indices(0, len(entries)).tolist() == entries
    if modes is not None:
        assert index.sequence_modes(0, len(lengths)).tolist() == modes.tolist()
    # The streaming writer gives the same bytes from any blocks.
    rows = [slice(start, start + block) for start in range(0, len(lengths), block)]
    write_index_blocks(
        f"{base}2.idx",
        name,
        [(lengths[span], None if modes is None else modes[span]) for span in rows],
        [entries[start : start + block] for start in range(0, len(entries), block)],
        num_sequences=len(lengths),
        num_documents=len(entries) - 1,
        has_modes=modes is not None,
    )
    assert Path(f"{base}2.idx").read_bytes() == Path(f"{base}.idx").read_bytes()


class TestWriter:
    @pytest.mark.parametrize(
        ("lengths", "entries", "modes", "message"),
        [
            ([2**31], [0, 1], None, r"within \[0, 2147483647\], but entry 0 .* is 2147483648"),
            ([3, -1], [0, 2], None, r"but entry 1 of this block is -1"),
            ([1.5], [0, 1], None, r"whole numbers, got shape \(1,\) and dtype float64"),
            ([[1, 2]], [0, 2], None, r"shape \(1, 2\)"),
            ([1, 2], [0, 2], [1], r"one mode for each of 2 sequences, but got 1 modes"),
            ([1, 2], [0, 2], [1, 128], r"within \[-128, 127\], but entry 1 .* is 128"),
            ([1, 2], [], None, r"must begin with 0, but it has 0 entries"),
            ([1, 2], [1, 2], None, r"must begin with 0, not with 1"),
            ([1, 2], [0, 2, 1, 2], None, r"never fall, but entry 2 is 1"),
            ([1, 2], [0, 3], None, r"within \[0, 2\], but entry 1 .* is 3"),
            ([1, 2], [0, 1], None, r"the last of them 2, but got 2 and 2, the last 1"),
        ],
    )
    def test_broken_laws(
        self,
        tmp_path: Path,
        lengths: list[int],
        entries: list[int],
        modes: list[int] | None,
        message: str,
    ) -> None:
        with pytest.raises(SourceError, match=message):
            write_index(tmp_path / "a.idx", np.uint16, lengths, entries, modes)
        assert list(tmp_path.iterdir()) == []

    def test_a_dtype_without_code(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"not uint32; convert"):
            write_index(tmp_path / "a.idx", np.uint32, [1], [0, 1])
        assert list(tmp_path.iterdir()) == []

    def test_pointers_beyond_64_bits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(idx_writer, "_MAX_POINTER", 15)
        with pytest.raises(SourceError, match=r"less than 2\*\*63 bytes, but those .* take 16"):
            write_index(tmp_path / "a.idx", np.int64, [2], [0, 1])

    @pytest.mark.parametrize(
        ("sequences", "entries", "message"),
        [
            ([1, 2, 3], [0, 2], r"announced with 2 sequences, but 3 were written"),
            ([1, 2], [0, 1, 2], r"announced with 2 document indices, but 3 were written"),
            ([1], [0, 2], r"must get 2 sequences .*, but got 1 and 2, the last 2"),
            ([1, 2], [0], r"but got 2 and 1, the last 0"),
        ],
    )
    def test_other_numbers_than_announced(
        self, tmp_path: Path, sequences: list[int], entries: list[int], message: str
    ) -> None:
        blocks = [(sequences, None)], [entries]
        with pytest.raises(SourceError, match=message):
            write_index_blocks(
                tmp_path / "a.idx", np.uint8, *blocks, num_sequences=2, num_documents=1
            )
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(("has_modes", "modes"), [(True, None), (False, [1, 1]), (True, [1])])
    def test_modes_must_come_as_announced(
        self, tmp_path: Path, has_modes: bool, modes: list[int] | None
    ) -> None:
        message = rf"have {'one' if has_modes else 'no'} mode, but there are {len(modes or ())} for"
        counts = {"num_sequences": 2, "num_documents": 1}
        with pytest.raises(SourceError, match=message):
            write_index_blocks(
                tmp_path / "a.idx", np.uint8, [([1, 2], modes)], [], **counts, has_modes=has_modes
            )

    def test_the_old_file_stays_until_the_new_one_is_complete(self, tmp_path: Path) -> None:
        (tmp_path / "a.idx").write_bytes(b"old")

        def entries() -> Iterator[list[int]]:
            yield [0, 1]
            assert (tmp_path / "a.idx").read_bytes() == b"old"

        blocks = [([1], None)], entries()
        write_index_blocks(tmp_path / "a.idx", np.uint8, *blocks, num_sequences=1, num_documents=1)
        assert (tmp_path / "a.idx").read_bytes()[:9] == MAGIC
        assert [path.name for path in tmp_path.iterdir()] == ["a.idx"]


class TestDtypes:
    def test_table(self) -> None:
        codes = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f8", 7: "f4", 8: "u2"}
        assert {code: dtype.str[1:] for code, dtype in TOKEN_DTYPES.items()} == codes
        for code, dtype in TOKEN_DTYPES.items():
            assert DType.code_from_dtype(dtype) == code == DType[dtype.name].value
            assert DType.code_from_dtype(dtype.type) == code
            assert DType.dtype_from_code(code) is dtype.type
            assert DType.size(code) == DType.size(dtype.type) == dtype.itemsize

    def test_unknown(self) -> None:
        with pytest.raises(SourceError, match=r"not complex64"):
            DType.code_from_dtype(np.complex64)
        with pytest.raises(SourceError, match=r"one of 1 to 8, not 9"):
            DType.dtype_from_code(9)
        with pytest.raises(ValueError, match=r"not by 'uint16'"):
            DType.size("uint16")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("cardinality", "dtype"),
        [(None, np.int32), (0, np.uint16), (65499, np.uint16), (65500, np.int32)],
    )
    def test_optimal(self, cardinality: int | None, dtype: type) -> None:
        assert DType.optimal_dtype(cardinality) is dtype
