"""Every command on a tiny corpus: what it does, what it prints, and how it fails."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import zindex
from tests.cli.commands import fail, invoke, succeed
from tests.conftest import WriteCorpus
from tests.forked import run_python


@pytest.fixture
def prefix(write_corpus: WriteCorpus) -> str:
    """Nine documents of three tokens."""
    return write_corpus([3] * 9)


@pytest.fixture
def run_file(tmp_path: Path, prefix: str) -> Path:
    """Write a run with one dataset, of which train gets six documents and valid three."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "sequence_length: 4\nsplit: '6,3,0'\nindex: index\nsamples: {train: 5}\n"
        f"datasets: [{Path(prefix).name}]\n"
    )
    return path


def test_convert_and_export_give_back_the_same_bytes(prefix: str, tmp_path: Path) -> None:
    store = tmp_path / "corpus.zarr"
    printed = succeed("convert", prefix, store)
    assert printed == f"{store}: 9 documents, 9 sequences, 27 tokens\n"
    printed = succeed("export", store, tmp_path / "back")
    nbytes = sum((tmp_path / f"back.{suffix}").stat().st_size for suffix in ("bin", "idx"))
    assert printed == f"{tmp_path}/back.bin and {tmp_path}/back.idx: {nbytes} bytes\n"
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"back.{suffix}").read_bytes() == Path(f"{prefix}.{suffix}").read_bytes()
    line = fail("export", store, tmp_path / "back")
    assert line.startswith(f"Error: {tmp_path}/back.bin exists; choose another prefix, or replace")
    succeed("export", store, tmp_path / "back", "--overwrite")


def test_small_data_need_no_heavy_imports(run_file: Path, prefix: str, tmp_path: Path) -> None:
    code = (
        "import sys; from zindex.cli import main\n"
        f"for command in {[['convert', prefix, 'a.zarr'], ['build', run_file.name]]}:\n"
        "    main(command, standalone_mode=False)\n"
        "print({'dask', 'distributed', 'numba', 'torch', 'xarray', 'zarr'} & {*sys.modules})"
    )
    run_file.write_text(run_file.read_text().replace("datasets: [", "datasets: [a.zarr, "))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("name", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)
def test_an_interrupt_is_one_line_that_says_how_to_go_on(
    name: str, code: int, word: str, run_file: Path
) -> None:
    command = (
        "import logging, signal; from zindex.cli import main; import zindex.indexing.run as run\n"
        # Jobs in the background of a shell ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def build(*args, **settings):\n"
        f"    try: signal.raise_signal(signal.{name})\n"
        "    finally: logging.getLogger('distributed').error('a task was lost')\n"
        f"run.build = build; main(['build', {str(run_file)!r}])"
    )
    done = run_python("-c", command)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"\n{word}; finished work is kept, run the same command to resume\n"


def test_verify_names_what_is_damaged_and_repair_rebuilds_it(prefix: str, tmp_path: Path) -> None:
    store = tmp_path / "corpus.zarr"
    succeed("convert", prefix, store, "--chunk-length", 4, "--shard-length", 8)
    nbytes = sum(path.stat().st_size for path in store.rglob("c/*"))
    assert succeed("verify", store) == f"1 store of 10 shards and {nbytes:,} bytes: sound\n"
    shard = store / "tokens" / "c" / "2"
    golden = shard.read_bytes()
    shard.write_bytes(golden[:-1] + b"\0")
    (store / "tokens/zarr.json").unlink()
    found = invoke("verify", store)
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        f"{store}: tokens/zarr.json is missing",
        f"{store}: tokens/c/2 the index of shard tokens/c/2 fails its checksum",
        "1 store of 10 shards: 1 damaged; `zindex repair` rebuilds damaged shards",
    ]
    found = invoke("verify", store, "--json")
    assert found.exit_code == 1
    (report,) = json.loads(found.stdout)["stores"]
    assert [damage["key"] for damage in report["damaged"]] == ["tokens/zarr.json", "tokens/c/2"]
    assert "give --source PREFIX" in fail("repair", store)
    assert succeed("repair", store, "--source", prefix) == (
        f"{store}: 1 of 10 shards rebuilt, and tokens/zarr.json\n"
    )
    assert shard.read_bytes() == golden
    assert succeed("repair", store) == f"{store}: 10 shards are sound\n"


