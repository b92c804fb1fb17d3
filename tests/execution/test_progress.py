"""What a build shows of itself: nothing, log lines, or bars."""

import io
import logging
import re
import sys
from types import SimpleNamespace

import pytest

from zindex.execution import progress as progress_module
from zindex.execution.progress import LogProgress, Progress, RichProgress, open_progress


class Terminal(io.StringIO):
    """A stderr that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="zindex")
    return caplog


def test_silent(lines: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress(False) as progress, progress.step("web train", 3) as advance:
        advance(3)
    assert type(progress) is Progress
    assert lines.messages == []
    assert capsys.readouterr() == ("", "")


def test_log_names_every_tenth_and_the_end(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))  # a second passes with every look at the clock
    clock_module = SimpleNamespace(monotonic=lambda: float(next(clock)))
    monkeypatch.setattr(progress_module, "time", clock_module)
    with open_progress(True) as progress, progress.step("web train", 40) as advance:
        for _ in range(40):
            advance(1)
    assert isinstance(progress, LogProgress)
    assert lines.messages[0] == "web train: 4 of 40 shards, 1.0 shards/s, 36 s left"
    assert lines.messages[1] == "web train: 8 of 40 shards, 1.0 shards/s, 32 s left"
    assert lines.messages[-1] == "web train: 40 shards in 41.00 s"
    assert len(lines.messages) == 10
    assert {record.name for record in lines.records} == {"zindex"}


@pytest.fixture
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: 7.0))


@pytest.mark.usefixtures("_no_time_passes")
@pytest.mark.parametrize("num_shards", [0, 1, 3, 9])
def test_log_of_few_shards(lines: pytest.LogCaptureFixture, num_shards: int) -> None:
    with LogProgress().step("web", num_shards) as advance:
        advance(0)
        for _ in range(num_shards):
            advance(1)
    noun = "shard" if num_shards == 1 else "shards"
    assert lines.messages == [f"web: {num_shards} {noun} in 0.00 s"]


@pytest.mark.usefixtures("_no_time_passes")
def test_finished_step_is_one_line(lines: pytest.LogCaptureFixture) -> None:
    with LogProgress().step("web", 10_000) as advance:
        advance(10_000)
    assert len(lines.messages) == 1


def test_failed_step_has_no_end(lines: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        with LogProgress().step("web", 2) as advance:
            advance(1)
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="28"):
        fail()
    assert lines.messages == []


def test_bars_on_a_terminal(
    lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with open_progress(True) as progress:
        assert isinstance(progress, RichProgress)
        progress.expect(9)
        with progress.step("web train", 7) as advance, progress.step("web valid", 2) as other:
            advance(3)
            other(1)
            (total,) = progress.display.tasks
            assert (total.completed, total.total) == (4, 9)
            assert total.description == "web train and 1 more"
        assert total.finished
    shown = terminal.getvalue()
    assert "web train" in shown
    assert "9/9" in shown
    assert lines.messages == []


@pytest.mark.parametrize(("columns", "color"), [(50, True), (50, False), (100, True)])
def test_a_bar_fits_its_terminal(
    columns: int, color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(
        progress_module, "time", SimpleNamespace(monotonic=lambda: float(next(clock)))
    )
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "" if color else "1")
    with (
        open_progress(True) as progress,
        progress.step("a-corpus-with-a-long-name-" * 4, 1000) as advance,
    ):
        for _ in range(20):
            advance(10)
        progress.display.refresh()  # type: ignore[attr-defined]
    text = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    shown = [line.rstrip() for line in re.split("[\r\n]+", text) if line.strip()]
    assert shown
    assert max(map(len, shown)) <= columns
    assert any("200/1000" in line and "left" in line for line in shown)
    assert ("\x1b[38;5;" in terminal.getvalue()) == color


def test_a_total_that_is_not_announced_grows() -> None:
    updates: list[dict[str, object]] = []
    display = SimpleNamespace(
        add_task=lambda *_, **__: 0, update=lambda task, **values: updates.append(values)
    )
    progress = RichProgress(display)
    with progress.step("a", 2) as advance:
        advance(1)
    with progress.step("b", 3):
        pass
    assert [(each["completed"], each["total"]) for each in updates][-1] == (5, 5)
    progress.expect(4)
    assert updates[-1]["total"] == 9


def test_a_failed_step_does_not_count_as_done() -> None:
    updates: list[dict[str, object]] = []
    display = SimpleNamespace(
        add_task=lambda *_, **__: 0, update=lambda task, **values: updates.append(values)
    )

    def fail() -> None:
        with RichProgress(display).step("a", 2) as advance:
            advance(1)
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="28"):
        fail()
    assert updates[-1]["completed"] == 1


def test_log_where_rich_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with open_progress(True) as progress:
        assert isinstance(progress, LogProgress)
