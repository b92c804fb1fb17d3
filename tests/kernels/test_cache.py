"""Compiled kernels on disk."""

import ast
import gc
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tests.conftest import WriteCorpus
from zindex.errors import ConfigError
from zindex.kernels import _cache, _cache_folders
from zindex.kernels import warm as warming
from zindex.kernels._jit import is_compiled, jit
from zindex.kernels.warm import warm

ROOT = Path(__file__).parents[2]

#: Module of the kernels of these tests.
MADE = "zindex.kernels.made"


@pytest.fixture(autouse=True)
def _make_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the module, which numba imports when it reads a kernel of it."""
    monkeypatch.setitem(sys.modules, MADE, ModuleType(MADE))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that keeps the kernels of this test."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    (chosen,) = _cache_folders.folders()
    return chosen


def make_kernel(step: int = 1) -> Any:
    """Return a kernel as a new process does, without anything compiled."""

    def add(x: int) -> int:
        return x + STEP  # type: ignore[name-defined]  # noqa: F821

    function = FunctionType(add.__code__, {"STEP": step, "__builtins__": __builtins__}, "add")
    function.__module__ = MADE
    function.__qualname__ = "add"
    return jit(function)


def was_loaded(kernel: Any) -> bool:
    """Return whether a kernel was read, instead of compiled."""
    return sum(kernel.stats.cache_hits.values()) == 1


def test_a_kernel_is_compiled_once(folder: Path) -> None:
    first, second = make_kernel(), make_kernel()
    assert not is_compiled(first)
    assert first(41) == 42
    assert is_compiled(first)
    assert is_compiled(second)
    assert second(41) == 42
    assert [was_loaded(first), was_loaded(second)] == [False, True]
    assert first(0.5) == 1.5
    assert len({path.name for path in folder.iterdir()}) == 2
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_kernels_of_other_packages_are_not_cached(folder: Path) -> None:
    def add(x: int) -> int:
        return x + 1

    assert jit(add)(41) == 42
    assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    ],
    ids=["empty", "checksum", "truncated", "flipped"],
)
def test_a_damaged_file_is_compiled_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    make_kernel()(41)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    file.write_bytes(damage(content))
    again, then = make_kernel(), make_kernel()
    assert again(41) == then(41) == 42
    assert [was_loaded(again), was_loaded(then)] == [False, True]
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_a_file_under_the_name_of_another_is_not_loaded(folder: Path) -> None:
    kernel = make_kernel()
    kernel(41)
    (file,) = folder.iterdir()
    kernel(0.5)
    (other,) = set(folder.iterdir()) - {file}
    other.replace(file)
    again = make_kernel()
    assert again(41) == 42
    assert not was_loaded(again)


def test_files_that_cannot_be_unpickled_are_recompiled(folder: Path) -> None:
    make_kernel()(41)
    (file,) = folder.iterdir()
    file.unlink()
    _cache._write(folder, file.name, b"another version of numba")
    again = make_kernel()
    assert again(41) == 42
    assert not was_loaded(again)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_write_to_is_refused(folder: Path, mode: int) -> None:
    make_kernel()(41)
    (file,) = folder.iterdir()
    before = file.stat()
    folder.chmod(mode)
    kernel = make_kernel()
    assert kernel(41) == 42
    assert not was_loaded(kernel)
    assert [(path.name, path.stat().st_ino) for path in folder.iterdir()] == [
        (file.name, before.st_ino)
    ]


def test_a_directory_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_kernel()(41)
    monkeypatch.setattr(_cache, "_owners", lambda: {os.geteuid() + 1})
    kernel = make_kernel()
    assert kernel(41) == 42
    assert not was_loaded(kernel)
    assert len(list(folder.iterdir())) == 1


def test_a_link_to_a_directory_is_refused(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    folder.parent.mkdir()
    folder.symlink_to(target)
    assert make_kernel()(41) == 42
    assert not list(target.iterdir())


def test_no_directory_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/dev/null/kernels")
    assert make_kernel()(41) == 42


def test_the_directory_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/scratch")
    shared = Path(f"/scratch/zindex-{os.geteuid()}")
    assert [path.parent for path in _cache_folders.folders()] == [
        tmp_path / ".cache/zindex",
        shared,
    ]
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    assert [path.parent for path in _cache_folders.folders()] == [shared]
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert [path.parent for path in _cache_folders.folders()] == [shared]
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert [path.parent for path in _cache_folders.folders()] == [Path("/caches/zindex"), shared]


def test_the_next_directory_is_used_if_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    first, second = make_kernel(), make_kernel()
    assert not is_compiled(first)
    assert first(41) == 42
    assert is_compiled(first)
    assert is_compiled(second)
    assert second(41) == 42
    assert was_loaded(second)


@pytest.fixture
def sources(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of sources in the place of the package's."""
    made = tmp_path / "sources"
    made.mkdir()
    (made / "helpers.py").write_text("STEP = 1\n")
    monkeypatch.setattr(_cache_folders, "_PACKAGE", made)
    monkeypatch.setattr(_cache_folders, "IMPORTED", float("inf"))
    return made


