"""Windows of a keyed store as samples; all keys of a batch are read at once into its tensors."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, PlanError, SourceError, check_choice, check_whole
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.kernels.document_masks import mark_documents
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.columns import Column, read_columns
from zindex.keyed.extra_keys import find_window_extras, has_one_per_record
from zindex.keyed.field_reads import FieldRead, tensor_dtype
from zindex.keyed.file_values import CopySpans
from zindex.keyed.packed_batches import DOCUMENTS, POSITIONS, PackedSequences, find_bounds
from zindex.keyed.record_values import spread_records
from zindex.keyed.store import KeyedStore
from zindex.keyed.value_checks import check_values
from zindex.keyed.windows import PackedWindows, StreamWindows, Windows, WindowSpans, divide_spans
from zindex.loading.collate import collate as stack_samples
from zindex.plan.tail import Tail, TailName, parse_tail
from zindex.plan.token_batches import SampleSizes
from zindex.samples.batch import BatchTensors, SampleBatch, Shapes, allocate_arrays

logger = logging.getLogger(__name__)


#: How windows treat document boundaries: ignore them; never cross them; cross and mark them; or
#: pack whole documents into samples.
Documents = Literal["ignore", "respect", "mark", "pack"]

# Windows measured at a time.
_BLOCK = 1 << 20


class WindowDataset(BaseDataset):
    """Windows of a fixed number of values, at the same positions of all keys.

    Parameters
    ----------
    schema
        Required keys, and the tensors of samples.
    window_size
        Values of a window, w.
    stride
        Values from one window to the next; None for w. Windows overlap if it is less than w, and
        leave gaps if it is more.
    documents
        ``"ignore"``: windows over the stream of all values. ``"respect"``: windows within one
        document. ``"mark"``: as ``"ignore"``, with ``position_ids`` that restart at 0 in each
        document, ``document_ids``, the number of the document within the sample, and no target in
        another document than its input. ``"pack"``: whole documents packed into samples by best
        fit, marked likewise. These positions replace stored ones, which a log record says.
    tail
        How to treat targets after the last full window of the stream, or of a document; see
        `zindex.plan.tail.Tail`: ``"drop_last"`` (or ``"drop"``), ``"pad"`` with inputs of
        ``pad_id`` and targets of -100, or ``"exact"`` (or ``"short"``), a shorter window. With
        ``"respect"`` and ``"drop_last"``, documents no longer than a window have no samples.
        Packed samples are always padded.
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`. A split
        requires ``"respect"`` or ``"pack"``.

    Notes
    -----
    If a sample has a ``loss_mask``, it is False at padding and at targets in other documents; it is
    boolean, or the stored floats. Other keys of the store come too: those with one value per token
    are cut like tokens, those with one value per record have it at every token of the record.
    Floats and booleans are aligned with targets, integers with inputs.
    Batches with ``document_ids`` have ``cu_seqlens`` and ``max_seqlen`` for attention kernels, and
    ``ids[:, :, None] == ids[:, None, :]`` is the mask of documents.
    Documents are the records of the store. Memory per document: 16 bytes with ``"respect"``, 8
    with ``"mark"``, 40 with ``"pack"``.
    """

    def __init__(
        self,
        schema: RecordSchema,
        window_size: int,
        stride: int | None = None,
        *,
        documents: Documents = "ignore",
        tail: Tail | TailName = Tail.DROP_LAST,
        **options: Any,
    ) -> None:
        super().__init__(schema, **options)
        window_size = check_whole("window_size", window_size, 1)
        check_choice("documents", documents, get_args(Documents))
        tail = parse_tail(tail, (Tail.DROP_LAST, Tail.PAD, Tail.EXACT))
        if documents == "pack" and (stride is not None or tail is Tail.EXACT):
            raise ConfigError(
                "documents='pack' makes samples without a stride that are filled up, so stride "
                f"must be left out and tail not be 'exact', got stride={stride!r} and tail='{tail}'"
            )
        if self.split is not None and documents not in ("respect", "pack"):
            raise ConfigError(
                f"a split has whole documents, so documents must be 'respect' or 'pack', got "
                f"{documents!r} and split={self.split!r}; choose one, or leave split out"
            )
        self.window_size = window_size
        self.stride = window_size if stride is None else check_whole("stride", stride, 1)
        self.documents: Documents = documents
        self.tail = tail
        self._windows: Windows | None = None
        self._bounds = np.zeros(1, np.int64)
        # The tensors of a sample, each with the column of its values: one per token, or per record.
        self._parts: list[tuple[Field, Column]] = []
        self._record_parts: list[tuple[Field, Column]] = []
        self._dtypes: dict[str, torch.dtype] = {}
        self._record_bounds = self._bounds

    def get_index(self, index: int) -> tuple[int, int]:
        """Return the bounds ``[begin, end)`` of the inputs of a window; the name is AstrAI's.

        Raises
        ------
        NotLoadedError
            Before ``load``.
        PlanError
            If the store is too short for a window.
        IndexError
            If there is no such window.
        ConfigError
            If samples are packed.
        """
        self.opened  # noqa: B018
        if not self.num_samples:
            raise PlanError(
                f"Data too short: a window of {self.window_size:,} needs {self.window_size + 1:,} "
                f"values, got {self.count:,}; choose a shorter window or tail='pad'"
            )
        if self.documents == "pack":
            raise ConfigError(
                "get_index needs windows, got documents='pack', whose samples have several "
                "documents; read the sample's document_ids"
            )
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(f"index {index} is out of range for {self.num_samples} windows")
        assert self._windows is not None
        spans = self._windows.find_spans(np.array([index % self.num_samples]))
        begin = int(spans.starts[0])
        return begin, begin + int(spans.lengths.sum()) - 1

    def collate(self, batch: Sequence[Any]) -> Any:
        """Return the tensors of a batch, by name: shape (samples, window_size).

        Short windows are padded to the longest one, with inputs of ``pad_id``, targets of -100 and
        masks of False. If documents are marked or packed, ``cu_seqlens`` (int32), the starts of
        documents in the flattened batch and its end, and ``max_seqlen`` (int32, shape ()), the
        tokens of the longest, are added; padding counts as a document.
        """
        tensors = self._stack(batch)
        if self._has_bounds:
            return BatchTensors(tensors | find_bounds(tensors[DOCUMENTS]))
        return tensors

    def _stack(self, batch: Sequence[Any]) -> Any:
        """Return the tensors of a batch, padded."""
        lengths = (
            {len(next(iter(item.values()))) for item in batch} if self.tail is Tail.EXACT else ()
        )
        if len(lengths) < 2:
            return stack_samples(batch)
        parts = [*self._parts, *self._record_parts]
        pads = {field.name: field.pad_of(self.pad_id) for field, _ in parts}
        pads |= {DOCUMENTS: -1, POSITIONS: 0}
        values = {name: [item[name] for item in batch] for name in batch[0]}
        return BatchTensors(
            (name, pad_sequence(found, batch_first=True, padding_value=pads[name]))
            for name, found in values.items()
        )

    def sample_sizes(self) -> SampleSizes:
        """Return the tokens of every window: its inputs, and with padding."""
        windows = self._windows
        if self._has_bounds or not isinstance(windows, StreamWindows):
            return SampleSizes.of_lengths(np.broadcast_to(self.window_size, self.num_samples))
        lengths = np.empty(self.num_samples, np.int32)
        for start in range(0, self.num_samples, _BLOCK):
            numbers = np.arange(start, min(start + _BLOCK, self.num_samples))
            lengths[start : start + len(numbers)] = windows.count_inputs(numbers)
        found = SampleSizes.of_lengths(lengths)
        if self.tail is Tail.EXACT:
            return found
        padded = SampleSizes.of_lengths(np.broadcast_to(self.window_size, self.num_samples))
        return replace(padded, tokens=lengths, stored=lengths)

    def check_packed(self) -> None:
        """Raise ConfigError if windows are packed already."""
        if self._has_bounds:
            raise ConfigError(
                "samples to be packed one after the other must be windows with "
                f"documents='respect' or 'ignore', got {self.documents!r}; choose one of these, or "
                "layout='padded' for the batches"
            )

    def read_packed(self, numbers: Int64Array, multiple_of: int) -> BatchTensors:
        """Return a packed batch of windows by number; see `zindex.keyed.PackedDataset`."""
        windows = self._windows
        assert isinstance(windows, StreamWindows)
        sequences = PackedSequences(windows.count_inputs(numbers), multiple_of)
        starts, _ = windows.find_starts(numbers)
        spans = CopySpans(starts, starts + sequences.lengths, sequences.starts)
        tensors, arrays = allocate_arrays(self._shapes(1, sequences.width) | sequences.shapes)
        parts = [*self._parts, *self._record_parts]
        reads = [
            FieldRead(field, column, spans, arrays[field.name], field.shift)
            for field, column in parts
            if field.name != POSITIONS
        ]
        for read in reads:
            read.array[:, sequences.num_tokens :] = read.field.pad_of(self.pad_id)
        self._fill(self.opened, reads)
        sequences.mark(arrays)
        return BatchTensors(tensors)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "window_size": self.window_size,
            "stride": self.stride,
            "documents": self.documents,
            "tail": self.tail.fingerprint_name,
        }

    def _count_samples(self, store: KeyedStore) -> int:
        # Samples with document bounds have computed positions instead of stored ones.
        computed = POSITIONS if self._has_bounds else None
        fields = [field for field in self.fields_of(store) if field.name != computed]
        of_tokens = [field for field in fields if field.axes]
        self._parts = [(field, store.column(field.key)) for field in of_tokens]
        keys = [field.key for field in of_tokens]
        store.check_lengths(keys)
        if "records" not in self.schema.modes:  # the answers of a pair differ in length
            store.check_records(keys)
        length = min(column.length for _, column in self._parts)
        self._add_extras(store, fields)
        stream = np.array([0, length], np.int64)
        self._bounds = stream
        if self.documents != "ignore":
            self._bounds = _document_bounds(store, self.schema.keys[0])
            if self._bounds[-1] > length:  # another key is shorter, with strict=False
                self._bounds = np.minimum(self._bounds, length)
            if self._has_bounds and POSITIONS in [item.key for item in self.fields_of(store)]:
                _report_replaced(store, self.documents, int(self._bounds[:2].max()))
        bounds = self._bounds if self.documents in ("respect", "pack") else stream
        starts, stops = bounds[:-1], bounds[1:]
        chosen = self._choose_records(len(starts))
        if chosen is not None:
            starts, stops = starts[chosen], stops[chosen]
        windows: Windows
        if self.documents == "pack":
            windows = PackedWindows(starts, stops, self.window_size)
        else:
            windows = StreamWindows(starts, stops, self.window_size, self.stride, self.tail)
        self._windows = windows
        if not windows.num_windows and length:
            logger.warning(
                "%s has no window of %s values%s: choose a shorter one, or tail='pad'",
                store.path,
                f"{self.window_size:,}",
                " within a document" if self.documents == "respect" else "",
            )
        elif (
            self.documents == "respect"
            and isinstance(windows, StreamWindows)
            and (waste := windows.describe_waste())
        ):
            logger.warning(
                "windows of %s %s, with tail=%r and documents='respect'; 'pack' or 'mark' them",
                store.path,
                waste,
                self.tail.value,
            )
        return windows.num_windows

    def _add_extras(self, store: KeyedStore, fields: Sequence[Field]) -> None:
        """Add the tensors of keys that the schema does not name, and those of records."""
        of_tokens, of_records = find_window_extras(store, fields)
        declared = [field for field in fields if not field.axes]
        for field in declared:
            if not has_one_per_record(store.column(field.key)):
                raise SourceError(
                    f"{field.key} of {store.path} must have one value per record, its records "
                    "differ in length; make it again, or declare an axis"
                )
        of_records += declared
        self._parts += [(field, store.column(field.key)) for field in of_tokens]
        self._record_parts = [(field, store.column(field.key)) for field in of_records]
        parts = (*self._parts, *self._record_parts)
        self._dtypes = {field.name: tensor_dtype(field, column.dtype) for field, column in parts}
        if of_records:
            self._record_bounds = _document_bounds(store, self.schema.keys[0])

    def _read(self, store: KeyedStore, numbers: Int64Array) -> SampleBatch:
        """Return windows by number."""
        windows = self._windows
        assert windows is not None
        if self.tail is Tail.DROP_LAST and self.documents in ("ignore", "respect"):
            assert isinstance(windows, StreamWindows)
            return self._read_full(store, windows, numbers)
        documents = whole = windows.find_spans(numbers)
        if self.documents == "mark":
            documents = divide_spans(whole, self._bounds)
        tensors, arrays = allocate_arrays(self._shapes(len(numbers), self.window_size))
        parts = [*self._parts, *self._record_parts]
        spans = {shift: self._find_copies(whole, shift) for shift in (0, 1)}
        for field, _ in parts:
            arrays[field.name].fill(field.pad_of(self.pad_id))
        self._fill(
            store,
            [
                FieldRead(field, column, spans[field.shift], arrays[field.name])
                for field, column in parts
            ],
        )
        if self._has_bounds:
            marks = arrays[DOCUMENTS], arrays[POSITIONS]
            has_target = np.empty(marks[0].shape, np.bool_)
            mark_documents(documents.rows, documents.offsets, documents.lengths, *marks, has_target)
            for field, _ in parts:
                if field.shift:  # a target in another document than its input
                    np.putmask(arrays[field.name], ~has_target, field.pad_of(self.pad_id))
        batch = SampleBatch(tensors)
        if self.tail is not Tail.EXACT:
            return batch
        # There is a span for each document of a window.
        lengths = [int(count) - 1 for count in np.bincount(documents.rows, documents.lengths)]
        if min(lengths) == self.window_size:
            return batch
        return SampleBatch.of_items(
            [
                {name: value[:length] for name, value in item.items()}
                for item, length in zip(batch, lengths, strict=True)
            ]
        )

    def _read_full(
        self, store: KeyedStore, windows: StreamWindows, numbers: Int64Array
    ) -> SampleBatch:
        """Return full windows, whose tensors need no padding."""
        starts, _ = windows.find_starts(numbers)
        width = self.window_size
        spans = CopySpans(starts, starts + width, _row_offsets(len(numbers), width))
        tensors, arrays = allocate_arrays(self._shapes(len(numbers), width))
        self._fill(
            store,
            [
                FieldRead(field, column, spans, arrays[field.name], field.shift)
                for field, column in (*self._parts, *self._record_parts)
            ],
        )
        return SampleBatch(tensors)

    def _fill(self, store: KeyedStore, reads: Sequence[FieldRead]) -> None:
        """Fill tensors with values of tokens, and with those of the records of tokens."""
        count = len(reads) - len(self._record_parts)
        largest = read_columns([read.request for read in reads[:count]])
        if len(reads) > count:
            spread_records(store, reads[count:], self._record_bounds)
        check_values(store, reads[:count], self.pad_id, largest)

    def _shapes(self, *plane: int) -> Shapes:
        """Return the shapes and dtypes of a batch of some samples and tokens."""
        shapes: Shapes = {name: (plane, dtype) for name, dtype in self._dtypes.items()}
        if self._has_bounds:
            shapes |= {POSITIONS: (plane, torch.int64), DOCUMENTS: (plane, torch.int64)}
        return shapes

    @property
    def _has_bounds(self) -> bool:
        """Whether samples have document bounds."""
        return self.documents in ("mark", "pack")

    def _find_copies(self, spans: WindowSpans, shift: int) -> CopySpans:
        """Return the copies that put spans at their offsets minus the shift of a tensor."""
        width = self.window_size
        skipped = np.maximum(shift - spans.offsets, 0)
        first = np.maximum(spans.offsets - shift, 0)
        lengths = np.minimum(spans.lengths - skipped, width - first)
        if not (shift or self._has_bounds):
            # The last value of a short window is a target and no input.
            lengths = lengths - (spans.lengths <= width)
        starts = spans.starts + skipped
        return CopySpans(starts, starts + lengths, spans.rows * width + first)


def _report_replaced(store: KeyedStore, documents: Documents, stop: int) -> None:
    """Say that stored positions are replaced: a warning if those of the first document differ."""
    stored = store.fetch(0, stop, POSITIONS).numpy()
    is_same = np.array_equal(stored, np.arange(stop))
    logger.log(
        logging.INFO if is_same else logging.WARNING,
        "%s: documents=%r replaces the stored position_ids by positions that restart at 0 in each "
        "document; those of the first document are %s",
        store.path,
        documents,
        "the same" if is_same else "others",
    )


@lru_cache(8)
def _row_offsets(size: int, width: int) -> Int64Array:
    """Return the offset of each row of a tensor."""
    return np.arange(size) * width


def _document_bounds(store: KeyedStore, key: str) -> Int64Array:
    """Return the bounds of documents: one more than there are documents."""
    column = store.column(key)
    if column.num_records is None:
        raise SourceError(
            f"{key} of {store.path} must know where its documents begin to respect, mark or pack "
            "them, and its files do not say; write them with offsets, or choose documents='ignore'"
        )
    return column.record_offset(0, column.num_records)
