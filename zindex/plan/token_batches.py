"""Which samples share a batch, if batches have a budget of tokens: arithmetic on lengths.

Samples that are packed go to the batch with the fewest tokens, the longest first, so that batches
have the same tokens and the same mix of lengths. If that takes a hundredth more batches than there
could be, and if samples are padded, batches have the smallest capacity that needs no more of them.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np

from zindex.arrays import Int64Array, IntegerArray
from zindex.errors import PlanError, check_choice, check_whole
from zindex.kernels.packing import fit_parts
from zindex.kernels.token_batches import cut_padded, fit_evenly

#: How the samples of a batch are laid out: one after the other, or padded to common lengths.
Layout = Literal["packed", "padded"]

# Samples measured at a time.
_BLOCK = 1 << 20
# One batch more for so many may be what equal tokens need.
_LEAST_SHARE = 100
# Halvings of the range of capacities.
_NUM_HALVINGS = 14

# Batches of a capacity: their number, and the batch of each sample.
_Fit = tuple[int, IntegerArray]


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The most tokens of a batch of one rank, in place of a number of samples.

    Examples
    --------
    >>> TokenBudget(16_384, layout="padded").max_tokens
    16384
    """

    #: Tokens of a batch, > 0. Padding counts, in the tensor of token ids.
    max_tokens: int
    #: ``"packed"``: samples one after the other, with ``cu_seqlens``. ``"padded"``: rows of one
    #: length; samples of similar lengths then share a batch.
    layout: Layout = "packed"
    #: Samples of a batch, > 0; None for no limit.
    max_samples: int | None = None
    #: Samples, consecutive in the shuffled order of a pass, that are divided into batches together.
    #: More mean less padding, fewer mean batches that depend less on lengths.
    window: int = 1 << 14

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_samples", "window"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_whole(name, value, 1))
        check_choice("layout", self.layout, get_args(Layout))


@dataclass(frozen=True, slots=True, eq=False)
class SampleSizes:
    """Tokens of every sample, packed and padded.

    A batch of n samples that are padded to the largest width along each axis has n times the sum
    over ``terms`` of the products of these widths as its tokens.

    Examples
    --------
    >>> sizes = SampleSizes.of_lengths(np.array([3, 5]))
    >>> sizes.tokens.tolist(), sizes.padded.tolist()
    ([3, 5], [3, 5])
    """

    #: Shape (samples,), integers: tokens without padding.
    tokens: IntegerArray
    #: Shape (samples, axes), integers: length along each axis that batches pad.
    widths: IntegerArray
    #: Shape (terms, 2), int64: the axes of each tensor of token ids, -1 for none.
    terms: Int64Array
    #: Shape (samples,), integers: tokens as they are stored; packing may repeat prompts.
    stored: IntegerArray

    @classmethod
    def of_lengths(cls, lengths: IntegerArray) -> "SampleSizes":
        """Return the sizes of samples with one sequence each."""
        tokens = np.asarray(lengths)
        return cls(tokens, tokens[:, None], np.array([[0, -1]]), tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, samples: Int64Array) -> "SampleSizes":
        """Return the sizes of some samples."""
        arrays = (self.tokens, self.widths, self.stored)
        tokens, widths, stored = (x[samples].astype(np.int64, copy=False) for x in arrays)
        return SampleSizes(tokens, widths, self.terms, stored)

    def blocks(self) -> Iterator["SampleSizes"]:
        """Yield the sizes of consecutive samples."""
        for start in range(0, len(self), _BLOCK):
            yield self.take(np.arange(start, min(start + _BLOCK, len(self))))

    def digest(self) -> str:
        """Return the SHA-256, in hex, of all sizes."""
        digest = hashlib.sha256(np.ascontiguousarray(self.terms, np.int64).data)
        for block in self.blocks():
            digest.update(block.tokens.data)
            digest.update(np.ascontiguousarray(block.widths).data)
        return digest.hexdigest()

    @property
    def padded(self) -> Int64Array:
        """Tokens of each sample in a batch of its own, shape (samples,)."""
        widths = np.column_stack((self.widths, np.ones(len(self), np.int64)))
        found: Int64Array = widths[:, self.terms].prod(2).sum(1)
        return found

    def merge(self, starts: Int64Array) -> "SampleSizes":
        """Return the sizes of runs of consecutive samples: sums of tokens, and largest widths.

        Parameters
        ----------
        starts
            Shape (runs,), int64: first sample of each.
        """
        return SampleSizes(
            np.add.reduceat(self.tokens, starts),
            np.maximum.reduceat(self.widths, starts),
            self.terms,
            np.add.reduceat(self.stored, starts),
        )

    def measure(self, layout: Layout) -> Int64Array:
        """Return the tokens of each sample in a batch of its own, at least 1."""
        return np.maximum(self.tokens if layout == "packed" else self.padded, 1)


