"""A folder of stores as one Zarr group, so that plain Zarr readers can list and open its stores.

::

    FOLDER/zarr.json            a group with the metadata of all committed stores of the folder
    FOLDER/names-<digest>.json  the names of stores in one run

The group is derived from the stores and the names, and rewritten when a run is built; zindex itself
reads only the stores. Stores are shared by content, so they do not contain names.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from zindex.errors import StoreError, StoreNotFoundError, VerificationError
from zindex.io import files
from zindex.io.objects import Place
from zindex.io.request_threads import map_in_threads
from zindex.store.check_place import PLAN_KEY
from zindex.store.checked_json import parse_as
from zindex.store.commit import ROOT_KEY, canonical_json, parse_json, parse_root
from zindex.store.layout import ArrayLayout, parse_layouts


@dataclass(frozen=True, slots=True)
class StoreNames:
    """The names of one store in a run."""

    split: str
    #: Names and paths of the datasets that share an index, or that a blend draws from, in order of
    #: id.
    datasets: tuple[str, ...]
    corpora: tuple[str, ...]
    is_blend: bool = False

    def join(self, other: "StoreNames") -> "StoreNames":
        """Return the names of a store that two runs share."""
        return replace(
            self,
            datasets=self._join(self.datasets, other.datasets),
            corpora=self._join(self.corpora, other.corpora),
        )

    def _join(self, own: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
        if not self.is_blend:
            return tuple(sorted({*own, *others}))
        pairs = zip(own, others, strict=False)
        return tuple(" | ".join(sorted({*a.split(" | "), *b.split(" | ")})) for a, b in pairs)


_NAMES: Any = dict[str, StoreNames]
_NAMES_PREFIX = "names-"
_MARK = {"zindex_folder": 1}
# Other writers may commit meanwhile; each of them also writes the group afterwards.
_NUM_ATTEMPTS = 8
_NUM_THREADS = 8


def is_group(folder: Place) -> bool:
    """Return whether a folder has a group of this module and is not a store itself."""
    if not files.exists(folder / ROOT_KEY) or files.exists(folder / PLAN_KEY):
        return False
    return _is_ours(_read(folder / ROOT_KEY))


def save_names(folder: Place, names: Mapping[str, StoreNames]) -> None:
    """Save the names of stores in a run, by the names of their directories."""
    content = canonical_json({name: asdict(each) for name, each in names.items()}).encode()
    digest = hashlib.sha256(content).hexdigest()
    files.write_once(folder / f"{_NAMES_PREFIX}{digest[:16]}.json", [content])


def write_group(folder: Place, *, create: bool = True) -> None:
    """Write the group of a folder if it is missing or describes other stores.

    Parameters
    ----------
    folder
        Directory of stores.
    create
        Whether to create a missing group. A ``zarr.json`` of other programs is never replaced.

    Notes
    -----
    Law: the last of several writers describes all stores that were committed before any of them
    began, as each checks again after its own write.
    """
    path = folder / ROOT_KEY
    content, described = None, None
    for _ in range(_NUM_ATTEMPTS):
        known = _read(path)
        is_own = known is not None and known == content
        if not is_own and not (create if known is None else _is_ours(known)):
            return
        found = _read_entries(folder)
        if found != described:
            content, described = _describe(folder, found), found
        if known == content:
            return
        assert content is not None
        files.write_once(path, [content], replace=True)


def read_names(folder: Place) -> dict[str, StoreNames]:
    """Return the names of the stores of a folder in its runs, by the names of their directories."""
    entries = [entry for entry in files.list_names(folder) if entry.startswith(_NAMES_PREFIX)]
    found = {entry: _read(folder / entry) for entry in sorted(entries)}
    return _join_names(folder, {entry: text for entry, text in found.items() if text is not None})


def _join_names(folder: Place, found: Mapping[str, bytes]) -> dict[str, StoreNames]:
    """Return the names that all runs saved among the entries of a folder."""
    names: dict[str, StoreNames] = {}
    for entry, text in found.items():
        if entry.startswith(_NAMES_PREFIX):
            rows = parse_json(text, str(folder / entry))
            for name, each in parse_as(_NAMES, rows, str(folder / entry)).items():
                names[name] = names[name].join(each) if name in names else each
    return names


def _read_entries(folder: Place) -> dict[str, bytes]:
    """Return the files that a group describes, by entry: saved names, and roots of stores."""
    entries = sorted(files.list_names(folder))
    entries = [
        entry
        for entry in entries
        if entry.startswith(_NAMES_PREFIX) or not entry.endswith((".json", ".partial"))
    ]

    def read(entry: str) -> bytes | None:
        is_names = entry.startswith(_NAMES_PREFIX)
        return _read(folder / entry if is_names else folder / entry / ROOT_KEY)

    texts = map_in_threads(_NUM_THREADS, read, entries)
    found = zip(entries, texts, strict=True)
    return {entry: text for entry, text in found if text is not None}


def _read(path: Place) -> bytes | None:
    try:
        return files.read_file(path, limit=1 << 30)
    except StoreNotFoundError:
        return None


def _is_ours(content: bytes | None) -> bool:
    """Return whether a ``zarr.json`` was written by this module."""
    with suppress(StoreError):
        attributes = parse_json(content or b"", "a group").get("attributes")
        return isinstance(attributes, dict) and _MARK.items() <= attributes.items()
    return False


def _describe(folder: Place, found: Mapping[str, bytes]) -> bytes:
    """Return the ``zarr.json`` of a folder's group, from its files."""
    names = _join_names(folder, found)
    metadata: dict[str, Any] = {}
    for name, text in found.items():
        store = None if name.startswith(_NAMES_PREFIX) else _parse_store(folder / name, text)
        if store is None:
            continue
        attributes, layouts = store
        facts = attributes | (_attributes(names[name]) if name in names else {})
        metadata[name] = {"zarr_format": 3, "node_type": "group", "attributes": facts}
        sizes: dict[str, int] = {}
        for layout in sorted(layouts, key=lambda layout: layout.name):
            array, fields = layout.name, layout.zarr_metadata()
            metadata[f"{name}/{array}"] = fields | {
                "dimension_names": [
                    # Stores of earlier versions use one dimension name for several sizes.
                    dim if sizes.setdefault(dim, size) == size else f"{array}_{dim}"
                    for dim, size in zip(fields["dimension_names"], fields["shape"], strict=True)
                ]
            }
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": _MARK,
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata},
    }
    return canonical_json(root).encode()


def _attributes(names: StoreNames) -> dict[str, Any]:
    return {key: value for key, value in asdict(names).items() if key != "is_blend"}


def _parse_store(root: Place, text: bytes) -> tuple[dict[str, Any], tuple[ArrayLayout, ...]] | None:
    """Return attributes and arrays of a store; None unless it is intact."""
    try:
        layouts = parse_layouts(parse_root(text, root)["arrays"], root)
        attributes = parse_json(text, str(root))["attributes"]
        canonical_json(attributes)
        return attributes, layouts
    # The last two for JSON that zindex never writes, such as NaN.
    except (StoreError, VerificationError, ValueError, RecursionError):
        return None
