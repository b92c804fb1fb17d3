"""Tables of fixed costs: crossovers between sizes, and where Megatron Core cannot run."""

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.record import Row, Table

bench = pytest.importorskip("tests.benchmarks.bench_fixed")


def make_table(size: str, seconds: dict[str, float]) -> Table:
    rows = [Row(name, {"pass_seconds": [value]}) for name, value in seconds.items()]
    return Table(f"documents-{size}-built", "t", rows, ratio_of="pass_seconds")


def test_crossovers_name_the_sizes_at_which_one_way_wins() -> None:
    small = {bench.MEGATRON_BUILT: 2.0, bench.STORED_BUILT: 3.0, bench.COMPUTED: 1.0}
    large = {bench.MEGATRON_BUILT: 2.0, bench.STORED_BUILT: 3.0, bench.COMPUTED: 9.0}
    table = bench.with_crossovers([make_table("1e3", small), make_table("2e6", large)])
    found = f"{bench.STORED_BUILT} is at least as fast as {bench.COMPUTED} at 2e6"
    assert table.notes == [f"crossover: {found}"]


@pytest.mark.parametrize("files", [6, 10**9])
def test_megatron_is_left_out_where_it_may_not_open_enough_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    def run(module: str, names: tuple[str, ...], *_: Any, **__: Any) -> dict[str, Any]:
        return {name: [{"pass_seconds": 1.0, "num_files": 3.0}] for name in names}

    monkeypatch.setattr(bench, "take_turns", run)
    monkeypatch.setattr(bench, "_MEGATRON_FILES", files)
    new, built = bench.compare_builders(tmp_path, 2, 1)
    assert (new.row(bench.MEGATRON) is not None) == (files == 6)
    assert built.rows[-1].contender == bench.COMPUTED
    assert any("where a process may open" in note for note in new.notes) == (files != 6)
    assert f"bar: {bench.STORED} (files at most 20); reached, 3" in new.notes
