"""Hostile YAML is refused whole: nothing runs, nothing is imported, nothing is written.

Each file of ``hostile_yaml`` says in its first line what its refusal says.
"""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zindex.errors import ConfigError
from zindex.streaming.configuration.from_yaml import instantiate_from_yaml

CORPUS = sorted((Path(__file__).parent / "hostile_yaml").glob("*.yaml"))
MARK = "# refused: "
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_QUIET = ("open", "builtins.id", "os.listdir", "os.scandir", "object.__getattr__", "sys._getframe")


class Watch:
    """Audit events of the interpreter between two points, except of threads that ran before."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] | None = None
        self.others: set[int] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.events is None or threading.get_ident() in self.others:
            return
        writes = event == "open" and arguments[2] & ~_READ
        if writes or event not in _QUIET:
            self.events.append((event, *map(repr, arguments)))

    def start(self) -> None:
        """Record events from now on."""
        self.others = set(sys._current_frames()) - {threading.get_ident()}
        self.events = []

    def stop(self) -> list[tuple[Any, ...]]:
        """Return the events."""
        events, self.events = self.events, None
        assert events is not None
        return events


WATCH = Watch()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of files next to a secret; both must remain unchanged."""
    (tmp_path / "secret.yaml").write_text("password: x")
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/secret.yaml").write_text("password: x")
    inside = tmp_path / "inside"
    inside.mkdir()
    for path in CORPUS:
        shutil.copy(path, inside)
    (inside / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (inside / "linked").symlink_to(tmp_path / "beside")
    os.mkfifo(inside / "fifo")
    (inside / "circle_a.yaml").write_text("[include: circle_b.yaml]")
    (inside / "circle_b.yaml").write_text("x: {include: circle_a.yaml}")
    for name, inner in [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")]:
        lines = f"- {{include: wide_{inner}.yaml}}\n" * 10
        (inside / f"wide_{name}.yaml").write_text(lines)
    (inside / "wide_e.yaml").write_text("1")
    monkeypatch.chdir(inside)
    before = sorted(tmp_path.rglob("*"))
    yield inside
    assert sorted(tmp_path.rglob("*")) == before


def refuse(path: Path, message: str, **settings: Any) -> None:
    """Check that a file is refused with a message, and that nothing happened."""
    modules = set(sys.modules)
    WATCH.start()
    try:
        with pytest.raises(ConfigError) as caught:
            instantiate_from_yaml(
                path, {"a": "system", "command": "os.system", "up": ".."}, **settings
            )
    finally:
        events = WATCH.stop()
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path.parent))
    assert events == []
    assert set(sys.modules) == modules


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus(folder: Path, path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith(MARK)
    refuse(folder / path.name, first.removeprefix(MARK))


def test_the_watch_sees(folder: Path) -> None:
    """A target that does something is seen, so that silence means something."""
    path = folder / "x.yaml"
    path.write_text("target: os.getcwd\nparams:")
    WATCH.start()
    try:
        os.system("true")
        (folder / "x.txt").write_text("x")
        compile("1", "x", "eval")
    finally:
        events = WATCH.stop()
    assert [event[0] for event in events] == ["os.system", "open", "compile"]
    path.unlink()
    (folder / "x.txt").unlink()


GENERATED = {
    "nested lists": ("[" * 100_000, "nested 40 deep at most"),
    "nested mappings": ("{a: " * 100_000, "nested 40 deep at most"),
    "nested blocks": ("\n".join("  " * i + "a:" for i in range(400)), "nested 40 deep at most"),
    "nested dashes": ("- " * 10_000, "nested 40 deep at most"),
    "nested keys": ("? " * 10_000, "nested 40 deep at most"),
    "nested aliases": (
        "a0: &a0 1\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 900)),
        "nested 40 deep at most",
    ),
    "many aliases": ("a: &a 1\nb: [" + "*a, " * 5000 + "]", "at most 1000 aliases"),
    "many values": ("[" + "1," * 101_000 + "]", "at most 100,000 values"),
    "wide merges": (
        "a: &a {" + ",".join(f"k{i}: 1" for i in range(2000)) + "}\nb:\n" + "- {<<: *a}\n" * 500,
        "at most 100,000 values",
    ),
    "merges of merges": (
        "a0: &a0 {x0: 1}\n"
        + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}], x{i}: 1}}\n" for i in range(1, 490)),
        "at most 100,000 values",
    ),
    "a large file": ("a: " + "x" * (1 << 20), "must be YAML of at most 1048576 bytes"),
    "a null byte": ("a: \0", "must hold YAML in UTF-8"),
    "no UTF-8": (b"a: \xff\xfe\xff", "must hold YAML in UTF-8"),
    "an escape": ("a: \x1b[2J", "must hold YAML in UTF-8"),
    "a long alias": ("a: &" + "x" * 10_000 + " 1\nb: *" + "y" * 10_000, "undefined alias"),
    "variables in text": ("- ${variables:long}x\n" * 200, "1,048,576 characters at most"),
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated(folder: Path, name: str) -> None:
    content, message = GENERATED[name]
    path = folder.parent / "beside" / "secret.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        instantiate_from_yaml(path, {"long": "y" * 10_000})
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 30_000


def test_deep_includes(folder: Path) -> None:
    """Files that each nest a little, and include the next, stop at a depth of all together."""
    names = [folder.parent / "beside" / f"{i}.yaml" for i in range(30)]
    for i, path in enumerate(names):
        path.write_text("[" * 20 + f"include: {i + 1}.yaml" + "]" * 20)
    with pytest.raises(ConfigError, match="values of all files may be nested 100 deep at most"):
        instantiate_from_yaml(names[0])
    for path in names:
        path.unlink()


PIECES = ["&a ", "*a", "<<: ", "!!int ", "!!str ", "! ", "? ", ": ", "- ", *"{}[],|>#@`_+-.", "\n"]
PIECES += ["\n  ", '"', "'", "%YAML 1.2\n", "---\n", "...\n", "${variables:x}", "${", "target: Box"]
PIECES += ["params:", "params: {}", "include: a.yaml", "0x", "0b", "1e5", ".inf", "~", "\t", "\x85"]
PIECES += ['"\\UFFFFFFFF"', '"\\uD800"', "\u202e", "\ufeff", "a", "a: ", "x: 1\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.binary(max_size=3))
def test_random_files_raise_config_errors_only(pieces: list[str], noise: bytes) -> None:
    """It is a value, or an error of one class that names the file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        path.write_bytes("".join(pieces).encode() + noise)
        message = f"{path}, "
        try:
            instantiate_from_yaml(path, {"x": 1}, targets={"Box": dict})
        except ConfigError as error:
            message = str(error)
        assert message.startswith(str(path))
