"""Limits of chat templates: sizes of single operations, and time and memory of a whole rendering.

A template is an untrusted program, often downloaded with a tokenizer. Single operations in C, such
as ``"x" * 10**10``, cannot be interrupted, so their sizes are checked beforehand. Everything else
is Python code: a thread that monitors the time and the memory of the process raises an exception in
it. A rendering within its limits costs about a microsecond.
"""

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.nodes import Concat, Dict, List, Tuple
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from zindex.errors import ConfigError
from zindex.io.system_calls import memory_nbytes

T = TypeVar("T")
#: Maximum seconds of a rendering, and bytes by which it may grow the process.
MAX_SECONDS, MAX_NBYTES = 30.0, 1 << 30
# Maximum characters that one operation may create, and largest integers that it may take.
_MAX_LENGTH, _MAX_NUMBER = 1 << 27, 1 << 20
_MAX_BITS = 1 << 14
_MAX_INDENT = 64
# Values in a list and the lists in it: comparing or printing it is one call in C.
_MAX_VALUES = 1 << 20
# Seconds between checks of the thread, and after the last rendering before the thread exits.
_TICK, _AWAKE = 0.05, 1.0
# Seconds until a rendering that has not ended is stopped again: Python ignores exceptions in
# callbacks of its garbage collector, and in ``__del__``.
_AGAIN = 0.5
# Filters that can expand small inputs to large outputs in one operation.
_FILTERS = (
    *("batch", "center", "format", "indent", "join", "replace", "round", "slice", "truncate"),
    "tojson",
    "wordwrap",
)
# Filters that make one value of all that a list holds.
_FLATTENING = ("join", "sum")


