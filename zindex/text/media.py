"""Images in conversations: where they are, and how many tokens each one takes.

A store keeps references to images, never their pixels. A chat template writes one placeholder per
image, which is repeated as often as the model's processor would.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import ConfigError, SourceError
from zindex.lazy import need
from zindex.text.conversations import IMAGE_TYPES
from zindex.text.loss_masks import MaskedText

#: The field of records with references to media: UTF-8 of a JSON list.
MEDIA = "media"
# Keys of a part, or of an object in it, that refer to an image.
_KEYS = ("image", "image_url", "url", "path", "bytes")
_MAX_RATIO = 200
# The field of a record with the images of parts that name none, as in datasets for TRL.
_COLUMN = "images"


@dataclass(frozen=True, slots=True)
class Medium:
    """One image of a conversation."""

    #: Path or URL; for bytes in the record, ``record:images/0`` with the field and its element.
    reference: str
    #: Pixels.
    height: int
    width: int
    #: Tokens of the sequence that are its placeholders.
    start: int = 0
    stop: int = 0


class MediaRule(Protocol):
    """How many tokens an image takes."""

    @property
    def placeholder(self) -> str:
        """Text of the token that a template writes for an image."""

    def count(self, height: int, width: int) -> int:
        """Return the number of tokens of an image of this many pixels."""

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the counts, as JSON values."""


