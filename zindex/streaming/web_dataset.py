"""Samples of tar archives and their metadata, for mixing with others or by themselves."""

import os
from collections.abc import Sequence

from zindex.sources.damage_log import OnDamage
from zindex.sources.tar_files import TarFiles
from zindex.streaming.files_dataset import FilesDataset, ProcessFn


class MetaDistributedWebDataset(FilesDataset):
    """The samples of tar archives with the metadata beside them; see `TarFiles` for the files.

    Parameters
    ----------
    path
        Files, folders and brace patterns, with commas between, or a list; may be ``""`` with
        ``include_dirs``.
    process_fn
        Takes an iterator of the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of one that it is made of. It is called afresh on each part and
        must yield what it still holds when its source ends. None: samples stay as they are.
    meta_names
        Fields of the metadata that samples get; None: none.
    include_dirs
        More folders, with commas between; ``*n`` behind one repeats its files n times.
    shuffle_buffer
        Samples of a part among which `MergedDataset` draws the next; 0: files' own order.
    on_damage
        ``"error"``, or ``"skip"`` to leave out what is damaged, which ``num_skipped`` counts.
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
        meta_names: Sequence[str] | None = None,
        include_dirs: str | None = None,
        shuffle_buffer: int = 1000,
        on_damage: OnDamage = "error",
        part_nbytes: int = 64 << 20,
    ) -> None:
        files = TarFiles(
            path,
            meta_names=() if meta_names is None else meta_names,
            include_dirs=include_dirs,
            part_nbytes=part_nbytes,
            on_damage=on_damage,
        )
        super().__init__(files, process_fn, shuffle_buffer, on_damage)


class SimpleDistributedWebDataset(MetaDistributedWebDataset):
    """The samples of tar archives without metadata.

    Parameters
    ----------
    path
        As of `MetaDistributedWebDataset`.
    process_fn
        As there.
    seed
        Taken as upstream takes it, and used for nothing: `MergedDataset` has the seed.
    shuffle_buffer
        As there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        process_fn: ProcessFn | None = None,
        seed: int | None = None,
        *,
        shuffle_buffer: int = 1000,
    ) -> None:
        super().__init__(path, process_fn, shuffle_buffer=shuffle_buffer)
        self.seed = seed
