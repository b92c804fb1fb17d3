"""Check that Megatron Core's ``.npy`` caches are those of a plan, by computing parts of them again.

Each check is of shapes and dtypes, and of values at positions from the first to the last.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from zindex.arrays import AnyArray, DTypeLike, Int32Array, Int64Array
from zindex.errors import VerificationError
from zindex.indexing.index_arrays import IndexArrays
from zindex.indexing.mapping_tasks import SentenceSource, seed_order
from zindex.indexing.sentence_mapping import compute_mapping
from zindex.kernels.mersenne64 import next_words64
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.index_plan import IndexPlan
from zindex.plan.sentence_mapping import MappingPlan

# Consecutive samples, and blocks of them, whose values are computed again.
_BLOCK_LENGTH, _NUM_BLOCKS = 1024, 16
# Rows at the end of a shuffle that are drawn again.
_NUM_DRAWS = 1024
# Errors of datasets that are computed at a time, and draws that are counted at a time.
_MAX_ERRORS, _MAX_COUNTED = 1 << 20, 1 << 24
# Samples of a mapping up to which all are computed again.
_FEW_SAMPLES = 1 << 16


def check_index(plan: IndexPlan, arrays: IndexArrays, lengths: Int32Array) -> None:
    """Check shapes and dtypes of a cache, and compute parts of it again.

    Parameters
    ----------
    plan
        What the index must be, in Megatron's order.
    arrays
        The cache.
    lengths
        Shape (plan.num_documents,), int32, tokens of the split's documents.

    Raises
    ------
    VerificationError
        If the cache is of another plan, or of other data.

    Notes
    -----
    Computed again are the documents at the end of the shuffle, and the boundaries of 16 runs of
    1,024 samples; the order of the samples is only checked to be possible. Cost: some milliseconds.
    """
    layouts = (plan.document_layout, plan.sample_layout, plan.shuffle_layout)
    for (name, array), layout in zip(arrays._asdict().items(), layouts, strict=True):
        _check_array(name, array, layout.shape, layout.dtype)
    _check_documents(plan, np.asarray(arrays.document_index))
    last = np.asarray(arrays.sample_index[plan.num_full_samples])
    rest = _read_documents(plan, arrays, max(0, int(last[0])), plan.num_rows)
    num_left = int(lengths[rest].sum(dtype=np.int64)) - int(last[1])
    total = plan.epochs.num_epochs * plan.epochs.tokens_per_epoch
    wanted = total - plan.num_full_samples * plan.sequence_length
    if num_left != wanted:
        raise mismatch(f"{wanted} tokens after its last full sample", num_left)
    if plan.num_samples > plan.num_full_samples:
        end = [plan.num_rows - 1, int(lengths[rest[-1]]) - plan.extra_token]
        if np.asarray(arrays.sample_index[plan.num_samples]).tolist() != end:
            raise mismatch(f"{end} as its last boundary", arrays.sample_index[-1])
    for start, stop in _blocks(plan.num_full_samples):
        _check_block(plan, arrays, lengths, start, stop)


def _check_documents(plan: IndexPlan, documents: AnyArray) -> None:
    """Draw the last documents of the first shuffle again."""
    epochs, num_documents = plan.epochs, plan.num_documents
    num_rows = plan.num_rows - num_documents * epochs.separate_final_epoch
    generator = np.random.RandomState(plan.seed)
    draws = (generator.randint(row + 1) for row in range(num_rows - 1, 0, -1))
    for row, place in _unshuffle(num_rows, draws):
        document = plan.start + place % num_documents
        if documents[row] != document:
            raise mismatch(f"document {document} in row {row}", documents[row])


def _unshuffle(num_rows: int, draws: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the last rows of a shuffle, from the end, with the places that they had before it."""
    moved = dict[int, int]()
    rows = range(num_rows - 1, max(0, num_rows - 1 - _NUM_DRAWS), -1)
    for row, draw in zip(rows, draws, strict=False):
        place = moved.get(draw, draw)
        moved[draw] = moved.get(row, row)
        yield row, place


def _read_documents(plan: IndexPlan, arrays: IndexArrays, start: int, stop: int) -> AnyArray:
    """Return rows of the document index, as documents of the split from 0."""
    documents = np.asarray(arrays.document_index[start:stop]) - plan.start
    if not ((documents >= 0) & (documents < plan.num_documents)).all():
        raise mismatch(f"documents of the split in rows [{start}, {stop})", documents + plan.start)
    return documents


