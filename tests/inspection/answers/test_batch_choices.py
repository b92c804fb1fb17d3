"""What batches cost, against the batches of a loader."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.inspection.answers.test_record_statistics import make_store
from zindex.errors import ConfigError, PlanError
from zindex.execution.executor import SerialExecutor
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Field
from zindex.inspection.answers.batch_choices import ANY_LENGTH, measure_batches
from zindex.inspection.tables.record_report import batch_lines
from zindex.keyed import DatasetFactory, TokenBudget, keyed_loader, save_h5

LENGTHS = range(1, 61)


@pytest.mark.parametrize("train_type", ["sft", "dpo"])
def test_padding_and_waiting_are_those_of_batches(tmp_path: Path, train_type: str) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "p" * (n % 9 + 1), "completion": "a" * n} for n in LENGTHS
    ]
    names = ("input_ids",)
    if train_type == "dpo":
        rows = [{"prompt": "p", "chosen": "a" * n, "rejected": "b" * (n % 7 + 1)} for n in LENGTHS]
        names = ("chosen", "rejected")
    store = make_store(tmp_path, train_type, rows)
    found = {item.layout: item for item in measure_batches(store.root, [300], num_ranks=2)}
    assert list(found) == ["packed", "padded", ANY_LENGTH]
    options: dict[str, Any] = {} if train_type == "dpo" else {"documents": "respect"}
    options |= {} if train_type == "dpo" else {"tail": "exact"}
    dataset = DatasetFactory.load(train_type, store.root, 300, **options)
    padded = list(keyed_loader(dataset, TokenBudget(300, "padded"), seed=0))
    area = sum(batch[name].numel() for batch in padded for name in names)
    choice = found["padded"]
    stored = int(dataset.sample_sizes().stored.sum())
    assert choice.num_batches == len(padded)
    assert choice.num_samples == pytest.approx(60 / len(padded))
    assert choice.padding == pytest.approx(1 - stored / area)
    assert choice.fill == pytest.approx(area / len(padded) / 300)
    assert found["packed"].padding == 0
    assert all(0 <= item.waiting < 0.5 for item in found.values())
    assert found[ANY_LENGTH].padding > choice.padding
    table = batch_lines(list(found.values()), 2)
    assert table[0] == "batches of 2 ranks:"
    assert table[2].split()[0] == "300"
    assert table[2].split()[-1] == "packed"
    assert "no full step" not in table[-1]
    assert "no full step" in batch_lines([choice], choice.num_batches + 1)[-1]
    assert json.dumps([item.to_json() for item in found.values()])


def test_a_kind_with_both_modes_is_divided_as_records(tmp_path: Path) -> None:
    schema = RecordSchema("both", [Field("text", axes="token")], ["windows", "records"])
    store = make_store(tmp_path, schema, [{"text": "a" * n} for n in (4, 4, 7)])
    found = [(x.max_tokens, x.num_batches) for x in measure_batches(store.root, [10, 30])]
    assert found == [(10, 2), (10, 2), (10, 2), (30, 1), (30, 1), (30, 1)]


def test_mistakes(tmp_path: Path) -> None:
    store = make_store(tmp_path, "dpo", [{"prompt": "p", "chosen": "a" * 9, "rejected": "b"}])
    with pytest.raises(PlanError, match=r"longer, up to .* tokens; raise max_tokens"):
        measure_batches(store.root, [3])
    save_h5(tmp_path / "h5", "a", {"other": [np.arange(3)]})
    zindex.convert_keyed(tmp_path / "h5", tmp_path / "zarr", client=SerialExecutor())
    with pytest.raises(ConfigError, match=r"the keys of a kind of training .* got other;"):
        measure_batches(tmp_path / "zarr", [3])
