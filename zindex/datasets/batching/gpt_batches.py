"""The tokens of many samples of GPT datasets, and which datasets may be read so.

Labels and masks are made elsewhere.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zindex.datasets.batching.batch_memory import take_array
from zindex.datasets.batching.batch_texts import Texts, choose_samples, locate_parts
from zindex.datasets.batching.gpt_sources import is_known
from zindex.errors import ConfigError, VerificationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zindex.datasets.gpt_dataset import GPTDataset

# What a subclass may do in its own way.
_WAYS = ("__getitem__", "_query_document_sample_shuffle_indices", "_make_masks")

Int64Array = npt.NDArray[np.int64]


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


def read_texts(
    datasets: "Sequence[GPTDataset]", which: Int64Array, positions: Int64Array, width: int
) -> Texts:
    """Return the tokens of samples; what a row holds after those of its sample is undefined.

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
        If an index asks for tokens that a document does not hold, or for too few of them, or data
        are damaged.

    Notes
    -----
    Rounds: shuffle index, sample index, document index, bounds of documents, tokens.
    """
    chosen = choose_samples(datasets, which, positions)
    samples = chosen.samples
    bounds = chosen.read("sample_index", samples, samples + 2).reshape(-1, 2, 2)
    starts, counts = bounds[:, 0, 0], bounds[:, 1, 0] - bounds[:, 0, 0] + 1
    if (counts < 1).any():
        i = int(np.argmin(counts))
        raise _damaged(chosen.member_of(i), samples[i], f"rows {bounds[i].tolist()} that fall")
    documents = chosen.read("document_index", starts, starts + counts)
    parts = locate_parts(chosen, documents, counts)
    begins, ends = np.zeros_like(documents), parts.extents.lengths.copy()
    begins[parts.firsts] = bounds[:, 0, 1]
    ends[parts.lasts] = bounds[:, 1, 1] + (width - chosen.members[0].config.sequence_length)
    texts = parts.lay_out(ends - begins, take_array((len(samples), width), parts.dtype))
    damaged = parts.find_damage(texts, begins, min_length=0)
    if damaged is not None:
        columns = [documents, begins, ends, parts.extents.lengths]
        rows = np.stack([column[texts.owners == damaged] for column in columns], axis=1).tolist()
        what = ", ".join(
            "[{1}, {2}) of the {3} tokens of document {0}".format(*row) for row in rows
        )
        raise _damaged(chosen.member_of(damaged), samples[damaged], what)
    for i in np.flatnonzero(texts.num_tokens < width).tolist():
        _check_end(chosen.member_of(i), int(samples[i]), int(texts.num_tokens[i]))
    parts.read(texts, begins)
    return texts


def join_parts(
    dataset: "GPTDataset", sample: int, parts: "Sequence[npt.NDArray[Any]]"
) -> Int64Array:
    """Return the tokens of a sample, made of parts of documents and padded to its full length.

    Raises
    ------
    VerificationError
        If its index gives too many tokens, or too few in the middle of the dataset.
    """
    config = dataset.config
    num_tokens = sum(map(len, parts))
    missing = config.sequence_length + int(config.add_extra_token_to_sequence) - num_tokens
    if not missing:
        return np.concatenate(parts, dtype=np.int64)
    if missing < 0:
        raise _damaged(dataset, sample, f"{num_tokens} tokens")
    _check_end(dataset, sample, num_tokens)
    return np.concatenate([*parts, np.full(missing, dataset._pad_token_id)], dtype=np.int64)


def _check_end(dataset: "GPTDataset", sample: int, num_tokens: int) -> None:
    """Check that a sample which is short is the last of its index: all others must be full."""
    if dataset._drop_last or sample != len(dataset._open_arrays().sample_index) - 2:
        raise _damaged(dataset, sample, f"{num_tokens} tokens, though tokens follow")


def _damaged(dataset: "GPTDataset", sample: int, what: str) -> VerificationError:
    """Return the error of a sample that its index cuts out of documents which do not hold it."""
    return VerificationError(
        f"sample {sample} of {dataset._where} must be made of parts of documents, "
        f"together {dataset.config.sequence_length} tokens and one if an extra token is drawn, its "
        f"index gives {what}; restore the data if they changed, or remove the index to build it "
        "again"
    )
