"""Contenders that take turns, each run in a process of its own that prints its figures."""

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

#: Figure -> value, of one run.
Figures = dict[str, float]
#: A worker's digests of its results by name. Results with the same name must be equal in all
#: contenders, or they did not do the same work.
MADE = "made"
#: Variable of the environment; see `run_once`.
TOGETHER = "ZINDEX_BENCH_TOGETHER"
#: Variables of a bare process, besides ``HOME``: where programs and temporary files are.
_PLACES = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
ROOT = Path(__file__).parents[2]


def make_parser(
    description: str, *, num_worker_arguments: int | Literal["+"]
) -> argparse.ArgumentParser:
    """Return a parser of what all of these benchmarks take.

    Parameters
    ----------
    description
        The benchmark's docstring.
    num_worker_arguments
        Arguments of a run in a process of its own, which ``--worker`` takes; ``+``: any number.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where to work; a temporary folder by default")
    parser.add_argument("--json", help="file for the record")
    parser.add_argument("--worker", nargs=num_worker_arguments, help=argparse.SUPPRESS)
    return parser


def take_turns(
    module: str,
    contenders: list[str] | tuple[str, ...],
    num_runs: int,
    *arguments: object,
    keep_kernels: bool = True,
    bare: bool = False,
) -> dict[str, list[Figures]]:
    """Return the figures of every run of each contender.

    Parameters
    ----------
    module
        What is run, with ``--worker``, the contender and the arguments. The last line that it
        prints is its figures as JSON.
    contenders
        Their names.
    num_runs
        Runs of each.
    arguments
        The same for all.
    keep_kernels
        As of `run_once`.
    bare
        Whether all contenders of a round share an empty home folder and no other variable of the
        environment, as of `run_once`.

    Raises
    ------
    AssertionError
        If two runs made something else of the same name.
    """
    runs: dict[str, list[Figures]] = {name: [] for name in contenders}
    made: dict[str, tuple[str, str]] = {}
    for _ in range(num_runs):
        with tempfile.TemporaryDirectory(prefix="home-") as home:
            for name in contenders:
                figures = run_once(
                    module,
                    name,
                    *arguments,
                    keep_kernels=keep_kernels,
                    home=home if bare else None,
                )
                for work, found in figures.pop(MADE, {}).items():
                    other, expected = made.setdefault(work, (name, found))
                    if found != expected:
                        raise AssertionError(
                            f"{name} must make the same {work} as {other}, it made another"
                        )
                runs[name].append(figures)
    return runs


def run_once(
    module: str,
    name: str,
    *arguments: object,
    keep_kernels: bool = True,
    home: str | None = None,
) -> dict[str, Any]:
    """Return what one contender prints in a process of its own.

    With ``keep_kernels`` the first process that calls a kernel compiles it for all others, as on a
    cluster's node: no contender's time holds compiling, but each would wait for it. Without, all is
    as the caller's environment says. With ``home`` the environment is this home folder and the
    places of programs and temporary files alone, as of a user who has set nothing. Where the
    caller's environment has ``ZINDEX_BENCH_TOGETHER``, all contenders run in this process: quicker,
    for tests of whether they work.
    """
    options = ["--worker", name, *map(str, arguments)]
    if os.environ.get(TOGETHER):
        if home is not None:
            os.environ["HOME"] = home
        printed = _run_here(module, options)
    else:
        environment = dict(os.environ)
        if home is not None:
            environment = {name: os.environ[name] for name in _PLACES if name in os.environ}
            environment["HOME"] = home
        elif keep_kernels:
            environment.setdefault("NUMBA_CACHE_DIR", _kernel_folder().name)
        command = [sys.executable, "-W", "ignore", "-m", module, *options]
        printed = subprocess.run(
            command,
            check=True,
            cwd=None if home is None else ROOT,  # where modules are found without PYTHONPATH
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    figures: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return figures


def take_part(runs: list[Figures], part: str) -> list[Figures]:
    """Return of each run the figures of one part of its work, where a process does several.

    Examples
    --------
    >>> take_part([{"read/seconds": 2.0, "write/seconds": 3.0}], "write")
    [{'seconds': 3.0}]
    """
    start = f"{part}/"
    return [
        {key.removeprefix(start): value for key, value in run.items() if key.startswith(start)}
        for run in runs
    ]


def _run_here(module: str, options: list[str]) -> str:
    """Return what a module's ``main`` prints."""
    before, printed = sys.argv, io.StringIO()
    sys.argv = [module, *options]
    try:
        with contextlib.redirect_stdout(printed):
            importlib.import_module(module).main()
    finally:
        sys.argv = before
    return printed.getvalue()


@cache
def _kernel_folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder for compiled kernels, which is removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="kernels-")


def clock(function: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def digest(*arrays: np.ndarray) -> str:
    """Return what arrays of equal values, dtypes and shapes have in common, and others have not."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(np.ascontiguousarray(array))
    return found.hexdigest()


def folder_nbytes(folder: str | os.PathLike[str]) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
