"""Open the stream of a source in a worker slot, by the kind of the source."""

from collections.abc import Iterator, Sequence
from itertools import islice

from zindex.streaming.item_stream import ItemStream
from zindex.streaming.packed_stream import PackedStream, WholeStream
from zindex.streaming.protocols import Sample
from zindex.streaming.source_streams import PartStream, SourceStream, UrlStream
from zindex.streaming.sources import StreamSource, list_views
from zindex.streaming.worker_slots import Changes, Entries, StreamStart, write_changes


class GrownStream:
    """A source to which files were added: its views one after the other, oldest first."""

    def __init__(self, views: Sequence[SourceStream]) -> None:
        self._views = views

    def entries(self) -> Entries:
        """Return the checkpoint of the worker slot."""
        return {key: value for view in self._views for key, value in view.entries().items()}

    def pairs(self) -> Iterator[tuple[Sample, Changes]]:
        """Yield the samples of the worker slot, each with the entries that it changed."""
        ended: Entries = {}
        for view in self._views:
            pairs = view.pairs()
            for sample, (_, key, cursor) in islice(pairs, 1):
                yield sample, (write_changes(ended), key, cursor)
            yield from pairs
            ended |= view.entries()


def open_source(source: StreamSource, start: StreamStart) -> SourceStream | GrownStream:
    """Return the stream of a source in a worker slot."""
    views = list_views(source, start.origin)
    opened = [_open_view(view, start) for view in views]
    return opened[0] if len(opened) == 1 else GrownStream(opened)


def _open_view(source: StreamSource, start: StreamStart) -> SourceStream:
    if source.is_packed:
        return (WholeStream if source.is_whole else PackedStream)(source, start)
    kinds = {"files": UrlStream, "parts": PartStream, "items": ItemStream}
    return kinds[source.kind](source, start)
