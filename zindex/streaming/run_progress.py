"""How far a run is in each of its sources, as its state tells."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from zindex.errors import StateMismatchError
from zindex.streaming.lanes import Lane
from zindex.streaming.leaf_streams import split_urls
from zindex.streaming.leaves import Leaf
from zindex.streaming.merged_dataset import MergedDataset
from zindex.streaming.pool import Pool
from zindex.streaming.state import LoadedState, State, load_state


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far a run is in one source."""

    name: str
    #: What an epoch is read in: ``"parts"``, ``"files"`` or ``"items"``.
    kind: str
    #: Epochs of which something was delivered, and those of which everything was.
    epochs_begun: int
    epochs_finished: int
    #: Parts, files or items of an epoch, and those finished of the first unfinished epoch.
    num_items: int
    num_finished: int
    #: Parts or files of which some samples were delivered, and these samples.
    num_begun: int
    num_delivered: int
    #: Damaged samples, or rests of files, that were left out.
    num_skipped: int

    @property
    def num_epochs(self) -> float:
        """Epochs finished, with the finished share of the first unfinished one.

        Parts that are begun count as nothing: nobody knows how many samples they have.
        """
        return self.epochs_finished + self.num_finished / max(1, self.num_items)

    @property
    def most_epochs(self) -> float:
        """The same if parts that are begun count as finished; the run is between both."""
        return self.num_epochs + self.num_begun / max(1, self.num_items)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is in all sources, in the order of the dataset."""

    sources: tuple[SourceProgress, ...]

    def __iter__(self) -> Iterator[SourceProgress]:
        return iter(self.sources)

    def __getitem__(self, name: str) -> SourceProgress:
        """Return how far a run is in a source, by its name."""
        return {source.name: source for source in self.sources}[name]

    def to_text(self) -> str:
        """Return a line for each source."""
        return "\n".join(map(_to_line, self.sources))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        rows = [
            asdict(source) | {"num_epochs": source.num_epochs, "most_epochs": source.most_epochs}
            for source in self.sources
        ]
        return {"sources": rows}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Progress":
        """Return what `to_json` wrote."""
        names = SourceProgress.__dataclass_fields__
        rows = [{name: row[name] for name in names} for row in fields["sources"]]
        return cls(tuple(SourceProgress(**row) for row in rows))


def progress(dataset: MergedDataset, state: State) -> Progress:
    """Return how far a run is in each source.

    Parameters
    ----------
    dataset
        The `MergedDataset` of the run.
    state
        The state of all ranks, as `merge_states` or `gather_states` gives it; ``{}`` before the
        first sample.

    Raises
    ------
    StateMismatchError
        If it is the state of one rank of several, or of other datasets.

    Notes
    -----
    A part whose last sample was delivered counts as finished with the next sample of its reader.
    With a ``customized_yield_fn`` it tells what was read for the samples that were delivered.
    """
    leaves = dataset.leaves()
    loaded = load_state(state) if state else None
    if loaded is not None:
        _check(loaded, leaves)
    return Progress(tuple(_find_progress(leaf, loaded) for leaf in leaves))


def _check(loaded: LoadedState, leaves: list[Leaf]) -> None:
    names = sorted(leaf.name for leaf in leaves)
    if sorted(loaded.origin.identities) != names:
        raise StateMismatchError(
            f"progress in the datasets {names} needs a state of them, got one of "
            f"{sorted(loaded.origin.identities)}; take the dataset that it was saved of"
        )
    if loaded.own is not None and loaded.own[1] > 1:
        raise StateMismatchError(
            f"progress needs the states of all {loaded.own[1]} ranks, got that of rank "
            f"{loaded.own[0]}; take gather_states(state), or merge_states of all"
        )


def _find_progress(leaf: Leaf, loaded: LoadedState | None) -> SourceProgress:
    """Return how far a run is in one source."""
    pool, num_skipped = Pool(), 0
    cursors: dict[int, tuple[int, int, int]] = {}
    num_ranks = num_slots = 1
    if loaded is not None:
        pool = loaded.origin.pool(leaf.name)
        num_ranks, num_slots = loaded.num_ranks or 1, loaded.num_slots or 1
        cursors = {
            number: tuple(entries[leaf.key])
            for number, entries in loaded.lanes.items()
            if leaf.key in entries
        }
        num_skipped = loaded.origin.skipped.get(leaf.name, 0)
        num_skipped += sum(skipped for _, _, skipped in cursors.values())
    if leaf.order == "cogdata_urlbuffer" and pool == Pool():
        counts = _count_files(leaf, cursors, num_ranks, num_slots)
    else:
        begun = {number: cursor[:2] for number, cursor in cursors.items()}
        counts = _count_items(pool.after(begun, num_ranks * num_slots), leaf.num_items)
    kind = "files" if leaf.order == "cogdata_urlbuffer" else "parts" if leaf.is_parted else "items"
    return SourceProgress(leaf.name, kind, *counts, num_skipped)


_Counts = tuple[int, int, int, int, int, int]


def _count_items(pool: Pool, size: int) -> _Counts:
    """Return what is finished and begun of items that all lanes share."""
    size = max(1, size)
    epoch, end = pool.low // size, max([pool.low, *(stop for _, stop in pool.ahead)])
    # What lies below the lowest free item is finished, unless it is begun.
    unfinished = [part for part, _ in pool.begun if part < pool.low]
    if unfinished:
        epoch = unfinished[0] // size
    first, last = epoch * size, (epoch + 1) * size
    num_finished = min(pool.low, last) - first - sum(part < last for part in unfinished)
    num_finished += sum(
        max(0, min(stop, last) - max(start, first, pool.low)) for start, stop in pool.ahead
    )
    touched = max([end, *(part + 1 for part, _ in pool.begun)])
    delivered = sum(count for _, count in pool.begun)
    return -(-touched // size), epoch, size, num_finished, len(pool.begun), delivered


def _count_files(
    leaf: Leaf, cursors: dict[int, tuple[int, int, int]], num_ranks: int, num_slots: int
) -> _Counts:
    """Return what is finished and begun of files that each lane has its own of.

    Lanes come to their epochs by themselves; the first unfinished one is that of the slowest.
    """
    owns, finished = [], []
    for number in range(num_ranks * num_slots):
        rank, slot = divmod(number, num_slots)
        owns.append(len(split_urls(leaf.num_items, Lane(rank, num_ranks, slot, num_slots))))
        finished.append(cursors.get(number, (0, 0, 0)))
    epoch = min(done[0] // own for done, own in zip(finished, owns, strict=True))
    num_finished = sum(
        min(done[0] - epoch * own, own) for done, own in zip(finished, owns, strict=True)
    )
    begun = max(
        done[0] // own + bool(done[1] or done[0] % own)
        for done, own in zip(finished, owns, strict=True)
    )
    delivered = [done[1] for done in finished if done[1]]
    return begun, epoch, sum(owns), num_finished, len(delivered), sum(delivered)


def _to_line(source: SourceProgress) -> str:
    """Return how far a run is in one source, for people."""
    epochs = f"{source.num_epochs:,.2f}"
    if source.num_begun:
        epochs += f" to {source.most_epochs:,.2f}"
    kind = source.kind if source.num_items != 1 else source.kind.removesuffix("s")
    line = (
        f"{source.name}: {epochs} epochs, {source.num_finished:,} of {source.num_items:,} {kind} "
        f"of epoch {source.epochs_finished:,} finished"
    )
    if source.num_begun:
        noun = "sample" if source.num_delivered == 1 else "samples"
        line += f" and {source.num_begun:,} begun ({source.num_delivered:,} {noun} of them so far)"
    if source.epochs_begun > source.epochs_finished + 1:
        line += f", up to epoch {source.epochs_begun - 1:,}"
    if source.num_skipped:
        line += f", {source.num_skipped:,} damaged left out"
    return line
