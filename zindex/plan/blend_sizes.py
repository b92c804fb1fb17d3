"""Sizes of a run's blends in whole samples, from weights, token budgets, epochs or sizes.

No dataset is opened here. Some blends follow from the configuration alone; the others need the
tokens of one epoch of each dataset.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from zindex.errors import PlanError
from zindex.plan.blend_plan import MAX_BLEND_SAMPLES, largest_remainder
from zindex.plan.blend_shortage import EpochLimit, check_limits
from zindex.plan.build_plan import Order
from zindex.plan.epochs import plan_epochs
from zindex.plan.split import normalize

#: The shares by which the datasets of a run are blended.
BlendKind = Literal["weight", "tokens", "epochs", "sizes"]

#: Tokens of one epoch of each dataset of the request, by split.
TokensPerEpoch = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class BlendRequest:
    """The blends that a run asks for; datasets with a share of 0 are left out."""

    kind: BlendKind
    #: Names of the datasets, for errors.
    datasets: tuple[str, ...]
    #: Weights, tokens or epochs of the datasets as given, each > 0; all 1 for ``"sizes"``.
    shares: tuple[float, ...]
    #: Most epochs of train to draw from each dataset; None for no limit.
    max_epochs: tuple[float | None, ...]
    #: Samples of the blend of each split; None or missing where the datasets decide.
    samples: Mapping[str, int | None]
    sequence_length: int
    #: 1 if a sample holds one token more than ``sequence_length``, else 0.
    extra_token: int
    order: Order = "megatron"
    #: Share of extra samples that are built beyond what the weights need.
    surplus: float = 0.005
    #: Whether valid drops a last, shorter sample.
    drop_last_partial_validation_sequence: bool = True


@dataclass(frozen=True, slots=True)
class BlendSizes:
    """Sizes of one split's blend; every tuple has one entry per member."""

    #: Rows of the request's datasets that the blend draws from; empty without a blend.
    members: tuple[int, ...]
    #: Weights for `BlendPlan.weighted`; None if the blend is exhaustive.
    weights: tuple[float, ...] | None
    #: Samples of each member for `BlendPlan.exhaustive`; None if the blend is weighted.
    sizes: tuple[int, ...] | None
    #: Samples of the blend.
    num_samples: int
    #: Samples drawn of each member; Megatron's order may differ by a few.
    counts: tuple[int, ...]
    #: Samples to build of each member; None for one epoch.
    requested: tuple[int | None, ...]
    #: Epochs of each member that the blend draws; None while their tokens are unknown.
    epochs: tuple[float, ...] | None
    #: Whether max_epochs limits each member.
    capped: tuple[bool, ...]


_NO_BLEND = BlendSizes((), None, None, 0, (), (), None, ())


