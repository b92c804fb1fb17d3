"""The sentences of many samples of masked datasets, in as few rounds of reading as one takes."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.batch_texts import choose_samples, read_round
from zindex.datasets.batching.gpt_sources import (
    DocumentGroups,
    Extents,
    is_known,
    read_tokens,
)
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.errors import VerificationError
from zindex.kernels.masked_rows import SampleTexts
from zindex.store.reader import Spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.masked_dataset import MaskedWordPieceDataset

Int64Array = npt.NDArray[np.int64]


def read_sentences(
    datasets: "Sequence[MaskedWordPieceDataset]", which: Int64Array, positions: Int64Array
) -> SampleTexts:
    """Return the sentences of samples.

    Parameters
    ----------
    datasets
        Datasets of one configuration.
    which, positions
        Shape (samples,): the dataset of each sample, and its position there from the start.

    Raises
    ------
    VerificationError
        If an index asks for sentences that there are not.

    Notes
    -----
    Rounds: shuffle, samples, bounds of sentences, tokens. The draws of a sample are keyed by its
    position in its dataset, so neither the batch nor the order of reads matters.
    """
    chosen = choose_samples(datasets, which, positions)
    numbers = chosen.samples
    for index, cut in zip(chosen.indices, chosen.cuts, strict=True):
        numbers[cut] %= len(index.sentence_index)  # epochs that are alike are stored once
    samples = chosen.read("sentence_index", numbers, numbers + 1)
    starts, stops, targets = np.ascontiguousarray(samples.T)
    ordered = positions[chosen.rows]
    for member, cut in zip(chosen.members, chosen.cuts, strict=True):
        _check_samples(member, ordered[cut], samples[cut])
    groups = [
        (member.dataset, cut) for member, cut in zip(chosen.members, chosen.cuts, strict=True)
    ]
    firsts = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(stops - starts, out=firsts[1:])
    seed = int(datasets[0].config.random_seed) % 2**32
    seeds = (ordered + seed) % 2**32
    if all(is_known(dataset) for dataset, _ in groups):
        tokens, lengths = _read_known(groups, starts, stops, firsts)
    else:
        tokens, lengths = _read_one_by_one(groups, starts, stops)
    return SampleTexts(chosen.rows, tokens, lengths, firsts, targets, seeds)


def _check_samples(
    member: "MaskedWordPieceDataset", positions: Int64Array, samples: Int64Array
) -> None:
    """Check that samples are made of sentences of their dataset."""
    starts, stops, targets = samples.T
    is_wrong = (starts >= stops) | (stops > len(member.dataset)) | (targets < 1)
    if is_wrong.any():
        i = int(np.argmax(is_wrong))
        raise VerificationError(
            f"sample {positions[i]} of {member._where} must be a run of its "
            f"{len(member.dataset)} sentences and a length, its index gives {samples[i].tolist()}; "
            "restore the data if they changed, or remove the index to build it again"
        )


def _read_known(
    groups: DocumentGroups, starts: Int64Array, stops: Int64Array, firsts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the tokens of runs of sentences, and the length of each sentence."""
    lengths = np.empty(int(firsts[-1]), np.int64)
    begins = np.empty(len(starts), np.int64)
    stored = []
    for dataset, cut in groups:
        if isinstance(dataset, IndexedDataset):
            first, last = int(firsts[cut.start]), int(firsts[cut.stop])
            shifts = np.repeat(starts[cut] - firsts[cut], stops[cut] - starts[cut])
            sentences = shifts + np.arange(first, last)
            lengths[first:last] = dataset.index.sequence_lengths[sentences]
            begins[cut] = dataset.index.sequence_pointers[starts[cut]] // dataset.index.dtype_size
        else:
            stored.append((dataset, cut))
    if stored:
        bounds = read_round(
            Spans(dataset.offsets, starts[cut], stops[cut] + 1) for dataset, cut in stored
        )
        done = 0
        for _, cut in stored:
            first, last = int(firsts[cut.start]), int(firsts[cut.stop])
            count = last - first + cut.stop - cut.start
            own = bounds[done : done + count]
            done += count
            # A run of sentences has one bound more than sentences.
            heads = firsts[cut] - first + np.arange(cut.stop - cut.start)
            begins[cut] = own[heads]
            lengths[first:last] = np.delete(np.diff(own), heads[1:] - 1)
    before = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=before[1:])
    places = before[firsts[:-1]]
    sizes = before[firsts[1:]] - places
    tokens = np.empty(int(before[-1]), np.int64)
    extents = Extents(begins, sizes)
    read_tokens(groups, starts, extents, np.zeros_like(begins), sizes, tokens, places)
    return tokens, lengths


def _read_one_by_one(
    groups: DocumentGroups, starts: Int64Array, stops: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the same of datasets of which nothing is known but that they give sentences."""
    sentences: list[npt.NDArray[Any]] = [
        np.asarray(dataset[sentence])
        for dataset, cut in groups
        for start, stop in zip(starts[cut].tolist(), stops[cut].tolist(), strict=True)
        for sentence in range(start, stop)
    ]
    return np.concatenate(sentences, dtype=np.int64), np.array([*map(len, sentences)], np.int64)