def test_a_change_of_any_source_leads_to_a_compilation(sources: Path) -> None:
    first, same = make_kernel(), make_kernel()
    assert first(41) == same(41) == 42
    assert was_loaded(same)
    # What numba's own cache cannot see: a constant of another file.
    (sources / "helpers.py").write_text("STEP = 2\n")
    changed, again = make_kernel(2), make_kernel(2)
    assert changed(41) == again(41) == 43
    assert [was_loaded(changed), was_loaded(again)] == [False, True]


def test_a_change_after_the_import_ends_caching(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = (sources / "helpers.py").stat().st_ctime
    monkeypatch.setattr(_cache_folders, "IMPORTED", changed)
    assert _cache_folders.folders() == []
    assert make_kernel()(41) == 42
    monkeypatch.setattr(_cache_folders, "IMPORTED", changed + 1)
    assert len(_cache_folders.folders()) == 1


def test_old_versions_are_removed(folder: Path) -> None:
    for number in range(12):
        old = folder.with_name(f"kernels-{number}")
        old.mkdir(parents=True)
        os.utime(old, (number, number))
    (folder.parent / "other").mkdir()
    make_kernel()(41)
    kept = {path.name for path in folder.parent.iterdir()}
    assert kept == {"other", folder.name, *(f"kernels-{number}" for number in range(5, 12))}


TWO = """
import numpy as np
from zindex.kernels.bitset import digest_numbers
print("ready", flush=True)
input()
print(digest_numbers(np.arange(3), 7), sum(digest_numbers.stats.cache_misses.values()))
"""


def test_one_of_several_concurrent_processes_compiles(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", TWO]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    answers = sorted(process.communicate()[0].split() for process in processes)
    assert answers[0][0] == answers[1][0]
    assert [answer[1] for answer in answers] == ["0", "1"]
    (folder,) = tmp_path.iterdir()
    files = list(folder.iterdir())
    assert files
    for file in files:
        assert _cache._read(folder, file.name) is not None


def test_a_process_that_was_stopped_holds_up_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cache, "_claim", lambda _: False)
    monkeypatch.setattr(_cache, "_LONGEST_WAIT", 0.05)
    assert make_kernel()(41) == 42


def test_kernels_depend_on_no_other_sources() -> None:
    """Only the sources of this room are part of the key."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "zindex/kernels").glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {node.module or "" for node in nodes if (node.module or "").startswith("zindex")}
    assert {name for name in ours if not name.startswith("zindex.kernels")} <= {
        "zindex.arrays",
        "zindex.cache_folders",
        "zindex.errors",
    }


def test_shared_kernels_are_read_by_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(_cache_folders, "SHARED", tmp_path / "package")
    monkeypatch.setattr(warming, "_compile_common", lambda: make_kernel()(41))
    folder = warm(shared=True)
    assert folder.parent == tmp_path / "package"
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    gc.collect()  # of what numba could share with the first kernel
    kernel = make_kernel()
    assert kernel(41) == 42
    assert was_loaded(kernel)
    # Others are kept for the user only.
    assert kernel(0.5) == 1.5
    assert list(folder.iterdir()) == [file]
    assert len(list((tmp_path / "user/zindex").glob("kernels-*/*"))) == 1


def test_warm_needs_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/dev/null/kernels")
    monkeypatch.setattr(warming, "_compile_common", lambda: make_kernel()(41))
    with pytest.raises(ConfigError, match=r"/dev/null/kernels/kernels-.*; set NUMBA_CACHE_DIR"):
        warm()


WARM_BUILDS = """
import sys
import zindex
from zindex.indexing import blend_arrays
from zindex.kernels import _cache

zindex.warm()
blend_arrays._LOADING_ERRORS = 0
def refuse(kernel, signature, result):
    raise AssertionError(f"{kernel._name} of {signature} was compiled")
_cache.KernelCache.save_overload = refuse
for run_file in sys.argv[1:]:
    zindex.build(zindex.load_config(run_file))
"""


def test_builds_compile_nothing_after_warm(tmp_path: Path, write_corpus: WriteCorpus) -> None:
    names = [Path(write_corpus([50] * 30, name=name)).name for name in ("web", "code")]
    run_files = [tmp_path / f"{order}.yaml" for order in ("megatron", "scalable")]
    for path in run_files:
        path.write_text(
            f"sequence_length: 8\nsplit: '1,0,0'\nindex: {path.stem}\norder: {path.stem}\n"
            "samples: {train: 100}\ndatasets: "
            f"[{{path: {names[0]}, weight: 0.6}}, {{path: {names[1]}, weight: 0.4}}]\n"
        )
    command = [sys.executable, "-c", WARM_BUILDS, *map(str, run_files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


def test_a_user_at_a_terminal_is_told_once_what_takes_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zindex")
    _cache._announce.cache_clear()
    make_kernel()(41)
    assert not caplog.messages
    _cache._announce.cache_clear()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for path in folder.iterdir():
        path.unlink()
    make_kernel()(41)
    make_kernel()(0.5)
    assert [message[:40] for message in caplog.messages] == [
        "compiling kernels, once per machine; zin"
    ]
    assert caplog.records[0].levelname == "INFO"
    monkeypatch.setattr(_cache.logger, "hasHandlers", lambda: False)
    _cache._announce.cache_clear()
    _cache._announce()
    assert caplog.records[1].levelname == "WARNING"  # which Python shows without handlers