def resolve_blend(
    request: BlendRequest, split: str, tokens_per_epoch: TokensPerEpoch | None = None
) -> BlendSizes | None:
    """Return the sizes of one split's blend, or None if they need tokens that are not given.

    Parameters
    ----------
    request
        The blends of the run.
    split
        The split of the blend.
    tokens_per_epoch
        Tokens of one epoch of each dataset, for this split and for train, if known.

    Raises
    ------
    PlanError
        If a dataset cannot give its samples.

    Notes
    -----
    Law: a result without tokens stays the same with them, apart from ``epochs``; with tokens, a
    dataset that cannot give its samples is an error.
    Source: Megatron Core ``BlendedMegatronDatasetBuilder``, whose float arithmetic is kept.

    Examples
    --------
    >>> request = BlendRequest(
    ...     "weight", ("web", "code"), (0.7, 0.3), (None, None), {"train": 1000}, 4096, 1
    ... )
    >>> sizes = resolve_blend(request, "train")
    >>> sizes.num_samples, sizes.counts, sizes.requested
    (1000, (700, 300), (704, 302))
    """
    size = request.samples.get(split)
    if size == 0:
        return _NO_BLEND
    known = tokens_per_epoch or {}
    tokens = known.get(split)
    if size is not None and size > MAX_BLEND_SAMPLES:
        raise PlanError(
            f"samples of {split} must be at most {MAX_BLEND_SAMPLES:,}, got {size:,}; lower them"
        )
    if request.kind == "sizes" or (size is None and split != "train"):
        return None if tokens is None else _blend_by_sizes(request, split, size, tokens)
    if request.kind == "weight":
        if size is None:
            raise PlanError(f"a blend by weights needs samples of {split}, got none; set them")
        uncapped = (False,) * len(request.shares)
        every_row = tuple(range(len(request.shares)))
        return _blend_weighted(request, split, every_row, request.shares, uncapped, size, tokens)
    train = _count_train(request, known.get("train"))
    if train is None:
        return None
    counts, capped = train
    if size is None:
        if tokens is not None and request.kind == "tokens":
            asked = [-(-int(share) // request.sequence_length) for share in request.shares]
            _check_tokens(request, split, range(len(asked)), asked, tokens)
        return _blend_exhaustive(request, split, counts, capped, tokens)
    members = _drawn_members(request, split, size, counts, known.get("train"))
    chosen_counts = [counts[d] for d in members]
    chosen_capped = tuple(capped[d] and split == "train" for d in members)
    return _blend_weighted(request, split, members, chosen_counts, chosen_capped, size, tokens)


def count_samples(num_epochs: float, tokens_per_epoch: int, request: BlendRequest) -> int:
    """Return the most samples that a whole or fractional number of epochs gives.

    Notes
    -----
    The number is read as the decimal that was written: 0.7 epochs of 10 tokens are 7.
    """
    num_tokens = math.floor(Fraction(str(num_epochs)) * tokens_per_epoch)
    return max(0, (num_tokens - request.extra_token) // request.sequence_length)


def _count_train(
    request: BlendRequest, tokens: Sequence[int] | None
) -> tuple[tuple[int, ...], tuple[bool, ...]] | None:
    """Return each dataset's train samples by its budget, and whether max_epochs lowered them."""
    limited = any(limit is not None for limit in request.max_epochs)
    if tokens is None and (request.kind == "epochs" or limited):
        return None
    counts, capped = [], []
    for d, share in enumerate(request.shares):
        if request.kind == "tokens":
            count = -(-int(share) // request.sequence_length)
        else:
            assert tokens is not None
            count = count_samples(share, tokens[d], request)
        limit = request.max_epochs[d]
        if tokens is not None and limit is not None:
            most = count_samples(limit, tokens[d], request)
            capped.append(most < count)
            count = min(count, most)
        else:
            capped.append(False)
        counts.append(count)
    return tuple(counts), tuple(capped)


def _drawn_members(
    request: BlendRequest,
    split: str,
    size: int,
    counts: Sequence[int],
    train_tokens: Sequence[int] | None,
) -> tuple[int, ...]:
    """Return the datasets with train samples, whose counts are the weights of a sized blend."""
    for d, count in enumerate(counts):
        if count == 0 and split == "train" and train_tokens is not None:
            raise PlanError(
                f"'{request.datasets[d]}' must give samples to a blend of {size:,} samples of "
                f"train, {request.kind} {request.shares[d]:g} gives 0 of its "
                f"{train_tokens[d]:,} tokens per epoch; raise it, or set it to 0 to leave the "
                "dataset out"
            )
    members = tuple(d for d, count in enumerate(counts) if count)
    if not members:
        raise PlanError(
            f"{size:,} samples of {split} are shared out like those of train, of which no dataset "
            f"gives any; leave samples.{split} out"
        )
    return members


def _blend_weighted(
    request: BlendRequest,
    split: str,
    members: tuple[int, ...],
    shares: Sequence[float],
    capped: tuple[bool, ...],
    size: int,
    tokens: Sequence[int] | None,
) -> BlendSizes:
    """Return a blend of a given size, by weights."""
    weights = normalize(shares)
    for d, weight in zip(members, weights, strict=True):
        if weight == 0:
            raise PlanError(
                f"weights must differ by less than floats can hold, that of "
                f"'{request.datasets[d]}' is 0 beside the others; set it to 0 or raise it"
            )
    targets = [math.ceil(size * weight) for weight in weights]
    requested = [math.ceil(target * (1 + request.surplus)) for target in targets]
    num_samples = sum(targets) if request.order == "megatron" else size
    # The blend's plan normalises again, as Megatron Core does.
    counts = largest_remainder(normalize(weights), num_samples).tolist()
    if request.order == "scalable":
        # Its counts are exact, and rounding may raise one above the target.
        requested = [max(pair) for pair in zip(requested, counts, strict=True)]
    if tokens is not None:
        _check_tokens(request, split, members, targets, tokens)
        if split == "train":
            _check_epochs(request, members, shares, size, tokens)
    return BlendSizes(
        members=members,
        weights=tuple(weights),
        sizes=None,
        num_samples=num_samples,
        counts=tuple(counts),
        requested=tuple(requested),
        epochs=_count_epochs(request, members, counts, tokens),
        capped=capped,
    )


def _blend_exhaustive(
    request: BlendRequest,
    split: str,
    counts: Sequence[int],
    capped: Sequence[bool],
    tokens: Sequence[int] | None,
    *,
    one_epoch: bool = False,
) -> BlendSizes:
    """Return a blend of all samples of all datasets that have some."""
    members = tuple(d for d, count in enumerate(counts) if count)
    if not members:
        return _NO_BLEND
    sizes = tuple(counts[d] for d in members)
    if sum(sizes) > MAX_BLEND_SAMPLES:
        raise PlanError(
            f"samples of {split} must be at most {MAX_BLEND_SAMPLES:,}, got {sum(sizes):,} of all "
            f"datasets; lower their {request.kind}"
        )
    return BlendSizes(
        members=members,
        weights=None,
        sizes=sizes,
        num_samples=sum(sizes),
        counts=sizes,
        requested=(None,) * len(members) if one_epoch else sizes,
        epochs=_count_epochs(request, members, sizes, tokens),
        capped=tuple(capped[d] for d in members),
    )


def _blend_by_sizes(
    request: BlendRequest, split: str, size: int | None, tokens: Sequence[int]
) -> BlendSizes:
    """Return the blend of one epoch of every dataset, or of a number of samples in proportion."""
    counts = [_count_epoch(request, split, num_tokens) for num_tokens in tokens]
    uncapped = (False,) * len(counts)
    whole = _blend_exhaustive(request, split, counts, uncapped, tokens, one_epoch=True)
    if size is None:
        return whole
    if not whole.members:
        raise PlanError(
            f"{split} must hold samples to give {size:,} of them, its {len(counts):,} datasets "
            f"have none; give it a larger share or set samples.{split} to 0"
        )
    num_samples = min(size, whole.num_samples)
    weights = tuple(map(float, whole.counts))
    drawn = largest_remainder(normalize(weights), num_samples).tolist()
    return BlendSizes(
        members=whole.members,
        weights=weights,
        sizes=None,
        num_samples=num_samples,
        counts=tuple(drawn),
        requested=whole.requested,
        epochs=_count_epochs(request, whole.members, drawn, tokens),
        capped=whole.capped,
    )


def _count_epoch(request: BlendRequest, split: str, num_tokens: int) -> int:
    """Return the samples of one epoch, including a partial one that is kept."""
    if num_tokens == 0:
        return 0
    return plan_epochs(
        num_tokens,
        None,
        sequence_length=request.sequence_length,
        extra_token=request.extra_token,
        drop_last=split != "valid" or request.drop_last_partial_validation_sequence,
    ).num_samples


def _count_epochs(
    request: BlendRequest,
    members: Sequence[int],
    counts: Sequence[int],
    tokens: Sequence[int] | None,
) -> tuple[float, ...] | None:
    """Return the epochs that the drawn samples of each member cover."""
    if tokens is None:
        return None
    return tuple(
        count * request.sequence_length / tokens[d]
        for d, count in zip(members, counts, strict=True)
    )


def _check_tokens(
    request: BlendRequest,
    split: str,
    members: Sequence[int],
    targets: Sequence[int],
    tokens: Sequence[int],
) -> None:
    """Check that every member that must give samples has tokens."""
    for d, target in zip(members, targets, strict=True):
        if tokens[d] == 0:
            raise PlanError(
                f"{split} of '{request.datasets[d]}' must hold tokens to give {target:,} samples "
                f"to the blend, it has 0; give {split} a larger share of the documents, or set "
                f"the dataset's {request.kind} or samples.{split} to 0"
            )


def _check_epochs(
    request: BlendRequest,
    members: Sequence[int],
    shares: Sequence[float],
    size: int,
    tokens: Sequence[int],
) -> None:
    """Check that a weighted blend draws at most max_epochs epochs of a dataset."""
    limits = []
    for row, d in enumerate(members):
        limit = request.max_epochs[d]
        if limit is not None:
            most = count_samples(limit, tokens[d], request)
            limits.append(EpochLimit(request.datasets[d], row, limit, tokens[d], most))
    check_limits(
        limits,
        shares,
        size,
        sequence_length=request.sequence_length,
        extra_token=request.extra_token,
        by_weight=request.kind == "weight",
    )
