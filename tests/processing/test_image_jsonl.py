"""Records with images: what an item is, and damaged lines and images."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl
from zindex.errors import ConfigError, SourceError
from zindex.processing import image_jsonl
from zindex.processing.image_jsonl import ImageJsonlDataset

Image = pytest.importorskip("PIL.Image", reason="needs the extra 'streaming'")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images and records of them."""
    for name, size in (("a.png", (2, 3)), ("b.jpg", (4, 5))):
        Image.new("RGB", size, "red").save(tmp_path / name)
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    write_jsonl(
        tmp_path / "a.jsonl",
        [
            {"imagepath": "a.png", "text": "one"},
            {"imagepath": str(tmp_path / "b.jpg"), "text": "two"},
        ],
    )
    return tmp_path


def test_records_and_images(folder: Path) -> None:
    dataset = ImageJsonlDataset(folder / "a.jsonl")
    assert len(dataset) == 2
    assert [(item["text"], item["image"].size) for item in map(dataset.__getitem__, range(2))] == [
        ("one", (2, 3)),
        ("two", (4, 5)),
    ]
    assert dataset[0] is not dataset[0]
    assert pickle.loads(pickle.dumps(dataset))[1]["text"] == "two"
    for index in (-1, 2):
        with pytest.raises(IndexError, match=rf"a record must be in \[0, 2\), got {index}"):
            dataset[index]


def test_a_function_of_each_record(folder: Path) -> None:
    dataset = ImageJsonlDataset(folder / "a.jsonl", lambda record: record["image"].size)
    assert list(map(dataset.__getitem__, range(2))) == [(2, 3), (4, 5)]


def test_images_are_in_the_folder_of_their_file_or_in_another(folder: Path) -> None:
    write_jsonl(folder / "sub" / "b.jsonl", [{"imagepath": "a.png"}])
    with pytest.raises(SourceError, match=r"sub/a\.png must be an image, .* it cannot be read"):
        ImageJsonlDataset(folder / "sub")[0]
    assert ImageJsonlDataset(folder / "sub", image_folder=folder)[0]["image"].size == (2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.png", "it cannot be read: .*No such file"),
        ("pipe.png", "it cannot be read: it is no regular file"),
        ("sub", "it cannot be read: .*[Ii]s a directory|it is no regular file"),
        ("text.png", "it cannot be read: cannot identify image file"),
        ("cut.png", "it cannot be read: "),
        (7, "the imagepath of record 0 is 7, no path"),
        (None, "the imagepath of record 0 is None, no path"),
    ],
)
def test_images_that_cannot_be_read(folder: Path, name: Any, message: str) -> None:
    path = write_jsonl(folder / "c.jsonl", [{"imagepath": name, "text": "x"}])
    with pytest.raises(SourceError, match=message):
        ImageJsonlDataset(path)[0]
    dataset = ImageJsonlDataset(path, on_damage="skip")
    assert dataset[0] == {"imagepath": name, "text": "x", "image": None}
    assert dataset.num_skipped == 1


def test_a_bomb_of_pixels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_jsonl, "MAX_PIXELS", 19)
    dataset = ImageJsonlDataset(folder / "a.jsonl")
    assert dataset[0]["image"].size == (2, 3)
    with pytest.raises(SourceError, match="it has 4 x 5 pixels, more than 19"):
        dataset[1]


def test_bad_lines(folder: Path) -> None:
    path = folder / "c.jsonl"
    path.write_text('{"imagepath": "a.png"}\n{"imag\n{"imagepath": "b.jpg"}\n')
    with pytest.raises(SourceError, match="at byte 23 there is no JSON"):
        ImageJsonlDataset(path)
    dataset = ImageJsonlDataset(path, on_damage="skip")
    assert [dataset[index]["image"].size for index in range(len(dataset))] == [(2, 3), (4, 5)]
    assert dataset.num_skipped == 1


def test_a_line_without_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.formats.json_lines.MAX_LINE_NBYTES", 1000)
    monkeypatch.setattr("zindex.io.file_chunks.LOCAL_NBYTES", 64)
    with open(folder / "a.jsonl", "a") as stream:
        stream.write(" " * 5000)
    dataset = ImageJsonlDataset(folder / "a.jsonl", on_damage="skip")
    assert (len(dataset), dataset.num_skipped) == (2, 1)


def test_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="single_process_fn must be a function of a record"):
        ImageJsonlDataset(folder / "a.jsonl", 7)  # type: ignore[arg-type]
    (folder / "none.jsonl").touch()
    with pytest.raises(SourceError, match=r"must have records, .*none\.jsonl'\) has none"):
        ImageJsonlDataset(folder / "none.jsonl")
    with pytest.raises(ConfigError, match="image_folder must say where the images are"):
        image_jsonl._folder_of(image_jsonl.list_files("s3://b/a.jsonl", [".jsonl"])[0], None)


def test_pillow_may_be_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match="reading images needs the library PIL"):
        ImageJsonlDataset(folder / "a.jsonl")
