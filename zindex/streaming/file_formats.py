"""Datasets of jsonl files and of tar archives."""

from collections.abc import Sequence

from zindex.processing.process_function import ProcessFn
from zindex.sources.damage_log import OnDamage
from zindex.sources.jsonl_files import JsonlFiles
from zindex.sources.opened_files import PREPARE_NBYTES
from zindex.sources.sample_files import Paths
from zindex.sources.tar_files import TarFiles
from zindex.streaming.files_dataset import FilesDataset


class JsonlIterableDataset(FilesDataset):
    """Lines of jsonl files as samples; see `JsonlFiles` for the files.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas, or a list.
    process_fn
        Takes an iterator over the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of an input. It is called once per part and must yield buffered
        samples when its input ends. None leaves samples unchanged.
    shuffle_buffer
        Size of the shuffle buffer in `MergedDataset`, in samples; 0 keeps the order of the files.
    on_damage
        ``"error"``, or ``"skip"`` to skip damaged lines, which ``num_skipped`` counts.
    part_nbytes
        Bytes of a part of a plain local file, of which cogdata's order of files reads one after the
        other. Other orders share units of samples, whose size follows from the samples.
    prepare_nbytes
        Compressed files and files at URLs with at most as many bytes together, as they are stored,
        are read in advance to read their samples in any order; 0, or more bytes, reads file by
        file.

    Raises
    ------
    ConfigError
        If a setting or a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder does not exist.
    SourceError
        If no file is given.

    Notes
    -----
    Iterating over it yields the parts in order, shared between the workers of a DataLoader, without
    shuffling or resuming, which `MergedDataset` does.
    """

    def __init__(
        self,
        path: Paths,
        process_fn: ProcessFn | None = None,
        *,
        shuffle_buffer: int = 1000,
        on_damage: OnDamage = "error",
        part_nbytes: int = 8 << 20,
        prepare_nbytes: int = PREPARE_NBYTES,
    ) -> None:
        files = JsonlFiles(
            path, part_nbytes=part_nbytes, on_damage=on_damage, prepare_nbytes=prepare_nbytes
        )
        super().__init__(files, process_fn, shuffle_buffer, on_damage)


class MetaDistributedWebDataset(FilesDataset):
    """Samples of tar archives with their metadata files; see `TarFiles` for the files.

    Parameters
    ----------
    path
        Files, folders and patterns, separated by commas, or a list; may be ``""`` with
        ``include_dirs``.
    process_fn
        Takes an iterator over the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of an input. It is called once per part and must yield buffered
        samples when its input ends. None leaves samples unchanged.
    meta_names
        Fields of the metadata to add to samples; None adds none.
    include_dirs
        Additional folders, separated by commas; the suffix ``*n`` repeats the files of a folder n
        times.
    shuffle_buffer
        Size of the shuffle buffer in `MergedDataset`, in samples; 0 keeps the order of the files.
    on_damage
        ``"error"``, or ``"skip"`` to skip damaged samples, which ``num_skipped`` counts.
    part_nbytes
        Bytes of a part of a plain local file, of which cogdata's order of files reads one after the
        other. Other orders share units of samples, whose size follows from the samples.
    prepare_nbytes
        Compressed files and files at URLs with at most as many bytes together, as they are stored,
        are read in advance to read their samples in any order; 0, or more bytes, reads file by
        file.

    Raises
    ------
    ConfigError
        If a setting or a scheme is not supported, or a file is named twice.
    StoreNotFoundError
        If a file or folder does not exist.
    SourceError
        If no file is given.

    Notes
    -----
    Iterating over it yields the parts in order, shared between the workers of a DataLoader, without
    shuffling or resuming, which `MergedDataset` does.
    """

    def __init__(
        self,
        path: Paths,
        process_fn: ProcessFn | None = None,
        *,
        meta_names: Sequence[str] | None = None,
        include_dirs: str | None = None,
        shuffle_buffer: int = 1000,
        on_damage: OnDamage = "error",
        part_nbytes: int = 64 << 20,
        prepare_nbytes: int = PREPARE_NBYTES,
    ) -> None:
        files = TarFiles(
            path,
            meta_names=() if meta_names is None else meta_names,
            include_dirs=include_dirs,
            part_nbytes=part_nbytes,
            on_damage=on_damage,
            prepare_nbytes=prepare_nbytes,
        )
        super().__init__(files, process_fn, shuffle_buffer, on_damage)


class SimpleDistributedWebDataset(MetaDistributedWebDataset):
    """Samples of tar archives without metadata.

    Parameters
    ----------
    path
        As for `MetaDistributedWebDataset`.
    process_fn
        As for `MetaDistributedWebDataset`.
    seed
        Accepted for compatibility and ignored: the seed is set on `MergedDataset`.
    shuffle_buffer
        As for `MetaDistributedWebDataset`.
    """

    def __init__(
        self,
        path: Paths,
        process_fn: ProcessFn | None = None,
        seed: int | None = None,
        *,
        shuffle_buffer: int = 1000,
    ) -> None:
        super().__init__(path, process_fn, shuffle_buffer=shuffle_buffer)
        self.seed = seed
