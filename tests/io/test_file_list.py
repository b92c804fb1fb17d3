"""Which files a path names, and what is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from zindex.errors import ConfigError, SourceError, StoreNotFoundError, StoreUnreadableError
from zindex.io.file_list import SourceFile, list_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of small files, made in another order than by name."""
    for name in ("b/2.jsonl", "b/10.jsonl.gz", "c.jsonl", "a.jsonl", "note.txt", "d.tar", "e.tgz"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}\n")
    (tmp_path / "empty.jsonl").touch()
    return tmp_path


def names(files: list[SourceFile], folder: Path) -> list[str]:
    return [os.path.relpath(file.url, folder) for file in files]


def test_a_folder_is_searched_whole_and_sorted(folder: Path) -> None:
    found = list_files(folder, [".jsonl"])
    assert names(found, folder) == ["a.jsonl", "b/10.jsonl.gz", "b/2.jsonl", "c.jsonl"]
    assert [file.compression for file in found] == [None, "gzip", None, None]
    assert [file.is_cut for file in found] == [True, False, True, True]
    assert found[0].nbytes == 3
    assert names(list_files(f"{folder}/", ["tar"]), folder) == ["d.tar", "e.tgz"]


def test_files_patterns_lists_and_urls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list_files(f"{folder}/{{c,a}}.jsonl, {folder}/b", [".jsonl"])
    assert names(found, folder) == ["c.jsonl", "a.jsonl", "b/10.jsonl.gz", "b/2.jsonl"]
    found = list_files([folder / "c.jsonl", f"{folder}/b/{{2.jsonl,10.jsonl.gz}}"], ["l"])
    assert names(found, folder) == ["c.jsonl", "b/2.jsonl", "b/10.jsonl.gz"]
    [file] = list_files(f"file://{folder}/c.jsonl", [".jsonl"])
    assert file.place == folder / "c.jsonl"
    monkeypatch.chdir(folder)
    [file] = list_files("c.jsonl", [".jsonl"])
    assert (file.url, file.place) == ("c.jsonl", folder / "c.jsonl")


def test_stars_stand_for_existing_names(folder: Path) -> None:
    def found(pattern: str) -> list[str]:
        return names(list_files(f"{folder}/{pattern}", [".jsonl"]), folder)

    assert found("[a-c].jsonl") == ["a.jsonl", "c.jsonl"]
    assert found("{c,b/*}.jsonl*") == ["c.jsonl", "b/10.jsonl.gz", "b/2.jsonl"]
    assert found("**/?.jsonl") == ["a.jsonl", "b/2.jsonl", "c.jsonl"]
    assert found("b*") == ["b/10.jsonl.gz", "b/2.jsonl"]
    with pytest.raises(StoreNotFoundError, match=r"no file matches .*/x\*\.jsonl; check the path"):
        found("x*.jsonl")
    assert found("b/**") == ["b/10.jsonl.gz", "b/2.jsonl"]
    (folder / "[1].jsonl").write_text("{}")
    assert found("[1].jsonl") == ["[1].jsonl"]


def test_any_file_may_be_named(folder: Path) -> None:
    assert names(list_files(folder / "note.txt", [".jsonl"]), folder) == ["note.txt"]
    odd = folder / "a,{b}.jsonl"
    odd.write_text("{}")
    assert names(list_files(str(odd), [".jsonl"]), folder) == ["a,{b}.jsonl"]


def test_folders_besides(folder: Path) -> None:
    found = list_files("", [".jsonl"], include_dirs=f"{folder}/b*2")
    assert names(found, folder) == ["b/10.jsonl.gz", "b/2.jsonl"] * 2
    found = list_files(f"{folder}/a.jsonl", [".jsonl"], include_dirs=f"{folder}/b")
    assert names(found, folder) == ["a.jsonl", "b/10.jsonl.gz", "b/2.jsonl"]


def test_links_to_folders_are_not_followed(folder: Path) -> None:
    (folder / "b" / "up").symlink_to(folder)
    assert len(list_files(folder, [".jsonl"])) == 4


