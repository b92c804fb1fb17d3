"""How large a packed index is: read from it, computed ahead, or estimated from some documents."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from zindex.building.packing import padding_share
from zindex.building.source import LengthSource
from zindex.errors import PlanError
from zindex.kernels.packing import count_samples
from zindex.plan.packing import LONG_DOCUMENTS, PackingPlan
from zindex.store.open import Store

#: Where sizes come from. What is estimated differs from what a build finds.
Basis = Literal["built", "computed", "estimated"]

# Documents that are packed to tell the sizes of an index that is not built, and the runs of them
# that are read if these are not all.
_SAMPLE_LENGTH = 1 << 21
_NUM_RUNS = 64


@dataclass(frozen=True, slots=True)
class PackingSizes:
    """Sizes of one packed index."""

    num_epochs: int
    num_samples: int
    num_parts: int
    #: Share of the room of all samples that is padding.
    padding_share: float
    basis: Basis


def read_packing_sizes(store: Store) -> PackingSizes:
    """Return the sizes of a committed index."""
    facts = store.attributes
    return PackingSizes(
        facts["num_epochs"],
        facts["num_samples"],
        facts["num_parts"],
        facts["padding_share"],
        "built",
    )


def measure_packing(
    plan: PackingPlan, source: LengthSource, sample_length: int = _SAMPLE_LENGTH
) -> PackingSizes:
    """Return the sizes that an index will have, as far as some of the lengths tell.

    Parameters
    ----------
    plan, source
        The index, and its lengths.
    sample_length
        Documents to pack at most.

    Returns
    -------
    sizes
        ``"computed"``, and exact, where an epoch is one partition and no longer than that;
        ``"estimated"`` otherwise, from documents that are spread evenly over the split.

    Raises
    ------
    PlanError
        If all documents are too long, and dropped.
    """
    is_exact = plan.partitions_per_epoch == 1 and plan.num_documents <= sample_length
    lengths = (
        source.lengths(plan.start, plan.stop)
        if is_exact
        else _read_sample(plan, source, sample_length)
    )
    rules = plan.rules
    num_samples, num_parts, num_tokens = count_samples(
        lengths,
        plan.sequence_length,
        plan.extra_token,
        rules.max_documents,
        LONG_DOCUMENTS[rules.long_documents],
    )
    share = padding_share(plan, num_samples, num_tokens)
    if is_exact:
        if not num_samples:
            raise PlanError(
                f"{plan.split} of {source.path} must hold documents to pack, none of its "
                f"{plan.num_documents:,} is left with long_documents: {rules.long_documents} and "
                f"room for {plan.room:,} tokens; use split"
            )
        num_epochs = -(-(plan.num_wanted or 1) // num_samples)
        parts = num_epochs * num_samples, num_epochs * num_parts
        return PackingSizes(num_epochs, *parts, share, "computed")
    scale = plan.tokens_per_epoch / max(1, int(lengths.sum(dtype=np.int64)))
    per_epoch = max(1, plan.least_samples, round(num_samples * scale))
    num_epochs = -(-(plan.num_wanted or 1) // per_epoch)
    parts = num_epochs * per_epoch, num_epochs * round(num_parts * scale)
    return PackingSizes(num_epochs, *parts, share, "estimated")


def _read_sample(
    plan: PackingPlan, source: LengthSource, sample_length: int
) -> npt.NDArray[np.int32]:
    """Return the lengths of runs of documents, spread evenly over a split."""
    length = max(1, min(plan.num_documents, sample_length) // _NUM_RUNS)
    starts = np.linspace(plan.start, plan.stop - length, _NUM_RUNS).astype(np.int64).tolist()
    return np.concatenate([source.lengths(start, start + length) for start in starts])
