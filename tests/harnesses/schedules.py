"""Races of two or three writers, call by call in the order that a seed draws.

``python -m tests.harnesses.schedules --trials 1000 --seed 0``
"""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.harnesses.interception import FileSystem, Scheduler, create_only
from tests.harnesses.running import main
from tests.killing import Killed
from tests.store.stores import ONE, build_arrays, count_up
from zindex.errors import FingerprintMismatchError, NotReadyError, StoreError
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_writer import PairWriter
from zindex.ingest.merge import merge
from zindex.io import files
from zindex.store.layout import ChunkGrid
from zindex.store.open import open_store
from zindex.store.verify import verify_store

#: Calls that file systems lack.
WAYS: dict[str, tuple[str, ...]] = {
    "rename": (),
    "link": ("renameat2",),
    "claim": ("renameat2", "link"),
}
_GRID = ChunkGrid(8, 8)


def race_edits(folder: Path, run: Callable[..., list[Any]], rng: random.Random) -> None:
    """Several commit an edit under one name: one does, and the file is its."""
    path = folder / "journal" / "000001.json"
    contents = [b"edit %d" % number for number in range(rng.choice((2, 3)))]
    results = run(*[lambda c=content: files.write_once(path, [c]) for content in contents])
    lived = [item for item in results if not isinstance(item, Killed | StoreError)]
    assert all(isinstance(item, bool) for item in lived), results
    done = [content for content, item in zip(contents, results, strict=True) if item is True]
    assert len(done) <= 1, results
    if done or len(lived) == len(contents):
        assert files.read_file(path) in contents
        assert not done or files.read_file(path) == done[0], results
    # The next writer completes the claim of a killed one, or is told of it.
    if any(isinstance(item, Killed) for item in results):
        (later,) = run(lambda: files.write_once(path, [b"a later edit"]))
        if not isinstance(later, StoreError):
            assert files.read_file(path) in (*contents, b"a later edit"), later


def race_stores(folder: Path, run: Callable[..., list[Any]], rng: random.Random) -> None:
    """Several convert to one place, of which two may have the same source."""
    seeds = [rng.choice((1, 2)) for _ in range(rng.choice((2, 3)))]
    root = folder / "store"

    def build(seed: int) -> str:
        values = {ONE: count_up(8) * seed}
        return build_arrays(root, values, _GRID, {"seed": seed}).fingerprint

    results = run(*[lambda s=seed: build(s) for seed in seeds])
    for item in results:
        assert isinstance(item, str | FingerprintMismatchError | Killed | StoreError), results
        assert not isinstance(item, StoreError) or "claim" in str(item), results
    fingerprints = {item for item in results if isinstance(item, str)}
    assert len(fingerprints) <= 1, results
    try:
        store = open_store(root)
    except (NotReadyError, StoreError):
        assert not fingerprints, results
        return
    assert verify_store(root).is_sound
    seed = store.spec["seed"]
    assert store[ONE.name][:].tolist() == [seed * i for i in range(8)]
    assert fingerprints <= {store.fingerprint}


def race_pairs(folder: Path, run: Callable[..., list[Any]], rng: random.Random) -> None:
    """Several merge the same corpora to one pair, perhaps in place of another one."""
    overwrite = rng.random() < 0.5
    for name, start in (("source", 1), ("all", 1000)):
        if name == "source" or overwrite:
            writer = PairWriter(folder / f"{name}.bin", np.int32)
            writer.append(np.arange(start, start + 7), [3, 4])
            writer.append_document_ends(np.array([2]))
            writer.finalize(folder / f"{name}.idx")

    def work() -> Any:
        return merge([str(folder / "source")], folder / "all", client=SERIAL, overwrite=overwrite)

    results = run(*[work] * rng.choice((2, 3)))
    for item in results:
        is_refused = isinstance(item, StoreError) and not isinstance(item, OSError)
        if isinstance(item, Exception) and not is_refused:
            raise item
        assert is_refused or isinstance(item, Killed) or item.num_tokens == 7, results
    if any(isinstance(item, Killed) for item in results):
        left = Path(f"{folder / 'all'}.work").exists()
        if left or not (folder / "all.idx").exists():
            (later,) = run(work)
            while "claim of a writer that died" in str(later):
                os.unlink(str(later).split()[0])  # as it says
                (later,) = run(work)
            assert not isinstance(later, Exception), later
    elif all(isinstance(item, StoreError) for item in results):
        raise AssertionError(results)
    for suffix in ("bin", "idx"):
        made, right = (Path(f"{folder / name}.{suffix}").read_bytes() for name in ("all", "source"))
        assert made == right, (results, suffix)


SERIAL = SerialExecutor()
RACES = {"edits": race_edits, "stores": race_stores, "pairs": race_pairs}


def trial(rng: random.Random) -> str:
    """Run one race; some lose replies of the file system, and some have a client killed."""
    race, way = rng.choice(list(RACES)), rng.choice(list(WAYS))
    faults: dict[str, Any] = {"refused": WAYS[way]}
    if rng.random() < 0.3:
        faults["lost"] = 0.3 if race == "edits" else 0.03
    dies = {0: int(rng.expovariate(1 / 15))} if rng.random() < 0.3 else {}
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/journal")
        # Probed by an earlier call, so that a seed does the same in every process.
        create_only._exclusive[os.stat(folder).st_dev] = True

        def run(*works: Callable[[], Any]) -> list[Any]:
            killed = dies.copy()
            dies.clear()  # the first only
            return Scheduler(rng, FileSystem(rng, **faults), folder, killed).run(*works)

        RACES[race](Path(folder), run, rng)
    return f"{race}, {way}"


if __name__ == "__main__":
    raise SystemExit(main(trial))
