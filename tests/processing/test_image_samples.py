"""Images of samples become tensors; damaged ones are errors, or left out and counted."""

import io
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from zindex.errors import ConfigError, SourceError
from zindex.processing.image_samples import (
    ImageJsonlProcessFnBuilder,
    ImageReader,
    ImageRecords,
    ImageTextPairProcessFnBuilder,
    ImageTextPairs,
)


def read_letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def make_image(width: int = 6, height: int = 4) -> Image.Image:
    values = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    return Image.fromarray(values)


def encode(image: Image.Image, form: str = "png", **settings: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **settings)
    return stream.getvalue()


def make_sample(**fields: Any) -> dict[str, Any]:
    return {"png": encode(make_image()), "txt": b"ab", "__url__": "a.tar", "__key__": "7"} | fields


def test_pairs() -> None:
    raw = make_sample(caption="other", caption_zh=None)
    [sample] = ImageTextPairs((4, 6), 4, read_letters)(iter([raw]))
    assert sample["img"].dtype == torch.float32
    assert sample["img"].shape == (3, 4, 6)
    expected = np.asarray(make_image()).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(sample["img"].numpy(), expected, atol=1e-6)
    assert sample["txt"].tolist() == [97, 98, 0, 0]
    assert sample["txt_mask"].tolist() == [True, True, False, False]
    assert {key: sample[key] for key in ("caption", "caption_zh", "__url__", "__key__")} == {
        "caption": "other",
        "caption_zh": None,
        "__url__": "a.tar",
        "__key__": "7",
    }
    assert "png" not in sample
    one = ImageTextPairs((4, 6), 4, read_letters)(raw)
    assert one["txt"].tolist() == [97, 98, 0, 0]


@pytest.mark.parametrize("form", ["jpg", "jpeg", "png", "webp"])
def test_forms_and_square_sizes(form: str) -> None:
    image = encode(make_image(), "JPEG" if form.startswith("jp") else form)
    raw = {form: image, "caption": "abcdef", "__url__": "a", "__key__": "b"}
    [sample] = ImageTextPairProcessFnBuilder(5, 3, read_letters)([raw])
    assert sample["img"].shape == (3, 5, 5)
    assert sample["txt"].tolist() == [97, 98, 99]
    assert 0 <= sample["img"].min() <= sample["img"].max() <= 1


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "I;16", "CMYK"])
def test_modes_become_rgb(mode: str) -> None:
    image = Image.new(mode, (3, 3), 1) if mode != "RGBA" else Image.new(mode, (3, 3), (9, 9, 9, 0))
    content = encode(image, "JPEG" if mode == "CMYK" else "PNG")
    assert ImageReader(3, keep_aspect=False, smooth=True).read(content).shape == (3, 3, 3)


def test_short_texts_may_stay_short() -> None:
    [sample] = ImageTextPairs(2, 4, read_letters, pad_id=None)([make_sample()])
    assert sample["txt"].tolist() == [97, 98]
    assert sample["txt_mask"].tolist() == [True, True]