class _Generator(CodeGenerator):
    """Compiles templates in which lists and joined texts are checked when they are made."""

    def visit_List(self, node: List, frame: Frame) -> None:  # noqa: N802
        self._check(super().visit_List, node, frame)

    def visit_Tuple(self, node: Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._check(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Dict(self, node: Dict, frame: Frame) -> None:  # noqa: N802
        self._check(super().visit_Dict, node, frame)

    def visit_Concat(self, node: Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(str, (")
        for item in node.nodes:
            self.visit(item, frame)
            self.write(", ")
        self.write(")))")

    def _check(self, visit: Callable[[Any, Frame], None], node: Any, frame: Frame) -> None:
        self.write("environment.checked(")
        visit(node, frame)
        self.write(")")


def _checked(value: T) -> T:
    """Return a value that holds few others; the same list in a list counts each time."""
    if type(value) not in _CONTAINERS:
        return value
    left: list[Any] = [value]
    count = size = 0
    while left:
        item = left.pop()
        kind = type(item)
        if kind is str:
            size += len(item)
        elif kind is dict:
            left.extend(item)
            left.extend(item.values())
        elif kind in _CONTAINERS:
            left.extend(item)
        count += 1
        if count + len(left) > _MAX_VALUES or size > _MAX_LENGTH:
            raise SecurityError("a list of too many values or characters")
    return value


_CONTAINERS = (list, tuple, dict)


def _concat(parts: Iterable[str]) -> str:
    """Join texts, if the result is small."""
    known = list(parts)
    if sum(map(len, known)) > _MAX_LENGTH:
        raise SecurityError(f"a text of more than {_MAX_LENGTH:,} characters")
    return "".join(known)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which no single operation creates gigabytes or takes hours."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _Generator
    concat = staticmethod(_concat)
    checked = staticmethod(_checked)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, function in list(self.filters.items()):
            self.filters[name] = bounded(name, function)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, if it is small."""
        if operator == "+":
            result = left + right
            return result if type(result) is str else _checked(result)
        if operator == "%":
            if isinstance(left, str | bytes):
                _check("format", (left, right))
        elif type(left) is int and type(right) is int:
            bits = left.bit_length()
            if (bits * right if operator == "**" else bits + right.bit_length()) > _MAX_BITS:
                raise SecurityError(f"{operator} of large numbers")
        elif hasattr(left, "__len__") != hasattr(right, "__len__"):
            text, times = (left, right) if hasattr(left, "__len__") else (right, left)
            if type(times) is int and len(text) * times > _MAX_LENGTH:
                raise SecurityError(f"{len(text):,} * {times:,}")
        return _checked(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *given: Any, **named: Any) -> Any:
        """Call a function or method of the template, if its result is small."""
        if given or named:
            _checked(given)
            _checked(named)
            owner = getattr(function, "__self__", None)
            if isinstance(owner, str | bytes):
                _check(function.__name__, (owner, *given, *named.values()))
            elif getattr(function, "__name__", "") in ("format", "format_map"):  # wrapped
                _check("call", (None, *given, *named.values()))
        return _checked(super().call(context, function, *given, **named))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the format method of a text that a template may call, if `value` is one."""
        found = super().wrap_str_format(value)
        if found is not None:
            _check("format", (value.__self__,))
        return found


def bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that checks its arguments first."""
    # Such filters take the environment or another object of Jinja first.
    start = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        values = list(given)
        if name in _FLATTENING and not isinstance(values[start], str | list | tuple):
            values[start] = list(values[start])
        if name in _FILTERS:
            _check(name, (*values[start:], *named.values()))
        if name in _FLATTENING:
            _checked(values[start])
        return _checked(function(*values, **named))

    return checked


def _check(name: str, values: tuple[Any, ...]) -> None:
    """Raise if an operation would create a large value from its arguments, owner first."""
    first = values[0]
    numbers = [abs(x) for x in values[1:] if type(x) is int]
    sizes = [len(x) if isinstance(x, str | bytes) else 0 for x in values]
    most, size = max(numbers, default=0), 0
    if name == "replace" and len(values) > 2:
        size = (sizes[0] + 1) * sizes[2] // max(1, sizes[1])
    elif name == "join" and len(values) > 1:
        parts, between = values[1::-1] if isinstance(first, str) else values[:2]
        if isinstance(parts, list | tuple):
            one = len(between) if isinstance(between, str) else 0
            size = sum(len(x) + one for x in parts if isinstance(x, str))
    elif name in ("expandtabs", "indent"):
        size = sizes[0] * max(most, *sizes[1:], 1)
    elif name == "translate":
        tables = [x.values() for x in values if isinstance(x, dict)]
        size = sizes[0] * max((len(y) for x in tables for y in x if isinstance(y, str)), default=1)
    elif name in ("format", "format_map", "__mod__"):
        widths = re.findall(r"\d{7}|\*", str(first))
        size = _MAX_LENGTH + 1 if widths else 0
    if size > _MAX_LENGTH or most > (_MAX_INDENT if name == "tojson" else _MAX_NUMBER):
        raise SecurityError(f"{name} of large values")


class _Stop(BaseException):
    """Raised in a rendering that exceeds its limits; templates cannot catch it."""


class _Rendering:
    """A running rendering."""

    __slots__ = ("nbytes", "reason", "start", "stopped")

    def __init__(self) -> None:
        self.start = time.monotonic()
        #: Memory of the process at the first check.
        self.nbytes = -1
        #: The limit that it exceeded, and when it was last stopped.
        self.reason, self.stopped = "", 0.0


class _Watch:
    """The thread of a process that stops renderings; it exits when there are none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: dict[int, _Rendering] = {}
        self.thread: threading.Thread | None = None

    def add(self, thread: int, item: _Rendering) -> None:
        """Watch a rendering."""
        with self.lock:
            self.running[thread] = item
            if self.thread is None:
                options: Any = {"name": "zindex-templates", "daemon": True}
                self.thread = threading.Thread(target=self._check_limits, **options)
                self.thread.start()

    def remove(self, thread: int, item: _Rendering) -> None:
        """Stop watching a rendering of this thread; exceptions come no more."""
        with self.lock:
            self.running.pop(thread, None)
        if item.reason:
            _receive_last(thread)

    def _check_limits(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(_TICK)
            with self.lock:
                now = time.monotonic()
                for thread, item in self.running.items():
                    last = now
                    if now - item.start > _TICK:
                        self._inspect(thread, item, now)
                if now - last > _AWAKE:
                    self.thread = None
                    return

    def _inspect(self, thread: int, item: _Rendering, now: float) -> None:
        """Stop a rendering that exceeds its limits."""
        if not item.reason:
            nbytes = memory_nbytes()
            item.nbytes = nbytes if item.nbytes < 0 else item.nbytes
            if now - item.start > MAX_SECONDS:
                item.reason = f"{MAX_SECONDS:g} s"
            elif nbytes - item.nbytes > MAX_NBYTES:
                item.reason = f"{MAX_NBYTES:,} bytes of memory"
        if item.reason and now - item.stopped > _AGAIN:
            item.stopped = now
            _raise_in(thread)


def _raise_in(thread: int) -> None:
    """Raise `_Stop` in a thread at its next step."""
    stop = ctypes.py_object(_Stop)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), stop)


def _receive_last(thread: int) -> None:
    """Raise and catch `_Stop` in this thread, in place of one that it has not received yet.

    To withdraw that would leave CPython a flag, with which it hangs at the next call that a
    profiler or debugger traces (3.11).
    """
    try:
        _raise_in(thread)
        while True:
            pass
    except _Stop:
        return


_watch = _Watch()


def _renew() -> None:
    """Reset in a forked child, which has no such thread."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_renew)


def within_limits(function: Callable[..., T], *given: Any, **named: Any) -> T:
    """Return the result of a function that renders a template.

    Raises
    ------
    ConfigError
        If it takes more than `MAX_SECONDS`, or grows the process by more than `MAX_NBYTES`.
    """
    watch, thread, item = _watch, threading.get_ident(), _Rendering()
    try:
        watch.add(thread, item)
        try:
            return function(*given, **named)
        finally:
            watch.remove(thread, item)
    except (_Stop, MemoryError) as error:
        watch.remove(thread, item)
        raise ConfigError(
            "a chat template must render a conversation within "
            f"{item.reason or 'the memory of this machine'}, this one does not; use another one"
        ) from error
