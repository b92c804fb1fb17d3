"""The tokens of a corpus by position: from the Zarr array, or from a linked ``.bin``."""

import os

from zindex import schema
from zindex.errors import SourceError, StoreError
from zindex.store.flat_file import FlatFile
from zindex.store.open import Store
from zindex.store.reader import RowReader

#: Key of ``attributes.zindex`` under which a linked store names its ``.bin``.
LINK = "bin"


def open_tokens(store: Store) -> RowReader:
    """Return the reader of a token store's tokens, wherever they lie.

    Raises
    ------
    StoreError
        If the store holds neither tokens nor a link to them.
    SourceError
        If the ``.bin`` that it links to is missing or of another size.
    """
    if schema.TOKENS.name in store:
        return store[schema.TOKENS.name]
    link = store.attributes.get(LINK)
    if not isinstance(link, dict):
        raise StoreError(f"{store.root} must hold tokens or name their .bin, it does neither")
    path, nbytes = link["path"], link["nbytes"]
    size = os.path.getsize(path) if os.path.exists(path) else None
    if size != nbytes:
        found = "it is missing" if size is None else f"it has {size:,}"
        raise SourceError(
            f"{path} must have {nbytes:,} bytes, as when it was linked to {store.root}, {found}; "
            "restore it, or convert the corpus again at another place"
        )
    return FlatFile(path, nbytes, store.spec["token_dtype"])
