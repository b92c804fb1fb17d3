"""Images take as many tokens as the model's processor gives them, and stores refer to them."""

import base64
import random
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.ingest.records.sources import ListFiles
from tests.text.small_tokenizer import make_tokenizer
from zindex.errors import ConfigError, SourceError
from zindex.text.chat_template import ChatTemplate
from zindex.text.conversations import ConversationParser
from zindex.text.length_limits import LengthLimits
from zindex.text.loss_masks import MaskedText
from zindex.text.media import MEDIA, PatchRule, expand, find_media, open_rule, read_media
from zindex.text.text_encoder import TextEncoder
from zindex.text.token_records import TokenRecords
from zindex.text.token_settings import TokenSettings

PAD = "<|image_pad|>"
# As Qwen2-VL writes: each image between two tokens.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}"
    "[<|image_pad|>]{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZE = {"height": 28, "width": 56}


def write_image(width: int = 60, height: int = 30) -> bytes:
    file = BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def talk(*parts: Any, **more: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}
    return {"messages": [asked, {"role": "assistant", "content": "a é"}], **more}


def make(rows: list[dict[str, Any]], rule: Any = None, **limits: Any) -> list[dict[str, Any]]:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([PAD])
    records = TokenRecords(
        ListFiles({"a": [rows]}),
        "digest",
        settings=TokenSettings("sft", limits=LengthLimits(**limits)),
        encoder=TextEncoder(tokenizer),
        template=ChatTemplate(TEMPLATE),
        parser=ConversationParser(keeps_images=True),
        media=PatchRule(PAD, min_pixels=1) if rule is None else rule,
    )
    return list(records.read_part(0))


def test_the_rule_is_that_of_the_processor() -> None:
    processor = Qwen2VLImageProcessorPil()
    rule, draw = PatchRule(PAD), random.Random(5)
    for _ in range(300):
        height, width = draw.randint(8, 3000), draw.randint(20, 1500)
        patches = processor.get_number_of_image_patches(height, width, {})
        assert rule.count(height, width) == patches // 4
    with pytest.raises(SourceError, match="must be at most 200 times the shorter one, got 1 and 2"):
        rule.count(1, 201)


def test_a_processor_counts_itself(tmp_path: Path) -> None:
    Qwen2VLImageProcessorPil(max_pixels=28 * 28 * 4).save_pretrained(tmp_path)
    rule: Any = open_rule({"processor": str(tmp_path), "placeholder": PAD})
    assert 1 <= rule.count(500, 300) <= 4
    assert rule.identity()["processor"]["merge_size"] == 2
    with pytest.raises(ConfigError, match=r"must be a folder with the preprocessor_config.json"):
        open_rule({"processor": str(tmp_path / "none"), "placeholder": PAD}).count(1, 1)  # type: ignore[union-attr]


def test_placeholders_are_repeated() -> None:
    image = {"type": "image", "image": "a.png", **SIZE}
    [record] = make([talk(image, {"type": "text", "text": " x "}, image)])
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([PAD])
    text = f"<|im_start|>user\n[{PAD * 2}] x [{PAD * 2}]what?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text + "a é<|im_end|>\n", add_special_tokens=False).ids
    assert record["sequence"].tolist() == ids
    own = record["sequence"][record["loss_mask"]].tolist()
    assert tokenizer.decode(own, skip_special_tokens=False) == "a é<|im_end|>"
    media = read_media(record[MEDIA])
    assert [item.reference for item in media] == ["a.png", "a.png"]
    for item in media:
        assert ids[item.start : item.stop] == [tokenizer.token_to_id(PAD)] * 2
    assert read_media(make([talk()])[0][MEDIA]) == []
    [fixed] = make([talk(image)], PatchRule(PAD, num_tokens=5))
    assert len(fixed["sequence"]) == len(make([talk(image)])[0]["sequence"]) + 3


