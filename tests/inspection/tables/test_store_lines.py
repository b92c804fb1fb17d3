"""What is said of damaged stores."""

from pathlib import Path

from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from zindex.execution.executor import SerialExecutor
from zindex.ingest.keyed.tokenize import tokenize
from zindex.inspection.tables.store_lines import describe_reports
from zindex.store.verify import verify_store


def test_the_way_out_of_a_damaged_store_of_tokenised_texts(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}])
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    client = SerialExecutor()
    tokenize(source, tmp_path / "s", "seq", tokenizer=tokenizer, client=client)
    assert len(list(describe_reports([verify_store(tmp_path / "s")]))) == 1
    (tmp_path / "s/sequence_value/c/0").unlink()
    lines = list(describe_reports([verify_store(tmp_path / "s")]))
    assert lines[-1] == (
        "a store of tokenised texts is repaired from another one of the same: tokenise them again "
        "with the same settings at another place, and give `zindex repair` --source OTHER_STORE"
    )
