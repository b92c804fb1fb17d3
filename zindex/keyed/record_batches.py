"""Batches of whole records: one padded tensor for each declared field, along shared axes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import SourceError
from zindex.formats.keyed.schema_field import Field
from zindex.keyed.field_reads import FieldRead, tensor_dtype
from zindex.keyed.file_values import CopySpans
from zindex.keyed.store import KeyedStore
from zindex.samples.batch import BatchTensors, SampleBatch, allocate_arrays

Item = Mapping[str, Any]


class PaddedBatch(SampleBatch):
    """Samples read as one batch; items are views of its padded tensors.

    Parameters
    ----------
    tensors
        The batch, as a collate function of records returns it.
    unpad
        Returns a sample by its row in the batch, without padding.
    texts
        Texts, bytes or JSON values of each sample, by name.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        unpad: Callable[[int], dict[str, Any]],
        texts: Mapping[str, list[Any]],
    ) -> None:
        named: dict[str, Any] = {**tensors, **texts}
        super().__init__(named)
        self._unpad = unpad
        self._texts = texts

    def _take_item(self, place: int) -> dict[str, Any]:
        """Return an existing sample by its row."""
        return self._unpad(place) | {name: found[place] for name, found in self._texts.items()}


def pad_records(
    items: Sequence[Item], fields: Sequence[Field], pad_id: int, texts: Sequence[str] = ()
) -> BatchTensors:
    """Return samples as padded tensors.

    Parameters
    ----------
    items
        With each field by name: a tensor, or a list of tensors for a group.
    fields
        The fields.
    pad_id
        Padding of token ids.
    texts
        Names of other values, which become lists.
    """
    if isinstance(items, PaddedBatch):
        return items.tensors
    widths: dict[str, int] = {}
    for field in fields:
        levels = [[item[field.name] for item in items] if field.axes else []]
        if field.is_group:
            levels.append([part for group in levels[0] for part in group])
        for axis, parts in zip(field.axes, levels, strict=False):
            widths[axis] = max(widths.get(axis, 0), max(map(len, parts), default=0))
    dtypes = {field.name: _dtype_of_items(field, items) for field in fields}
    batch = BatchTensors(_allocate(fields, dtypes, len(items), widths, pad_id)[0])
    for field in fields:
        tensor = batch[field.name]
        for row, item in enumerate(items):
            value = item[field.name]
            if field.is_group:
                for k, part in enumerate(value):
                    tensor[row, k, : len(part)] = part
                    if field.mask is not None:
                        batch[field.mask][row, k, : len(part)] = True
                continue
            kept: Any = ...
            if field.axes:
                width = tensor.shape[1]
                kept = slice(width - len(value), None) if field.pads_left else slice(len(value))
            tensor[row][kept] = value
            if field.mask is not None:
                batch[field.mask][row][kept] = True
    found: Any = {name: [item[name] for item in items] for name in texts}
    batch.update(found)
    return batch


def _dtype_of_items(field: Field, items: Sequence[Item]) -> torch.dtype:
    """Return the dtype of the tensor of some samples."""
    value: Any = next((item[field.name] for item in items), None)
    if isinstance(value, list):
        value = next((part for item in items for part in item[field.name]), None)
    if value is None:
        return tensor_dtype(field, np.dtype(np.bool_))
    return tensor_dtype(field, torch.empty(0, dtype=value.dtype).numpy().dtype)


