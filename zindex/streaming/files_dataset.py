"""The base of the datasets of files: samples through a process function, part by part."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from zindex.errors import ConfigError
from zindex.sources.damage_log import OnDamage
from zindex.sources.sample_files import SampleFiles
from zindex.store.identity import fingerprint

Sample = dict[str, Any]
#: Takes the raw samples of a part and yields those of the dataset; called afresh on each part.
ProcessFn = Callable[[Iterator[Sample]], Iterable[Sample]]


class FilesDataset(IterableDataset[Sample]):
    """The samples that a process function makes of those of files.

    Parameters
    ----------
    files
        Where the raw samples are.
    process_fn
        Takes an iterator of the raw samples of a part and yields samples, each with the
        ``__url__`` and ``__key__`` of one that it is made of. It is called afresh on each part and
        must yield what it still holds when its source ends. None: samples stay as they are. Its
        ``num_skipped`` and ``fingerprint()``, where it has them, count for the dataset's.
    shuffle_buffer
        Samples of a part among which `MergedDataset` draws the next; 0: files' own order.
    on_damage
        What the files do about damage.

    Raises
    ------
    ConfigError
        If a setting is refused.

    Notes
    -----
    Iterated by itself it gives its parts in order, shared between the workers of a DataLoader, and
    is neither shuffled nor resumed: that is what `MergedDataset` does.
    """

    def __init__(
        self,
        files: SampleFiles,
        process_fn: ProcessFn | None,
        shuffle_buffer: int,
        on_damage: OnDamage = "error",
    ) -> None:
        if process_fn is not None and not callable(process_fn):
            raise ConfigError(
                "process_fn must be a function from samples to samples, or None, got "
                f"{type(process_fn).__name__}"
            )
        if not isinstance(shuffle_buffer, int) or shuffle_buffer < 0:
            raise ConfigError(
                f"shuffle_buffer must be a number of samples, 0 for none, got {shuffle_buffer!r}"
            )
        self.files = files
        # Whether samples may be left out at all.
        self.may_skip = on_damage == "skip" or hasattr(process_fn, "num_skipped")
        self.process_fn = process_fn
        self.shuffle_buffer = shuffle_buffer
        self.urls = list(files.urls)
        self.num_parts = files.num_parts

    @property
    def num_skipped(self) -> int:
        """Damaged samples, and rests of files, left out so far in this process."""
        return self.files.num_skipped + getattr(self.process_fn, "num_skipped", 0)

    def read_part(self, part: int) -> Iterator[Sample]:
        """Return the samples of a part; errors as of the files' ``read_part``."""
        return self._process(self.files.read_part(part))

    def read_url(self, number: int) -> Iterator[Sample]:
        """Return the samples of a file, with one call of the process function over them all."""
        parts = self.files.url_parts(number)
        return self._process(sample for part in parts for sample in self.files.read_part(part))

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the files, and of the process function if it tells."""
        tell = getattr(self.process_fn, "fingerprint", None)
        return (
            self.files.fingerprint()
            if tell is None
            else fingerprint({"files": self.files.fingerprint(), "process_fn": tell()})
        )

    def _process(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        return samples if self.process_fn is None else _processed(samples, self.process_fn)

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for part in range(first, self.num_parts, step):
            yield from self.read_part(part)


def _processed(samples: Iterator[Sample], process_fn: ProcessFn) -> Iterator[Sample]:
    """Yield processed samples, each of which must still say where it is from."""
    for sample in process_fn(samples):
        if type(sample) is not dict or "__key__" not in sample or "__url__" not in sample:
            what = sorted(sample) if isinstance(sample, dict) else type(sample).__name__
            raise ConfigError(
                "a process function must yield dicts that keep __url__ and __key__ of the sample "
                f"they are made of, {process_fn!r} yields {what}; copy both"
            )
        yield sample
