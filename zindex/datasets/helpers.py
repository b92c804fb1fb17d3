"""The functions of Megatron Core's compiled helpers, for code that calls them.

zindex's own datasets do not use them: ``zindex.indexing`` builds their indices.
"""

import logging
from functools import partial
from typing import Any

import numpy as np

from zindex.arrays import AnyArray, Float64Array, Int16Array, Int32Array, Int64Array
from zindex.errors import ConfigError, PlanError
from zindex.indexing.mapping_tasks import map_epochs, seed_order, seed_targets
from zindex.kernels.blend import blend_range
from zindex.kernels.mersenne64 import shuffle_rows64
from zindex.kernels.samples import fill_boundaries, gather_lengths
from zindex.kernels.sentence_mapping import ScanRule, block_rule, scan_sentences, sentence_rule

logger = logging.getLogger(__name__)

_INT32_MAX = np.iinfo(np.int32).max
_UINT32_MAX = np.iinfo(np.uint32).max


def build_sample_idx(
    sizes: AnyArray,
    document_indices: AnyArray,
    sequence_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool = True,
    add_extra_token_to_sequence: bool = True,
) -> AnyArray:
    """Return where samples of a stream of documents start, in int32 if that suffices.

    Parameters
    ----------
    sizes
        Shape (documents of the corpus,), tokens of each.
    document_indices
        Shape (documents of all epochs,): documents in stream order.
    sequence_length
        Tokens per sample.
    num_epochs, tokens_per_epoch
        Their product is the length of the stream in tokens.
    drop_last_partial_sequence
        Whether a last sample with fewer tokens is dropped.
    add_extra_token_to_sequence
        Whether samples overlap by one token.

    Returns
    -------
    sample_index
        Shape (samples + 1, 2), int32 or int64: row in ``document_indices``, and token in it.

    Raises
    ------
    PlanError
        If numbers are out of range.

    Notes
    -----
    Source: Megatron Core ``datasets/helpers.py``.
    """
    largest = max(len(document_indices), int(np.max(sizes, initial=0)))
    build = build_sample_idx_int32 if largest <= _INT32_MAX else build_sample_idx_int64
    return build(
        sizes,
        document_indices,
        sequence_length,
        num_epochs,
        tokens_per_epoch,
        drop_last_partial_sequence,
        int(add_extra_token_to_sequence),
    )


def _build_sample_idx(
    dtype: type[np.integer[Any]],
    sizes: AnyArray,
    document_idx: AnyArray,
    seq_length: int,
    num_epochs: int,
    tokens_per_epoch: int,
    drop_last_partial_sequence: bool = True,
    add_extra_token_to_sequence: int = 1,
) -> AnyArray:
    """Return the sample index in a dtype; parameters and errors as of `build_sample_idx`."""
    extra_token = add_extra_token_to_sequence
    num_tokens = num_epochs * tokens_per_epoch - extra_token
    if seq_length < 1 or num_tokens < 0 or not len(document_idx):
        raise PlanError(
            "a sample index needs a sequence length of at least 1 and documents that hold "
            f"tokens, got {seq_length}, {len(document_idx)} documents and "
            f"{num_tokens + extra_token} tokens"
        )
    # Megatron counts in float32 here, which affects the result.
    rounded_up = int(np.ceil(np.float32(num_tokens) / np.float32(seq_length)))
    num_samples = num_tokens // seq_length if drop_last_partial_sequence else rounded_up
    lengths = np.empty(len(document_idx), np.int32)
    documents = np.ascontiguousarray(document_idx, np.int32)
    gather_lengths(np.ascontiguousarray(sizes, np.int32), documents, 0, lengths)
    boundaries: AnyArray = np.empty((num_samples + 1, 2), dtype)
    filled = fill_boundaries(lengths, 0, 0, seq_length, extra_token, boundaries, 0, 0)
    # Samples beyond the documents end with the last document.
    boundaries[filled:] = len(lengths) - 1, int(lengths[-1]) - extra_token
    return boundaries


build_sample_idx_int32 = partial(_build_sample_idx, np.int32)
build_sample_idx_int64 = partial(_build_sample_idx, np.int64)


