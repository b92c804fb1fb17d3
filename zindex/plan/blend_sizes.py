"""Sizes of a run's blends in whole samples, from weights, token budgets, epochs or sizes.

No dataset is opened here. Some blends are determined by the configuration alone; others need the
number of tokens in one epoch of each dataset. A blend that draws more of a dataset than its epochs
contain is an error that lists the options.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from zindex.errors import PlanError
from zindex.plan.blend_plan import MAX_BLEND_SAMPLES, largest_remainder
from zindex.plan.blend_request import BlendRequest
from zindex.plan.split import normalize

#: Tokens of one epoch of each dataset of the request, by split.
TokensPerEpoch = Mapping[str, Sequence[int]]


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
    #: Whether max_epochs limits each member.
    capped: tuple[bool, ...]
    #: Epochs of each member that the blend draws; None while their tokens are unknown.
    epochs: tuple[float, ...] | None = None


_NO_BLEND = BlendSizes((), None, None, 0, (), (), ())


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
    known = tokens_per_epoch or {}
    return _Resolver(request, split, known.get(split), known.get("train")).resolve()


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Finds the sizes of one split's blend from what is known of its datasets."""

    request: BlendRequest
    split: str
    #: Tokens of one epoch of each dataset, in this split and in train; None while unknown.
    tokens: Sequence[int] | None
    train_tokens: Sequence[int] | None

    def resolve(self) -> BlendSizes | None:
        """Return the sizes, or None if they need tokens that are unknown."""
        sizes, tokens, length = self._find_sizes(), self.tokens, self.request.sequence_length
        if sizes is None or tokens is None or not sizes.members:
            return sizes
        drawn = zip(sizes.members, sizes.counts, strict=True)
        return replace(sizes, epochs=tuple(count * length / tokens[d] for d, count in drawn))

    def _find_sizes(self) -> BlendSizes | None:
        """Return the sizes without epochs, or None if they need tokens that are unknown."""
        request, split, tokens = self.request, self.split, self.tokens
        size = request.samples.get(split)
        if size == 0:
            return _NO_BLEND
        if size is not None and size > MAX_BLEND_SAMPLES:
            raise PlanError(
                f"samples of {split} must be at most {MAX_BLEND_SAMPLES:,}, got {size:,}; lower "
                "them"
            )
        uncapped = (False,) * len(request.shares)
        if request.kind == "sizes" or (size is None and split != "train"):
            if tokens is None:
                return None
            counts = [request.count_epoch(split, num_tokens) for num_tokens in tokens]
            whole = self._draw_all(counts, uncapped, one_epoch=True)
            return whole if size is None else self._draw_first(whole, size)
        if request.kind == "weight":
            if size is None:
                raise PlanError(f"a blend by weights needs samples of {split}, got none; set them")
            return self._draw_weighted(range(len(uncapped)), request.shares, uncapped, size)
        train = self._count_train()
        if train is None:
            return None
        counts, capped = train
        if size is None:
            if tokens is not None and request.kind == "tokens":
                asked = [-(-int(share) // request.sequence_length) for share in request.shares]
                self._check_tokens(range(len(asked)), asked, tokens)
            return self._draw_all(counts, capped)
        members = self._drawn_members(size, counts)
        is_capped = tuple(capped[d] and split == "train" for d in members)
        return self._draw_weighted(members, [counts[d] for d in members], is_capped, size)

    def _count_train(self) -> tuple[list[int], tuple[bool, ...]] | None:
        """Return each dataset's train samples by its budget, and whether max_epochs lowered them.

        None if that needs tokens that are unknown.
        """
        request, tokens = self.request, self.train_tokens
        is_limited = any(limit is not None for limit in request.max_epochs)
        if request.kind == "tokens":
            wanted = [-(-int(share) // request.sequence_length) for share in request.shares]
            if not is_limited:
                return wanted, (False,) * len(wanted)
        if tokens is None:
            return None
        if request.kind != "tokens":
            wanted = list(map(request.count_samples, request.shares, tokens))
        most = [
            count if limit is None else request.count_samples(limit, num_tokens)
            for count, limit, num_tokens in zip(wanted, request.max_epochs, tokens, strict=True)
        ]
        capped = tuple(limit < count for limit, count in zip(most, wanted, strict=True))
        return list(map(min, wanted, most)), capped

    def _drawn_members(self, size: int, counts: Sequence[int]) -> tuple[int, ...]:
        """Return the datasets with train samples, whose counts are the weights of a sized blend."""
        request = self.request
        for d, count in enumerate(counts):
            if count == 0 and self.split == "train" and self.train_tokens is not None:
                raise PlanError(
                    f"'{request.datasets[d]}' must give samples to a blend of {size:,} samples of "
                    f"train, {request.kind} {request.shares[d]:g} gives 0 of its "
                    f"{self.train_tokens[d]:,} tokens per epoch; raise it, or set it to 0 to leave "
                    "the dataset out"
                )
        members = tuple(d for d, count in enumerate(counts) if count)
        if not members:
            raise PlanError(
                f"{size:,} samples of {self.split} are shared out like those of train, of which no "
                f"dataset gives any; leave samples.{self.split} out"
            )
        return members

    def _draw_weighted(
        self, members: Sequence[int], shares: Sequence[float], capped: tuple[bool, ...], size: int
    ) -> BlendSizes:
        """Return a blend of a given size, by weights."""
        request, tokens = self.request, self.tokens
        weights = normalize(shares)
        for d, weight in zip(members, weights, strict=True):
            if weight == 0:
                raise PlanError(
                    f"weights must differ by less than floats can hold, that of "
                    f"'{request.datasets[d]}' is 0 relative to the others; set it to 0 or raise it"
                )
        targets = [math.ceil(size * weight) for weight in weights]
        requested = [math.ceil(target * (1 + request.surplus)) for target in targets]
        num_samples = sum(targets) if request.order == "megatron" else size
        # The blend's plan normalises again, as Megatron Core does.
        counts = largest_remainder(normalize(weights), num_samples).tolist()
        if request.order == "scalable":
            # Its counts are exact, and rounding may raise one above the target.
            requested = list(map(max, requested, counts))
        if tokens is not None:
            self._check_tokens(members, targets, tokens)
            if self.split == "train":
                check_epochs(request, members, shares, size, tokens)
        drawn = tuple(counts), tuple(requested)
        return BlendSizes(tuple(members), tuple(weights), None, num_samples, *drawn, capped)

    def _draw_all(
        self, counts: Sequence[int], capped: Sequence[bool], *, one_epoch: bool = False
    ) -> BlendSizes:
        """Return a blend that draws every sample once, of all datasets that have some."""
        members = tuple(d for d, count in enumerate(counts) if count)
        if not members:
            return _NO_BLEND
        sizes = tuple(counts[d] for d in members)
        if sum(sizes) > MAX_BLEND_SAMPLES:
            raise PlanError(
                f"samples of {self.split} must be at most {MAX_BLEND_SAMPLES:,}, got "
                f"{sum(sizes):,} of all datasets; lower their {self.request.kind}"
            )
        requested = (None,) * len(members) if one_epoch else sizes
        is_capped = tuple(capped[d] for d in members)
        return BlendSizes(members, None, sizes, sum(sizes), sizes, requested, is_capped)

    def _draw_first(self, whole: BlendSizes, size: int) -> BlendSizes:
        """Return a number of samples of one epoch of every dataset, in proportion to the sizes."""
        if not whole.members:
            raise PlanError(
                f"{self.split} must hold samples to give {size:,} of them, its "
                f"{len(self.request.datasets):,} datasets have none; give it a larger share or set "
                f"samples.{self.split} to 0"
            )
        num_samples = min(size, whole.num_samples)
        weights = tuple(map(float, whole.counts))
        drawn = largest_remainder(normalize(weights), num_samples).tolist()
        return replace(
            whole, weights=weights, sizes=None, num_samples=num_samples, counts=tuple(drawn)
        )

    def _check_tokens(
        self, members: Sequence[int], targets: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Check that every member that must give samples has tokens."""
        for d, target in zip(members, targets, strict=True):
            if tokens[d] == 0:
                raise PlanError(
                    f"{self.split} of '{self.request.datasets[d]}' must hold tokens to give "
                    f"{target:,} samples to the blend, it has 0; give {self.split} a larger share "
                    f"of the documents, or set the dataset's {self.request.kind} or "
                    f"samples.{self.split} to 0"
                )


def check_epochs(
    request: BlendRequest,
    members: Sequence[int],
    shares: Sequence[float],
    size: int,
    tokens: Sequence[int],
) -> None:
    """Check that a weighted train blend draws at most max_epochs epochs of a dataset.

    Parameters
    ----------
    request
        The blends of the run.
    members, shares
        The datasets of the blend, and the weight of each, > 0.
    size
        Samples of the blend.
    tokens
        Tokens of one epoch of each dataset of the request.

    Raises
    ------
    PlanError
        If a dataset is too small; the message names the one that needs the most epochs.

    Notes
    -----
    Law: each suggested fix alone resolves the shortage of the named dataset. A weighted count is
    known to within one sample, which is tolerated.
    """
    weights = normalize(shares)
    most = {
        row: request.count_samples(limit, tokens[d])
        for row, d in enumerate(members)
        if (limit := request.max_epochs[d]) is not None
    }
    short = [row for row in most if math.floor(size * weights[row]) > most[row]]
    if not short:
        return

    def epochs_to_raise_to(row: int) -> str:
        target = math.ceil(size * weights[row])
        num_tokens = target * request.sequence_length + request.extra_token
        return _format_hundredths(math.ceil(Fraction(num_tokens, tokens[members[row]]) * 100))

    worst = max(short, key=lambda row: float(epochs_to_raise_to(row)))
    others = sum(map(Fraction, shares)) - Fraction(shares[worst])
    if request.kind == "weight" and others:
        weight = Fraction(most[worst], size - most[worst]) * others
        way_out = f"its weight to {_format_down(weight)}"
    else:
        least = min(math.floor(count / weights[row]) for row, count in most.items())
        way_out = f"samples.train to {least:,}"
    also = f"; the same holds for {len(short) - 1:,} more" if len(short) > 1 else ""
    d = members[worst]
    raise PlanError(
        f"blend needs {math.ceil(size * weights[worst]):,} samples of train from "
        f"'{request.datasets[d]}' but {request.max_epochs[d]:g} epochs give {most[worst]:,}; raise "
        f"max_epochs to {epochs_to_raise_to(worst)} or lower {way_out}{also}"
    )


def _format_hundredths(number: int) -> str:
    """Return a number of hundredths as a decimal without trailing zeros."""
    return f"{number // 100}.{number % 100:02d}".rstrip("0").rstrip(".")


def _format_down(value: Fraction) -> str:
    """Return a number rounded down to two digits."""
    context = Context(prec=2, rounding=ROUND_FLOOR)
    return f"{context.divide(Decimal(value.numerator), Decimal(value.denominator)):g}"
