"""Windows of a store as samples: one read for all keys of a batch, straight into its tensors."""

import logging
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from zindex.datasets.batching.batch_memory import Shapes, allocate_arrays
from zindex.datasets.batching.sample_batch import BatchTensors, SampleBatch
from zindex.errors import ConfigError, PlanError, SourceError
from zindex.kernels.marks import mark_documents
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.columns import Column, Request, Spans, read_columns
from zindex.keyed.store import Store
from zindex.keyed.train_types import IGNORED, Output, TrainType
from zindex.keyed.windows import (
    BoundedWindows,
    PackedWindows,
    Parts,
    StreamWindows,
    Tail,
    Windows,
    check_sizes,
)
from zindex.loading.collate import collate as join_samples

logger = logging.getLogger(__name__)

Int64Array = npt.NDArray[np.int64]

#: What windows make of where documents end: nothing; no window holds more than one; windows of the
#: whole stream that say where they end; or whole documents packed into samples.
Documents = Literal["ignore", "respect", "mark", "pack"]

_DTYPES = {"int64": torch.int64, "bool": torch.bool}
_POSITIONS, _DOCUMENTS = "position_ids", "document_ids"


class WindowDataset(BaseDataset):
    """Windows of a fixed number of values, cut out of all keys at the same places.

    Parameters
    ----------
    train_type
        What samples are made of.
    window_size
        Values of a window, w.
    stride
        Values from one window to the next; None for w. Less makes windows that overlap, more
        leaves gaps.
    documents
        ``"ignore"``: windows of the stream of all values. ``"respect"``: windows of one document
        each, from its start. ``"mark"``: as ``"ignore"``, and samples have ``position_ids`` that
        begin at 0 in each document and ``document_ids``, the number of the document within the
        sample, and no target is in another document than its input. ``"pack"``: whole documents
        packed into samples by best fit, marked likewise.
    tail
        What becomes of targets behind the last full window of the stream, or of a document:
        ``"drop"``, or ``"pad"`` with inputs of ``pad_id`` and targets of -100, or ``"short"``.
        With ``"respect"`` and ``"drop"`` documents that are no longer than a window give none.
        Packed samples are always filled up.
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`. A split
        needs windows that know their documents: ``"respect"`` or ``"pack"``.

    Notes
    -----
    Where a sample has a ``loss_mask``, it is False at padding and at targets in other documents.
    ``zindex.loading.device.pack_documents(batch["document_ids"])`` gives ``cu_seqlens`` for
    attention kernels, and ``ids[:, :, None] == ids[:, None, :]`` the mask of documents.
    Documents are the records of the store. ``"respect"`` keeps 16 bytes in memory for each,
    ``"mark"`` 8, ``"pack"`` 40.
    """

    def __init__(
        self,
        train_type: TrainType,
        window_size: int,
        stride: int | None = None,
        *,
        documents: Documents = "ignore",
        tail: Tail = "drop",
        **options: Any,
    ) -> None:
        super().__init__(train_type, **options)
        check_sizes(window_size, window_size if stride is None else stride)
        for name, value, known in (("documents", documents, Documents), ("tail", tail, Tail)):
            if value not in get_args(known):
                raise ConfigError(
                    f"{name} must be one of {', '.join(get_args(known))}, got {value!r}; choose one"
                )
        if documents == "pack" and (stride is not None or tail == "short"):
            raise ConfigError(
                "documents='pack' makes samples without a stride that are filled up, so stride "
                f"must be left out and tail not be 'short', got stride={stride!r} and tail={tail!r}"
            )
        if self.split is not None and documents not in ("respect", "pack"):
            raise ConfigError(
                f"a split has whole documents, so documents must be 'respect' or 'pack', got "
                f"{documents!r} and split={self.split!r}; choose one, or leave split out"
            )
        self.window_size = window_size
        self.stride = window_size if stride is None else stride
        self.documents: Documents = documents
        self.tail: Tail = tail
        self._windows: Windows | None = None
        self._outputs: list[Output] = []
        self._columns: list[Column] = []

    def get_index(self, index: int) -> tuple[int, int]:
        """Return the values ``[begin, end)`` of the inputs of a window, as AstrAI names them.

        Raises
        ------
        NotLoadedError
            Before ``load``.
        PlanError
            If the store is too short for a window.
        IndexError
            If there is no such window.
        ConfigError
            If samples are packed, so that they are no windows.
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
        parts = self._windows.find_parts(np.array([index % self.num_samples]))
        begin = int(parts.starts[0])
        return begin, begin + int(parts.lengths.sum()) - 1

    def collate(self, batch: Sequence[Any]) -> Any:
        """Return the tensors of a batch, by name: shape (samples, window_size).

        Short windows are filled up to the longest one, with inputs of ``pad_id``, targets of -100
        and masks of False.
        """
        lengths = {len(next(iter(item.values()))) for item in batch} if self.tail == "short" else ()
        if len(lengths) < 2:
            return join_samples(batch)
        pads = {output.name: self._pad_of(output) for output in self._outputs}
        pads |= {_DOCUMENTS: -1, _POSITIONS: 0}
        return BatchTensors(
            (
                name,
                pad_sequence(
                    [item[name] for item in batch], batch_first=True, padding_value=pads[name]
                ),
            )
            for name in batch[0]
        )

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "window_size": self.window_size,
            "stride": self.stride,
            "documents": self.documents,
            "tail": self.tail,
        }

    def _count_samples(self, store: Store) -> int:
        keys = list(self.train_type.keys)
        outputs = self.outputs_of(store)
        # Positions within documents are counted here where samples say where these end.
        self._outputs = [item for item in outputs if not (self._marks and item.name == _POSITIONS)]
        self._columns = [store.column(output.key) for output in self._outputs]
        used = [output.key for output in self._outputs]
        store.check_lengths(used)
        if not self.train_type.by_record:  # the answers of a pair differ
            store.check_records(used)
        length = min(column.length for column in self._columns)
        cut = partial(
            StreamWindows, window_size=self.window_size, stride=self.stride, tail=self.tail
        )
        stream = np.array([0], np.int64), np.array([length], np.int64)
        windows: Windows
        if self.documents == "ignore":
            windows = cut(*stream)
        else:
            bounds = _document_bounds(store, keys[0])
            if bounds[-1] > length:  # another key is shorter, which only strict=False allows
                bounds = np.minimum(bounds, length)
            if self.documents == "mark":
                windows = BoundedWindows(cut(*stream), bounds)
            else:
                starts, stops = bounds[:-1], bounds[1:]
                chosen = self._choose_records(len(starts))
                if chosen is not None:
                    starts, stops = starts[chosen], stops[chosen]
                if self.documents == "respect":
                    windows = cut(starts, stops)
                else:
                    windows = PackedWindows(starts, stops, self.window_size)
        self._windows = windows
        if not windows.num_windows and length:
            logger.warning(
                "%s has no window of %s values%s: choose a shorter one, or tail='pad'",
                store.path,
                f"{self.window_size:,}",
                " within a document" if self.documents == "respect" else "",
            )
        return windows.num_windows

    def _read(self, store: Store, numbers: Int64Array) -> SampleBatch:
        """Return windows by number."""
        if self.tail == "drop" and isinstance(self._windows, StreamWindows):
            return self._read_full(self._windows, numbers)
        assert self._windows is not None
        parts = self._windows.find_parts(numbers)
        runs = self._windows.find_runs(numbers, parts)
        tensors, arrays = allocate_arrays(self._shapes(len(numbers)))
        shifts = {output.shift for output in self._outputs}
        spans = {shift: self._find_spans(runs, shift) for shift in shifts}
        for output in self._outputs:
            arrays[output.name].fill(self._pad_of(output))
        read_columns(
            [
                Request(column, spans[output.shift], arrays[output.name], output.form)
                for output, column in zip(self._outputs, self._columns, strict=True)
            ]
        )
        if self._marks:
            _mark(arrays, parts, self._outputs)
        batch = SampleBatch(tensors)
        if self.tail != "short":
            return batch
        # Windows that know their documents have a part for each.
        lengths = [int(count) - 1 for count in np.bincount(parts.rows, parts.lengths)]
        if min(lengths) == self.window_size:
            return batch
        return SampleBatch.of_items(
            [
                {name: value[:length] for name, value in item.items()}
                for item, length in zip(batch, lengths, strict=True)
            ]
        )

    def _read_full(self, windows: StreamWindows, numbers: Int64Array) -> SampleBatch:
        """Return windows of which every place of every tensor has a value of the store."""
        starts = windows.find_starts(numbers)
        width = self.window_size
        spans = Spans(starts, starts + width, _row_places(len(numbers), width))
        tensors, arrays = allocate_arrays(self._shapes(len(numbers)))
        read_columns(
            [
                Request(column, spans, arrays[output.name], output.form, output.shift)
                for output, column in zip(self._outputs, self._columns, strict=True)
            ]
        )
        return SampleBatch(tensors)

    def _shapes(self, size: int) -> Shapes:
        """Return the tensors of a batch of some samples."""
        plane = size, self.window_size
        shapes: Shapes = {}
        for output, column in zip(self._outputs, self._columns, strict=True):
            dtype = _DTYPES.get(output.form)
            if dtype is None:
                dtype = torch.from_numpy(np.empty(0, column.dtype)).dtype
            shapes[output.name] = (plane, dtype)
        if self._marks:
            shapes |= {_POSITIONS: (plane, torch.int64), _DOCUMENTS: (plane, torch.int64)}
        return shapes

    def _pad_of(self, output: Output) -> int:
        """Return what stands in a tensor where there is no value."""
        return self.pad_id if output.pad is None else output.pad

    @property
    def _marks(self) -> bool:
        """Whether samples say where documents end."""
        return self.documents in ("mark", "pack")

    def _find_spans(self, parts: Parts, shift: int) -> Spans:
        """Return what of the parts goes where in a tensor: to their offsets less its shift."""
        width = self.window_size
        skipped = np.maximum(shift - parts.offsets, 0)
        first = np.maximum(parts.offsets - shift, 0)
        lengths = np.minimum(parts.lengths - skipped, width - first)
        if not (shift or self._marks):
            # The last value of a window that is cut short is a target and no input.
            lengths = lengths - (parts.lengths <= width)
        starts = parts.starts + skipped
        return Spans(starts, starts + lengths, parts.rows * width + first)


@lru_cache(8)
def _row_places(size: int, width: int) -> Int64Array:
    """Return where the rows of a tensor begin."""
    return np.arange(size) * width


def _document_bounds(store: Store, key: str) -> Int64Array:
    """Return where documents begin, and where the last one ends."""
    column = store.column(key)
    if column.num_records is None:
        raise SourceError(
            f"{key} of {store.path} must know where its documents begin to respect, mark or pack "
            "them, and its files do not say; write them with offsets, or choose documents='ignore'"
        )
    return column.record_offset(0, column.num_records)


def _mark(arrays: dict[str, npt.NDArray[Any]], parts: Parts, outputs: Sequence[Output]) -> None:
    """Fill in positions and documents, and ignore targets of other documents than their inputs."""
    documents, positions = arrays[_DOCUMENTS], arrays[_POSITIONS]
    has_target = np.empty(documents.shape, np.bool_)
    mark_documents(parts.rows, parts.offsets, parts.lengths, documents, positions, has_target)
    for output in outputs:
        if output.shift:
            ignored = IGNORED if output.form == "int64" else False
            np.copyto(arrays[output.name], ignored, where=~has_target)