def build_blending_indices(
    dataset_index: Int16Array,
    dataset_sample_index: Int64Array,
    weights: Float64Array,
    num_datasets: int,
    size: int,
    verbose: bool,
) -> None:
    """Write the dataset and the sample that each position of a weighted blend draws.

    Parameters
    ----------
    dataset_index, dataset_sample_index
        Shape (at least ``size``,), int16 or int32, and int64 or int32; filled.
    weights
        Shape (at least ``num_datasets``,), float64, finite. Cost: 0.1 microseconds per position if
        each is in ``(0, 1]``, some microseconds otherwise.
    num_datasets, size
        How many datasets and positions there are.
    verbose
        Whether the resulting shares are logged.

    Raises
    ------
    PlanError
        If a shape, dtype or value is not as above.
    """
    shares = np.ascontiguousarray(weights, np.float64)[:num_datasets]
    counts = np.zeros(len(shares), np.int64)
    datasets, numbers = dataset_index[:size], dataset_sample_index[:size]
    if np.all((shares > 0) & (shares <= 1)):
        blend_range(shares, counts, 0, datasets, numbers)
    else:
        _blend_any(shares, counts, datasets, numbers)
    if verbose:
        logger.info("blended %d samples of %s, drawn %s", size, shares, counts / max(1, size))


def _blend_any(shares: AnyArray, counts: AnyArray, datasets: AnyArray, numbers: AnyArray) -> None:
    """Blend by weights outside (0, 1], position by position."""
    if not len(shares) or not np.all(np.isfinite(shares)):
        raise PlanError(f"weights must be finite numbers, one for each dataset, got {shares}")
    for position in range(len(datasets)):
        chosen = int(np.argmax(shares * max(position, 1) - counts))
        datasets[position], numbers[position] = chosen, counts[chosen]
        counts[chosen] += 1


def build_exhaustive_blending_indices(
    dataset_index: Int16Array,
    dataset_sample_index: Int64Array,
    sizes: Int64Array,
    num_datasets: int,
) -> None:
    """Write the draws of a blend that has each sample of each dataset once.

    Parameters
    ----------
    dataset_index, dataset_sample_index
        Shape (at least the sum of ``sizes``,), int16 or int32, and int64 or int32; filled.
    sizes
        Shape (at least ``num_datasets``,), int64: samples of each dataset, at least 1.
    num_datasets
        How many there are.

    Raises
    ------
    PlanError
        If a shape, dtype or value is not as above.
    """
    counts = np.ascontiguousarray(sizes, np.int64)[:num_datasets]
    total = int(counts.sum())
    drawn = np.zeros(len(counts), np.int64)
    blend_range(counts, drawn, 0, dataset_index[:total], dataset_sample_index[:total])


def build_mapping(
    docs_: Int64Array,
    sizes_: Int32Array,
    num_epochs: int,
    max_num_samples: int,
    max_seq_length: int,
    short_seq_prob: float,
    seed: int,
    verbose: bool,
    min_num_sent: int,
) -> AnyArray:
    """Return samples of whole sentences for BERT and T5, shuffled.

    Parameters
    ----------
    docs_
        Shape (documents + 1,), int64: first sentence of each document, and the end of the last.
    sizes_
        Shape (sentences of the corpus,), int32, tokens.
    num_epochs
        Maximal number of passes over the documents.
    max_num_samples
        Number of samples after which no further epoch starts; the last epoch is completed.
    max_seq_length
        Tokens of a sample, at least 2.
    short_seq_prob
        Share of samples with a shorter target, 0 to 1.
    seed
        Seed of the targets, an int32; the shuffle uses the next one.
    verbose
        Whether the number of samples is logged.
    min_num_sent
        Minimal number of sentences of a sample.

    Returns
    -------
    mapping
        Shape (samples, 3), uint32, or uint64 where there are more than ``2**32 - 1`` sentences:
        first sentence, sentence after the last one, and target in tokens. Empty if no document
        gives a sample, for any number of epochs.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Notes
    -----
    Law: equal to Megatron Core's, bit by bit.
    Source: Megatron Core ``datasets/helpers.cpp``, ``build_mapping``.
    """
    if max_seq_length < 2 or not 0 <= short_seq_prob <= 1:
        raise ConfigError(
            "a sentence mapping needs samples of at least 2 tokens and a share of short ones in "
            f"[0, 1], got {max_seq_length} and {short_seq_prob}"
        )
    rule = sentence_rule(max_seq_length, min_num_sent, short_seq_prob)
    return _map(docs_, sizes_, None, rule, seed, num_epochs, max_num_samples, verbose)


