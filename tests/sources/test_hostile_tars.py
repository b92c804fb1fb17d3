"""Hostile archives: all are refused, nothing is written, followed or run, and memory is bounded."""

import os
import random
import tarfile
from pathlib import Path

import pytest

from tests.damage import flipped
from tests.sources.archives import END, header, member, pax, read_all, write_members, write_tar
from zindex.errors import SourceError
from zindex.sources.tar_files import TarFiles

GOOD = member(b"0.txt", b"good")
AFTER = member(b"9.txt", b"good")
LONG = b"././@LongLink"

#: Members that are refused while the rest of the archive can be read.
REFUSED = {
    "traversal": (member(b"../../etc/1.txt", b"x"), "has a name that leads out of the archive"),
    "inner traversal": (member(b"a/../../1.txt", b"x"), "has a name that leads out"),
    "absolute": (member(b"/etc/cron.d/1.txt", b"x"), "'/etc/cron.d/1.txt' that has a name that"),
    "long traversal": (
        member(LONG, b"../" * 300 + b"1.txt\0", kind=b"L") + member(b"1.txt", b"x"),
        "has a name that leads out",
    ),
    "pax traversal": (pax({"path": "../1.txt"}) + member(b"1.txt", b"x"), "'../1.txt' that has a"),
    "prefix": (member(b"1.txt", b"x", prefix=b"../.."), "leads out of the archive"),
    "no name": (member(b"", b"x"), "a member '' that has no name"),
    "symbolic link": (header(b"1.txt", kind=b"2"), "a symbolic link '1.txt', which is not follow"),
    "hard link": (header(b"1.txt", kind=b"1"), "a hard link '1.txt', which is not followed"),
    "character device": (header(b"1.txt", kind=b"3"), "a character device '1.txt'"),
    "block device": (header(b"1.txt", kind=b"4"), "a block device '1.txt'"),
    "pipe": (header(b"1.txt", kind=b"6"), "a pipe '1.txt', which is not followed"),
    "link with a size": (header(b"1.txt", kind=b"2", size=9999), "a symbolic link '1.txt'"),
    "long link": (
        pax({"path": "p" * 300 + ".txt"}) + header(b"1.txt", kind=b"2"),
        "a symbolic link 'ppp",
    ),
    "pax sparse": (
        pax({"GNU.sparse.major": "1", "GNU.sparse.realsize": "9"}) + member(b"1.txt", b"x"),
        "a member '1.txt' that is sparse",
    ),
    "twice": (member(b"1.txt", b"x") + member(b"1.TXT", b"y"), "a second 'txt' of the sample '1'"),
    "a key": (member(b"1.__key__", b"x"), "a second '__key__' of the sample '1'"),
    "a url": (member(b"1.__URL__", b"x"), "a second '__url__' of the sample '1'"),
}

#: Places where an archive cannot be read on.
BROKEN = {
    "checksum": (header(b"1.txt", checksum=5), "a tar header whose checksum is wrong"),
    "no header": (b"\xff" * 512, "there is no tar header"),
    "negative": (header(b"1.txt", size=b"\xff" * 12), "a tar header with a negative size"),
    "negative octal": (header(b"1.txt", size=b"-0000000777\0"), "with a negative size"),
    "no number": (header(b"1.txt", size=b"zzzzzzzzzzz\0"), "whose size is no number"),
    "beyond the end": (header(b"1.txt", size=1 << 20), r"[\d,]+ bytes must follow, only [\d,]+ do"),
    "huge": (header(b"1.txt", size=b"\x80" + b"\xff" * 11), "bytes, more than 4,294,967,296"),
    "huge pax": (
        pax({"size": "9" * 19}) + header(b"1.txt"),
        "has 9,999,999,999,999,999,999 bytes, more than 4,294,967,296",
    ),
    "pax of many digits": (pax({"size": "9" * 5000}) + header(b"1.txt"), "whose size is no number"),
    "pax without end": (member(b"x", b"999 path=a\n", kind=b"x"), "a pax header that cannot be re"),
    "pax for all": (pax({"path": "../x"}, kind=b"g") + GOOD, "a global pax header with a path"),
    "pax sizes for all": (pax({"size": "1"}, kind=b"g"), "a global pax header with a size for all"),
    "long long name": (
        header(LONG, size=2 << 20, kind=b"L") + bytes(2 << 20),
        "an extended header of 2,097,152 bytes, more than 1,048,576",
    ),
    "cut long name": (header(LONG, size=5000, kind=b"L"), r"5,000 bytes must follow, only [\d,]+"),
    "sparse": (header(b"1.txt", kind=b"S"), "there is a sparse member, which is not supported"),
    "volume": (header(b"1.txt", kind=b"M"), "there is a member of kind 'M', which is not suppo"),
    "unknown": (header(b"1.txt", kind=b"\xe9"), "there is a member of kind 'é', which is not"),
}


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, and below it nothing but one archive."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    return tmp_path / "inner" / "a.tar"


def contents(folder: Path) -> set[str]:
    return {os.path.join(at, name) for at, _, names in os.walk(folder) for name in names}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("part_nbytes", [512, 64 << 20])
def test_refused_members(untouched: Path, name: str, part_nbytes: int) -> None:
    hostile, message = REFUSED[name]
    path = write_members(untouched, GOOD, hostile, AFTER)
    with pytest.raises(SourceError, match=rf"^{path} must be .*, but at byte [\d,]+ .*{message}"):
        read_all(TarFiles(path, part_nbytes=part_nbytes))
    files = TarFiles(path, part_nbytes=part_nbytes, on_damage="skip")
    assert [(sample["__key__"], sample["txt"]) for sample in read_all(files)] == [
        ("0", b"good"),
        ("9", b"good"),
    ]
    assert files.num_skipped == 1
    assert contents(untouched.parents[1]) == {str(path)}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("part_nbytes", [512, 64 << 20])
