import json

import pytest

from zindex.execution.executor import SerialExecutor, embedded_client, open_executor, run_builds
from zindex.execution.timeline import Timeline, measure


def test_a_span_is_kept_once_and_in_order():
    timeline = Timeline()
    with timeline.span("outer-a"), timeline.span("inner-b"):
        pass
    with timeline.span("outer-a"):
        pass
    spans = timeline.spans
    assert [span.key for span in spans] == ["outer-a", "inner-b"]
    assert [span.stage for span in spans] == ["outer", "inner"]
    outer, inner = spans
    assert outer.start <= inner.start <= inner.stop <= outer.stop


def test_a_span_that_fails_is_measured_too():
    spans = []
    with pytest.raises(ValueError, match="5"), measure("a", spans):
        raise ValueError(5)
    assert [span.key for span in spans] == ["a"]


def double(value: int) -> int:
    return 2 * value


async def run_two(executor) -> int:
    held = await executor.hold(double, 3, key="keep-0")
    return await executor.run(double, held, key="use-0")


def test_serial_tasks_are_recorded():
    executor = SerialExecutor()
    assert run_builds(run_two(executor)) == 12
    assert [span.key for span in executor.timeline.spans] == ["keep-0", "use-0"]


def test_dask_tasks_are_recorded_where_they_run():
    timeline = Timeline()
    with embedded_client(1) as client, open_executor(client, timeline) as executor:
        assert run_builds(run_two(executor)) == 12
    assert [span.key for span in timeline.spans] == ["keep-0", "use-0"]
    keep, use = timeline.spans
    assert keep.stop <= use.start


def test_the_trace_is_chrome_json(tmp_path):
    timeline = Timeline()
    with timeline.span("blend-x-0"):
        pass
    timeline.write(tmp_path / "trace.json")
    process, event = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert process["ph"] == "M"
    assert event["name"] == "blend-x-0"
    assert event["cat"] == "blend"
    assert event["ph"] == "X"
    assert event["ts"] == 0
    assert event["dur"] >= 0


def test_the_trace_of_nothing(tmp_path):
    Timeline().write(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == {"traceEvents": []}
