"""What the datasets of files have in common: samples through a process function, part by part."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import get_worker_info

from zindex.errors import ConfigError
from zindex.sources.sample_files import SampleFiles

Sample = dict[str, Any]
#: Takes the raw samples of a part and yields those of the dataset; called afresh on each part.
ProcessFn = Callable[[Iterator[Sample]], Iterable[Sample]]


def check_leaf(process_fn: object, shuffle_buffer: int) -> None:
    """Raise ConfigError unless these are the settings of a dataset of files."""
    if process_fn is not None and not callable(process_fn):
        raise ConfigError(
            "process_fn must be a function from samples to samples, or None, got "
            f"{type(process_fn).__name__}"
        )
    if not isinstance(shuffle_buffer, int) or shuffle_buffer < 0:
        raise ConfigError(
            f"shuffle_buffer must be a number of samples, 0 for none, got {shuffle_buffer!r}"
        )


def process(samples: Iterator[Sample], process_fn: ProcessFn | None) -> Iterator[Sample]:
    """Return the samples that a process function makes of raw ones; None: these themselves."""
    return samples if process_fn is None else _processed(samples, process_fn)


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


def read_url(files: SampleFiles, number: int) -> Iterator[Sample]:
    """Yield the raw samples of a whole file."""
    for part in files.url_parts(number):
        yield from files.read_part(part)


def own_parts(num_parts: int) -> range:
    """Return the parts that this loader worker reads when a dataset is iterated by itself."""
    worker = get_worker_info()
    if worker is None:
        return range(num_parts)
    return range(worker.id, num_parts, worker.num_workers)
