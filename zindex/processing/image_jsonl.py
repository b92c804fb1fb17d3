"""Map-style dataset of jsonl records and the images that they name."""

import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, SourceError
from zindex.formats.json_lines import parse_object
from zindex.io.decompression import DamageError
from zindex.io.file_list import SourceFile, list_files
from zindex.processing.image_samples import MAX_PIXELS, load_pillow, open_image
from zindex.sources.damage_log import DamageLog, OnDamage
from zindex.sources.jsonl_files import read_lines
from zindex.sources.sample_files import Paths


class ImageJsonlDataset(Dataset[dict[str, Any]]):
    """Records of jsonl files; the image at ``imagepath`` is opened as ``image``.

    Parameters
    ----------
    jsonl_path
        Files, folders and patterns, separated by commas, or a list. Lines are kept in memory.
    single_process_fn
        Maps a record with its image to a sample; None returns the record.
    image_folder
        Folder of relative image paths; None uses the folder of the jsonl file, which must be local.
    on_damage
        ``"error"``, or ``"skip"``: bad lines are skipped, and missing or damaged images are None;
        both are counted in ``num_skipped`` and logged once per file.

    Raises
    ------
    ConfigError
        If a setting is invalid, or Pillow is missing.
    SourceError
        If a line is not a JSON object, unless such lines are skipped, or if there are no lines.
    StoreNotFoundError
        If a jsonl file does not exist.

    Notes
    -----
    Images are JPEG, PNG or WebP files, opened by Pillow. Each access returns a new record.
    """

    def __init__(
        self,
        jsonl_path: Paths,
        single_process_fn: Callable[[dict[str, Any]], Any] | None = None,
        *,
        image_folder: str | os.PathLike[str] | None = None,
        on_damage: OnDamage = "error",
    ) -> None:
        if single_process_fn is not None and not callable(single_process_fn):
            raise ConfigError(
                "single_process_fn must be a function of a record, or None, got "
                f"{type(single_process_fn).__name__}"
            )
        load_pillow()
        self.single_process_fn = single_process_fn
        self.damage = DamageLog("lines of JSON objects", on_damage)
        lines: list[bytes] = []
        # By file: the folder of its images, and the number of records up to its end.
        self._folders: list[Path] = []
        self._file_stops: list[int] = []
        for file in list_files(jsonl_path, [".jsonl"]):
            self._read(file, lines)
            self._folders.append(_folder_of(file, image_folder))
            self._file_stops.append(len(lines))
        if not lines:
            raise SourceError(f"a dataset of images must have records, {jsonl_path!r} has none")
        # A single buffer, because forked workers would copy the pages of many small objects.
        self._content = b"".join(lines)
        self._stops: Int64Array = np.cumsum([len(line) for line in lines])

    def _read(self, file: SourceFile, lines: list[bytes]) -> None:
        """Append the valid lines of a file."""
        try:
            for offset, line in read_lines(file):
                try:
                    parse_object(line)
                except SourceError as error:
                    self.damage.report(file.url, DamageError(str(error), offset), "such lines")
                else:
                    lines.append(line)
        except DamageError as damage:
            self.damage.report(file.url, damage, "the rest of it")

    @property
    def num_skipped(self) -> int:
        """Lines skipped, and unreadable images, so far in this process."""
        return self.damage.num_skipped

    def __len__(self) -> int:
        return len(self._stops)

    def __getitem__(self, index: int) -> Any:
        """Return a record with its image, after the process function.

        Raises
        ------
        IndexError
            If there is no such record.
        SourceError
            If its image is missing or damaged, unless such images are skipped.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"a record must be in [0, {len(self)}), got {index}")
        start = int(self._stops[index - 1]) if index else 0
        record = parse_object(self._content[start : int(self._stops[index])])
        path = record.get("imagepath")
        record["image"] = None
        if not isinstance(path, str):
            damage = DamageError(f"the imagepath of record {index:,} is {path!r}, no path", 0)
            self.damage.report("images", damage, "the image", what="named by imagepath")
        else:
            place = self._folders[bisect_right(self._file_stops, index)] / path
            try:
                record["image"] = open_image(place, MAX_PIXELS)
            except Exception as error:  # Pillow raises many types of errors
                damage = DamageError(f"it cannot be read: {error}", 0)
                self.damage.report(str(place), damage, "the image", what="an image")
        return record if self.single_process_fn is None else self.single_process_fn(record)


def _folder_of(file: SourceFile, image_folder: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the images of a jsonl file."""
    if image_folder is not None:
        return Path(image_folder).absolute()
    if not isinstance(file.place, Path):
        raise ConfigError(
            f"image_folder must say where the images are whose records are in {file.url}"
        )
    return file.place.parent
