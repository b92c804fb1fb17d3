"""Records of tokens with all settings, and their lengths before anything is written."""

from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from zindex.errors import SourceError
from zindex.ingest.keyed.open_token_records import measure_lengths, open_token_records
from zindex.text.chat_template import PLAIN

ROWS = [
    {"prompt": "q" * length, "responses": ["a", "b" * length], "rewards": [0, 1]}
    for length in (1, 3, 8)
]


def test_lengths_are_measured_without_writing(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer", chat_template=PLAIN)
    source = write_jsonl(tmp_path / "in.jsonl", [*ROWS, {"damaged": 1}])
    settings: Any = {"tokenizer": tmp_path / "tokenizer", "append_eod": False, "max_answer": 2}
    before = sorted(tmp_path.rglob("*"))
    for on_long in ("truncate", "drop", "error"):
        report = measure_lengths(source, "grpo", on_damage="skip", on_long=on_long, **settings)
        found = report.to_json()
        assert (found["num_records"], found["num_skipped"], found["num_long"]) == (3, 1, 2)
        assert found["limits"] == {"max_answer": {"limit": 2, "num_records": 2, "num_lost": 7}}
        assert [item["count"] for item in found["lengths"]["prompt"]] == [1, 0, 1, 1]
        assert sum(item["count"] for item in found["lengths"]["answer"]) == 6
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(SourceError, match=r"this one has \['damaged'\].* in line 4 of"):
        measure_lengths(source, "grpo", **settings)
    records = open_token_records(source, "grpo", on_damage="skip", on_long="drop", **settings)
    kept = [record["__key__"] for record in records.read_part(0)]
    assert (kept, records.counts["num_dropped"]) == (["0"], 2)
