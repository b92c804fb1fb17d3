"""Pairs for DPO and groups for GRPO: whole records, and the padding of their batches."""

from collections.abc import Sequence
from typing import Any

from zindex.arrays import Int64Array
from zindex.errors import SourceError
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.columns import read_columns
from zindex.keyed.extra_keys import find_record_extras, infer_extras
from zindex.keyed.packed_records import PackedRecords, measure_records
from zindex.keyed.record_batches import Item, PaddedBatch, RecordReads, pad_records
from zindex.keyed.store import KeyedStore
from zindex.keyed.train_types import DPO, GRPO, Output
from zindex.keyed.value_checks import check_values
from zindex.plan.token_batches import SampleSizes
from zindex.samples.batch import BatchTensors, SampleBatch


def dpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return pairs as tensors, padded on the right to one length for both answers.

    Parameters
    ----------
    items
        With ``chosen``, ``rejected`` (int64) and ``chosen_mask``, ``rejected_mask`` (bool, or
        floats), each of shape (tokens,); and any other tensors, see `zindex.keyed.DPODataset`.
    pad_id
        Padding of token ids.

    Returns
    -------
    tensors
        The same names, shape (pairs, most tokens of any answer); masks are False at padding.
    """
    return pad_records(items, [*DPO.outputs, *infer_extras(items, DPO.outputs)], pad_id)


def grpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return groups as tensors; smaller groups are padded with empty responses.

    Parameters
    ----------
    items
        With ``prompts`` (int64, shape (tokens,)), ``responses`` (list of int64) and ``masks`` (list
        of bool or floats), one of each for every response, and ``rewards`` (floats, shape
        (responses,)); and any other tensors, see `zindex.keyed.GRPODataset`.
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
    return pad_records(items, [*GRPO.outputs, *infer_extras(items, GRPO.outputs)], pad_id)


class _ByRecord(BaseDataset):
    """A dataset whose samples are the records of its store."""

    _chosen: Int64Array | None = None
    _extras: Sequence[Output] = ()

    def collate(self, batch: Sequence[Any]) -> BatchTensors:
        """Return samples as padded tensors; see the collate function of the train type."""
        extras = self._extras if self.storage is not None else infer_extras(batch, self._declared)
        return pad_records(batch, [*self._declared, *extras], self.pad_id)

    @property
    def _declared(self) -> tuple[Output, ...]:
        """The outputs of the train type."""
        return self.train_type.outputs

    def sample_sizes(self) -> SampleSizes:
        """Return the tokens of every record."""
        return measure_records(self.opened, self._declared, self._chosen, self.num_samples)

    def check_packed(self) -> None:
        """Accept: records can be packed."""

    def read_packed(self, numbers: Int64Array, multiple_of: int) -> BatchTensors:
        """Return a packed batch of records by number; see `zindex.keyed.PackedDataset`."""
        records = numbers if self._chosen is None else self._chosen[numbers]
        outputs = [*self._declared, *self._extras]
        return PackedRecords(self.opened, outputs, records, self.pad_id, multiple_of).read()

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"records": True}

    def _count_samples(self, store: KeyedStore) -> int:
        counts = {key: store.column(key).num_records for key in self.train_type.keys}
        unknown = [key for key, count in counts.items() if count is None]
        if unknown:
            raise SourceError(
                f"{self.train_type.name} needs a store that knows where its records begin, "
                f"{', '.join(unknown)} of {store.path} do not say; write them with offsets "
                "(record_keys of save_bin), or choose mode='windows'"
            )
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{key} {count:,}" for key, count in counts.items())
            raise SourceError(
                f"the keys of {self.train_type.name} must have the same number of records, got "
                f"{shown} in {store.path}; make the store again"
            )
        num_records = next(iter(counts.values())) or 0
        self._extras = find_record_extras(store, self._declared)
        self._chosen = self._choose_records(num_records)
        return num_records if self._chosen is None else len(self._chosen)

    def _read(self, store: KeyedStore, numbers: Int64Array) -> SampleBatch:
        """Return records by number."""
        records = numbers if self._chosen is None else self._chosen[numbers]
        found = RecordReads(store, [*self._declared, *self._extras], records, self.pad_id)
        largest = read_columns([read.request for read in found.reads])
        check_values(store, found.reads, self.pad_id, largest)
        return PaddedBatch(found.tensors, found.unpad)


class DPODataset(_ByRecord):
    """Pairs of answers: ``chosen`` and ``rejected``, each with a loss mask.

    Parameters
    ----------
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`.

    Notes
    -----
    A sample has ``chosen`` and ``rejected`` (int64) and ``chosen_mask`` and ``rejected_mask``
    (bool, or stored floats), shape (tokens of that answer,). Other keys of the store come too: one
    value per record as shape (), others as shape (values,), and groups as lists. In batches, keys
    with the lengths of an answer are padded like it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(DPO, **options)


class GRPODataset(_ByRecord):
    """Groups: a prompt, the responses to it, their loss masks, and their rewards.

    Parameters
    ----------
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`.

    Notes
    -----
    A sample has ``prompts`` (int64, shape (tokens,)), ``responses`` (list of int64) and ``masks``
    (list of bool or stored floats), of shape (tokens of that response,), and ``rewards`` (float32
    or stored floats, shape (responses,)). Groups may differ in size. Other keys of the store come
    too, aligned with the tokens of responses (lists), with responses (shape (responses,)), with
    prompts, or with records (shape ()), according to their lengths.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(GRPO, **options)
