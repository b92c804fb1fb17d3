"""Keyed stores in Zarr: the fields of a store of records, read by position."""

from collections.abc import Mapping

from zindex.errors import NotReadyError, SourceError, StoreNotFoundError
from zindex.keyed.columns import Column
from zindex.keyed.store import Store
from zindex.keyed.zarr_column import ZarrColumn
from zindex.store import files
from zindex.store.objects import Place
from zindex.store.open import Store as ArrayStore
from zindex.store.open import open_store
from zindex.store.records import KEY, KIND, LENGTH_SUFFIX, Form, RecordField
from zindex.store.scratch import IMPORT_KEY


class ZarrStore(Store):
    """A store of records whose fields are numbers, such as ``zindex convert`` makes of HDF5 files.

    Each field is a key. A record is a document, a pair or a group. Where a key has a companion
    ``<key>_length``, a record of it is a group of items of these lengths, one after the other.
    Fields of text are no keys. The place may be in an object store; chunks are checked when they
    are first read.
    """

    format = "zarr"

    def _open(self, path: Place, *, strict: bool) -> tuple[Mapping[str, Column], str]:
        """Return the columns of a store, and its fingerprint."""
        store = _open_finished(path)
        fields = {item["name"]: RecordField(**item) for item in store.spec["fields"]}
        numbers = {name: field for name, field in fields.items() if _is_numeric(field)}
        if not numbers and not store.spec["num_records"]:
            raise SourceError(
                f"{path} must have records to be a keyed store, it has none; make it again of "
                "files that are not empty"
            )
        if not numbers:
            raise SourceError(
                f"{path} must have fields of numbers to be a keyed store, it has "
                f"{sorted(name for name in fields if name != KEY)}; import it with a dtype for "
                "its token ids, or tokenise its texts"
            )
        has_records = store.spec.get("has_records", True)
        found = {name: _open_column(store, field, has_records) for name, field in numbers.items()}
        columns: dict[str, Column] = {}
        for name, column in found.items():
            if name.endswith(LENGTH_SUFFIX) and name.removesuffix(LENGTH_SUFFIX) in found:
                continue
            column.lengths = found.get(name + LENGTH_SUFFIX)
            column.has_groups = column.lengths is not None
            columns[name] = column
        return columns, store.fingerprint


def _open_finished(path: Place) -> ArrayStore:
    """Open a store of records; NotReadyError if it is still being made, or that was stopped."""
    try:
        return open_store(path, kind=KIND)
    except NotReadyError:
        raise
    except StoreNotFoundError:
        if not files.exists(path / IMPORT_KEY):
            raise
        raise NotReadyError(
            f"{path} is not finished yet, its source is still being read; run the command that "
            "makes it again, which goes on from there",
            num_done=0,
            num_shards=0,
        ) from None


def _is_numeric(field: RecordField) -> bool:
    """Return whether all records have numbers in a field."""
    return field.form == Form.NUMBERS and not field.has_forms


def _open_column(store: ArrayStore, field: RecordField, has_records: bool) -> ZarrColumn:
    """Return the column of a field."""
    offsets = store[field.offset.name] if has_records else None
    return ZarrColumn(field.name, store[field.value.name], offsets)
