"""Call process functions, and check what they yield."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from zindex.errors import ConfigError

Sample = dict[str, Any]
#: Maps the raw samples of a part to those of the dataset; called once for each part.
ProcessFn = Callable[[Iterator[Sample]], Iterable[Sample]]


def check_process_fn(process_fn: Any) -> None:
    """Raise ConfigError unless it is a process function or None."""
    if process_fn is not None and not callable(process_fn):
        raise ConfigError(
            "process_fn must be a function from samples to samples, or None, got "
            f"{type(process_fn).__name__}"
        )
    if isinstance(process_fn, type) and any("__call__" in vars(c) for c in process_fn.__mro__):
        raise ConfigError(
            "process_fn must be a function from samples to samples, got the class "
            f"{process_fn.__name__}; give an object of it, {process_fn.__name__}(...)"
        )


def call_process_fn(
    process_fn: ProcessFn, samples: Iterator[Sample], labels: Mapping[str, Any]
) -> Iterator[Sample]:
    """Yield the outputs of a process function.

    Parameters
    ----------
    process_fn
        The function.
    samples
        Raw samples.
    labels
        Fields to add to them.

    Raises
    ------
    ConfigError
        If an output is no dict with ``__url__`` and ``__key__``.
    """
    if labels:
        samples = ({**sample, **labels} for sample in samples)
    for sample in process_fn(samples):
        if type(sample) is not dict or "__key__" not in sample or "__url__" not in sample:
            what = sorted(sample) if isinstance(sample, dict) else type(sample).__name__
            raise ConfigError(
                "a process function must yield dicts that keep __url__ and __key__ of the sample "
                f"they are made of, {process_fn!r} yields {what}; copy both"
            )
        yield sample