@dataclass(frozen=True, slots=True)
class PatchRule:
    """Tokens by the size of an image, as Qwen2-VL and its successors document them.

    Sides are rounded to multiples of ``patch_size * merge_size``, after the image is scaled into
    the range of pixels; each token represents ``merge_size ** 2`` patches.

    Raises
    ------
    ConfigError
        If a size is not a whole number from 1 on.

    Notes
    -----
    Source: ``smart_resize`` of transformers, ``models/qwen2_vl/image_processing_qwen2_vl.py``.

    Examples
    --------
    >>> PatchRule("<|image_pad|>").count(224, 448)
    128
    """

    placeholder: str
    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    #: Tokens of every image, for models that resize all of them to one size; None: by its size.
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            is_whole = type(value) is int and value >= 1
            if not is_whole and not (item.name == "num_tokens" and value is None):
                raise ConfigError(
                    f"{item.name} of media (--media) must be a whole number from 1 on, got "
                    f"{value!r}"
                )

    def count(self, height: int, width: int) -> int:
        """Return the number of tokens of an image of this many pixels.

        Raises
        ------
        SourceError
            If one side is more than 200 times the other.
        """
        if self.num_tokens is not None:
            return self.num_tokens
        factor = self.patch_size * self.merge_size
        if max(height, width) > _MAX_RATIO * min(height, width):
            raise SourceError(
                f"the longer side of an image must be at most {_MAX_RATIO} times the shorter one, "
                f"got {height:,} and {width:,} pixels"
            )
        rows, columns = (round(side / factor) * factor for side in (height, width))
        if rows * columns > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            rows, columns = (
                max(factor, math.floor(side / scale / factor) * factor) for side in (height, width)
            )
        elif rows * columns < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            rows, columns = (math.ceil(side * scale / factor) * factor for side in (height, width))
        return (rows // factor) * (columns // factor)

    def identity(self) -> dict[str, Any]:
        """Return the settings, as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ProcessorRule:
    """Tokens as the image processor of a model in transformers counts them.

    Parameters
    ----------
    processor
        A folder with a ``preprocessor_config.json``; nothing is downloaded.
    placeholder
        Text of the token of an image.
    """

    processor: str
    placeholder: str

    def count(self, height: int, width: int) -> int:
        """Return the number of tokens of an image of this many pixels.

        Raises
        ------
        ConfigError
            If the processor cannot be opened, or does not count patches.
        """
        opened = self._open()
        if not hasattr(opened, "get_number_of_image_patches"):
            raise ConfigError(
                f"{self.processor} must hold an image processor that counts patches, "
                f"{type(opened).__name__} does not; give the sizes with media (--media "
                "patch_size=14) or the number of tokens with media (--media num_tokens=576)"
            )
        patches = opened.get_number_of_image_patches(height, width, {})
        return int(patches) // getattr(opened, "merge_size", 1) ** 2

    def identity(self) -> dict[str, Any]:
        """Return the settings of the processor, as JSON values."""
        settings = json.loads(json.dumps(self._open().to_dict(), default=str, sort_keys=True))
        return {"placeholder": self.placeholder, "processor": settings}

    def _open(self) -> Any:
        if self.processor not in _opened:
            library = need("transformers", "an image processor (--media processor)")
            options: Any = {"local_files_only": True, "trust_remote_code": False}
            try:
                found = library.AutoImageProcessor.from_pretrained(self.processor, **options)
            except Exception as error:  # of any of its classes
                raise ConfigError(
                    f"{self.processor} must be a folder with the preprocessor_config.json of an "
                    f"image processor of transformers: {error}; save it again"
                ) from error
            _opened[self.processor] = found
        return _opened[self.processor]


_opened: dict[str, Any] = {}


def open_rule(given: MediaRule | Mapping[str, Any] | None) -> MediaRule | None:
    """Return a rule, or that of its settings.

    Parameters
    ----------
    given
        A rule, the arguments of `PatchRule`, or those of `ProcessorRule`; none is no rule.

    Raises
    ------
    ConfigError
        If a setting is missing or unknown.
    """
    if not isinstance(given, Mapping):
        return given
    if not given:
        return None
    try:
        return ProcessorRule(**given) if "processor" in given else PatchRule(**given)
    except TypeError as error:
        raise ConfigError(
            "media (--media) must have the placeholder, and processor, or sizes such as "
            f"patch_size, got {sorted(given)}: {error}"
        ) from error


def find_media(messages: Iterable[Mapping[str, Any]], record: Mapping[str, Any]) -> list[Medium]:
    """Return the images of messages, in order.

    Parameters
    ----------
    messages
        The messages, whose contents may be lists of parts.
    record
        Their record, with ``images`` for parts without a reference.

    Raises
    ------
    SourceError
        If a part has no image, or its size is unknown.
    """
    listed = record.get(_COLUMN) or []
    column = enumerate(listed if isinstance(listed, list) else [listed])
    found = []
    for part in _image_parts(messages):
        value = next((part[key] for key in _KEYS if part.get(key) is not None), None)
        name = None
        if value is None:
            number, value = next(column, (0, None))
            name = f"record:{_COLUMN}/{number}"
        found.append(_read_image(part, value, name, record))
    left = [*column]
    if left:
        raise SourceError(
            f"a dialogue must have a part of the type 'image' for each element of {_COLUMN!r}, "
            f"{len(left)} are left over"
        )
    return found


def _image_parts(messages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of messages that are images."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part["type"] in IMAGE_TYPES:
                yield part


def _read_image(
    part: Mapping[str, Any], value: Any, name: str | None, record: Mapping[str, Any]
) -> Medium:
    """Return an image by its part and what the part or the record has of it."""
    if isinstance(value, Mapping):
        part = {**value, **part}
        keys = ("bytes", *_KEYS)  # the path of bytes is often only a name
        value = next((value[key] for key in keys if value.get(key) is not None), None)
    if isinstance(value, str):
        name = value
    elif not isinstance(value, bytes):
        raise SourceError(
            f"an image must be a path, a URL or bytes, in its part or in {_COLUMN!r} of the "
            f"record, got {str(value)[:60]!r}"
        )
    if name is None:
        raise SourceError(
            f"bytes of an image must be in {_COLUMN!r} of the record, so that a store can refer to "
            "them, not in a part"
        )
    height, width = part.get("height"), part.get("width")
    if not (type(height) is int and type(width) is int and min(height, width) > 0):
        height, width = _measure(value, record)
    return Medium(name, height, width)


def _measure(value: str | bytes, record: Mapping[str, Any]) -> tuple[int, int]:
    """Return the height and width of an image, from its header."""
    library = need("PIL.Image", "the size of an image", "zindex[streaming]")
    try:
        if isinstance(value, bytes):
            source: Any = BytesIO(value)
        elif value.startswith("data:"):
            source = BytesIO(base64.b64decode(value.partition(",")[2], validate=True))
        elif re.match(r"[a-z][a-z0-9+.-]*://", value):
            raise SourceError(
                f"an image by URL must have its height and width in its part, {value[:80]!r} has "
                "none: nothing is downloaded; add them"
            )
        else:
            source = Path(str(record.get("__url__", ""))).parent / value
        with library.open(source) as image:
            width, height = image.size
    except (OSError, binascii.Error) as error:
        shown = value[:80] if isinstance(value, str) else "bytes"
        raise SourceError(
            f"an image must be a file that Pillow opens, or have its height and width in its part, "
            f"{shown!r} is none: {error}"
        ) from error
    return height, width


def expand(masked: MaskedText, placeholder: str, counts: Sequence[int]) -> MaskedText:
    """Return a text with each placeholder repeated.

    Parameters
    ----------
    masked
        The text of a conversation.
    placeholder
        Text of the token of an image.
    counts
        Repetitions of each.

    Raises
    ------
    SourceError
        If the text does not have one placeholder per image.
    """
    pieces = masked.text.split(placeholder)
    if len(pieces) != len(counts) + 1:
        raise SourceError(
            f"the text of a dialogue must have {placeholder!r} once for each image, it has "
            f"{len(pieces) - 1} for {len(counts)} images; take the chat template of a model that "
            "reads images, and leave the token out of the texts"
        )
    text = pieces[0] + "".join(
        placeholder * count + piece for count, piece in zip(counts, pieces[1:], strict=True)
    )
    ends = np.cumsum([len(piece) + len(placeholder) for piece in pieces[:-1]], dtype=np.int64)
    added = np.cumsum([0, *((count - 1) * len(placeholder) for count in counts)])

    def move(place: int) -> int:
        return place + int(added[np.searchsorted(ends, place, side="right")])

    return MaskedText(text, tuple((move(start), move(stop)) for start, stop in masked.spans))


def place_media(media: Sequence[Medium], counts: Sequence[int], places: Int64Array) -> list[Medium]:
    """Return media with their tokens, given the places of all placeholders in a sequence."""
    stops = np.cumsum(counts, dtype=np.int64)
    return [
        Medium(item.reference, item.height, item.width, int(own[0]), int(own[-1]) + 1)
        for item, own in zip(media, np.split(places, stops[:-1]), strict=True)
    ]


def cut_media(
    media: Sequence[Medium], start: int, stop: int
) -> tuple[tuple[int, int], list[Medium]]:
    """Return the kept tokens of a span, in which media are whole or left out, and its media."""
    for item in media:
        start = item.stop if item.start < start < item.stop else start
        stop = item.start if item.start < stop < item.stop else stop
    inside = [
        replace(item, start=item.start - start, stop=item.stop - start)
        for item in media
        if start <= item.start and item.stop <= stop
    ]
    return (start, stop), inside


def write_media(media: Sequence[Medium]) -> AnyArray:
    """Return media as the values of a field: shape (bytes,), uint8."""
    return np.frombuffer(json.dumps([asdict(item) for item in media]).encode(), np.uint8)


def read_media(values: AnyArray) -> list[Medium]:
    """Return the media of a record.

    Parameters
    ----------
    values
        Shape (bytes,), uint8: its field ``media``.
    """
    return [Medium(**item) for item in json.loads(np.asarray(values, np.uint8).tobytes() or "[]")]
