"""Recommend weights and parts of the sources of a run, and a sequence length."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from zindex.arrays import Int64Array
from zindex.errors import ConfigError, check_whole
from zindex.plan.packing import count_packed
from zindex.streaming.lengths.draws import (
    SourceDraws,
    check_lengths,
    distribute,
    epochs_of,
    find_shares,
)
from zindex.streaming.lengths.statistics import Lengths, SourceLengths, list_sources
from zindex.streaming.sources import StreamSource
from zindex.text.length_histogram import LengthHistogram
from zindex.wording import count_noun

#: Number of epochs after which further repetition adds little.
MAX_EPOCHS = 4.0
# Samples that are packed to measure a sequence length.
_NUM_PACKED = 1 << 15
# Maximum samples of a packed sequence.
_MAX_DOCUMENTS = 1 << 10
# A recommended sequence length truncates at most this share of the tokens.
_MAX_TRUNCATED = 0.01
_MAX_CANDIDATES = 8
_MAX_SEQUENCE_LENGTH = 1 << 20
_NUM_LISTED = 8  # sources named in one sentence


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation as one sentence, and its numbers."""

    #: ``"repeats"``, ``"unfinished"``, ``"weights"``, ``"sequence_length"``, ``"lanes"``,
    #: ``"estimate"``, ``"damage"``, ``"empty"`` or ``"unit"``.
    kind: str
    #: The source concerned; None for the whole run.
    source: str | None
    text: str
    numbers: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SequenceLength:
    """Padding and truncation of the samples of a run at one sequence length."""

    sequence_length: int
    #: With one sample per sequence and long ones truncated: the share of positions that is padding,
    #: and the share of tokens that is truncated.
    padding: float
    truncated: float
    #: With packing and long samples split: the share of positions that is padding, and the share of
    #: samples that is split. Nothing is truncated.
    packed_padding: float
    split: float


@dataclass(frozen=True, slots=True)
class RunAdvice:
    """The draws of a run, and recommendations for its sources.

    Shares are fractions of all samples; the share of a nested dataset is the sum of its sources.
    """

    #: Empty without the size of the run.
    draws: tuple[SourceDraws, ...]
    #: Source -> share with which all sources have the same number of epochs.
    proportional: dict[str, float]
    #: Source -> share closest to the given one with which no source repeats too often; None without
    #: the size of the run, or if impossible.
    limited: dict[str, float] | None
    #: Empty if lengths have several units.
    sequence_lengths: tuple[SequenceLength, ...]
    advice: tuple[Advice, ...]

    def __iter__(self) -> Iterator[Advice]:
        return iter(self.advice)

    def to_json(self) -> dict[str, Any]:
        """Return the recommendations as JSON values."""
        return asdict(self)


def advise(
    lengths: Lengths,
    dataset: Any,
    *,
    num_samples: int | None = None,
    num_tokens: int | None = None,
    num_ranks: int = 1,
    num_workers: int = 1,
    sequence_lengths: Sequence[int] | None = None,
    max_epochs: float = MAX_EPOCHS,
) -> RunAdvice:
    """Recommend weights, parts and sequence lengths, as sentences with numbers.

    Parameters
    ----------
    lengths
        The result of `count_lengths` for the dataset.
    dataset
        The `MergedDataset`, or one source.
    num_samples, num_tokens
        Size of the run, one of the two as for `epochs_of`; without it repetitions are not checked.
    num_ranks, num_workers
        Data-parallel ranks, and loader workers of each.
    sequence_lengths
        Candidates, in the unit of the lengths; powers of two if None.
    max_epochs
        Maximum epochs of one source.

    Raises
    ------
    ConfigError
        If a number is out of range, or the lengths are of another dataset.
    """
    candidates = list(sequence_lengths or ())
    check_whole("num_ranks", num_ranks, 1)
    check_whole("num_workers", num_workers, 1)
    if not max_epochs > 0:
        raise ConfigError(f"max_epochs must be > 0, got {max_epochs}; give such a number")
    for length in candidates:
        check_whole("sequence_lengths", length, 1)
    check_lengths(lengths, dataset)
    draws: tuple[SourceDraws, ...] = ()
    if num_samples is not None or num_tokens is not None:
        draws = epochs_of(lengths, dataset, num_samples=num_samples, num_tokens=num_tokens)
    shares = find_shares(dataset)
    whole = max(1, sum(source.num_samples for source in lengths))
    run = RunAdvice(
        draws,
        proportional={source.name: source.num_samples / whole for source in lengths},
        limited=_limit_repeats(lengths, draws, shares, max_epochs),
        sequence_lengths=_choose_lengths(lengths, shares, candidates),
        advice=(),
    )
    advice = [
        *_advise_draws(lengths, draws, max_epochs),
        *_advise_weights(lengths, run, max_epochs),
        *_advise_length(lengths, run.sequence_lengths),
        *_advise_readers(list_sources(dataset), num_ranks, num_workers),
        *_note_sources(lengths),
        *_advise_units(lengths),
    ]
    return replace(run, advice=tuple(advice))


