"""Conversations or texts as samples of their own lengths, for schedulers that pack them.

For rows of many conversations use `zindex.datasets.sft_dataset`.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from zindex.arrays import AnyArray, BoolArray, Int64Array
from zindex.datasets.blended_megatron_dataset_config import SFTRules
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.mock_conversations import MockSFTLowLevelDataset, open_mock
from zindex.datasets.sft_dataset import SFTDataset, SFTLowLevelDataset
from zindex.errors import ConfigError, SourceError
from zindex.samples.batch import Item
from zindex.samples.conversations.conversation_batches import (
    IGNORE_INDEX,
    Encoded,
    as_ids,
    find_pad_ids,
    naming_record,
)
from zindex.samples.conversations.json_records import JsonRecords
from zindex.samples.conversations.parquet_records import ParquetRecords
from zindex.text.conversations import ANSWERS, CONTEXTS, QUESTIONS, Message
from zindex.text.megatron_records import (
    MEGATRON_ROLES,
    find_layout,
    first_text,
    read_as_megatron,
    text_of,
)
from zindex.text.text_checks import check_unicode

Converter = Callable[[Mapping[str, Any]], list[Message] | str]

# Megatron's names of fields, of speakers, and of functions.
_INSTRUCTION_FIELDS, _OUTPUT_FIELDS, _EXTRA_INPUT_FIELDS = QUESTIONS, ANSWERS, CONTEXTS
_SHAREGPT_ROLE_MAP = MEGATRON_ROLES
_first_present = first_text
_ensure_str_content = text_of


def _messages_passthrough(sample: Mapping[str, Any]) -> list[Message] | str:
    """Return the messages of a record of ``messages``."""
    return read_as_megatron(sample, "openai-messages")


def _sharegpt_to_messages(sample: Mapping[str, Any]) -> list[Message] | str:
    """Return the messages of a record of ``conversations``."""
    return read_as_megatron(sample, "sharegpt")


def _alpaca_to_messages(sample: Mapping[str, Any]) -> list[Message] | str:
    """Return the messages of a record of an instruction and an answer."""
    return read_as_megatron(sample, "alpaca")


def _raw_text_loader(sample: Mapping[str, Any]) -> list[Message] | str:
    """Return the text of a record of ``text``."""
    return read_as_megatron(sample, "pretrain-text")


_CONVERTERS: dict[str, Converter] = {
    "openai-messages": _messages_passthrough,
    "sharegpt": _sharegpt_to_messages,
    "alpaca": _alpaca_to_messages,
    "pretrain-text": _raw_text_loader,
}


def _select_converter(column_names: Iterable[str]) -> tuple[Converter, str]:
    """Return the converter of records with certain fields, and Megatron's name of their layout."""
    layout = find_layout(column_names)
    return _CONVERTERS[layout], layout


def _looks_like_hf_id(path: str | None) -> bool:
    """Return whether a path may be ``owner/name`` in a hub, as no such file exists."""
    if not path or os.path.exists(path) or path.startswith(("/", "./", "../")):
        return False
    return "/" in path


class VarlenLowLevelDataset(SFTLowLevelDataset):
    """Conversations and texts of a file in any layout, as messages or plain text.

    Parameters
    ----------
    dataset_path
        An uncompressed JSONL file, a JSON array of objects, or a ``.parquet`` file. Records have
        ``messages`` (``role``, ``content``), ``conversations`` (``from``, ``value``), an
        instruction and an answer, or ``text``; the fields of each record decide its layout.

    Raises
    ------
    ConfigError
        If the path names a dataset of a hub, or pyarrow is missing.
    StoreNotFoundError
        If there is no such file.
    SourceError
        If it has no records, or the first one has no known layout.
    """

    def __init__(self, dataset_path: str) -> None:
        if _looks_like_hf_id(dataset_path):
            raise ConfigError(
                f"{dataset_path} must be a file, there is none of this name; if it is a dataset of "
                "a hub, download it and write it as JSONL or Parquet"
            )
        open_records = ParquetRecords if dataset_path.endswith(".parquet") else JsonRecords
        self.records = open_records(dataset_path)
        if not len(self.records):
            raise SourceError(f"{dataset_path} must hold records, got none; name another file")
        #: Layout of the first record, by Megatron's name.
        self.schema_name = find_layout(_filled(self.records.read_many([0])[0]))

    def _convert(self, record: dict[str, Any], index: int) -> list[Message] | str:
        """Return the content of a record, by its own layout or that of the first record."""
        try:
            layout = find_layout(_filled(record))
        except SourceError:
            layout = self.schema_name
        with naming_record(index, self.records.path):
            return read_as_megatron(record, layout)


