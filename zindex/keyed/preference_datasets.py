"""Pairs for DPO and groups for GRPO, by record: what belongs together is never cut apart."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batching.batch_memory import Shapes, allocate_arrays
from zindex.datasets.batching.sample_batch import BatchTensors, SampleBatch
from zindex.errors import SourceError
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.columns import Column, Request, Spans, read_columns
from zindex.keyed.padding import PaddedBatch, dpo_collate_fn, grpo_collate_fn
from zindex.keyed.store import Store
from zindex.keyed.train_types import DPO, GRPO

Int64Array = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]
Bounds = tuple[Int64Array, Int64Array]


class _ByRecord(BaseDataset):
    """A dataset whose samples are the records of its store."""

    _chosen: Int64Array | None = None

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"records": True}

    def _count_samples(self, store: Store) -> int:
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
        self._chosen = self._choose_records(num_records)
        return num_records if self._chosen is None else len(self._chosen)

    def _records_of(self, numbers: Int64Array) -> Int64Array:
        """Return the records that samples are."""
        return numbers if self._chosen is None else self._chosen[numbers]

    def _check_equal(
        self, store: Store, numbers: Int64Array, lengths: dict[str, Int64Array]
    ) -> None:
        """Check that two keys have as many values in each record."""
        (one, first), (other, second) = lengths.items()
        wrong = np.flatnonzero(first != second)
        if len(wrong):
            at = int(wrong[0])
            raise SourceError(
                f"{one} and {other} of a record must be of one length, got {first[at]:,} and "
                f"{second[at]:,} in record {numbers[at]:,} of {store.path}; make the store again"
            )


class DPODataset(_ByRecord):
    """Pairs of answers: ``chosen`` and ``rejected``, each with the mask of what is trained.

    Parameters
    ----------
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`.

    Notes
    -----
    A sample has ``chosen`` and ``rejected`` (int64) and ``chosen_mask`` and ``rejected_mask``
    (bool), shape (tokens of that answer,).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(DPO, **options)

    def collate(self, batch: Sequence[Any]) -> BatchTensors:
        """Return pairs as tensors; see `zindex.keyed.dpo_collate_fn`."""
        return dpo_collate_fn(batch, self.pad_id)

    def _read(self, store: Store, numbers: Int64Array) -> SampleBatch:
        """Return pairs by number."""
        numbers = self._records_of(numbers)
        columns = {key: store.column(key) for key in self.train_type.keys}
        bounds = {key: column.record_spans(numbers) for key, column in columns.items()}
        lengths = {key: stops - starts for key, (starts, stops) in bounds.items()}
        for name in ("chosen", "rejected"):
            pair = {key: lengths[key] for key in (name, f"{name}_mask")}
            self._check_equal(store, numbers, pair)
        longest = max(int(length.max()) for length in lengths.values())
        plane = len(numbers), longest
        shapes: Shapes = {
            key: (plane, torch.bool if key.endswith("_mask") else torch.int64) for key in columns
        }
        tensors, arrays = allocate_arrays(shapes)
        requests = []
        places = np.arange(len(numbers)) * longest
        for output in self.train_type.outputs:
            key = output.key
            arrays[key].fill(self.pad_id if output.pad is None else output.pad)
            where = Spans(*bounds[key], places)
            requests.append(Request(columns[key], where, arrays[key], output.form))
        read_columns(requests)

        def cut(row: int) -> dict[str, Any]:
            return {key: tensors[key][row, : lengths[key][row]] for key in columns}

        return PaddedBatch(tensors, cut)


class GRPODataset(_ByRecord):
    """Groups: a prompt, the responses to it, what of them is trained, and their rewards.

    Parameters
    ----------
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`.

    Notes
    -----
    A sample has ``prompts`` (int64, shape (tokens,)), ``responses`` (list of int64) and ``masks``
    (list of bool), of shape (tokens of that response,), and ``rewards`` (float32, shape
    (responses,)). Groups may be of any sizes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(GRPO, **options)

    def collate(self, batch: Sequence[Any]) -> BatchTensors:
        """Return groups as tensors; see `zindex.keyed.grpo_collate_fn`."""
        return grpo_collate_fn(batch, self.pad_id)

    def _read(self, store: Store, numbers: Int64Array) -> SampleBatch:
        """Return groups by number."""
        numbers = self._records_of(numbers)
        columns = {key: store.column(key) for key in self.train_type.keys}
        prompts, rewards = (columns[key].record_spans(numbers) for key in ("prompts", "rewards"))
        responses, masks = (_find_items(columns[key], numbers) for key in ("responses", "masks"))
        counts = responses.counts
        self._check_equal(store, numbers, {"responses": counts, "masks": masks.counts})
        self._check_equal(store, numbers, {"responses": counts, "rewards": rewards[1] - rewards[0]})
        rows = np.repeat(np.arange(len(numbers)), counts)
        self._check_equal(
            store, numbers[rows], {"responses": responses.lengths, "masks": masks.lengths}
        )
        prompt_lengths = prompts[1] - prompts[0]
        width, depth = int(prompt_lengths.max()), int(responses.lengths.max(initial=0))
        size, group_size = len(numbers), int(counts.max())
        tensors, arrays = self._make_room(size, width, group_size, depth)
        before = np.cumsum(counts) - counts
        first = width - prompt_lengths
        arrays["prompt_mask"][:] = np.arange(width) >= first[:, None]
        arrays["group_mask"][:] = np.arange(group_size) < counts[:, None]
        found = np.zeros((size, group_size), columns["rewards"].dtype)
        within = np.arange(len(rows)) - before[rows]
        places = (rows * group_size + within) * depth
        begins = np.arange(size)
        where = {
            "prompts": Spans(*prompts, begins * width + first),
            "responses": Spans(*responses.bounds, places),
            "masks": Spans(*masks.bounds, places),
            "rewards": Spans(*rewards, begins * group_size),
        }
        read_columns(
            [
                Request(
                    columns[output.key],
                    where[output.key],
                    found if output.form == "copy" else arrays[output.key],
                    output.form,
                )
                for output in self.train_type.outputs
            ]
        )
        arrays["rewards"][:] = found

        def cut(row: int) -> dict[str, Any]:
            lengths = responses.lengths[before[row] : before[row] + counts[row]]
            return {
                "prompts": tensors["prompts"][row, first[row] :],
                "responses": _cut(tensors["responses"][row], lengths),
                "masks": _cut(tensors["masks"][row], lengths),
                "rewards": tensors["rewards"][row, : counts[row]],
            }

        return PaddedBatch(tensors, cut)

    def _make_room(
        self, size: int, width: int, group_size: int, depth: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, AnyArray]]:
        """Return the tensors of a batch with nothing but padding, and arrays to fill them."""
        shapes: Shapes = {
            "prompts": ((size, width), torch.int64),
            "prompt_mask": ((size, width), torch.bool),
            "responses": ((size, group_size, depth), torch.int64),
            "masks": ((size, group_size, depth), torch.bool),
            "rewards": ((size, group_size), torch.float32),
            "group_mask": ((size, group_size), torch.bool),
        }
        tensors, arrays = allocate_arrays(shapes)
        for name, array in arrays.items():
            array.fill(self.pad_id if name in ("prompts", "responses") else 0)
        return tensors, arrays


class _Items(NamedTuple):
    """The items of some groups, one after the other."""

    #: Where items begin and end.
    bounds: Bounds
    #: Items of each group.
    counts: Int64Array

    @property
    def lengths(self) -> Int64Array:
        """Values of each item."""
        return self.bounds[1] - self.bounds[0]


def _find_items(column: Column, records: Int64Array) -> _Items:
    """Return where the items of records lie: a record that is no group is one item."""
    starts, stops = column.record_spans(records)
    if not column.has_groups:
        return _Items((starts, stops), np.ones(len(records), np.int64))
    groups = column.item_lengths(records)
    counts = np.array([len(group) for group in groups])
    lengths = np.concatenate(groups)
    sums = np.cumsum(lengths) - lengths
    before = np.cumsum(counts) - counts
    # Of each item the values of its group's items before it.
    within = sums - np.repeat(np.append(sums, 0)[before], counts)
    firsts = np.repeat(starts, counts) + within
    return _Items((firsts, firsts + lengths), counts)


def _cut(rows: torch.Tensor, lengths: Int64Array) -> list[torch.Tensor]:
    """Return rows without their padding."""
    return [rows[k, :length] for k, length in enumerate(lengths.tolist())]
