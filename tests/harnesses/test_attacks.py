"""Every file of ``attacks/`` is refused in time, with an error of zindex and without a trace."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harnesses.running import time_limit
from zindex.config import load_config
from zindex.errors import ConfigError, ZindexError
from zindex.execution.executor import SerialExecutor
from zindex.formats.keyed.h5_file import read_h5_shards
from zindex.ingest.records.import_records import import_records
from zindex.text.chat_template import ChatTemplate
from zindex.text.text_encoder import TextEncoder

ROOT = Path(__file__).parents[2]
ATTACKS = Path(__file__).parent / "attacks"
LIMIT = 20.0


def render(path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}]
    ChatTemplate(path.read_text("utf-8")).render(messages)


def encode(path: Path) -> None:
    TextEncoder(path).encode(["a" * 20_000 + "b"])


def read_files(path: Path) -> None:
    import_records(path, Path(os.getcwd()) / "records", client=SerialExecutor())


def read_h5(path: Path) -> None:
    for shard in read_h5_shards(path):
        for array in shard.arrays.values():
            array.read(0, 4)


READERS: dict[str, Callable[[Path], Any]] = {
    "h5": read_h5,
    "jsonl": read_files,
    "tar": read_files,
    "template": render,
    "tokenizer": encode,
    "yaml": load_config,
}
FILES = sorted(ATTACKS.glob("*/*"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("zindex.text.template_limits.MAX_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    # Hypothesis has one, in which the exception that ends a rendering would be lost at first.
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_attack_is_refused(path: Path, tmp_path: Path) -> None:
    module = {"h5": "h5py", "template": "jinja2", "tokenizer": "tokenizers"}
    pytest.importorskip(module.get(path.parent.name, "sys"))
    with time_limit(LIMIT), pytest.raises(ZindexError):
        READERS[path.parent.name](path)
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "records" / "zarr.json").exists()


def test_a_rendering_that_loses_the_exception_is_stopped_again() -> None:
    pytest.importorskip("jinja2")
    from zindex.text.template_limits import _Stop, within_limits

    stops = []

    def render() -> None:
        while True:
            try:
                while True:
                    sum(range(100))
            except _Stop as stop:  # as Python does in __del__
                stops.append(stop)
                if len(stops) == 2:
                    raise

    with time_limit(LIMIT), pytest.raises(ConfigError, match=r"within 0\.2 s"):
        within_limits(render)


PROFILED = """
import sys
from zindex.errors import ConfigError
from zindex.text import template_limits

def render():
    while True:
        sum(range(100))

template_limits.MAX_SECONDS = 0.2
try:
    template_limits.within_limits(render)
except ConfigError:
    sys.setprofile(lambda *event: None)
    sum(map(lambda number: number, range(3)))
    sys.setprofile(None)
    print("profiled", flush=True)
"""


def test_after_a_rendering_was_stopped_calls_can_be_profiled() -> None:
    pytest.importorskip("jinja2")
    command = [sys.executable, "-c", PROFILED]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=100, cwd=ROOT, text=True)
    assert done.stdout == "profiled\n"


def test_what_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of attacks names a kind that has no reader."""
    assert {path.parent.name for path in FILES} == READERS.keys()
    assert sys.getrecursionlimit() < 20_000
