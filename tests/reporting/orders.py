"""Samples of made-up orders, one document each."""

import numpy as np

from zindex.arrays import Int64Array
from zindex.maintenance.edits.order_sources import SampleParts
from zindex.reporting.observations import Observations


def make_order(datasets: Int64Array, documents: Int64Array) -> Observations:
    """Return samples of given datasets and documents, in this order."""
    size, zeros = len(datasets), np.zeros(len(datasets), np.int64)
    parts = SampleParts(np.arange(size), documents, zeros, zeros + 4)
    return Observations(size, np.arange(size), zeros, datasets, zeros, zeros + 4, parts)


def draw_order(
    rng: np.random.Generator, size: int, num_datasets: int, num_documents: int
) -> Observations:
    """Return the order of an ideal shuffle."""
    shares = rng.dirichlet(np.ones(num_datasets))
    datasets = rng.choice(num_datasets, size, p=shares)
    return make_order(datasets, rng.integers(0, num_documents, size))
