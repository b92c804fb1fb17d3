"""Compressed streams: whole ones, several in one, cut, broken, and bombs."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sources.archives import END, member, numbered, plain, read_all, write_jsonl, write_tar
from zindex.errors import ConfigError, SourceError
from zindex.io import decompression
from zindex.io.decompression import DamageError, decompress
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.tar_files import TarFiles

Compress = Callable[[bytes], bytes]


def compress_zstd(content: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="needs the extra 'streaming'")
    compressed: bytes = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    return compressed


FORMS = {
    "gzip": (".gz", gzip.compress),
    "bzip2": (".bz2", bz2.compress),
    "xz": (".xz", lzma.compress),
    "zstandard": (".zst", compress_zstd),
}
CONTENT = b"".join(b"%d " % (number * number) for number in range(5000))


@pytest.fixture(params=sorted(FORMS))
def form(request: pytest.FixtureRequest) -> tuple[str, str, Compress]:
    """Name, ending and compressor."""
    ending, compress = FORMS[request.param]
    return request.param, ending, compress


def chunks(content: bytes, size: int = 1000) -> Iterator[bytes]:
    return (content[at : at + size] for at in range(0, len(content), size))


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_whole_streams(form: tuple[str, str, Compress], size: int) -> None:
    name, _, compress = form
    for stream, content in (
        (compress(CONTENT), CONTENT),
        (compress(CONTENT) + compress(b"") + compress(CONTENT), CONTENT * 2),
        (compress(CONTENT) + bytes(1500), CONTENT),
        (compress(b""), b""),
    ):
        assert b"".join(decompress(chunks(stream, size), name)) == content


def test_every_cut_is_damage(form: tuple[str, str, Compress]) -> None:
    name, _, compress = form
    stream = compress(b"hello " * 20)
    for stop in range(len(stream)):
        with pytest.raises(DamageError, match=f"its {name} stream ends too early"):
            list(decompress(chunks(stream[:stop], 5), name))


def test_broken_streams(form: tuple[str, str, Compress]) -> None:
    name, _, compress = form
    whole = compress(CONTENT)
    broken = bytearray(whole)
    for at in range(len(whole) // 2, len(whole) // 2 + 40):
        broken[at] ^= 0xFF
    for stream in (bytes(broken), b"no stream at all" * 9, whole + b"something else"):
        with pytest.raises(DamageError, match=f"its {name} stream (is broken|ends too early)"):
            list(decompress(chunks(stream), name))


def test_a_bomb_comes_in_bounded_steps(form: tuple[str, str, Compress]) -> None:
    name, _, compress = form
    bomb = compress(bytes(64 << 20))
    assert len(bomb) < 1 << 17
    limit = decompression.STEP_NBYTES if name != "zstandard" else 128 << 20
    total = 0
    for chunk in decompress(iter([bomb]), name):
        assert len(chunk) <= limit
        total += len(chunk)
    assert total == 64 << 20


@pytest.mark.parametrize("step", [1, 2, 3, 257, 258, 1000])
def test_steps_of_any_size(
    form: tuple[str, str, Compress], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompression, "STEP_NBYTES", step)
    name, _, compress = form
    for content in (bytes(1000), bytes(range(250)) * 4, b"x"):
        for size in (1, 10_000):
            assert b"".join(decompress(chunks(compress(content), size), name)) == content


def test_windows_are_bounded() -> None:
    zstandard = pytest.importorskip("zstandard", reason="needs the extra 'streaming'")
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    stream = writer.compress(CONTENT) + writer.flush()
    with pytest.raises(DamageError, match=r"its zstandard stream is broken: .*memory"):
        list(decompress(iter([stream]), "zstandard"))


def test_zstandard_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"library zstandard, .*; install zindex\[streaming\]"):
        list(decompress(iter([b"x"]), "zstandard"))


def test_compressed_files_hold_the_same_samples(
    tmp_path: Path, form: tuple[str, str, Compress]
) -> None:
    _, ending, compress = form
    lines = write_jsonl(tmp_path / "a.jsonl", [{"i": number} for number in range(300)])
    packed = tmp_path / f"b.jsonl{ending}"
    packed.write_bytes(compress(lines.read_bytes()))
    files = JsonlFiles(packed, part_nbytes=10)
    assert files.num_parts == 1
    assert plain(read_all(files)) == plain(read_all(JsonlFiles(lines)))
    archive = write_tar(tmp_path / "a.tar", numbered(30))
    packed = tmp_path / f"b.tar{ending}"
    packed.write_bytes(compress(archive.read_bytes()))
    tars = TarFiles(packed, part_nbytes=10)
    assert tars.num_parts == 1
    assert tars.part_nbytes(0) == packed.stat().st_size
    assert plain(read_all(tars)) == plain(read_all(TarFiles(archive)))


def test_a_cut_compressed_file_gives_what_is_before(
    tmp_path: Path, form: tuple[str, str, Compress]
) -> None:
    name, ending, compress = form
    lines = write_jsonl(tmp_path / "a.jsonl", [{"i": "x" * number} for number in range(99)])
    expected = plain(read_all(JsonlFiles(lines)))
    stream = compress(lines.read_bytes())
    path = tmp_path / f"b.jsonl{ending}"
    path.write_bytes(stream[:-1])
    with pytest.raises(SourceError, match=f"at byte [0-9,]+ its {name} stream ends too early"):
        read_all(JsonlFiles(path))
    files = JsonlFiles(path, on_damage="skip")
    found = plain(read_all(files))
    assert found == expected[: len(found)]
    assert files.num_skipped == 1


def test_a_member_that_is_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.sources.tar_members.MAX_MEMBER_NBYTES", 1000)
    path = tmp_path / "a.tar.gz"
    content = member(b"a.txt", bytes(50_000)) + member(b"b.txt", b"b") + END
    path.write_bytes(gzip.compress(content))
    with pytest.raises(SourceError, match=r"a member 'a.txt' that has 50,000 bytes, more than 1,0"):
        read_all(TarFiles(path))
    files = TarFiles(path, on_damage="skip")
    assert [sample["txt"] for sample in read_all(files)] == [b"b"]
    assert files.num_skipped == 1


def test_a_size_that_the_stream_does_not_have(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(member(b"a.txt", b"", size=3 << 30)))
    with pytest.raises(
        SourceError, match=r"at byte 0 3,221,225,984 bytes must follow, only 512 do"
    ):
        read_all(TarFiles(path))


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("trailer", [-8, -5, -4, -1])
def test_a_wrong_checksum_loses_nothing(size: int, trailer: int) -> None:
    wrong = bytearray(gzip.compress(CONTENT))
    wrong[trailer] ^= 1
    stream = gzip.compress(CONTENT) + bytes(wrong) + gzip.compress(b"last")
    found: list[DamageError] = []
    assert b"".join(decompress(chunks(stream, size), "gzip", found.append)) == CONTENT * 2 + b"last"
    assert [damage.offset for damage in found] == [2 * len(CONTENT)]
    with pytest.raises(DamageError, match=r"incorrect (data|length) check"):
        list(decompress(chunks(stream, size), "gzip"))


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_what_is_before_damage_is_given(size: int) -> None:
    packer = zlib.compressobj(wbits=31)
    begun = packer.compress(CONTENT) + packer.flush(zlib.Z_FULL_FLUSH)
    given: list[bytes] = []
    with pytest.raises(DamageError, match=r"is broken: .* invalid block type") as caught:
        given.extend(decompress(chunks(begun + b"\xff" * 40, size), "gzip"))
    assert b"".join(given) == CONTENT
    assert caught.value.offset == len(CONTENT)


def test_a_damaged_gzip_file_is_skipped_in_part(tmp_path: Path) -> None:
    lines = b"".join(b'{"i": %d}\n' % number for number in range(9))
    wrong = bytearray(gzip.compress(lines))
    wrong[-6] ^= 1
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(bytes(wrong) + gzip.compress(lines))
    files = JsonlFiles(path, on_damage="skip")
    assert [sample["i"] for sample in read_all(files)] == [*range(9), *range(9)]
    assert files.num_skipped == 1
    with pytest.raises(SourceError, match=r"its gzip stream is broken: .* incorrect data check"):
        read_all(JsonlFiles(path))