class RecordReads:
    """The records of a batch: their reads, and their places in its tensors.

    Parameters
    ----------
    store
        The store.
    fields
        The fields, each of a key of the store.
    records
        Shape (samples,), int64: the record of each sample.
    pad_id
        Padding of token ids.

    Raises
    ------
    SourceError
        If keys of a record that belong together differ in length.
    """

    def __init__(
        self, store: KeyedStore, fields: Sequence[Field], records: Int64Array, pad_id: int
    ) -> None:
        self.fields = fields
        columns = {field.name: store.column(field.key) for field in fields}
        # Of each field: starts and stops of its spans, and the spans of each record.
        bounds: dict[str, tuple[Int64Array, Int64Array]] = {}
        self._counts: dict[str, Int64Array] = {}
        for field in fields:
            if field.is_group:
                found = columns[field.name].find_items(records)
                bounds[field.name] = found.starts, found.stops
                self._counts[field.name] = found.counts
            else:
                bounds[field.name] = columns[field.name].record_spans(records)
        self._lengths = {name: stops - starts for name, (starts, stops) in bounds.items()}
        self._check(store, records)
        widths: dict[str, int] = {}
        for field in fields:
            for axis, lengths in zip(field.axes, self._levels(field), strict=True):
                widths[axis] = max(widths.get(axis, 0), int(lengths.max(initial=0)))
        dtypes = {o.name: tensor_dtype(o, columns[o.name].dtype) for o in fields}
        size = len(records)
        self.tensors, arrays = _allocate(fields, dtypes, size, widths, pad_id)
        #: The read of each tensor, to be done by the caller.
        self.reads = []
        for field in fields:
            places = self._places(field, size, widths)
            spans = CopySpans(*bounds[field.name], places)
            if field.is_group and (self._lengths[field.name] == widths[field.axes[1]]).all():
                spans = self._join_items(field, spans)
            self.reads.append(FieldRead(field, columns[field.name], spans, arrays[field.name]))
        for field in fields:
            if field.mask is not None:
                self._mark(field, arrays[field.mask])

    def _levels(self, field: Field) -> list[Int64Array]:
        """Return the lengths along each axis: items of each record, and values of each item."""
        lengths = self._lengths[field.name]
        if not field.axes:
            return []
        return [lengths] if len(field.axes) == 1 else [self._counts[field.name], lengths]

    def _check(self, store: KeyedStore, records: Int64Array) -> None:
        """Check that fields have the lengths of those they belong to, or one value per record."""
        for field in self.fields:
            wrong = np.flatnonzero(self._lengths[field.name] != 1)
            if len(wrong) and not field.axes:
                raise SourceError(
                    f"{field.key} must have one value per record, got "
                    f"{self._lengths[field.name][wrong[0]]:,} in record {records[wrong[0]]:,} of "
                    f"{store.path}; make it again, or declare an axis"
                )
        for anchor in self.fields:
            others = [field for field in self.fields if field.like == anchor.key]
            levels = [anchor, *others]
            for depth in range(len(anchor.axes)):
                found = {
                    field.key: self._levels(field)[depth]
                    for field in levels
                    if depth < len(field.axes)
                }
                if depth == 0:
                    store.check_equal(records, found)
                else:
                    rows = np.repeat(records, self._counts[anchor.name])
                    store.check_equal(rows, found)

    def _places(self, field: Field, size: int, widths: Mapping[str, int]) -> Int64Array:
        """Return the first place of each span in the flat tensor."""
        rows = np.arange(size)
        if not field.axes:
            return rows
        width = widths[field.axes[0]]
        if len(field.axes) == 1:
            first = width - self._lengths[field.name] if field.pads_left else 0
            return rows * width + first
        counts = self._counts[field.name]
        before = np.cumsum(counts) - counts
        rows = np.repeat(rows, counts)
        within = np.arange(len(rows)) - before[rows]
        return (rows * width + within) * widths[field.axes[1]]

    def _join_items(self, field: Field, spans: CopySpans) -> CopySpans:
        """Return spans of whole groups, whose items follow each other in the tensor, too."""
        counts = self._counts[field.name]
        stops = np.cumsum(counts)[counts > 0]
        firsts = stops - counts[counts > 0]
        return CopySpans(spans.starts[firsts], spans.stops[stops - 1], spans.places[firsts])

    def _mark(self, field: Field, mask: AnyArray) -> None:
        """Fill in the mask of a field."""
        lengths, columns = self._lengths[field.name][:, None], np.arange(mask.shape[-1])
        start = mask.shape[-1] - lengths if field.pads_left else 0
        is_value = (columns >= start) & (columns < start + lengths)
        if field.is_group:
            counts = self._counts[field.name][:, None]
            mask[np.arange(mask.shape[1]) < counts] = is_value
        else:
            mask[:] = is_value

    def unpad(self, row: int) -> dict[str, Any]:
        """Return a sample by its row, without padding."""
        return {field.name: self._unpad(field, row) for field in self.fields}

    def _unpad(self, field: Field, row: int) -> Any:
        """Return one tensor of a sample, or the list of those of a group."""
        tensor, lengths = self.tensors[field.name][row], self._lengths[field.name]
        if not field.axes:
            return tensor
        if len(field.axes) == 1:
            length = int(lengths[row])
            return tensor[len(tensor) - length :] if field.pads_left else tensor[:length]
        counts = self._counts[field.name]
        stop = int(counts[: row + 1].sum())
        own = lengths[stop - int(counts[row]) : stop].tolist()
        return [tensor[k, :length] for k, length in enumerate(own)]


def _allocate(
    fields: Sequence[Field],
    dtypes: Mapping[str, torch.dtype],
    size: int,
    widths: Mapping[str, int],
    pad_id: int,
) -> tuple[dict[str, torch.Tensor], dict[str, AnyArray]]:
    """Return the tensors of a batch of padding only, and arrays to fill them."""
    tensors, arrays = allocate_arrays(dict(_shapes(fields, dtypes, size, widths)))
    for field in fields:
        arrays[field.name].fill(field.pad_of(pad_id))
        if field.mask is not None:
            arrays[field.mask].fill(0)
    return tensors, arrays


def _shapes(
    fields: Sequence[Field],
    dtypes: Mapping[str, torch.dtype],
    size: int,
    widths: Mapping[str, int],
) -> Iterator[tuple[str, tuple[tuple[int, ...], torch.dtype]]]:
    """Yield the name, shape and dtype of each tensor; the mask of a field follows it."""
    for field in fields:
        shape = (size, *(widths[axis] for axis in field.axes))
        yield field.name, (shape, dtypes[field.name])
        if field.mask is not None:
            yield field.mask, (shape, torch.bool)
