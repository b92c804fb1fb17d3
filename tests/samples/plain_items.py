"""Items of GPT datasets as plain loops make them, to compare batches with."""

from typing import Any

import numpy as np
import torch

from zindex.datasets.blended_dataset import BlendedDataset
from zindex.datasets.gpt_dataset import GPTDataset
from zindex.samples.masks import _get_ltor_masks_and_position_ids


def read_parts(dataset: GPTDataset, position: int) -> list[Any]:
    """Return the parts of documents that a sample consists of."""
    sample = int(dataset.shuffle_index[position])
    bounds = np.asarray(dataset.sample_index)[sample : sample + 2].tolist()
    (first, begin), (last, end) = bounds
    end += int(dataset.config.add_extra_token_to_sequence)
    parts = []
    for row in range(first, last + 1):
        offset = begin if row == first else 0
        length = end - offset if row == last else None
        parts.append(dataset.dataset.get(int(dataset.document_index[row]), offset, length))
    return parts


def make_item(dataset: Any, position: int | None) -> dict[str, Any]:
    """Return an item; those with boundaries or provenance are the dataset's own."""
    if isinstance(dataset, BlendedDataset):
        place = 0 if position is None else position
        number = dataset.dataset_index[place]
        sample = None if position is None else int(dataset.dataset_sample_index[place])
        item = make_item(dataset.datasets[number], sample)
        return {"dataset_id": number} | item | {"dataset_id": number}
    config, pad = dataset.config, dataset._pad_token_id
    if config.inter_document_masking or config.with_provenance:
        return dict(dataset[position])
    extra = int(config.add_extra_token_to_sequence)
    text = np.full(config.sequence_length + extra, pad, np.int64)
    found = np.concatenate(read_parts(dataset, position or 0))
    text[: len(found)] = found
    tokens = torch.from_numpy(text[: config.sequence_length].copy())
    labels = torch.from_numpy(np.append(text[1:], [] if extra else pad).astype(np.int64))
    attention_mask, loss_mask, position_ids = _get_ltor_masks_and_position_ids(
        tokens,
        config.tokenizer.eod,
        config.reset_position_ids,
        config.reset_attention_mask,
        config.eod_mask_loss,
        config.create_attention_mask,
    )
    loss_mask[labels == pad] = 0.0
    labels[labels == pad] = 0
    tokens[tokens == pad] = 0
    if position is None:
        loss_mask.zero_()
    item = {"tokens": tokens, "labels": labels}
    if attention_mask is not None:
        item["attention_mask"] = attention_mask
    return item | {"loss_mask": loss_mask, "position_ids": position_ids}
