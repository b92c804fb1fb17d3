"""A batch of masked samples, whose items are arrays and numbers as Megatron Core's are."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from zindex.datasets.batching.batch_memory import Shapes, allocate_arrays
from zindex.datasets.batching.sample_batch import SampleBatch
from zindex.datasets.masking.plain_masks import unknown_token
from zindex.errors import ConfigError, VerificationError
from zindex.kernels.masked_rows import (
    DECODER_FULL,
    NO_SENTINEL,
    NOTHING,
    ONE_SENTENCE,
    UNKNOWN_TOKEN,
    Problem,
)

if TYPE_CHECKING:
    from zindex.datasets.masked_dataset import MaskedWordPieceDataset

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


class MaskedBatch(SampleBatch):
    """The samples of a batch: one tensor per name, and items that are views of them in numpy.

    Parameters
    ----------
    tensors
        By name, with the samples along the first dimension.
    """

    def _take_item(self, place: int) -> dict[str, Any]:
        """Return a sample by its place, which is there."""
        item: dict[str, Any] = {}
        for name, tensor in self.tensors.items():
            value = tensor.numpy()[place]
            # Numbers of the sample are int; that of its dataset has the dtype of the blend.
            item[name] = int(value) if value.ndim == 0 and name != "dataset_id" else value
        return item


def make_room(
    planes: dict[str, int], size: int, dataset_ids: AnyArray | None
) -> tuple[dict[str, torch.Tensor], dict[str, Int64Array]]:
    """Return the tensors of a batch, and arrays to fill them through; only dataset ids are there.

    Parameters
    ----------
    planes
        Width of each tensor by name, all int64; 0 for one number per sample.
    size
        Samples.
    dataset_ids
        Shape (samples,): what items say of their dataset; None lets them say nothing.
    """
    shapes: Shapes = {}
    if dataset_ids is not None:
        shapes["dataset_id"] = ((size,), torch.from_numpy(dataset_ids).dtype)
    for name, width in planes.items():
        shapes[name] = ((size, width) if width else (size,), torch.int64)
    tensors, arrays = allocate_arrays(shapes)
    if dataset_ids is not None:
        arrays["dataset_id"][:] = dataset_ids
    return tensors, arrays


def raise_problem(dataset: "MaskedWordPieceDataset", position: int, problem: Problem) -> None:
    """Raise what is wrong with a sample, if anything is.

    Parameters
    ----------
    dataset
        The sample's dataset.
    position
        Its position there.
    problem
        As the kernel told it.

    Raises
    ------
    ConfigError
        If tokenizer or lengths do not fit the data.
    VerificationError
        If the index gives samples that there cannot be.
    """
    _, code, number = problem
    if code == NOTHING:
        return
    where = f"sample {position} of {dataset._where}"
    if code == UNKNOWN_TOKEN:
        raise unknown_token(number, where)
    if code == NO_SENTINEL:
        raise ConfigError(
            f"the tokenizer must have a sentinel for each masked span, its "
            f"additional_special_tokens_ids has {number} and {where} has more spans; add some, or "
            "lower masking_probability"
        )
    if code == DECODER_FULL:
        raise ConfigError(
            f"sequence_length_decoder must hold the masked spans of each sample, {where} needs "
            f"{number} tokens or more; raise it, or lower masking_probability"
        )
    what = (
        f"at least two sentences, its index gives {number}"
        if code == ONE_SENTENCE
        else f"at most {dataset.config.sequence_length} tokens, its index gives {number}"
    )
    raise VerificationError(
        f"{where} must have {what}; restore the data if they changed, or remove the index to build "
        "it again"
    )
