"""Statistics of keyed and record stores against naive ones."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.sources.archives import write_jsonl
from tests.text.small_tokenizer import save_tokenizer
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.formats.keyed import value_rules
from zindex.ingest.keyed import convert_keyed
from zindex.inspection.answers.record_statistics import QUANTILES, measure_records
from zindex.store.record_reader import RecordReader


def make_store(folder: Path, train_type: Any, *files: list[dict[str, Any]]) -> Any:
    paths = [write_jsonl(folder / f"in/{i}.jsonl", rows) for i, rows in enumerate(files)]
    return zindex.tokenize(
        paths, folder / "s", train_type, tokenizer=save_tokenizer(folder / "tokenizer"),
        chat_template="chatml", client=SerialExecutor(), max_length=40,
    )  # fmt: skip


def test_conversations(tmp_path: Path) -> None:
    rows = [{"prompt": "p" * n, "completion": "a" * n} for n in range(1, 60, 7)]
    store = make_store(tmp_path, "sft", rows[:2], rows[2:])
    found = measure_records(store.root)
    reader = RecordReader(store)
    records = [reader.read(number) for number in range(len(rows))]
    lengths = [len(record["sequence"]) for record in records]
    [sequence] = [item for item in found.lengths if item.name == "sequence"]
    assert "loss_mask" not in [item.name for item in found.lengths]
    assert (sequence.unit, sequence.histogram.num_tokens) == ("tokens", sum(lengths))
    quantiles = sequence.to_json()["quantiles"]
    assert quantiles["0"], quantiles["1"] == (min(lengths), max(lengths))
    [target] = found.targets
    sums = [int(record["loss_mask"].sum()) for record in records]
    assert (target.num_tokens, target.num_targets) == (sum(lengths), sum(sums))
    assert target.num_untrained == sum(count == 0 for count in sums) > 0
    assert found.rewards is None
    assert [(Path(name).name, count) for name, count in found.sources] == [
        *(("1.jsonl", len(rows) - 2), ("0.jsonl", 2)),
    ]


def test_groups(tmp_path: Path) -> None:
    rng = random.Random(1)
    rows = []
    for number in range(30):
        count = rng.randrange(1, 5)
        rewards = [rng.choice([0.0, 0.5, 1.0]) for _ in range(count)]
        rows.append({"prompt": "p", "responses": ["r" * number] * count, "rewards": rewards})
    store = make_store(tmp_path, "grpo", rows)
    found = measure_records(store.root)
    every = [reward for row in rows for reward in row["rewards"]]
    rewards = found.rewards
    assert rewards is not None
    assert (rewards.num_groups, rewards.num_answers) == (30, len(every))
    assert rewards.num_constant == sum(len(set(row["rewards"])) == 1 for row in rows)
    assert (rewards.mean, rewards.std) == pytest.approx((np.mean(every), np.std(every)))
    assert rewards.quantiles == tuple(np.quantile(every, QUANTILES))
    assert (sum(rewards.counts), rewards.num_not_finite) == (len(every), 0)
    units = {item.name: (item.unit, item.histogram.num_samples) for item in found.lengths}
    assert units == {
        "prompts": ("tokens", 30),
        "responses": ("tokens", len(every)),
        "responses_length": ("items", 30),
        "rewards": ("numbers", 30),
    }
    assert json.loads(json.dumps(found.to_json()))["rewards"]["num_constant"]


def test_rewards_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zindex.keyed import save_h5

    # As written by an earlier version, which did not check values.
    for module in (convert_keyed, value_rules):
        monkeypatch.setattr(module, "find_invalid", lambda *_, **__: None)
    rewards = [np.array(row, np.float32) for row in ([1, np.nan], [2, 2], [np.inf, 0])]
    save_h5(tmp_path / "in", "a", {"rewards": rewards, "sequence": rewards})
    store = zindex.convert_keyed(tmp_path / "in/a.h5", tmp_path / "s", client=SerialExecutor())
    found = measure_records(store.root).rewards
    assert found is not None
    assert (found.num_not_finite, found.num_constant, found.num_groups) == (2, 1, 3)
    assert (found.mean, found.quantiles[-1]) == (1.25, 2.0)


def test_records_by_a_field(tmp_path: Path) -> None:
    rows = [{"text": "ab", "from": name, "ids": [1, 2]} for name in ("x", "y", "y")]
    rows.append({"text": "c"})
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    zindex.import_records(source, tmp_path / "s", dtypes={"ids": "int32"}, client=SerialExecutor())
    found = measure_records(tmp_path / "s", by="from")
    assert (found.by, found.sources) == ("from", (("y", 2), ("", 1), ("x", 1)))
    assert {item.name: item.unit for item in found.lengths}["text"] == "bytes"
    with pytest.raises(ConfigError, match=r"'ids' of .* holds numbers; name another .* \(--by"):
        measure_records(tmp_path / "s", by="ids")
    with pytest.raises(ConfigError, match="got 'none'"):
        measure_records(tmp_path / "s", by="none")


def test_a_store_without_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    zindex.import_records(tmp_path / "a.jsonl", tmp_path / "s", client=SerialExecutor())
    with pytest.raises(ConfigError, match="must have records to be measured, it has none"):
        measure_records(tmp_path / "s")
