"""What a target may name: registered names, zindex's own, and upstream's names for them."""

import re
from pathlib import Path

import pytest

import zindex.streaming
from zindex.errors import ConfigError
from zindex.streaming.configuration.registry import OFFERED, Targets, register
from zindex.streaming.configuration.yaml_tree import Place

PLACE = Place(Path("a.yaml"), 3, 7)


def test_registering_twice() -> None:
    def first() -> None: ...

    def second() -> None: ...

    assert register("tests.registry.first")(first) is first
    assert register("tests.registry.first")(first) is first
    message = "a name must be registered once, 'tests.registry.first' names <function"
    with pytest.raises(ConfigError, match=re.escape(message)):
        register("tests.registry.first")(second)
    assert Targets({}, ()).find("tests.registry.first", PLACE).value is first


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MergedDataset", "must not be one of zindex or cogdata, got 'MergedDataset'"),
        ("zindex.streaming.Mine", "must not be one of zindex or cogdata"),
        ("cogdata.Mine", "must not be one of zindex or cogdata"),
        ("a b", "public names joined by dots, got 'a b'"),
        ("_a", "public names joined by dots, got '_a'"),
        ("", "public names joined by dots, got ''"),
        (5, "public names joined by dots, got 5"),
    ],
)
def test_refused_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register(name)


@pytest.mark.parametrize("name", OFFERED)
def test_offered_names_are_public(name: str) -> None:
    targets = Targets({}, ())
    made = targets.find(name, PLACE).value
    assert made is getattr(zindex.streaming, name)
    assert targets.find(f"zindex.streaming.{name}", PLACE).value is made
    assert name in zindex.streaming.__all__


@pytest.mark.parametrize(
    "name",
    [
        "cogdata.streaming.MergedDataset",
        "cogdata.streaming.MetaDistributedWebDataset",
        "cogdata.streaming.JsonlIterableDataset",
        "cogdata.streaming.ImageJsonlDataset",
        "cogdata.streaming.processfns.ImageTextPairProcessFnBuilder",
        "cogdata.streaming.processfns.ImageJsonlProcessFnBuilder",
        "cogdata.streaming.processfns.TextJonslProcessFnBuilder",
        "cogdata.streaming.web_dataset.SimpleDistributedWebDataset",
    ],
)
def test_upstream_names(name: str) -> None:
    made = Targets({}, ()).find(name, PLACE).value
    assert made is getattr(zindex.streaming, name.rpartition(".")[2])


def test_targets_go_before_others() -> None:
    assert Targets({"MergedDataset": 5}, ()).find("MergedDataset", PLACE).value == 5
