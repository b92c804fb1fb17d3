"""Bytes of one shard: a literal reference, laws, and hand-made damage with right checksums."""

import re
import struct
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.zstd import Zstd

from tests.store.stores import DTYPES, ONE, TWO, count_up
from zindex.errors import VerificationError
from zindex.store.codecs import checksum
from zindex.store.layout import ArrayLayout, ChunkGrid
from zindex.store.shard import ArrayFiles, Receipt, decode_chunk, decode_index, encode_shard

LAYOUT = ArrayLayout.plan(ONE, 10, np.int32, ChunkGrid(3, 6))
MISSING = 2**64 - 1


def crc(content: bytes) -> bytes:
    return google_crc32c.value(content).to_bytes(4, "little")


def make_index(*pairs: tuple[int, int]) -> bytes:
    content = b"".join(struct.pack("<QQ", *pair) for pair in pairs)
    return content + crc(content)


def test_checksum_is_crc32c() -> None:
    assert checksum(b"123456789") == 0xE3069283  # check value of the polynomial's catalogue
    assert checksum(memoryview(b"123456789")) == 0xE3069283
    assert checksum(b"") == 0


def test_bytes_of_a_shard_are_those_of_the_specification() -> None:
    """The second shard of ten elements: two chunks of three, the last one with padding."""
    buffers, receipt = encode_shard(LAYOUT, 1, count_up(10)[6:])
    first, second = struct.pack("<3i", 6, 7, 8), struct.pack("<3i", 9, -1, -1)
    index = make_index((0, 16), (16, 16))
    chunks, tail = first + crc(first) + second + crc(second), crc(first) + crc(second) + index
    assert b"".join(buffers) == chunks + tail
    assert receipt == Receipt("one", 1, len(chunks + tail), checksum(tail))
    earlier = encode_shard(replace(LAYOUT, table=False), 1, count_up(10)[6:])
    assert b"".join(earlier[0]) == chunks + index
    assert earlier[1] == Receipt("one", 1, len(chunks + index), checksum(tail))


def test_chunks_beyond_the_array_are_marked_as_missing() -> None:
    layout = ArrayLayout.plan(ONE, 7, np.uint8, ChunkGrid(2, 6))
    buffers, _ = encode_shard(layout, 1, count_up(7, dtype="uint8")[6:])
    part = bytes([6, 255])
    index = make_index((0, 6), (MISSING, MISSING), (MISSING, MISSING))
    assert b"".join(buffers) == part + crc(part) + crc(part) + index


@given(
    dtype=st.sampled_from(DTYPES),
    spec=st.sampled_from([ONE, TWO]),
    codec=st.sampled_from(["none", "zstd"]),
    length=st.integers(1, 60),
    chunk_length=st.integers(1, 9),
    chunks_per_shard=st.integers(1, 5),
)
def test_every_chunk_decodes_to_its_values(
    dtype: str, spec: Any, codec: Any, length: int, chunk_length: int, chunks_per_shard: int
) -> None:
    grid = ChunkGrid(chunk_length, chunk_length * chunks_per_shard, codec)
    layout = ArrayLayout.plan(spec, length, dtype, grid)
    values = count_up(length, dtype=dtype, num_columns=spec.num_columns)
    for shard in range(layout.num_shards):
        start, stop = layout.shard_bounds(shard)
        buffers, receipt = encode_shard(layout, shard, values[start:stop])
        content = b"".join(buffers)
        assert receipt.nbytes == len(content)
        form = ArrayFiles.of(layout)
        index = decode_index(form, shard, content[-form.tail_nbytes(shard) :], len(content))
        parts = []
        for chunk in range(form.chunks_in(shard)):
            first = int(index.offsets[chunk])
            stored = content[first : first + int(index.lengths[chunk])]
            parts.append(decode_chunk(ArrayFiles.of(layout), shard, chunk, stored))
            assert parts[-1].shape == (layout.chunk_length, *values.shape[1:])
        padded = np.concatenate(parts)
        np.testing.assert_array_equal(padded[: stop - start], values[start:stop])
        padding = padded[stop - start :]
        np.testing.assert_array_equal(padding, np.full_like(padding, layout.fill_value))


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.zeros(5, np.int32), "(5,) int32"),  # a row too few
        (np.zeros((6, 1), np.int32), "(6, 1) int32"),
        (np.zeros(6, np.int64), "(6,) int64"),
        (np.zeros(6, ">i4"), "(6,) >i4"),  # other byte order, same name
    ],
)
def test_values_that_do_not_fit_the_layout_are_a_defect_of_the_caller(
    values: Any, shown: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(f"one shard 0: {shown}")):
        encode_shard(LAYOUT, 0, values)


