"""Open Megatron Core's ``.npy`` caches of GPT indices, and check that they are those of a plan."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from zindex.arrays import AnyArray, Int32Array, Int64Array
from zindex.errors import VerificationError
from zindex.formats.megatron_cache import cache_paths
from zindex.indexing import store_computed
from zindex.indexing.index_arrays import IndexArrays
from zindex.indexing.store_build import find_index
from zindex.io.objects import PlaceLike, place_of
from zindex.plan.index_plan import IndexPlan

logger = logging.getLogger(__name__)

# Consecutive samples, and blocks of them, whose boundaries are computed again.
_BLOCK_LENGTH, _NUM_BLOCKS = 1024, 16
# Rows of the document index whose documents are drawn again.
_NUM_DRAWS = 1024


def open_cache(folder: PlaceLike, name: str, description: str | None = None) -> IndexArrays | None:
    """Return the arrays of a cache, as memory maps.

    Parameters
    ----------
    folder
        Megatron's ``path_to_cache``.
    name
        ``<md5>-<class>-<split>``.
    description
        The content that its description must have.

    Returns
    -------
    arrays
        None if there is no such cache: all its files, with this description.

    Raises
    ------
    VerificationError
        If a file is not an array.
    """
    place = place_of(folder)
    if not isinstance(place, Path):
        return None
    paths = cache_paths(place, name)
    if not all(path.is_file() for path in paths.values()):
        return None
    if description is not None and paths["description"].read_text("utf-8") != description:
        return None
    opened = []
    for kind in IndexArrays._fields:
        try:
            opened.append(np.load(paths[kind], mmap_mode="r", allow_pickle=False))
        except (ValueError, OSError, EOFError) as error:
            raise VerificationError(
                f"{paths[kind]} must be an array of Megatron's cache: {error}; remove the cache"
            ) from error
    return IndexArrays(*opened)


def is_worth_reading(num_rows: int) -> bool:
    """Return whether a cache of some rows and samples is read faster than they are computed."""
    return num_rows > store_computed.MIN_STORED_ROWS


def is_sound_cache(
    plan: IndexPlan,
    read_lengths: Callable[[int, int], Int32Array],
    folder: PlaceLike,
    name: str,
    description: str,
) -> bool:
    """Return whether there is a cache that passes `check_cache`, and no store of the same index.

    Parameters
    ----------
    plan
        What the index must be.
    read_lengths
        Returns the tokens of documents ``[start, stop)`` of the dataset.
    folder, name, description
        As for `open_cache`. A cache that does not pass is logged.
    """
    try:
        arrays = open_cache(folder, name, description)
        if arrays is None or find_index(plan.store_plan(folder)) is not None:
            return False
        check_cache(plan, arrays, read_lengths(plan.start, plan.stop))
    except VerificationError as error:
        logger.warning("%s in %s is not used: %s", name, folder, error)
        return False
    return True


def check_cache(plan: IndexPlan, arrays: IndexArrays, lengths: Int32Array) -> None:
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
        if array.shape != layout.shape or array.dtype != np.dtype(layout.dtype):
            expected = f"{name} of {layout.dtype} and shape {layout.shape}"
            raise _mismatch(expected, f"{array.dtype} and shape {array.shape}")
    _check_documents(plan, np.asarray(arrays.document_index))
    last = np.asarray(arrays.sample_index[plan.num_full_samples])
    rest = _read_documents(plan, arrays, max(0, int(last[0])), plan.num_rows)
    num_left = int(lengths[rest].sum(dtype=np.int64)) - int(last[1])
    total = plan.epochs.num_epochs * plan.epochs.tokens_per_epoch
    wanted = total - plan.num_full_samples * plan.sequence_length
    if num_left != wanted:
        raise _mismatch(f"{wanted} tokens after its last full sample", num_left)
    if plan.num_samples > plan.num_full_samples:
        end = [plan.num_rows - 1, int(lengths[rest[-1]]) - plan.extra_token]
        if np.asarray(arrays.sample_index[plan.num_samples]).tolist() != end:
            raise _mismatch(f"{end} as its last boundary", arrays.sample_index[-1])
    for start, stop in _blocks(plan.num_full_samples):
        _check_block(plan, arrays, lengths, start, stop)


def _check_documents(plan: IndexPlan, documents: AnyArray) -> None:
    """Draw the last documents of the first shuffle again."""
    epochs, num_documents = plan.epochs, plan.num_documents
    num_rows = plan.num_rows - num_documents * epochs.separate_final_epoch
    generator, moved = np.random.RandomState(plan.seed), dict[int, int]()
    for row in range(num_rows - 1, max(0, num_rows - 1 - _NUM_DRAWS), -1):
        other = int(generator.randint(row + 1))
        wanted = moved.get(other, other)
        moved[other] = moved.get(row, row)
        document = plan.start + wanted % num_documents
        if documents[row] != document:
            raise _mismatch(f"document {document} in row {row}", documents[row])


def _read_documents(plan: IndexPlan, arrays: IndexArrays, start: int, stop: int) -> AnyArray:
    """Return rows of the document index, as documents of the split from 0."""
    documents = np.asarray(arrays.document_index[start:stop]) - plan.start
    if not ((documents >= 0) & (documents < plan.num_documents)).all():
        raise _mismatch(f"documents of the split in rows [{start}, {stop})", documents + plan.start)
    return documents


def _blocks(num_samples: int) -> Iterator[tuple[int, int]]:
    """Yield spans of samples from the first to the last."""
    last = max(0, num_samples - _BLOCK_LENGTH)
    for start in np.unique(np.linspace(0, last, _NUM_BLOCKS).astype(np.int64)).tolist():
        yield start, min(start + _BLOCK_LENGTH, num_samples)


def _check_block(
    plan: IndexPlan, arrays: IndexArrays, lengths: Int32Array, start: int, stop: int
) -> None:
    """Check the boundaries of consecutive samples, and the numbers of as many samples."""
    where = f"samples [{start}, {stop})"
    bounds: Int64Array = np.asarray(arrays.sample_index[start : stop + 1], np.int64)
    rows, offsets = bounds.T
    if start == 0 and bounds[0].any():
        raise _mismatch("[0, 0] as its first boundary", bounds[0])
    if (np.diff(rows) < 0).any() or rows[0] < 0 or rows[-1] >= plan.num_rows:
        raise _mismatch(f"ascending rows for {where}", rows)
    parts = lengths[_read_documents(plan, arrays, rows[0], rows[-1] + 1)].astype(np.int64)
    starts = np.cumsum(parts) - parts
    tokens = starts[rows - rows[0]] + offsets
    steps = np.arange(len(tokens)) * plan.sequence_length
    if not np.array_equal(tokens - tokens[0], steps):
        raise _mismatch(f"{plan.sequence_length} tokens in each of the {where}", np.diff(tokens))
    room = parts[rows - rows[0]] - offsets
    # Without an extra token, a boundary between documents belongs to the first of them.
    is_placed = room > 0 if plan.extra_token else offsets > 0
    is_placed[: start == 0] = True
    if not (is_placed & (room >= 0) & (offsets >= 0)).all():
        raise _mismatch(f"boundaries within documents for {where}", offsets)
    mixed = plan.num_mixed_samples
    numbers = np.asarray(arrays.shuffle_index[start:stop], np.int64)
    is_first = np.arange(start, stop) < mixed
    is_known = np.where(is_first, numbers < mixed, numbers >= mixed) & (numbers < plan.num_samples)
    if not is_known.all() or (numbers < 0).any() or len(np.unique(numbers)) < len(numbers):
        raise _mismatch(f"different samples at positions [{start}, {stop})", numbers)


def _mismatch(wanted: str, found: object) -> VerificationError:
    """Return the error of a cache."""
    text = str(found).replace("\n", "")
    return VerificationError(
        f"Megatron's cache must have {wanted}, got {text[:80]}; it is of other data or damaged: "
        "remove it"
    )
