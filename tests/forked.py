"""Python commands in forks of a process that has imported the large libraries already.

A new interpreter spends seconds on torch, Dask and Megatron Core, more than most tests need for
their work. Tests of what is imported, or compiled, start a new one by `run_fresh`.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).parents[1]

_SERVER = multiprocessing.get_context("forkserver")
_LIBRARIES = [
    "distributed",
    "torch._dynamo",  # of every optimizer
    "megatron.core.datasets.gpt_dataset",
    "zindex.datasets.blended_megatron_dataset_builder",
    "zindex.datasets.gpt_dataset",
    "zindex.loading.loader",
]


class Forked:
    """A Python command in a fork: what tests call of `subprocess.Popen`, with pipes and text.

    Parameters
    ----------
    command
        What follows ``python``: ``-W ignore``, then ``-c`` and code, ``-m`` and a module, or a
        script, and their arguments.
    env
        The whole environment; that of this process by default.
    cwd
        The working directory.
    """

    def __init__(
        self, *command: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT
    ) -> None:
        self._files = ExitStack()
        (stdin, to_child), (from_child, stdout) = os.pipe(), os.pipe()
        self.stdin = self._files.enter_context(os.fdopen(to_child, "w"))
        self.stdout = self._files.enter_context(os.fdopen(from_child))
        self._errors = self._files.enter_context(TemporaryFile("w+"))  # noqa: SIM115
        stderr = os.dup(self._errors.fileno())
        streams = [Connection(file) for file in (stdin, stdout, stderr)]
        _SERVER.set_forkserver_preload([__name__, *_LIBRARIES])
        self._process = _SERVER.Process(
            target=_run, args=(command, dict(os.environ if env is None else env), cwd, streams)
        )
        self._process.start()
        for stream in streams:
            stream.close()

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *exc: object) -> None:
        """Kill the command, unlike `subprocess.Popen`."""
        self.kill()
        self.wait()
        self._files.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self) -> tuple[str, str]:
        """Return what the command prints until it ends."""
        self.stdin.close()
        printed = self.stdout.read()
        self.wait()
        self._errors.seek(0)
        return printed, self._errors.read()


def run_python(
    *command: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT, check: bool = False
) -> CompletedProcess[str]:
    """Run a Python command in a fork until it ends; arguments are those of `Forked`."""
    with Forked(*command, env=env, cwd=cwd) as process:
        printed, errors = process.communicate()
        assert process.returncode is not None
        assert process.returncode == 0 or not check, errors
        return CompletedProcess(command, process.returncode, printed, errors)


def run_fresh(*command: str, check: bool = False) -> CompletedProcess[str]:
    """Run a Python command in a new interpreter until it ends."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=check,
    )


def _run(
    command: list[str], environment: dict[str, str], cwd: Path, streams: list[Connection]
) -> None:
    """Do what a new interpreter does with a command."""
    gc.freeze()  # what the libraries hold
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    kind, *arguments = command
    if kind == "-W":
        warnings.simplefilter(arguments[0])  # type: ignore[arg-type]
        kind, *arguments = arguments[1:]
    try:
        if kind == "-m":
            module, *sys.argv[1:] = arguments
            sys.path.insert(0, os.fspath(cwd))
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif kind == "-c":
            code, *sys.argv[1:] = arguments
            sys.argv[0] = "-c"
            sys.path.insert(0, "")
            main: Any = types.ModuleType("__main__")
            sys.modules["__main__"] = main
            exec(code, main.__dict__)
        else:
            sys.argv = [kind, *arguments]
            sys.path.insert(0, os.path.dirname(kind))
            runpy.run_path(kind, run_name="__main__")
    finally:
        # In this order, as an interpreter ends; multiprocessing leaves out the second.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
