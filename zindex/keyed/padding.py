"""Samples of unequal lengths as tensors of a batch: pairs for DPO, groups for GRPO."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from zindex.datasets.batching.sample_batch import BatchTensors, SampleBatch

Item = Mapping[str, Any]


class PaddedBatch(SampleBatch):
    """Samples that were read as one batch: items are views of its padded tensors.

    Parameters
    ----------
    tensors
        The batch, as a collate function of this module gives it.
    cut
        Returns a sample by its place in the batch: the tensors without their padding.
    """

    def __init__(
        self, tensors: dict[str, torch.Tensor], cut: Callable[[int], dict[str, Any]]
    ) -> None:
        super().__init__(tensors)
        self._cut = cut

    def _take_item(self, place: int) -> dict[str, Any]:
        """Return a sample by its place, which is there."""
        return self._cut(place)


def dpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return pairs as tensors, filled up on the right to one length for both answers.

    Parameters
    ----------
    items
        With ``chosen``, ``rejected`` (int64) and ``chosen_mask``, ``rejected_mask`` (bool), each of
        shape (tokens,).
    pad_id
        What stands where there is no token.

    Returns
    -------
    tensors
        The same names, shape (pairs, most tokens of any answer); masks are False at padding.
    """
    if isinstance(items, PaddedBatch):
        return items.tensors
    longest = max((len(item[name]) for item in items for name in ("chosen", "rejected")), default=0)
    plane = len(items), longest
    batch = BatchTensors()
    for name in ("chosen", "rejected", "chosen_mask", "rejected_mask"):
        is_mask = name.endswith("_mask")
        batch[name] = torch.full(
            plane, 0 if is_mask else pad_id, dtype=torch.bool if is_mask else torch.int64
        )
        for row, item in enumerate(items):
            batch[name][row, : len(item[name])] = item[name]
    return batch


def grpo_collate_fn(items: Sequence[Item], pad_id: int = 0) -> BatchTensors:
    """Return groups as tensors; groups of unequal size are filled up with empty responses.

    Parameters
    ----------
    items
        With ``prompts`` (int64, shape (tokens,)), ``responses`` (list of int64) and ``masks`` (list
        of bool), one of each for every response, and ``rewards`` (float32, shape (responses,)).
    pad_id
        What stands where there is no token.

    Returns
    -------
    tensors
        ``prompts`` (int64) and ``prompt_mask`` (bool), shape (groups, most tokens), filled up on
        the left; ``responses`` (int64) and ``masks`` (bool), shape (groups, most responses, most
        tokens), filled up on the right; ``rewards`` (float32) and ``group_mask`` (bool), shape
        (groups, most responses): where ``group_mask`` is False there is no response, and the mean
        over a group must leave it out.
    """
    if isinstance(items, PaddedBatch):
        return items.tensors
    size = len(items)
    prompt_length = max((len(item["prompts"]) for item in items), default=0)
    group_size = max((len(item["responses"]) for item in items), default=0)
    lengths = [len(response) for item in items for response in item["responses"]]
    cube = size, group_size, max(lengths, default=0)
    batch = BatchTensors(
        prompts=torch.full((size, prompt_length), pad_id, dtype=torch.int64),
        prompt_mask=torch.zeros((size, prompt_length), dtype=torch.bool),
        responses=torch.full(cube, pad_id, dtype=torch.int64),
        masks=torch.zeros(cube, dtype=torch.bool),
        rewards=torch.zeros(cube[:2], dtype=torch.float32),
        group_mask=torch.zeros(cube[:2], dtype=torch.bool),
    )
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