def _filled(record: dict[str, Any]) -> list[str]:
    """Return the fields of a record that are not null."""
    return [name for name, value in record.items() if value is not None]


class VarlenDataset(SFTDataset):
    """A split of conversations and texts as samples of their own lengths, one record each.

    A sample is truncated to ``sequence_length`` tokens, and padded only as far as the ranks that
    share it require; a scheduler packs several of them.

    An item has ``tokens``, ``labels`` (int64), ``loss_mask`` (float32) and ``position_ids``
    (int64), all of shape (padded length,), and the lengths without and with padding as
    ``original_seq_len`` and ``padded_seq_len``, shape (1,), int32. With ``varlen_sbhd_validation``
    it only has the first four, of shape (sequence_length,). A damaged record raises SourceError.

    Parameters
    ----------
    dataset, dataset_path, indices, num_samples, index_split
        As for ``SFTDataset``.
    config
        As for ``SFTDataset``. For texts its tokenizer has ``tokenize``. With
        ``varlen_sbhd_validation`` samples are padded to ``sequence_length`` instead, for
        comparisons.

    Notes
    -----
    Source: Megatron-LM, ``megatron.training.datasets.varlen_dataset``. Difference: there, a record
    of ``sequence_length + 1`` tokens without an end of document gives a sample of that length, one
    more than fits; here its last token becomes the end of document, as in longer records.
    """

    _rules: SFTRules = "dev"

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: GPTDatasetConfig) -> Any:
        """Return the opened records of a file."""
        return VarlenLowLevelDataset(dataset_path)

    @property
    def _is_plain(self) -> bool:
        """Whether items of a batch may be stacked: never, as their lengths differ."""
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
            A plain list, as schedulers expect: samples of different lengths cannot be stacked.
        """
        if type(self).__getitem__ is not VarlenDataset.__getitem__:
            return [self[position] for position in positions]
        return self._make_batch(positions) if len(positions) else []

    def _read_batch(self, positions: Int64Array, is_padding: BoolArray) -> list[Item]:
        """Return samples, whose records are read together."""
        names = self._find_records(positions)
        items = []
        for name, record in zip(names, self._read_records(names), strict=True):
            with naming_record(name, self.dataset_path):
                items.append(self._make_item(self._encode_record(record)))
        for i in np.flatnonzero(is_padding).tolist():
            items[i]["loss_mask"].zero_()
        return items

    def _encode_record(self, record: Any) -> Encoded:
        """Return a conversation or a text as ids and targets."""
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
        divisor = self.padding_divisor
        padded = config.sequence_length if is_wide else -(-length // divisor) * divisor
        item = {
            "tokens": _pad(tokens[:padded], padded, pad.token),
            "labels": _pad(targets[1:], padded, pad.label),
            "loss_mask": _pad((targets[1:] != IGNORE_INDEX).astype(np.float32), padded, 0),
            "position_ids": torch.arange(padded),
        }
        if not is_wide:
            item["original_seq_len"] = torch.tensor([length], dtype=torch.int32)
            item["padded_seq_len"] = torch.tensor([padded], dtype=torch.int32)
        return item

    def _close(self, encoded: Encoded, eod: int) -> Encoded:
        """Return at least two ids that fit and end with the end of document."""
        tokens, targets = encoded
        num_ends = max(2 - len(tokens), int(not len(tokens) or tokens[-1] != eod))
        width = self.config.sequence_length + 1
        for _ in range(num_ends):
            tokens, targets = np.append(tokens, eod), np.append(targets, eod)
        if len(tokens) > width:
            tokens, targets = tokens[:width].copy(), targets[:width].copy()
            if tokens[-1] != eod:
                tokens[-1] = targets[-1] = eod
        return Encoded(tokens, targets)


class MockVarlenDataset(VarlenDataset):
    """Mock samples of different lengths, like those of ``VarlenDataset``.

    Parameters
    ----------
    dataset, dataset_path, indices, num_samples, index_split, config
        As for ``SFTDataset``. ``config.varlen_mock_dataset_config_json`` has the settings of
        ``MockSFTLowLevelDataset``.
    """

    @staticmethod
    def build_low_level_dataset(
        dataset_path: str | None, config: GPTDatasetConfig
    ) -> MockSFTLowLevelDataset:
        """Return mock conversations; the path is ignored."""
        return open_mock(config.varlen_mock_dataset_config_json, config.sequence_length)

    def _encode_record(self, record: Any) -> Encoded:
        """Return mock ids, all of which are targets."""
        tokens = as_ids(record)
        return Encoded(tokens, tokens)


def _pad(values: AnyArray, length: int, value: float) -> torch.Tensor:
    """Return a padded copy of values."""
    padded = np.full(length, value, values.dtype)
    padded[: len(values)] = values
    return torch.from_numpy(padded)
