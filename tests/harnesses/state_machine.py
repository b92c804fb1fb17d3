"""Commands in any order on one folder, with readers that stay open: a machine against a model.

``python -m tests.harnesses.state_machine --trials 1000 --seed 0``

Each example is some twenty steps: pairs are written again, stores are converted, replaced, damaged,
verified and repaired, runs are built and edited, folders are cleaned, and any of these may die at a
write. The model is a dict of what was committed where, of which generation of the corpora; what
that holds is computed apart, in clean folders. After each step

- every file of a committed store is what the model says, but for those that a step damaged,
- readers that were opened at any time before give the values of their generation or an error of
  zindex; an error only where something that they read is damaged or gone.
"""

import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    get_state_machine_test,
    initialize,
    invariant,
    rule,
)

from tests.damage import flipped
from tests.harnesses import generations
from tests.harnesses.generations import (
    EDITS,
    NUM_GENERATIONS,
    RUNS,
    Expected,
    Files,
    expect_corpus,
    expect_run,
    tokens_of,
)
from tests.harnesses.running import report, time_limit
from tests.killing import Killed, death_before
from zindex.datasets.indexed_dataset import IndexedDataset
from zindex.errors import ZindexError
from zindex.formats.megatron_readers import _FileBinReader
from zindex.indexing.index_tasks import GENERATOR_KEY
from zindex.io import files, local
from zindex.maintenance.edits.journal import JOURNAL_PREFIX
from zindex.maintenance.garbage import find_garbage
from zindex.maintenance.repairs.repair import repair
from zindex.store import reader, shard_files
from zindex.store.commit import MANIFEST_KEY, PLAN_KEY, ROOT_KEY
from zindex.store.open import open_store
from zindex.store.reader import forget_all_files
from zindex.store.receipts import read_manifest
from zindex.store.rows import Spans, read_many
from zindex.store.verify import verify_store

NUM_STEPS = 20
_BATCH = 50
_MAX_HANDLES = 8
_times = count(1 << 60)

#: Step before which a command dies, counted in writes; None: it lives.
deaths = st.none() | st.integers(0, 16)
numbers = st.integers(0, 1 << 16)
corpora = st.sampled_from(sorted({name for names in RUNS.values() for name in names}))
kinds = st.integers(0, NUM_GENERATIONS - 1)
runs = st.sampled_from(sorted(RUNS))


@dataclass
class Handle:
    """Something open."""

    #: Reads from a number on; and the same of the model.
    read: Callable[[int], Any]
    expect: Callable[[int], Any]
    #: What it reads from, by path.
    stores: dict[str, Files]


