"""Samples of jsonl files, for mixing with others or by themselves."""

import os
from collections.abc import Sequence

from zindex.sources.damage_log import OnDamage
from zindex.sources.jsonl_files import JsonlFiles
from zindex.streaming.files_dataset import FilesDataset, ProcessFn


class JsonlIterableDataset(FilesDataset):
    """The lines of jsonl files as samples; see `JsonlFiles` for what files may be.

    Parameters
    ----------
    path
        Files, folders and brace patterns, with commas between, or a list.
    process_fn
        Takes an iterator of the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of one that it is made of. It is called afresh on each part and
        must yield what it still holds when its source ends. None: samples stay as they are.
    shuffle_buffer
        Samples of a part among which `MergedDataset` draws the next; 0: files' own order.
    on_damage
        ``"error"``, or ``"skip"`` to leave out damaged lines, which ``num_skipped`` counts.
    part_nbytes
        Bytes of a plain local file that are one part.

    Raises
    ------
    ConfigError
        If a setting or a scheme is refused, or a file is named twice.
    StoreNotFoundError
        If a file or folder is not there.
    SourceError
        If nothing is named at all.

    Notes
    -----
    Iterated by itself it gives its parts in order, shared between the workers of a DataLoader, and
    is neither shuffled nor resumed: that is what `MergedDataset` does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        process_fn: ProcessFn | None = None,
        *,
        shuffle_buffer: int = 1000,
        on_damage: OnDamage = "error",
        part_nbytes: int = 8 << 20,
    ) -> None:
        files = JsonlFiles(path, part_nbytes=part_nbytes, on_damage=on_damage)
        super().__init__(files, process_fn, shuffle_buffer, on_damage)
