"""The page: every kind of row, and that what is committed is what the records give."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import page
from tests.benchmarks.claims import CLAIMS, Claim, find
from tests.benchmarks.drawing import Figure, drawn_digest
from tests.benchmarks.figures import FIGURES
from tests.benchmarks.page import BEGIN, END, Places, check_all, read_records, write_all
from tests.benchmarks.record import Record, Row, Table
from tests.benchmarks.units import cell, choose_unit, format_ratio, short_number

MACHINE = {"processor": "Test | CPU", "num_processors": 2, "memory_nbytes": 24 << 30}
CODE = "abcdef"
RIVAL, OURS = "megatron-core", "zindex, megatron order"
BUILD = Claim("index of one dataset", "bench_build", "documents-1e8", OURS)


def make_record(benchmark: str, *tables: Table) -> Record:
    return Record(
        benchmark=benchmark,
        command=f"python -m tests.benchmarks.{benchmark}",
        date="2026-11-22",
        commit="0123456789",
        machine=MACHINE,
        versions={"python": "3.11.7"},
        tables=list(tables),
        environment={"OMP_NUM_THREADS": "1"},
        code=CODE,
    )


def make_build(size: str, seconds: float) -> Table:
    rows = [
        Row(RIVAL, {"seconds": [7 * seconds, 8 * seconds, 6 * seconds]}),
        Row(OURS, {"seconds": [seconds], "peak_nbytes": [300 << 20]}),
    ]
    notes = [f"bar: {OURS} at least 9x; missed, 7x: a reason"]
    return Table(f"documents-{size}", f"index of {size} documents", rows, RIVAL, notes=notes)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A README with markers, and no records."""
    monkeypatch.setattr(page, "code_version", lambda: CODE)
    (tmp_path / "results").mkdir()
    (tmp_path / "bench").mkdir()
    readme = tmp_path / "TOP.md"
    readme.write_text(f"# top\n\n{BEGIN}\nold\n{END}\n\nrest\n")
    return Places(tmp_path / "results", tmp_path / "bench/README.md", readme, (BUILD, *CLAIMS))


def write(places: Places, *records: Record) -> None:
    for record in records:
        record.write(places.results / f"{record.benchmark}.json")


def test_nothing_is_recorded(places: Places) -> None:
    warnings = write_all(places)
    assert len(warnings) == len(CLAIMS) + 1
    assert "Nothing is recorded yet" in places.page.read_text()
    assert places.readme.read_text().startswith(f"# top\n\n{BEGIN}\n\nNothing is recorded yet")
    assert places.readme.read_text().endswith(f"{END}\n\nrest\n")
    assert check_all(places) == ([], warnings)


def test_a_record_becomes_tables_headlines_and_a_figure(places: Places) -> None:
    write(places, make_record("bench_build", make_build("1e7", 0.25), make_build("1e8", 1.5)))
    warnings = write_all(places)
    text = places.page.read_text()
    assert "| megatron-core | 10.5 (9.00 to 12.0) |  |  |" in text
    assert "| zindex, megatron order | 1.50 | 300 | 7.0x |" in text
    assert "|  | time, s | peak memory, MiB | ratio |" in text
    assert "Medians of 1 to 3 runs" in text
    assert "2 processors of Test \\| CPU, 24.0 GiB, OMP_NUM_THREADS=1; python 3.11.7" in text
    assert "commit 0123456789, 2026-11-22." in text
    assert "Index builds: Megatron Core's rank-0 path" in text
    assert f"| {OURS} at least 9x | **missed**, 7x: a reason |" in text
    assert "](figures/build-seconds.svg)" in text
    headline = (
        "| megatron-core: 10.5 s | 1.50 s | [7.0x](bench/README.md#bench_build-documents-1e8) |"
    )
    assert headline in places.readme.read_text()
    assert len(warnings) == len(CLAIMS)
    assert check_all(places) == ([], warnings)


def test_small_jobs_have_a_table_of_their_own(places: Places) -> None:
    rows = [Row("megatron-core", {"seconds": [0.002]}), Row("zindex", {"seconds": [0.004]})]
    write(places, make_record("bench_fixed", Table("x", "small", rows, "megatron-core")))
    claim = Claim("a dataset", "bench_fixed", "x", "zindex", small=True)
    write_all(replace(places, claims=(claim,)))
    found = "| a dataset; one run | 2.00 ms | 4.00 ms | [0.50x](bench/README.md#bench_fixed-x) |"
    assert found in places.readme.read_text()


