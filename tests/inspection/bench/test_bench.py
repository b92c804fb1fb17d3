"""A measurement of a machine is complete, is JSON, and leaves no files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import zindex
from zindex.config import as_config
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.forecast.cost_model import Machines, forecast_build
from zindex.forecast.job import Job
from zindex.inspection.bench import bench
from zindex.inspection.bench.bench import BenchResult, describe_run, measure, name_bound
from zindex.inspection.bench.short_builds import KINDS


def test_every_kind_is_measured_and_forecast(result: BenchResult, bench_folder: Path) -> None:
    assert [each.kind for each in result.builds] == list(KINDS)
    for each in result.builds:
        assert len(each.builds) == 4
        assert all(build.seconds > 0 for build in each.builds)
        assert each.seconds_per_trillion > 0
        assert each.bytes_per_sample >= 8
        assert each.samples_per_second > 0
        assert list(each.forecasts) == [1, 4]
        assert each.forecasts[4].num_tasks
    assert result.loading is not None
    assert result.loading.tokens_per_second > 0
    assert result.notes == ()
    assert list(bench_folder.iterdir()) == []


def test_a_measurement_is_json(result: BenchResult) -> None:
    facts = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert facts["job"]["num_tokens"] == 1e11
    assert facts["builds"][0]["forecasts"]["4"]["seconds"] > 0
    assert facts["builds"][0]["costs"]["store_bandwidth"] is None
    assert facts["machine"]["num_processors"] >= 1


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the builds, which the session's measurement has."""
    monkeypatch.setattr(bench, "_measure_builds", lambda *args: (0.0, ()))


@pytest.mark.usefixtures("light")
def test_without_torch_loading_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "can_load", lambda: False)
    found = measure(tmp_path, seconds=0.01)
    assert found.loading is None
    assert "torch is not installed" in found.notes[0]


@pytest.mark.usefixtures("light")
def test_a_run_gives_the_numbers_and_its_batches(
    tmp_path: Path, write_corpus: Callable[..., str]
) -> None:
    pytest.importorskip("torch")
    run = {
        "datasets": [write_corpus([64] * 200)],
        "sequence_length": 16,
        "split": "1,0,0",
        "index": str(tmp_path / "index"),
    }
    found = measure(tmp_path, seconds=0.01, run=run)
    assert found.job == replace(
        Job(12_800, num_datasets=1, document_length=64.0, sequence_length=16), blend=False
    )
    assert found.loading is not None
    assert found.loading.source == "synthetic"
    assert "the run is not built" in found.notes[0]
    zindex.build(run, client=SerialExecutor())
    built = measure(tmp_path, seconds=0.01, run=run)
    assert built.loading is not None
    assert built.loading.source == "the run"
    assert built.loading.tokens_per_second == pytest.approx(16 * built.loading.samples_per_second)
    assert built.notes == ()


def test_a_run_that_draws_from_nothing_is_no_job(write_corpus: Callable[..., str]) -> None:
    run = as_config({"datasets": [write_corpus([0])], "sequence_length": 4, "split": "1,0,0"})
    with pytest.raises(ConfigError, match="draw from at least one dataset"):
        describe_run(run)


@pytest.mark.parametrize("settings", [{"seconds": 0}, {"nodes": (0,)}, {"nodes": ()}])
def test_numbers_must_be_some(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="seconds must be positive and nodes at least 1"):
        measure(tmp_path, **settings)


def test_bounds_have_names_for_people() -> None:
    done = forecast_build(Job(1e10, num_datasets=2), Machines())

    def name(bound: str, **busy: float) -> str:
        return name_bound(replace(done, bound=bound, busy=busy))

    assert name("processors", memory=0.1, processors=0.9) == "processors"
    assert name("processors", memory=0.6, processors=0.9) == "memory"
    assert name("client") == "Python and Dask"
    assert name("client", scheduler=0.1) == "Python"
    assert name("order") == "waiting"
    assert name("store") == "store"
