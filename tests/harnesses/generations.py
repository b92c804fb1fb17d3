"""Small corpora of several generations, runs over them, and what clean commands make of each.

Paths are relative to the working directory. Everything expected is computed in a fork, in a folder
of its own, so that no state of this process leaks into it.
"""

import contextlib
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import zindex
from tests.conftest import FakeTokenizer
from tests.killing import exit_code, fork
from tests.trees import all_files
from zindex.datasets.run_datasets import open_run
from zindex.execution.executor import SerialExecutor
from zindex.formats.bin_writer import PairWriter
from zindex.indexing.run import build
from zindex.maintenance.edits.edit import edit
from zindex.store.layout import ChunkGrid

SERIAL = SerialExecutor()
#: Corpora of each run, by the name of its file.
RUNS = {"both": ("a", "b"), "one": ("a",)}
#: Generations of a corpus: the first two differ in tokens only, and so do the last two.
NUM_GENERATIONS = 4
#: What an edit changes, beside its position.
EDITS: tuple[dict[str, Any], ...] = (
    {"reweight": {"corpora/a": 5.0}},
    {"skip": (12, 15)},
    {"num_samples": 30},
)
#: Position of the first edit; each later one is two samples behind the one before.
FIRST_EDIT = 4
_LENGTHS = ([7, 3, 9, 6, 8], [4, 12, 5, 2, 9, 3])

Files = dict[str, bytes]


@dataclass(frozen=True)
class Expected:
    """What a command leaves in a clean folder."""

    #: Files of each committed store by their keys, by the path of the store.
    stores: dict[str, Files]
    #: All values of each store by array, as plain Zarr reads them.
    values: dict[str, dict[str, Any]]
    #: Tokens of each sample of a run.
    samples: list[list[int]]


def tokens_of(corpus: str, generation: int) -> Any:
    """Return the tokens of a generation of a corpus."""
    first = 1000 * (10 * "ab".index(corpus) + generation)
    return np.arange(first, first + sum(_LENGTHS[generation // 2]), dtype=np.int32)


def write_pair(corpus: str, generation: int) -> None:
    """Write a generation of a corpus as a pair, over the one that is there."""
    Path("pairs").mkdir(exist_ok=True)
    writer = PairWriter(f"pairs/{corpus}.bin", np.int32)
    lengths = _LENGTHS[generation // 2]
    writer.append(tokens_of(corpus, generation), lengths)
    writer.append_document_ends(np.arange(1, len(lengths) + 1))
    writer.finalize(f"pairs/{corpus}.idx")


def convert_pair(corpus: str, codec: Any) -> None:
    """Convert the pair of a corpus to its store."""
    grid = ChunkGrid(4, 8, codec)
    zindex.convert(f"pairs/{corpus}", f"corpora/{corpus}", client=SERIAL, grid=grid)


def write_runs() -> None:
    """Write the files of the runs."""
    for run, corpora in RUNS.items():
        datasets = ", ".join(f"{{path: corpora/{name}, weight: 1}}" for name in corpora)
        order = "megatron" if run == "both" else "scalable"
        Path(f"{run}.yaml").write_text(
            f"sequence_length: 4\nsplit: '1,0,0'\nindex: index\norder: {order}\n"
            "samples: {train: 20}\ngrid: {chunk_length: 4, shard_length: 8}\n"
            f"datasets: [{datasets}]\n"
        )


def build_run(run: str) -> None:
    """Build a run in this thread."""
    build(f"{run}.yaml", client=SERIAL)


def edit_run(run: str, number: int, kind: int) -> None:
    """Make an edit of a kind, the one of a number from 0 on."""
    edit(f"{run}.yaml", FIRST_EDIT + 2 * number, client=SERIAL, **EDITS[kind])


def open_samples(run: str) -> Any:
    """Open the samples of a built run, read from its indices."""
    settings: dict[str, Any] = {"max_computed_rows": 0, "create_attention_mask": False}
    return open_run(f"{run}.yaml", FakeTokenizer(), **settings)["train"]


def read_sample(dataset: Any, position: int) -> list[int]:
    """Return the tokens of a sample."""
    tokens: list[int] = dataset[position]["tokens"].tolist()
    return tokens


def read_stores(folder: str) -> dict[str, Files]:
    """Return the files of all committed stores directly below a folder."""
    roots = [path.parent for path in sorted(Path(folder).glob("*/zarr.json"))]
    return {str(root): all_files(root) for root in roots}


@cache
def expect_corpus(corpus: str, generation: int, codec: str) -> Expected:
    """Return what the store of a corpus holds."""

    def work() -> list[list[int]]:
        write_pair(corpus, generation)
        convert_pair(corpus, codec)
        return []

    return _in_clean_folder("corpora", work)


@cache
def expect_run(run: str, generations: tuple[int, ...], edits: tuple[int, ...]) -> Expected:
    """Return what the index folder of an edited run holds, and its samples."""

    def work() -> list[list[int]]:
        write_runs()
        for corpus, generation in zip(RUNS[run], generations, strict=True):
            write_pair(corpus, generation)
            convert_pair(corpus, "none")
        build_run(run)
        for number, kind in enumerate(edits):
            edit_run(run, number, kind)
        dataset = open_samples(run)
        return [read_sample(dataset, position) for position in range(len(dataset))]

    return _in_clean_folder("index", work)


def _in_clean_folder(folder: str, work: Callable[[], list[list[int]]]) -> Expected:
    """Work in a fork, in a new folder; return what is then below a folder of it, and the result."""
    with tempfile.TemporaryDirectory() as place:

        def run() -> None:
            with contextlib.chdir(place):
                samples, stores = work(), read_stores(folder)
                values = {
                    root: {name: array[:] for name, array in zarr.open_group(root).arrays()}
                    for root in stores
                }
                expected = Expected(stores, values, samples)
                Path("expected").write_bytes(pickle.dumps(expected))

        assert exit_code(fork(run)) == 0
        found: Expected = pickle.loads((Path(place) / "expected").read_bytes())
    return found
