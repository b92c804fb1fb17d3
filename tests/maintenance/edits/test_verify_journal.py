"""The proof of a run's edits: it holds for what is stored, and for nothing else."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteCorpus
from tests.maintenance.edits.walks import ORDERS, edit_here, weighted_run, write_corpora
from zindex.config import RunConfig
from zindex.errors import VerificationError
from zindex.execution.executor import SerialExecutor
from zindex.maintenance.edits.consumed import ConsumedSet, store_sets
from zindex.maintenance.edits.journal import open_journal
from zindex.maintenance.edits.verify_journal import verify_journal
from zindex.store.commit import canonical_json, fingerprint


@pytest.fixture
def paths(write_corpus: WriteCorpus) -> list[str]:
    return write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 20, [4, 10, 2] * 20, [8] * 20])


def verify(config: RunConfig) -> Any:
    return verify_journal(config, client=SerialExecutor())


def forge(config: RunConfig, number: int, change: Any) -> None:
    """Change an entry, and make it and its successors a chain again."""
    folder = Path(str(open_journal(config).folder))
    parent = None
    for file in sorted(folder.iterdir())[number - 1 :]:
        content = json.loads(file.read_text())
        del content["fingerprint"]
        if parent is None:
            change(content)
        else:
            content["before"] = parent
        parent = fingerprint(content)
        file.write_text(canonical_json(content | {"fingerprint": parent}))


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_is_proven(tmp_path: Path, paths: list[str], order: str) -> None:
    config = weighted_run(tmp_path, paths[:2], **ORDERS[order])
    assert verify(config).num_samples == 100
    edit_here(config, 30, add={paths[2]: 1.0}, skip=(35, 40))
    edit_here(config, 50, sequence_length=6)
    edit_here(config, 60, sequence_length=3, drop=[paths[0]])
    report = verify(config)
    assert (report.num_edits, report.num_skipped, report.split) == (3, 5, "train")
    assert report.num_samples == open_journal(config).state.num_samples
    assert report.num_undrawn > 0


def forget_what_is_used(content: Any) -> None:
    for facts in content["state"]["blends"][1]["used"]:
        facts |= {"first": 0, "stop": 0, "num_used": 0}


DATASET = lambda content: content["certificate"]["datasets"][1]  # noqa: E731
SOURCE = lambda content: content["certificate"]["sources"][0]  # noqa: E731
FORGERIES = {
    "consumed": (
        lambda content: DATASET(content).update(consumed=DATASET(content)["consumed"] + 1),
        "must certify what was consumed",
    ),
    "skipped": (
        lambda content: DATASET(content).update(skipped=1),
        "must certify what was consumed and skipped",
    ),
    "number": (
        lambda content: SOURCE(content).update(num_used=3),
        "must certify the 15 used samples of source 0",
    ),
    "digest": (
        lambda content: SOURCE(content).update(used_digest="0" * 16),
        "must certify the 15 used samples of source 0",
    ),
    "samples that come twice": (forget_what_is_used, "must go by the samples of source 0"),
    "more draws than samples": (
        lambda content: content["state"]["sources"][1].update(num_samples=20),
        r"at most the 20 samples .* it draws 50",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_wrong_entry_is_found(tmp_path: Path, paths: list[str], name: str) -> None:
    change, message = FORGERIES[name]
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, 30, reweight={paths[1]: 3.0})
    forge(config, 1, change)
    with pytest.raises(VerificationError, match=message):
        verify(config)


def test_a_segment_that_repeats_is_found(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2])
    edit_here(config, skip=(40, 50))

    def repeat(content: Any) -> None:
        content["state"]["segments"][1]["offset"] -= 15

    forge(config, 1, repeat)
    with pytest.raises(VerificationError, match="draw no sample twice, 5 of "):
        verify(config)


def test_another_stored_set_is_found(tmp_path: Path, paths: list[str]) -> None:
    config = weighted_run(tmp_path, paths[:2], order="scalable")
    edit_here(config, 30, reweight={paths[1]: 3.0})
    journal = open_journal(config)
    facts = journal.state.blends[1]
    table = journal.consumed_table(1)
    sets = []
    for item in facts.consumed:
        loaded = table.load(item.source)
        words = np.array(loaded.words)
        # Two bits of a set change places.
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        bits[: loaded.num_bits] = bits[: loaded.num_bits][::-1].copy()
        words = np.packbits(bits, bitorder="little").view(np.uint64)
        sets.append(ConsumedSet(loaded.first, loaded.num_bits, words, loaded.num_consumed))
    assert facts.store is not None
    shutil.rmtree(Path(config.index) / facts.store)
    spec = {"before": journal.base_fingerprint, "position": 30}
    spec |= {"change": journal.entries[0].change}
    assert store_sets(spec, sets, config.grid, config.index, "train") == facts.store
    with pytest.raises(VerificationError, match="its stored set is another"):
        verify(config)
