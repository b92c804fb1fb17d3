"""Datasets whose samples are whole records, such as pairs and groups, and their padded batches."""

from collections.abc import Sequence
from typing import Any

from zindex.arrays import Int64Array
from zindex.errors import SourceError
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.formats.keyed.schema_presets import DPO, GRPO
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.columns import read_columns
from zindex.keyed.extra_keys import find_record_extras, infer_extras
from zindex.keyed.packed_records import PackedRecords, measure_records
from zindex.keyed.record_batches import Item, PaddedBatch, RecordReads, pad_records
from zindex.keyed.store import KeyedStore
from zindex.keyed.value_checks import check_values
from zindex.plan.token_batches import SampleSizes
from zindex.samples.batch import BatchTensors, SampleBatch


def dpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return pairs as tensors, padded on the right to one length for both answers.

    Parameters
    ----------
    items
        With ``chosen``, ``rejected`` (int64) and ``chosen_mask``, ``rejected_mask`` (bool, or
        floats), each of shape (tokens,); and any other tensors, see `KeyedRecordDataset`.
    pad_id
        Padding of token ids.

    Returns
    -------
    tensors
        The same names, shape (pairs, most tokens of any answer); masks are False at padding.
    """
    return KeyedRecordDataset(DPO, pad_id=pad_id).collate(items)


def grpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return groups as tensors; smaller groups are padded with empty responses.

    Parameters
    ----------
    items
        With ``prompts`` (int64, shape (tokens,)), ``responses`` (list of int64) and ``masks`` (list
        of bool or floats), one of each for every response, and ``rewards`` (floats, shape
        (responses,)); and any other tensors, see `KeyedRecordDataset`.
    pad_id
        Padding of token ids.

    Returns
    -------
    tensors
        ``prompts`` (int64) and ``prompt_mask`` (bool), shape (groups, most tokens), padded on the
        left; ``responses`` (int64) and ``masks`` (bool, or the floats given), shape (groups, most
        responses, most tokens), padded on the right; ``rewards`` (float32, or the floats given) and
        ``group_mask`` (bool), shape (groups, most responses): ``group_mask`` is False at padding,
        which the mean over a group must exclude.
    """
    return KeyedRecordDataset(GRPO, pad_id=pad_id).collate(items)


class KeyedRecordDataset(BaseDataset):
    """Samples that are the records of a store.

    Parameters
    ----------
    schema
        The kind of record.
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`.

    Notes
    -----
    A sample has the declared fields: shape () for one value per record, (values,) for a sequence,
    lists of these for a group; and texts, bytes or JSON values, None where the record lacks them.
    Other numeric keys of the store come too: one value per record as shape (), others as shape
    (values,), and groups as lists. Batches pad them like the declared fields whose lengths they
    have, and have texts as lists.
    """

    def __init__(self, schema: RecordSchema, **options: Any) -> None:
        super().__init__(schema, **options)
        self._chosen: Int64Array | None = None
        # The tensors and the texts of a sample.
        self._fields: Sequence[Field] = schema.tensors
        self._texts: dict[str, str] = {}

    def collate(self, batch: Sequence[Any]) -> BatchTensors:
        """Return samples as padded tensors, by name, and texts as lists.

        A field with n axes has shape (samples, ...) with the largest length along each axis.
        """
        fields, texts = self._fields, [*self._texts]
        if self.storage is None:
            declared = [item for item in self.schema.tensors if not batch or item.name in batch[0]]
            fields = [*declared, *infer_extras(batch, declared)]
            texts = [item.name for item in self.schema.texts if batch and item.name in batch[0]]
        return pad_records(batch, fields, self.pad_id, texts)

    def sample_sizes(self) -> SampleSizes:
        """Return the tokens of every record."""
        return measure_records(self.opened, self._fields, self._chosen, self.num_samples)

    def check_packed(self) -> None:
        """Accept: records can be packed."""

    def read_packed(self, numbers: Int64Array, multiple_of: int) -> BatchTensors:
        """Return a packed batch of records by number; see `zindex.keyed.PackedDataset`."""
        records = numbers if self._chosen is None else self._chosen[numbers]
        batch = PackedRecords(self.opened, self._fields, records, self.pad_id, multiple_of).read()
        texts: Any = self._read_texts(self.opened, records)
        batch.update(texts)
        return batch

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"records": True}

    def _count_samples(self, store: KeyedStore) -> int:
        name, declared = self.schema.name, self.fields_of(store)
        texts = {field.name: field.key for field in self.schema.texts}
        if self.schema.keeps_fields:
            texts = {key: key for key in store.text_keys} | texts
        self._texts = {name: key for name, key in texts.items() if key in store.text_keys}
        counts = {field.key: store.column(field.key).num_records for field in declared}
        counts |= dict.fromkeys(self._texts.values(), store.num_text_records)
        unknown = [key for key, count in counts.items() if count is None]
        if unknown:
            raise SourceError(
                f"{name} needs a store that knows where its records begin, "
                f"{', '.join(unknown)} of {store.path} do not say; write them with offsets "
                "(record_keys of save_bin)" + ", or choose mode='windows'" * self._has_windows
            )
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{key} {count:,}" for key, count in counts.items())
            raise SourceError(
                f"the keys of {name} must have the same number of records, got "
                f"{shown} in {store.path}; make the store again"
            )
        num_records = next(iter(counts.values())) or 0
        self._fields = [*declared, *find_record_extras(store, declared, [*self._texts])]
        self._chosen = self._choose_records(num_records)
        return num_records if self._chosen is None else len(self._chosen)

    @property
    def _has_windows(self) -> bool:
        """Whether samples can be windows instead."""
        return "windows" in self.schema.modes

    def _read(self, store: KeyedStore, numbers: Int64Array) -> SampleBatch:
        """Return records by number."""
        records = numbers if self._chosen is None else self._chosen[numbers]
        found = RecordReads(store, self._fields, records, self.pad_id)
        largest = read_columns([read.request for read in found.reads])
        check_values(store, found.reads, self.pad_id, largest)
        return PaddedBatch(found.tensors, found.unpad, self._read_texts(store, records))

    def _read_texts(self, store: KeyedStore, records: Int64Array) -> dict[str, list[Any]]:
        """Return the texts of records, by name."""
        texts = store.read_texts([*self._texts.values()], records)
        return {name: texts[key] for name, key in self._texts.items()}
