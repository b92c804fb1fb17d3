"""Power losses during commands: content and names that were not synced may be lost.

``python -m tests.harnesses.power_loss --trials 1000 --seed 0``

The names, syncs and renames of a command are recorded. An image of the disk is a prefix of them, of
which any unsynced names are dropped, and unsynced content is empty, cut or zero.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.harnesses.commands import COMMANDS, check_seen, read_out
from tests.harnesses.interception import CLIENT, intercepted
from tests.harnesses.running import main
from tests.trees import all_files

#: One change: its kind, and paths relative to the folder, the number of a file, or its content.
Change = tuple[Any, ...]


class Recorder:
    """Records what a command does to names and content below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.changes: list[Change] = []
        #: Numbers of the files by their paths: inodes are used again.
        self.numbers: dict[str, int] = {}
        self.num_files = 0

    def around(self, name: str, call: Callable[[], Any], *args: Any, **settings: Any) -> Any:
        """Make a call and record it."""
        names = [arg for arg in args[:2] if isinstance(arg, str | os.PathLike)]
        paths = [self._path(path, settings) for path in names]
        is_new = name in ("open", "open_file") and not os.path.lexists(paths[0])
        found = call()
        if is_new and os.path.isfile(paths[0]):
            self._add(paths[0])
        elif name in ("rename", "replace", "renameat2"):
            self.changes.append(("move", *paths))
            for path in [item for item in self.numbers if (item + "/").startswith(paths[0] + "/")]:
                self.numbers[paths[1] + path[len(paths[0]) :]] = self.numbers.pop(path)
        elif name == "link":
            self.numbers[paths[1]] = self.numbers[paths[0]]
            self.changes.append(("add", paths[1], self.numbers[paths[1]]))
        elif name in ("unlink", "rmdir"):
            self.numbers.pop(paths[0], None)
            self.changes.append(("drop", paths[0]))
        elif name == "mkdir":
            self.changes.append(("make", paths[0]))
        elif name == "fsync":
            path = os.readlink(f"/proc/self/fd/{args[0]}")
            if os.path.isdir(path):
                self.changes.append(("names", path))
            else:
                if path not in self.numbers:
                    self._add(path)
                self.changes.append(("content", self.numbers[path], Path(path).read_bytes()))
        return found

    def _path(self, path: str | os.PathLike[str], settings: dict[str, Any]) -> str:
        if settings.get("dir_fd") is not None:
            return os.path.join(os.readlink(f"/proc/self/fd/{settings['dir_fd']}"), path)
        return os.fspath(path)

    def _add(self, path: str) -> None:
        self.num_files += 1
        self.numbers[path] = self.num_files
        self.changes.append(("add", path, self.num_files))


@cache
def record(name: str) -> tuple[str, dict[str, bytes], dict[str, bytes], list[Change]]:
    """Run a command; return its folder, the files before and after, and the changes."""
    folder = Path(tempfile.mkdtemp())
    command = COMMANDS[name]
    command.prepare(folder)
    before = all_files(folder)
    recorder = Recorder(folder)
    # Descriptors of folders have names below it, too; a client is all that counts.
    CLIENT.set(0)
    with intercepted(recorder.around, str(folder)):
        command.run(folder)
    CLIENT.set(None)
    after = read_out(folder)
    shutil.rmtree(folder)
    return str(folder), before, after, recorder.changes


def lose_power(
    rng: random.Random, folder: str, before: dict[str, bytes], changes: list[Change], stop: int
) -> dict[str, bytes]:
    """Return the files of an image by their names."""
    synced: dict[int, bytes] = {}
    last: dict[int, bytes] = {}
    for number, change in enumerate(changes):
        if change[0] == "content":
            last[change[1]] = change[2]
            if number < stop:
                synced[change[1]] = change[2]
    durable: dict[str, int] = {}
    for number, change in enumerate(changes[:stop]):
        if change[0] == "names":
            durable[change[1]] = number
    loss = rng.choice((0.0, 0.3, 0.7, 1.0))
    lost: list[str] = []
    files: dict[str, Any] = {os.path.join(folder, name): item for name, item in before.items()}
    for number, change in enumerate(changes[:stop]):
        kind, *paths = change
        if kind in ("content", "names"):
            continue
        # A rename between folders is durable as soon as one of them is.
        parents = [os.path.dirname(path) for path in paths if isinstance(path, str)]
        is_durable = any(durable.get(parent, -1) > number for parent in parents)
        if not is_durable and rng.random() < loss:
            if kind == "make":
                lost.append(f"{paths[0]}/")
            continue
        if kind == "add":
            files[paths[0]] = paths[1]
        elif kind == "drop":
            files.pop(paths[0], None)
        elif kind == "move":
            for path in [item for item in files if (item + "/").startswith(paths[0] + "/")]:
                files[paths[1] + path[len(paths[0]) :]] = files.pop(path)
    image = {}
    for path, item in files.items():
        if path.startswith(tuple(lost)):
            continue
        if isinstance(item, int):
            content = last.get(item, b"")
            torn = [b"", bytes(len(content)), content[: len(content) // 2]]
            item = synced.get(item, rng.choice(torn))
        image[path] = item
    out = os.path.join(folder, "out") + "/"
    return {path[len(out) :]: item for path, item in image.items() if path.startswith(out)}


def trial(rng: random.Random) -> str:
    """Lose power at one moment of one command; after its end nothing may be lost."""
    name = rng.choice(list(COMMANDS))
    folder, before, after, changes = record(name)
    is_done = rng.random() < 0.2
    stop = len(changes) if is_done else rng.randrange(len(changes) + 1)
    seen = lose_power(rng, folder, before, changes, stop)
    old = {path[4:]: content for path, content in before.items() if path.startswith("out/")}
    # Files that may be left out may also be lost.
    command = COMMANDS[name]
    outcome = check_seen(command, *map(command.needed, (seen, old, after)))
    assert not is_done or outcome == "new", f"{name} has ended, and is {outcome}"
    return name


if __name__ == "__main__":
    raise SystemExit(main(trial))
