"""What the top README claims: references into the records, and no figures."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.benchmarks.record import Record, Row, Table


@dataclass(frozen=True)
class Claim:
    """A line of the top README: a row of the page beside a rival's."""

    text: str
    benchmark: str
    table: str
    row: str
    figure: str = "seconds"
    #: Another row than the rival that the table names, if that is what people know.
    against: str | None = None

    @property
    def place(self) -> str:
        """Where its figure is, for people."""
        return f"{self.benchmark}/{self.table}: {self.figure} of {self.row!r}"


@dataclass(frozen=True)
class Found:
    """A claim's figures."""

    table: Table
    row: Row
    rival: Row | None
    #: How many times better the row is than the rival; None without one.
    ratio: float | None


def find(records: Mapping[str, Record], claim: Claim) -> Found | None:
    """Return the figures of a claim; None where they are not recorded."""
    tables = records[claim.benchmark].tables if claim.benchmark in records else []
    table = next((table for table in tables if table.key == claim.table), None)
    row = table and table.row(claim.row)
    value = row and row.median(claim.figure)
    if not table or not row or value is None:
        return None
    name = claim.against or rival_name(table, row)
    rival = table.row(name) if name is not None and name != row.contender else None
    theirs = rival and rival.median(claim.figure)
    if not theirs or not value:
        return Found(table, row, None, None)
    faster = value / theirs if claim.figure.endswith("per_second") else theirs / value
    return Found(table, row, rival, faster)


def rival_name(table: Table, row: Row) -> str | None:
    """Return the contender that a row is compared with."""
    return table.rival.get(row.contender) if isinstance(table.rival, dict) else table.rival


_BLEND = "datasets-1000-samples-1e8"
_BUILD = "documents-1e8"

_TRILLIONS = "5e12"

CLAIMS = (
    Claim(
        "5 trillion tokens, from `.idx` files to committed indices and blend, minimal store",
        "bench_trillions",
        _TRILLIONS,
        "zindex, scalable, minimal",
    ),
    Claim(
        "the same with every array stored",
        "bench_trillions",
        _TRILLIONS,
        "zindex, scalable order",
    ),
    Claim(
        "the most memory that it took",
        "bench_trillions",
        _TRILLIONS,
        "zindex, scalable, minimal",
        "peak_nbytes",
    ),
    Claim(
        "index of one dataset in Megatron Core's order, bit for bit",
        "bench_build",
        _BUILD,
        "zindex, megatron order",
    ),
    Claim(
        "index of one dataset in the scalable order, minimal store",
        "bench_build",
        _BUILD,
        "zindex, scalable, minimal",
    ),
    Claim(
        "blend in Megatron Core's greedy order, bit for bit",
        "bench_blend",
        _BLEND,
        "zindex, megatron order",
        "sample_ns",
    ),
    Claim(
        "blend by the same weights in the scalable order, shuffled",
        "bench_blend",
        _BLEND,
        "zindex, scalable order",
        "sample_ns",
    ),
    Claim(
        "shuffle of numpy's legacy generator, bit for bit",
        "bench_kernels",
        "shuffle-1e8",
        "zindex, legacy shuffle",
        "element_ns",
    ),
    Claim(
        "batches with an attention mask, the rival's default",
        "bench_load",
        "uint16-1e8",
        "zindex, attention mask",
        "tokens_per_second",
    ),
    Claim(
        "batches without an attention mask",
        "bench_load",
        "uint16-1e8",
        "zindex, no attention mask",
        "tokens_per_second",
    ),
    Claim(
        "a random span of tokens, against zarr-python",
        "bench_read",
        "span-1e8",
        "zindex",
        "span_us",
        against="zarr-python",
    ),
    Claim(
        "a random span of tokens, against a memory map of a flat file",
        "bench_read",
        "span-1e8",
        "zindex",
        "span_us",
    ),
    Claim(
        "the first batch of a blend that exists, torch's import left out",
        "bench_load",
        "first-batch-1000",
        "zindex, open_run",
    ),
    Claim(
        "batches from a server far away",
        "bench_remote",
        "latency-30ms-1e8",
        "zindex, raw",
        "samples_per_second",
    ),
    Claim(
        "documents packed whole into samples",
        "bench_packing",
        "memory-lognormal",
        "zindex, kernel",
        "document_ns",
    ),
    Claim(
        "BERT's samples through a DataLoader, bit for bit",
        "bench_masked",
        "bert-1e4",
        "zindex, DataLoader",
        "samples_per_second",
    ),
    Claim(
        "T5's samples through a DataLoader, bit for bit",
        "bench_masked",
        "t5-1e4",
        "zindex, DataLoader",
        "samples_per_second",
    ),
    Claim(
        "sentences mapped to samples, some of them short, bit for bit",
        "bench_mapping",
        "memory-short-ones-2e6",
        "zindex, helper",
        "sentence_ns",
    ),
    Claim(
        "sentences mapped to four epochs of samples, bit for bit",
        "bench_mapping",
        "memory-four-epochs-2e6",
        "zindex, helper",
        "sentence_ns",
    ),
    Claim(
        "texts tokenized to a `.bin/.idx` pair by two processes, byte for byte",
        "bench_tokenize",
        "texts-25",
        "zindex, 2 processes, .bin/.idx",
        "tokens_per_second",
        against="plain loop",
    ),
    Claim(
        "texts tokenized by two processes, against one",
        "bench_tokenize",
        "texts-25",
        "zindex, 2 processes, .bin/.idx",
        "tokens_per_second",
    ),
    Claim(
        "samples of tar archives, mixed, with a state on each",
        "bench_streaming",
        "tar",
        "zindex, MergedDataset",
        "samples_per_second",
    ),
    Claim(
        "lines of jsonl of 2 kB in the files' order, with a state on each",
        "bench_streaming",
        "jsonl-2000",
        "zindex, MergedDataset, files' order",
        "samples_per_second",
    ),
    Claim(
        "short lines of jsonl in the files' order, with a state on each",
        "bench_streaming",
        "jsonl-200",
        "zindex, MergedDataset, files' order",
        "samples_per_second",
    ),
    Claim(
        "windows of a keyed store for instruction tuning, from raw files",
        "bench_keyed",
        "windows-batches-32",
        "zindex, raw files",
        "samples_per_second",
    ),
    Claim(
        "the same from Zarr, in batches of 128",
        "bench_keyed",
        "windows-batches-128",
        "zindex, Zarr",
        "samples_per_second",
    ),
    Claim(
        "the first index of a pass over 10 million samples, on every rank",
        "bench_keyed",
        "sampler-1e7",
        "zindex, keyed",
        "first_ms",
    ),
)
