"""Commands of which one system call fails, or transfers only a part.

``python -m tests.harnesses.system_calls --trials 1000 --seed 0``
``python -m tests.harnesses.system_calls --every convert`` fails each call in each of its ways.

A library that is loaded before the C library counts the calls below the folder of a command, those
of Python and of libraries alike. The error must be one of zindex, nothing half may be seen after
it, no descriptor stays open, and the command, run again, must succeed.
"""

import ctypes
import errno
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

from tests.harnesses.commands import COMMANDS, Command, check_seen, prepare, read_out
from tests.harnesses.running import main
from zindex.errors import StoreError, ZindexError
from zindex.store.open_files import table

_SHORT = -1
_FULL = ("ENOSPC", "EDQUOT")
_REFUSED = ("EACCES", "EROFS", "EIO")
#: The errors of each kind of call.
FAULTS: dict[str, tuple[str, ...]] = {
    "create": (*_FULL, *_REFUSED, "EMFILE", "EINTR"),
    "open": ("EMFILE", "EACCES", "EIO", "ESTALE", "EINTR"),
    "write": (*_FULL, "EFBIG", "EIO", "EINTR", "SHORT"),
    "read": ("EIO", "ESTALE", "EINTR", "SHORT"),
    "fsync": (*_FULL, "EIO", "EINTR"),
    "close": (*_FULL, "EIO"),
    "truncate": (*_FULL, "EIO"),
    "mkdir": (*_FULL, *_REFUSED),
    "rmdir": (*_REFUSED, "EBUSY"),
    "unlink": (*_REFUSED, "EBUSY"),
    "rename": (*_FULL, *_REFUSED, "EBUSY"),
    "link": (*_FULL, *_REFUSED, "EPERM", "EMLINK"),
    "stat": ("EACCES", "EIO", "ESTALE"),
    "list": ("EACCES", "EIO", "EMFILE", "ESTALE"),
}


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.fault_name.restype = ctypes.c_char_p
    return library


def _run(command: Command, folder: Path, number: int, kind: str, fault: str) -> list[str]:
    """Run a command of which the call of a number fails; return the kinds of its calls.

    Threads may change the order of calls: one of another kind passes.
    """
    code = _SHORT if fault == "SHORT" else getattr(errno, fault)
    place = os.fsencode(folder / "out")
    _library().fault_begin(place, ctypes.c_long(number), kind.encode(), code)
    try:
        command.run(folder)
    finally:
        num_calls = _library().fault_end()
    return [_library().fault_name(ctypes.c_long(i)).decode() for i in range(num_calls)]


@cache
def _calls(name: str) -> list[str]:
    """Return the kinds of the calls of a command."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(prepare(name)[0], folder, dirs_exist_ok=True)
        calls = _run(COMMANDS[name], Path(folder), -1, "", "EIO")
    gc.collect()
    gc.freeze()  # collections are short from here
    return calls


def _count_files() -> int:
    """Return how many files are open, without those that readers keep open."""
    table.forget_all()
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def check(name: str, number: int, fault: str) -> None:
    """Fail the call of a number of a command, check what is seen, and run it again."""
    source, old, new = prepare(name)
    command, calls = COMMANDS[name], _calls(name)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "copy"
        shutil.copytree(source, folder)
        num_files, is_done = _count_files(), False
        try:
            _run(command, folder, number, calls[number], fault)
            is_done = True
        except ZindexError:
            if fault in ("SHORT", "EINTR"):  # no error
                raise
        assert _count_files() <= num_files, "a file stays open"
        files = read_out(folder)
        seen = check_seen(command, files, old, new)
        if is_done:
            found = check_seen(command, *map(command.needed, (files, old, new)))
            assert found == "new", f"success, and {found} is seen"
        try:
            command.run(folder)
        except StoreError:  # a finished pair is refused, all else is made again
            assert seen == "new"
        found = check_seen(command, read_out(folder), old, new)
        assert found == "new", f"after a second run {found} is seen"


def trial(rng: random.Random) -> str:
    """Fail one call of one command."""
    name = rng.choice(list(COMMANDS))
    calls = _calls(name)
    number = rng.randrange(len(calls))
    fault = rng.choice(FAULTS[calls[number]])
    try:
        check(name, number, fault)
    except Exception as error:
        error.add_note(f"{name}: {fault} of {calls[number]}, call {number} of {len(calls)}")
        raise
    return name


def _every(name: str) -> int:
    """Fail each call of a command in each way; return how many cases went wrong."""
    calls = _calls(name)
    cases = [(i, fault) for i, call in enumerate(calls) for fault in FAULTS[call]]
    wrong = 0
    for number, fault in cases:
        try:
            check(name, number, fault)
        except Exception as error:
            wrong += 1
            print(f"{name}: {fault} of {calls[number]}, call {number}: {error!r}", flush=True)
            traceback.print_exc()
    print(f"{name}: {len(calls):,} calls, {len(cases):,} cases, {wrong} wrong", flush=True)
    return wrong


def _run_with_library() -> int:
    """Run this module with the library, which is compiled."""
    with tempfile.TemporaryDirectory() as folder:
        built = f"{folder}/system_calls.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
        command = [sys.executable, "-m", "tests.harnesses.system_calls", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {"LD_PRELOAD": built}).returncode


if __name__ == "__main__":
    if not hasattr(ctypes.CDLL(None), "fault_begin"):
        raise SystemExit(_run_with_library())
    if "--every" in sys.argv:
        raise SystemExit(sum(map(_every, sys.argv[2:] or COMMANDS)) > 0)
    raise SystemExit(main(trial))
