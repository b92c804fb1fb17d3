"""Python commands in forks of a process that has imported the large libraries already.

A new interpreter spends seconds on torch, Dask and Megatron Core, more than most tests need for
their work. Tests of what is imported, or compiled, start a new one by `run_fresh`.
"""

import atexit
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partialmethod
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).parents[1]

_SERVER = multiprocessing.get_context("forkserver")
_PRELOADED = [
    __name__,
    "distributed",
    "torch.distributed.run",
    "torch._dynamo",  # of every optimizer
    "megatron.core.datasets.gpt_dataset",
    "zindex.datasets.blended_megatron_dataset_builder",
    "zindex.datasets.gpt_dataset",
    "zindex.loading.loader",
]

#: Makes a command import Megatron's datasets as if they were not imported before.
WITHOUT_MEGATRON = """import sys
for name in [name for name in sys.modules if name.startswith("megatron.core.datasets")]:
    del sys.modules[name]
"""


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
    forks
        Run the Python commands that it starts in forks, too.
    """

    def __init__(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        forks: bool = False,
    ) -> None:
        self._files = ExitStack()
        (stdin, to_child), (from_child, stdout) = os.pipe(), os.pipe()
        self.stdin = self._files.enter_context(os.fdopen(to_child, "w"))
        self.stdout = self._files.enter_context(os.fdopen(from_child))
        self._errors = self._files.enter_context(TemporaryFile("w+"))  # noqa: SIM115
        stderr = os.dup(self._errors.fileno())
        streams = [Connection(file) for file in (stdin, stdout, stderr)]
        _SERVER.set_forkserver_preload(_PRELOADED)
        environment = dict(os.environ if env is None else env)
        self._process = _SERVER.Process(
            target=_run, args=(command, environment, cwd, streams, forks)
        )
        self._process.start()
        for stream in streams:
            stream.close()

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *exc: object) -> None:
        """Kill the command and what it has started, unlike `subprocess.Popen`."""
        self.kill()
        self.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # ranks that hang would keep its streams open
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


def share_server() -> None:
    """Start the server of forks, which processes forked from this one share."""
    _SERVER.set_forkserver_preload(_PRELOADED)
    errors = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # warnings of the libraries
        forkserver.ensure_running()
        os.dup2(errors, 2)
    os.close(errors)
    # It would ask for the status of a child, which the server is to this process alone.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]


def run_python(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    check: bool = False,
    forks: bool = False,
) -> CompletedProcess[str]:
    """Run a Python command in a fork until it ends; arguments are those of `Forked`."""
    with Forked(*command, env=env, cwd=cwd, forks=forks) as process:
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


class _Launcher:
    """Starts Python commands as forks of a process that was forked before this command began.

    They are children of this process as if it had started them.

    Parameters
    ----------
    server
        Leads to that process, which runs `_serve`.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._start_other: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        subprocess.Popen._execute_child = partialmethod(  # type: ignore[attr-defined]
            lambda process, *arguments: self._start(process, *arguments)
        )

    def _start(self, process: Any, args: Any, *options: Any) -> None:
        """Start a command; `subprocess` does the rest."""
        executable, preexec_fn, _, pass_fds, cwd, env, *_ = options
        pipes, new_session = options[9:15], options[-2]
        if isinstance(args, str) or args[0] != sys.executable or preexec_fn or pass_fds:
            self._start_other(process, args, *options)
            return
        assert executable is None
        command = [os.fspath(argument) for argument in args[1:]]
        environment = dict(os.environ if env is None else env)
        request = pickle.dumps((command, environment, cwd or os.getcwd(), new_session))
        ends = pipes[0], pipes[3], pipes[5]
        files = [own if end == -1 else end for own, end in enumerate(ends)]
        with self._lock:
            _adopt_orphans(True)
            socket.send_fds(self._server, [len(request).to_bytes(8)], files)
            self._server.sendall(request)
            process.pid = int.from_bytes(self._server.recv(8))
            _adopt_orphans(False)
        process._child_created = True
        process._close_pipe_fds(*pipes)


def _adopt_orphans(does: bool) -> None:
    """Set whether grandchildren become children of this process when their parents end."""
    set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(set_child_subreaper, int(does), 0, 0, 0) == 0


def _serve(parent: int, requests: socket.socket) -> Any:
    """Fork for each request; return one, and the files of its process, in a child of `parent`."""
    while True:
        header, files, *_ = socket.recv_fds(requests, 8, 3)
        if not header:
            os._exit(0)
        size, request = int.from_bytes(header), b""
        while len(request) < size:
            request += requests.recv(size - len(request))
        if child := os.fork():
            os.waitpid(child, 0)
        elif os.fork():
            os._exit(0)
        else:
            while os.getppid() != parent:
                time.sleep(0.001)
            requests.sendall(os.getpid().to_bytes(8))
            requests.close()
            return (*pickle.loads(request), files)
        for file in files:
            os.close(file)


def _run(
    command: list[str],
    environment: dict[str, str],
    cwd: Path,
    streams: list[Connection],
    forks: bool,
) -> None:
    """Do what a new interpreter does with a command."""
    gc.freeze()  # what the libraries hold
    files = [stream.fileno() for stream in streams]
    new_session = True
    while True:
        for number, file in enumerate(files):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        if new_session:
            os.setsid()
        if not forks:
            break
        server, requests = socket.socketpair()
        parent = os.getpid()
        if os.fork():
            requests.close()
            _Launcher(server)
            break
        server.close()
        command, environment, cwd, new_session, files = _serve(parent, requests)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    kind, *arguments = command
    while kind in ("-u", "-W"):
        if kind == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        else:
            warnings.simplefilter(arguments.pop(0))  # type: ignore[arg-type]
        kind, *arguments = arguments
    main: Any = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        # Not by runpy: torchrun would look for the files of its frames in all modules.
        if kind == "-m":
            name, *arguments = arguments
            sys.path.insert(0, os.fspath(cwd))
            spec: Any = find_spec(name)
            if spec.submodule_search_locations is not None:
                spec = find_spec(f"{name}.__main__")
            main.__spec__, kind = spec, spec.origin
            main.__file__ = kind
            code = spec.loader.get_code(spec.name)
        elif kind == "-c":
            code, *arguments = arguments
            sys.path.insert(0, "")
        else:
            main.__file__ = kind
            sys.path.insert(0, os.path.dirname(kind))
            code = compile(Path(kind).read_bytes(), kind, "exec")
        sys.argv = [kind, *arguments]
        exec(code, main.__dict__)
    finally:
        # In this order, as an interpreter ends; multiprocessing leaves out the second.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