def divide_window(sizes: SampleSizes, budget: TokenBudget) -> tuple[Int64Array, Int64Array]:
    """Divide samples into batches of nearly equal tokens.

    Parameters
    ----------
    sizes
        Of the samples, none of which exceeds the budget.
    budget
        The budget; its window is not used.

    Returns
    -------
    samples
        Shape (samples,), int64: numbers of the samples, batch after batch, ascending in each.
    stops
        Shape (batches,), int64: the end of each batch in ``samples``. Padded batches are in the
        order of their longest samples.

    Notes
    -----
    Law: no batch exceeds the budget or ``max_samples``, and every sample is in one batch. A padded
    batch of k samples that the budget ends has more than ``k / (k + 1)`` of the capacity. Packed
    batches are as few as those of best-fit decreasing, or a hundredth more.
    Source: R. L. Graham's rule for equal sums, see `zindex.kernels.token_batches.fit_evenly`; and
    MULTIFIT of Coffman, Garey and Johnson, "An application of bin-packing to multiprocessor
    scheduling" (1978), with best-fit decreasing, or with batches of the longest samples.

    Examples
    --------
    >>> sizes = SampleSizes.of_lengths(np.array([2, 7, 3, 4, 6, 4]))
    >>> for layout in ("packed", "padded"):
    ...     samples, stops = divide_window(sizes, TokenBudget(14, layout))
    ...     print(samples.tolist(), stops.tolist())
    [0, 1, 5, 2, 3, 4] [3, 6]
    [1, 3, 4, 0, 2, 5] [1, 3, 6]
    """
    tokens = sizes.measure(budget.layout)
    # Of equal samples, the first ones first.
    decreasing = np.argsort(-tokens, kind="stable")
    most = budget.max_samples or len(tokens)
    least = int(tokens.max(initial=1))
    chosen = sizes.take(decreasing)
    if budget.layout == "packed":
        count, found = _pack(tokens[decreasing], budget.max_tokens, most)
    else:
        count, found = _fit_tightly(
            lambda capacity: _fit_padded(chosen, capacity, most), least, budget.max_tokens
        )
    batch_of = np.empty(len(tokens), np.int64)
    batch_of[decreasing] = found
    return np.argsort(batch_of, kind="stable"), np.cumsum(np.bincount(batch_of, minlength=count))


def _pack(tokens: Int64Array, capacity: int, max_samples: int) -> _Fit:
    """Return batches of equal tokens, given those of the samples, decreasing."""
    counts, least = np.bincount(tokens), int(tokens.max(initial=1))
    fit = partial(_fit_packed, counts, max_samples=max_samples)
    count, _ = fit(capacity)
    batch_of = np.empty(len(tokens), np.int32)
    most = count // _LEAST_SHARE
    for more in sorted({0, min(1, most), most}):
        if fit_evenly(tokens, count + more, capacity, max_samples, batch_of):
            return count + more, batch_of
    return _fit_tightly(fit, max(least, -(-int(tokens.sum()) // count)), capacity)


def _fit_tightly(fit: Callable[[int], _Fit], least: int, most: int) -> _Fit:
    """Return the fit with the smallest capacity that needs no more batches than the largest."""
    best = fit(most)
    for _ in range(_NUM_HALVINGS):
        if least >= most:
            break
        middle = (least + most) // 2
        found = fit(middle)
        if found[0] <= best[0]:
            best, most = found, middle
        else:
            least = middle + 1
    return best


def _fit_packed(counts: Int64Array, capacity: int, max_samples: int) -> _Fit:
    """Return the batches of best-fit decreasing, given the samples of each length."""
    room = np.zeros(capacity + 1, np.int64)
    room[: counts.size] = counts
    size = int(counts.sum())
    batch_of, samples_of = np.empty(size, np.int32), np.zeros(size, np.int32)
    return fit_parts(room, max_samples, batch_of, samples_of), batch_of


def _fit_padded(sizes: SampleSizes, capacity: int, max_samples: int) -> _Fit:
    """Return the batches of consecutive samples."""
    stops = np.empty(len(sizes), np.int64)
    widths = sizes.widths.astype(np.int64, copy=False)
    count = cut_padded(widths, sizes.terms, capacity, max_samples, stops)
    return count, np.repeat(np.arange(count), np.diff(stops[:count], prepend=0))


def check_sizes(sizes: SampleSizes, budget: TokenBudget, what: str) -> None:
    """Check that every sample fits a batch of its own.

    Parameters
    ----------
    sizes, budget
        The samples and the budget.
    what
        Names the dataset in messages.

    Raises
    ------
    PlanError
        If one does not.
    """
    longest = num_long = 0
    for block in sizes.blocks():
        tokens = block.measure(budget.layout)
        longest = max(longest, int(tokens.max()))
        num_long += int(np.count_nonzero(tokens > budget.max_tokens))
    if num_long:
        raise PlanError(
            f"a batch of {budget.max_tokens:,} tokens must hold every sample of {what}, got "
            f"{num_long:,} that are longer, up to {longest:,} tokens; raise max_tokens to "
            f"{longest:,}, or limit the samples: window_size of windows within documents, "
            "--max-length, --max-prompt and --max-answer of zindex tokenize for records"
        )
