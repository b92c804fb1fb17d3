"""Samples of the lengths of their conversations or texts, for schedulers that pack them.

Where a row of many conversations is wanted as a sample, `zindex.datasets.sft_dataset` has it.
"""

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batching.sample_batch import Item, SampleBatch, resolve_positions
from zindex.datasets.conversations.json_records import JsonRecords
from zindex.datasets.conversations.mock_conversations import MockSFTLowLevelDataset, open_mock
from zindex.datasets.conversations.packed_rows import (
    IGNORE_INDEX,
    Encoded,
    as_ids,
    find_pad_ids,
    telling_record,
)
from zindex.datasets.conversations.record_layouts import Messages
from zindex.datasets.conversations.record_layouts import convert_instruction as _alpaca_to_messages
from zindex.datasets.conversations.record_layouts import convert_messages as _messages_passthrough
from zindex.datasets.conversations.record_layouts import convert_sharegpt as _sharegpt_to_messages
from zindex.datasets.conversations.record_layouts import convert_text as _raw_text_loader
from zindex.datasets.conversations.record_layouts import select_layout as _select_converter
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.sft_dataset import SFTDataset, SFTLowLevelDataset
from zindex.errors import ConfigError, SourceError, StoreNotFoundError
from zindex.text.text_checks import check_unicode

__all__ = [
    "MockVarlenDataset",
    "VarlenDataset",
    "VarlenLowLevelDataset",
    "_alpaca_to_messages",
    "_looks_like_hf_id",
    "_messages_passthrough",
    "_raw_text_loader",
    "_select_converter",
    "_sharegpt_to_messages",
]


def _looks_like_hf_id(path: str | None) -> bool:
    """Return whether a path may be ``owner/name`` of a dataset in a hub: no file has that name."""
    if not path or os.path.exists(path) or path.startswith(("/", "./", "../")):
        return False
    return "/" in path


class _ParquetRecords:
    """The rows of a Parquet file by number, in Arrow's memory; opened again after unpickling."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.isfile(path):
            raise StoreNotFoundError(f"{path} must be a file, there is none; check the path")
        try:
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ConfigError(
                f"pyarrow must be installed to read {path}, it is not; install it, or write the "
                "records as JSONL"
            ) from error
        try:
            self._table = parquet.read_table(path, memory_map=True)
        except (ValueError, OSError) as error:
            raise SourceError(
                f"{path} must be a file of Parquet, but: {error}; make it anew"
            ) from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read_many(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows as dicts."""
        if not len(indices):
            return []
        numbers, _ = resolve_positions(indices, len(self), self.path)
        # Arrow's take() would copy the whole table.
        return [self._table.slice(number, 1).to_pylist()[0] for number in numbers.tolist()]

    def __reduce__(self) -> tuple[Any, ...]:
        return _ParquetRecords, (self.path,)


