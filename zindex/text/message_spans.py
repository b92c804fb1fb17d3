"""Find what a chat template writes for each message, by marks in its loops over messages.

The template is compiled a second time, with marks where the passes of its loops start and end.
Removing the marks must give the text without them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from zindex.errors import ConfigError
from zindex.text.token_spans import Span

Message = Mapping[str, Any]

#: Variables of the functions that mark the start and the end of what is written for a message, and
#: that choose it.
START, STOP, CHOOSE = "zindex_start", "zindex_stop", "zindex_choose"
_MESSAGE = "zindex_message"


class LoopMarker(NodeTransformer):
    """Adds marks to the loops of a parsed template.

    A pass of a loop writes the message that is the loop's variable. If that is not a message, such
    as a number, it is the first message that the pass assigns to a variable.
    """

    def __init__(self) -> None:
        self._is_pass = False

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Mark the start and the end of each pass."""
        self._visit_within(node, is_pass=True)
        name = node.target.name if isinstance(node.target, nodes.Name) else None
        # The template may assign another value to the variable of its loop.
        before = [_assign(nodes.Const(None)), *([] if name is None else _begin(name))]
        added = [item.set_lineno(node.lineno) for item in (*before, _write(STOP))]
        node.body = [*added[:-1], *node.body, added[-1]]
        return node

    def visit_Assign(self, node: nodes.Assign) -> list[nodes.Node]:  # noqa: N802
        """Mark the start of a message that a pass assigns."""
        if not self._is_pass or not isinstance(node.target, nodes.Name):
            return [node]
        return [node, *(item.set_lineno(node.lineno) for item in _begin(node.target.name))]

    def visit_Continue(self, node: nodes.Continue) -> list[nodes.Node]:  # noqa: N802
        """Mark the end of a pass that ends early."""
        return [_write(STOP).set_lineno(node.lineno), node]

    def visit_Break(self, node: nodes.Break) -> list[nodes.Node]:  # noqa: N802
        """Mark the end of the last pass."""
        return [_write(STOP).set_lineno(node.lineno), node]

    def generic_visit(self, node: nodes.Node, *given: Any, **named: Any) -> nodes.Node:
        """Visit the nodes within another one; what a block assigns may be local to it."""
        if isinstance(node, _LOCAL):
            self._visit_within(node, is_pass=False)
            return node
        return super().generic_visit(node, *given, **named)

    def _visit_within(self, node: nodes.Node, *, is_pass: bool) -> None:
        before, self._is_pass = self._is_pass, is_pass
        super().generic_visit(node)
        self._is_pass = before


# Blocks with variables of their own.
_LOCAL = (
    nodes.AssignBlock,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.Macro,
    nodes.Scope,
    nodes.With,
)


def _begin(name: str) -> list[nodes.Node]:
    """Return the nodes that begin the message of a variable, if it is the first of the pass."""
    return [_write(START, name), _assign(_call(CHOOSE, name))]


def _assign(value: nodes.Expr) -> nodes.Node:
    """Return the node that sets the message of a pass."""
    return nodes.Assign(nodes.Name(_MESSAGE, "store"), value)


def _write(function: str, *names: str) -> nodes.Node:
    """Return the node that writes a mark."""
    return nodes.Output([_call(function, *names)])


def _call(function: str, *names: str) -> nodes.Call:
    """Return the call of a function with the message of a pass and further variables."""
    given: list[nodes.Expr] = [nodes.Name(name, "load") for name in (_MESSAGE, *names)]
    return nodes.Call(nodes.Name(function, "load"), given, [], None, None)


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

    @property
    def variables(self) -> dict[str, Any]:
        """The functions that the marked template calls, by name."""
        return {START: self._write_start, STOP: self._write_stop, CHOOSE: self._choose}

    def _write_start(self, known: Any, value: Any) -> str:
        """Return the mark that begins a message, if the pass has none."""
        chosen = self._choose(known, value)
        is_new = chosen is value and chosen is not known
        return f"{self._start}{self._numbers[id(value)]}{self._start}" if is_new else ""

    def _write_stop(self, known: Any) -> str:
        """Return the mark that ends the message of a pass, if it has one."""
        return "" if known is None else f"{self._stop}{self._numbers[id(known)]}{self._stop}"

    def _choose(self, known: Any, value: Any) -> Any:
        """Return the message of a pass: the first that it has."""
        return value if known is None and id(value) in self._numbers else known

    def read(self, marked: str) -> tuple[str, dict[int, list[Span]]]:
        """Return a text without its marks, and the spans of each message that one pass writes.

        Raises
        ------
        ConfigError
            If the template changed the marks.

        Notes
        -----
        A message has several spans if others are written within its own.
        """
        pieces, place = list[str](), 0
        found: dict[int, list[list[Span]]] = {}
        opened = list[tuple[int, list[Span]]]()
        for piece, mark, number in self._split(marked):
            pieces.append(piece)
            if opened and piece:
                opened[-1][1].append((place, place + len(piece)))
            place += len(piece)
            if mark == self._start:
                opened.append((number, []))
            elif mark and opened and opened[-1][0] == number:
                found.setdefault(number, []).append(opened.pop()[1])
            elif mark:
                opened.append((-1, []))  # nothing ends it
        if opened:
            raise ConfigError(
                "a chat template must write what its loops over messages write as it is, this one "
                "cuts or repeats it; use one with {% generation %} blocks"
            )
        text = "".join(pieces)
        spans = {}
        for number, passes in found.items():
            # Other loops only look at the messages.
            written = [x for x in passes if any(text[slice(*span)].strip() for span in x)]
            if len(written or passes[:1]) == 1:
                spans[number] = (written or passes)[0]
        return text, spans

    def _split(self, marked: str) -> Iterator[tuple[str, str, int]]:
        """Yield each text, the mark after it and the number of its message; the last has none."""
        place = 0
        for mark in re.finditer(f"([{self._start}{self._stop}])([0-9]+)\\1", marked):
            yield marked[place : mark.start()], mark[1], int(mark[2])
            place = mark.end()
        yield marked[place:], "", -1
