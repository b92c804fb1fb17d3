"""The sequences and documents of many corpora, counted without opening them for training."""

import os
from collections.abc import Iterable
from typing import Any

from zindex.building.corpora.find_sources import find_sources
from zindex.building.executor import Executor, open_executor, run_builds, run_together
from zindex.building.source import is_store
from zindex.errors import SourceError
from zindex.formats.bin_idx import HEADER, idx_path, parse_header, read_index
from zindex.store.local import local_path
from zindex.store.open import open_store
from zindex.store.remote_files import MSC_PREFIX, open_remote

Counts = tuple[int, int]


def count_sequences(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, client: Any = None
) -> dict[str, Counts]:
    """Return the sequences of corpora and the entries of their document indices.

    Parameters
    ----------
    paths
        Paths or URLs of ``.bin/.idx`` pairs without suffix, or of Zarr token stores, as a training
        job names them; globs of pairs, or folders of pairs or stores.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.

    Returns
    -------
    counts
        For each path, as it was given or found, what the file of Megatron Core's
        ``--per-dataset-sequences-path`` says of it: sequences, and documents + 1.

    Raises
    ------
    SourceError
        If an ``.idx`` is missing or damaged, or there is no path.

    Notes
    -----
    Each ``.idx`` on a file system is checked to its last element, by tasks side by side. Of one in
    object storage the header and the size are.
    """
    names = list(dict.fromkeys(find_sources(paths)))

    async def main(executor: Executor) -> list[Counts]:
        # Workers may run in another directory.
        places = [name if _is_url(name) else str(local_path(name)) for name in names]
        return await run_together(
            executor.run(count_one, place, key=f"count-{os.path.basename(place)[:28]}-{number}")
            for number, place in enumerate(places)
        )

    with open_executor(client) as executor:
        return dict(zip(names, run_builds(main(executor)), strict=True))


def _is_url(name: str) -> bool:
    """Return whether a name is that of something in object storage."""
    return "://" in name and not name.startswith("file://")


def count_one(path: str) -> Counts:
    """Task: count one corpus; errors as of `count_sequences`."""
    if not path.startswith(MSC_PREFIX) and is_store(path):
        spec = open_store(path, kind="tokens").spec
        return spec["num_sequences"], spec["num_documents"] + 1
    if _is_url(path):
        return _count_remote(idx_path(path))
    index = read_index(path, require_bin=False)
    return index.num_sequences, index.num_documents + 1


def _count_remote(url: str) -> Counts:
    """Count a pair in object storage by the header of its ``.idx``."""
    file = open_remote(url)
    found = file.look_up()
    if found is None:
        raise SourceError(f"there must be an .idx at {url}, there is none; check the URL")
    [head] = file.read_ranges([0], [HEADER.size])
    index = parse_header(bytes(head[: HEADER.size]), found.nbytes, url)
    return index.num_sequences, index.num_documents + 1
