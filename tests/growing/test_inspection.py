"""`zindex info`, `verify`, `gc` and `compact` of growing stores."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.commands import fail, invoke, succeed
from tests.damage import flip
from tests.growing.rollouts import grow
from tests.trees import all_files
from zindex.growing.compaction import compact
from zindex.growing.eviction import evict
from zindex.growing.growing_log import GrowingLog
from zindex.growing.inspection import verify_growing
from zindex.inspection.answers.info import info, ls
from zindex.keyed.growing_dataset import GrowingDataset
from zindex.maintenance.garbage import find_garbage


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for version in range(8):
        grow(tmp_path / "store", range(4), version)
    return tmp_path / "store"


def test_info(store: Path) -> None:
    GrowingDataset("grpo", store, round_size=8)[0]
    evict(store, keep_versions=6)
    found = info(store)
    assert (found.kind, found.health) == ("growing store", "whole")
    assert found.facts["generation"] == 9
    assert found.facts["num_records"] == 24
    assert found.facts["num_evicted"] == 2
    assert found.facts["policy_versions"] == "2 to 7"
    assert found.facts["reader train"] == "1 round of 8 records"
    assert "rewards: row float32" in found.facts["keys"]
    assert found.nbytes is not None
    assert found.nbytes > 1000
    assert [item.kind for item in ls(store.parent)] == ["growing store"]
    said = succeed("info", store)
    assert "growing store" in said
    (store / "_zindex" / "log" / "000000" / "003.json").write_text("{}")
    assert info(store).health.startswith("damaged: ")


def test_verify_names_what_is_damaged(store: Path) -> None:
    compact(store, min_count=8)
    for number in range(3):
        grow(store, [number], 9)
    assert verify_growing(store).is_sound
    assert "sound" in succeed("verify", store)
    names = sorted(path.name for path in (store / "_zindex" / "files").iterdir())
    files = [store / "_zindex" / "files" / name for name in names]
    live = {home.name for home in GrowingLog(store).history.homes}
    file = next(path for path in files if path.stem in live)
    flip(file, 5)
    [made] = store.glob("records-*")
    flip(made / "rewards_value" / "c" / "0", 9)
    log = store / "_zindex" / "log" / "000000" / "002.json"
    content = log.read_bytes()
    log.write_bytes(content.replace(b'"version":1', b'"version":7'))
    (store / "_zindex" / "summary.json").unlink(missing_ok=True)
    report = verify_growing(store)
    [damage] = report.damages
    assert damage.key == "_zindex/log"
    assert "000000/002.json fails its digest" in damage.problem
    log.write_bytes(content)
    description = store / "_zindex" / "growing.json"
    intact = description.read_bytes()
    description.write_bytes(intact.replace(b"int32", b"int16", 1))
    assert [item.key for item in verify_growing(store).damages] == ["_zindex/growing.json"]
    description.write_bytes(intact)
    found = {item.key for item in verify_growing(store).damages}
    assert found == {
        f"_zindex/files/{file.name}",
        f"records-{made.name.removeprefix('records-')}/rewards_value/c/0",
    }
    done = invoke("verify", store)
    assert done.exit_code == 1
    assert f"{file.name} must have the" in done.output


def test_commands(store: Path) -> None:
    assert "nothing is unused in" in succeed("gc", store)
    assert "1 store written" in succeed("compact", store, "--keep-versions", "8")
    assert "0 stores written" in succeed("compact", store)
    state = store.parent / "state.json"
    state.write_text(json.dumps({"generation": 8}))
    said = succeed("gc", store, "--hours", "-1", "--state", state)
    assert "compacted, or left by a killed writer" in said
    assert "8 files and folders, " in said
    assert f"--run must be left out for a growing store, {store} is one" in " ".join(
        fail("gc", store, "--run", "run.yaml").split()
    )
    assert f"--state must come with a growing store, {store.parent} is none" in " ".join(
        fail("gc", store.parent, "--state", state).split()
    )
    assert "8 files and folders, " in succeed("gc", store, "--hours", "-1", "--remove")
    evict(store, keep_versions=1)
    assert "sound" in succeed("verify", store)


def test_a_folder_of_stores_may_have_growing_ones(store: Path) -> None:
    folder = store.parent
    before = all_files(store)
    for path in sorted(store.rglob("*"), reverse=True):
        os.utime(path, (0, 0))
    assert find_garbage(folder, hours=0.0) == []  # it is no unfinished build
    said = succeed("gc", folder, "--hours", "0", "--remove")
    assert "nothing is unused" in said
    assert all_files(store) == before
    assert "1 store" in succeed("verify", folder)
    (folder / "nothing").mkdir()
    assert "no zindex store at" in fail("verify", folder / "nothing")