def _advise_draws(
    lengths: Lengths, draws: Sequence[SourceDraws], max_epochs: float
) -> Iterator[Advice]:
    """Report sources that repeat too often or are never finished."""
    for source, drawn in zip(lengths, draws, strict=bool(draws)):
        numbers = {"num_samples": drawn.num_samples, "num_epochs": drawn.num_epochs}
        if drawn.num_epochs > max_epochs:
            text = (
                f"{source.name!r} comes {drawn.num_epochs:,.2f} times, "
                f"{count_noun(drawn.num_samples, 'sample')} drawn of {source.num_samples:,}: "
                f"more than {max_epochs:g} epochs, so lower its share from {drawn.share:.3g} "
                "or find more of it."
            )
            yield Advice("repeats", source.name, text, numbers)
        elif 0 < drawn.num_epochs < 1:
            left = source.num_samples - drawn.num_samples
            text = (
                f"{source.name!r} is never finished: {drawn.num_samples:,} of its "
                f"{source.num_samples:,} samples ({drawn.num_epochs:.1%}) are drawn, and {left:,} "
                "are not."
            )
            yield Advice("unfinished", source.name, text, numbers)


def _limit_repeats(
    lengths: Lengths, draws: Sequence[SourceDraws], shares: dict[str, float], max_epochs: float
) -> dict[str, float] | None:
    """Return the shares with which no source repeats too often, if possible."""
    total = sum(drawn.num_samples for drawn in draws)
    at_most = [max_epochs * source.num_samples for source in lengths]
    if not 0 < total <= sum(at_most):
        return None
    parts = distribute(total, [shares[source.name] for source in lengths], at_most)
    return {source.name: part / total for source, part in zip(lengths, parts, strict=True)}


def _advise_weights(lengths: Lengths, run: RunAdvice, max_epochs: float) -> Iterator[Advice]:
    """Report the shares with which no source repeats too often, and those of equal epochs."""
    num_available = sum(source.num_samples for source in lengths)
    total = sum(drawn.num_samples for drawn in run.draws)
    if not total:
        return
    if run.limited is None:
        text = (
            f"The run draws {count_noun(total, 'sample')}, and {max_epochs:g} epochs of all "
            f"sources are only {max_epochs * num_available:,.0f}: without more data it has to "
            f"repeat {total / num_available:,.2f} times."
        )
        numbers = {"num_samples": total, "num_available": num_available}
        yield Advice("weights", None, text, numbers)
    elif any(drawn.num_epochs > max_epochs for drawn in run.draws):
        text = (
            f"With the shares {_list_shares(run.limited)} nothing repeats more than "
            f"{max_epochs:g} times."
        )
        yield Advice("weights", None, text, run.limited)
    if len(run.draws) > 1:
        text = (
            f"Shares in proportion to what there is, {_list_shares(run.proportional)}, draw "
            f"{total / num_available:,.2f} epochs of every source."
        )
        yield Advice("weights", None, text, run.proportional)


def _list_shares(shares: dict[str, float]) -> str:
    """Return the largest shares as text."""
    largest = sorted(shares, key=lambda name: -shares[name])[:_NUM_LISTED]
    listed = ", ".join(f"{name} {shares[name]:.3g}" for name in shares if name in largest)
    more = len(shares) - len(largest)
    return f"{listed} and {more:,} smaller ones" if more else listed


def _choose_lengths(
    lengths: Lengths, shares: dict[str, float], candidates: Sequence[int]
) -> tuple[SequenceLength, ...]:
    """Return the effects of candidate sequence lengths on the mixture."""
    sources = [source for source in lengths if source.histogram.num_tokens]
    if not sources or len({source.unit for source in sources}) > 1:
        return ()
    weights = [shares[source.name] for source in sources]
    weights = [weight / sum(weights) for weight in weights]

    def mean(total: Callable[..., float], *limits: int) -> float:
        """Return the mean over the samples of the mixture, from the totals of each source."""
        pairs = zip(weights, (source.histogram for source in sources), strict=True)
        return sum(weight * total(each, *limits) / each.num_samples for weight, each in pairs)

    mixed = _draw_mixture(sources, weights)
    tokens = mean(lambda histogram: histogram.num_tokens)
    rows = []
    for length in sorted(candidates) or _candidates(mixed):
        kept = mean(LengthHistogram.kept_tokens, length)
        num_places = count_packed(mixed, length, _MAX_DOCUMENTS) * length
        rows.append(
            SequenceLength(
                sequence_length=int(length),
                padding=max(0.0, 1 - kept / length),
                truncated=max(0.0, 1 - kept / tokens),
                packed_padding=float(1 - mixed.sum() / max(1, num_places)),
                split=mean(LengthHistogram.longer_samples, length),
            )
        )
    return tuple(rows)


