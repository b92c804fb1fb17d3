"""Check the location of a store before a build, and list its keys."""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from zindex.errors import FingerprintMismatchError, StoreNotFoundError, VerificationError
from zindex.io import files
from zindex.io.objects import Place
from zindex.store.layout import ArrayLayout
from zindex.store.shard import ArrayFiles, decode_index

logger = logging.getLogger(__name__)

ROOT_KEY = "zarr.json"
PLAN_KEY = "_zindex/plan.json"
MANIFEST_KEY = "_zindex/manifest.json"


def check_place(root: Place, layouts: Sequence[ArrayLayout] = ()) -> None:
    """Raise if a location is a file, is inside a store, or holds files not written by zindex.

    Shards without a plan are removed, as their content cannot be identified.
    """
    # Listed before the plan is checked: another builder writes its plan before its shards.
    names, path = files.list_names(root), root / PLAN_KEY
    if not names and isinstance(root, Path) and files.file_nbytes(root) is not None:
        raise FingerprintMismatchError(
            f"{root} must be a directory, it is a file; choose another place"
        )
    if (outer := _find_outer(root)) is not None:
        raise FingerprintMismatchError(
            f"{root} must not be inside another store, {outer} is one; choose another place"
        )
    others = names - {path.parent.name}
    # Listed, too: a client of a network file system may still remember that the plan was missing.
    if others and path.name not in files.list_names(path.parent):
        found = _remove_leftovers(root, layouts) if layouts else min(others)
        if found is not None and not files.exists(path):
            raise FingerprintMismatchError(
                f"{root} must be empty or a zindex store, it holds other files, such as {found}; "
                "choose another place"
            )


def _find_outer(root: Place) -> Path | None:
    """Return the store that contains a path of a file system; a repair's copy is exempt."""
    for folder in Path(os.path.abspath(root)).parents if isinstance(root, Path) else ():
        if folder.name == Path(PLAN_KEY).parent.name:
            return None
        if os.path.exists(folder / PLAN_KEY):
            return folder
    return None


def _remove_leftovers(root: Place, layouts: Sequence[ArrayLayout]) -> str | None:
    """Remove shards without a plan or root if there are no other files; else return a key of one.

    Another builder may begin meanwhile, so only the files that were found are removed.
    """
    shards = {item.shard_key(i): (item, i) for item in layouts for i in range(item.num_shards)}
    metadata = {MANIFEST_KEY, *(f"{layout.name}/{ROOT_KEY}" for layout in layouts)}
    scratch = f"{Path(PLAN_KEY).parent}/"
    keys = sorted(files.list_keys(root, depth=None))
    versions = {key: files.file_version(root / key) for key in keys}
    others = (
        key
        for key in keys
        if not (_is_sound(root / key, *shards[key]) if key in shards else key in metadata)
        and not key.startswith(scratch)
        and not key.endswith(".partial")
        and files.exists(root / key)
    )
    lost = [key for key in keys if key in shards]
    found = next(others, None if lost else max(keys, default=None))
    if found is not None or not lost or files.exists(root / PLAN_KEY):
        return found
    if not isinstance(root, Path):
        return lost[0]
    logger.warning(
        "%s holds %d shards, such as %s, of a build whose plan is missing; they are rebuilt",
        *(root, len(lost), lost[0]),
    )
    for key in {*lost, *metadata} & versions.keys():
        files.remove_version(root / key, versions[key])
    return None


def _is_sound(path: Place, layout: ArrayLayout, shard: int) -> bool:
    """Return whether a file is a shard of a layout, by its size and its checked chunk index."""
    form, nbytes = ArrayFiles.of(layout), files.file_nbytes(path) or 0
    with suppress(StoreNotFoundError, VerificationError):
        tail = files.read_range(path, max(0, nbytes - form.tail_nbytes(shard)), nbytes)
        decode_index(form, shard, bytes(tail), nbytes).chunk_ends(form, shard, nbytes)
        return True
    return False
