"""Jobs that follow each other over streams: files, packed texts, items, yield functions.

``python -m tests.harnesses.stream_chains --trials 1000 --seed 0``

Each job has other numbers of ranks and loader workers, lets its ranks run ahead of each other,
prefetches, changes its percents, and ends anywhere. Files are plain, or compressed with and without
frames. Between jobs files are added anywhere, lines are added to files, sources are added, dropped
and taken back, and percents become others or schedules. All jobs together deliver each sample of an
epoch once, and the next epoch has all files.
"""

import gzip
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.harnesses.running import main
from tests.sources.archives import bgzip, seekable_zstd
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, pairs
from zindex.sources import sample_offsets
from zindex.streaming import JsonlIterableDataset, MergedDataset, TextPacking

Sample = dict[str, Any]
_SIZES = (0, 1, 3, 40, 300, 2500)
PACKS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bgz": lambda content: bgzip(content, 999)[0],
    ".zst": lambda content: seekable_zstd(content, 999),
}
_NUM_EPOCHS = 3


def read_numbers(text: str) -> list[int]:
    """Tokenise "3 4 5" as its numbers."""
    return [int(word) for word in text.split()]


class Files:
    """Files of texts whose tokens count on."""

    def __init__(self, rng: random.Random, folder: Path, num_files: int) -> None:
        self.rng, self.folder, self.token = rng, folder, 1
        #: Names of the lines, and the tokens, of each file.
        self.files: dict[str, list[Any]] = {}
        #: The same of all files, whenever a job has begun.
        self.snapshots: list[list[Any]] = []
        for _ in range(num_files):
            self.add()

    def add(self) -> None:
        """Write one more file, anywhere among the others."""
        rng = self.rng
        number = rng.choice([*{*range(1000)} - {int(name[:3]) for name in self.files}])
        name = f"{number:03}.jsonl{rng.choice(('', '', *PACKS))}"
        num_lines = rng.choice(_SIZES) if rng.random() < 0.4 else rng.randint(1, 60)
        self.files[name] = []
        self.write(name, max(num_lines, len(self.files) == 1))

    def continue_one(self) -> None:
        """Write more lines at the end of a file; seekable zstd cannot be continued."""
        names = [name for name in self.files if not name.endswith(".zst")]
        if names:
            self.write(self.rng.choice(names), self.rng.randint(1, 30))

    def write(self, name: str, num_lines: int) -> None:
        """Write lines at the end of a file."""
        lines, names = [], self.files[name]
        for number in range(len(names), len(names) + num_lines):
            numbers = range(self.token, self.token + self.rng.randint(1, 9))
            self.token = numbers.stop
            text = " ".join(map(str, numbers))
            lines.append(json.dumps({"id": f"{name}:{number}", "text": text}))
            names += [f"{name}:{number}", *numbers]
        content = "".join(f"{line}\n" for line in lines).encode()
        pack = PACKS.get(name[9:])
        with (self.folder / name.replace(".bgz", ".gz")).open("ab") as stream:
            stream.write(content if pack is None else pack(content))

    def snapshot(self) -> None:
        """Note what the files have when a job begins."""
        self.snapshots.append([name for names in self.files.values() for name in names])


def count(names: list[Any], kind: type) -> Counter[Any]:
    """Return the names, or the tokens, of a snapshot."""
    return Counter(name for name in names if type(name) is kind)


class Mixture:
    """A mixture that changes from job to job."""

    def __init__(self, rng: random.Random, files: Files) -> None:
        self.rng, self.files = rng, files
        self.kind = rng.choice(("lines", "epochs", "packed", "yield"))
        length, most = rng.randint(1, 12), rng.choice((None, 0, 300, 1 << 20))
        # Sources may grow beyond what is packed as a whole.
        self.packing = TextPacking(length, read_numbers, pad_id=0, whole_nbytes=most)
        self.shuffle, self.seed = rng.random() < 0.8, rng.randint(0, 9)
        self.segment = rng.randint(1, 40)
        self.sizes = {"items": rng.randint(1, 50), "more": rng.randint(1, 50)}
        self.percents: dict[str, Any] = {
            name: rng.choice((1, 0.3, 7)) for name in ("texts", *self.sizes)
        }
        self.dropped: set[str] = {"more"} if rng.random() < 0.7 else set()

    def make(self) -> MergedDataset:
        """Open the mixture as it is now."""
        packing = self.packing if self.kind == "packed" else None
        texts: Any = JsonlIterableDataset(self.files.folder, packing)
        texts.name = "texts"
        sources = [texts, *(Items(name, size) for name, size in self.sizes.items())]
        kept = [source for source in sources if source.name not in self.dropped]
        for source in kept:
            source.percent = self.percents[source.name]
            if self.kind == "epochs":
                source.max_epochs = _NUM_EPOCHS
        return MergedDataset(
            kept,
            cyclic=self.kind == "epochs",
            shuffle_streaming_subsets=self.shuffle,
            seed=self.seed,
            customized_yield_fn=pairs if self.kind == "yield" else None,
            yield_segment=self.segment,
        )

    def change(self) -> Iterator[str]:
        """Change the mixture between two jobs."""
        rng = self.rng
        for grow in (self.files.add, self.files.continue_one):
            if rng.random() < 0.3:
                grow()
                yield "grown"
        if rng.random() < 0.3:
            name = rng.choice(["texts", *self.sizes])
            self.percents[name] = self._draw_percent()
            yield "reweighted"
        if rng.random() < 0.3 and self.kind != "yield":
            self.dropped ^= {rng.choice([*self.sizes])}
            yield "dropped or added"

    def _draw_percent(self) -> Any:
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice((0.1, 1, 5))
        starts = [0, *rng.sample(range(1, 300), rng.randint(1, 4))]
        return {start: rng.choice((0.1, 1, 5)) for start in starts}


