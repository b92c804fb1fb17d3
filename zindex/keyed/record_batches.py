"""Batches of whole records: one padded tensor for each declared output, along shared axes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array
from zindex.keyed.file_values import CopySpans
from zindex.keyed.store import KeyedStore
from zindex.keyed.train_types import Output
from zindex.keyed.value_checks import OutputRead
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
    """

    def __init__(
        self, tensors: dict[str, torch.Tensor], unpad: Callable[[int], dict[str, Any]]
    ) -> None:
        super().__init__(tensors)
        self._unpad = unpad

    def _take_item(self, place: int) -> dict[str, Any]:
        """Return an existing sample by its row."""
        return self._unpad(place)


def pad_records(items: Sequence[Item], outputs: Sequence[Output], pad_id: int) -> BatchTensors:
    """Return samples as padded tensors.

    Parameters
    ----------
    items
        With each output by name: a tensor, or a list of tensors for a group.
    outputs
        The outputs.
    pad_id
        Padding of token ids.
    """
    if isinstance(items, PaddedBatch):
        return items.tensors
    widths: dict[str, int] = {}
    for output in outputs:
        levels = [[item[output.name] for item in items] if output.axes else []]
        if len(output.axes) == 2:
            levels.append([part for group in levels[0] for part in group])
        for axis, parts in zip(output.axes, levels, strict=False):
            widths[axis] = max(widths.get(axis, 0), max(map(len, parts), default=0))
    dtypes = {output.name: _dtype_of_items(output, items) for output in outputs}
    batch = BatchTensors(_allocate(outputs, dtypes, len(items), widths, pad_id)[0])
    for output in outputs:
        tensor = batch[output.name]
        for row, item in enumerate(items):
            value = item[output.name]
            if len(output.axes) == 2:
                for k, part in enumerate(value):
                    tensor[row, k, : len(part)] = part
                continue
            kept: Any = ...
            if output.axes:
                width = tensor.shape[1]
                kept = slice(width - len(value), None) if output.pads_left else slice(len(value))
            tensor[row][kept] = value
            if output.mask is not None:
                batch[output.mask][row][kept] = True
    return batch


def _dtype_of_items(output: Output, items: Sequence[Item]) -> torch.dtype:
    """Return the dtype of the tensor of some samples."""
    value: Any = next((item[output.name] for item in items), None)
    if isinstance(value, list):
        value = next((part for item in items for part in item[output.name]), None)
    if value is None:
        return output.dtype_of(np.dtype(np.bool_))
    return output.dtype_of(torch.empty(0, dtype=value.dtype).numpy().dtype)


