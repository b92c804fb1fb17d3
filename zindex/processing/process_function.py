"""Call process functions, and check what they yield."""

from collections import deque
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
        If an output is no dict with ``__url__`` and ``__key__``, or the function declares
        ``one_to_one`` and its outputs are not one of each input, in their order.
    """
    if labels:
        samples = ({**sample, **labels} for sample in samples)
    is_checked, given = getattr(process_fn, "one_to_one", False), deque[_Name]()
    if is_checked:
        samples = _note_names(samples, given)
    for sample in process_fn(samples):
        if type(sample) is not dict or "__key__" not in sample or "__url__" not in sample:
            what = sorted(sample) if isinstance(sample, dict) else type(sample).__name__
            raise ConfigError(
                "a process function must yield dicts that keep __url__ and __key__ of the sample "
                f"they are made of, {process_fn!r} yields {what}; copy both"
            )
        if is_checked:
            name = given.popleft() if given else None
            if name != _name_of(sample):
                raise _not_one_to_one(process_fn, name, sample["__key__"])
        yield sample
    if is_checked:
        for _ in samples:  # notes the names of those that it has not read
            break
        if given:
            raise _not_one_to_one(process_fn, given[0], None)


# URL and key of a sample.
_Name = tuple[Any, Any]


def _name_of(sample: Mapping[str, Any]) -> _Name:
    return sample.get("__url__"), sample.get("__key__")


def _note_names(samples: Iterator[Sample], given: deque[_Name]) -> Iterator[Sample]:
    for sample in samples:
        given.append(_name_of(sample))
        yield sample


def _not_one_to_one(process_fn: ProcessFn, name: _Name | None, found: str | None) -> ConfigError:
    place = "after all inputs" if name is None else f"for {name[1]!r} of {name[0]}"
    return ConfigError(
        "a process function with one_to_one = True must yield a sample of each input, in their "
        f"order, {process_fn!r} yields {'none' if found is None else repr(found)} {place}; remove "
        "one_to_one, or yield exactly these"
    )