class VarlenLowLevelDataset(SFTLowLevelDataset):
    """Conversations and texts of a file, whatever their layout, as messages or plain text.

    Parameters
    ----------
    dataset_path
        A plain JSONL file, a JSON array of objects, or a ``.parquet`` file. Records have
        ``messages`` (``role``, ``content``), ``conversations`` (``from``, ``value``), an
        instruction and an answer, or ``text``; each tells its layout by its own fields.

    Raises
    ------
    ConfigError
        If the path names a dataset of a hub, or Parquet cannot be read here.
    StoreNotFoundError
        If there is no such file.
    SourceError
        If it has no records, or its first one is of no layout.
    """

    def __init__(self, dataset_path: str) -> None:
        if _looks_like_hf_id(dataset_path):
            raise ConfigError(
                f"{dataset_path} must be a file, there is none of this name; if it is a dataset of "
                "a hub, download it and write it as JSONL or Parquet"
            )
        if dataset_path.endswith(".parquet"):
            self.records: Any = _ParquetRecords(dataset_path)
        else:
            self.records = JsonRecords(dataset_path)
        if not len(self.records):
            raise SourceError(f"{dataset_path} must hold records, got none; name another file")
        self._converter, self._schema_name = _select_converter(
            _filled(self.records.read_many([0])[0])
        )

    @property
    def schema_name(self) -> str:
        """Layout of the first record, by Megatron's name."""
        return self._schema_name

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Return records as messages, or as text; they are read together."""
        return [
            self._convert(record, index)
            for index, record in zip(indices, self.records.read_many(indices), strict=True)
        ]

    def _convert(self, record: dict[str, Any], index: int) -> Messages | str:
        """Return what a record says, by its own layout, or that of the first one."""
        try:
            converter, _ = _select_converter(_filled(record))
        except SourceError:
            converter = self._converter
        with telling_record(index, self.records.path):
            return converter(record)


def _filled(record: dict[str, Any]) -> list[str]:
    """Return the fields of a record that say something."""
    return [name for name, value in record.items() if value is not None]


class VarlenDataset(SFTDataset):
    """A split of conversations and texts as samples of their own lengths, one of each.

    A sample is cut off at ``sequence_length`` tokens and padded to no more than ranks that share it
    need; a scheduler packs several of them.

    Parameters
    ----------
    dataset, dataset_path, indices, num_samples, index_split
        As for ``SFTDataset``.
    config
        The same. For texts its tokenizer has ``tokenize``. With ``varlen_sbhd_validation`` samples
        are padded to ``sequence_length`` instead, to compare with.

    Notes
    -----
    Source: Megatron-LM, ``megatron.training.datasets.varlen_dataset``. Difference: there, a record
    of ``sequence_length + 1`` tokens without an end of document makes a sample of as many, one more
    than fit; here its last token becomes the end of document, as in longer ones.
    """

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: GPTDatasetConfig) -> Any:
        """Return the opened records of a file."""
        return VarlenLowLevelDataset(dataset_path)

    def __getitem__(self, idx: int | None) -> dict[str, Any]:
        """Return a sample.

        Parameters
        ----------
        idx
            Its position, from the end if negative; None gives the first one with a loss mask of
            zeros.

        Returns
        -------
        item
            ``tokens``, ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids`` (int64),
            all of shape (padded length,), and the lengths without and with padding as
            ``original_seq_len`` and ``padded_seq_len``, shape (1,), int32. With
            ``varlen_sbhd_validation`` the first four have shape (sequence_length,), and there are
            no others.

        Raises
        ------
        IndexError
            If there is no such sample.
        SourceError
            If its record is damaged.
        """
        return self._make_batch([idx])[0]

    @property
    def _is_plain(self) -> bool:
        """Whether items of a batch may be stacked as one: their lengths differ."""
        return False

    def __getitems__(self, positions: Sequence[int | None]) -> Any:
        """Return the samples of a batch, whose records are read together.

        Parameters
        ----------
        positions
            Positions, as of single samples.

        Returns
        -------
        items
            A plain list, for schedulers that ask for one: of different lengths, samples cannot be
            stacked.
        """
        if type(self).__getitem__ is not VarlenDataset.__getitem__:
            return [self[position] for position in positions]
        return list(self._make_batch(positions))

    def _make_batch(self, positions: Sequence[int | None]) -> SampleBatch:
        """Return samples, whose records are read together."""
        if not len(positions):
            return SampleBatch.of_items([])
        numbers, is_padding = resolve_positions(positions, len(self), f"{self._path}")
        names = self._find_records(numbers)
        items = []
        for name, record in zip(names, self._read_records(names), strict=True):
            with telling_record(name, self._path):
                items.append(self._make_item(self._encode_record(record)))
        for i in np.flatnonzero(is_padding).tolist():
            items[i]["loss_mask"].zero_()
        return SampleBatch.of_items(items)

    def _encode_record(self, record: Any) -> Encoded:
        """Return a conversation, or a text, as ids and targets."""
        if not isinstance(record, str):
            return self._encode_conversation(record)
        check_unicode(record)
        tokens = as_ids(self.config.tokenizer.tokenize(record))
        return Encoded(tokens, tokens)

    def _make_item(self, encoded: Encoded) -> Item:
        """Return the sample of a conversation or a text."""
        config, tokenizer = self.config, self.config.tokenizer
        pad = find_pad_ids(tokenizer)
        tokens, targets = self._close(encoded, int(tokenizer.eod))
        length = len(tokens) - 1
        is_wide = getattr(config, "varlen_sbhd_validation", False)
        padded = config.sequence_length if is_wide else -(-length // self.padding_divisor)
        if not is_wide:
            padded *= self.padding_divisor
        item = {
            "tokens": _pad(tokens[:padded], padded, pad.token),
            "labels": _pad(targets[1:], padded, pad.label),
            "loss_mask": _pad((targets[1:] != IGNORE_INDEX).astype(np.float32), padded, 0),
            "position_ids": torch.arange(padded),
        }
        if is_wide:
            return item
        lengths = {"original_seq_len": length, "padded_seq_len": padded}
        return item | {
            name: torch.tensor([value], dtype=torch.int32) for name, value in lengths.items()
        }

    def _close(self, encoded: Encoded, eod: int) -> Encoded:
        """Return ids that end with the end of document, and of which at least one is an input."""
        tokens, targets = encoded
        if not len(tokens) or tokens[-1] != eod:
            tokens, targets = np.append(tokens, eod), np.append(targets, eod)
        if len(tokens) < 2:
            tokens, targets = np.append(tokens, eod), np.append(targets, eod)
        width = self.config.sequence_length + 1
        if len(tokens) > width:
            tokens, targets = tokens[:width].copy(), targets[:width].copy()
            if tokens[-1] != eod:
                tokens[-1] = targets[-1] = eod
        return Encoded(tokens, targets)


class MockVarlenDataset(VarlenDataset):
    """Made-up samples of different lengths, like those of ``VarlenDataset``.

    Parameters
    ----------
    dataset, dataset_path, indices, num_samples, index_split, config
        As for ``SFTDataset``. ``config.varlen_mock_dataset_config_json`` says what
        ``MockSFTLowLevelDataset`` is asked for.
    """

    @staticmethod
    def build_low_level_dataset(
        dataset_path: str | None, config: GPTDatasetConfig
    ) -> MockSFTLowLevelDataset:
        """Return made-up conversations; the path says nothing."""
        return open_mock(config.varlen_mock_dataset_config_json, config.sequence_length)

    def _encode_record(self, record: Any) -> Encoded:
        """Return made-up ids, all of which are to be learned."""
        tokens = as_ids(record)
        return Encoded(tokens, tokens)


def _pad(values: npt.NDArray[Any], length: int, value: float) -> torch.Tensor:
    """Return values with others behind them, in memory of their own."""
    padded = np.full(length, value, values.dtype)
    padded[: len(values)] = values
    return torch.from_numpy(padded)
