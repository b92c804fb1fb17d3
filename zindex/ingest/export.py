"""Export a Zarr token store as the ``.bin/.idx`` pair that it was converted from."""

import contextlib
import os
from typing import Any

from zindex.errors import StoreError
from zindex.execution.executor import open_executor, run_builds, run_together
from zindex.ingest.corpora.corpus import StoreCorpus
from zindex.ingest.corpora.write_pair import copy_tokens, write_idx
from zindex.io.local import local_path, replacing
from zindex.io.objects import PlaceLike
from zindex.store.open import open_store
from zindex.store.tokens import open_tokens

# Tokens that one task copies.
_TASK_TOKENS = 1 << 24


def export(
    store_url: PlaceLike,
    prefix: str | os.PathLike[str],
    *,
    client: Any = None,
    overwrite: bool = False,
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

    Raises
    ------
    StoreError
        If a file is already there.
    SourceError
        If the store links to a ``.bin`` that is missing or of another size.
    """
    store = open_store(store_url, kind="tokens")
    open_tokens(store)  # a dangling link is an error before anything is written
    corpus = StoreCorpus(store)
    base = str(local_path(prefix, "a .bin/.idx pair"))  # workers may run in another directory
    for path in (f"{base}.bin", f"{base}.idx"):
        if os.path.exists(path) and not overwrite:
            raise StoreError(f"{path} exists; choose another prefix or pass overwrite")
    os.makedirs(os.path.dirname(base), exist_ok=True)
    starts = range(0, corpus.num_tokens, _TASK_TOKENS)
    with replacing(f"{base}.idx") as index, replacing(f"{base}.bin") as tokens:
        with open(tokens, "xb") as stream:
            stream.truncate(corpus.num_tokens * corpus.dtype.itemsize)
        with open_executor(client) as executor:
            copies = (
                executor.run(
                    copy_tokens,
                    corpus,
                    tokens,
                    start,
                    min(start + _TASK_TOKENS, corpus.num_tokens),
                    key=f"export-{store.root.name}-{start}",
                )
                for start in starts
            )
            run_builds(run_together(copies))
        write_idx(corpus, index)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{base}.idx")  # a new .bin must never have an old .idx
