"""Pairs for DPO and groups for GRPO: whole records, and the padding of their batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray, Int64Array
from zindex.errors import SourceError
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.columns import CopySpans, read_columns
from zindex.keyed.store import KeyedStore
from zindex.keyed.train_types import DPO, GRPO
from zindex.samples.batch import BatchTensors, SampleBatch, Shapes, allocate_arrays

Item = Mapping[str, Any]


class PaddedBatch(SampleBatch):
    """Samples read as one batch; items are views of its padded tensors.

    Parameters
    ----------
    tensors
        The batch, as a collate function of this module returns it.
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


def dpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return pairs as tensors, padded on the right to one length for both answers.

    Parameters
    ----------
    items
        With ``chosen``, ``rejected`` (int64) and ``chosen_mask``, ``rejected_mask`` (bool), each of
        shape (tokens,).
    pad_id
        Padding of token ids.

    Returns
    -------
    tensors
        The same names, shape (pairs, most tokens of any answer); masks are False at padding.
    """
    if isinstance(items, PaddedBatch):
        return items.tensors
    longest = max((len(item[name]) for item in items for name in ("chosen", "rejected")), default=0)
    batch = BatchTensors(_allocate_padding(_pair_shapes(len(items), longest), pad_id)[0])
    for name, tensor in batch.items():
        for row, item in enumerate(items):
            tensor[row, : len(item[name])] = item[name]
    return batch


def grpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return groups as tensors; smaller groups are padded with empty responses.

    Parameters
    ----------
    items
        With ``prompts`` (int64, shape (tokens,)), ``responses`` (list of int64) and ``masks`` (list
        of bool), one of each for every response, and ``rewards`` (float32, shape (responses,)).
    pad_id
        Padding of token ids.

    Returns
    -------
    tensors
        ``prompts`` (int64) and ``prompt_mask`` (bool), shape (groups, most tokens), padded on the
        left; ``responses`` (int64) and ``masks`` (bool), shape (groups, most responses, most
        tokens), padded on the right; ``rewards`` (float32) and ``group_mask`` (bool), shape
        (groups, most responses): ``group_mask`` is False at padding, which the mean over a group
        must exclude.
    """
    if isinstance(items, PaddedBatch):
        return items.tensors
    prompt_length = max((len(item["prompts"]) for item in items), default=0)
    group_size = max((len(item["responses"]) for item in items), default=0)
    length = max((len(response) for item in items for response in item["responses"]), default=0)
    shapes = _group_shapes(len(items), prompt_length, group_size, length)
    batch = BatchTensors(_allocate_padding(shapes, pad_id)[0])
    for row, item in enumerate(items):
        first = prompt_length - len(item["prompts"])
        batch["prompts"][row, first:] = item["prompts"]
        batch["prompt_mask"][row, first:] = True
        count = len(item["responses"])
        batch["rewards"][row, :count] = item["rewards"]
        batch["group_mask"][row, :count] = True
        for k, (response, mask) in enumerate(zip(item["responses"], item["masks"], strict=True)):
            batch["responses"][row, k, : len(response)] = response
            batch["masks"][row, k, : len(mask)] = mask
    return batch


class _ByRecord(BaseDataset):
    """A dataset whose samples are the records of its store."""

    _chosen: Int64Array | None = None

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
        self._chosen = self._choose_records(num_records)
        return num_records if self._chosen is None else len(self._chosen)

    def _records_of(self, numbers: Int64Array) -> Int64Array:
        """Return the record of each sample."""
        return numbers if self._chosen is None else self._chosen[numbers]