@pytest.mark.parametrize("keep", ["start", "end"])
def test_images_are_kept_or_left_out_as_a_whole(keep: Any) -> None:
    image = {"type": "image", "image": "a.png", "height": 28, "width": 28 * 9}
    row = talk(image, image)
    [whole] = make([row])
    ids = whole["sequence"].tolist()
    for length in range(1, len(ids) + 1):
        [record] = make([row], max_length=length, keep=keep)
        kept = record["sequence"].tolist()
        assert kept == (ids[: len(kept)] if keep == "start" else ids[len(ids) - len(kept) :])
        media = read_media(record[MEDIA])
        pad = ids[read_media(whole[MEDIA])[0].start]
        assert kept.count(pad) == 9 * len(media)
        assert all(kept[item.start : item.stop] == [pad] * 9 for item in media)
        assert length - 9 < len(kept) <= length


def test_references(tmp_path: Path) -> None:
    content = write_image()
    (tmp_path / "a.png").write_bytes(content)
    encoded = "data:image/png;base64," + base64.b64encode(content).decode()
    url = f"{tmp_path}/rows.jsonl"
    sized = {"height": 30, "width": 60}
    for part, more, name in (
        ({"image": "a.png"}, {}, "a.png"),
        ({"path": str(tmp_path / "a.png")}, {}, str(tmp_path / "a.png")),
        ({"image_url": {"url": encoded}}, {}, encoded),
        ({"image_url": {"url": "https://a/b.png"}, **sized}, {}, "https://a/b.png"),
        ({}, {"images": ["a.png"]}, "a.png"),
        ({}, {"images": [content]}, "record:images/0"),
        ({}, {"images": [{"bytes": content, "path": "x.png"}]}, "record:images/0"),
        ({}, {"images": [{"bytes": None, "path": "a.png"}]}, "a.png"),
    ):
        row = talk({"type": "image", **part}, **more, __url__=url)
        [found] = find_media(row["messages"], row)
        assert (found.reference, found.height, found.width) == (name, 30, 60)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (talk({"type": "image", "image": "no.png"}), "Pillow opens, or have its height and width"),
        (
            talk({"type": "image", "image": "https://a/b"}),
            "an image by URL must have its height an",
        ),
        (
            talk({"type": "image"}),
            "a path, a URL or bytes, in its part or in 'images' of the recor",
        ),
        (
            talk({"type": "image", "bytes": b"x", **SIZE}),
            "bytes of an image must be in 'images' of",
        ),
        (
            talk(images=["a.png"]),
            "a part of the type 'image' for each element of 'images', 1 are l",
        ),
        (
            talk({"type": "text", "text": PAD}),
            f"must have '{PAD}' once for each image, it has 1 fo",
        ),
        (
            talk({"type": "video", "video": "a"}),
            "or parts of the type 'text', got parts of ['video",
        ),
    ],
)
def test_refused_records(row: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=re.escape(message)):
        make([row])


def test_refused_settings() -> None:
    for given, message in (
        ({"patch_size": 14}, "media (--media) must have the placeholder, and processor, or sizes"),
        ({"placeholder": PAD, "patch_size": 0}, "patch_size of media (--media) must be a whole"),
        ({"placeholder": PAD, "size": 1}, "got ['placeholder', 'size']"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            open_rule(given)
    assert open_rule({}) is None
    with pytest.raises(ConfigError, match=r"placeholder of media .* needs the token '<none>'"):
        make([talk()], PatchRule("<none>"))


def test_spans_move_with_the_text() -> None:
    text = "a#b#c"
    for start in range(len(text)):
        for stop in range(start + 1, len(text) + 1):
            found = expand(MaskedText(text, ((start, stop),)), "#", [3, 2])
            assert found.text == "a###b##c"
            [own] = found.trained
            assert own == text[start:stop].replace("#b#", "###b##").replace("a#", "a###") or (
                own.replace("#", "") == text[start:stop].replace("#", "")
            )
    assert np.array_equal(expand(MaskedText("x"), "#", []).spans, ())
