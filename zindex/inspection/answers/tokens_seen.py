"""Count the distinct tokens that one of two orders has seen, and the other has not."""

from typing import NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.inspection.answers.run_order import RunOrder, Samples
from zindex.plan.intervals import count, merge

# Positions that are read at a time, and samples that are drawn for an estimate.
_BLOCK = 1 << 12
_NUM_DRAWN = 64


class Seen(NamedTuple):
    """The first samples of an order."""

    order: RunOrder
    #: Number of samples, at most all.
    num_samples: int
    #: For each dataset of the order, a number that equal datasets of both orders share.
    dataset_ids: Int64Array


def count_tokens_only(first: Seen, second: Seen) -> tuple[int, int]:
    """Return the distinct tokens that only the first has seen, and those of only the second.

    Tokens are equal if they are at the same place of the same document. The label of a sample's
    last token is seen, too.
    """
    spans = [_read_spans(seen) for seen in (first, second)]
    both = np.concatenate(spans, axis=1)
    # Documents on one line of tokens, apart from each other.
    _, documents = np.unique(both[:2], axis=1, return_inverse=True)
    base = documents.reshape(-1) * (int(both[3].max(initial=0)) + 1)
    intervals = np.stack([base + both[2], base + both[3]], axis=1)
    cut = spans[0].shape[1]
    total = count(merge(intervals))
    return total - count(merge(intervals[cut:])), total - count(merge(intervals[:cut]))


def _read_spans(seen: Seen) -> Int64Array:
    """Return dataset, document, start and stop of all spans: shape (4, spans)."""
    found = [np.empty((4, 0), np.int64)]
    for start in range(0, seen.num_samples, _BLOCK):
        positions = np.arange(start, min(start + _BLOCK, seen.num_samples))
        samples = seen.order.read(positions)
        datasets = seen.dataset_ids[samples.datasets[samples.parts.owners]]
        found.append(np.stack([datasets, *samples.parts[1:]]))
    return np.concatenate(found, axis=1)


def estimate_tokens_only(first: Seen, second: Seen) -> int:
    """Return an estimate of the distinct tokens that only the first has seen.

    Draws some samples of the first, and finds all others that have their tokens, in both orders: a
    token that the first has seen twice is drawn twice as often.
    """
    if not first.num_samples:
        return 0
    edges = np.linspace(0, first.num_samples, min(_NUM_DRAWN, first.num_samples) + 1).astype(int)
    drawn = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    ids = second.dataset_ids.tolist()
    samples, total = first.order.read(drawn), 0.0
    for owner, *part in zip(*(column.tolist() for column in samples.parts), strict=True):
        dataset = int(samples.datasets[owner])
        own = _count_times(first, dataset, *part)
        known = int(first.dataset_ids[dataset])
        other = _count_times(second, ids.index(known), *part) if known in ids else 0 * own
        total += float((1 / own[other == 0]).sum())
    return round(total * first.num_samples / len(drawn))


def _count_times(seen: Seen, dataset: int, document: int, start: int, stop: int) -> Int64Array:
    """Return how often each token of a span of a document was seen: shape (stop - start,)."""
    found: Samples = seen.order.find(dataset, document, start, stop)
    is_seen = found.positions[found.parts.owners] < seen.num_samples
    change = np.zeros(stop - start + 1, np.int64)
    np.add.at(change, found.parts.starts[is_seen] - start, 1)
    np.add.at(change, found.parts.stops[is_seen] - start, -1)
    return np.cumsum(change)[:-1]
