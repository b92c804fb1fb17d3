"""Growing stores are shown, measured and exported at a generation by the code of other stores."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import fail, succeed
from tests.growing.rollouts import grow, rollout
from zindex.errors import ConfigError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.formats.keyed.schema_presets import find_declared
from zindex.formats.keyed.shards import GROWING_KEY
from zindex.growing.compaction import compact
from zindex.growing.eviction import evict
from zindex.growing.growing_log import GrowingLog
from zindex.growing.inspection import verify_growing
from zindex.growing.writer import append
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.keyed.export_keyed import export_keyed
from zindex.inspection.answers.batch_choices import measure_batches
from zindex.inspection.answers.growing_records import holds_records, open_records
from zindex.inspection.answers.record_statistics import measure_records
from zindex.inspection.answers.show import show
from zindex.store.commit import read_sealed, seal
from zindex.store.record_reader import RecordReader
from zindex.store.tokenizer_note import NOTE_KEY, TokenizerNote, write_note

#: Numbers of the rollouts at generation 4: the first generation is evicted later.
AT_FOUR = [*range(2), *range(2, 6), 6, 7]
AT_HEAD = [*range(2, 6), 6, 7, 8]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four generations, of which later ones are compacted, an eviction, and another one."""
    root = tmp_path / "store"
    for version, numbers in enumerate([range(2), range(2, 6), [6], [7]]):
        grow(root, numbers, version)
    evict(root, keep_versions=3)
    compact(root, min_count=3)
    grow(root, [8], 9)
    return root


def test_records_are_those_of_the_generation(store: Path) -> None:
    assert holds_records(str(store))
    assert not holds_records(str(store.parent))
    for generation, numbers in ((4, AT_FOUR), (None, AT_HEAD)):
        opened = open_records(store, generation)
        for each in (opened, pickle.loads(pickle.dumps(opened))):
            reader = RecordReader(each)
            assert len(reader) == len(numbers)
            found = reader.read_many(range(len(reader)))
            assert [int(record["prompts"][0]) for record in found] == numbers
            assert [record["answer"] for record in found] == [f"answer {n}" for n in numbers]
            assert found[0]["__url__"] == str(store)
    assert open_records(store, 4).fingerprint != open_records(store).fingerprint


def test_one_is_shown(store: Path) -> None:
    fields = {field.name: field for field in show(store, record=3).fields}
    assert fields["prompts"].value == [5, 7]
    assert fields["responses 0"].value == [5] * 3
    assert fields["responses 0"].mask == [True] * 3
    assert fields["policy_version"].value == [1]
    assert "answer 0" in succeed("show", store, "--record", "0", "--generation", "4")
    assert "must be in [0, 7)" in fail("show", store, "--record", "7")
    assert "must have generation 99" in fail("show", store, "--record", "0", "--generation", "99")


def test_lengths(store: Path) -> None:
    found = measure_records(store, by="policy_version")
    assert found.num_records == len(AT_HEAD)
    assert dict(found.sources) == {"1": 4, "2": 1, "3": 1, "9": 1}
    lengths = {item.name: item.histogram for item in found.lengths}
    assert lengths["responses"].num_tokens == sum(3 + number % 3 for number in AT_HEAD)
    assert measure_records(store, generation=4).sources == ((str(store), len(AT_FOUR)),)
    said = json.loads(succeed("lengths", store, "--by", "answer", "--generation", "4", "--json"))
    assert said["num_records"] == len(AT_FOUR)
    assert "must come with a store of records" in fail("lengths", "a.yaml", "--generation", "1")


def test_export(store: Path) -> None:
    target = store.parent / "lines"
    succeed("export", store, target, "--generation", "4")
    lines = (target / "data.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        rollout(number) | {"policy_version": [version]}
        for number, version in zip(AT_FOUR, [0, 0, 1, 1, 1, 1, 2, 3], strict=True)
    ]
    assert "its field 'answer' holds something else" in fail(
        "export", store, store.parent / "bins", "--to", "bin"
    )


@pytest.mark.parametrize("kind", ["bin", "h5"])
def test_numbers_are_exported_to_any_format(tmp_path: Path, kind: Any) -> None:
    rows = [{name: x for name, x in rollout(n).items() if name != "answer"} for n in range(4)]
    append(tmp_path / "s", rows[:3])
    append(tmp_path / "s", rows[3:])
    export_keyed(open_records(tmp_path / "s"), tmp_path / "o", storage_type=kind)
    again = convert_keyed(tmp_path / "o", tmp_path / "t", client=SerialExecutor())
    found = RecordReader(again).read_many(range(4), ["responses", "rewards"])
    for row, record in zip(rows, found, strict=True):
        assert record["responses"].tolist() == [x for item in row["responses"] for x in item]
        assert record["rewards"].tolist() == row["rewards"]


def test_only_growing_stores_have_generations(store: Path, tmp_path: Path) -> None:
    [made] = store.glob("records-*")
    with pytest.raises(ConfigError, match=r"generation \(--generation\) must come with a growing"):
        open_records(made, 1)
    with pytest.raises(StoreNotFoundError, match="must have generation 99, its head is 7; wait"):
        open_records(store, 99)


def make_declared(root: Path) -> RecordSchema:
    """Make a store of a kind of the user's own, with ids up to 60."""
    kind = RecordSchema(
        "words",
        [Field("words", axes="token"), Field("scores", values="floats", like="words")],
    )
    for number in range(6):
        append(root, [{"words": [10 * number, 10 * number + 1], "scores": [0.5, 1.5]}], kind=kind)
    return kind


def test_the_kind_is_recorded(tmp_path: Path) -> None:
    root = tmp_path / "s"
    kind = make_declared(root)
    assert find_declared(open_records(root).spec) == kind
    units = {item.name: item.unit for item in measure_records(root).lengths}
    assert units == {"words": "tokens", "scores": "numbers", "policy_version": "numbers"}
    found = measure_batches(root, [8], generation=4)
    assert [item.num_batches for item in found if item.layout == "packed"] == [1]
    # Stores of earlier versions have none.
    content = read_sealed(root / GROWING_KEY, "sha256", "")
    del content["kind"]
    (root / GROWING_KEY).write_bytes(seal(content, "sha256"))
    assert GrowingLog(root).schema.kind is None
    assert find_declared(open_records(root).spec) is None
    assert show(root, record=5).fields[0].value == [50, 51]


def test_verify_checks_token_ids(tmp_path: Path) -> None:
    root = tmp_path / "s"
    make_declared(root)
    assert verify_growing(root).is_sound
    write_note(root, TokenizerNote("of other ids", vocab_size=15), {})
    found = verify_growing(root)
    assert not found.damages
    assert len(found.invalid) == 4  # of the generations from 20 on
    assert "must be from 0 to 14, got 20 in record 0" in found.invalid[0].problem
    compact(root, min_count=2)
    [invalid] = verify_growing(root).invalid
    assert "got 20 in record 2 of" in invalid.problem
    assert invalid.key.endswith("/words_value")
    (root / NOTE_KEY).write_text("{}")
    found = verify_growing(root)
    assert [damage.key for damage in found.damages] == [NOTE_KEY]
    assert not found.invalid
