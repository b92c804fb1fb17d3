"""Packed batches of records: every answer a sequence, after its prompt if that is stored apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from zindex.arrays import Int64Array
from zindex.formats.keyed.schema_field import Field
from zindex.keyed.columns import Items, read_columns
from zindex.keyed.field_reads import FieldRead, tensor_dtype
from zindex.keyed.file_values import CopySpans
from zindex.keyed.packed_batches import PackedSequences
from zindex.keyed.record_batches import RecordReads
from zindex.keyed.store import KeyedStore
from zindex.keyed.value_checks import check_values
from zindex.plan.token_batches import SampleSizes
from zindex.samples.batch import BatchTensors, Shapes, allocate_arrays
from zindex.store.rows import count_from

INPUTS, LOSS = "input_ids", "loss_mask"
RECORDS, FIELDS = "record_ids", "field_ids"
# Records measured at a time.
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class TokenFields:
    """The fields of a kind of records that hold tokens."""

    #: Prompts, which every sequence of their record begins with.
    prompts: tuple[Field, ...]
    #: Each record of them, or each item if they are groups, is a sequence.
    answers: tuple[Field, ...]

    @classmethod
    def of_fields(cls, fields: Sequence[Field]) -> "TokenFields":
        """Return the token fields among some: those padded on the left are prompts."""
        found: dict[str, Field] = {}
        for field in fields:
            # Ids with an axis of another field are values of its tokens.
            lasts = {known.axes[-1] for known in found.values()}
            is_own = not (field.is_group and field.axes[0] in lasts)
            if field.values == "ids" and field.axes and is_own and not field.shift:
                found.setdefault(field.key, field)
        prompts = tuple(field for field in found.values() if field.pads_left)
        answers = tuple(field for field in found.values() if not field.pads_left)
        return cls(prompts, answers) if answers else cls((), prompts)


def measure_records(
    store: KeyedStore, fields: Sequence[Field], records: Int64Array | None, num_records: int
) -> SampleSizes:
    """Return the tokens of records.

    Parameters
    ----------
    store, fields
        The store, and the fields of its samples.
    records
        Shape (samples,), int64: the record of each sample; None for all.
    num_records
        Records if all.
    """
    token_fields = TokenFields.of_fields(fields)
    known = [*token_fields.prompts, *token_fields.answers]
    axes = list(dict.fromkeys(axis for field in known for axis in field.axes))
    size = num_records if records is None else len(records)
    tokens, stored = np.empty(size, np.int32), np.zeros(size, np.int32)
    widths = np.zeros((size, len(axes)), np.int32)
    for start in range(0, size, _BLOCK):
        stop = min(start + _BLOCK, size)
        own = np.arange(start, stop) if records is None else records[start:stop]
        asked, total = np.zeros(len(own), np.int64), np.zeros(len(own), np.int64)
        for field in known:
            items = find_items(store, field, own)
            sums = _add_up(items.lengths, items.counts)
            stored[start:stop] += sums.astype(np.int32)
            if field in token_fields.prompts:
                asked += sums
            else:
                total += sums + items.counts * asked
            levels = [_most(items.lengths, items.counts)]
            if field.is_group:
                levels.insert(0, items.counts)
            for axis, lengths in zip(field.axes, levels, strict=True):
                column = widths[start:stop, axes.index(axis)]
                np.maximum(column, lengths, out=column, casting="unsafe")
        tokens[start:stop] = total
    terms = [[axes.index(axis) for axis in field.axes] for field in known]
    return SampleSizes(tokens, widths, np.array([[*term, -1][:2] for term in terms]), stored)


def find_items(store: KeyedStore, field: Field, records: Int64Array) -> Items:
    """Return the items of records; one for each record unless it is a group."""
    column = store.column(field.key)
    if field.is_group:
        return column.find_items(records)
    return Items(*column.record_spans(records), np.ones(len(records), np.int64))


def _add_up(values: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the sums of consecutive values."""
    sums = np.append(0, np.cumsum(values))
    stops = np.cumsum(counts)
    found: Int64Array = sums[stops] - sums[stops - counts]
    return found


