"""A settings file becomes a mapping, or an error that names the file."""

from pathlib import Path

import pytest

from zindex.errors import ConfigError
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.yaml_file import read_yaml


def test_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\nb: [x, 2.5]\n")
    assert read_yaml(path) == read_yaml(str(path)) == {"a": 1, "b": ["x", 2.5]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a", "must hold a mapping of settings, got list"),
        ("a: [", "must hold YAML: while parsing"),
        ("a: !!int ''", "must hold YAML: "),
        ("[" * 10_000, "must hold YAML that is nested less deeply"),
    ],
)
def test_other_content(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)


def test_large_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    with pytest.raises(ConfigError, match="a kind of records needs its YAML file, cannot read"):
        RecordSchema.read(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="a run needs its YAML file, cannot read"):
        read_yaml(path)
    path.write_text("a: " + "1" * (4 << 20))
    with pytest.raises(ConfigError, match="must be YAML of at most 4194304 bytes; check the path"):
        read_yaml(path)
