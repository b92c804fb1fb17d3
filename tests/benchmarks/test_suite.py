"""The suite runs its benchmarks one after another, and continues after a failure."""

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import suite
from tests.benchmarks.record import Record
from tests.benchmarks.suite import BENCHMARKS, NAMES, Benchmark, main, run_suite

FOLDER = Path(__file__).parent
CORE = tuple(each.name for each in BENCHMARKS if not each.extra)
SHORT = tuple(each.name for each in BENCHMARKS if each.short)


def test_every_benchmark_is_in_the_suite() -> None:
    assert {path.stem for path in FOLDER.glob("bench_*.py")} == {
        each.name for each in BENCHMARKS if each.short
    }
    assert len({*NAMES}) == len(NAMES)


@pytest.mark.parametrize(
    ("benchmark", "short"),
    [(each, short) for each in BENCHMARKS for short in (True, False) if each.short or not short],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_arguments_are_understood(
    benchmark: Benchmark, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long form takes too long to be run here: its arguments are parsed, and no more."""
    pytest.importorskip("megatron.core")
    module = importlib.import_module(benchmark.module)

    class UnderstoodError(Exception):
        """Raised instead of the work."""

    def stop(*_: object, **__: object) -> None:
        raise UnderstoodError

    monkeypatch.setattr("sys.argv", [benchmark.name, *benchmark.arguments(short=short)])
    monkeypatch.setattr("tempfile.TemporaryDirectory", stop)
    monkeypatch.setattr("tests.benchmarks.turns.run_once", stop)
    with pytest.raises(UnderstoodError):
        module.main()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Benchmark, ...]:
    """A suite of one that works, one that is missing, one that fails and one that works."""
    good = 'import sys\nprint("argv", *sys.argv[1:], flush=True)\nimport os\n'
    environment = 'print("together", os.environ.get("ZINDEX_BENCH_TOGETHER"), flush=True)\n'
    for name, source in (
        ("bench_good", good + environment),
        ("bench_bad", "raise SystemExit(3)"),
        ("bench_also", good),
    ):
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    benchmarks = tuple(
        Benchmark(name, short="--size 1", long="--size 'a lot'")
        for name in ("bench_good", "bench_missing", "bench_bad", "bench_also")
    )
    monkeypatch.setattr(
        Benchmark, "exists", property(lambda each: (tmp_path / f"{each.name}.py").exists())
    )
    command = Benchmark.command
    monkeypatch.setattr(
        Benchmark,
        "command",
        lambda each, *, short: [
            part.replace("tests.benchmarks.", "") for part in command(each, short=short)
        ],
    )
    return benchmarks


def test_goes_on_after_a_failure(
    few: tuple[Benchmark, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_suite(few, short=True, folder=tmp_path) == ["bench_bad"]
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert lines[0] == "[1/4] python -m bench_good --size 1"
    assert lines[1] == f"argv --size 1 --json {tmp_path}/bench_good.json"
    assert lines[2] == "together 1"
    assert "[2/4] bench_missing is missing: left out" in lines
    assert any(line.startswith("[3/4] bench_bad failed in ") for line in lines)
    assert any(line.startswith("[4/4] bench_also done in ") for line in lines)
    assert lines[-1].startswith("4 benchmarks in ")
    assert lines[-1].endswith("; failed: bench_bad")


def test_long_form_without_records(
    few: tuple[Benchmark, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_suite(few[:1], short=False, folder=None) == []
    out = capfd.readouterr().out
    assert "argv --size a lot\ntogether None\n" in out
    assert "failed" not in out


@pytest.mark.parametrize(
    ("arguments", "names", "short", "folder"),
    [
        ([], CORE, False, suite.RESULTS),
        (["--long", "--stale"], CORE, False, suite.RESULTS),
        (["--all"], NAMES, False, suite.RESULTS),
        (["--short"], SHORT, True, None),
        (["--short", "--json-folder", "{tmp}/new"], SHORT, True, "{tmp}/new"),
        (
            ["--json-folder", "{tmp}", "--only", "bench_load", "bench_build"],
            ("bench_build", "bench_load"),
            False,
            "{tmp}",
        ),
    ],
)
def test_command_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    names: tuple[str, ...],
    short: bool,
    folder: Path | str | None,
) -> None:
    results, calls = tmp_path / "results", []
    monkeypatch.setattr(suite, "RESULTS", results)

    def note(benchmarks: list[Benchmark], *, short: bool, folder: Path | None) -> list[str]:
        calls.append((tuple(each.name for each in benchmarks), short, folder))
        return ["bench_build"] if "bench_build" in NAMES and len(benchmarks) == 2 else []

    monkeypatch.setattr(suite, "run_suite", note)
    expected = folder
    if isinstance(folder, str):
        expected = Path(folder.format(tmp=tmp_path))
    elif folder is not None:
        expected = results
    code = main([argument.format(tmp=tmp_path) for argument in arguments])
    assert calls == [(names, short, expected)]
    assert code == (1 if len(names) == 2 else 0)
    assert expected is None or expected.is_dir()


def test_stale_are_those_without_a_record_of_this_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = Record("bench_load", "", "", "", {}, {}, [], code="new")
    record.write(tmp_path / "bench_load.json")
    replace(record, code="old").write(tmp_path / "bench_build.json")
    monkeypatch.setattr(suite, "code_version", lambda: "new")
    benchmarks = {each.name: each for each in BENCHMARKS}
    stale = [name for name, each in benchmarks.items() if each.is_stale(tmp_path)]
    assert stale == [name for name in NAMES if name != "bench_load"]
    monkeypatch.setattr(suite, "code_version", lambda: "new+")
    assert benchmarks["bench_load"].is_stale(tmp_path)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "bench_nothing"])
    assert "bench_nothing" in capsys.readouterr().err
