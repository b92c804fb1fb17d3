"""The tokens of many samples of many GPT datasets, in as few rounds of reading as one sample takes.

A round reads what it needs of all datasets at once; in object storage it is one round trip. Labels
and masks are made elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.batch_memory import take_array
from zindex.datasets.gpt_sources import is_known, read_extents, read_tokens, token_dtype
from zindex.datasets.held_arrays import find_held, take_spans
from zindex.errors import ConfigError, VerificationError
from zindex.store.reader import Spans, read_many

if TYPE_CHECKING:
    from zindex.datasets.gpt_dataset import GPTDataset

# What a subclass may do in its own way.
_WAYS = ("__getitem__", "_query_document_sample_shuffle_indices", "_make_masks")

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids of the samples of a batch, and where they come from.

    Samples are in the order in which they were read: those of one dataset after those of another.
    """

    #: Shape (samples, sequence_length + x), in a dtype that holds all tokens, in the order asked.
    tokens: npt.NDArray[Any]
    #: Shape (samples,): the row of ``tokens`` of each sample.
    rows: Int64Array
    #: Shape (samples,): tokens of each sample; what its row holds after them is undefined.
    num_tokens: Int64Array
    #: Shape (samples,): the sample's number in its dataset.
    samples: Int64Array
    #: Shape (samples,): first part of each sample.
    first_parts: Int64Array
    #: Shape (parts,): which of the samples a part of a document belongs to.
    owners: Int64Array
    #: Shape (parts,): number of the document.
    documents: Int64Array
    #: Shape (parts,): tokens of the part.
    lengths: Int64Array
    #: Shape (parts,): token of its sample at which the part begins.
    offsets: Int64Array


def read_texts(
    datasets: "Sequence[GPTDataset]", which: Int64Array, positions: Int64Array, width: int
) -> Texts:
    """Return the tokens of samples.

    Parameters
    ----------
    datasets
        Datasets of one configuration.
    which
        Shape (samples,): the dataset of each sample.
    positions
        Shape (samples,): its position there, from the start, and within the dataset.
    width
        Tokens of a full sample.

    Raises
    ------
    VerificationError
        If an index asks for tokens that a document does not hold, or data are damaged.

    Notes
    -----
    Rounds: shuffle index, sample index, document index, bounds of documents, tokens.
    """
    rows, edges = order_samples(which, len(datasets))
    members = [datasets[i] for i in which[rows[edges]].tolist()]
    cuts = cut_slices(edges, len(rows))
    indices = [member._open_arrays() for member in members]
    samples = read_round(
        Spans(index.shuffle_index, *find_runs(positions[rows[cut]]))
        for index, cut in zip(indices, cuts, strict=True)
    )
    bounds = read_round(
        Spans(index.sample_index, samples[cut], samples[cut] + 2)
        for index, cut in zip(indices, cuts, strict=True)
    ).reshape(-1, 2, 2)
    starts, counts = bounds[:, 0, 0], bounds[:, 1, 0] - bounds[:, 0, 0] + 1
    if (counts < 1).any():
        i = int(np.argmin(counts))
        raise _damaged(members, edges, i, samples, f"rows {bounds[i].tolist()} that fall")
    documents = read_round(
        Spans(index.document_index, starts[cut], starts[cut] + counts[cut])
        for index, cut in zip(indices, cuts, strict=True)
    )
    last_parts = np.cumsum(counts) - 1
    first_parts = last_parts - counts + 1
    sources = [member.dataset for member in members]
    groups = list(zip(sources, cut_slices(first_parts[edges], len(documents)), strict=True))
    extents = read_extents(groups, documents)
    begins = np.zeros_like(documents)
    begins[first_parts] = bounds[:, 0, 1]
    ends = extents.lengths.copy()
    ends[last_parts] = bounds[:, 1, 1] + (width - members[0].config.sequence_length)
    lengths = ends - begins
    owners = np.repeat(np.arange(len(rows)), counts)
    before = np.cumsum(lengths) - lengths
    offsets = before - before[first_parts][owners]
    num_tokens = np.add.reduceat(lengths, first_parts)
    # Below 0 where a part begins before its document or ends behind it.
    signs = begins | lengths | (extents.lengths - ends) | (width - num_tokens)[owners]
    if signs.min() < 0:
        i = int(owners[np.argmax(signs < 0)])
        parts = [documents, begins, ends, extents.lengths]
        taken = np.stack([column[owners == i] for column in parts], axis=1).tolist()
        taken = ", ".join(
            "[{1}, {2}) of the {3} tokens of document {0}".format(*row) for row in taken
        )
        raise _damaged(members, edges, i, samples, taken)
    dtypes = {token_dtype(source) for source in sources}
    tokens = take_array((len(rows), width), dtypes.pop() if len(dtypes) == 1 else np.int64)
    places = rows[owners] * width + offsets
    read_tokens(groups, documents, extents, begins, lengths, tokens.reshape(-1), places)
    return Texts(
        tokens, rows, num_tokens, samples, first_parts, owners, documents, lengths, offsets
    )


