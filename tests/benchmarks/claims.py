"""What the top README claims: references into the records, and no figures."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.benchmarks.record import Record, Row, Table


@dataclass(frozen=True)
class Claim:
    """A line of the top README: a row of the page and its rival."""

    text: str
    benchmark: str
    table: str
    row: str
    figure: str = "seconds"
    #: Another row than the rival that the table names, if that is what people know.
    against: str | None = None
    #: Whether it belongs to the second table, of small jobs.
    small: bool = False

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


CLAIMS = (
    Claim(
        "1 trillion tokens in Megatron Core's order, bit for bit, every array stored",
        "bench_trillions",
        "1e12",
        "zindex, megatron order",
    ),
    Claim(
        "5 trillion tokens in the scalable order, every array stored",
        "bench_trillions-long",
        "5e12",
        "zindex, scalable order",
    ),
    Claim(
        "blend in Megatron Core's greedy order, bit for bit",
        "bench_blend",
        "datasets-1000-samples-1e8",
        "zindex, megatron order",
        "sample_ns",
    ),
    Claim(
        "batches without an attention mask",
        "bench_load",
        "uint16-1e8",
        "zindex, no attention mask",
        "tokens_per_second",
    ),
    Claim(
        "random span of tokens, against a memory map of a flat file",
        "bench_read",
        "span-1e8",
        "zindex",
        "span_us",
    ),
    *(
        Claim(text, "bench_fixed", table, row, "pass_seconds", small=True)
        for text, table, row in (
            ("`GPTDataset` of 1,000 documents", "documents-1e3", "zindex, second process"),
            ("`GPTDataset` of 2 million documents", "documents-2e6", "zindex, second process"),
            ("`GPTDataset` of 20 million documents", "documents-2e7", "zindex, second process"),
            ("Blend of 1,000 datasets", "datasets-1000", "zindex, second process"),
            ("Blend of 1,000 datasets, all built", "datasets-1000-built", "zindex, all built"),
            ("Blend of 10 open datasets", "blend-10-1e4", "zindex, second process"),
        )
    ),
)
