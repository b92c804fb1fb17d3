"""Indices of GPT datasets whose class counts tokens or epochs itself, by Megatron Core's steps."""

from typing import Any

import numpy as np

from zindex.datasets import helpers
from zindex.errors import ConfigError, PlanError
from zindex.indexing.index_arrays import IndexArrays, build_document_index, build_shuffle_index
from zindex.plan.epochs import SEPARATE_SHARE


def build_by_methods(dataset: Any) -> IndexArrays:
    """Return the index of a dataset in memory, with the numbers that its methods return.

    Parameters
    ----------
    dataset
        A ``GPTDataset`` in Megatron's order, whose class overrides ``_get_num_tokens_per_epoch`` or
        ``_get_num_epochs``.

    Raises
    ------
    ConfigError
        If the order is another one.
    PlanError
        If the epochs end before or long after the samples that are requested.

    Notes
    -----
    Source: Megatron Core ``GPTDataset._build_document_sample_shuffle_indices``.
    """
    config, length = dataset.config, dataset.config.sequence_length
    name = type(dataset).__name__
    if config.order != "megatron":
        raise ConfigError(
            f"{name} counts epochs itself, which only order='megatron' supports, got order="
            f"{config.order!r}; take that order, or give num_samples instead"
        )
    num_tokens = int(dataset._get_num_tokens_per_epoch())
    num_epochs = int(dataset._get_num_epochs(num_tokens))
    extra = int(config.add_extra_token_to_sequence)
    sans_final = ((num_epochs - 1) * num_tokens - extra) // length
    is_separate = False
    if num_epochs > 1 and dataset.num_samples is not None:
        per_epoch = (num_tokens - extra) // length
        from_final = dataset.num_samples - sans_final
        if not 0 <= from_final <= per_epoch + 1:
            raise PlanError(
                f"the last of the epochs that {name}._get_num_epochs returns must be needed for "
                f"the {dataset.num_samples:,} samples requested and suffice, got {num_epochs} "
                f"epochs of {num_tokens:,} tokens; correct it, or leave num_samples out"
            )
        is_separate = from_final < int(SEPARATE_SHARE * per_epoch)
    generator = np.random.RandomState(config.random_seed)
    documents = build_document_index(dataset.indices, num_epochs, generator, is_separate)
    samples = helpers.build_sample_idx(
        np.asarray(dataset.dataset.sequence_lengths),
        documents,
        length,
        num_epochs,
        num_tokens,
        dataset._drop_last,
        bool(extra),
    )
    num_samples = len(samples) - 1
    num_first = sans_final if is_separate else num_samples
    return IndexArrays(documents, samples, build_shuffle_index(num_first, num_samples, generator))
