"""State of an edited run: its segments, the sources that they draw from, and its edits.

Pure arithmetic. A run is a list of segments, each a span of one blend. An edit at a position ends
the current segment and continues the run with another blend, whose k-th sample of a dataset is the
k-th sample that no earlier segment has consumed or skipped. The samples of a dataset are those of
its sources in order: its index, further passes over it, or the remaining tokens of one of these,
split again after a change of the sequence length. Forgotten documents are left out of the samples
that hold them; a position whose sample holds nothing else gets the last sample of the run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from zindex.errors import ConfigError, PlanError, StoreError
from zindex.plan.segments import Segment, cut_at
from zindex.store.checked_json import STORED, parse_as

#: Version of the algorithm; bumped when the same edit gives another run.
EDIT_VERSION = 1

# Names of fields in journals, where they differ.
_STORED_NAMES = {"consumed": "used", "num_consumed": "num_used"}
_USED, _NUM_USED = ({STORED: name} for name in _STORED_NAMES.values())
# Names of stores in the folder of a run.
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of one edit; existing datasets are named by their number in the run."""

    #: New weights of datasets of the run, in the scale of the weights that stay.
    reweight: Mapping[int, float]
    #: Weights of added datasets, by path.
    add: Mapping[str, float]
    drop: tuple[int, ...] = ()
    #: Positions to leave out, half-open, as numbered before the edit.
    skip: tuple[int, int] | None = None
    sequence_length: int | None = None
    #: Samples of the whole run, consumed ones too.
    num_samples: int | None = None
    #: Number of documents to forget, by the number of their dataset.
    forget: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_new_plan(self) -> bool:
        """Whether the run continues with a new blend."""
        return bool(self.reweight or self.add or self.drop) or not (
            self.sequence_length is None and self.num_samples is None
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without the documents to forget if there are none."""
        known = asdict(self)
        for name in ("reweight", "forget"):
            known[name] = {str(k): v for k, v in sorted(known[name].items())}
        if not self.forget:
            del known["forget"]
        return known


@dataclass(frozen=True, slots=True)
class Source:
    """Samples of a dataset, numbered from 0: an index, or remaining tokens that are split again."""

    #: Number of the dataset in the run.
    dataset: int
    #: Samples requested of its index; None for one epoch, or for tokens that are split again.
    num_requested: int | None
    num_samples: int
    sequence_length: int
    seed: int
    #: Fingerprint of its index; None for tokens that are split again.
    index: str | None = None
    #: The source whose unconsumed samples are split again; None for an index.
    parent: int | None = None
    #: The first blend that draws from it.
    blend: int = 0
    #: Ends of the spans of samples that are shuffled separately, for tokens that are split again.
    windows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumedFacts:
    """The consumed samples of a source: all below `first`, and those whose bits are set."""

    source: int
    #: Sample of the first bit; bits are stored for ``[first, stop)``.
    first: int
    #: All samples from here on are unconsumed.
    stop: int
    num_consumed: int = field(metadata=_NUM_USED)


@dataclass(frozen=True, slots=True)
class BlendFacts:
    """One blend of a run, and the samples that were consumed before it."""

    #: Datasets that it draws from, in order of their ids.
    datasets: tuple[int, ...]
    #: Weights, or the samples of each if all of them are drawn; the other is None.
    weights: tuple[float, ...] | None
    sizes: tuple[int, ...] | None
    num_samples: int
    seed: int
    #: For every source that may still be drawn from, in ascending order.
    consumed: tuple[ConsumedFacts, ...] = field(default=(), metadata=_USED)
    #: For every source whose tokens were split again, by the numbers of its index's samples.
    cut: tuple[ConsumedFacts, ...] = ()
    #: Name of the store with the bits of ``consumed`` or ``cut``; None if there are none.
    store: str | None = None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Documents of one dataset that no sample holds from a position on."""

    dataset: int
    position: int
    #: Ascending numbers of documents in the dataset.
    documents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Touched:
    """The samples of one source that hold a forgotten document, as an input or as a label."""

    source: int
    #: Ascending numbers, as drawn.
    samples: tuple[int, ...]


def _name_fields(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return fields by their names in journals."""
    return {_STORED_NAMES.get(name, name): value for name, value in fields}


@dataclass(frozen=True, slots=True)
class RunState:
    """A run with its edits: everything that maps a position to a sample."""

    #: Paths; the added ones are last.
    datasets: tuple[str, ...]
    #: Weights in the scale of the run's file; None for a dataset that was dropped.
    weights: tuple[float | None, ...]
    #: Tokens of each dataset that were consumed before the last blend.
    consumed_tokens: tuple[int, ...]
    sequence_length: int
    sources: tuple[Source, ...]
    blends: tuple[BlendFacts, ...]
    segments: tuple[Segment, ...]
    #: Skipped spans of blends: blend, first position, one after the last.
    skipped: tuple[tuple[int, int, int], ...] = ()
    #: Forgotten documents; none twice.
    forgotten: tuple[Forgotten, ...] = ()
    #: In ascending order of sources.
    touched: tuple[Touched, ...] = ()

    @property
    def num_samples(self) -> int:
        """Samples of the whole run."""
        return self.segments[-1].stop if self.segments else 0

    @property
    def is_exhaustive(self) -> bool:
        """Whether the last blend draws a fixed number of samples of each dataset."""
        return self.blends[-1].sizes is not None

    def to_json(self, num_given: int) -> dict[str, Any]:
        """Return the fields as JSON values, without the paths of the first datasets."""
        known = asdict(self, dict_factory=_name_fields)
        if not self.forgotten:
            del known["forgotten"], known["touched"]
        return known | {"datasets": list(self.datasets[num_given:])}

    @classmethod
    def from_json(cls, fields: Any, given: Sequence[str]) -> "RunState":
        """Return the state that `to_json` wrote, of a run of given datasets; StoreError if not."""
        state = parse_as(cls, fields, "the state of an edited run")
        state = replace(state, datasets=(*given, *state.datasets))
        state.check()
        return state

    def check(self) -> None:
        """Refuse a state that no edit can produce, such as a number out of range or a gap."""
        num_datasets, num_sources = len(self.datasets), len(self.sources)
        num_blends = len(self.blends)
        starts = [0, *(item.stop for item in self.segments)]
        consumed = [row for blend in self.blends for row in (*blend.consumed, *blend.cut)]
        drawn = [dataset for blend in self.blends for dataset in blend.datasets]
        rules = {
            "a weight and tokens of every dataset": (
                len(self.weights) == len(self.consumed_tokens) == num_datasets
                and min((w for w in self.weights if w is not None), default=1) > 0
                and min(self.consumed_tokens, default=0) >= 0
            ),
            "a blend, and samples of tokens": num_blends > 0 and self.sequence_length > 0,
            "segments of its blends without a gap": all(
                item.start == start <= item.stop
                and 0 <= item.blend < num_blends
                and item.offset >= 0
                for item, start in zip(self.segments, starts, strict=False)
            ),
            "sources of its datasets": all(
                0 <= item.dataset < num_datasets
                and (item.parent is None or 0 <= item.parent < number)
                and item.num_samples >= 0
                and item.sequence_length > 0
                for number, item in enumerate(self.sources)
            ),
            "blends of its datasets and sources": (
                all(0 <= dataset < num_datasets for dataset in drawn)
                and all(
                    0 <= row.source < num_sources and 0 <= row.first <= row.stop for row in consumed
                )
                and all(blend.num_samples >= 0 for blend in self.blends)
            ),
            "documents to forget of its datasets, and samples of its sources that hold them": (
                all(
                    0 <= item.dataset < num_datasets
                    and item.position >= 0
                    and _is_ascending(item.documents)
                    for item in self.forgotten
                )
                and _is_ascending([item.source for item in self.touched], num_sources)
                and all(
                    _is_ascending(item.samples, self.sources[item.source].num_samples)
                    for item in self.touched
                )
            ),
            "names of folders for its stores": all(
                blend.store is None or _FOLDER.fullmatch(blend.store) for blend in self.blends
            ),
        }
        failed = [rule for rule, holds in rules.items() if not holds]
        if failed:
            raise StoreError(
                f"the state of an edited run must have {failed[0]}; restore the file of the edit"
            )


def _is_ascending(numbers: Sequence[int], stop: int | None = None) -> bool:
    """Return whether numbers ascend from 0 or later, and end before a number."""
    is_within = not numbers or (numbers[0] >= 0 and (stop is None or numbers[-1] < stop))
    return is_within and all(a < b for a, b in pairwise(numbers))


def consumed_ranges(state: RunState, blend: int, position: int) -> tuple[list[Any], list[Any]]:
    """Return the spans of a blend before a position of the run, and its skipped spans.

    Returns
    -------
    consumed, skipped
        Half-open, disjoint spans of the blend's own positions.
    """
    consumed = [
        (item.offset, item.offset + item.stop - item.start)
        for item in cut_at(state.segments, position)
        if item.blend == blend
    ]
    return consumed, [(start, stop) for number, start, stop in state.skipped if number == blend]


def check_position(state: RunState, position: int, *, last: int) -> None:
    """Check that an edit is within the run, and not before the last one; PlanError if not."""
    if not 0 <= position <= state.num_samples:
        raise PlanError(
            f"an edit must lie within the run of {state.num_samples:,} samples, got position "
            f"{position:,}; give the number of consumed samples"
        )
    if position < last:
        raise PlanError(
            f"an edit must not be before the last one, at position {last:,}, got {position:,}; "
            "what was trained on is not changed any more"
        )


def check_change(state: RunState, change: Change, position: int, *, last: int) -> None:
    """Check that an edit fits the run.

    Parameters
    ----------
    state
        The run before the edit.
    change, position
        The edit.
    last
        Position of the edit before it; 0 if there is none.

    Raises
    ------
    ConfigError
        If the edit names an unknown dataset, or changes nothing.
    PlanError
        If its positions are not among the remaining ones of the run.
    """
    check_position(state, position, last=last)
    if change.skip is None and not change.is_new_plan:
        raise ConfigError("an edit must change something, got no change; name one")
    skip = change.skip
    if skip is not None and not position <= skip[0] < skip[1] <= state.num_samples:
        raise PlanError(
            f"positions to skip must lie in [{position:,}, {state.num_samples:,}), what is to come "
            f"of the run, got [{skip[0]:,}, {skip[1]:,}); give a range of those"
        )
    for dataset in (*change.reweight, *change.drop):
        if state.weights[dataset] is None:
            raise ConfigError(
                f"an edit must name datasets that the run draws from, '{state.datasets[dataset]}' "
                "was dropped; add it to draw from it again"
            )
    twice = set(change.reweight) & set(change.drop)
    if twice:
        raise ConfigError(
            f"an edit must do one thing to a dataset, '{state.datasets[min(twice)]}' is to be "
            "dropped and to have a weight; leave one out"
        )
    named = {state.datasets[d]: weight for d, weight in change.reweight.items()}
    for path, weight in {**named, **change.add}.items():
        if not 0 < weight <= 1e300:
            raise ConfigError(
                f"weights of an edit must be positive numbers, got {weight} for '{path}'; drop "
                "the dataset, or leave it out"
            )
    kept = sum(weight is not None for weight in state.weights) - len(change.drop)
    if not kept and not change.add:
        raise PlanError("an edit must leave a dataset to draw from, got all dropped; keep one")
    _check_lengths(state, change, position)


def _check_lengths(state: RunState, change: Change, position: int) -> None:
    """Check the sequence length and the number of samples of an edit."""
    length = change.sequence_length
    if length is not None and (length < 1 or length == state.sequence_length):
        raise ConfigError(
            f"sequence_length of an edit must be at least 1 and not {state.sequence_length}, the "
            f"run's, got {length}; leave it out to keep it"
        )
    if change.num_samples is not None and change.num_samples <= position:
        raise PlanError(
            f"a run must have more samples than the {position:,} before its edit, got "
            f"{change.num_samples:,}; give the samples of the whole run"
        )


def plan_next(
    state: RunState, change: Change, position: int, planned: Sequence[int], *, seed: int
) -> tuple[RunState, BlendFacts]:
    """Return the run's datasets after an edit, and its next blend without consumed samples.

    Parameters
    ----------
    state
        The run before the edit, without the positions that it skips.
    change, position
        The edit; checked.
    planned
        Samples of each dataset that the last blend would still have drawn.
    seed
        Seed of the next blend.

    Raises
    ------
    PlanError
        If nothing is left to draw.

    Notes
    -----
    A blend with fixed numbers of samples, by tokens, epochs or sizes, remains one until an edit
    gives a weight: each dataset keeps its remaining samples. Otherwise the rest of the run is
    divided by weights. A longer sequence length gives fewer samples of the same tokens.
    """
    length = change.sequence_length or state.sequence_length
    weights = list(state.weights)
    given = state.is_exhaustive
    if given:
        total = max(1, sum(planned))
        weights = [
            None if weight is None else count / total
            for weight, count in zip(weights, planned, strict=True)
        ]
    for dataset in change.drop:
        weights[dataset] = None
    for dataset, weight in change.reweight.items():
        weights[dataset] = weight
    datasets = list(state.datasets)
    for path, weight in change.add.items():
        if path in datasets:
            weights[datasets.index(path)] = weight
        else:
            datasets.append(path)
            weights.append(weight)
    scale = Fraction(state.sequence_length, length)
    kept = tuple(d for d, weight in enumerate(weights) if weight)
    sizes: tuple[int, ...] | None = None
    if given and not (change.reweight or change.add) and change.num_samples is None:
        counts = {d: int(planned[d] * scale) for d in kept}
        kept = tuple(d for d in kept if counts[d])
        sizes = tuple(counts[d] for d in kept)
        num_samples = sum(sizes)
    elif change.num_samples is not None:
        num_samples = change.num_samples - position
    else:
        num_samples = int((state.num_samples - position) * scale)
    if num_samples < 1:
        raise PlanError(
            f"an edit at position {position:,} must leave samples to draw, got none; set "
            "num_samples (--num-samples) to let the run go on"
        )
    changed = replace(
        state,
        datasets=tuple(datasets),
        weights=tuple(weights),
        consumed_tokens=(*state.consumed_tokens, *[0] * (len(datasets) - len(state.datasets))),
        sequence_length=length,
        segments=cut_at(state.segments, position),
    )
    shares = None if sizes is not None else tuple(float(weights[d] or 0) for d in kept)
    return changed, BlendFacts(kept, shares, sizes, num_samples, seed)


def cut_windows(bounds: Sequence[int], old_length: int, new_length: int) -> tuple[int, ...]:
    """Return the ends of the spans in which samples of another length are shuffled.

    Parameters
    ----------
    bounds
        Unconsumed samples of the old length up to the end of each of its spans, such as epochs.
    old_length, new_length
        Tokens per sample.

    Returns
    -------
    windows
        Ascending, each > 0; the last one is the number of samples. A sample belongs to the span in
        which it starts.

    Examples
    --------
    >>> cut_windows([3, 3, 5], 4, 6)
    (2, 3)
    """
    num_samples = bounds[-1] * old_length // new_length if bounds else 0
    ends = {min(-(-bound * old_length // new_length), num_samples) for bound in bounds}
    return tuple(sorted(ends - {0}))
