"""An import that was begun at a place and not finished: what differs from it, and its removal."""

import os
from pathlib import Path
from typing import Any

from zindex.errors import FingerprintMismatchError, StoreNotFoundError
from zindex.store import files
from zindex.store.commit import PLAN_KEY, ROOT_KEY, read_plan
from zindex.store.identity import parse_json
from zindex.store.objects import Place
from zindex.store.records import KIND
from zindex.store.scratch import IMPORT_KEY, end_import, has_notes

# What a user calls the parts of an identity.
_NAMES = {
    "source": "the files, or their sizes",
    "meta_names": "meta_names (--meta)",
    "fields": "fields (--field)",
    "dtypes": "dtypes (--dtype)",
    "skip_damaged": "on_damage (--on-damage)",
    "column": "column (--column)",
    "end_id": "append_eod (--append-eod)",
    "sentences": "split_sentences (--split-sentences), language or sentencex",
    "token_dtype": "token_dtype (--token-dtype)",
}
# How deep the files of an array lie: zarr.json, c/<i>, or c/<i>/0.
_DEPTHS = (1, 2, 3)


def check_unfinished(
    root: Place, identity: dict[str, Any], *, restart: bool, kind: str = KIND
) -> None:
    """Check that a place holds no unfinished import of something else, or remove what it holds.

    An import that has not one finished part, as where its first call had a wrong setting, gives way
    to any other. If it is still running, it finds that out with its next part: see `check_claim`.

    Parameters
    ----------
    root
        Place of the store.
    identity
        Everything that decides the records.
    restart
        Whether to remove an unfinished import, also one of the same. No other import may be
        running there.
    kind
        Of the stores that the import makes.

    Raises
    ------
    FingerprintMismatchError
        If something else is there: another import, unless that is removed, or what no import made.
    """
    path = root / IMPORT_KEY
    if (isinstance(root, Path) and not root.is_dir()) or not files.exists(path):
        return
    if restart:
        _remove(root, kind)
        return
    names = _differences(root, identity)
    if names and not has_notes(root) and not files.exists(root / PLAN_KEY):
        # Looked at again: another importer of this may have taken the place meanwhile.
        if _differences(root, identity):
            files.remove_file(path)
        return
    if names:
        raise FingerprintMismatchError(
            f"{root} holds an unfinished import of another source, or with other settings; what "
            f"differs: {', '.join(names)}; choose another place or, if no import is running there, "
            "remove that one with restart=True (--restart)"
        )


def check_claim(root: Place, identity: dict[str, Any]) -> None:
    """Check that no other import has taken the place meanwhile.

    Raises
    ------
    FingerprintMismatchError
        If one has.
    """
    names = _differences(root, identity)
    if names:
        raise FingerprintMismatchError(
            f"{root} must be one import's alone, another one has begun there meanwhile; what "
            f"differs: {', '.join(names)}; choose another place"
        )


def _differences(root: Place, identity: dict[str, Any]) -> list[str]:
    """Return what differs from the import that a place is claimed for, as a user calls it."""
    path = root / IMPORT_KEY
    try:
        stored = parse_json(files.read_file(path), str(path))
    except StoreNotFoundError:  # another importer has just finished, or makes room for itself
        return []
    return [
        _NAMES.get(name, name)
        for name in sorted({*stored, *identity})
        if stored.get(name) != identity.get(name)
    ]


def _remove(root: Place, kind: str) -> None:
    """Remove what an unfinished import has written; never a store that is committed."""
    if files.exists(root / ROOT_KEY):
        return
    try:
        plan = read_plan(root)
    except StoreNotFoundError:
        plan = {"kind": kind, "arrays": []}
    if plan["kind"] != kind:
        raise FingerprintMismatchError(
            f"{root} must hold an unfinished import to be removed, it holds an unfinished store of "
            f"kind {plan['kind']!r}; choose another place"
        )
    for array in plan["arrays"]:
        folder = root / array["name"]
        for depth in _DEPTHS:
            for key in list(files.list_keys(folder, depth=depth)):
                files.remove_file(folder / key)
        if isinstance(folder, Path) and folder.is_dir():
            for left, _, _ in os.walk(folder, topdown=False):
                os.rmdir(left)
    for key in sorted(files.list_keys((root / PLAN_KEY).parent)):
        if key != IMPORT_KEY.rpartition("/")[2]:
            files.remove_file((root / PLAN_KEY).parent / key)
    # What says that this was an import goes last: a removal that dies is begun again.
    end_import(root)
