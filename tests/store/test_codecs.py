"""Chains of codecs: parsed from metadata, undone from the end, bounded before they are undone."""

import gzip
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import blosc
from numcodecs.zstd import Zstd

from zindex.errors import VerificationError
from zindex.store.codecs import CodecChain, compress_chunks, parse_chain

LITTLE: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
ENCODERS: dict[str, Any] = {
    "zstd": Zstd(level=1).encode,
    "blosc": lambda content: blosc.compress(content, b"lz4", 5, 1),
    "gzip": gzip.compress,
    "crc32c": lambda content: content + google_crc32c.value(content).to_bytes(4, "little"),
}


def encode(steps: tuple[str, ...], content: bytes) -> bytes:
    for step in steps:
        content = bytes(ENCODERS[step](content))
    return content


CHAINS = [
    (),
    ("crc32c",),
    ("crc32c", "crc32c"),
    *[(name,) for name in ("zstd", "blosc", "gzip")],
    *[(name, "crc32c") for name in ("zstd", "blosc", "gzip")],
    *[("crc32c", name, "crc32c") for name in ("zstd", "blosc", "gzip")],
]


@given(content=st.binary(min_size=1, max_size=300), steps=st.sampled_from(CHAINS))
def test_round_trip(content: bytes, steps: tuple[str, ...]) -> None:
    chain = CodecChain(steps)
    stored = encode(steps, content)
    assert bytes(chain.decode(stored, len(content), "here")) == content
    assert bytes(chain.decode(memoryview(stored), len(content), "here", check=False)) == content
    assert chain.plain == (steps in ((), ("crc32c",)))
    assert chain.checked == ("crc32c" in steps)
    with pytest.raises(VerificationError, match=r"here must hold \d+ bytes"):
        chain.decode(stored, len(content) + 1, "here")


@given(data=st.data(), steps=st.sampled_from([chain for chain in CHAINS if "crc32c" in chain]))
def test_every_flipped_bit_is_found(data: st.DataObject, steps: tuple[str, ...]) -> None:
    content = data.draw(st.binary(min_size=1, max_size=100))
    stored = bytearray(encode(steps, content))
    place = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[place // 8] ^= 1 << place % 8
    with pytest.raises(VerificationError, match="here fails its checksum"):
        CodecChain(steps).decode(bytes(stored), len(content), "here")


@given(data=st.data(), steps=st.sampled_from(CHAINS), check=st.booleans())
def test_no_bytes_break_the_decoder(
    data: st.DataObject, steps: tuple[str, ...], check: bool
) -> None:
    """Whatever comes, the result has the size that was asked for, or the error is ours."""
    content = data.draw(st.binary(min_size=1, max_size=100))
    # Blosc's decoder is not made for hostile bytes: without a checksum only its header is changed.
    stored = bytearray(encode(steps, content))
    last = 16 if "blosc" in steps else len(stored)
    stored[:] = stored[: data.draw(st.integers(0, len(stored)))]
    for place in data.draw(st.lists(st.integers(0, last), max_size=5)):
        if place < len(stored):
            stored[place] ^= data.draw(st.integers(0, 255))
    try:
        decoded = CodecChain(steps).decode(bytes(stored), len(content), "here", check=check)
    except VerificationError:
        return
    assert len(decoded) == len(content)


@pytest.mark.parametrize("length", [1, 200, 255, 256, 257, 65_791, 65_792, 70_000])
def test_the_size_in_a_zstd_header_in_each_of_its_forms(length: int) -> None:
    content = np.arange(length).astype(np.uint8).tobytes()
    stored = Zstd(level=1).encode(content)
    assert CodecChain(("zstd",)).decode(stored, length, "here") == content
    for other in (length - 1, length + 1):
        with pytest.raises(VerificationError, match=f"its header says {length}"):
            CodecChain(("zstd",)).decode(stored, other, "here")


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("is_exported", [True, False])
def test_chunks_are_compressed_as_numcodecs_does(
    monkeypatch: pytest.MonkeyPatch, level: int, is_exported: bool
) -> None:
    if not is_exported:
        monkeypatch.setattr("zindex.store.codecs._c_functions", lambda: None)
    chunks = [np.arange(first, first + 5000, dtype=np.uint16).view(np.uint8) for first in range(3)]
    chunks[2] = chunks[2][:7]
    expected = [Zstd(level).encode(chunk.tobytes()) for chunk in chunks]
    assert list(compress_chunks(chunks, chunks[0].nbytes, level)) == expected


@pytest.mark.parametrize("compressor", ["zstd", "blosc", "gzip"])
def test_damage_without_a_checksum_is_an_error_of_ours(compressor: str) -> None:
    stored = encode((compressor,), bytes(range(100)))
    for cut in (0, 1, 5, 11, 17, len(stored) - 1):
        with pytest.raises(VerificationError, match=f"here must hold 100 bytes of {compressor}"):
            CodecChain((compressor,)).decode(stored[:cut], 100, "here")


@pytest.mark.parametrize(
    ("codecs", "itemsize", "steps"),
    [
        ([LITTLE], 4, ()),
        (["bytes"], 1, ()),
        ([{"name": "bytes"}], 1, ()),
        ([{"name": "bytes"}], 2, None),
        ([{"name": "bytes", "configuration": {"endian": "big"}}], 2, None),
        ([{"name": "bytes", "configuration": {"endian": "big"}}], 1, ()),
        ([LITTLE, {"name": "crc32c"}], 4, ("crc32c",)),
        ([LITTLE, "crc32c"], 4, ("crc32c",)),
        ([LITTLE, {"name": "zstd", "configuration": {"level": 3}}], 4, ("zstd",)),
        ([LITTLE, {"name": "zstd"}, {"name": "gzip"}], 4, None),
        ([LITTLE, {"name": "pcodec"}], 4, None),
        ([{"name": "transpose", "configuration": {"order": [0, 1]}}, LITTLE], 4, ()),
        ([{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE], 4, None),
        ([LITTLE, LITTLE], 4, None),
        ([], 4, None),
        ([7], 4, None),
        ([{"name": "bytes", "configuration": 7}], 4, None),
        ([{"name": ["bytes"]}], 4, None),
        ([LITTLE, {"name": {}}], 4, None),
    ],
)
def test_chains_of_metadata(
    codecs: list[Any], itemsize: int, steps: tuple[str, ...] | None
) -> None:
    chain = parse_chain(codecs, itemsize=itemsize, ndim=2)
    assert (None if chain is None else chain.steps) == steps
