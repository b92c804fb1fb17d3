"""The document index: which document's tokens come when.

For every shard of ``document_index`` there is a receipt and a number of tokens; the exclusive
prefix sum of those numbers is all that the sample index needs to know of the other shards.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zindex.building.held import keep_ordered, order_lengths
from zindex.building.source import LengthSource
from zindex.errors import StoreError, VerificationError
from zindex.kernels.bijection import permute_range
from zindex.kernels.legacy_shuffle import legacy_shuffle
from zindex.kernels.mersenne import seed_state
from zindex.plan.index_plan import IndexPlan
from zindex.plan.keys import Stage
from zindex.store import files
from zindex.store.identity import canonical_json, fingerprint, parse_json
from zindex.store.objects import Place
from zindex.store.open import open_reader
from zindex.store.shard_files import ShardResult, find_receipt, store_all_shards, store_shard

#: Where the state of Megatron's generator after the documents is kept for a resumed build.
GENERATOR_KEY = "_zindex/generator.json"


@dataclass(frozen=True, slots=True)
class DocumentShard:
    """What is known of one finished shard of the document index."""

    #: None where the shard is not stored.
    result: ShardResult | None
    num_tokens: int


def compute_documents(plan: IndexPlan, start: int, stop: int) -> npt.NDArray[np.signedinteger]:
    """Return rows ``[start, stop)`` of the scalable order's document index.

    Parameters
    ----------
    plan
        A plan with ``order="scalable"``.
    start, stop
        Rows, ``0 <= start <= stop <= plan.num_rows``.

    Returns
    -------
    documents
        Shape (stop - start,), int32 or int64, document ids.

    Notes
    -----
    Law: every epoch's rows are a permutation of the split's documents, and any row can be computed
    alone.
    """
    documents = np.empty(stop - start, plan.document_layout.dtype)
    row = start
    while row < stop:
        epoch, first = divmod(row, plan.num_documents)
        upto = min(stop, (epoch + 1) * plan.num_documents)
        keys = plan.round_keys(Stage.DOCUMENT, epoch)
        out = documents[row - start : upto - start]
        permute_range(first, plan.num_documents, keys, plan.start, out)
        row = upto
    return documents


def read_documents(
    plan: IndexPlan, root: Place, start: int, stop: int
) -> npt.NDArray[np.signedinteger]:
    """Return rows ``[start, stop)`` of the document index, from its shards or computed."""
    if plan.stored == "minimal":
        return compute_documents(plan, start, stop)
    return open_reader(root, plan.document_layout).read(start, stop)


def store_document_shard(
    plan: IndexPlan, root: Place, source: LengthSource, shard: int
) -> DocumentShard:
    """Task: one shard of the scalable order's document index, and its tokens."""
    layout = plan.document_layout
    start, stop = layout.shard_bounds(shard)
    documents = compute_documents(plan, start, stop)
    result = None
    if plan.stored == "all":
        result = store_shard(root, layout, shard, lambda: documents, whole=True)
    return DocumentShard(result, _count_tokens(plan, root, source, shard, documents))


def store_shuffled_documents(plan: IndexPlan, root: Place) -> list[ShardResult]:
    """Task: all shards of Megatron's document index.

    The legacy shuffle is serial by its nature: its place in the random stream depends on every
    draw before. It is one task per dataset and split; its shards are written side by side.
    """
    layout = plan.document_layout
    shards = range(layout.num_shards)
    receipts = [find_receipt(root, layout, shard, whole=True) for shard in shards]
    found = [ShardResult(receipt, written=False) for receipt in receipts if receipt is not None]
    if len(found) == layout.num_shards and _has_generator(root):
        return found
    documents, state = shuffle_documents(plan)
    content: dict[str, Any] = {"mt19937": state.tolist()}
    content["sha256"] = fingerprint(content)
    buffers = [canonical_json(content).encode()]
    if not files.write_once(root / GENERATOR_KEY, buffers) and not _has_generator(root):
        files.write_once(root / GENERATOR_KEY, buffers, replace=True)
    return store_all_shards(root, layout, documents, whole=True)


def count_document_shard(plan: IndexPlan, root: Place, source: LengthSource, shard: int) -> int:
    """Task: the tokens of one stored shard of the document index."""
    documents = read_documents(plan, root, *plan.document_layout.shard_bounds(shard))
    return _count_tokens(plan, root, source, shard, documents)


def shuffle_documents(
    plan: IndexPlan,
) -> tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.uint32]]:
    """Return Megatron's document index and the state of its generator afterwards.

    Returns
    -------
    documents
        Shape (plan.num_rows,), document ids.
    state
        Shape (625,), uint32: MT19937, as the shuffle of the samples takes it over.

    Notes
    -----
    Source: Megatron Core ``_build_document_index``.
    """
    state = seed_state(plan.seed)
    documents = np.empty(plan.num_rows, plan.document_layout.dtype)
    epoch = np.arange(plan.start, plan.stop, dtype=documents.dtype)
    documents.reshape(-1, plan.num_documents)[:] = epoch
    num_mixed = plan.epochs.num_epochs - plan.epochs.separate_final_epoch
    legacy_shuffle(documents[: num_mixed * plan.num_documents], state)
    if plan.epochs.separate_final_epoch:
        legacy_shuffle(documents[num_mixed * plan.num_documents :], state)
    return documents, state


def read_generator(root: Place) -> npt.NDArray[np.uint32]:
    """Return the generator's state that ``store_shuffled_documents`` left."""
    path = root / GENERATOR_KEY
    content = parse_json(files.read_file(path), str(path))
    words = content.get("mt19937")
    if not isinstance(words, list) or len(words) != 625:
        raise VerificationError(f"{path} must hold 625 words; build again")
    if content.get("sha256") != fingerprint({"mt19937": words}):
        raise VerificationError(f"{path} fails its digest; build again")
    return np.array(words, np.uint32)


def _has_generator(root: Place) -> bool:
    """Return whether the generator's state is there and right."""
    try:
        read_generator(root)
    except (StoreError, VerificationError):
        return False
    return True


def _count_tokens(
    plan: IndexPlan,
    root: Place,
    source: LengthSource,
    shard: int,
    documents: npt.NDArray[np.signedinteger],
) -> int:
    """Return the tokens of one shard of documents; keep their lengths for the sample index."""
    ordered = order_lengths(plan, source, documents)
    keep_ordered(root, plan.document_layout.shard_bounds(shard), ordered)
    return int(ordered.sum(dtype=np.int64))
