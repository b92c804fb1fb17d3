"""Progress of a run in each of its sources, from its state."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from zindex.streaming.merged_dataset import MergedDataset
from zindex.streaming.packed_stream import count_sequences
from zindex.streaming.source_streams import TOKENS, split_urls
from zindex.streaming.sources import StreamSource, list_views
from zindex.streaming.state import LoadedState, State, load_state
from zindex.streaming.worker_slots import Cursor, StreamOrigin, UnreadPartitions
from zindex.wording import count_noun


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of a run in one source."""

    name: str
    #: Units of an epoch: ``"parts"``, ``"files"`` or ``"items"``, or ``"sequences"`` of a source
    #: that is packed as a whole.
    kind: str
    #: Epochs that were started, and epochs that were delivered completely.
    epochs_begun: int
    epochs_finished: int
    #: Units of an epoch, and finished units of the first unfinished epoch.
    num_items: int
    num_finished: int
    #: Partly read units, and their delivered samples.
    num_begun: int
    num_delivered: int
    #: Number of damaged samples, and truncated files, that were skipped.
    num_skipped: int

    @property
    def num_epochs(self) -> float:
        """Finished epochs, with the finished share of the first unfinished one.

        Partly read units count as unread, because their number of samples is unknown.
        """
        return self.epochs_finished + self.num_finished / max(1, self.num_items)

    @property
    def most_epochs(self) -> float:
        """The same, counting partly read units as finished: an upper bound."""
        return self.num_epochs + self.num_begun / max(1, self.num_items)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Progress of a run in all sources, in the order of the dataset."""

    sources: tuple[SourceProgress, ...]

    def __iter__(self) -> Iterator[SourceProgress]:
        return iter(self.sources)

    def __getitem__(self, name: str) -> SourceProgress:
        """Return the progress in a source by its name."""
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


def progress(dataset: MergedDataset, state: State) -> StreamProgress:
    """Return the progress of a run in each source.

    Parameters
    ----------
    dataset
        The `MergedDataset` of the run.
    state
        The state of all ranks, from `merge_states` or `gather_states`; ``{}`` before the first
        sample.

    Raises
    ------
    StateMismatchError
        If it is the state of one rank of several, or of other datasets.

    Notes
    -----
    A part whose last sample was delivered counts as finished once its reader delivers the next
    sample. With a ``customized_yield_fn``, inputs of the delivered outputs are counted.
    """
    sources = dataset.sources()
    loaded = LoadedState(StreamOrigin("", {}), {}, 1, 1, {}, None)
    if state:
        loaded = load_state(state)
        loaded.check_names([source.name for source in sources])
        loaded.check_all_ranks("progress")
    return StreamProgress(tuple(_find_progress(source, loaded) for source in sources))


def _find_progress(source: StreamSource, loaded: LoadedState) -> SourceProgress:
    """Return the progress of a run in one source: in its oldest view that is not finished."""
    num_skipped = 0
    for view in list_views(source, loaded.origin):
        unread, cursors = loaded.origin.unread(view.view), loaded.cursors(view.view)
        size, kind = view.num_items, source.kind
        if view.is_whole:
            size, kind = count_sequences(view, loaded.origin.iteration), "sequences"
        elif source.is_packed:  # samples of the files, some of whose tokens may be delivered, too
            cursors = [(done, -(-place // TOKENS), *rest) for done, place, *rest in cursors]
            begun = tuple((part, -(-place // TOKENS)) for part, place in unread.begun)
            unread = replace(unread, begun=begun)
        before = loaded.origin.skipped.get(view.view, 0)
        num_skipped += before + sum(cursor[2] for cursor in cursors)
        if source.kind == "files" and unread == UnreadPartitions():
            owns = [len(split_urls(source.num_items, slot)) for slot in loaded.slots]
            counts = _count_files(owns, cursors)
        else:
            left = unread.after(cursors)
            counts = _count_items(left, size)
            if view.last is not None and not left.is_finished(view.last):
                break
    return SourceProgress(source.name, kind, *counts, num_skipped)


_Counts = tuple[int, int, int, int, int, int]


def _count_items(unread: UnreadPartitions, size: int) -> _Counts:
    """Return the finished and partly read units of a source that all worker slots share."""
    size = max(1, size)
    epoch, end = unread.low // size, max([unread.low, *(stop for _, stop in unread.ahead)])
    # Units below the lowest free one are finished or partly read.
    unfinished = [part for part, _ in unread.begun if part < unread.low]
    if unfinished:
        epoch = unfinished[0] // size
    first, last = epoch * size, (epoch + 1) * size
    num_finished = min(unread.low, last) - first - sum(part < last for part in unfinished)
    num_finished += sum(
        max(0, min(stop, last) - max(start, first, unread.low)) for start, stop in unread.ahead
    )
    touched = max([end, *(part + 1 for part, _ in unread.begun)])
    delivered = sum(count for _, count in unread.begun)
    return -(-touched // size), epoch, size, num_finished, len(unread.begun), delivered


def _count_files(owns: list[int], cursors: list[Cursor]) -> _Counts:
    """Return the finished and partly read files of a source that worker slots do not share.

    Each worker slot counts its own epochs; the first unfinished one is that of the slowest slot.
    """
    rows = [(own, *cursor[:2]) for own, cursor in zip(owns, cursors, strict=True)]
    epoch = min(finished // own for own, finished, _ in rows)
    begun = max(-(-(finished + bool(delivered)) // own) for own, finished, delivered in rows)
    num_finished = sum(min(finished - epoch * own, own) for own, finished, _ in rows)
    delivered_of_begun = [delivered for _, _, delivered in rows if delivered]
    num_begun = len(delivered_of_begun)
    return begun, epoch, sum(owns), num_finished, num_begun, sum(delivered_of_begun)


def _to_line(source: SourceProgress) -> str:
    """Return the progress in one source as a line of text."""
    epochs = f"{source.num_epochs:,.2f}"
    if source.num_begun:
        epochs += f" to {source.most_epochs:,.2f}"
    kind = source.kind if source.num_items != 1 else source.kind.removesuffix("s")
    line = (
        f"{source.name}: {epochs} epochs, {source.num_finished:,} of {source.num_items:,} {kind} "
        f"of epoch {source.epochs_finished:,} finished"
    )
    if source.num_begun:
        samples = count_noun(source.num_delivered, "sample")
        line += f" and {source.num_begun:,} begun ({samples} of them so far)"
    if source.epochs_begun > source.epochs_finished + 1:
        line += f", up to epoch {source.epochs_begun - 1:,}"
    if source.num_skipped:
        line += f", {source.num_skipped:,} damaged skipped"
    return line
