"""Samples with the names and labels of Hugging Face models."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zindex.errors import ConfigError
from zindex.plan.tail import Tail
from zindex.samples.batch import Item, SampleBatch, Tensors, collate

#: Label of tokens without a loss.
IGNORED = -100
_NEEDED = ("tokens", "labels", "loss_mask")
_REPLACED = (*_NEEDED, "attention_mask", "position_ids", "cu_seqlens", "max_seqlen")


class HFDataset(torch.utils.data.Dataset[Item]):
    """A dataset of tokens, labels and loss masks as one of ``input_ids`` and ``labels``.

    A sample has, all int64 and of shape (sequence_length,):

    - ``input_ids``: the tokens;
    - ``labels``: the same tokens, which the models shift themselves, and -100 for those without a
      loss: the first one, padding, and what the loss mask leaves out;
    - ``attention_mask``: 1 for tokens, 0 for padding; or, of packed samples and with
      ``inter_document_masking``, ``position_ids`` that restart with each document: without a mask
      the models find the boundaries in these.

    With ``with_provenance`` there are also the provenance tensors. The extra token of a sample is
    not used: the prediction of the last token has no label, as for any block of this length.

    Parameters
    ----------
    dataset
        The dataset, such as one of ``zindex.open_run``.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @property
    def fingerprint(self) -> Any:
        """The identity of the dataset, as samples and order are the same."""
        return getattr(self.dataset, "fingerprint", None)

    @property
    def previous_fingerprints(self) -> Sequence[tuple[str, int]]:
        """The identities before each edit; see `zindex.datasets.edited_dataset.EditedDataset`."""
        found: Sequence[tuple[str, int]] = getattr(self.dataset, "previous_fingerprints", ())
        return found

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Item:
        """Return a sample."""
        return dict(self.__getitems__([index])[0])

    def __getitems__(self, positions: Sequence[int | None]) -> SampleBatch:
        """Return the samples at some positions."""
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(positions)
        else:
            items = [self.dataset[position] for position in positions]
        tensors = items.tensors if isinstance(items, SampleBatch) else collate(items)
        return SampleBatch(rename_tensors(tensors))


def check_hf(tail: Tail, settings: Mapping[str, Any]) -> None:
    """Check the settings of a loader of batches for Hugging Face models.

    Raises
    ------
    ConfigError
        If it pads its last step, or creates other attention masks.
    """
    if tail is Tail.PAD:
        raise ConfigError(
            "tail must be 'drop_last' or 'exact' with format='hf', got 'pad': a batch of padding "
            "alone has no loss in these models; choose one of them"
        )
    if settings.get("create_attention_mask"):
        raise ConfigError(
            "create_attention_mask must be left out with format='hf', which has an attention_mask "
            "of shape (samples, tokens); leave it out"
        )


def rename_tensors(batch: Tensors) -> Tensors:
    """Return the tensors of a batch under the names of Hugging Face models; see `HFDataset`.

    Parameters
    ----------
    batch
        ``tokens``, ``labels`` and ``loss_mask``, of shape (samples, sequence_length).

    Raises
    ------
    ConfigError
        If one of them is missing.

    Examples
    --------
    >>> tokens, labels = torch.tensor([[5, 6, 7]]), torch.tensor([[6, 7, 8]])
    >>> found = rename_tensors({"tokens": tokens, "labels": labels, "loss_mask": torch.ones(1, 3)})
    >>> found["input_ids"].tolist(), found["labels"].tolist(), found["attention_mask"].tolist()
    ([[5, 6, 7]], [[-100, 6, 7]], [[1, 1, 1]])
    """
    missing = [name for name in _NEEDED if name not in batch]
    if missing:
        raise ConfigError(
            f"format='hf' needs samples with {', '.join(_NEEDED)}, these have {', '.join(batch)}; "
            "leave the format out"
        )
    counted = batch["loss_mask"] > 0
    labels = torch.full_like(batch["labels"], IGNORED)
    labels[:, 1:] = batch["labels"][:, :-1].where(counted[:, :-1], IGNORED)
    found = {"input_ids": batch["tokens"], "labels": labels}
    if "cu_seqlens" in batch:
        found["position_ids"] = batch["position_ids"]
    else:
        found["attention_mask"] = _find_tokens(counted)
    rest = batch if "sample_id" in batch else ()  # provenance, with the dataset of a blend
    return found | {name: batch[name] for name in rest if name not in _REPLACED}


def _find_tokens(counted: torch.Tensor) -> torch.Tensor:
    """Return 1 up to the last token with a loss and its label, and 0 in the padding after them.

    A sample without any loss is padding: its mask is all ones, because attention to nothing gives
    NaN.
    """
    length = counted.shape[1]
    if bool(counted[:, -1].all()):
        return torch.ones_like(counted, dtype=torch.int64)
    places = torch.arange(length)
    last = (places * counted).amax(1, keepdim=True)
    last[~counted.any(1)] = length
    return (places < last + 2).to(torch.int64)