def order_samples(which: Int64Array, num_datasets: int) -> tuple[Int64Array, npt.NDArray[np.intp]]:
    """Return the samples in an order in which those of a dataset come together, and its starts."""
    if num_datasets == 1:
        return np.arange(len(which)), np.zeros(1, np.intp)
    rows = np.argsort(which, kind="stable")
    ordered = which[rows]
    return rows, np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))


def is_plain(dataset: Any, base: type[Any]) -> bool:
    """Return whether a dataset makes its items in no other way than ``base`` does."""
    ways = (getattr(type(dataset), name, None) is getattr(base, name, None) for name in _WAYS)
    return all(ways) and is_known(dataset.dataset)


def require_plain(dataset: Any, base: type[Any]) -> None:
    """Refuse settings that only samples of ``base`` itself can serve."""
    if not is_plain(dataset, base):
        raise ConfigError(
            f"inter_document_masking and with_provenance need the items of {base.__name__} itself "
            f"over a dataset that zindex opens, got those of {type(dataset).__name__} over "
            f"{type(dataset.dataset).__name__}; leave the settings out"
        )


def find_runs(numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return starts and stops of runs of consecutive numbers, which are read as one span.

    Examples
    --------
    >>> starts, stops = find_runs(np.array([4, 5, 6, 2, 3, 3]))
    >>> starts.tolist(), stops.tolist()
    ([4, 2, 3], [7, 4, 4])
    """
    cuts = np.flatnonzero(numbers[1:] - numbers[:-1] != 1) + 1
    if not cuts.size:
        return numbers[:1], numbers[-1:] + 1
    starts = numbers[np.concatenate(([0], cuts))]
    return starts, numbers[np.append(cuts - 1, len(numbers) - 1)] + 1


def cut_slices(edges: npt.NDArray[np.integer[Any]], size: int) -> list[slice]:
    """Return the slices that begin at given places and together are all of ``size``."""
    starts = edges.tolist()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], size], strict=True)]


def read_round(wanted: Iterable[Spans]) -> Int64Array:
    """Return the rows of all spans, one array after another, as int64."""
    asked = list(wanted)
    rows: dict[int, npt.NDArray[Any]] = {}
    for i, spans in enumerate(asked):
        held = find_held(spans.reader, len(spans.starts))
        if held is not None:
            rows[i] = take_spans(held, spans.starts, spans.stops)
    missing = [i for i in range(len(asked)) if i not in rows]
    if missing:
        rows.update(zip(missing, read_many([asked[i] for i in missing]), strict=True))
    if len(asked) == 1:
        return rows[0].astype(np.int64)
    return np.concatenate([rows[i] for i in range(len(asked))], dtype=np.int64)


def _damaged(
    members: "Sequence[GPTDataset]",
    edges: npt.NDArray[np.integer[Any]],
    place: int,
    samples: Int64Array,
    what: str,
) -> VerificationError:
    """Return the error of a sample that its index cuts out of documents which do not hold it."""
    member = members[int(np.searchsorted(edges, place, side="right")) - 1]
    return VerificationError(
        f"sample {samples[place]} of {member._where} must be made of parts of documents, together "
        f"{member.config.sequence_length} tokens and one if an extra token is drawn, its index "
        f"gives {what}; restore the data if they changed, or remove the index to build it again"
    )