def build_blocks_mapping(
    docs_: Int64Array,
    sizes_: Int32Array,
    titles_sizes_: Int32Array,
    num_epochs: int,
    max_num_samples: int,
    max_seq_length: int,
    seed: int,
    verbose: bool,
    use_one_sent_blocks: bool,
) -> AnyArray:
    """Return blocks of whole sentences with room for their document's title, shuffled.

    Parameters
    ----------
    docs_, sizes_, num_epochs, max_num_samples, verbose
        As of `build_mapping`.
    titles_sizes_
        Shape (documents,), int32: tokens of each document's title.
    max_seq_length
        Tokens of a block and its title, at least 2.
    seed
        An int32; the shuffle uses the next one.
    use_one_sent_blocks
        Whether a block may be a single sentence.

    Returns
    -------
    mapping
        Shape (blocks, 4), uint32 or uint64: first sentence, sentence after the last one, document,
        and number of the block in its epoch.

    Raises
    ------
    ConfigError
        If a number is out of range, or titles are missing.

    Notes
    -----
    Law: equal to Megatron Core's, bit by bit.
    Source: Megatron Core ``datasets/helpers.cpp``, ``build_blocks_mapping``.
    """
    if max_seq_length < 2 or len(titles_sizes_) < len(docs_) - 1:
        raise ConfigError(
            "a mapping of blocks needs samples of at least 2 tokens and a title for each of the "
            f"{len(docs_) - 1} documents, got {max_seq_length} and {len(titles_sizes_)}"
        )
    rule = block_rule(max_seq_length, one_sentence_blocks=use_one_sent_blocks)
    return _map(docs_, sizes_, titles_sizes_, rule, seed, num_epochs, max_num_samples, verbose)


def _map(
    docs: AnyArray,
    sizes: AnyArray,
    titles: AnyArray | None,
    rule: ScanRule,
    seed: int,
    num_epochs: int,
    max_num_samples: int,
    verbose: bool,
) -> AnyArray:
    """Return the samples of as many epochs as needed, shuffled."""
    if not -(2**31) <= seed < 2**31 or max_num_samples < 0:
        raise ConfigError(
            "a sentence mapping needs a seed in [-2**31, 2**31) and a number of samples, got "
            f"{seed} and {max_num_samples}"
        )
    bounds = np.ascontiguousarray(docs, np.int64)
    first, last = (int(bounds[0]), int(bounds[-1])) if len(bounds) else (0, 0)
    if first < 0 or last > len(sizes) or np.any(np.diff(bounds) < 0):
        raise ConfigError(
            f"documents must be ascending runs of the {len(sizes)} sentences, got bounds from "
            f"{first} to {last}; pass the whole corpus's lengths"
        )
    lengths = np.ascontiguousarray(sizes[first:last], np.int32)
    dtype = np.uint32 if len(sizes) <= _UINT32_MAX else np.uint64
    memory = seed_targets(seed)
    given = None if titles is None else np.ascontiguousarray(titles, np.int32)

    def scan(epoch: int) -> AnyArray:
        samples, _ = scan_sentences(bounds, lengths, rule, memory=memory, titles=given, dtype=dtype)
        if given is None:
            return samples
        return np.column_stack([samples, np.arange(len(samples), dtype=dtype)])

    epochs = map_epochs(scan, rule, num_epochs=num_epochs, num_wanted=max_num_samples)
    columns = 3 if titles is None else 4
    mapping: AnyArray = np.concatenate(epochs) if epochs else np.empty((0, columns), dtype)
    shuffle_rows64(mapping, seed_order(seed))
    if verbose:
        what = "samples" if titles is None else "blocks"
        logger.info("mapped sentences to %d %s", len(mapping), what)
    return mapping