def test_rows_that_any_rival_beats_are_listed(places: Places) -> None:
    rows = [
        Row("numpy", {"seconds": [1.0], "pass_seconds": [5.0], "cpu_seconds": [0.1]}),
        Row("zarr", {"seconds": [9.0]}),
        Row("zindex", {"seconds": [2.0], "pass_seconds": [4.0]}),
        Row("zindex, lazy", {"seconds": [0.5], "pass_seconds": [9.0], "cpu_seconds": [0.5]}),
    ]
    write(places, make_record("bench_open", Table("x", "opening", rows, "zarr")))
    write_all(places)
    bars = places.page.read_text().partition("## Bars")[2].partition("<a id=")[0]
    assert "| [Opening](#bench_open-x) | zindex | numpy | time, s | 0.50x |" in bars
    assert "| [Opening](#bench_open-x) | zindex, lazy | numpy | pass, s | 0.56x |" in bars
    assert bars.count("#bench_open-x") == 2


def test_records_of_older_code_are_named(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(make_record("bench_old", make_build("1e7", 1.0)), code="012345")
    new = make_record("bench_build", make_build("1e8", 1.5))
    write(places, old, replace(new, seconds=90.0))
    write_all(places)
    text = places.page.read_text()
    assert "older version of `zindex` than that of this page: [Old](#bench_old).\n" in text
    assert text.count("commit 0123456789, older than the code, 2026-11-22.") == 1
    assert text.count("commit 0123456789, 2026-11-22, in 1.5 minutes.") == 1
    assert "older code" not in places.readme.read_text()
    write(places, replace(new, code="012345"))
    write_all(places)
    assert "documents; one run; older code, commit 0123456789</sub>" in places.readme.read_text()
    monkeypatch.setattr(page, "code_version", lambda: "another")
    assert check_all(places)[0] == []  # the page stays as it was written


def test_every_link_has_its_place(places: Places) -> None:
    write(places, make_record("bench_build", make_build("1e8", 1.5)), make_record("bench_other"))
    write_all(places)
    anchors = set(re.findall(r'<a id="([^"]+)">', places.page.read_text()))
    assert set(re.findall(r"\]\(#([^)]+)\)", places.page.read_text())) <= anchors
    links = re.findall(r"\]\(bench/README\.md#([^)]+)\)", places.readme.read_text())
    assert links
    assert set(links) <= anchors


def test_unknown_benchmarks_are_shown_as_they_are(places: Places) -> None:
    rows = [
        Row("a | b", {"tokens_per_second": [3.2e8], "odd_thing": [3.0], "num_tasks": [12345]}),
        Row("c", {"padding_share": [0.0123]}),
        Row("nothing", {}),
    ]
    write(places, make_record("bench_new", Table("x", "``t*`` | u * v", rows, notes=["a note"])))
    write_all(places)
    text = places.page.read_text()
    assert "## New" in text
    assert "### `t*` \\| u \\* v" in text
    assert "|  | million tokens/s | odd thing | tasks | padding share, % |" in text
    assert "| a \\| b | 320 | 3.00 | 12,345 |  |" in text
    assert "| c |  |  |  | 1.23 |" in text
    assert "| nothing |  |  |  |  |" in text
    assert "- One run.\n- a note" in text


def test_a_rival_that_is_missing_leaves_the_figure_alone(places: Places) -> None:
    table = Table("documents-1e8", "t", [Row(OURS, {"seconds": [2.0]})], RIVAL)
    write(places, make_record("bench_build", table))
    write_all(places)
    assert "|  | 2.00 s | [details](bench/README.md#" in places.readme.read_text()
    assert "ratio" not in places.page.read_text().partition("### T")[2]


def test_a_claim_against_another_row_has_a_ratio_of_its_own() -> None:
    rows = [
        Row("memory map", {"span_us": [2.0]}),
        Row("zindex", {"span_us": [4.0]}),
        Row("zarr-python", {"span_us": [400.0]}),
    ]
    table = Table("span-1e8", "t", rows, "memory map", "span_us")
    records = {"bench_read": make_record("bench_read", table)}
    claim = Claim("x", "bench_read", "span-1e8", "zindex", "span_us")
    found = find(records, claim)
    assert found is not None
    assert found.ratio == 0.5
    other = find(
        records, Claim("x", "bench_read", "span-1e8", "zindex", "span_us", against="zarr-python")
    )
    assert other is not None
    assert other.ratio == 100


def test_rates_are_better_when_larger() -> None:
    rows = [Row("slow", {"tokens_per_second": [2.0]}), Row("zindex", {"tokens_per_second": [6.0]})]
    record = make_record("b", Table("t", "t", rows, "slow", "tokens_per_second"))
    found = find({"b": record}, Claim("x", "b", "t", "zindex", "tokens_per_second"))
    assert found is not None
    assert found.ratio == 3


def test_check_names_all_that_differs(places: Places) -> None:
    write(places, make_record("bench_build", make_build("1e7", 0.25), make_build("1e8", 1.5)))
    write_all(places)
    before = places.page.read_text()
    write(places, make_record("bench_build", make_build("1e7", 0.25), make_build("1e8", 1.75)))
    (places.figures / "typed.svg").write_text("<svg/>")
    wrong, _ = check_all(places)
    assert wrong == [
        "README.md of the benchmarks is not what the records give",
        "the README's section Measured is not what the records give",
        "figures/build-seconds.svg is not drawn from the records",
        "figures/typed.svg is not drawn from the records",
    ]
    assert places.page.read_text() == before
    write_all(places)
    assert check_all(places)[0] == []
    (places.figures / "build-seconds.svg").unlink()
    assert check_all(places)[0] == ["figures/build-seconds.svg is not drawn from the records"]


def test_readme_without_markers_is_refused(places: Places) -> None:
    places.readme.write_text("# top\n")
    with pytest.raises(ValueError, match=f"README.md must hold {BEGIN} and {END} once"):
        write_all(places)


def test_the_command_writes_warns_and_checks(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(places, make_record("bench_build", make_build("1e8", 1.5)))
    monkeypatch.setattr(page, "Places", lambda results: places)
    monkeypatch.setattr(page.Places, "results", places.results, raising=False)
    assert page.main(["--check"]) == 1
    assert page.main([]) == 0
    assert "warning: nothing is recorded of bench_blend/" in capsys.readouterr().err
    assert page.main(["--check"]) == 0


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figures_are_left_out_without_their_records(figure: Figure) -> None:
    assert figure.data({}) == {}
    empty = make_record(figure.benchmark)
    assert figure.data({figure.benchmark: empty}) == {}


def make_rows(figure: str, values: dict[str, float]) -> list[Row]:
    return [Row(name, {figure: [value, value, value]}) for name, value in values.items()]


def make_every_record() -> list[Record]:
    """As the benchmarks of all figures write them, with a size that only one contender has."""
    build = {RIVAL: 9.0, OURS: 3.0}
    blends = [
        Table(f"datasets-{n}-samples-{size}", "blend", make_rows("sample_ns", {OURS: 9.0 * n}))
        for n in (10, 100)
        for size in ("1e7", "1e8")
    ]
    spans = Table("span-1e8", "span", make_rows("span_us", {"zindex": 2.0, "zarr-python": 500.0}))
    stages = [
        Row("blend", {"thread_seconds": [1.0], "disk_nbytes": [9.0]}),
        Row("documents", {"thread_seconds": [3.0]}),
    ]
    ours = Row("zindex, scalable order", {"seconds": [40.0], "disk_limit_seconds": [4.0]})
    goals = ["zindex, scalable order: 40 s (bar 490 s, goal 200 s), 90 MiB (bar 4 GB)"]
    nodes = {"1 node": 50.0, "1,000 nodes": 2.0}
    check = Row("2 workers, scalable, 9 documents", {"seconds": [2.0], "predicted_seconds": [3.0]})
    memory = {"zindex, scalable, one dataset": 9e8, "megatron-core, one dataset": 3e9}
    return [
        make_record(
            "bench_build",
            Table("documents-1e7", "build", make_rows("seconds", build)),
            Table("documents-1e8", "build", make_rows("seconds", build)),
            Table("documents-1e9", "build", make_rows("seconds", {OURS: 30.0})),
        ),
        make_record("bench_blend", *blends),
        make_record(
            "bench_fixed",
            *(
                Table(f"{kind}-{size}", "fixed", make_rows("pass_seconds", build))
                for kind in ("documents", "datasets")
                for size in ("1e1", "1e3-built")
            ),
        ),
        make_record("bench_read", spans),
        make_record(
            "bench_trillions-long",
            Table("5e12", "trillions", [ours, Row(RIVAL, {"seconds": [4e5]})], notes=goals),
            Table("stages-5e12-scalable-order", "stages", stages),
        ),
        make_record("bench_trillions", Table("1e12", "without stages", [ours])),
        make_record(
            "bench_scaling",
            Table("curve-1e12", "predicted", make_rows("seconds", nodes)),
            Table("check", "check", [check, Row("1 worker, not predicted", {"seconds": [1.0]})]),
        ),
        make_record(
            "bench_memory",
            Table("documents-1e7", "memory", make_rows("anonymous_nbytes", memory)),
            Table("documents-1e8", "memory", make_rows("anonymous_nbytes", memory)),
        ),
    ]


def test_every_figure_is_drawn_and_stands_on_the_page(places: Places) -> None:
    write(places, *make_every_record())
    write_all(places)
    text = places.page.read_text()
    for figure in FIGURES:
        assert f"![{figure.caption}](figures/{figure.name}.svg)" in text
        assert "</svg>" in (places.figures / f"{figure.name}.svg").read_text()
    assert "](bench/figures/blend-cost.svg)" in places.readme.read_text()
    assert "|  | zindex, scalable order: 40 s (bar 490 s, goal 200 s), 90 MiB (bar 4 GB) |" in text
    assert check_all(places)[0] == []


def test_figures_take_what_their_tables_hold() -> None:
    records = {record.benchmark: record for record in make_every_record()}
    data = {figure.name: figure.data(records) for figure in FIGURES}
    assert data["build-seconds"]["lines"] == {
        RIVAL: [[1e7, 9.0], [1e8, 9.0]],
        OURS: [[1e7, 3.0], [1e8, 3.0], [1e9, 30.0]],
    }
    assert data["blend-cost"]["lines"] == {OURS: [[10.0, 90.0], [100.0, 900.0]]}
    assert data["read-latency"]["bars"] == {"zindex": 2.0, "zarr-python": 500.0}
    small, large = data["trillions"]["sizes"]
    assert small["bars"]["zindex, scalable order"]["shares"] == {}
    assert large["bars"]["zindex, scalable order"] == {
        "seconds": 40.0,
        "limit": 4.0,
        "shares": {"blend": 0.25, "documents": 0.75},
    }
    assert large["goals"] == {"bar": 490.0, "goal": 200.0}
    assert data["scaling"]["lines"] == {"1 trillion tokens": [[1.0, 50.0], [1000.0, 2.0]]}
    assert data["scaling-check"]["points"] == {"2 workers": [[2.0, 3.0]]}
    assert data["memory"]["lines"][RIVAL + ", one dataset"] == [[1e7, 3e9], [1e8, 3e9]]


def test_the_same_records_draw_the_same_bytes(places: Places) -> None:
    write(places, make_record("bench_build", make_build("1e7", 0.25), make_build("1e8", 1.5)))
    write_all(places)
    path = places.figures / "build-seconds.svg"
    first = path.read_bytes()
    path.unlink()
    write_all(places)
    assert path.read_bytes() == first
    assert drawn_digest(path) is not None


@pytest.mark.parametrize(
    ("figure", "values", "heading", "text"),
    [
        ("seconds", [12.34], "time, s", "12.3"),
        ("seconds", [0.0123], "time, ms", "12.3"),
        ("seconds", [2e-6], "time, µs", "2.00"),
        ("seconds", [1e-4, 0.5, 2.0], "time, ms", "500 (0.100 to 2,000)"),
        ("seconds", [4321.0], "time, s", "4,321"),
        ("first_batch_seconds", [1.5], "first batch, s", "1.50"),
        ("peak_nbytes", [3425 * 2**20], "peak memory, MiB", "3,425"),
        ("written_nbytes", [40 * 2**30], "written, GiB", "40.0"),
        ("sample_ns", [1722.0], "ns/sample", "1,722"),
        ("open_index_us", [12.0], "open index, µs", "12.0"),
        ("nbytes_per_second", [2.5e9], "GB/s", "2.50"),
        ("samples_per_second", [1066.0], "samples/s", "1,066"),
        ("same_shard_percent", [12.5], "same shard, %", "12.5"),
        ("num_chunks_again", [3.0], "chunks again", "3"),
    ],
)
def test_units(figure: str, values: list[float], heading: str, text: str) -> None:
    unit = choose_unit(figure, values)
    assert unit.heading == heading
    assert cell(unit, Row("x", {figure: values}), figure) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(1234.5, "1,234x"), (7.25, "7.2x"), (1.04, "1.04x"), (0.004, "1/250x")]
)
def test_ratios(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.5, "0.500"), (99.96, "100"), (1e-5, "1.00e-05")]
)
def test_numbers(value: float, text: str) -> None:
    assert short_number(value) == text


def test_records_are_small_and_named_as_their_files() -> None:
    for path in Places.results.glob("*.json"):
        assert path.stat().st_size < 100_000
        assert json.loads(path.read_text())["benchmark"] == path.stem.partition("-")[0]


def test_the_page_is_what_the_records_give() -> None:
    """As ``python -m tests.benchmarks.page --check``."""
    wrong, _ = check_all(Places())
    assert not wrong, f"run python -m tests.benchmarks.page: {wrong}"


def test_claims_are_of_rows_that_can_be_found() -> None:
    """Each claim whose benchmark is recorded in its long form has its row."""
    records = read_records(Places.results)
    for claim in CLAIMS:
        keys = {table.key for each in records.values() for table in each.tables}
        if claim.benchmark in records and claim.table in keys:
            assert find(records, claim) is not None, claim.place


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.text)
def test_claims_name_contenders_of_their_benchmarks(claim: Claim) -> None:
    source = (page.HERE / f"{claim.benchmark.partition('-')[0]}.py").read_text()
    assert f'"{claim.row}"' in source
    assert claim.against is None or f'"{claim.against}"' in source
