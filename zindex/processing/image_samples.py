"""Process functions that decode images and tokenise captions."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, BinaryIO, get_args

import numpy as np
import torch

from zindex.errors import ConfigError, SourceError, check_choice, check_list, check_whole
from zindex.lazy import need
from zindex.processing.renaming import rename_parameters
from zindex.sources.damage_log import OnDamage
from zindex.text.text_encoder import TextEncoder, TokenizerLike

Sample = dict[str, Any]
#: Pixels of each side, or (height, width).
ImageSize = int | tuple[int, int] | list[int]

_FIELDS = ("jpg", "jpeg", "png", "webp")
_TEXT_FIELDS = ("txt", "caption", "text")
#: Accepted formats: other readers of Pillow may run external programs.
FORMATS = ("JPEG", "PNG", "WEBP")
#: Largest number of pixels of an image; Pillow's own limit.
MAX_PIXELS = 89_478_485


def load_pillow() -> Any:
    """Import Pillow's images; ConfigError if it is missing."""
    return need("PIL.Image", "reading images", "zindex[streaming]")


def open_image(path: str | os.PathLike[str], max_pixels: int) -> Any:
    """Return a decoded image file; see `decode_image`."""
    # A pipe would block forever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        return decode_image(stream, max_pixels)


def decode_image(stream: BinaryIO, max_pixels: int) -> Any:
    """Return an image of Pillow from a JPEG, PNG or WebP file.

    Raises
    ------
    ValueError
        If it has too many pixels; Pillow raises many types of errors if it is damaged.
    """
    image = load_pillow().open(stream, formats=FORMATS)
    _check_pixels(image, max_pixels)
    image.load()
    return image