class DPODataset(_ByRecord):
    """Pairs of answers: ``chosen`` and ``rejected``, each with a loss mask.

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

    def _read(self, store: KeyedStore, numbers: Int64Array) -> SampleBatch:
        """Return pairs by number."""
        numbers = self._records_of(numbers)
        columns = {key: store.column(key) for key in self.train_type.keys}
        bounds = {key: column.record_spans(numbers) for key, column in columns.items()}
        lengths = {key: stops - starts for key, (starts, stops) in bounds.items()}
        for name in ("chosen", "rejected"):
            store.check_equal(numbers, {key: lengths[key] for key in (name, f"{name}_mask")})
        longest = max(int(length.max()) for length in lengths.values())
        tensors, arrays = _allocate_padding(_pair_shapes(len(numbers), longest), self.pad_id)
        places = np.arange(len(numbers)) * longest
        read_columns(
            [
                column.read(CopySpans(*bounds[key], places), arrays[key])
                for key, column in columns.items()
            ]
        )

        def unpad(row: int) -> dict[str, Any]:
            return {key: tensors[key][row, : lengths[key][row]] for key in columns}

        return PaddedBatch(tensors, unpad)


class GRPODataset(_ByRecord):
    """Groups: a prompt, the responses to it, their loss masks, and their rewards.

    Parameters
    ----------
    options
        ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as for `BaseDataset`.

    Notes
    -----
    A sample has ``prompts`` (int64, shape (tokens,)), ``responses`` (list of int64) and ``masks``
    (list of bool), of shape (tokens of that response,), and ``rewards`` (float32, shape
    (responses,)). Groups may differ in size.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(GRPO, **options)

    def collate(self, batch: Sequence[Any]) -> BatchTensors:
        """Return groups as tensors; see `zindex.keyed.grpo_collate_fn`."""
        return grpo_collate_fn(batch, self.pad_id)

    def _read(self, store: KeyedStore, numbers: Int64Array) -> SampleBatch:
        """Return groups by number."""
        numbers = self._records_of(numbers)
        columns = {key: store.column(key) for key in self.train_type.keys}
        prompts, rewards = (columns[key].record_spans(numbers) for key in ("prompts", "rewards"))
        responses, masks = (columns[key].find_items(numbers) for key in ("responses", "masks"))
        counts = responses.counts
        sizes = {"responses": counts, "masks": masks.counts, "rewards": rewards[1] - rewards[0]}
        store.check_equal(numbers, sizes)
        rows = np.repeat(np.arange(len(numbers)), counts)
        store.check_equal(numbers[rows], {"responses": responses.lengths, "masks": masks.lengths})
        prompt_lengths = prompts[1] - prompts[0]
        width, depth = int(prompt_lengths.max()), int(responses.lengths.max(initial=0))
        size, group_size = len(numbers), int(counts.max())
        shapes = _group_shapes(size, width, group_size, depth)
        tensors, arrays = _allocate_padding(shapes, self.pad_id)
        before = np.cumsum(counts) - counts
        first = width - prompt_lengths
        arrays["prompt_mask"][:] = np.arange(width) >= first[:, None]
        arrays["group_mask"][:] = np.arange(group_size) < counts[:, None]
        within = np.arange(len(rows)) - before[rows]
        places = (rows * group_size + within) * depth
        begins = np.arange(size)
        where = {
            "prompts": CopySpans(*prompts, begins * width + first),
            "responses": CopySpans(responses.starts, responses.stops, places),
            "masks": CopySpans(masks.starts, masks.stops, places),
            "rewards": CopySpans(*rewards, begins * group_size),
        }
        read_columns([columns[key].read(spans, arrays[key]) for key, spans in where.items()])

        def unpad(row: int) -> dict[str, Any]:
            lengths = responses.lengths[before[row] : before[row] + counts[row]]
            return {
                "prompts": tensors["prompts"][row, first[row] :],
                "responses": _split_rows(tensors["responses"][row], lengths),
                "masks": _split_rows(tensors["masks"][row], lengths),
                "rewards": tensors["rewards"][row, : counts[row]],
            }

        return PaddedBatch(tensors, unpad)


def _pair_shapes(size: int, length: int) -> Shapes:
    """Return the tensors of a batch of pairs."""
    return {
        key: ((size, length), torch.bool if key.endswith("_mask") else torch.int64)
        for key in DPO.keys
    }


def _group_shapes(size: int, prompt_length: int, group_size: int, length: int) -> Shapes:
    """Return the tensors of a batch of groups."""
    return {
        "prompts": ((size, prompt_length), torch.int64),
        "prompt_mask": ((size, prompt_length), torch.bool),
        "responses": ((size, group_size, length), torch.int64),
        "masks": ((size, group_size, length), torch.bool),
        "rewards": ((size, group_size), torch.float32),
        "group_mask": ((size, group_size), torch.bool),
    }


def _allocate_padding(
    shapes: Shapes, pad_id: int
) -> tuple[dict[str, torch.Tensor], dict[str, AnyArray]]:
    """Return the tensors of a batch of padding only, and arrays to fill them."""
    tensors, arrays = allocate_arrays(shapes)
    for array in arrays.values():
        array.fill(pad_id if array.dtype == np.int64 else 0)  # token ids alone are int64
    return tensors, arrays


def _split_rows(rows: torch.Tensor, lengths: Int64Array) -> list[torch.Tensor]:
    """Return rows without padding."""
    return [rows[k, :length] for k, length in enumerate(lengths.tolist())]