class RecordReads:
    """The records of a batch: their reads, and their places in its tensors.

    Parameters
    ----------
    store
        The store.
    outputs
        The outputs, each of a key of the store.
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
        self, store: KeyedStore, outputs: Sequence[Output], records: Int64Array, pad_id: int
    ) -> None:
        self.outputs = outputs
        columns = {output.name: store.column(output.key) for output in outputs}
        # Of each output: starts and stops of its spans, and the spans of each record.
        bounds: dict[str, tuple[Int64Array, Int64Array]] = {}
        self._counts: dict[str, Int64Array] = {}
        for output in outputs:
            if len(output.axes) == 2:
                found = columns[output.name].find_items(records)
                bounds[output.name] = found.starts, found.stops
                self._counts[output.name] = found.counts
            else:
                bounds[output.name] = columns[output.name].record_spans(records)
        self._lengths = {name: stops - starts for name, (starts, stops) in bounds.items()}
        self._check(store, records)
        widths: dict[str, int] = {}
        for output in outputs:
            for axis, lengths in zip(output.axes, self._levels(output), strict=True):
                widths[axis] = max(widths.get(axis, 0), int(lengths.max(initial=0)))
        dtypes = {o.name: o.dtype_of(columns[o.name].dtype) for o in outputs}
        size = len(records)
        self.tensors, arrays = _allocate(outputs, dtypes, size, widths, pad_id)
        #: The read of each tensor, to be done by the caller.
        self.reads = [
            OutputRead(
                output,
                columns[output.name],
                CopySpans(*bounds[output.name], self._places(output, size, widths)),
                arrays[output.name],
            )
            for output in outputs
        ]
        for output in outputs:
            if output.mask is not None:
                self._mark(output, arrays[output.mask])

    def _levels(self, output: Output) -> list[Int64Array]:
        """Return the lengths along each axis: items of each record, and values of each item."""
        lengths = self._lengths[output.name]
        if not output.axes:
            return []
        return [lengths] if len(output.axes) == 1 else [self._counts[output.name], lengths]

    def _check(self, store: KeyedStore, records: Int64Array) -> None:
        """Check that outputs have the lengths of those they belong to."""
        for anchor in self.outputs:
            others = [output for output in self.outputs if output.like == anchor.key]
            levels = [anchor, *others]
            for depth in range(len(anchor.axes)):
                found = {
                    output.key: self._levels(output)[depth]
                    for output in levels
                    if depth < len(output.axes)
                }
                if depth == 0:
                    store.check_equal(records, found)
                else:
                    rows = np.repeat(records, self._counts[anchor.name])
                    store.check_equal(rows, found)

    def _places(self, output: Output, size: int, widths: Mapping[str, int]) -> Int64Array:
        """Return the first place of each span in the flat tensor."""
        rows = np.arange(size)
        if not output.axes:
            return rows
        width = widths[output.axes[0]]
        if len(output.axes) == 1:
            first = width - self._lengths[output.name] if output.pads_left else 0
            return rows * width + first
        counts = self._counts[output.name]
        before = np.cumsum(counts) - counts
        rows = np.repeat(rows, counts)
        within = np.arange(len(rows)) - before[rows]
        return (rows * width + within) * widths[output.axes[1]]

    def _mark(self, output: Output, mask: AnyArray) -> None:
        """Fill in the mask of an output along its first axis."""
        lengths, width = self._levels(output)[0][:, None], mask.shape[1]
        columns = np.arange(width)
        mask[:] = columns >= width - lengths if output.pads_left else columns < lengths

    def unpad(self, row: int) -> dict[str, Any]:
        """Return a sample by its row, without padding."""
        return {output.name: self._unpad(output, row) for output in self.outputs}

    def _unpad(self, output: Output, row: int) -> Any:
        """Return one tensor of a sample, or the list of those of a group."""
        tensor, lengths = self.tensors[output.name][row], self._lengths[output.name]
        if not output.axes:
            return tensor
        if len(output.axes) == 1:
            length = int(lengths[row])
            return tensor[len(tensor) - length :] if output.pads_left else tensor[:length]
        counts = self._counts[output.name]
        stop = int(counts[: row + 1].sum())
        own = lengths[stop - int(counts[row]) : stop].tolist()
        return [tensor[k, :length] for k, length in enumerate(own)]


def _allocate(
    outputs: Sequence[Output],
    dtypes: Mapping[str, torch.dtype],
    size: int,
    widths: Mapping[str, int],
    pad_id: int,
) -> tuple[dict[str, torch.Tensor], dict[str, AnyArray]]:
    """Return the tensors of a batch of padding only, and arrays to fill them."""
    tensors, arrays = allocate_arrays(dict(_shapes(outputs, dtypes, size, widths)))
    for output in outputs:
        arrays[output.name].fill(output.pad_of(pad_id))
        if output.mask is not None:
            arrays[output.mask].fill(0)
    return tensors, arrays


def _shapes(
    outputs: Sequence[Output],
    dtypes: Mapping[str, torch.dtype],
    size: int,
    widths: Mapping[str, int],
) -> Iterator[tuple[str, tuple[tuple[int, ...], torch.dtype]]]:
    """Yield the name, shape and dtype of each tensor; the mask of an output follows it."""
    for output in outputs:
        shape = (size, *(widths[axis] for axis in output.axes))
        yield output.name, (shape, dtypes[output.name])
        if output.mask is not None:
            yield output.mask, (shape[:2], torch.bool)
