"""Read the sentences of many samples of masked datasets together."""

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import VerificationError
from zindex.kernels.masked_rows import SampleTexts
from zindex.samples.batch import BatchRequest
from zindex.samples.texts import DocumentTokens, IndexedText, Parts, choose_samples, read_tokens


def read_sentences(wanted: BatchRequest) -> SampleTexts:
    """Return the sentences of samples.

    Raises
    ------
    VerificationError
        If an index names sentences that do not exist.

    Notes
    -----
    Rounds: shuffle, samples, bounds of sentences, tokens. The draws of a sample are keyed by its
    position in its dataset, so neither the batch nor the order of reads matters.
    """
    chosen = choose_samples(wanted)
    numbers = chosen.samples
    for member, rows in chosen.groups:
        numbers[rows] %= len(member.arrays.sentence_index)  # equal epochs are stored once
    samples = chosen.read("sentence_index", numbers, numbers + 1)
    starts, stops, targets = np.ascontiguousarray(samples.T)
    ordered = wanted.positions[chosen.rows]
    for member, rows in chosen.groups:
        _check_samples(member, ordered[rows], samples[rows])
    counts = stops - starts
    firsts = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    sentences = np.repeat(starts - firsts[:-1], counts) + np.arange(firsts[-1])
    parts = Parts(chosen, sentences, counts)
    lengths = parts.bounds.lengths
    tokens = np.empty(int(lengths.sum()), np.int64)
    if any(isinstance(documents.tokens, DocumentTokens) for documents, _ in parts.groups):
        places = np.cumsum(lengths) - lengths
        read_tokens(parts.groups, parts.bounds.starts, lengths, tokens, places)
    else:
        # The tokens of consecutive sentences are consecutive.
        groups = [(member.documents, rows) for member, rows in chosen.groups]
        sizes = np.add.reduceat(lengths, parts.firsts)
        first_tokens = parts.bounds.starts[parts.firsts]
        read_tokens(groups, first_tokens, sizes, tokens, np.cumsum(sizes) - sizes)
    seeds = (ordered + int(wanted.first.config.random_seed) % 2**32) % 2**32
    return SampleTexts(chosen.rows, tokens, lengths, firsts, targets, seeds)


def _check_samples(member: IndexedText, positions: Int64Array, samples: Int64Array) -> None:
    """Check that samples consist of sentences of their dataset."""
    starts, stops, targets = samples.T
    is_wrong = (starts >= stops) | (stops > member.num_documents) | (targets < 1)
    if is_wrong.any():
        i = int(np.argmax(is_wrong))
        raise VerificationError(
            f"sample {positions[i]} of {member.where} must be a run of its "
            f"{member.num_documents} sentences and a length, its index gives "
            f"{samples[i].tolist()}; restore the data if they changed, or remove the index to "
            "build it again"
        )
