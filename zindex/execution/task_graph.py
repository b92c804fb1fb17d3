"""Graphs of named tasks with their dependencies, as Dask collections."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zindex.arrays import DTypeLike
from zindex.execution.executor import raise_first

#: The key of a task: its layer, and its position in the layer.
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a task of a graph, as an argument of other tasks."""

    key: Key


class Inline:
    """A short call that a task makes to compute one of its arguments.

    Parameters
    ----------
    function, args
        The function to call, and its arguments, which are like those of a task.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a graph."""

    key: Key
    function: Callable[..., Any]
    args: tuple[Any, ...]


class TaskGraph:
    """Tasks in named layers, whose arguments may be results of earlier tasks.

    Only tasks that a computed chunk needs are run. Layers with equal names must have equal tasks.
    """

    def __init__(self) -> None:
        #: In the order in which they were added.
        self.tasks: list[Task] = []
        self._layers: dict[str, dict[Key, Any]] = {}
        self._needed: dict[str, set[str]] = {}

    def add(self, layer: str, number: Any, function: Callable[..., Any], *args: Any) -> Result:
        """Add a task to a layer.

        Parameters
        ----------
        layer, number
            Name of the layer, and position of the task in it, a number or a tuple: together its
            key.
        function, args
            The function and its arguments; arguments that are a `Result` or `Inline`, or a list of
            them, are replaced by their values.
        """
        key = (layer, *(number if isinstance(number, tuple) else (number,)))
        self.tasks.append(Task(key, function, args))
        self._layers.setdefault(layer, {})[key] = (function, *map(_as_key, args))
        needed = self._needed.setdefault(layer, set())
        needed.update(result.key[0] for result in _results_in(args))
        needed.discard(layer)
        return Result(key)

    def array(
        self,
        layer: str,
        lengths: Sequence[int],
        dtype: DTypeLike,
        tasks: Iterable[tuple[Any, ...]],
        num_columns: int = 1,
    ) -> Any:
        """Return a Dask array whose chunks are the results of tasks.

        Parameters
        ----------
        layer
            Name of the layer of its chunks.
        lengths
            Rows of each chunk.
        dtype, num_columns
            Dtype and columns of the array; with one column it has one dimension.
        tasks
            Function and arguments of each chunk's task.
        """
        import dask.array

        self._layers.setdefault(layer, {})
        chunks: list[tuple[int, ...]] = [tuple(lengths)]
        if num_columns > 1:
            chunks.append((num_columns,))
        for number, task in enumerate(tasks):
            self.add(layer, (number,) if num_columns == 1 else (number, 0), *task)
        return dask.array.Array(self._graph_of(layer), layer, tuple(chunks), dtype=dtype)

    def delayed(self, result: Result) -> Any:
        """Return a ``dask.delayed.Delayed`` object of one task, with all its dependencies."""
        from dask.delayed import Delayed

        layer = result.key[0]
        return Delayed(result.key, self._graph_of(layer), layer=layer)

    def _graph_of(self, layer: str) -> Any:
        """Return the layers that a layer depends on, in Dask's form."""
        from dask.highlevelgraph import HighLevelGraph

        found, left = dict[str, set[str]](), [layer]
        while left:
            name = left.pop()
            found[name] = self._needed.get(name, set())
            left += found[name] - found.keys()
        return HighLevelGraph({name: self._layers[name] for name in found}, found)


async def run_graph(
    graph: TaskGraph, run: Callable[[Task, tuple[Any, ...]], Awaitable[Any]]
) -> dict[Key, Any]:
    """Run every task of a graph as soon as its dependencies are done; return all values.

    Parameters
    ----------
    graph
        The tasks; values of inline calls are computed here.
    run
        Runs a task with its arguments, and limits the number of concurrent tasks.

    Raises
    ------
    Exception
        The first error of a task; the others are cancelled.
    """
    running: dict[Key, asyncio.Task[Any]] = {}

    async def value(arg: Any) -> Any:
        if isinstance(arg, Result):
            return await running[arg.key]
        if isinstance(arg, Inline):
            return arg.function(*[await value(item) for item in arg.args])
        return [await value(item) for item in arg] if isinstance(arg, list) else arg

    async def one(task: Task) -> Any:
        return await run(task, tuple([await value(arg) for arg in task.args]))

    with raise_first():
        async with asyncio.TaskGroup() as group:
            for task in graph.tasks:
                running[task.key] = group.create_task(one(task))
    return {key: task.result() for key, task in running.items()}


def _results_in(args: Iterable[Any]) -> Iterator[Result]:
    """Yield the results among arguments."""
    for arg in args:
        if isinstance(arg, Result):
            yield arg
        elif isinstance(arg, list | Inline):
            yield from _results_in(arg.args if isinstance(arg, Inline) else arg)


def _as_key(arg: Any) -> Any:
    """Return an argument in Dask's form."""
    if isinstance(arg, list):
        return [_as_key(item) for item in arg]
    if isinstance(arg, Inline):
        return (arg.function, *map(_as_key, arg.args))
    return arg.key if isinstance(arg, Result) else arg