def test_object_stores_are_not_asked_for_files(folder: Path) -> None:
    found = list_files("boto3://bucket/x/{0..1}.tar.gz", ["tar"])
    assert [file.url for file in found] == ["s3://bucket/x/0.tar.gz", "s3://bucket/x/1.tar.gz"]
    assert [(file.nbytes, file.compression) for file in found] == [(None, "gzip")] * 2
    [file] = list_files("metaboto3://bucket/a.tar", ["tar"])
    assert (file.url, file.needs_sidecar, file.is_cut) == ("s3://bucket/a.tar", True, False)


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("rclone://remote/a.tar", "rclone://"),
        ("pipe:cat /etc/passwd", "pipe:"),
        ("{pipe:,x}touch y", "pipe:"),
        ("gopher://host/a.tar", "gopher://"),
        ("hdfs://host/a.tar", "hdfs://"),
        ("://a.tar", "://"),
    ],
)
def test_schemes_that_are_refused(path: str, scheme: str, tmp_path: Path) -> None:
    for named in (path, [path]):
        with pytest.raises(ConfigError, match="no command is run and no other scheme") as caught:
            list_files(named, ["tar"])
        assert f"got {scheme!r}" in str(caught.value)
    with pytest.raises(ConfigError, match="no command is run"):
        list_files("", ["tar"], include_dirs=path.replace("{pipe:,x}", "pipe:"))


@pytest.mark.parametrize(
    ("path", "include_dirs", "error", "message"),
    [
        ("no.tar", None, StoreNotFoundError, "no file no.tar; check the path"),
        ("https://host/folder", None, ConfigError, "folders cannot be listed there"),
        ("https://host/*.tar", None, ConfigError, r"got https://host/%2A.tar; folders cannot be"),
        ("s3://me@bucket/a.tar", None, ConfigError, "got one with a user"),
        ("", None, ConfigError, "a path must name a file or folder, got ''"),
        (" , ", None, ConfigError, "a path must name a file or folder"),
        (["a.tar"], "folder", ConfigError, "a path must be one text with include_dirs"),
        (b"a.tar", None, ConfigError, "a path must be text or a list of texts, got b'a.tar'"),
        (None, None, ConfigError, "a path must be text or a list of texts, got None"),
        ([None], None, ConfigError, r"a path must be text or a list of texts, got \[None\]"),
        ("", "folder*0", ConfigError, "must be read 1 to 10,000 times, got 'folder\\*0'"),
        ("", "folder*99999", ConfigError, "must be read 1 to 10,000 times"),
        (
            "",
            ["folder"],
            ConfigError,
            r"must be one text, folders separated by .* got \['folder'\]",
        ),
        ("{1..99999999}.tar", None, ConfigError, "expands to 99,999,999"),
    ],
)
def test_paths_that_are_refused(
    path: object, include_dirs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list_files(path, ["tar"], include_dirs=include_dirs)  # type: ignore[arg-type]


def test_a_file_is_named_once(folder: Path) -> None:
    for path, more in (
        (f"{folder}/a.jsonl,{folder}/a.jsonl", None),
        (f"{folder},{folder}/b", None),
        (f"{folder}/b/../a.jsonl,{folder}/a.jsonl", None),
        (f"{folder}/b/2.jsonl", f"{folder}/b"),
        ("", f"{folder}/b,{folder}/b*2"),
    ):
        with pytest.raises(
            ConfigError, match=r"each file must be named once, \S+\.(jsonl|gz) is named twice"
        ):
            list_files(path, [".jsonl"], include_dirs=more)


def test_paths_that_are_not_files(folder: Path) -> None:
    os.mkfifo(folder / "pipe.jsonl")
    with pytest.raises(SourceError, match="must be a regular file or a folder, it is neither"):
        list_files(folder / "pipe.jsonl", [".jsonl"])
    with pytest.raises(SourceError, match=r"must name one that ends in \.jsonl; check the folder"):
        list_files([], [".jsonl"])


def test_each_folder_must_hold_a_file(folder: Path) -> None:
    (folder / "none").mkdir()
    problem = r"a folder must hold files that end in \.jsonl and are not empty, \S+/none holds none"
    for path, more in (
        (f"{folder}/none", None),
        (f"{folder}/b,{folder}/none", None),
        (f"{folder}/{{b,none}}", None),
        (f"{folder}/a.jsonl", f"{folder}/none*2"),
    ):
        with pytest.raises(SourceError, match=problem):
            list_files(path, [".jsonl"], include_dirs=more)
    (folder / "none" / "empty.jsonl").touch()
    with pytest.raises(SourceError, match=problem):
        list_files(folder / "none", [".jsonl"])


def test_a_path_that_gives_bytes() -> None:
    class Odd:
        def __fspath__(self) -> bytes:
            return b"a.tar"

    with pytest.raises(ConfigError, match="a path must be text, got <"):
        list_files(Odd(), ["tar"])  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuse)
    # A folder of which a part is passed by in silence would be another set of samples.
    with pytest.raises(StoreUnreadableError, match="Permission denied"):
        list_files(folder, [".jsonl"])
