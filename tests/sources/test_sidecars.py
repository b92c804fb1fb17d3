"""The metadata of a tar: which sample gets which fields, and errors."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import read_all, write_jsonl, write_tar
from zindex.errors import ConfigError, SourceError
from zindex.sources.tar_files import TarFiles

MEMBERS = [
    ("0.txt", b"with id"),
    ("0.id", b"the bytes in it are not looked at"),
    ("1.txt", b"without id"),
    ("2.id", b""),
    ("2.txt", b"id without a line"),
    ("sub/0.id", b""),
    ("sub/0.txt", b"in a folder"),
]
LINES = [
    {"key": "0", "Caption": "zero", "width": 10, "unused": 1},
    {"key": "1", "Caption": "one"},
    {"key": "sub/0", "Caption": None},
    {"key": "0", "width": 20},
]


def metadata(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hidden = {"txt", "id", "__url__"}
    return [{key: sample[key] for key in sample if key not in hidden} for sample in samples]


def write(folder: Path, lines: list[Any] | None = LINES, name: str = "a") -> Path:
    if lines is not None:
        write_jsonl(folder / f"{name.partition('.')[0]}.meta.jsonl", lines)
    return write_tar(folder / f"{name}.tar", MEMBERS)


@pytest.mark.parametrize("part_nbytes", [512, 64 << 20])
@pytest.mark.parametrize("name", ["a", "a.b", "a.tar.0"])
def test_the_join(tmp_path: Path, part_nbytes: int, name: str) -> None:
    path = write(tmp_path, name=name)
    files = TarFiles(path, meta_names=["Caption", "width"], part_nbytes=part_nbytes)
    assert metadata(read_all(files)) == [
        {"__key__": "0", "caption": "zero", "width": 20},
        {"__key__": "1"},
        {"__key__": "2", "caption": None, "width": None},
        {"__key__": "sub/0", "caption": None, "width": None},
    ]


def test_no_names_no_metadata(tmp_path: Path) -> None:
    path = write(tmp_path, [{"no": "key"}])
    assert metadata(read_all(TarFiles(path)))[0] == {"__key__": "0"}


def test_no_sidecar(tmp_path: Path) -> None:
    samples = read_all(TarFiles(write(tmp_path, None), meta_names=["width"]))
    assert metadata(samples)[:2] == [{"__key__": "0", "width": None}, {"__key__": "1"}]


def test_a_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    samples = read_all(TarFiles("a.tar", meta_names=["width"]))
    assert [sample.get("width") for sample in samples] == [20, None, None, None]
    assert samples[0]["__url__"] == "a.tar"


def test_each_archive_has_its_own(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path, [{"key": "0", "of": name}], name=name)
    files = TarFiles(tmp_path, meta_names=["of"])
    assert [sample["of"] for sample in read_all(files) if sample["__key__"] == "0"] == ["a", "b"]


@pytest.mark.parametrize("name", ["txt", "TXT", "id"])
def test_a_member_of_the_name_of_metadata(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    with pytest.raises(ValueError, match=rf"a .*{name.lower()}' .*'0'"):
        read_all(TarFiles(path, meta_names=[name]))
    files = TarFiles(path, meta_names=[name], on_damage="skip")
    assert [sample["__key__"] for sample in read_all(files)] == ["1"]
    assert files.num_skipped == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"caption": "x"}', "there must be an object with a key, a text, the key is None"),
        ('{"key": 7, "caption": "x"}', "there must be an object with a key, a text, the key is 7"),
        ('{"key": "0", "caption"', "there is no JSON"),
        ('["key"]', "there must be a JSON object, it is of type list"),
        ("", "there is a blank line"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path)
    (tmp_path / "a.meta.jsonl").write_text(
        f'{{"key": "2", "caption": "x"}}\n{line}\n{{"key": "no"}}\n'
    )
    with pytest.raises(
        SourceError, match=rf"a\.meta\.jsonl must be metadata .* at byte 29 {message}"
    ):
        read_all(TarFiles(path, meta_names=["caption"]))
    files = TarFiles(path, meta_names=["caption"], on_damage="skip")
    assert [sample.get("caption", "none") for sample in read_all(files)] == [
        None,
        "none",
        "x",
        None,
    ]
    assert files.num_skipped == 1


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.formats.json_lines.MAX_LINE_NBYTES", 1000)
    monkeypatch.setattr("zindex.io.file_chunks.LOCAL_NBYTES", 64)
    path = write(tmp_path)
    with open(tmp_path / "a.meta.jsonl", "a") as stream:
        stream.write(" " * 5000)
    files = TarFiles(path, meta_names=["caption"], on_damage="skip")
    assert len(read_all(files)) == 4
    assert files.num_skipped == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("caption", "meta_names must be a list, got the text 'caption'"),
        (["a", "A"], "each name of metadata must be given once, got 'A' again"),
        (["__key__"], "a name of metadata must not begin with __, got '__key__'"),
        ([""], "must be names of fields, got ''"),
        ([1], "must be names of fields, got 1"),
    ],
)
def test_names_that_are_refused(tmp_path: Path, names: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TarFiles(write(tmp_path), meta_names=names)


WITH_ID = [("0.txt", b""), ("0.id", b""), ("d/1.txt", b""), ("d/1.id", b"")]
WITHOUT = [("0.txt", b""), ("d/1.txt", b"")]


@pytest.mark.parametrize(
    ("members", "lines", "message"),
    [
        (WITH_ID, None, r"but there is no line of metadata in {}/a.meta.jsonl beside it"),
        (WITH_ID, [], r"but there is no line of metadata in {}/a.meta.jsonl beside it"),
        (
            WITHOUT,
            [{"key": "0", "w": 1}],
            "but none of 2 samples has a member .id, and only samples with one get metadata, from "
            "the line with their key in {}/a.meta.jsonl",
        ),
        (
            WITH_ID,
            [{"key": "0.txt", "w": 1}],
            "but no line of {}/a.meta.jsonl has the key of one of 2 samples with a member .id, "
            "such as 'd/1': its name, with its folder, up to the first dot",
        ),
        (WITH_ID, [{"key": "d/1", "w": 1}], None),
        (WITH_ID, [{"key": "d/1", "W": 1}], "but its metadata have no value of ['w']"),
        ([], None, None),
    ],
)
def test_messages(
    tmp_path: Path,
    members: list[tuple[str, bytes]],
    lines: list[object] | None,
    message: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = write_tar(tmp_path / "a.tar", members)
    if lines is not None:
        write_jsonl(tmp_path / "a.meta.jsonl", lines)
    files = TarFiles(path, meta_names=["w"])
    with caplog.at_level(logging.WARNING, "zindex"):
        assert len(read_all(files)) == len(members) / (2 if members is WITH_ID else 1)
        read_all(files)
        read_all(TarFiles(path))
    said = [record.getMessage() for record in caplog.records]
    start = f"{path}: meta_names asks for ['w'], "
    assert said == ([] if message is None else [start + message.format(tmp_path)])


def test_a_jsonl_of_the_same_name(tmp_path: Path) -> None:
    path = write(tmp_path, None)
    write_jsonl(tmp_path / "a.jsonl", LINES)
    expected = [20, "none", None, None]

    def widths() -> list[Any]:
        files = TarFiles(path, meta_names=["width"])
        assert files.find_samples() is not None
        found = files.parse_samples(files.read_samples([(0, 4)]))
        return [sample.get("width", "none") for sample in found]

    assert widths() == expected
    samples = read_all(TarFiles(path, meta_names=["width"]))
    assert [sample.get("width", "none") for sample in samples] == expected
    # The other name has precedence.
    write_jsonl(tmp_path / "a.meta.jsonl", [{"key": "0", "width": 7}])
    assert widths()[0] == 7


@pytest.mark.parametrize("min_nbytes", [0, 1 << 30])
def test_samples_without_metadata_are_warned_of_each_time(
    tmp_path: Path,
    min_nbytes: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("zindex.sources.sample_offsets.MIN_KEPT_NBYTES", min_nbytes)
    path = write(tmp_path)
    for _ in range(2):  # the second time from a kept table
        caplog.clear()
        TarFiles(path, meta_names=["width"]).find_samples()
        [record] = (one for one in caplog.records if one.levelname == "WARNING")
        assert "a.tar: meta_names asks for ['width'], but 2 of 4 samples" in record.getMessage()
        caplog.clear()
        write_jsonl(tmp_path / "b.meta.jsonl", [{"key": "other"}])
        other = write_tar(tmp_path / "b.tar", MEMBERS)
        TarFiles(other, meta_names=["width"]).find_samples()
        [record] = (one for one in caplog.records if one.levelname == "WARNING")
        assert "has the key of one of 3 samples with a member .id, such as 'sub/0'" in (
            record.getMessage()
        )


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([{"key": "0"}, {"key": "2", "width": None}], None),
        ([{"key": "0", "Width": 1}], "'width' (did you mean 'Width'?)"),
        ([{"key": "0", "caption": 1}], "'width'"),
        ([{"key": "0", "w_": 1}, {"key": "3", "width": 1}], None),
    ],
)
def test_names_that_no_line_has_are_warned_of(
    tmp_path: Path, lines: list[object], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    members = [(f"{number}.{field}", b"") for number in range(3) for field in ("id", "txt")]
    path = write_tar(tmp_path / "a.tar", members)
    write_jsonl(tmp_path / "a.meta.jsonl", [*lines, *({"key": key} for key in "012")])
    TarFiles(path, meta_names=["width"]).find_samples()
    sidecar = tmp_path / "a.meta.jsonl"
    start = f"{sidecar}: meta_names asks for ['width'], but no line of {sidecar} has "
    assert caplog.messages == ([] if reason is None else [start + reason])


def test_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path)
    sidecar = tmp_path / "a.meta.jsonl"
    sidecar.write_bytes(b"\xef\xbb\xbf" + sidecar.read_bytes())
    files = TarFiles(path, meta_names=["width"])
    expected = [20, None, None, None]
    assert [sample.get("width") for sample in read_all(files)] == expected
    assert files.find_samples() is not None
    found = files.parse_samples(files.read_samples([(0, 4)]))
    assert [sample.get("width") for sample in found] == expected
