"""Find what a chat template writes for each message, by marks in its loops over messages.

The template is compiled a second time, with a mark before and after each pass of a loop whose
variable is a message. Removing the marks must give the text without them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from zindex.errors import ConfigError

Message = Mapping[str, Any]
Span = tuple[int, int]

#: Variable of the function that writes marks.
MARK = "zindex_mark"
_MESSAGE = "zindex_message"


class LoopMarker(NodeTransformer):
    """Adds marks to the loops of a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Mark the start and the end of each pass."""
        self.generic_visit(node)
        if isinstance(node.target, nodes.Name):
            # The template may assign another value to the variable of its loop.
            line = node.lineno
            kept = nodes.Assign(
                nodes.Name(_MESSAGE, "store", lineno=line),
                nodes.Name(node.target.name, "load", lineno=line),
                lineno=line,
            )
            node.body = [kept, _mark(line, True), *node.body, _mark(line, False)]
        return node

    def visit_Continue(self, node: nodes.Continue) -> list[nodes.Node]:  # noqa: N802
        """Mark the end of a pass that ends early."""
        return [_mark(node.lineno, False), node]

    def visit_Break(self, node: nodes.Break) -> list[nodes.Node]:  # noqa: N802
        """Mark the end of the last pass."""
        return [_mark(node.lineno, False), node]


def _mark(line: int, is_start: bool) -> nodes.Node:
    """Return the node that writes a mark."""
    given: list[nodes.Expr] = [
        nodes.Name(_MESSAGE, "load", lineno=line),
        nodes.Const(is_start, lineno=line),
    ]
    function = nodes.Name(MARK, "load", lineno=line)
    return nodes.Output([nodes.Call(function, given, [], None, None, lineno=line)], lineno=line)


class Marks:
    """Writes and reads the marks of messages.

    Parameters
    ----------
    messages
        The objects that the template gets.
    start, stop
        Characters that are not in its text.
    """

    def __init__(self, messages: Sequence[Message], start: str, stop: str) -> None:
        self._numbers = {id(message): number for number, message in enumerate(messages)}
        self._start, self._stop = start, stop

    def __call__(self, value: Any, is_start: bool) -> str:
        """Return the mark of a loop's value; empty if it is not a message."""
        number = self._numbers.get(id(value))
        mark = self._start if is_start else self._stop
        return "" if number is None else f"{mark}{number}{mark}"

    def read(self, marked: str) -> tuple[str, dict[int, Span]]:
        """Return a text without its marks, and the span of each message that it has once.

        Raises
        ------
        ConfigError
            If the template changed the marks.
        """
        pieces, place = list[str](), 0
        found: dict[int, list[Span]] = {}
        opened = list[tuple[int, int]]()
        for piece, mark, number in self._split(marked):
            pieces.append(piece)
            place += len(piece)
            if mark == self._start:
                opened.append((number, place))
            elif mark:
                if not opened or opened[-1][0] != number:
                    raise ConfigError(
                        "a chat template must write what its loops over messages write as it is, "
                        "this one cuts or repeats it; use one with {% generation %} blocks"
                    )
                found.setdefault(number, []).append((opened.pop()[1], place))
        text = "".join(pieces)
        spans = {}
        for number, passes in found.items():
            # Other loops only look at the messages.
            written = [span for span in passes if text[slice(*span)].strip()] or passes[:1]
            if len(written) == 1:
                spans[number] = written[0]
        return text, spans

    def _split(self, marked: str) -> Iterator[tuple[str, str, int]]:
        """Yield each text, the mark after it and the number of its message; the last has none."""
        place = 0
        for mark in re.finditer(f"([{self._start}{self._stop}])([0-9]+)\\1", marked):
            yield marked[place : mark.start()], mark[1], int(mark[2])
            place = mark.end()
        yield marked[place:], "", -1
