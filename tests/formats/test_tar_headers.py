"""Headers of tar archives: sizes, names and checksums, good and bad."""

import tarfile

import pytest

from tests.damage import flipped
from tests.sources.archives import header, pax
from zindex.errors import SourceError
from zindex.formats.tar_headers import Extension, read_header


def test_a_plain_header() -> None:
    block = header(b"folder/0001.jpg", size=1000)
    assert read_header(b"xyz" + block, 3) == (b"folder/0001.jpg", 1000, ord("0"))
    assert read_header(bytes(512), 0) is None


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_of_the_standard_library(form: int) -> None:
    info = tarfile.TarInfo("a" * 60 + "/" + "b" * 90 if form == tarfile.USTAR_FORMAT else "b" * 100)
    info.size = 8**11 - 1
    found = read_header(info.tobuf(form), 0)
    assert found == (info.name.encode(), info.size, ord("0"))


def test_sizes_beyond_octal_digits() -> None:
    info = tarfile.TarInfo("a.bin")
    info.size = 20 << 30
    found = read_header(info.tobuf(tarfile.GNU_FORMAT), 0)
    assert found is not None
    assert found[1] == 20 << 30


def test_checksums_of_signed_bytes() -> None:
    block = header("ä.txt".encode())
    signed = sum(block) - sum(block[148:156]) + 8 * 32 - 2 * 256
    assert read_header(header("ä.txt".encode(), checksum=signed), 0) == ("ä.txt".encode(), 0, 48)


def test_a_gnu_header_has_no_prefix() -> None:
    block = header(b"a.txt", magic=b"ustar  \0", prefix=b"00000000000")
    assert read_header(block, 0) == (b"a.txt", 0, 48)
    assert read_header(header(b"a.txt", prefix=b"dir"), 0) == (b"dir/a.txt", 0, 48)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"\x1f\x8b" + bytes(510), "there is no tar header"),
        (b"<html>" * 100, "there is no tar header"),
        (header(checksum=1), "there is a tar header whose checksum is wrong"),
        (header(size=b"-0000000001\0"), "there is a tar header with a negative size"),
        (header(size=b"\xff" * 12), "there is a tar header with a negative size"),
        (header(size=b"12x\0"), r"there is a tar header whose size is no number: b'12x"),
    ],
)
def test_bad_headers(block: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_header(block, 0)


def test_every_flipped_bit_of_a_header_is_seen() -> None:
    block = header(b"0001.txt", size=77)
    for at in range(512):
        if 148 <= at < 156:
            continue  # the checksum itself has several spellings
        for bit in range(8):
            changed = flipped(block, at, 1 << bit)
            with pytest.raises(SourceError, match="checksum is wrong"):
                read_header(changed, 0)


def fields_of(content: bytes, *, is_global: bool = False) -> Extension:
    found = Extension()
    found.take_pax(content, is_global=is_global)
    return found


def test_pax_fields() -> None:
    content = pax({"path": "a/ü.txt", "size": "123", "mtime": "1.5"})[512:]
    found = fields_of(content)
    assert (found.name, found.nbytes, found.is_sparse) == ("a/ü.txt".encode(), 123, False)
    assert fields_of(pax({"GNU.sparse.major": "1"})[512:]).is_sparse
    assert fields_of(pax({"comment": "made by git"})[512:], is_global=True).name is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"99 path=a\n", "there is a pax header that cannot be read"),
        (b"path=a\n", "there is a pax header that cannot be read"),
        (b"0 path=a\n", "there is a pax header that cannot be read"),
        (b"10 path=ab", "there is a pax header that cannot be read"),
        (b"11 size=-1\n", "there is a pax header whose size is no number: '-1'"),
        (b"12 size=0x1\n", "there is a pax header whose size is no number: '0x1'"),
    ],
)
def test_bad_pax_fields(content: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        fields_of(content)


@pytest.mark.parametrize("key", ["path", "size"])
def test_a_global_header_must_not_name_members(key: str) -> None:
    with pytest.raises(SourceError, match=f"there is a global pax header with a {key} for all"):
        fields_of(pax({key: "1"})[512:], is_global=True)