def _check_pixels(image: Any, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ValueError(f"it has {width} x {height} pixels, more than {max_pixels:,}")


class ImageReader:
    """Convert images to tensors.

    Parameters
    ----------
    size
        ``(height, width)``, or one number for both sides or, with ``keep_aspect``, for the shorter
        side.
    keep_aspect
        Whether a single number preserves the aspect ratio.
    smooth
        Bicubic interpolation instead of bilinear.
    max_pixels
        Maximum number of pixels of an image; a small file can decode to gigabytes.

    Raises
    ------
    ConfigError
        If the size or the limit is invalid, or Pillow is missing.
    """

    def __init__(
        self, size: ImageSize, *, keep_aspect: bool, smooth: bool, max_pixels: int = MAX_PIXELS
    ) -> None:
        sides = [size] if isinstance(size, int) else list(size)
        if len(sides) not in (1, 2) or not all(
            isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides
        ):
            raise ConfigError(
                f"img_size must be one number of pixels or (height, width), got {size!r}"
            )
        self.max_pixels = check_whole("max_pixels", max_pixels, 1)
        load_pillow()
        self.sides = tuple(sides)
        self.keep_aspect = keep_aspect
        self.smooth = smooth

    def read(self, content: Any) -> torch.Tensor:
        """Return an image as a tensor, float32, shape (3, height, width), from 0 to 1.

        Parameters
        ----------
        content
            Bytes or path of a JPEG, PNG or WebP file, or an open image of Pillow.

        Raises
        ------
        ValueError
            If it is of another type, damaged, or has too many pixels.
        """
        if isinstance(content, bytes | bytearray | memoryview):
            image = decode_image(BytesIO(content), self.max_pixels)
        elif isinstance(content, str | os.PathLike):
            image = open_image(content, self.max_pixels)
        elif isinstance(content, load_pillow().Image):
            image = content
            _check_pixels(image, self.max_pixels)
        else:
            raise ValueError(
                f"an image must be bytes, a path or an image of Pillow, got {content!r}"
            )
        resampling = load_pillow().Resampling
        how = resampling.BICUBIC if self.smooth else resampling.BILINEAR
        pixels = np.asarray(image.convert("RGB").resize(self._target(*image.size), how))
        # numpy, because torch would start its threads in every loader worker.
        values = np.empty((3, *pixels.shape[:2]), np.float32)
        np.divide(pixels.transpose(2, 0, 1), np.float32(255), out=values)
        return torch.from_numpy(values)

    def _target(self, width: int, height: int) -> tuple[int, int]:
        """Return the resized (width, height)."""
        if len(self.sides) == 2:
            return self.sides[1], self.sides[0]
        [side] = self.sides
        if not self.keep_aspect:
            return side, side
        longer = int(side * max(width, height) / min(width, height))
        if longer * side > self.max_pixels:
            raise ValueError(f"an image of {width} x {height} is too long to keep its aspect")
        return (side, longer) if width <= height else (longer, side)


class PerSample:
    """Base of process functions that map one sample to one sample and may skip damaged ones."""

    #: What a sample must have, for errors.
    content = "image and text"

    def __init__(self, on_damage: OnDamage) -> None:
        check_choice("on_damage", on_damage, get_args(OnDamage))
        self.on_damage = on_damage
        #: Whether each sample has an output.
        self.one_to_one = on_damage == "error"
        #: Samples skipped so far in this process.
        self.num_skipped = 0

    def __call__(self, source: Any) -> Any:
        """Return the output for a sample, or an iterator of outputs for a stream of samples.

        Raises
        ------
        SourceError
            If its content is missing or damaged, unless a stream skips such samples.
        """
        return self._make(source) if isinstance(source, Mapping) else self._make_stream(source)

    def make(self, sample: Mapping[str, Any]) -> Sample:
        """Return the output for a sample."""
        raise NotImplementedError

    def _make(self, sample: Mapping[str, Any]) -> Sample:
        """Return the output for a sample; errors name the sample."""
        try:
            return self.make(sample)
        except ConfigError:  # of the tokenizer
            raise
        except Exception as error:  # decoders raise many types of errors
            raise SourceError(
                f"sample {sample.get('__key__')!r} of {sample.get('__url__')} must have a readable "
                f"{self.content}: {error}; restore it, or leave it out with on_damage='skip'"
            ) from error

    def _make_stream(self, source: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
        """Yield the outputs for samples; raise or skip damaged ones."""
        for sample in source:
            try:
                made = self._make(sample)
            except SourceError:
                if self.on_damage == "error":
                    raise
                self.num_skipped += 1
                continue
            yield made


class ImageTextPairs(PerSample):
    """Process function that converts an image and its text to tensors.

    Parameters
    ----------
    img_size
        Pixels of each side, or (height, width).
    max_text_len
        Tokens of a text; texts are truncated or padded to it.
    tokenizer
        See `zindex.text.text_encoder.TextEncoder`.
    text_fields
        Names of the text field; the first one that a sample has is used.
    image_fields
        Names of the image field; the first one that a sample has is used.
    pad_id
        Id of padding; None does not pad.
    on_damage
        ``"skip"`` skips samples with a missing or damaged image or text, and counts them in
        ``num_skipped``; ``"error"`` raises.
    max_pixels
        Maximum number of pixels of an image.

    Raises
    ------
    ConfigError
        If an argument or the tokenizer is invalid.

    Notes
    -----
    Samples have ``img`` (float32, shape (3, height, width), 0 to 1), ``txt`` (int64, shape
    (max_text_len,)), ``txt_mask`` (bool, True for tokens of the text), and the other fields of the
    raw sample except its image.
    """

    def __init__(
        self,
        img_size: ImageSize,
        max_text_len: int,
        tokenizer: TokenizerLike,
        *,
        text_fields: Sequence[str] = _TEXT_FIELDS,
        image_fields: Sequence[str] = _FIELDS,
        pad_id: int | None = 0,
        on_damage: OnDamage = "error",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(on_damage)
        self.max_text_len = check_whole("max_text_len", max_text_len, 1)
        self.reader = ImageReader(img_size, keep_aspect=False, smooth=True, max_pixels=max_pixels)
        self.encoder = TextEncoder(tokenizer)
        check_list("text_fields", text_fields)
        check_list("image_fields", image_fields)
        self.text_fields = tuple(text_fields)
        self.image_fields = tuple(image_fields)
        self.pad_id = pad_id

    def make(self, sample: Mapping[str, Any]) -> Sample:
        """Return a sample with image and text as tensors."""
        image = find_field(sample, self.image_fields, "an image")
        text = find_field(sample, self.text_fields, "a text", of_sidecar=True)
        text = text.decode() if isinstance(text, bytes) else text
        if not isinstance(text, str):
            raise ValueError(f"a text must be text, got {type(text).__name__}")
        [ids] = self.encoder.encode([text])
        ids = ids[: self.max_text_len]
        size = len(ids) if self.pad_id is None else self.max_text_len
        tokens = torch.full((size,), self.pad_id or 0)
        tokens[: len(ids)] = torch.from_numpy(ids)
        rest = {key: value for key, value in sample.items() if key not in self.image_fields}
        mask = torch.arange(size) < len(ids)
        return rest | {"img": self.reader.read(image), "txt": tokens, "txt_mask": mask}


class ImageRecords(PerSample):
    """Process function that converts the image of a record to a tensor under ``image``.

    Parameters
    ----------
    img_size
        Pixels of the shorter side, or (height, width).
    image_fields
        Names of the image field; the first one that a record has is used: an open image, bytes, or
        the path of a file.
    on_damage, max_pixels
        As for `ImageTextPairs`.

    Raises
    ------
    ConfigError
        If an argument is out of range.
    """

    def __init__(
        self,
        img_size: ImageSize,
        *,
        image_fields: Sequence[str] = ("image", *_FIELDS, "imagepath"),
        on_damage: OnDamage = "error",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(on_damage)
        self.reader = ImageReader(img_size, keep_aspect=True, smooth=False, max_pixels=max_pixels)
        check_list("image_fields", image_fields)
        self.image_fields = tuple(image_fields)

    def make(self, sample: Mapping[str, Any]) -> Sample:
        """Return a record with its image as a tensor; None is unchanged, as upstream."""
        if "image" in sample and sample["image"] is None:
            return dict(sample)
        image = find_field(sample, self.image_fields, "an image")
        dropped = {*self.image_fields} - {"imagepath"}
        rest = {key: value for key, value in sample.items() if key not in dropped}
        return rest | {"image": self.reader.read(image)}


class ImageTextPairProcessFnBuilder(ImageTextPairs):
    """`ImageTextPairs` under upstream's name and arguments.

    Parameters
    ----------
    img_size, max_text_len, tokenizer_name
        ``img_size``, ``max_text_len`` and ``tokenizer`` of `ImageTextPairs`; the name is a path.
    text_fields, image_fields, pad_id, on_damage, max_pixels
        As for `ImageTextPairs`.
    """

    __init__ = rename_parameters(ImageTextPairs.__init__, {"tokenizer": "tokenizer_name"})


class ImageJsonlProcessFnBuilder(ImageRecords):
    """`ImageRecords` under upstream's name."""


def find_field(
    sample: Mapping[str, Any], fields: Sequence[str], what: str, *, of_sidecar: bool = False
) -> Any:
    """Return the first field that a sample has; ``of_sidecar`` adds hints to the error."""
    for field in fields:
        if sample.get(field) is not None:
            return sample[field]
    given = {str(key) for key, value in sample.items() if value is not None}
    names = sorted(name for name in given if not name.startswith("__"))
    # None marks requested metadata that was not found.
    missing = next((field for field in fields if field in sample), None)
    hint = ""
    if of_sidecar and missing is not None:
        hint = f", and {missing!r} is None: no line of the .meta.jsonl has it for this key"
    elif of_sidecar and "id" not in sample and ".jsonl" not in str(sample.get("__url__")):
        hint = " (of tars, only samples with a member .id get fields of the .meta.jsonl)"
    raise ValueError(f"{what} must be under one of {list(fields)}, it has {names}{hint}")
