"""Conversations for supervised fine-tuning, packed into rows of equal length."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from zindex.arrays import BoolArray, Int64Array
from zindex.datasets.blended_megatron_dataset_config import SFTRules
from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.megatron_dataset import MegatronDataset
from zindex.datasets.mock_conversations import MockSFTLowLevelDataset, open_mock
from zindex.datasets.mock_conversations import load_json_arg as load_json_arg
from zindex.datasets.sample_dataset import SampleDataset, as_given, overrides
from zindex.datasets.utils import Split
from zindex.errors import ConfigError, SourceError
from zindex.formats.megatron_version import find_rules
from zindex.samples.batch import Item, Sample, SampleBatch
from zindex.samples.conversations.conversation_batches import IGNORE_INDEX as IGNORE_INDEX
from zindex.samples.conversations.conversation_batches import (
    ChatTokens,
    Encoded,
    as_ids,
    end_conversation,
    end_within,
    find_pad_ids,
    make_conversation_batch,
)
from zindex.samples.conversations.json_records import JsonRecords
from zindex.samples.masks import causal_mask

Messages = list[dict[str, Any]]

# The version of Megatron Core since which each of the rules applies. It has them although its wheel
# has no datasets of conversations: those are in ``megatron.training`` of the same version.
_FIRST_VERSIONS: dict[SFTRules, tuple[int, int]] = {
    "0.14": (0, 0),
    "0.15": (0, 15),
    "0.16": (0, 16),
    "0.17": (0, 17),
    "main": (0, 19),
}
# Rules by which a record is one conversation, and the method that makes the masks by them.
_UNPACKED = ("0.14", "0.15")
_MASKS = "_get_ltor_masks_and_position_ids"


class SFTLowLevelDataset:
    """The messages of a file of conversations, by number.

    Parameters
    ----------
    dataset_path
        An uncompressed JSONL file, or one JSON array, of objects with ``messages``, each with
        ``role`` and ``content``. A record may hold several consecutive conversations, each starting
        with the role ``system``.

    Raises
    ------
    StoreNotFoundError
        If there is no such file.
    SourceError
        If it contains neither lines of objects nor an array of them.
    """

    def __init__(self, dataset_path: str) -> None:
        self.records: Any = JsonRecords(dataset_path)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, idx: int) -> Any:
        """Return the messages of one record."""
        return self.read_many([idx])[0]

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Return the messages of records, which are read together.

        Raises
        ------
        SourceError
            If a record has no messages.
        """
        records = self.records.read_many(indices)
        return [self._convert(*pair) for pair in zip(records, indices, strict=True)]

    def _convert(self, record: dict[str, Any], index: int) -> Any:
        """Return the messages of a record, at least one."""
        messages = record.get("messages")
        found = messages if isinstance(messages, list) else []
        if found and all(isinstance(one, dict) and "role" in one for one in found):
            return found
        raise SourceError(
            f"record {index} of {self.records.path} must have messages, a list of objects with "
            f"role and content, got {str(messages)[:80]!r}; fix or remove it"
        )