def test_strided_values_are_stored_in_order() -> None:
    values = np.arange(12, dtype=np.int32)[::2]
    buffers, _ = encode_shard(LAYOUT, 0, values)
    assert b"".join(buffers) == b"".join(encode_shard(LAYOUT, 0, values.copy())[0])


@pytest.mark.parametrize(
    ("footer", "shard_nbytes", "message"),
    [
        (b"", 0, "shard one/c/0 must end with an index of 36 bytes, got 0"),
        (make_index((0, 16)), 52, "shard one/c/0 must end with an index of 36 bytes, got 20"),
        (bytes(36), 68, "the index of shard one/c/0 fails its checksum"),
        # From here on the checksum is right, and the content is not.
        (make_index((0, 16), (MISSING, MISSING)), 68, "misses one of its 2 chunks"),
        (make_index((0, 16), (0, 0)), 68, "misses one of its 2 chunks"),
        (make_index((0, 16), (16, 4)), 68, "misses one of its 2 chunks"),  # a checksum of nothing
        (make_index((0, 16), (17, 16)), 68, "points outside its 68 bytes"),
        (make_index((0, 16), (2**62, 16)), 68, "points outside its 68 bytes"),
        (make_index((0, 16), (2**63, 16)), 68, "points outside its 68 bytes"),
        (make_index((0, 16), (MISSING, 16)), 68, "points outside its 68 bytes"),
        (make_index((0, 16), (2**62, 2**62)), 68, "points outside its 68 bytes"),  # sum wraps
    ],
)
def test_impossible_indices_are_refused(footer: bytes, shard_nbytes: int, message: str) -> None:
    with pytest.raises(VerificationError, match=re.escape(message)):
        decode_index(ArrayFiles.of(replace(LAYOUT, table=False)), 0, footer, shard_nbytes)


def test_a_chunk_with_a_wrong_checksum_is_refused() -> None:
    with pytest.raises(VerificationError, match=r"chunk 1 of shard one/c/0 fails its checksum"):
        decode_chunk(ArrayFiles.of(LAYOUT), 0, 1, bytes(12) + b"\1\2\3\4")


def test_a_chunk_of_another_size_is_refused() -> None:
    short = bytes(8)
    with pytest.raises(VerificationError, match=r"chunk 1 of .* must hold 12 bytes, got 8"):
        decode_chunk(ArrayFiles.of(LAYOUT), 0, 1, short + crc(short))


@pytest.mark.parametrize("nbytes", [8, 16, 1 << 20])
def test_a_compressed_chunk_of_another_size_is_refused(nbytes: int) -> None:
    layout = ArrayLayout.plan(ONE, 10, np.int32, ChunkGrid(3, 6, "zstd"))
    body = Zstd().encode(bytes(nbytes))
    with pytest.raises(VerificationError, match=r"chunk 1 of shard one/c/0 must hold 12 bytes"):
        decode_chunk(ArrayFiles.of(layout), 0, 1, body + crc(body))


def test_a_compressed_chunk_must_be_a_zstd_frame() -> None:
    layout = ArrayLayout.plan(ONE, 10, np.int32, ChunkGrid(3, 6, "zstd"))
    with pytest.raises(VerificationError, match="its header says nothing of its size"):
        decode_chunk(ArrayFiles.of(layout), 0, 1, b"no frame" + crc(b"no frame"))