def test_archives_that_cannot_be_read_on(untouched: Path, name: str, part_nbytes: int) -> None:
    hostile, message = BROKEN[name]
    path = write_members(untouched, GOOD, AFTER, hostile, member(b"z.txt", b"x"))
    with pytest.raises(SourceError, match=rf"^{path} must be .*, but at byte [\d,]+ .*{message}"):
        read_all(TarFiles(path, part_nbytes=part_nbytes))
    files = TarFiles(path, part_nbytes=part_nbytes, on_damage="skip")
    # The sample before the damage may have lost members to it.
    assert [sample["__key__"] for sample in read_all(files)][:1] == ["0"]
    assert files.num_skipped >= 1
    assert contents(untouched.parents[1]) == {str(path)}


def test_a_sample_with_a_refused_member_is_left_out_whole(untouched: Path) -> None:
    path = write_members(
        untouched,
        member(b"1.txt", b"x"),
        header(b"1.png", kind=b"2"),
        member(b"1.cls", b"x"),
        header(b"1.gif", kind=b"2"),
        AFTER,
    )
    files = TarFiles(path, on_damage="skip")
    assert [sample["__key__"] for sample in read_all(files)] == ["9"]
    assert files.num_skipped == 1


def test_links_that_are_of_no_sample(untouched: Path) -> None:
    path = write_members(untouched, GOOD, header(b"latest", kind=b"2"), member(b"0.cls", b"x"))
    with pytest.raises(SourceError, match="a symbolic link 'latest', which is not followed"):
        read_all(TarFiles(path))
    files = TarFiles(path, on_damage="skip")
    assert [sorted(sample) for sample in read_all(files)] == [["__key__", "__url__", "cls", "txt"]]
    assert files.num_skipped == 1


def test_a_hole_of_a_terabyte_is_not_read(untouched: Path) -> None:
    # A sparse file on disk may really be as large as its header says.
    path = untouched
    size = 1 << 40
    with open(path, "wb") as stream:
        stream.write(GOOD + header(b"1.txt", size=b"\x80" + size.to_bytes(11, "big")))
        stream.seek(size, os.SEEK_CUR)
        stream.write(AFTER + END)
    with pytest.raises(
        SourceError, match="that has 1,099,511,627,776 bytes, more than 4,294,967,2"
    ):
        list(TarFiles(path, part_nbytes=1 << 41).read_part(0))
    files = TarFiles(path, part_nbytes=1 << 41, on_damage="skip")
    assert [sample["__key__"] for sample in read_all(files)] == ["0", "9"]


def test_an_endless_file_of_zeros_is_left(untouched: Path) -> None:
    with open(untouched, "wb") as stream:
        stream.write(GOOD)
        stream.truncate(1 << 40)
    with pytest.raises(SourceError, match="more than 67,108,864 zeros follow the archive's end"):
        list(TarFiles(untouched, part_nbytes=1 << 41).read_part(0))


def test_every_byte_of_a_small_archive_may_be_wrong(untouched: Path) -> None:
    members = [member(b"%d.txt" % number, b"x" * 20) for number in range(3)]
    whole = b"".join(members) + END
    for at in range(0, len(whole), 11):
        for flip in (0x01, 0x80):
            untouched.write_bytes(flipped(whole, at, flip))
            files = TarFiles(untouched, on_damage="skip", part_nbytes=1200)
            found = read_all(files)
            # Either it is seen, or it is in a content or in padding, which have no checksum.
            assert files.num_skipped or [sample["__key__"] for sample in found] == list("012")


def change(content: bytearray, rng: random.Random) -> None:
    """Damage an archive in one of several ways, often with a checksum that fits again."""
    block = rng.randrange(len(content) // 512) * 512
    kind = rng.random()
    if kind < 0.2:
        content[rng.randrange(len(content))] = rng.randrange(256)
    elif kind < 0.3:
        del content[rng.randrange(1024, len(content)) :]
    elif kind < 0.4:
        content[block:block] = content[: 512 * rng.randint(1, 3)]
    else:
        start, stop = rng.choice([(0, 100), (124, 136), (148, 157), (257, 265), (345, 500)])
        content[block + rng.randrange(start, stop)] = rng.choice(b"\0 0178xgLKS2-/.\xff\x80")
        head = content[block : block + 148] + b" " * 8 + content[block + 156 : block + 512]
        content[block + 148 : block + 156] = b"%06o\0 " % sum(head)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_random_damage(untouched: Path, form: int) -> None:
    """Any content: one of our errors, or the same samples for any way of reading."""
    names = [f"{'d' * 20}/{i}{'n' * 75}.{field}" for i in range(4) for field in ("a", "b")]
    write_tar(untouched, [(name, name.encode() * 9) for name in names], form=form)
    whole, rng = untouched.read_bytes(), random.Random(form)
    for _ in range(80):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            if len(content) > 1024:
                change(content, rng)
        untouched.write_bytes(content)
        part_nbytes = rng.choice([512, 3000, 64 << 20])
        try:
            found = read_all(TarFiles(untouched, part_nbytes=part_nbytes))
        except SourceError:
            found = None
        files = TarFiles(untouched, part_nbytes=part_nbytes, on_damage="skip")
        samples = read_all(files)
        assert (found is None) == (files.num_skipped > 0)
        assert found is None or found == samples
        again = TarFiles(untouched, part_nbytes=part_nbytes, on_damage="skip")
        backwards = [list(again.read_part(part)) for part in reversed(range(again.num_parts))]
        assert [sample for part in reversed(backwards) for sample in part] == samples