def test_verify_and_repair_a_run(run_file: Path) -> None:
    folder = run_file.parent / "index"
    assert "is not built" in succeed("verify", run_file)
    assert "is not built" in succeed("repair", run_file)
    succeed("build", run_file)
    shard = next(folder.glob("gpt-train-*/sample_index/c/0/0"))
    shard.unlink()
    assert invoke("verify", folder).exit_code == invoke("verify", run_file).exit_code == 1
    results = json.loads(succeed("repair", run_file, "--json"))["stores"]
    rebuilt = {result["store"]: result["rebuilt"] for result in results if result["rebuilt"]}
    assert rebuilt == {str(shard.parents[3]): ["sample_index/c/0/0"]}
    assert "2 stores of 6 shards" in succeed("verify", run_file)


def test_convert_several_with_a_grid(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    for name in ("web", "code"):
        write_corpus([3] * 9, name=name)
    printed = succeed(
        *("convert", tmp_path / "*", tmp_path / "stores", "--json"),
        *("--codec", "zstd", "--chunk-length", "4", "--shard-length", "8"),
    )
    facts = json.loads(printed)["stores"]
    assert [Path(fact["store"]).name for fact in facts] == ["code.zarr", "web.zarr"]
    assert [fact["num_tokens"] for fact in facts] == [27, 27]
    layout = zindex.open_store(facts[0]["store"]).layouts["tokens"]
    assert (layout.codec, layout.chunk_length, layout.shard_length) == ("zstd", 4, 8)


def test_convert_with_a_link(prefix: str, tmp_path: Path) -> None:
    succeed("convert", prefix, tmp_path / "linked.zarr", "--link")
    assert "tokens" not in zindex.open_store(tmp_path / "linked.zarr")


def test_convert_with_modes(write_corpus: WriteCorpus, tmp_path: Path) -> None:
    prefix = write_corpus([2, 1], name="pictures", modes=[0, 1])
    succeed("convert", prefix, tmp_path / "pictures.zarr", "--multimodal")
    modes = zindex.open_store(tmp_path / "pictures.zarr")["sequence_mode"]
    assert modes.read(0, 2).tolist() == [0, 1]


def test_convert_errors_name_their_values(prefix: str, tmp_path: Path) -> None:
    line = fail("convert", tmp_path / "none*", tmp_path / "store")
    assert line == f"Error: {tmp_path}/none* must match at least one .idx file, it matches none"
    line = fail("convert", prefix, tmp_path / "s", "--chunk-length", "3", "--shard-length", "8")
    assert "must be a multiple of --chunk-length or --chunk-nbytes" in line
    line = fail("convert", prefix, "ftp://host/store")
    assert "'ftp'" in line


def test_plan(run_file: Path) -> None:
    printed = succeed("plan", run_file)
    assert "order megatron, sequence_length 4, seed 1234, split 6,3,0" in printed
    assert "2 indices, 0 of them built; 10 samples" in printed
    rows = json.loads(succeed("plan", run_file, "--json"))["rows"]
    assert [(row["split"], row["num_samples"]) for row in rows] == [("train", 8), ("valid", 2)]
    assert not (run_file.parent / "index").exists()


def test_build_keeps_what_is_finished(run_file: Path) -> None:
    facts = json.loads(succeed("build", run_file, "--json"))["indices"]
    assert [fact["split"] for fact in facts] == ["train", "valid"]
    assert [fact["num_written"] for fact in facts] == [3, 3]
    assert json.loads(succeed("build", run_file, "--json"))["blends"] == []
    assert "2 indices, 2 of them built" in succeed("plan", run_file)
    printed = succeed("build", run_file)
    assert f"2 indices are built in {run_file.parent}/index: 0 of 6 shards were written" in printed
    assert printed.endswith("s, the others already existed\n")


@pytest.fixture
def blend_file(tmp_path: Path, write_corpus: WriteCorpus) -> Path:
    """Write a run that blends two datasets of nine documents of three tokens."""
    names = [Path(write_corpus([3] * 9, name=name)).name for name in ("web", "code")]
    path = tmp_path / "blend.yaml"
    path.write_text(
        "sequence_length: 4\nsplit: '6,3,0'\nindex: index\nsamples: {train: 5, valid: 0}\n"
        f"datasets: [{{path: {names[0]}, weight: 0.6}}, {{path: {names[1]}, weight: 0.4}}]\n"
    )
    return path


def test_build_counts_blends_beside_indices(blend_file: Path) -> None:
    printed = succeed("build", blend_file, "--json")
    facts = json.loads(printed)
    assert [Path(fact["dataset"]).name for fact in facts["indices"]] == ["web", "code"]
    [blend] = facts["blends"]
    assert "dataset" not in blend
    assert (blend["split"], blend["num_samples"], blend["num_datasets"]) == ("train", 5, 2)
    assert (blend["num_written"], blend["num_shards"]) == (4, 4)
    assert zindex.open_store(blend["store"]).fingerprint == blend["fingerprint"]
    printed = succeed("build", blend_file)
    index = blend_file.parent / "index"
    assert f"2 indices and 1 blend are built in {index}: 0 of 10 shards were written" in printed
    assert "2 indices and 1 blend, 3 of them built" in succeed("plan", blend_file)


def test_plan_and_build_of_a_packed_run(run_file: Path) -> None:
    """Each sample has room for one document of three tokens and two tokens more."""
    run_file.write_text(run_file.read_text() + "packing: {max_documents: 2}\n")
    rows = json.loads(succeed("plan", run_file, "--json"))["packings"]
    assert [(row["num_samples"], row["padding_share"]) for row in rows] == [
        (6, pytest.approx(0.4)),
        (3, pytest.approx(0.4)),
    ]
    built = json.loads(succeed("build", run_file, "--json"))["indices"]
    assert [index["num_samples"] for index in built] == [6, 3]
    assert "40%" in succeed("plan", run_file)
    folder = run_file.parent / "index"
    assert "2 stores of" in succeed("verify", run_file)
    next(folder.glob("packed-train-*/part_index/c/0/0")).unlink()
    assert invoke("verify", run_file).exit_code == 1
    assert "part_index/c/0/0" in succeed("repair", run_file, "--json")
    assert "2 stores of" in succeed("verify", folder)


def test_build_of_one_index_is_singular(run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace("train: 5", "train: 5, valid: 0"))
    printed = succeed("build", run_file)
    assert "1 index is built in" in printed
    assert "3 of 3 shards were written" in printed
    assert "others" not in printed


def test_build_writes_a_timeline(blend_file: Path, tmp_path: Path) -> None:
    succeed("build", blend_file, "--timeline", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    stages = {event["cat"] for event in events if event["ph"] == "X"}
    assert {"open", "blend", "arrays"} <= stages


@pytest.mark.parametrize("name", ["none/trace.json", "."])
def test_timeline_is_checked_before_the_build(blend_file: Path, tmp_path: Path, name: str) -> None:
    line = fail("build", blend_file, "--timeline", tmp_path / name)
    assert f"may write, got {tmp_path / name}; choose another one" in line
    assert not (tmp_path / "index").exists()


def test_build_on_a_running_scheduler(run_file: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        protocol="tcp",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        printed = succeed("build", run_file, "--scheduler", cluster.scheduler_address, "--json")
    assert sum(fact["num_written"] for fact in json.loads(printed)["indices"]) == 6


def test_build_errors_name_their_values(run_file: Path, tmp_path: Path) -> None:
    line = fail("build", tmp_path / "none.yaml")
    assert f"cannot read {tmp_path}/none.yaml" in line
    line = fail("build", run_file, "--scheduler", "nowhere://1")
    assert "a Dask scheduler must answer at nowhere://1" in line
    run_file.write_text(run_file.read_text() + "sede: 1\n")
    assert "the run configuration has no setting 'sede'" in fail("build", run_file)
    assert "the run configuration has no setting 'sede'" in fail("plan", run_file)


def test_export_cache(run_file: Path, tmp_path: Path) -> None:
    identifiers = tmp_path / "identifiers.json"
    identifiers.write_text('{"class": "Words"}')
    arguments = ("export-cache", run_file, "--tokenizer", identifiers)
    assert "no zindex store at" in fail(*arguments)
    succeed("build", run_file)
    written = succeed(
        *(*arguments, "--cache", tmp_path / "cache"),
        *("--dataset-path", f"{tmp_path}/corpus=/data/corpus"),
    ).splitlines()
    descriptions = [json.loads(Path(path).read_text()) for path in written]
    assert [item["index_split"] for item in descriptions] == ["train", "valid"]
    assert [item["dataset_path"] for item in descriptions] == ["/data/corpus"] * 2
    assert [item["tokenizer"] for item in descriptions] == [{"class": "Words"}] * 2
    assert len(list((tmp_path / "cache").iterdir())) == 8


@pytest.mark.parametrize(
    ("content", "option", "message"),
    [
        ("{", "a=b", "identifiers.json must hold JSON"),
        ("[1]", "a=b", "identifiers.json must hold a JSON object, got list"),
        ("{}", "a", "--dataset-path must be like HERE=THERE, got 'a'"),
        ("{}", "=b", "--dataset-path must be like HERE=THERE, got '=b'"),
    ],
)
def test_export_cache_errors(
    run_file: Path, tmp_path: Path, content: str, option: str, message: str
) -> None:
    identifiers = tmp_path / "identifiers.json"
    identifiers.write_text(content)
    line = fail(*("export-cache", run_file, "--tokenizer", identifiers, "--dataset-path", option))
    assert message in line


def test_unexpected_errors_keep_their_traceback(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("zindex.inspection.tables.plan_table.report_run", break_down)
    result = invoke("plan", run_file)
    assert isinstance(result.exception, RuntimeError)


def test_quickstart_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zindex.cli.commands.find_spec", lambda name: None)
    assert "needs torch, which is not installed" in fail("quickstart")


def test_verbose_logs_with_times(prefix: str, tmp_path: Path) -> None:
    code = "from zindex.cli import main; main()"
    quiet = run_python("-c", code, "convert", prefix, str(tmp_path / "a.zarr"))
    loud = run_python("-c", code, "--verbose", "convert", prefix, str(tmp_path / "b.zarr"))
    assert quiet.returncode == loud.returncode == 0
    assert "INFO zindex: corpus: 4 shards in" in loud.stderr
    assert "INFO" not in quiet.stderr
    assert "corpus: 4 shards in" in quiet.stderr


def test_errors_leave_no_traceback() -> None:
    done = run_python("-c", "from zindex.cli import main; main()", "plan", "/no/such.yaml")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: a run needs its YAML file, cannot read /no/such.yaml")
    assert done.stderr.count("\n") == 1


def test_help() -> None:
    printed = succeed("--help")
    assert "..." not in printed.partition("Commands:")[2]  # no line is cut off
    commands = ("build", "convert", "export", "export-cache", "plan", "quickstart")
    assert all(f"\n  {command} " in printed for command in commands)
    for command in commands[:-1]:
        assert "Usage: " in succeed(command, "--help")


@pytest.fixture
def version() -> str:
    try:
        return metadata.version("zindex")
    except metadata.PackageNotFoundError:
        pytest.skip("zindex is not installed, so it has no version and no entry points")


def test_version(version: str) -> None:
    assert succeed("--version") == f"zindex, version {version}\n"


@pytest.mark.usefixtures("version")
def test_dask_offers_the_same_commands() -> None:
    done = run_python("-m", "dask", "zindex", "--help")
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout


@pytest.fixture
def blended_file(tmp_path: Path, write_corpus: WriteCorpus) -> Path:
    """Write a run with a blend of two datasets, and a third dataset that it does not name."""
    for name, size in [("web", 40), ("code", 20), ("new", 20)]:
        write_corpus([5] * size, name=name)
    path = tmp_path / "run.yaml"
    path.write_text(
        "sequence_length: 4\nsplit: '1,0,0'\nindex: index\nsamples: {train: 50}\n"
        "datasets: [{path: web, weight: 3}, {path: code, weight: 2}]\n"
    )
    return path


def test_edit_changes_a_run_and_shows_it(blended_file: Path) -> None:
    assert succeed("edit", blended_file) == "train was not edited: 50 samples\n"
    text = succeed(
        "edit", blended_file, "--at", 20, "--reweight", "code=6", "--add", "new=1", "--drop", "web"
    )
    assert text.startswith("edit 1 at position 20: ")
    assert "code to weight 6" in text
    assert "new added with weight 1" in text
    assert "web dropped" in text
    assert "skipped" in text.splitlines()[1]
    text = succeed("edit", blended_file, "--skip", "30:35", "--verify")
    assert "edit 2 at position 30: [30, 35) skipped" in text
    assert "verified: 45 positions have distinct samples, 5 positions are skipped" in text
    shown = succeed("edit", blended_file)
    assert shown.startswith("train was edited 2 times: 45 samples of 4 tokens, fingerprint ")
    assert "edit 1 at position 20" in succeed("plan", blended_file)
    edits = json.loads(succeed("plan", blended_file, "--json"))["edits"]["train"]
    assert [edit["position"] for edit in edits] == [20, 30]
    facts = json.loads(succeed("edit", blended_file, "--json", "--verify"))
    assert facts["edits"] == edits
    assert facts["verified"] == {"num_samples": 45, "num_skipped": 5}
    last = json.loads(succeed("edit", blended_file, "--at", 45, "--num-samples", 60, "--json"))
    assert last["edit"]["change"]["num_samples"] == 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reweight", "code"), "--reweight must be like code=0.3, got 'code'"),
        (("--add", "new=much"), "--add must be like corpora/code=0.3, got 'new=much'"),
        (("--skip", "5"), "--skip must be START:STOP, such as 120000:124000, got 5"),
        (("--at", "10"), "an edit must change something"),
        (
            ("--at", "10", "--drop", "other"),
            "a dataset must be one of the run, got 'other'",
        ),
        (("--at", "10", "--sequence-length", "0"), "got 0"),
    ],
)
def test_edit_refuses_in_one_line(
    blended_file: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in fail("edit", blended_file, *arguments)


def test_forget_lists_and_leaves_out(blended_file: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("# to forget\nweb:3\n\ncode:4\n")
    planned = succeed("forget", blended_file, ids, "--at", 20, "--dry-run")
    assert planned.startswith("train, from position 20: 2 documents to forget, nothing is written")
    assert max(map(len, planned.splitlines())) <= 80
    assert succeed("edit", blended_file) == "train was not edited: 50 samples\n"
    facts = json.loads(succeed("forget", blended_file, ids, "--at", 20, "--json"))
    assert facts["edit"] == 1
    assert sum(map(len, facts["documents"].values())) == 2
    shown = succeed("edit", blended_file, "--verify")
    assert "edit 1 at position 20: 2 documents forgotten" in shown
    found = json.loads(succeed("find", blended_file, "--dataset", "web", "--document", 3, "--json"))
    assert [each["position"] for each in found["documents"][0]["samples"]] == [
        each["position"] for each in facts["seen"] if each["dataset"].endswith("web")
    ]
    assert "all of these are" in fail("forget", blended_file, ids, "--at", 20)
    ids.write_text("web:3\nweb 4\n")
    assert "line 2 of" in fail("forget", blended_file, ids, "--at", 20)
    assert "give the consumed samples as --at" in fail("forget", blended_file, ids)
