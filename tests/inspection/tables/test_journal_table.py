"""The edits of a run as lines and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import WriteCorpus
from tests.maintenance.edits.walks import edit_here, weighted_run, write_corpora
from zindex.config import RunConfig
from zindex.inspection.tables.journal_table import (
    entry_json,
    entry_lines,
    journal_lines,
    report_edits,
)
from zindex.maintenance.edits.journal import open_journal


@pytest.fixture
def config(tmp_path: Path, write_corpus: WriteCorpus) -> RunConfig:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11])
    return weighted_run(tmp_path, paths)


def test_without_edits_there_is_little_to_say(config: RunConfig) -> None:
    assert report_edits(config) == ({}, [])
    assert journal_lines(open_journal(config)) == ["train was not edited: 100 samples"]


def test_edits_are_told_in_words(config: RunConfig) -> None:
    entry = edit_here(config, 30, sequence_length=8, num_samples=60, skip=(40, 45))
    first, header, *rows = entry_lines(entry)
    assert first == (
        "edit 1 at position 30: [40, 45) skipped, 8 tokens per sample, 60 samples in all"
    )
    assert header.split() == ["dataset", "consumed", "skipped", "left", "drawn"]
    assert [row.split()[1:3] for row in rows] == [["15", "3"], ["15", "2"]]
    assert report_edits(config)[1][0].startswith("train was edited once: 60 samples of 8 tokens")
    facts = report_edits(config)[0]["edits"]["train"]
    assert json.loads(json.dumps(facts)) == json.loads(json.dumps([entry_json(entry)]))


def test_long_lists_are_cut(config: RunConfig) -> None:
    entry = edit_here(config, skip=(40, 45))
    rows = entry.certificate["datasets"] * 15
    long = replace(entry, certificate=entry.certificate | {"datasets": rows})
    assert entry_lines(long)[-1] == "and 10 more datasets; --json lists all"
