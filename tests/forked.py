"""Python commands in forks of a process that has imported the large libraries already.

A new interpreter spends seconds on torch, Dask and Megatron Core, more than most tests need for
their work. Tests of what is imported, or compiled, start a new one by `run_fresh`.
"""

import atexit
import ctypes
import fcntl
import gc
import logging
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partialmethod
from importlib.util import find_spec
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]

_SERVER = multiprocessing.get_context("forkserver")
#: `subprocess.Popen._execute_child`, which starts a new interpreter for each command.
start_interpreter: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
#: Starts a new interpreter for a process that multiprocessing spawns.
spawn_interpreter: Any = multiprocessing.util.spawnv_passfds  # type: ignore[attr-defined]
_PRELOADED = [
    __name__,
    "distributed",
    "numba",
    "pytest",  # of every process that pytest starts
    "torch.distributed.run",
    "torch._dynamo",  # of every optimizer
    "megatron.core.datasets.gpt_dataset",
    "zindex.datasets.blended_megatron_dataset_builder",
    "zindex.datasets.gpt_dataset",
    "zindex.loading.loader",
    "zarr",
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
    modules
        Only commands that run one of these, and processes of multiprocessing; None: all commands.
    """

    def __init__(self, server: socket.socket, modules: tuple[str, ...] | None = None) -> None:
        self._server = server
        self._modules = modules
        self._lock = threading.Lock()
        subprocess.Popen._execute_child = partialmethod(  # type: ignore[attr-defined]
            lambda process, *arguments: self._start(process, *arguments)
        )
        if modules is not None:
            multiprocessing.util.spawnv_passfds = self._spawn  # type: ignore[attr-defined]

    def _start(self, process: Any, args: Any, *options: Any) -> None:
        """Start a command; `subprocess` does the rest."""
        executable, preexec_fn, _, pass_fds, cwd, env, *_ = options
        pipes, new_session = options[9:15], options[-2]
        is_other = isinstance(args, str) or args[0] != sys.executable or preexec_fn or pass_fds
        if is_other or not (self._modules is None or {*args[1:3]} & {*self._modules}):
            start_interpreter(process, args, *options)
            return
        assert executable is None
        command = [os.fspath(argument) for argument in args[1:]]
        environment = dict(os.environ if env is None else env)
        ends = pipes[0], pipes[3], pipes[5]
        files = {own: own if end == -1 else end for own, end in enumerate(ends)}
        process.pid = self._fork(
            _Command(command, environment, cwd or os.getcwd(), new_session, True), files
        )
        process._child_created = True
        process._close_pipe_fds(*pipes)

    def _spawn(self, path: Any, args: list[str], passfds: Sequence[int]) -> int:
        """Start a process of multiprocessing, which `ProcessExecutor` and Dask spawn."""
        if args[-1] != "--multiprocessing-fork":
            return int(spawn_interpreter(path, args, passfds))
        command = _Command(args[args.index("-c") :], dict(os.environ), os.getcwd(), False, False)
        return self._fork(command, {number: number for number in (0, 1, 2, *passfds)})

    def _fork(self, command: "_Command", files: dict[int, int]) -> int:
        """Have a command run with files, by their numbers there; return the id of its process."""
        request = pickle.dumps((command, [*files]))
        with self._lock:
            _adopt_orphans(True)
            socket.send_fds(self._server, [len(request).to_bytes(8)], [*files.values()])
            self._server.sendall(request)
            process = int.from_bytes(self._server.recv(8))
            _adopt_orphans(False)
        return process


class _Command(NamedTuple):
    """What a fork does."""

    #: What follows ``python``.
    words: list[str]
    environment: dict[str, str]
    cwd: str
    new_session: bool
    #: Whether it runs the Python commands that it starts in forks, too.
    forks: bool


def fork_commands(*modules: str) -> None:
    """Run commands of modules that this process will start in forks of it as it is now.

    So are processes that multiprocessing spawns. They are children of this process.
    """
    server, requests = socket.socketpair()
    parent = os.getpid()
    if os.fork():
        requests.close()
        _Launcher(server, tuple(modules))
        return
    code: Any = 1
    try:
        server.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        command = _serve(parent, requests)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Without pytest's.
        logging.root.handlers.clear()
        sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
        _execute(command)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _name_process(module: str, *arguments: str) -> None:
    """Name this process by its command, as far as 15 letters go: its command line is another."""
    set_name = 15
    name = " ".join([module.rpartition(".")[2], *arguments])
    ctypes.CDLL(None).prctl(set_name, name.encode()[:15], 0, 0, 0)


def _adopt_orphans(does: bool) -> None:
    """Set whether grandchildren become children of this process when their parents end."""
    set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(set_child_subreaper, int(does), 0, 0, 0) == 0


def _serve(parent: int, requests: socket.socket) -> _Command:
    """Fork for each request; return one, with its files in place, in a child of `parent`."""
    while True:
        header, files, *_ = socket.recv_fds(requests, 8, 16)
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
            command, numbers = pickle.loads(request)
            _place(files, numbers)
            return command  # type: ignore[no-any-return]
        for file in files:
            os.close(file)


def _place(files: list[int], numbers: Sequence[int]) -> None:
    """Give files other numbers."""
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, 1 + max(numbers)) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
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
    _place([os.dup(stream.fileno()) for stream in streams], range(3))
    for stream in streams:
        stream.close()
    _execute(_Command(command, environment, os.fspath(cwd), True, forks))


def _execute(command: _Command) -> None:
    """Do what a new interpreter does with a command, once its files are in place."""
    while True:
        if command.new_session:
            os.setsid()
        if not command.forks:
            break
        server, requests = socket.socketpair()
        parent = os.getpid()
        if os.fork():
            requests.close()
            _Launcher(server)
            break
        server.close()
        command = _serve(parent, requests)
    words, environment, cwd, *_ = command
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    kind, *arguments = words
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
            _name_process(name, *arguments)
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
