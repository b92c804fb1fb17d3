"""Samples of a run that a report is computed from: all of them, or evenly spread blocks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zindex.arrays import Int64Array
from zindex.inspection.answers.run_order import RunOrder
from zindex.maintenance.edits.order_sources import SampleParts

#: Runs up to this many samples are read in full.
MAX_OBSERVED = 1 << 16
# Longer runs are read in this many blocks of consecutive positions.
_NUM_BLOCKS = 64
# Positions read per call.
_READ_LENGTH = 1 << 14


class Observations(NamedTuple):
    """Samples at some positions of a run, ascending."""

    #: Number of positions of the whole run.
    num_positions: int
    #: Shape (samples,) each: position, and block of consecutive positions.
    positions: Int64Array
    blocks: Int64Array
    #: Shape (samples,) each: dataset, epoch, and token positions, padding included.
    datasets: Int64Array
    epochs: Int64Array
    lengths: Int64Array
    #: Document spans of the samples, including tokens that are only labels.
    parts: SampleParts

    @property
    def is_exact(self) -> bool:
        """Whether all positions of the run were read."""
        return len(self.positions) == self.num_positions

    @property
    def documents(self) -> Int64Array:
        """First document of each sample: shape (samples,)."""
        firsts = np.searchsorted(self.parts.owners, np.arange(len(self.positions)))
        return self.parts.documents[firsts]

    @property
    def num_parts(self) -> Int64Array:
        """Documents of each sample, counting each span: shape (samples,)."""
        return np.bincount(self.parts.owners, minlength=len(self.positions))

    @property
    def num_inputs(self) -> Int64Array:
        """Tokens of each sample, without padding and the last label: shape (samples,)."""
        sizes = self.parts.stops - self.parts.starts
        held = np.bincount(self.parts.owners, sizes, len(self.positions)).astype(np.int64)
        inputs: Int64Array = np.minimum(held, self.lengths)
        return inputs


def choose_positions(num_positions: int, max_observed: int) -> tuple[Int64Array, Int64Array]:
    """Return the positions to read, and the block of each.

    Parameters
    ----------
    num_positions
        Positions of the run.
    max_observed
        If there are more, half as many are read, in blocks that are evenly spread over the run.

    Returns
    -------
    positions, blocks
        Shape (samples,) each, int64, ascending.

    Examples
    --------
    >>> positions, blocks = choose_positions(10**9, 1 << 16)
    >>> len(positions), int(blocks[-1]), int(positions[-1])
    (32768, 63, 999999999)
    """
    if num_positions <= max_observed:
        return np.arange(num_positions), np.zeros(num_positions, np.int64)
    num_blocks = min(_NUM_BLOCKS, max(1, max_observed // 4))
    length = max(1, max_observed // 2 // num_blocks)
    starts = np.linspace(0, num_positions - length, num_blocks).astype(np.int64)
    positions = (starts[:, None] + np.arange(length)).reshape(-1)
    return positions, np.repeat(np.arange(num_blocks), length)


def observe(order: RunOrder, max_observed: int = MAX_OBSERVED) -> Observations:
    """Return the samples of a run, or of blocks of it if it is long.

    Parameters
    ----------
    order
        The run.
    max_observed
        See `choose_positions`.
    """
    positions, blocks = choose_positions(len(order), max_observed)
    lengths = np.array([source.sequence_length for source in order.sources])
    pieces = []
    for start in range(0, len(positions), _READ_LENGTH):
        found = order.read(positions[start : start + _READ_LENGTH])
        parts = found.parts._replace(owners=found.parts.owners + start)
        pieces.append((found.datasets, found.epochs, lengths[found.sources], parts))
    *columns, parts = zip(*pieces, strict=True)
    joined = SampleParts(*map(np.concatenate, zip(*parts, strict=True)))
    datasets, epochs, lengths = map(np.concatenate, columns)
    return Observations(len(order), positions, blocks, datasets, epochs, lengths, joined)


def join_observations(parts: Sequence[Observations]) -> Observations:
    """Return samples of runs of one dataset each as those of one run, one after the other.

    The samples of each get a dataset and blocks of their own.
    """
    if len(parts) == 1:
        return parts[0]
    moved, offset, block, start = [], 0, 0, 0
    for number, part in enumerate(parts):
        moved.append(
            part._replace(
                positions=part.positions + start,
                blocks=part.blocks + block,
                datasets=part.datasets + number,
                parts=part.parts._replace(owners=part.parts.owners + offset),
            )
        )
        offset, start = offset + len(part.positions), start + part.num_positions
        block += int(part.blocks[-1]) + 1
    names = ("positions", "blocks", "datasets", "epochs", "lengths")
    columns = {name: np.concatenate([getattr(part, name) for part in moved]) for name in names}
    spans = zip(*(part.parts for part in moved), strict=True)
    return Observations(start, **columns, parts=SampleParts(*map(np.concatenate, spans)))
