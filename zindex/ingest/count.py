"""Count the sequences and documents of many corpora, without opening them for training."""

import os
from typing import Any

from zindex.errors import SourceError
from zindex.execution.executor import Executor, open_executor, run_builds, run_together
from zindex.formats.bin_idx import HEADER, idx_path, parse_header, read_index
from zindex.ingest.corpora.pairs import Paths, find_corpora, is_url
from zindex.ingest.length_source import is_store
from zindex.io.local import local_path
from zindex.io.remote_files import MSC_PREFIX, open_remote
from zindex.store.open import open_store

Counts = tuple[int, int]


def count_sequences(paths: Paths, *, client: Any = None) -> dict[str, Counts]:
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
        For each path, as given or found, its entry in the file of Megatron Core's
        ``--per-dataset-sequences-path``: sequences, and documents + 1.

    Raises
    ------
    SourceError
        If an ``.idx`` is missing or damaged, or there is no path.

    Notes
    -----
    An ``.idx`` on a file system is validated to its last element, one task per file. Of one in
    object storage only the header and the size are read.
    """
    names = list(dict.fromkeys(find_corpora(paths)))

    async def main(executor: Executor) -> list[Counts]:
        # Workers may run in another directory.
        places = [name if is_url(name) else str(local_path(name)) for name in names]
        return await run_together(
            executor.run(count_one, place, key=f"count-{os.path.basename(place)[:28]}-{number}")
            for number, place in enumerate(places)
        )

    with open_executor(client) as executor:
        return dict(zip(names, run_builds(main(executor)), strict=True))


def count_one(path: str) -> Counts:
    """Task: count one corpus; errors as of `count_sequences`."""
    if not path.startswith(MSC_PREFIX) and is_store(path):
        spec = open_store(path, kind="tokens").spec
        return spec["num_sequences"], spec["num_documents"] + 1
    if is_url(path):
        url = idx_path(path)
        file = open_remote(url)
        found = file.look_up()
        if found is None:
            raise SourceError(f"there must be an .idx at {url}, there is none; check the URL")
        [head] = file.read_ranges([0], [HEADER.size])
        index = parse_header(bytes(head[: HEADER.size]), found.nbytes, url)
    else:
        index = read_index(path, require_bin=False)
    return index.num_sequences, index.num_documents + 1
