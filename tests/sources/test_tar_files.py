"""Samples of tar archives: grouping, parts, names, and archives that end too early."""

import io
import pickle
import random
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.damage import flip
from tests.sources.archives import (
    END,
    header,
    member,
    numbered,
    pax,
    plain,
    read_all,
    write_members,
    write_tar,
)
from zindex.errors import SourceError
from zindex.sources import tar_files, tar_members
from zindex.sources.tar_files import TarFiles


def expected(count: int, size: int = 100) -> list[dict[str, Any]]:
    """Return the samples of `numbered`."""
    samples: dict[str, dict[str, Any]] = {}
    for name, content in numbered(count, size=size):
        key, _, field = name.partition(".")
        samples.setdefault(key, {"__key__": key})[field] = content
    return list(samples.values())


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("part_nbytes", [100, 512, 3000, 10_000, 64 << 20])
def test_parts_give_each_sample_once(tmp_path: Path, form: int, part_nbytes: int) -> None:
    path = write_tar(tmp_path / "a.tar", numbered(12), form=form)
    files = TarFiles(path, part_nbytes=part_nbytes)
    assert files.num_parts == -(-path.stat().st_size // part_nbytes)
    found = read_all(files)
    assert plain(found) == expected(12)
    assert {sample["__url__"] for sample in found} == {str(path)}
    again = TarFiles(path, part_nbytes=part_nbytes)
    backwards = [list(again.read_part(part)) for part in reversed(range(again.num_parts))]
    assert [sample for part in reversed(backwards) for sample in part] == found
    other = TarFiles(path, part_nbytes=part_nbytes)
    middle = other.num_parts // 2
    assert list(other.read_part(middle)) == backwards[-1 - middle]
    assert sum(files.part_nbytes(part) or 0 for part in range(files.num_parts)) == (
        path.stat().st_size
    )


@settings(max_examples=60)
@given(
    members=st.lists(
        st.tuples(st.sampled_from("aabc"), st.sampled_from("xyz"), st.integers(0, 1500)),
        max_size=14,
    ),
    part_nbytes=st.integers(200, 6000),
    step=st.sampled_from([512, 700, 1 << 20]),
)
def test_any_members(
    tmp_path_factory: pytest.TempPathFactory,
    members: list[tuple[str, str, int]],
    part_nbytes: int,
    step: int,
) -> None:
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    runs: list[dict[str, Any]] = []
    kept = []
    for key, field, size in members:
        if not runs or runs[-1]["__key__"] != key:
            runs.append({"__key__": key})
        if field not in runs[-1]:
            runs[-1][field] = bytes([size % 256]) * size
            kept.append((f"{key}.{field}", runs[-1][field]))
    write_tar(path, kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar_files, "STEP_NBYTES", step)
        patch.setattr(tar_files, "HEADERS_NBYTES", step)
        files = TarFiles(path, part_nbytes=part_nbytes)
        backwards = [list(files.read_part(part)) for part in reversed(range(files.num_parts))]
        assert plain([sample for part in reversed(backwards) for sample in part]) == runs
        assert plain(read_all(TarFiles(path, part_nbytes=part_nbytes))) == runs


def test_the_same_samples_as_webdataset(tmp_path: Path) -> None:
    theirs = pytest.importorskip("webdataset.tariterators", reason="needs the extra 'test'")
    names = [
        "0001.jpg",
        "0001.Seg.PNG",
        "README",
        "0001.cls",
        "folder/0001.jpg",
        "folder/0001.txt",
        "folder.x/0002.jpg",
        "./0003.jpg",
        "__meta__",
        "__meta__/0003.json",
        "0004.",
        "0001.jpg",
        "n" * 120 + ".jpg",
        "d" * 120 + "/ü.jpg",
    ]
    path = tmp_path / "a.tar"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        write_tar(path, [(name, name.encode()) for name in names], form=form)
        members = [
            {**found, "__url__": str(path)}
            for found in theirs.tar_file_iterator(io.BytesIO(path.read_bytes()))
        ]
        samples = list(theirs.group_by_keys(members))
        assert read_all(TarFiles(path)) == samples
        assert len(samples) == 8


@settings(max_examples=60)
@given(
    members=st.dictionaries(
        st.text(
            st.characters(blacklist_categories=["Cs"], blacklist_characters="./\0_"), min_size=1
        ).map(lambda name: f"{name}.x"),
        st.binary(max_size=1500),
        max_size=6,
    ),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_the_same_members_as_the_standard_library(
    tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes], form: int
) -> None:
    path = write_tar(tmp_path_factory.mktemp("tar") / "a.tar", members.items(), form=form)
    with tarfile.open(path) as archive:
        theirs = [(member.name, archive.extractfile(member)) for member in archive]
        expected = [(name, stream.read() if stream else b"") for name, stream in theirs]
    assert [(f"{sample['__key__']}.x", sample["x"]) for sample in read_all(TarFiles(path))] == (
        expected
    )


def test_members_that_are_passed_by(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("x", "x/y.z"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name in ("x/.hidden.txt", "._0.jpg", "0.jpg", "x/y.z/README", "__m__/0.txt", "0.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    assert plain(read_all(TarFiles(path))) == [{"__key__": "0", "jpg": b"0.jpg", "txt": b"0.txt"}]


def test_a_tar_in_a_tar_is_a_member(tmp_path: Path) -> None:
    inner = write_tar(tmp_path / "inner.tar", numbered(20)).read_bytes()
    path = write_tar(tmp_path / "a.tar", [(f"{i}.tar", inner) for i in range(3)])
    files = TarFiles(path, part_nbytes=5000)
    backwards = [list(files.read_part(part)) for part in reversed(range(files.num_parts))]
    assert plain([sample for part in reversed(backwards) for sample in part]) == [
        {"__key__": str(i), "tar": inner} for i in range(3)
    ]


def test_old_and_extended_headers(tmp_path: Path) -> None:
    path = write_members(
        tmp_path / "a.tar",
        member(b"v7/", kind=b"\0", magic=b""),
        member(b"v7/0.txt", b"0", kind=b"\0", magic=b""),
        member(b"1.txt", b"1", prefix=b"dir"),
        pax({"comment": "from git"}, kind=b"g"),
        pax({"path": "ü.txt", "size": "3"}) + header(b"x", size=0) + b"two".ljust(512, b"\0"),
        member(b"././@LongLink", b"long/" + b"n" * 300 + b".txt\0", kind=b"L"),
        member(b"long/", b"3"),
        member(b"././@LongLink", b"target\0", kind=b"K"),
        member(b"4.txt", b"4", kind=b"7"),
    )
    assert [(sample["__key__"], sample["txt"]) for sample in read_all(TarFiles(path))] == [
        ("v7/0", b"0"),
        ("dir/1", b"1"),
        ("ü", b"two"),
        ("long/" + "n" * 300, b"3"),
        ("4", b"4"),
    ]


def test_field_names_are_in_small_letters(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("x.TXT", b"X"), ("x.Seg.PNG", b"S")])
    assert plain(read_all(TarFiles(path))) == [{"__key__": "x", "txt": b"X", "seg.png": b"S"}]


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = write_members(tmp_path / "a.tar", member(b"\xff.txt", b"x"))
    [sample] = read_all(TarFiles(path))
    assert sample["__key__"] == "\udcff"


def test_every_cut_of_an_archive_is_damage(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", numbered(3, size=700))
    whole, samples = path.read_bytes(), expected(3, 700)
    data_nbytes = len(whole.rstrip(b"\0"))
    data_nbytes += -data_nbytes % 512
    for size in [*range(0, 1100, 7), *range(1100, data_nbytes + 512, 101), data_nbytes + 511]:
        path.write_bytes(whole[:size])
        for part_nbytes in (1000, 64 << 20):
            with pytest.raises(
                SourceError, match=r"but at byte [\d,]+ (the archive ends|[\d,]+ by)"
            ):
                read_all(TarFiles(path, part_nbytes=part_nbytes))
        files = TarFiles(path, on_damage="skip")
        found = plain(read_all(files))
        # The last sample may lack members, so it is dropped, too.
        assert found == samples[: len(found)]
        assert len(found) < 3
        assert files.num_skipped == 1
    for size in range(data_nbytes + 512, len(whole), 512):
        path.write_bytes(whole[:size])
        assert plain(read_all(TarFiles(path))) == samples


def test_damage_names_the_file_and_the_place(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", numbered(2))
    flip(path, 5 * 512)
    with pytest.raises(
        SourceError,
        match=rf"^{path} must be a whole tar archive of samples, but at byte 2,560 there is a tar "
        "header whose checksum is wrong; restore the file, or leave out the sample there and all "
        "after it with on_damage='skip' \\(--on-damage skip\\)$",
    ):
        read_all(TarFiles(path))


def test_bytes_behind_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = write_tar(tmp_path / "a.tar", numbered(1)).read_bytes()
    both = tmp_path / "b.tar"
    both.write_bytes(one + one)
    with pytest.raises(
        SourceError, match="there are bytes behind the archive's end; is it several"
    ):
        read_all(TarFiles(both))
    files = TarFiles(both, on_damage="skip")
    assert plain(read_all(files)) == expected(1)
    assert files.num_skipped == 1
    # Nor is the sample before the end lost if samples are read in any order.
    files = TarFiles(both, on_damage="skip")
    assert files.find_samples() is not None
    assert plain(list(files.parse_samples(files.read_samples([(0, 1)])))) == expected(1)
    assert files.num_skipped == 1
    monkeypatch.setattr(tar_members, "MAX_PADDING_NBYTES", 1 << 20)
    both.write_bytes(one + bytes(2 << 20))
    with pytest.raises(SourceError, match="more than 1,048,576 zeros follow the archive's end"):
        read_all(TarFiles(both))


def test_archives_without_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(END)
    assert read_all(TarFiles(path)) == []
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="at byte 0 the archive ends without the two blocks"):
        read_all(TarFiles(path))


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    files = TarFiles(write_tar(tmp_path / "a.tar", numbered(200)), part_nbytes=3000)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda part: list(files.read_part(part)), range(files.num_parts)))
    assert plain([sample for part in parts for sample in part]) == expected(200)


def test_a_reader_travels_to_workers(tmp_path: Path) -> None:
    files = TarFiles(write_tar(tmp_path / "a.tar", numbered(9)), part_nbytes=2000)
    found = read_all(files)
    assert read_all(pickle.loads(pickle.dumps(files))) == found
    samples = files.read_part(0)
    next(samples)
    del samples


def test_urls_parts_and_fingerprint(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_tar(tmp_path / f"{name}.tar", numbered(3))
    files = TarFiles("", include_dirs=f"{tmp_path}*2", part_nbytes=3000)
    assert [Path(url).name for url in files.urls] == ["a.tar", "b.tar"] * 2
    assert [files.part_url(part) for number in range(4) for part in files.url_parts(number)] == [
        url for number, url in enumerate(files.urls) for _ in files.url_parts(number)
    ]
    assert len(read_all(files)) == 12
    assert files.fingerprint() != TarFiles(tmp_path, part_nbytes=3000).fingerprint()
    with_names = TarFiles("", include_dirs=f"{tmp_path}*2", part_nbytes=3000, meta_names=["a"])
    assert files.fingerprint() != with_names.fingerprint()


ODD_NAMES = (
    *(
        "a.txt",
        "a.TXT",
        "a.b.txt",
        "d/a.txt",
        "d.e/a.txt",
        "__m__/a.x",
        "./a.txt",
        "a",
        "a.",
        "b.x",
    ),
    *(
        "a.__key__",
        "_a.id",
        "ü.txt",
        "d//a.txt",
        "a.json",
        "a b.txt",
        "a.ü",
        "a.-",
        "é/b.x",
        "-/a.x",
    ),
)


@pytest.mark.parametrize("seed", range(30))
def test_plain_samples_are_those_of_any_others(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    names = [rng.choice(ODD_NAMES) for _ in range(12)]
    members = [(name, name.encode() * rng.randint(0, 200)) for name in names]
    path = write_tar(tmp_path / "a.tar", members, form=rng.choice([0, 1, 2]))
    files, in_order = (TarFiles(path, on_damage="skip") for _ in range(2))
    found = files.find_samples()
    assert found is not None
    samples = list(files.parse_samples(files.read_samples([(0, found.num_samples)])))
    assert samples == read_all(in_order)
    assert files.num_skipped == in_order.num_skipped


def test_members_of_a_sample_that_are_apart_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = [(f"{number}.{field}", b"") for field in ("txt", "id") for number in range(3)]
    path = write_tar(tmp_path / "a.tar", members)
    TarFiles(path).find_samples()
    [message] = caplog.messages
    assert message.startswith(f"{path}: 3 of 6 samples have the key of an earlier one; ")
    caplog.clear()
    TarFiles(write_tar(tmp_path / "b.tar", sorted(members))).find_samples()
    assert not caplog.messages
