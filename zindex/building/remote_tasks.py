"""What a Dask worker runs: a task with its name, its times, and its error as a result."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from zindex.building.timeline import Span, measure
from zindex.errors import ZindexError


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a task as it comes back from a worker."""

    outcome: Any
    error: ZindexError | None
    spans: list[Span]


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of a task as it stays on a worker."""

    value: Any
    spans: list[Span]

    def __sizeof__(self) -> int:
        """Return the bytes of the value too: Dask weighs by them what to move and what to spill."""
        from dask.sizeof import sizeof

        return object.__sizeof__(self) + int(sizeof(self.value))


def call(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> Done:
    """Run a task on a worker; our own errors are results, so that Dask does not try them again."""
    spans = [span for argument in args if isinstance(argument, Kept) for span in argument.spans]
    try:
        with measure(key, spans):
            outcome = function(*_values(args))
    except ZindexError as error:
        return Done(None, error, spans)
    return Done(outcome, None, spans)


def keep(function: Callable[..., Any], args: tuple[Any, ...], key: str) -> Kept:
    """Run a task on a worker whose result stays there."""
    spans: list[Span] = []
    with measure(key, spans):
        value = function(*_values(args))
    return Kept(value, spans)


def _values(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments, with the results that earlier tasks left in place of their stand-ins."""
    return tuple(argument.value if isinstance(argument, Kept) else argument for argument in args)


@contextmanager
def named(key: str) -> Iterator[None]:
    """Add the name of the task to an error that passes through."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in task {key}")
        raise
