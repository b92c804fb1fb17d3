"""What differs between two orders, against their torch datasets."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zindex
from tests.cli.commands import fail, invoke
from tests.conftest import FakeTokenizer, WriteCorpus, numbers
from tests.indexing.runs import make_run
from tests.inspection.answers.brute_force import KINDS, Sample, draw_run, read_samples
from tests.inspection.answers.test_info import write_yaml
from tests.maintenance.edits.walks import ORDERS, edit_here, weighted_run, write_corpora
from zindex.arrays import Int64Array
from zindex.config import RunConfig
from zindex.errors import ConfigError, StateMismatchError, StoreNotFoundError
from zindex.execution.executor import SerialExecutor
from zindex.inspection.answers import tokens_seen
from zindex.inspection.answers.diff import RunDifference, diff
from zindex.inspection.answers.run_order import RunOrder


def assert_difference(found: RunDifference, before: list[Sample], after: list[Sample]) -> None:
    """Check a difference against all samples of both."""
    pairs = zip(before, after, strict=False)
    changed = [(a.text, a.held) != (b.text, b.held) for a, b in pairs]
    first = changed.index(True) if any(changed) else None
    if first is None and len(before) != len(after):
        first = len(changed)
    assert found.num_samples == (len(before), len(after))
    assert found.first_difference == first
    assert found.is_same == (first is None)
    assert found.share_changed == pytest.approx(np.mean(changed) if changed else 0)
    if first is not None and first < len(changed):
        assert [sample.sample for sample in found.samples] == [
            before[first].sample, after[first].sample
        ]  # fmt: skip
    elif first is not None:
        longer = max(before, after, key=len)
        assert [sample.sample for sample in found.samples] == [longer[first].sample]
    seen = [set[int]().union(*(sample.held for sample in samples)) for samples in (before, after)]
    assert found.num_tokens_only == (len(seen[0] - seen[1]), len(seen[1] - seen[0]))
    assert all(len(line) <= 80 for line in found.to_lines())


@pytest.mark.parametrize("seed", numbers(3, 20))
@pytest.mark.parametrize("kind", ["blended", "single", "packed"])
def test_other_settings(kind: str, seed: int, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = draw_run(kind, seed + 300, tmp_path, write_corpus)
    changes: list[dict[str, Any]] = [
        {"seed": 5},
        {"sequence_length": 10},
        {"add_extra_token_to_sequence": not run.config.add_extra_token_to_sequence},
        {"samples": {name: 70 for name in run.config.samples}},
    ]
    order = RunOrder(run.config, run.split)
    same = diff(order, order)
    assert same.is_exact
    assert_difference(same, run.samples, run.samples)
    for change in changes:
        other = replace(run.config, **change)
        after = read_samples(other, run.split)
        found = diff(order, other, split=run.split)
        assert_difference(found, run.samples, after)
        assert sum(item.num_first for item in found.datasets) == len(run.samples)
        for number, item in enumerate(found.datasets):
            assert item.num_first == sum(each.dataset == number for each in run.samples)
            assert item.num_second == sum(each.dataset == number for each in after)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", [None, 6])
def test_before_and_after_an_edit(
    order: str, length: int | None, tmp_path: Path, write_corpus: WriteCorpus
) -> None:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11, [8] * 20])
    config = weighted_run(tmp_path, paths[:2], **ORDERS[order])
    with pytest.raises(ConfigError, match="must have an edit to be compared with itself"):
        diff(config)
    samples = [read_samples(config, "train")]
    edit_here(config, 20, reweight={paths[1]: 4.0})
    samples.append(read_samples(config, "train"))
    found = diff(config)
    assert_difference(found, *samples)
    assert found.first_difference is not None
    assert found.first_difference >= 20
    edit_here(config, 40, add={paths[2]: 0.5}, sequence_length=length)
    samples.append(read_samples(config, "train"))
    assert_difference(diff(config), *samples[1:])
    assert_difference(diff(RunOrder(config, num_edits=0), config), samples[0], samples[2])
    assert [item.dataset for item in diff(config).datasets] == paths


@pytest.mark.parametrize("kind", KINDS)
def test_loader_states(kind: str, tmp_path: Path, write_corpus: WriteCorpus) -> None:
    run = draw_run(kind, 500, tmp_path, write_corpus)
    tokenizer = FakeTokenizer(vocab_size=None, eod=7)
    settings: dict[str, Any] = {"micro_batch_size": 2, "split": run.split}
    with closing(zindex.loader(run.config, tokenizer, **settings)) as batches:
        states = [batches.state_dict() for _ in zip(range(7), batches, strict=False)][2::4]
    counts = [state["consumed_samples"] for state in states]
    assert counts[0] < counts[1]
    parts = [run.samples[:count] for count in counts]
    order = RunOrder(run.config, run.split)
    found = diff(order, states=states)
    assert_difference(found, *parts)
    assert found.first_difference == counts[0]
    assert_difference(diff(order, states=states[1:]), parts[1], run.samples)
    again = diff(run.config, run.config, states=states[:1], split=run.split)
    assert_difference(again, parts[0], run.samples)
    assert diff(order, states=states[:1] * 2).is_same


def test_states_of_edited_runs(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11])
    config = weighted_run(tmp_path, paths)
    own = {"version": 1, "fingerprint": RunOrder(config).fingerprints[0], "epoch": 0}
    edit_here(config, 20, reweight={paths[1]: 4.0})
    found = diff(config, states=[own | {"consumed_samples": 12}, own | {"consumed_samples": 20}])
    assert (found.num_samples, found.first_difference) == ((12, 20), 12)
    for wrong, message in (
        (own | {"consumed_samples": 21}, "must be at or before it, at position 20, got 21"),
        (own | {"fingerprint": "ab", "consumed_samples": 1}, "must belong to these samples"),
        ({"loader": own}, "must have the keys"),
    ):
        with pytest.raises(StateMismatchError, match=message):
            diff(config, states=[wrong])
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"loader": own}))
    with pytest.raises(StateMismatchError, match=r"state.json: a loader state must have the keys"):
        diff(config, states=[path])
    path.write_text("{")
    with pytest.raises(StateMismatchError, match=r"state.json must be JSON, the result of state_"):
        diff(config, states=[path])
    with pytest.raises(StoreNotFoundError, match=r"no file .*none.json; check the path"):
        diff(config, states=[tmp_path / "none.json"])
    with pytest.raises(ConfigError, match="at most two states can be compared, got 3"):
        diff(config, states=[own] * 3)


@pytest.mark.parametrize("kind", ["blended", "packed", "edited"])
def test_estimated_tokens(
    kind: str, tmp_path: Path, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = draw_run(kind, 608, tmp_path, write_corpus)
    order = RunOrder(run.config, run.split)
    assert order.is_searchable
    state = {"version": 1, "fingerprint": order.fingerprints[-1], "epoch": 0}
    states = [state | {"consumed_samples": count} for count in (70, 20)]
    exact = diff(order, states=states)
    # All samples are drawn, so that the estimate has no error.
    monkeypatch.setattr(tokens_seen, "_NUM_DRAWN", 10**6)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: First())
    found = diff(order, states=states, max_positions=8)
    assert not found.is_exact
    assert found.num_tokens_only == exact.num_tokens_only
    assert min(exact.num_tokens_only) == 0 < max(exact.num_tokens_only)


class First:
    """Draws the first number of each range."""

    def integers(self, low: Int64Array, high: Int64Array) -> Int64Array:
        return low


def test_orders_that_cannot_be_searched(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    zindex.build(config, SerialExecutor())
    other = replace(config, seed=5)
    found = diff(config, other, max_positions=8)
    assert found.num_tokens_only == (None, None)
    assert "tokens of the first only: not counted" in found.to_lines()
    for each in (config, other):
        zindex.build(each, SerialExecutor(), inverse=True)
    assert None not in diff(config, other, max_positions=8).num_tokens_only


def test_drawn_positions(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    paths = write_corpora(write_corpus, [[5, 7, 3, 9, 6] * 12, [4, 10, 2] * 11])
    config = weighted_run(tmp_path, paths)
    edit_here(config, 71, sequence_length=6)
    exact, drawn = diff(config), diff(config, max_positions=40)
    assert (exact.is_exact, drawn.is_exact) == (True, False)
    assert exact.first_difference == drawn.first_difference == 71
    assert abs(exact.share_changed - drawn.share_changed) < 0.11
    assert "about " in drawn.to_lines()[3]
    plain = weighted_run(tmp_path, paths, seed=8)
    assert diff(plain, plain, max_positions=4).is_exact


def test_moved_corpora_are_the_same(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    values = {name: getattr(config, name) for name in config.__dataclass_fields__}
    for item in config.datasets:
        for suffix in (".bin", ".idx"):
            Path(f"{item.path}-moved{suffix}").write_bytes(
                Path(f"{item.path}{suffix}").read_bytes()
            )
    moved = [replace(item, path=f"{item.path}-moved") for item in config.datasets]
    assert diff(config, RunConfig(**values | {"datasets": tuple(moved)})).is_same
    one = diff(config, RunConfig(**values | {"datasets": tuple(moved[:1])}))
    assert [item.num_second for item in one.datasets][1] == 0


def test_commands(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    config = make_run(tmp_path, write_corpus)
    first = write_yaml(tmp_path / "a.yaml", config)
    second = write_yaml(tmp_path / "b.yaml", config, seed=3)
    same, other = invoke("diff", first, first), invoke("diff", first, second, "--json")
    assert (same.exit_code, other.exit_code) == (0, 1)
    assert same.stdout.endswith("the same samples at every position\n")
    found = json.loads(other.stdout)
    assert found["is_same"] is False
    assert len(found["samples"]) == 2
    assert fail("diff", first).startswith("Error: a run must have an edit to be compared")