DAMAGED = {
    "cut": make_sample(png=encode(make_image(64, 64))[:-60]),
    "empty": make_sample(png=b""),
    "other bytes": make_sample(png=b"no image at all"),
    "no image": {"txt": b"ab", "__url__": "a.tar", "__key__": "7"},
    "no text": make_sample(txt=None),
    "text of another kind": make_sample(txt=5),
    "text of other bytes": make_sample(txt=b"\xff"),
    "image of another kind": make_sample(png=5),
    "PostScript": make_sample(png=encode(make_image(), "EPS")),
    "TIFF": make_sample(png=encode(make_image(), "TIFF")),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_samples(name: str) -> None:
    strict = ImageTextPairs(4, 4, read_letters)
    message = "sample '7' of a.tar must have a readable image and text: .*on_damage='skip'"
    with pytest.raises(SourceError, match=message):
        list(strict([DAMAGED[name]]))
    forgiving = ImageTextPairs(4, 4, read_letters, on_damage="skip")
    made = list(forgiving([make_sample(), DAMAGED[name], make_sample(__key__="8")]))
    assert [sample["__key__"] for sample in made] == ["7", "8"]
    assert forgiving.num_skipped == 1


def test_a_text_that_was_not_joined() -> None:
    sample = {"__key__": "7", "__url__": "a.tar", "png": encode(make_image())}
    make = ImageTextPairs(4, 4, read_letters)
    problem = (
        r"must be under one of \['txt', 'caption', 'text'\], it has \['id', 'png'\], and 'caption' "
        r"is None: no line of the \.meta\.jsonl has it for this key; restore it"
    )
    with pytest.raises(SourceError, match=problem):
        make(sample | {"id": b"", "caption": None, "width": None})
    problem = (
        r"it has \['png'\] \(of tars, only samples with a member \.id get fields of the \.meta"
    )
    with pytest.raises(SourceError, match=problem):
        make(sample)
    for known in ({"id": b""}, {"__url__": "a.jsonl.gz"}):
        with pytest.raises(SourceError, match=r"it has \[('id', )?'png'\]; restore it"):
            make(sample | known)


def make_bomb(width: int, height: int) -> bytes:
    """Return a small PNG file that says it is large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = zlib.compress(b"\0" * 1000)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", content), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("size", [(12_000, 12_000), (60_000, 60_000), (9000, 9941)])
def test_decompression_bombs(size: tuple[int, int]) -> None:
    sample = make_sample(png=make_bomb(*size))
    with pytest.raises(SourceError, match=r"sample '7' of a\.tar must have a readable image"):
        list(ImageTextPairs(4, 4, read_letters, max_pixels=9000 * 9940)([sample]))


def test_a_limit_of_pixels() -> None:
    reader = ImageReader(4, keep_aspect=False, smooth=True, max_pixels=23)
    with pytest.raises(ValueError, match="it has 6 x 4 pixels, more than 23"):
        reader.read(encode(make_image()))


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    make_image(8, 4).save(path)
    make = ImageJsonlProcessFnBuilder(2)
    for raw in (
        {"image": make_image(8, 4), "imagepath": "x", "text": "t"},
        {"imagepath": str(path), "text": "t"},
        {"jpg": encode(make_image(8, 4), "JPEG"), "text": "t"},
    ):
        record = make(raw)
        assert record["image"].shape == (3, 2, 4)
        assert record["text"] == "t"
        assert record.get("imagepath") == raw.get("imagepath")
        assert set(record) <= {"image", "imagepath", "text"}
    assert make({"image": None, "text": "t"}) == {"image": None, "text": "t"}
    assert ImageRecords((2, 3))({"image": make_image(4, 8)})["image"].shape == (3, 2, 3)
    assert make({"image": make_image(4, 8)})["image"].shape == (3, 4, 2)
    with pytest.raises(SourceError, match=r"an image must be under one of .*, it has \['text'\]"):
        make({"text": "t"})
    made = list(make(iter([{"jpg": encode(make_image()), "__url__": "a", "__key__": "b"}])))
    assert made[0]["image"].shape == (3, 2, 3)
    assert made[0]["__key__"] == "b"


def test_a_long_image_keeps_no_aspect() -> None:
    reader = ImageReader(1000, keep_aspect=True, smooth=False, max_pixels=100_000_000)
    with pytest.raises(ValueError, match="an image of 200000 x 1 is too long to keep its aspect"):
        reader.read(Image.new("L", (200_000, 1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageTextPairs(0, 4, read_letters), "img_size must be one number of pixels or"),
        (lambda: ImageTextPairs((1, 2, 3), 4, read_letters), "height, width.*, got .1, 2, 3"),
        (lambda: ImageTextPairs(4, 0, read_letters), "max_text_len must be a whole number of at"),
        (
            lambda: ImageTextPairs(4, 4, read_letters, on_damage="no"),
            "on_damage must be one of error, skip, got 'no'",
        ),
        (
            lambda: ImageRecords(4, max_pixels=0),
            "max_pixels must be a whole number of at least 1, got 0",
        ),
        (lambda: ImageRecords(4, image_fields="png"), "image_fields must be a list, got the text"),
        (
            lambda: ImageTextPairs(4, 4, read_letters, text_fields={"txt": 1}),  # type: ignore[arg-type]
            r"text_fields must be a list, got \{'txt': 1\}",
        ),
        (lambda: ImageTextPairs(4, 4, 5), "a tokenizer must be the path"),
    ],
)
def test_refused_settings(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_invalid_tokenizer_is_not_damage() -> None:
    pairs = ImageTextPairs(4, 4, lambda text: text, on_damage="skip")
    with pytest.raises(ConfigError, match="a tokenizer must give a list of whole numbers"):
        list(pairs([make_sample()]))


def test_pillow_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r"images needs the library PIL, .*; install zindex\[st"):
        ImageRecords(4)


def test_they_pickle() -> None:
    again = pickle.loads(pickle.dumps(ImageTextPairs(4, 4, read_letters)))
    assert next(again([make_sample()]))["txt"].tolist() == [97, 98, 0, 0]
