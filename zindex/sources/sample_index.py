"""Write where samples are next to their files, so that other nodes need not search these."""

from typing import Any

from zindex.errors import ConfigError
from zindex.sources.part_files import PartFiles


def write_offsets(dataset: Any) -> list[str]:
    """Write the offsets of the samples of each file into a file next to it.

    Other nodes read ``NAME.offsets`` instead of the whole of a file to find its samples. Files in
    an object store get it there. For a server that is only read, call this for the local files and
    copy both to it, the offsets last.

    Parameters
    ----------
    dataset
        A `JsonlIterableDataset` or `MetaDistributedWebDataset`.

    Returns
    -------
    urls
        The files that have it. Compressed files that are neither of ``bgzip`` nor seekable zstd,
        and damaged ones, are left out: they are read as a whole on each node.

    Raises
    ------
    ConfigError
        If it is another dataset, its files have more than ``prepare_nbytes`` bytes, or their store
        is only read.
    StoreUnwritableError, StoreUnavailableError
        If a file cannot be written.

    Notes
    -----
    Offsets of another size, or older than their file, are not used, with a warning, unless they
    name its version in the object store. Those of an archive with ``meta_names`` are of this
    version of its metadata only.
    """
    files = getattr(dataset, "files", None)
    if not isinstance(files, PartFiles):
        raise ConfigError(
            "offsets are written for jsonl files and tar archives, got "
            f"{type(dataset).__name__}; give a JsonlIterableDataset or MetaDistributedWebDataset"
        )
    return files.write_offsets()