def _blocks(num_samples: int, length: int = _BLOCK_LENGTH) -> Iterator[tuple[int, int]]:
    """Yield spans of samples from the first to the last."""
    last = max(0, num_samples - length)
    for start in np.unique(np.linspace(0, last, _NUM_BLOCKS).astype(np.int64)).tolist():
        yield start, min(start + length, num_samples)


def _check_array(name: str, array: AnyArray, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Check the shape and the dtype of an array."""
    if array.shape != shape or array.dtype != np.dtype(dtype):
        wanted = f"{name} of {np.dtype(dtype)} and shape {shape}"
        raise mismatch(wanted, f"{array.dtype} and shape {array.shape}")


def _check_block(
    plan: IndexPlan, arrays: IndexArrays, lengths: Int32Array, start: int, stop: int
) -> None:
    """Check the boundaries of consecutive samples, and the numbers of as many samples."""
    where = f"samples [{start}, {stop})"
    bounds: Int64Array = np.asarray(arrays.sample_index[start : stop + 1], np.int64)
    rows, offsets = bounds.T
    if start == 0 and bounds[0].any():
        raise mismatch("[0, 0] as its first boundary", bounds[0])
    if (np.diff(rows) < 0).any() or rows[0] < 0 or rows[-1] >= plan.num_rows:
        raise mismatch(f"ascending rows for {where}", rows)
    parts = lengths[_read_documents(plan, arrays, rows[0], rows[-1] + 1)].astype(np.int64)
    starts = np.cumsum(parts) - parts
    tokens = starts[rows - rows[0]] + offsets
    steps = np.arange(len(tokens)) * plan.sequence_length
    if not np.array_equal(tokens - tokens[0], steps):
        raise mismatch(f"{plan.sequence_length} tokens in each of the {where}", np.diff(tokens))
    room = parts[rows - rows[0]] - offsets
    # Without an extra token, a boundary between documents belongs to the first of them.
    is_placed = room > 0 if plan.extra_token else offsets > 0
    is_placed[: start == 0] = True
    if not (is_placed & (room >= 0) & (offsets >= 0)).all():
        raise mismatch(f"boundaries within documents for {where}", offsets)
    mixed = plan.num_mixed_samples
    numbers = np.asarray(arrays.shuffle_index[start:stop], np.int64)
    is_first = np.arange(start, stop) < mixed
    is_known = np.where(is_first, numbers < mixed, numbers >= mixed) & (numbers < plan.num_samples)
    if not is_known.all() or (numbers < 0).any() or len(np.unique(numbers)) < len(numbers):
        raise mismatch(f"different samples at positions [{start}, {stop})", numbers)


def check_blend(plan: BlendPlan, datasets: AnyArray, samples: AnyArray) -> Int64Array:
    """Check the cache of a blend, and return the samples that it draws of each dataset.

    Parameters
    ----------
    plan
        What the blend must be, in Megatron's order.
    datasets, samples
        The cache: ``dataset_index`` and ``dataset_sample_index``.

    Returns
    -------
    counts
        Shape (datasets,), int64.

    Raises
    ------
    VerificationError
        If the cache is of another plan.

    Notes
    -----
    Computed again are the draws of 16 runs of up to 1,024 positions, from the draws before them.
    Cost: one pass over ``datasets``.
    """
    num_samples, num_datasets = plan.num_samples, plan.num_datasets
    _check_array("dataset_index", datasets, (num_samples,), np.int16)
    _check_array("dataset_sample_index", samples, (num_samples,), np.int64)
    counts, place = np.zeros(num_datasets, np.int64), 0
    length = max(1, min(_BLOCK_LENGTH, _MAX_ERRORS // num_datasets))
    for start, stop in _blocks(num_samples, length):
        _count_draws(datasets[place:start], counts)
        drawn = np.asarray(datasets[start:stop], np.int64)
        wanted, before = _draw(plan, counts, start, drawn)
        if not np.array_equal(drawn, wanted):
            raise mismatch(f"datasets {wanted} at positions [{start}, {stop})", drawn)
        if not np.array_equal(samples[start:stop], before):
            raise mismatch(f"samples {before} at positions [{start}, {stop})", samples[start:stop])
        place = start
    _count_draws(datasets[place:], counts)
    return counts


def _count_draws(datasets: AnyArray, counts: Int64Array) -> None:
    """Add draws to the counts."""
    for start in range(0, len(datasets), _MAX_COUNTED):
        part = np.asarray(datasets[start : start + _MAX_COUNTED])
        if not 0 <= part.min() <= part.max() < len(counts):
            raise mismatch(f"datasets below {len(counts)}", f"{part.min()} and {part.max()}")
        counts += np.bincount(part, minlength=len(counts))


def _draw(
    plan: BlendPlan, counts: Int64Array, start: int, drawn: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the dataset that each position must draw after the draws before it, and its sample."""
    rows = np.arange(len(drawn))
    is_drawn = np.zeros((len(drawn), plan.num_datasets), np.int64)
    is_drawn[rows, np.clip(drawn, 0, plan.num_datasets - 1)] = 1
    before = counts + np.cumsum(is_drawn, axis=0) - is_drawn
    # Two roundings, as in the blend.
    errors = plan.weights * np.maximum(start + rows, 1)[:, None].astype(np.float64)
    errors -= before
    if plan.sizes is not None:
        errors[before >= plan.sizes] = -np.inf
    wanted = errors.argmax(axis=1)
    return wanted, before[rows, wanted]


def check_mapping(plan: MappingPlan, rows: AnyArray, source: SentenceSource) -> None:
    """Check the cache of a sentence mapping.

    Parameters
    ----------
    plan
        What the mapping must be, in Megatron's order.
    rows
        The cache: ``sample_index``.
    source
        The sentences of the dataset.

    Raises
    ------
    VerificationError
        If the cache is of another plan, or of other data.

    Notes
    -----
    A mapping of up to 65,536 samples is computed again. Of a larger one, 16 runs of 1,024 samples
    must end where the sentences fill their targets, and the samples at the end of the shuffle must
    have been in the order of the documents before it. Cost: one pass over the sentences.
    """
    least = max(1, plan.num_requested or 1)
    if rows.ndim != 2 or rows.shape[0] < least:
        raise mismatch(f"at least {least} samples of 3 numbers", f"shape {rows.shape}")
    _check_array("sample_index", rows, (len(rows), 3), plan.row_dtype)
    bounds = source.bounds(plan.start, plan.stop)
    lengths = source.sentences.lengths(plan.first_sentence, plan.stop_sentence)
    if len(rows) <= _FEW_SAMPLES:
        wanted = compute_mapping(plan, bounds, lengths)
        if not np.array_equal(rows, wanted):
            raise mismatch(f"samples {wanted[:3].tolist()}...", rows[:3].tolist())
        return
    totals = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    for start, stop in _blocks(len(rows)):
        _check_samples(plan, np.asarray(rows[start:stop], np.int64), bounds, totals)
    words = np.empty(_NUM_DRAWS, np.uint64)
    next_words64(seed_order(plan.seed), words)
    draws = (int(word) % (len(rows) - i) for i, word in enumerate(words))
    order = sorted((place, int(rows[row, 0])) for row, place in _unshuffle(len(rows), draws))
    falls = int((np.diff([sentence for _, sentence in order]) < 0).sum())
    if falls > _NUM_DRAWS // 4:  # one for each epoch; in another order, every second one
        raise mismatch(f"the shuffle of seed {plan.seed}", f"another order of {len(rows)} samples")


def _check_samples(
    plan: MappingPlan, rows: Int64Array, bounds: Int64Array, totals: Int64Array
) -> None:
    """Check that samples end where the sentences of a document fill their targets."""
    rule, base = plan.rule, plan.first_sentence
    first, stop, target = rows.T
    shortest = 2 if rule.short_ratio else rule.target_length
    is_inside = (bounds[0] <= first) & (first < stop) & (stop <= bounds[-1])
    if not is_inside.all() or target.min() < shortest or target.max() > rule.target_length:
        raise mismatch(f"sentences of the split and targets up to {rule.target_length}", rows)
    document = np.searchsorted(bounds, first, side="right")
    last = bounds[document]
    # The sentence that fills the target, with enough before and after it, or the last one.
    filled = np.searchsorted(totals, totals[first - base] + target) + base
    filled = np.maximum(filled, first + max(1, rule.min_sentences))
    wanted = np.where(filled <= last - rule.min_left, filled, last)
    if not np.array_equal(stop, wanted):
        raise mismatch(f"samples that stop at sentences {wanted}", stop)


def mismatch(wanted: str, found: object) -> VerificationError:
    """Return the error of a cache that has something else."""
    text = str(found).replace("\n", "")
    return VerificationError(
        f"Megatron's cache must have {wanted}, got {text[:80]}; it is of other data or damaged: "
        "remove it"
    )