def _draw_mixture(sources: Sequence[SourceLengths], weights: Sequence[float]) -> Int64Array:
    """Return representative lengths of the mixture."""
    drawn = [
        source.histogram.draw(math.ceil(weight * _NUM_PACKED))
        for source, weight in zip(sources, weights, strict=True)
    ]
    lengths = np.concatenate(drawn)
    return np.minimum(lengths[lengths > 0], np.iinfo(np.int32).max)


def _candidates(mixed: Int64Array) -> list[int]:
    """Return the powers of two from about the median length to the longest."""
    first = max(3, int(np.median(mixed)).bit_length() - 1)
    last = min(_MAX_SEQUENCE_LENGTH.bit_length() - 1, (int(mixed.max()) - 1).bit_length())
    last = max(first, min(last, first + _MAX_CANDIDATES - 1))
    return [1 << power for power in range(first, last + 1)]


def _advise_length(lengths: Lengths, rows: Sequence[SequenceLength]) -> Iterator[Advice]:
    """Recommend the shortest sequence length that truncates little."""
    if not rows:
        return
    row = next((row for row in rows if row.truncated <= _MAX_TRUNCATED), rows[-1])
    unit = next(source.unit for source in lengths if source.histogram.num_tokens)
    text = (
        f"A sequence length of {row.sequence_length:,} cuts off {row.truncated:.2%} of the {unit} "
        f"and leaves {row.padding:.1%} of the places as padding with one sample a sequence; packed "
        f"it cuts off nothing, leaves {row.packed_padding:.1%} as padding, and splits "
        f"{row.split:.2%} of the samples."
    )
    yield Advice("sequence_length", None, text, asdict(row))


def _advise_readers(
    sources: Sequence[StreamSource], num_ranks: int, num_workers: int
) -> Iterator[Advice]:
    """Warn of sources with fewer parts than readers."""
    num_readers = num_ranks * num_workers
    for source in sources:
        if source.num_items >= num_readers:
            continue
        if source.cyclic:
            num_epochs = -(-num_readers // max(1, source.num_items))
            effect = f"{num_epochs} of its epochs are read at the same time"
        else:
            effect = f"{num_readers - source.num_items:,} of them read nothing of it"
        remedy = "make its part_nbytes smaller, or its files more"
        text = (
            f"{source.name!r} has {count_noun(source.num_items, source.kind[:-1])} for "
            f"{num_readers:,} readers ({count_noun(num_ranks, 'rank')} of "
            f"{count_noun(num_workers, 'loader worker')}), so {effect}: "
            f"{remedy if source.is_partitioned else 'add more'}."
        )
        numbers = {"num_parts": source.num_items, "num_lanes": num_readers}
        yield Advice("lanes", source.name, text, numbers)


def _note_sources(lengths: Lengths) -> Iterator[Advice]:
    """Report estimated, damaged and empty sources."""
    for source in lengths:
        if source.is_estimate:
            text = (
                f"The numbers of {source.name!r} are estimates: {source.fraction_read:.2%} of it "
                f"was read, {count_noun(source.histogram.num_samples, 'sample')}."
            )
            yield Advice("estimate", source.name, text, {"fraction_read": source.fraction_read})
        if source.num_skipped:
            text = (
                f"{source.name!r} lost {count_noun(source.num_skipped, 'damaged sample')}, or "
                f"rests of files, next to {source.histogram.num_samples:,} that were read; restore "
                "its files."
            )
            yield Advice("damage", source.name, text, {"num_skipped": source.num_skipped})
        if not source.histogram.num_samples:
            where = count_noun(source.num_parts, source.kind.removesuffix("s"))
            text = f"{source.name!r} gave 0 samples in {where}."
            yield Advice("empty", source.name, text, {"num_parts": source.num_parts})


def _advise_units(lengths: Lengths) -> Iterator[Advice]:
    """Report lengths that are not measured in tokens."""
    for source in lengths:
        if source.unit == "samples":
            text = (
                f"{source.name!r} is counted in samples only, which have no tokens and no text: "
                "give length_of, which returns the tokens of a sample, to count these too."
            )
            yield Advice("unit", source.name, text, {"num_samples": source.num_samples})
    others = [source for source in lengths if source.unit in {"characters", "bytes"}]
    if others:
        names = ", ".join(repr(source.name) for source in others[:_NUM_LISTED])
        if len(others) > _NUM_LISTED:
            names += f" and {len(others) - _NUM_LISTED:,} more"
        text = (
            f"The lengths of {names} are in "
            f"{' and '.join(sorted({source.unit for source in others}))}: give "
            "length_of=TextLength(tokenizer) (--tokenizer FILE) to count tokens."
        )
        yield Advice("unit", None, text, {"num_sources": len(others)})