def names_of(sample: Sample) -> list[Any]:
    """Return the names or tokens that a sample is made of."""
    if "tokens" in sample:
        return [token for token in [*sample["tokens"].tolist(), int(sample["labels"][-1])] if token]
    return list(sample["ids"]) if "ids" in sample else [sample["id"]]


def count_names(samples: list[Sample]) -> Counter[Any]:
    """Return how often each name or token was delivered."""
    return Counter(name for sample in samples for name in names_of(sample))


@contextmanager
def own_caches(rng: random.Random) -> Iterator[None]:
    """Keep copies and tables, also those of small files, in a folder of their own."""
    least = rng.choice((0, sample_offsets.MIN_KEPT_NBYTES))
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(tempfile, "tempdir", folder),
        mock.patch.dict(os.environ, XDG_CACHE_HOME=folder),
        mock.patch.object(sample_offsets, "MIN_KEPT_NBYTES", least),
    ):
        yield


def trial(rng: random.Random) -> str:
    """Run a chain of jobs over one epoch, or over three."""
    with tempfile.TemporaryDirectory() as work, own_caches(rng):
        files = Files(rng, Path(work), rng.randint(1, 9))
        mixture = Mixture(rng, files)
        seen, changes = _follow(rng, mixture)
        kind = int if mixture.kind == "packed" else str
        items = Counter(f"{name}:{n}" for name, size in mixture.sizes.items() for n in range(size))
        if mixture.kind == "epochs":
            _check_epochs(seen, files, items)
        else:
            found = count_names(seen)
            possible = [count(names, kind) + items for names in files.snapshots]
            expected = next((one for one in possible if not found - one), possible[-1])
            missing = expected - found
            assert not found - expected, f"{mixture.kind}: repeated {found - expected}"
            # A last token without a label is no sample: one for each worker that ended.
            most = 64 if mixture.kind == "packed" else 0
            assert sum(missing.values()) <= most, f"{mixture.kind}: lost {missing}"
    return mixture.kind + (" with changes" if changes else "")


def _check_epochs(seen: list[Sample], files: Files, items: Counter[Any]) -> None:
    """Check that each epoch of each source is whole, over files that were there when it began."""
    left = iter(files.snapshots)
    names = next(left)
    for epoch in range(_NUM_EPOCHS):
        found = count_names([sample for sample in seen if sample["__epoch__"] == epoch])
        texts = Counter({name: n for name, n in found.items() if name not in items})
        assert found - texts == items, f"epoch {epoch} has {found - texts}"
        while texts != count(names, str):
            names = next(left, None)
            assert names is not None, f"epoch {epoch} is of no job's files"


def _follow(rng: random.Random, mixture: Mixture) -> tuple[list[Sample], int]:
    """Return what a chain of jobs delivers, and the changes of the mixture."""
    seen: list[Sample] = []
    num_changes = 0
    state: Any = None
    for number in range(rng.randint(1, 6)):
        num_changes += sum(1 for _ in mixture.change()) if number else 0
        mixture.files.snapshot()
        job = Run(
            mixture.make,
            rng.randint(1, 5),
            rng.randint(0, 3),
            state,
            batch_size=rng.randint(1, 5),
            ahead=rng.randint(0, 3),
        )
        most = sum(mixture.sizes.values()) + len(mixture.files.files) * 60
        for _ in range(rng.randint(1, 3)):
            job.advance(rng.randint(1, most), lambda step, ranks: rng.randrange(ranks))
            if rng.random() < 0.4:
                names = [source.name for source in job.ranks[0].dataset.datasets]
                job.set_percents({rng.choice(names): rng.choice((0.1, 1, 5))})
                num_changes += 1
        seen += job.samples()
        if any(job.own_states()):
            state = job.merged_states()
    mixture.dropped.clear()
    last = Run(mixture.make, rng.randint(1, 4), rng.randint(0, 2), state).drain()
    seen += last.samples()
    if mixture.kind != "epochs" and any(last.own_states()):
        _check_next_epoch(mixture, last)
    return seen, num_changes


def _check_next_epoch(mixture: Mixture, last: Run) -> None:
    """Check that the epoch after the last job has all files."""
    dataset = mixture.make()
    dataset.set_dataloader_states(last.merged_states())
    assert not count_names(list(dataset)) or mixture.kind == "packed"
    kind = int if mixture.kind == "packed" else str
    found = count_names(list(dataset))
    items = Counter(f"{name}:{n}" for name, size in mixture.sizes.items() for n in range(size))
    expected = count(mixture.files.snapshots[-1], kind) + items
    missing = expected - found
    assert not found - expected, f"the next epoch repeats {found - expected}"
    assert sum(missing.values()) <= (mixture.kind == "packed"), f"the next epoch lacks {missing}"


if __name__ == "__main__":
    raise SystemExit(main(trial))