class Machine(RuleBasedStateMachine):
    """The folder and its model."""

    #: What steps ended with, of all examples.
    outcomes: ClassVar[Counter[str]] = Counter()

    @initialize(
        codec=st.sampled_from(["none", "zstd"]),
        few=st.sampled_from([0, 1 << 30]),
        ready=st.booleans(),
    )
    def begin(self, codec: str, few: int, ready: bool) -> None:
        """Write what every example needs, and build one of the runs in most."""
        reader.SPANS_BEFORE_KERNEL = few
        self.codec = codec
        for corpus in ("a", "b"):
            self.write(corpus, 0)
        generations.write_runs()
        if ready:
            for corpus in ("a", "b"):
                self.convert(corpus, None)
            self.build("both", None)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="zindex-state-"))
        self.inside = chdir(self.folder)
        self.inside.__enter__()
        self.limit = time_limit(120)
        self.limit.__enter__()
        #: Generation of each pair.
        self.pairs: dict[str, int] = {}
        #: Generation of each corpus whose store is begun, and of those whose store is committed.
        self.begun: dict[str, int] = {}
        self.corpora: dict[str, int] = {}
        #: Files of each committed store, and its values by array.
        self.committed: dict[str, Files] = {}
        self.values: dict[str, dict[str, Any]] = {}
        #: Keys of them that a step has damaged.
        self.harmed: dict[str, set[str]] = {}
        #: Edits of each run, by lengths of its corpora.
        self.edits: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self.handles: list[Handle] = []

    def teardown(self) -> None:
        """Forget all files."""
        self.limit.__exit__(None, None, None)
        self.inside.__exit__(None, None, None)
        self.handles.clear()
        forget_all_files()
        read_manifest.cache_clear()
        shutil.rmtree(self.folder)

    # What the model knows.

    def lengths_of(self, run: str) -> tuple[Any, ...]:
        """Return the key of a run's edits."""
        return (run, *(self.corpora[corpus] // 2 for corpus in RUNS[run]))

    def expect(self, run: str) -> Expected | None:
        """Return what a run must have, or None while a corpus is not there."""
        if not set(RUNS[run]) <= self.corpora.keys():
            return None
        edits = self.edits.get(self.lengths_of(run), ())
        return expect_run(run, tuple(self.corpora[corpus] for corpus in RUNS[run]), edits)

    def plain(self, run: str) -> Expected:
        """Return what a run without its edits must have."""
        return expect_run(run, tuple(self.corpora[corpus] for corpus in RUNS[run]), ())

    def choose(self, number: int, *, harmed: bool = False) -> str | None:
        """Return a committed store by number, if there is one, a damaged one if there is."""
        # What a dead command has committed depends on its threads: rules have no preconditions.
        roots = sorted(self.committed)
        if harmed:
            roots = [root for root in roots if self.harmed[root]] or roots
        return roots[number % len(roots)] if roots else None

    def are_sound(self, stores: dict[str, Files]) -> bool:
        """Return whether stores are committed and undamaged."""
        return all(
            self.committed.get(root) == found and not self.harmed[root]
            for root, found in stores.items()
        )

    def sources_of(self, run: str) -> dict[str, Files]:
        """Return the stores of a run's corpora."""
        return {
            f"corpora/{corpus}": self.committed.get(f"corpora/{corpus}", {}) for corpus in RUNS[run]
        }

    def note(self, outcome: str) -> None:
        """Count the outcome of a step."""
        Machine.outcomes[outcome] += 1

    def attempt(self, name: str, work: Callable[[], Any], *, must: bool, die: int | None) -> bool:
        """Run a command that must succeed, unless it dies, or may also raise an error of zindex."""
        try:
            with nullcontext() if die is None else deadly(die):
                work()
        except (Killed, BaseExceptionGroup):
            assert die is not None
            self.note(f"{name} died")
        except ZindexError:
            if must:
                raise
            self.note(f"{name} refused")
        else:
            self.note(name)
            return True
        return False

    def adopt(self, expected: Expected) -> None:
        """Note which stores of a command are committed now."""
        for root, found in expected.stores.items():
            if root not in self.committed and Path(root, ROOT_KEY).exists():
                self.committed[root] = found
                self.harmed[root] = set()
                self.values[root] = expected.values[root]

    def differing(self, root: str) -> set[str]:
        """Return the keys of a committed store whose files are not what was committed."""
        return {
            key for key, content in self.committed[root].items() if read_bytes(root, key) != content
        }

    def observe(self) -> None:
        """Forget damage that is gone; there must not be any that no step has done."""
        for root in self.committed:
            found = self.differing(root)
            assert found <= self.harmed[root], f"{root}: {found - self.harmed[root]}"
            self.harmed[root] = found

    @invariant()
    def is_as_modelled(self) -> None:
        """Compare all committed stores with the model."""
        roots = [path.parent for path in (*Path("corpora").glob("*/*"), *Path("index").glob("*/*"))]
        there = {str(root) for root in roots if (root / ROOT_KEY).exists()}
        assert there <= self.committed.keys(), there - self.committed.keys()
        for root in self.committed:
            assert self.differing(root) == self.harmed[root], root

    # Commands.

    @rule(corpus=corpora, generation=kinds)
    def write(self, corpus: str, generation: int) -> None:
        """Write a pair, over the one that is there."""
        generations.write_pair(corpus, generation)
        self.pairs[corpus] = generation
        self.note("write")

    @rule(corpus=corpora, die=deaths)
    def convert(self, corpus: str, die: int | None) -> None:
        """Convert a pair, or complete what an earlier attempt has left."""
        root, generation = f"corpora/{corpus}", self.pairs[corpus]
        expected = expect_corpus(corpus, generation, self.codec)
        is_free = root not in self.committed and not has_plan(root)
        is_other = not is_free and self.begun[corpus] != generation
        must = not is_other and not self.harmed.get(root)
        work = partial(generations.convert_pair, corpus, self.codec)
        done = self.attempt("convert", work, must=must, die=die)
        assert not (done and is_other), "another corpus was accepted"
        if is_free and has_plan(root):
            self.begun[corpus] = generation
        if not is_other:
            self.adopt(expected)
            if root in self.committed:
                self.corpora[corpus] = generation
        assert not done or root in self.committed
        self.observe()

    @rule(corpus=corpora, generation=kinds, die=deaths)
    def replace(self, corpus: str, generation: int, die: int | None) -> None:
        """Remove the store of a corpus, and convert another generation to the same place."""
        self.write(corpus, generation)
        root = f"corpora/{corpus}"
        shutil.rmtree(root, ignore_errors=True)
        self.forget_store(root)
        self.convert(corpus, die)

    def forget_store(self, root: str) -> None:
        """Note that a store is gone."""
        self.committed.pop(root, None)
        self.harmed.pop(root, None)
        self.corpora.pop(root.removeprefix("corpora/"), None)

    @rule(run=runs, die=deaths)
    def build(self, run: str, die: int | None) -> None:
        """Build a run."""
        expected = self.expect(run)
        sound = {} if expected is None else self.sources_of(run)
        must = expected is not None and self.are_sound(sound)
        if expected is not None:
            present = {r: f for r, f in self.plain(run).stores.items() if r in self.committed}
            must = must and self.are_sound(present)
        done = self.attempt("build", partial(generations.build_run, run), must=must, die=die)
        assert not done or expected is not None
        # The blend is built before any corpus is opened.
        plain = expect_run(run, (0,) * len(RUNS[run]), ()) if expected is None else self.plain(run)
        self.adopt(plain)
        assert not done or plain.stores.keys() <= self.committed.keys()
        self.observe()

    @rule(run=runs, kind=st.integers(0, len(EDITS) - 1), die=deaths)
    def edit(self, run: str, kind: int, die: int | None) -> None:
        """Edit a run, twice at most."""
        expected = self.expect(run)
        if expected is None or (run == "one" and kind == 0):
            return
        key = self.lengths_of(run)
        edits = self.edits.get(key, ())
        if len(edits) == 2 or kind in edits:
            return
        present = {r: f for r, f in expected.stores.items() if r in self.committed}
        must = self.are_sound(self.sources_of(run) | present)
        number = self.count_edits(run)
        work = partial(generations.edit_run, run, len(edits), kind)
        done = self.attempt("edit", work, must=must, die=die)
        added = self.count_edits(run) - number
        assert added == 1 or (added == 0 and not done)
        if added:
            self.edits[key] = (*edits, kind)
        # A dead edit may have built its stores.
        names = tuple(self.corpora[corpus] for corpus in RUNS[run])
        self.adopt(expect_run(run, names, (*edits, kind)))
        self.observe()

    def count_edits(self, run: str) -> int:
        """Return the edits of all runs on disk."""
        return len(list(Path("index").glob(f"{JOURNAL_PREFIX}*/*.json")))

    @rule(
        store=numbers,
        key=numbers,
        kind=st.sampled_from(["missing", "cut", "flip", "swap", "older", "older"]),
        place=numbers,
    )
    def damage(self, store: int, key: int, kind: str, place: int) -> None:
        """Damage a shard of a committed store."""
        if (root := self.choose(store)) is None:
            return
        shards = sorted(name for name in self.committed[root] if "/c/" in name)
        self.harm(root, shards, shards[key % len(shards)], kind, place)

    @rule(
        store=numbers, key=numbers, kind=st.sampled_from(["missing", "cut", "flip"]), place=numbers
    )
    def damage_metadata(self, store: int, key: int, kind: str, place: int) -> None:
        """Damage a file of metadata, one of each store."""
        if (root := self.choose(store)) is None:
            return
        found = self.committed[root].keys() - {GENERATOR_KEY}  # of a build, which none reads later
        names = sorted(name for name in found if name.endswith(".json"))
        if not self.harmed[root] & set(names):
            self.harm(root, names, names[key % len(names)], kind, place)

    def harm(self, root: str, keys: list[str], chosen: str, kind: str, place: int) -> None:
        """Damage a file; it may change places with another one."""
        content = read_bytes(root, chosen)
        if not content:
            return
        path = Path(root, chosen)
        if kind == "missing":
            path.unlink()
        elif kind == "cut":
            os.truncate(path, place % len(content))
        elif kind == "flip":
            put(path, flipped(content, place % len(content)))
        elif kind == "swap":
            other = keys[place % len(keys)]
            if (swapped := read_bytes(root, other)) is not None:
                put(path, swapped)
                put(Path(root, other), content)
        else:
            put(path, self.find_older(root, chosen, place))
        self.note(f"damage {kind}")
        self.harmed[root] = self.differing(root)

    def find_older(self, root: str, key: str, number: int) -> bytes:
        """Return the file of another version of a store."""
        others = [files[key] for files in self.committed.values() if key in files]
        if root.startswith("corpora"):
            known = [expect_corpus(root[-1], g, self.codec) for g in range(NUM_GENERATIONS)]
            others += [item.stores[root][key] for item in known if key in item.stores[root]]
        return others[number % len(others)]

    @rule(store=numbers)
    def verify(self, store: int) -> None:
        """Verify a store: exactly the damaged files are named."""
        if (root := self.choose(store)) is None:
            return
        found = {damage.key for damage in verify_store(root).damages}
        harmed = self.harmed[root]
        self.note("verify damaged" if harmed else "verify sound")
        if MANIFEST_KEY in harmed:  # without it valid shards may be those of other places
            assert MANIFEST_KEY in found <= harmed, (found, harmed)
        else:
            assert found == harmed, (found, harmed)

    @rule(store=numbers, die=deaths)
    def repair(self, store: int, die: int | None) -> None:
        """Repair a store, a corpus from its pair, another one as its run names it."""
        if (root := self.choose(store, harmed=True)) is None:
            return
        if root.startswith("corpora"):
            corpus = root.rpartition("/")[2]
            is_same = self.pairs[corpus] == self.corpora[corpus]
            work = partial(repair, root, source=f"pairs/{corpus}")
            self.finish_repair([root], work, must=is_same or not self.harmed[root], die=die)
        else:
            run = sorted(RUNS)[store % len(RUNS)]
            expected = self.expect(run)
            if expected is None:
                return
            present = [name for name in self.plain(run).stores if name in self.committed]
            must = self.are_sound(self.sources_of(run))
            work = partial(repair, f"{run}.yaml")
            self.finish_repair(present, work, must=must, die=die)
            # A commit that died before its last file is completed.
            self.adopt(self.plain(run))
            self.observe()

    def finish_repair(
        self, roots: list[str], work: Callable[[], Any], *, must: bool, die: int | None
    ) -> None:
        """Repair stores, after which they are sound."""
        name = "repair" if any(self.harmed[root] for root in roots) else "repair nothing"
        done = self.attempt(name, work, must=must, die=die)
        self.observe()
        assert not done or not any(self.harmed[root] for root in roots)

    @rule(folder=st.sampled_from([".", "index", "corpora"]), given=st.sets(runs))
    def clean(self, folder: str, given: set[str]) -> None:
        """Remove what no given run needs."""
        if not Path(folder).exists():
            return
        names = [f"{run}.yaml" for run in sorted(given)]
        expected = [self.expect(run) for run in given]
        is_edited = bool(given) and bool(list(Path("index").glob(f"{JOURNAL_PREFIX}*")))
        needed: set[str] = set()
        must = True
        for run in given:
            if self.expect(run) is not None:
                needed |= {*self.plain(run).stores, *self.sources_of(run)}
                must = must and self.are_sound(self.sources_of(run))
        must = must and None not in expected

        def work() -> None:
            for garbage in find_garbage(folder, names, hours=0):
                assert garbage.remove()

        done = self.attempt("gc of runs" if given else "gc", work, must=must, die=None)
        for root in sorted(self.committed):
            is_gone = not Path(root).exists()
            may = done and given and not is_edited and root not in needed
            assert not is_gone or may, f"{root} was removed"
            if may and not is_gone:
                assert not Path(root).is_relative_to(folder), f"{root} is left"
            if is_gone:
                self.forget_store(root)
        if done:
            # A commit that died before its last file can be repaired.
            left = [path.parent.parent for path in Path(folder).glob(f"**/{PLAN_KEY}")]
            assert all(
                (root / ROOT_KEY).exists() or (root / MANIFEST_KEY).exists() for root in left
            )
        self.observe()

    # Readers.

    def keep(self, handle: Handle) -> None:
        """Keep what was opened."""
        self.handles = [*self.handles[1 - _MAX_HANDLES :], handle]

    @rule(store=numbers, verify=st.sampled_from(["first", "always"]), number=numbers)
    def open_arrays(self, store: int, verify: Any, number: int) -> None:
        """Open a store."""
        if (root := self.choose(store)) is None:
            return
        values = self.values[root]

        def work() -> None:
            opened = open_store(root, verify=verify)
            readers = {name: opened[name] for name in values}
            self.keep(
                Handle(
                    lambda n: read_arrays(readers, n),
                    lambda n: read_arrays(values, n),
                    {root: self.committed[root]},
                )
            )

        if self.attempt("open", work, must=ROOT_KEY not in self.harmed[root], die=None):
            self.read_from(self.handles[-1], number)

    @rule(corpus=corpora)
    def open_pair(self, corpus: str) -> None:
        """Open a pair."""
        dataset, tokens = IndexedDataset(f"pairs/{corpus}"), tokens_of(corpus, self.pairs[corpus])
        if isinstance(dataset.bin_reader, _FileBinReader):
            dataset.bin_reader.num_max_retries = 0  # or it waits for a minute
        assert read_pair(dataset) == tokens.tolist()
        # Its files have no checksums: whether they were written again is all that is seen.
        stores: dict[str, Files] = {f"pairs/{corpus}": {}}
        self.keep(Handle(lambda n: read_pair(dataset), lambda n: tokens.tolist(), stores))
        self.note("open pair")

    @rule(run=runs, number=numbers)
    def open_run(self, run: str, number: int) -> None:
        """Open the samples of a run, after it is built."""
        expected = self.expect(run)
        if expected is None or not expected.stores.keys() <= self.committed.keys():
            return
        stores = self.sources_of(run) | expected.stores

        def work() -> None:
            dataset, samples = generations.open_samples(run), expected.samples
            assert len(dataset) == len(samples)
            self.keep(
                Handle(
                    lambda n: generations.read_sample(dataset, n % len(dataset)),
                    lambda n: samples[n % len(samples)],
                    stores,
                )
            )

        if self.attempt("open run", work, must=self.are_sound(stores), die=None):
            self.read_from(self.handles[-1], number)
        self.observe()

    @rule(number=numbers, forgets=st.booleans())
    def read(self, number: int, forgets: bool) -> None:
        """Read from all that was opened before, also as a process that was just started."""
        if forgets:
            forget_all_files()
            read_manifest.cache_clear()
        for handle in self.handles:
            self.read_from(handle, number)

    def read_from(self, opened: Handle, number: int) -> None:
        """Read from something that was opened at any time before."""
        try:
            found = opened.read(number)
        except ZindexError:
            assert not self.are_sound(opened.stores), "an error without damage"
            self.note("read refused")
        else:
            assert found == opened.expect(number), "other values"
            self.note("read")


@contextmanager
def deadly(die: int) -> Iterator[None]:
    """Have a command die before a write; all of its writes are made in one order."""
    with pytest.MonkeyPatch.context() as patch, death_before(die, (local, "write_once")):
        patch.setattr(shard_files, "_NUM_WRITERS", 1)
        patch.setattr(files, "num_writers", lambda place: 1)
        yield


def has_plan(root: str) -> bool:
    """Return whether a store was begun."""
    return Path(root, PLAN_KEY).exists()


def read_bytes(root: str, key: str) -> bytes | None:
    """Return a file of a store, or None if it is gone."""
    try:
        return Path(root, key).read_bytes()
    except FileNotFoundError:
        return None


def put(path: Path, content: bytes) -> None:
    """Put a new file at a place, as a rename does."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    # Clocks of file systems tick slowly.
    os.utime(path, ns=(0, next(_times)))


def read_arrays(arrays: dict[str, Any], number: int) -> Any:
    """Return rows of an array by number: one span, or many in a round."""
    name = sorted(arrays)[number % len(arrays)]
    array = arrays[name]
    step = 1 + number // 4 % 5
    starts = np.arange(0, len(array), step)
    stops = np.minimum(starts + step, len(array))
    if number // 20 % 2:
        starts, stops = starts[-1:], stops[-1:]
    if isinstance(array, np.ndarray):
        return array[starts[0] :].tolist()
    if number // 40 % 2:
        return array.read(int(starts[0]), len(array)).tolist()
    return read_many([Spans(array, starts, stops)])[0].tolist()


def read_pair(dataset: Any) -> list[int]:
    """Return all tokens of a pair."""
    return [token for row in range(len(dataset)) for token in dataset[row].tolist()]


def run_examples(num_examples: int, number: int) -> None:
    """Run examples of a seed; raise what fails, after shortening it."""
    chosen = settings(
        max_examples=num_examples,
        stateful_step_count=NUM_STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(get_state_machine_test(Machine, settings=chosen))()


def run_many(num_examples: int, number: int) -> Counter[str]:
    """Run examples, fifty for each seed; return how many steps ended how, and the wrong seeds."""
    Machine.outcomes = Counter()
    failed = 0
    for start in range(0, num_examples, _BATCH):
        try:
            run_examples(min(_BATCH, num_examples - start), number + start // _BATCH)
        except Exception:
            failed += 1
            print(f"seed {number + start // _BATCH} is wrong", file=sys.stderr)
            traceback.print_exc()
    return Machine.outcomes + Counter(wrong=failed)


if __name__ == "__main__":
    raise SystemExit(report(run_many))