class SFTDataset(SampleDataset, MegatronDataset):
    """A split of conversations as samples of ``sequence_length`` tokens.

    Sample j is record ``j % records`` of the split: its consecutive conversations, each padded as
    required by context parallelism, truncated or padded at the end. The loss covers the targets of
    the tokenizer's ``tokenize_conversation``. ``config.sft_rules`` names the version of Megatron
    whose rules apply, by default the installed one.

    An item has ``tokens`` and ``labels`` (int64; labels are the tokenizer's own pad id in padding,
    and -100 where there is no target), ``loss_mask`` (float32) and ``position_ids`` (int64, from 0
    in each conversation), all of shape (sequence_length,); ``cu_seqlens`` (int32, starts of
    conversations, padded with sequence_length to sequence_length + 1 values, except by the rules of
    0.16 and 0.17) and ``max_seqlen`` (int32); neither by the rules of 0.14 and 0.15, by which a
    record is one conversation. A record that is damaged or gives no tokens raises SourceError.

    By the rules of 0.14 and 0.15 a subclass may override `_get_ltor_masks_and_position_ids`, also
    to make attention masks.

    Parameters
    ----------
    dataset
        The messages of each record.
    dataset_path
        Their path, as the user wrote it.
    indices
        The records of the split.
    num_samples
        Number of samples; records repeat if there are fewer. None uses each record once.
    index_split
        The split.
    config
        The configuration, without attention masks and without positions that restart at end tokens.
        With ``sft_cross_document_attention`` samples have no ``cu_seqlens``, and positions continue
        from one conversation to the next. Its tokenizer has ``eod``, optionally ``pad``, and
        ``tokenize_conversation(messages, return_target, add_generation_prompt)``, which returns ids
        and targets; or it is one of zindex's with a chat template.

    Raises
    ------
    ConfigError
        If a setting is not available for samples of conversations.

    Notes
    -----
    Source: Megatron-LM, ``megatron.training.datasets.sft_dataset``. Differences: if the tokenizer
    pads with a negative id, inputs are padded with the end of document, because no embedding has a
    negative id; if it pads with the end of document, the loss leaves out padding only, not the ends
    of conversations. Positions count from the end if they are negative, and end with ``len``; there
    any number is a record, ``position % records``.
    """

    config: GPTDatasetConfig
    dataset_path: str | None = None
    num_samples: int | None = None
    _make_together = staticmethod(make_conversation_batch)
    #: Tokens beyond the inputs that a truncated record keeps as labels.
    _num_kept_labels = 0

    def _prepare(self) -> None:
        """Check the settings and the records."""
        if self._makes_masks and self._rules not in _UNPACKED:
            raise ConfigError(
                f"{_MASKS}, which {type(self).__name__} overrides, must belong to sft_rules that "
                f"call it, {' or '.join(_UNPACKED)}, got {self._rules}; set one of them, or "
                "override __getitem__ instead"
            )
        for name in ("create_attention_mask", "reset_attention_mask", "reset_position_ids"):
            if getattr(self.config, name) and not self._makes_masks:
                raise ConfigError(
                    f"{name} must be off for {type(self).__name__}, whose positions restart with "
                    "each conversation and whose cu_seqlens take the place of a mask, got "
                    f"{getattr(self.config, name)}; set it to False"
                )
        if not len(self._indices) and self.num_samples != 0:
            raise ConfigError(
                f"{self.index_split.name} of {self.dataset_path} must have records, got none; give "
                "it a larger share"
            )

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Return the number of records."""
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: GPTDatasetConfig) -> Any:
        """Return the opened messages of a file."""
        return SFTLowLevelDataset(dataset_path)

    def __len__(self) -> int:
        return len(self._indices) if self.num_samples is None else self.num_samples

    @property
    def _where(self) -> str:
        """Name of the dataset in messages."""
        return str(self.dataset_path)

    def _find_records(self, positions: Int64Array) -> list[int]:
        """Return the number of the record at each position."""
        indices = self._indices
        return [int(indices[place]) for place in (positions % len(indices)).tolist()]

    def _read_records(self, numbers: Sequence[int]) -> list[Any]:
        """Return records of the low-level dataset by number."""
        dataset = self.dataset
        if hasattr(dataset, "read_many"):
            return list(dataset.read_many(numbers))
        return [dataset[number] for number in numbers]

    @property
    def _has_boundaries(self) -> bool:
        """Whether samples have the boundaries of their conversations."""
        crosses = getattr(self.config, "sft_cross_document_attention", False)
        return not crosses and self._rules not in _UNPACKED

    @property
    def _pads_boundaries(self) -> bool:
        """Whether all samples have as many boundaries."""
        return self._rules not in ("0.16", "0.17")

    @cached_property
    def _rules(self) -> SFTRules:
        """The version of Megatron whose rules apply."""
        given: SFTRules | None = getattr(self.config, "sft_rules", None)
        if given is None and getattr(self.config, "is_hybrid", False):
            return "dev"
        return given or find_rules(_FIRST_VERSIONS)

    @cached_property
    def padding_divisor(self) -> int:
        """Conversations are padded to a multiple of this number of tokens."""
        return self._calculate_padding_divisor()

    def _calculate_padding_divisor(self) -> int:
        """Return the divisor that the ranks of a sequence need."""
        config = self.config
        if self._rules in _UNPACKED:
            return 1
        num_ranks = getattr(config, "context_parallel_size", None) or 1
        num_chunks = 2 * num_ranks if num_ranks > 1 else 1
        if self._rules != "dev":
            return num_chunks
        if getattr(config, "is_hybrid", False):
            num_chunks = 2 * num_ranks * config.data_parallel_size
        return num_chunks * (getattr(config, "sequence_parallel_size", None) or 1)

    def _encode(self, record: Any) -> Iterator[Encoded]:
        """Yield the conversations of a record as ids, lazily."""
        tokenizer, rules = self.config.tokenizer, self._rules
        if rules in _UNPACKED:
            encoded = self._encode_conversation(record)
            ends = rules == "0.14" or getattr(tokenizer, "force_eod", False)
            eod, length = int(tokenizer.eod), self.config.sequence_length
            yield end_within(encoded, eod, length) if ends else encoded
            return
        for conversation in self._split_conversations(record):
            encoded = self._encode_conversation(conversation)
            yield end_conversation(encoded, int(tokenizer.eod)) if rules == "0.16" else encoded

    def _encode_conversation(self, conversation: Messages) -> Encoded:
        """Return one conversation as ids and targets."""
        tokenizer = self.config.tokenizer
        if not hasattr(tokenizer, "tokenize_conversation"):
            return self._chat_tokens.encode(conversation)
        tokens, targets = tokenizer.tokenize_conversation(
            conversation, return_target=True, add_generation_prompt=False
        )
        encoded = Encoded(as_ids(tokens), as_ids(targets))
        if len(encoded.tokens) != len(encoded.targets):
            raise ConfigError(
                f"{type(tokenizer).__name__}.tokenize_conversation must give a target for each "
                f"token, it gives {len(encoded.targets)} for {len(encoded.tokens)}; fix it"
            )
        return encoded

    def __getitem__(self, idx: int | None) -> Item:
        item = super().__getitem__(idx)
        return self._with_own_masks(item, is_padding=idx is None) if self._makes_masks else item

    @property
    def _is_plain(self) -> bool:
        """Whether batches make the items; False for a subclass that customises them."""
        return super()._is_plain and not self._makes_masks

    @property
    def _makes_masks(self) -> bool:
        """Whether a subclass makes masks and positions itself."""
        return overrides(type(self), SFTDataset, (_MASKS,))

    def _with_own_masks(self, item: Item, *, is_padding: bool) -> Item:
        """Return a sample with the masks and positions that a subclass makes."""
        pad = find_pad_ids(self.config.tokenizer).label
        loss_mask, position_ids, attention_mask = self._get_ltor_masks_and_position_ids(
            self.config.sequence_length, item["labels"], pad
        )
        if is_padding:
            loss_mask = torch.zeros_like(loss_mask)
        masks = {"attention_mask": attention_mask} if self.config.create_attention_mask else {}
        made = masks | {"loss_mask": loss_mask, "position_ids": position_ids}
        return Sample({name: item[name] for name in item if name not in made} | made)

    def _get_ltor_masks_and_position_ids(
        self, max_seq_len: int, target: torch.Tensor, pad_token: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the loss mask, positions and attention mask of a sample with these labels.

        Only subclasses with the rules of 0.14 and 0.15 use it. Without ``create_attention_mask``
        the attention mask is None.
        """
        loss_mask = ((target != pad_token) & (target != IGNORE_INDEX)).float()
        has_mask = self.config.create_attention_mask
        attention_mask = causal_mask(max_seq_len, target.device) if has_mask else None
        return loss_mask, torch.arange(max_seq_len), attention_mask

    @cached_property
    def _chat_tokens(self) -> ChatTokens:
        """Encoder for tokenizers without ``tokenize_conversation``."""
        return ChatTokens(self.config.tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_chat_tokens"}

    def _split_conversations(self, merged_conversations: Messages) -> list[Messages]:
        """Return the conversations of a record, each of which begins with the role ``system``."""
        conversations: list[Messages] = []
        for message in merged_conversations:
            if message["role"] == "system" or not conversations:
                conversations.append([])
            conversations[-1].append(message)
        return conversations


class MockSFTDataset(SFTDataset):
    """Mock conversations as samples like those of ``SFTDataset``, one per sample.

    Parameters
    ----------
    dataset, dataset_path, indices, num_samples, index_split, config
        As for ``SFTDataset``. ``config.sft_mock_dataset_config_json`` has the settings of
        ``MockSFTLowLevelDataset``; with its format ``"sbhd"`` samples have no ``cu_seqlens`` and no
        ``max_seqlen``.
    """

    _num_kept_labels = 1
    _rules: SFTRules = "dev"

    @staticmethod
    def build_low_level_dataset(
        dataset_path: str | None, config: GPTDatasetConfig
    ) -> MockSFTLowLevelDataset:
        """Return mock conversations; the path is ignored."""
        return open_mock(config.sft_mock_dataset_config_json, config.sequence_length)

    @property
    def _has_boundaries(self) -> bool:
        """Whether samples have the boundaries of their conversations."""
        return getattr(self.dataset, "format", "thd") != "sbhd"

    def _encode(self, record: Any) -> Iterator[Encoded]:
        """Yield the single conversation of a record, which ends with the end of document."""
        eod = self.config.tokenizer.eod
        tokens = np.append(as_ids(record), eod)[: self.config.sequence_length + 1]
        tokens[-1] = eod
        yield Encoded(tokens, tokens)


class PretrainValidAsSFTDataset(SampleDataset):
    """Pre-training samples that validate a fine-tuning, each as one conversation.

    An item has ``tokens``, ``labels``, ``loss_mask`` and ``position_ids`` unchanged, of shape
    (sequence_length,); if packed, ``cu_seqlens`` (int32, 0 and then sequence_length in shape
    (sequence_length + 1,)) and ``max_seqlen`` (int32).

    Parameters
    ----------
    dataset
        A dataset of GPT samples without attention masks, such as a split from a builder.
    max_samples
        Maximum number of samples, starting with the first; None uses all.
    packed
        Whether samples have ``cu_seqlens`` and ``max_seqlen``, as those of ``SFTDataset`` do.

    Notes
    -----
    Source: Megatron-LM, ``megatron.training.datasets.sft_dataset``.
    """

    _KEYS = ("tokens", "labels", "loss_mask", "position_ids")

    def __init__(self, dataset: Any, max_samples: int | None = None, packed: bool = True) -> None:
        self.dataset = dataset
        self.max_samples = max_samples
        self.packed = packed

    @property
    def index_split(self) -> Split:
        """The split of the samples."""
        split: Split = self.dataset.index_split
        return split

    def __len__(self) -> int:
        count = len(self.dataset)
        return count if self.max_samples is None else min(count, self.max_samples)

    @property
    def _where(self) -> str:
        """Name of the dataset in messages."""
        return type(self).__name__

    def _read_batch(self, positions: Int64Array, is_padding: BoolArray) -> SampleBatch:
        """Return the samples at positions, read together if the underlying dataset supports it."""
        places = as_given(positions, is_padding)
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(places)
        else:
            samples = [self.dataset[place] for place in places]
        return SampleBatch.of_items([self._convert(sample) for sample in samples])

    def _convert(self, sample: Item) -> Item:
        """Return a sample as one conversation."""
        item = {key: sample[key] for key in self._KEYS}
        if self.packed:
            length = len(item["tokens"])
            item["cu_seqlens"] = torch.full((length + 1,), length, dtype=torch.int32)
            item["cu_seqlens"][0] = 0
            item["max_seqlen"] = torch.tensor(length, dtype=torch.int32)
        return item
