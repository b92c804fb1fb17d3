"""Keyed stores of HDF5 files, folders of raw arrays, and Zarr stores of records, by format name."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from zindex.errors import ConfigError, NotReadyError, SourceError, StoreNotFoundError
from zindex.formats.keyed.keyed_array import KeyedArray, KeyedShard
from zindex.formats.keyed.shards import FileFormat, read_shards
from zindex.io import files
from zindex.io.objects import Place
from zindex.keyed.columns import Column, column_of_files
from zindex.keyed.store import KeyedStore
from zindex.store.commit import fingerprint
from zindex.store.open import Store as ArrayStore
from zindex.store.open import open_store
from zindex.store.record_reader import RecordReader
from zindex.store.records import KEY, KIND, LENGTH_SUFFIX, Form, read_fields
from zindex.store.scratch import IMPORT_KEY
from zindex.store.tokenizer_note import read_note

# Values at the start and the end of every key of a shard that are hashed into the fingerprint.
_NUM_SAMPLED = 512


class _FileStore(KeyedStore):
    """A store of files in shards."""

    is_mapped: ClassVar[bool] = False

    def _open(self, path: Place, *, strict: bool) -> tuple[Mapping[str, Column], str]:
        if not isinstance(path, Path):
            raise ConfigError(
                f"a store of format {self.format!r} must be in a file system, got {path}; convert "
                "it to Zarr, which may be in an object store"
            )
        shards = read_shards(path, cast("FileFormat", self.format), strict)
        keys = dict.fromkeys(key for shard in shards for key in shard.arrays)
        columns = {
            key: column_of_files(
                [shard.arrays[key] for shard in shards if key in shard.arrays],
                mapped=self.is_mapped,
            )
            for key in keys
        }
        return columns, _identify(shards)


class H5Store(_FileStore):
    """HDF5 files with a group for every key: one file, or all files below a folder.

    Files are in natural order of their paths, and in each group the datasets in natural order of
    their names. Each dataset is a record, or, if it is a group of datasets, a record of items.
    Contiguous datasets are read by position; others are read into memory on first use.
    """

    format = "h5"


class MmapStore(_FileStore):
    """Folders with a ``meta.json`` and one ``.bin`` file of raw values for every key.

    Folders are in natural order of their paths. Record bounds are known if ``meta.json`` has
    offsets, which `save_bin` writes with ``record_keys``.
    """

    format = "bin"


class MappedStore(MmapStore):
    """Memory-mapped `MmapStore`, for files that no process truncates, on any file system.

    Truncating a file while it is open kills the process with SIGBUS.
    """

    is_mapped = True


class ZarrStore(KeyedStore):
    """A store of records whose fields are numbers, such as ``zindex convert`` writes of HDF5 files.

    Each numeric field is a key. A record is a document, a pair or a group.
    Texts, bytes and JSON values are ``text_keys``, which samples have if their schema says so.
    If a key has a companion ``<key>_length``, its records are groups of consecutive items with
    these lengths. The store may be in an object store; chunks are verified on first read.
    """

    format = "zarr"

    def _open(self, path: Place, *, strict: bool) -> tuple[Mapping[str, Column], str]:
        store = _open_finished(path)
        note = read_note(path)
        self.num_ids = None if note is None else note.vocab_size
        fields = read_fields(store.spec, path)
        numbers = {
            name: field
            for name, field in fields.items()
            if field.form == Form.NUMBERS and not field.has_forms
        }
        if not numbers:
            if not store.spec["num_records"]:
                raise SourceError(
                    f"{path} must have records to be a keyed store, it has none; make it again of "
                    "files that are not empty"
                )
            raise SourceError(
                f"{path} must have fields of numbers to be a keyed store, it has "
                f"{sorted(name for name in fields if name != KEY)}; import it with a dtype for "
                "its token ids, or tokenise its texts"
            )
        has_records = store.spec.get("has_records", True)
        found = {
            name: Column(
                name, store[field.value.name], store[field.offset.name] if has_records else None
            )
            for name, field in numbers.items()
        }
        texts = [name for name in fields if name not in (KEY, *numbers)]
        self._texts = RecordReader(store, texts) if texts and has_records else None
        columns: dict[str, Column] = {}
        for name, column in found.items():
            if not (name.endswith(LENGTH_SUFFIX) and name.removesuffix(LENGTH_SUFFIX) in found):
                column.lengths = found.get(name + LENGTH_SUFFIX)
                columns[name] = column
        return columns, store.fingerprint


def _open_finished(path: Place) -> ArrayStore:
    """Open a store of records; NotReadyError if its import is running or was interrupted."""
    try:
        return open_store(path, kind=KIND)
    except NotReadyError:
        raise
    except StoreNotFoundError:
        if not files.exists(path / IMPORT_KEY):
            raise
        raise NotReadyError(
            f"{path} is not finished yet, its source is still being read; run the command that "
            "makes it again, which resumes from there",
            num_done=0,
            num_shards=0,
        ) from None


def _identify(shards: Sequence[KeyedShard]) -> str:
    """Return the SHA-256, in hex, of the content that determines the samples of some shards.

    Includes all lengths and offsets, and the values at the start and end of every key of a shard.
    Names and locations are excluded, so that a copy elsewhere has the same fingerprint.
    """
    described = [
        {key: _describe(array) for key, array in sorted(shard.arrays.items())} for shard in shards
    ]
    return fingerprint({"kind": "keyed_files", "shards": described})


def _describe(array: KeyedArray) -> dict[str, Any]:
    """Return what determines the samples of one key of a shard, as JSON values."""
    digest = hashlib.sha256()
    if length := array.length:
        for start, stop in ((0, _NUM_SAMPLED), (length - _NUM_SAMPLED, length)):
            digest.update(array.read(max(0, start), min(stop, length)).data)
    offsets = [
        None if offset is None else hashlib.sha256(offset.data).hexdigest()
        for offset in (array.item_offset, array.group_offset)
    ]
    return {
        "dtype": array.dtype,
        "length": length,
        "offsets": offsets,
        "sampled": digest.hexdigest(),
    }


#: Entry point group in which packages register a store class per format.
ENTRY_POINTS = "zindex.keyed_stores"

StoreType = TypeVar("StoreType", bound=type[KeyedStore])


@dataclass(frozen=True, slots=True)
class _Entry:
    """One format."""

    #: Imports and returns the store class.
    load: Callable[[], Any]
    category: str | None = None
    priority: int = 0


class StoreFactory:
    """Creates stores by format name: ``"h5"``, ``"bin"``, ``"zarr"``, ``"growing"``, others.

    Packages add formats with an entry point in the group ``zindex.keyed_stores``, programs with
    the decorator ``register``.

    Examples
    --------
    >>> store = StoreFactory.create("bin")
    >>> store.format, len(store), store.keys
    ('bin', 0, [])
    """

    _entries: ClassVar[dict[str, _Entry]] = {
        form: _Entry(EntryPoint(form, f"zindex.keyed.{name}", "").load, category="builtin")
        for form, name in (
            ("h5", "stores:H5Store"),
            ("bin", "stores:MmapStore"),
            ("zarr", "stores:ZarrStore"),
            ("mapped_bin", "stores:MappedStore"),
            ("growing", "growing_store:GrowingStore"),
        )
    }

    @classmethod
    def create(cls, name: str) -> KeyedStore:
        """Return a store of a format, not yet loaded.

        Raises
        ------
        ConfigError
            If there is no such format.
        TypeError
            If the entry point of a package is not a store class.
        """
        if name == "jsonl":
            raise ConfigError(
                "a store must be of a format that is read by position, got 'jsonl'; convert the "
                "file first: zindex convert SOURCE TARGET"
            )
        known = cls._all_entries()
        if name not in known:
            raise ConfigError(
                f"Unknown component: {name!r}. Supported types: {cls.names()}; name one of them, "
                "or install the package that adds it"
            )
        return _checked(known[name].load(), name)()

    @classmethod
    def register(
        cls, name: str, category: str | None = None, priority: int = 0
    ) -> Callable[[StoreType], StoreType]:
        """Return a decorator that registers a class as the store of a format.

        Parameters
        ----------
        name
            The format, as ``storage_type`` names it.
        category
            Category, for ``names``.
        priority
            Formats with a higher priority are listed first.

        Raises
        ------
        ConfigError
            If the format is registered already.
        TypeError
            If the class does not inherit from `KeyedStore`.
        """

        def add(store_type: StoreType) -> StoreType:
            _checked(store_type, name)
            if name in cls._all_entries():
                raise ConfigError(
                    f"a format must be registered once, {name!r} is there already; register "
                    f"{store_type.__name__} by another name"
                )
            cls._entries[name] = _Entry(lambda: store_type, category, priority)
            return store_type

        return add

    @classmethod
    def names(cls, category: str | None = None) -> list[str]:
        """Return the formats, optionally of one category, by priority and name."""
        known = cls._all_entries()
        chosen = [name for name in known if category in {None, known[name].category}]
        return sorted(chosen, key=lambda name: (-known[name].priority, name))

    @classmethod
    def _all_entries(cls) -> dict[str, _Entry]:
        """Return all formats; those of packages do not override others."""
        points = entry_points(group=ENTRY_POINTS)
        return {point.name: _Entry(point.load, category="package") for point in points} | (
            cls._entries
        )


def _checked(store_type: Any, name: str) -> type[KeyedStore]:
    """Return a store class; TypeError if it is not one."""
    if isinstance(store_type, type) and issubclass(store_type, KeyedStore):
        return store_type
    raise TypeError(
        f"a format must be given by a class that inherits from zindex.keyed.Store, {name!r} has "
        f"{store_type!r}; inherit from it"
    )
