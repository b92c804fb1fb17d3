"""Texts of pre-training that validate a fine-tuning."""

from collections.abc import Sequence
from typing import Any

import torch

from zindex.datasets.batching.sample_batch import SampleBatch, resolve_positions
from zindex.datasets.utils import Split


class PretrainValidAsSFTDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples of pre-training texts for the validation of a fine-tuning, each one conversation.

    Parameters
    ----------
    dataset
        A dataset of GPT samples without attention masks, such as a split that a builder made.
    max_samples
        Samples that are taken of it at most, from the first on; None: all.
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

    def __getitem__(self, idx: int | None) -> dict[str, Any]:
        """Return a sample.

        Parameters
        ----------
        idx
            Its position, from the end if negative; None as for the dataset below.

        Returns
        -------
        item
            ``tokens``, ``labels``, ``loss_mask`` and ``position_ids`` as they are, of shape
            (sequence_length,); if packed, ``cu_seqlens`` (int32, 0 and then sequence_length in
            shape (sequence_length + 1,)) and ``max_seqlen`` (int32).

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        [place] = self._find([idx])
        return self._convert(self.dataset[place])

    def __getitems__(self, positions: Sequence[int | None]) -> SampleBatch:
        """Return the samples of a batch, read together where the dataset below can.

        Parameters
        ----------
        positions
            Positions, as of single samples.
        """
        places = self._find(positions)
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(places)
        else:
            samples = [self.dataset[place] for place in places]
        return SampleBatch.of_items([self._convert(sample) for sample in samples])

    def _find(self, positions: Sequence[int | None]) -> list[int | None]:
        """Return positions counted from the start, and None as it is."""
        if not len(positions):
            return []
        numbers, is_padding = resolve_positions(positions, len(self), type(self).__name__)
        return [
            None if pads else number
            for number, pads in zip(numbers.tolist(), is_padding.tolist(), strict=True)
        ]

    def _convert(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a sample as one conversation."""
        item = {key: sample[key] for key in self._KEYS}
        if self.packed:
            length = len(item["tokens"])
            item["cu_seqlens"] = torch.full((length + 1,), length, dtype=torch.int32)
            item["cu_seqlens"][0] = 0
            item["max_seqlen"] = torch.tensor(length, dtype=torch.int32)
        return item