def _most(values: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the largest of consecutive values, 0 of none."""
    found = np.zeros(len(counts), np.int64)
    is_filled = counts > 0
    if is_filled.any():
        starts = (np.cumsum(counts) - counts)[is_filled]
        found[is_filled] = np.maximum.reduceat(values, starts)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """A token field in a packed batch."""

    field: Field
    #: Its items: those of groups, otherwise one for each record.
    items: Items
    #: Shape (copies,): the item of each copy, and its first token in the batch.
    rows: Int64Array
    places: Int64Array
    #: Shape (items,): the sequence of each item; a prompt has none.
    sequences: Int64Array

    def place(self, items: Items) -> CopySpans:
        """Return the copies of values of its tokens, given their spans."""
        return CopySpans(items.starts[self.rows], items.stops[self.rows], self.places)


class PackedRecords:
    """The records of a packed batch, and where their values are in it.

    Parameters
    ----------
    store, fields
        The store, and the fields of its samples.
    records
        Shape (samples,), int64: the record of each sample.
    pad_id
        Padding of token ids.
    multiple_of
        As of `zindex.keyed.PackedDataset`.

    Raises
    ------
    SourceError
        If keys of a record that belong together differ in length.
    """

    def __init__(
        self,
        store: KeyedStore,
        fields: Sequence[Field],
        records: Int64Array,
        pad_id: int,
        multiple_of: int,
    ) -> None:
        self.store, self.records, self.pad_id = store, records, pad_id
        token_fields = TokenFields.of_fields(fields)
        prompts, answers = map(self._find, (token_fields.prompts, token_fields.answers))
        # Sequences of a record are in the order of its fields, and of its items.
        owners = np.concatenate([np.repeat(np.arange(len(records)), x.counts) for x in answers])
        numbers = np.repeat(np.arange(len(answers)), [len(x.starts) for x in answers])
        order = np.argsort(owners, kind="stable")
        # Shape (sequences,): the record of each sequence in the batch, and the number of its field.
        self._owners, self._numbers = owners[order], numbers[order]
        lengths = np.concatenate([x.lengths for x in answers])[order]
        for items in prompts:
            lengths += items.lengths[self._owners]
        self._sequences = PackedSequences(lengths, multiple_of)
        self._plane: tuple[int, ...] = 1, self._sequences.width
        self._shapes: Shapes = {INPUTS: (self._plane, torch.int64)}
        self._reads: list[tuple[Field, str, CopySpans]] = []
        self._placed: dict[str, _Placed] = {}
        first, none = self._sequences.starts, np.zeros(0, np.int64)
        for field, items in zip(token_fields.prompts, prompts, strict=True):
            self._place(_Placed(field, items, self._owners, first, none))
            first = first + items.lengths[self._owners]
        sequences = np.argsort(order)
        for number, (field, items) in enumerate(zip(token_fields.answers, answers, strict=True)):
            own = sequences[numbers == number]
            self._place(_Placed(field, items, np.arange(len(own)), first[own], own))
        self._masked: set[str] = set()
        # By axes, the first field with several values of each token, and how many.
        self._several: dict[Any, tuple[str, Int64Array]] = {}
        self._rest: list[Field] = []
        for field in fields:
            if field.key not in self._placed:
                self._add(field)

    def _find(self, fields: Sequence[Field]) -> list[Items]:
        """Return the items of the records of token fields."""
        return [find_items(self.store, field, self.records) for field in fields]

    def _place(self, placed: _Placed) -> None:
        """Add a token field."""
        self._placed[placed.field.key] = placed
        self._reads.append((placed.field, INPUTS, placed.place(placed.items)))

    def _add(self, field: Field) -> None:
        """Add another tensor: values of tokens, of items, or of records."""
        placed = self._find_owner(field)
        if placed is None:
            self._rest.append(field)
            return
        column = self.store.column(field.key)
        found, own, key = self._find([field])[0], placed.items, placed.field.key
        name, shape = field.name, self._plane
        if field.axes == placed.field.axes:
            rows = np.repeat(self.records, own.counts)
            self.store.check_equal(rows, {key: own.lengths, field.key: found.lengths})
            spans = placed.place(found)
            if field.values == "weights" and key not in self._masked:
                self._masked.add(key)
                name = LOSS
        elif len(field.axes) == 1:
            lengths = {key: own.counts, field.key: found.lengths}
            self.store.check_equal(self.records, lengths)
            first = np.cumsum(own.counts) - own.counts
            places = np.append(placed.sequences, 0)[first]
            spans, shape = CopySpans(found.starts, found.stops, places), (len(self._owners),)
        else:
            self.store.check_equal(self.records, {key: own.lengths, field.key: found.counts})
            other, counts = self._several.setdefault(field.axes, (field.key, found.lengths))
            rows = np.repeat(self.records, found.counts)
            self.store.check_equal(rows, {other: counts, field.key: found.lengths})
            most = int(found.lengths.max(initial=0))
            places = count_from(placed.places, own.lengths)
            spans, shape = CopySpans(found.starts, found.stops, most * places), (*shape, most)
        dtype = tensor_dtype(field, column.dtype)
        if name in self._shapes:  # the masks of several fields
            dtype = torch.promote_types(dtype, self._shapes[name][1])
        self._shapes[name] = shape, dtype
        self._reads.append((field, name, spans))

    def _find_owner(self, field: Field) -> _Placed | None:
        """Return the token field whose tokens or items a field has values of."""
        for key, placed in self._placed.items():
            axes = placed.field.axes
            is_items = len(axes) == 2 and field.axes == axes[:1]
            is_several = len(axes) == 1 and len(field.axes) == 2 and field.axes[:1] == axes
            is_named = field.like == key or field.like not in self._placed
            if is_named and (
                field.axes == axes or is_items or (is_several and len(placed.sequences))
            ):
                return placed
        return None

    def read(self) -> BatchTensors:
        """Return the batch."""
        of_sequences = (len(self._owners),), torch.int64
        shapes = self._shapes | {RECORDS: of_sequences, FIELDS: of_sequences}
        tensors, arrays = allocate_arrays(shapes | self._sequences.shapes)
        for field, name, _ in self._reads:
            arrays[name].fill(field.pad_of(self.pad_id))
        reads = [
            FieldRead(field, self.store.column(field.key), spans, arrays[name])
            for field, name, spans in self._reads
        ]
        rest = RecordReads(self.store, self._rest, self.records, self.pad_id)
        reads += rest.reads
        largest = read_columns([read.request for read in reads])
        check_values(self.store, reads, self.pad_id, largest)
        if LOSS in arrays:
            # The token before is of another sequence.
            starts = self._sequences.starts[self._sequences.lengths > 0]
            arrays[LOSS][0, starts] = 0
        self._sequences.mark(arrays)
        arrays[RECORDS][:], arrays[FIELDS][:] = self._owners, self._numbers
        return BatchTensors(tensors | rest.tensors)
