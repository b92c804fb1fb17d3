"""The command ``zindex bench``: what it passes on, what it prints, and how it fails."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import fail, succeed
from zindex.forecast.cost_model import Costs, Machines, forecast_build
from zindex.forecast.job import Job
from zindex.inspection.bench import bench
from zindex.inspection.bench.bandwidths import Bandwidths
from zindex.inspection.bench.bench import BenchBuilds, BenchResult
from zindex.inspection.bench.fitting import MeasuredBuild


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command asked for; a made-up measurement is what it gets."""
    seen: list[dict[str, Any]] = []

    def measure(folder: str, **settings: Any) -> BenchResult:
        seen.append({"folder": folder, **settings})
        job = Job(settings["num_tokens"], num_datasets=settings["num_datasets"])
        forecasts = {number: forecast_build(job, Machines(number)) for number in settings["nodes"]}
        builds = (MeasuredBuild(job, 1.0, {}),)
        kind = BenchBuilds("scalable", builds, Costs(), 0.05, 30.0, 38.0, 8e6, "memory", forecasts)
        return BenchResult(
            folder=folder,
            machine={"processor": "P", "num_processors": 2, "memory_nbytes": 1 << 34},
            versions={},
            bandwidths=Bandwidths(1e9, 1e8, 1e9, 1e9, 1e9, False, 1e-3),
            task_seconds=2e-3,
            builds=(kind,),
            job=job,
            loading=None,
            notes=("a note",),
        )

    monkeypatch.setattr(bench, "measure", measure)
    return seen


def test_defaults_are_those_of_the_help(calls: list[dict[str, Any]]) -> None:
    printed = succeed("bench")
    assert calls == [
        {
            "folder": ".",
            "seconds": 30.0,
            "num_tokens": 5 * 10**12,
            "num_datasets": 1000,
            "document_length": 800.0,
            "nodes": [1, 10, 100],
            "run": None,
        }
    ]
    assert "s per trillion tokens" in printed
    assert "forecast for 5.00 T tokens" in printed
    assert "a note" in printed


def test_options_are_passed_on_and_figures_written(
    calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    options = ["--seconds", 2, "--tokens", "300B", "--datasets", 7, "--document-length", 500]
    succeed("bench", tmp_path, *options, "--nodes", "2, 3", "--run", "run.yaml", "--json", path)
    [call] = calls
    assert call["folder"] == str(tmp_path)
    assert (call["num_tokens"], call["num_datasets"], call["nodes"]) == (300 * 10**9, 7, [2, 3])
    assert (call["document_length"], call["seconds"], call["run"]) == (500.0, 2.0, "run.yaml")
    assert set(json.loads(path.read_text())["builds"][0]["forecasts"]) == {"2", "3"}


def test_figures_are_printed_in_place_of_the_table(calls: list[dict[str, Any]]) -> None:
    assert json.loads(succeed("bench", "--json", "-"))["job"]["num_datasets"] == 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes", "1,x"], "--nodes must be numbers such as 1,10,100, got 1,x"),
        (["--nodes", "0"], "--nodes must be numbers such as 1,10,100, got 0"),
        (["--tokens", "lots"], "--tokens must be a number such as 1.5B, 300M or 2e9, got 'lots'"),
        (["--json", "/"], "--json must be a file to write, got /"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_wrong_options_are_one_sentence(options: list[str], message: str) -> None:
    assert fail("bench", *options).startswith(f"Error: {message}")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    line = fail("bench", tmp_path / "file", "--seconds", 0.01)
    assert "file must be a place to write indices to" in line
