"""Export a Zarr token store as the ``.bin/.idx`` pair that it was converted from."""

import os
from typing import Any

from zindex.ingest.merge import merge
from zindex.io.objects import PlaceLike
from zindex.store.open import open_store
from zindex.store.tokens import open_tokens


def export(
    store_url: PlaceLike,
    prefix: str | os.PathLike[str],
    *,
    client: Any = None,
    overwrite: bool = False,
    restart: bool = False,
) -> None:
    """Write a token store as the ``.bin/.idx`` pair that it was made from, byte for byte.

    Parameters
    ----------
    store_url
        Path or URL of the token store.
    prefix
        Path of the pair to write, without its suffix.
    client
        A ``distributed.Client`` or a scheduler's address; None as in ``zindex.build``.
    overwrite
        Whether an existing pair may be replaced.
    restart
        Whether an unfinished export to the same pair is removed first, also one of another store.

    Raises
    ------
    StoreError
        If a file is already there.
    SourceError
        If the store links to a ``.bin`` that is missing or of another size.
    FingerprintMismatchError
        If an unfinished export of another store is there.

    Notes
    -----
    An interrupted export resumes from its written spans, in ``PREFIX.work``; see `zindex.merge`.
    """
    store = open_store(store_url, kind="tokens")
    open_tokens(store)  # a dangling link is an error before anything is written
    merge(str(store.root), prefix, to="bin", overwrite=overwrite, restart=restart, client=client)
