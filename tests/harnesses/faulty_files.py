"""Commands of several clients of a network file system with faults, one after the other.

``python -m tests.harnesses.faulty_files --trials 1000 --seed 0``

One client has looked at the place and remembers for up to 60 s which names were missing; calls that
give a name may be done and report an error; files may be stale once; hard links, or renames that
refuse an existing name, may be missing; times may be coarse. A client may be late, never wrong:
what ends without an error is whole for all, and errors are those of zindex.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

from tests.harnesses.commands import COMMANDS, check_seen, prepare, read_out
from tests.harnesses.interception import CLIENT, FileSystem, intercepted
from tests.harnesses.running import main
from tests.harnesses.schedules import WAYS
from zindex.errors import ZindexError
from zindex.store.open_files import table


def trial(rng: random.Random) -> str:
    """Run one command by a client, by one that remembers, and by a third one."""
    name = rng.choice(list(COMMANDS))
    source, old, new = prepare(name)
    command = COMMANDS[name]
    file_system = FileSystem(
        rng,
        refused=rng.choice(list(WAYS.values())),
        lost=rng.choice((0, 0, 0.05)),
        stale=rng.choice((0, 0, 0.1)),
        remembers=rng.random() < 0.7,
        coarse=rng.random() < 0.5,
    )
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        for client in (None, 1, 0, 2, 3):
            if client == 3:
                file_system.lost = file_system.stale = 0
            is_faulty = file_system.lost
            CLIENT.set(client or 0)
            table.forget_all()
            is_done = False
            try:
                with intercepted(file_system.call, f"{folder}/out"):
                    if client is None:
                        for path in new:
                            os.path.exists(f"{folder}/out/{path}")
                        continue
                    command.run(Path(folder))
                    is_done = True
            except ZindexError as error:  # a finished pair is refused
                if not (is_faulty or "exists; choose" in str(error)):
                    raise
            finally:
                CLIENT.set(None)
            seen = check_seen(command, read_out(Path(folder)), old, new)
            assert seen == "new" or (is_faulty and not is_done), f"{name}, client {client}: {seen}"
    return name


if __name__ == "__main__":
    raise SystemExit(main(trial))
