"""Measure how fast a loader reads the batches of a run."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zindex.config import RunConfig
from zindex.formats.bin_writer import PairWriter

_SEQUENCE_LENGTH, _BATCH = 4096, 32
_VOCABULARY = 50_000
_PART = 10_000
# More than any measurement needs.
_MANY_PASSES = 1_000_000


@dataclass(frozen=True, slots=True)
class LoadRate:
    """Read rate of one process, with torch's default number of threads."""

    #: ``"synthetic"``, or the user's run.
    source: str
    samples_per_second: float
    tokens_per_second: float
    num_batches: int
    batch_size: int


class _Tokenizer:
    """Minimal tokenizer for datasets, without an end-of-document token in the data."""

    vocab_size = 2**31 - 1
    eod = -1
    pad = -2
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict(name="none")


def can_load() -> bool:
    """Return whether torch is installed."""
    return find_spec("torch") is not None


def write_tokens(folder: Path, *, num_tokens: int, document_length: float) -> dict[str, Any]:
    """Write a small pair of random tokens, and return a run of it.

    Parameters
    ----------
    folder
        An existing folder.
    num_tokens, document_length
        Tokens in all, about, and of a document on average.
    """
    generator = np.random.default_rng(1)
    num_documents = max(1, int(num_tokens / document_length))
    lengths = generator.lognormal(np.log(document_length) - 0.5, 1.0, num_documents)
    lengths = np.maximum(1, lengths).astype(np.int64)
    lengths[-1] += max(0, 2 * _SEQUENCE_LENGTH * _BATCH - lengths.sum())
    prefix = str(folder / "tokens")
    writer = PairWriter(f"{prefix}.bin", np.uint16)
    for part in np.array_split(lengths, max(1, num_documents // _PART)):
        writer.append(generator.integers(1, _VOCABULARY, part.sum()).astype(np.uint16), part)
    writer.end_document()
    writer.finalize(f"{prefix}.idx")
    return {
        "datasets": [prefix],
        "sequence_length": _SEQUENCE_LENGTH,
        "split": "1,0,0",
        "order": "scalable",
        "index": str(folder / "index"),
    }


def measure_loading(
    run: RunConfig | Mapping[str, Any], seconds: float, *, source: str = "synthetic"
) -> LoadRate:
    """Return the read rate of a run's loader.

    Parameters
    ----------
    run
        The run, whose first split is read. Missing indices are built first.
    seconds
        How long to read.
    source
        Name of the data.
    """
    from zindex.loading.loader import loader

    num_batches = num_samples = num_tokens = 0
    with loader(
        run,
        _Tokenizer(),
        micro_batch_size=_BATCH,
        num_epochs=_MANY_PASSES,
        data_parallel_rank=0,
        data_parallel_size=1,
        pin_memory=False,
    ) as batches:
        stream = iter(batches)
        next(stream)  # kernels are compiled, files opened
        start = time.perf_counter()
        while not num_batches or time.perf_counter() - start < seconds:
            batch = next(stream)
            num_batches += 1
            num_samples += len(batch["tokens"])
            num_tokens += batch["tokens"].numel()
        spent = time.perf_counter() - start
    return LoadRate(source, num_samples / spent, num_tokens / spent, num_batches, _BATCH)
