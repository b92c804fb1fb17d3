"""Datasets of mixtures that YAML describes: what they lack, with its place."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.streaming.tiny_sources import Items
from zindex.errors import ConfigError
from zindex.streaming import MergedDataset, instantiate_from_yaml

HEAD = "target: MergedDataset\nparams:\n  datasets:\n"
FIRST = "  - {target: Data, params: null, name: a, percent: 1}\n"


class Data(Items):
    """A dataset without attributes."""

    extra_names = 0

    def __init__(self) -> None:
        super().__init__("", 3)
        del self.name, self.percent


class Upper:
    """A process function."""

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        return samples


class Doubled:
    """A class that is a process function itself."""

    def __init__(self, samples: Iterator[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        for sample in self.samples:
            yield from (sample, sample)


class Read(Data):
    """A dataset with a process function."""

    def __init__(self, process_fn: Any) -> None:
        super().__init__()
        self.process_fn = process_fn


TARGETS = {"Data": Data, "Upper": Upper, "Doubled": Doubled, "Read": Read}


def load(folder: Path, text: str, **settings: Any) -> Any:
    (folder / "a.yaml").write_text(text)
    return instantiate_from_yaml(folder / "a.yaml", targets=TARGETS, **settings)


@pytest.mark.parametrize(
    ("child", "message"),
    [
        ("name: b", "line 5, column 14: a dataset of a mixture must have a percent >= 0, got None"),
        ("name: b, percent: -1", "line 5, column 43: a dataset of a mixture must have a percent"),
        ("name: b, percent: true", "column 43: a dataset of a mixture must have a percent >= 0"),
        ("percent: 1", "column 14: a dataset of a mixture must have a name without '@', got"),
        ("percent: 1, name: b@c", "column 46: a dataset of a mixture must have a name without"),
        ("percent: 1, name: a", "column 46: the names of all datasets must differ, 'a' is that of"),
        (
            "percnt: 1, name: b",
            "column 34: a dataset of a mixture must have its attributes spelled",
        ),
        ("precent: 1, name: b", "got 'precent' (did you mean 'percent'?); correct it"),
        ("percent: 1, nmae: b", "got 'nmae' (did you mean 'name'?); correct it"),
        ("Percent: 1, name: b", "got 'Percent' (did you mean 'percent'?); correct it"),
        ("percent: 1, name: b, lenght: 5", "got 'lenght' (did you mean 'length'?)"),
        ("percent: 1, name: b, length_multipler: 5", "(did you mean 'length_multiplier'?)"),
        ("percent: 1, name: b, length_divider: 5", "(did you mean 'length_divisor'?)"),
        (
            "weight: 2, name: b",
            "column 34: a dataset of a mixture must have its attributes spelled",
        ),
        (
            "percent: {10: 1}, name: b",
            "column 34: a dataset of a mixture must have a percent that maps samples",
        ),
        ("percent: {0: -1}, name: b", "to numbers >= 0, got {0: -1}; write it as in {0: 0.5,"),
        ("percent: 1, name: b, max_epoch: 5", "(did you mean 'max_epochs'?)"),
        ("percent: 1, name: b, max_epochs: 0", "must have max_epochs >= 1, got 0"),
        ("percent: 1, name: b, length: '5'", "column 55: length must be a number > 0, got '5'"),
        ("percent: 1, name: b, length: -5", "length must be a number > 0, got -5; write a number"),
        ("percent: 1, name: b, length: .nan", "length must be a number > 0, got nan"),
        ("percent: 1, name: b, length: true", "length must be a number > 0, got True"),
        (
            "percent: 1, name: b, max_epochs: 1.5",
            "column 55: a dataset must have max_epochs >= 1, got 1.5",
        ),
    ],
)
def test_missing_attributes_have_their_place(tmp_path: Path, child: str, message: str) -> None:
    text = f"{HEAD}{FIRST}  - {{target: Data, params: null, {child}}}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, text)


def test_percents_may_change_and_epochs_end(tmp_path: Path) -> None:
    child = "{target: Data, params: null, name: b, percent: {0: 0.5, 1_000: 2}, max_epochs: 3}"
    child = load(tmp_path, f"{HEAD}{FIRST}  - {child}").datasets[1]
    assert (child.percent, child.max_epochs) == ({0: 0.5, 1000: 2}, 3)


def test_other_attributes_are_free(tmp_path: Path) -> None:
    mixed = load(
        tmp_path,
        f"{HEAD}{FIRST}  - {{target: Data, params: null, name: b, names: 3, percent: 2, "
        "percents: 5, length_of: 5, weight: 1, length: 5}",
    )
    assert mixed.datasets[1].length_of == 5
    # Nothing but a mixture reads them.
    assert load(tmp_path, "{target: Data, params: null, percnt: 3}").percnt == 3


def test_mixtures_within_need_no_name(tmp_path: Path) -> None:
    inner = "  - target: MergedDataset\n    percent: 1\n    params:\n      datasets:\n    " + FIRST
    mixed = load(tmp_path, HEAD + inner)
    assert isinstance(mixed.datasets[0], MergedDataset)
    with pytest.raises(
        ConfigError, match="line 4, column 13: a dataset of a mixture must have a p"
    ):
        load(tmp_path, HEAD + inner.replace("    percent: 1\n", ""))


def test_datasets_of_the_program_have_no_place(tmp_path: Path) -> None:
    text = f"{HEAD}  - ${{dynamic_objs:given}}\n{FIRST}"
    assert load(tmp_path, text, dynamic_objs={"given": Items("g", 3)}).datasets[0].name == "g"
    with pytest.raises(ConfigError, match=r"dataset 0 \(Data\) must have a percent"):
        load(tmp_path, text, dynamic_objs={"given": Data()})
    whole = "{target: MergedDataset, params: {datasets: '${dynamic_objs:given}'}}"
    assert len(load(tmp_path, whole, dynamic_objs={"given": [Items("g", 3)]}).datasets) == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{target: Read, params: {process_fn: {target: Upper}}}", "process_fn"),
        (f"{HEAD}{FIRST}  customized_yield_fn: {{target: Upper}}", "customized_yield_fn"),
    ],
)
def test_a_class_is_not_a_process_function(tmp_path: Path, text: str, name: str) -> None:
    message = f"{name} must be a function of samples, 'Upper' names a class; write `params: null`"
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)
    made = load(tmp_path, text.replace("target: Upper", "target: Upper, params: null"))
    assert isinstance(getattr(made, name), Upper)


def test_a_class_whose_objects_are_iterated_is_one(tmp_path: Path) -> None:
    made = load(tmp_path, "{target: Read, params: {process_fn: {target: Doubled}}}")
    assert made.process_fn is Doubled


JSONL = "  - {target: JsonlIterableDataset, params: {path: PATH}, name: b, percent: 1, ATTRIBUTE}\n"


@pytest.mark.parametrize(
    ("attribute", "hint"),
    [
        ("seeed: 3", " (did you mean 'seed'?)"),
        ("repeats: 2", ""),
    ],
)
def test_attributes_that_nothing_reads_are_warned_of(
    tmp_path: Path, attribute: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "b.jsonl"
    data.write_text("{}\n")
    load(tmp_path, HEAD + JSONL.replace("PATH", str(data)).replace("ATTRIBUTE", attribute))
    [record] = caplog.records
    assert re.search(r", line 4, column \d+: zindex reads no attribute", record.getMessage())
    assert f"of a JsonlIterableDataset{hint}; it is set, but" in record.getMessage()


def test_arguments_among_the_attributes_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "b.jsonl"
    data.write_text("{}\n")
    child = JSONL.replace("PATH", str(data))
    message = "got the attribute 'on_damage' (did you mean the argument 'on_damage'?); move it"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, HEAD + child.replace("ATTRIBUTE", "on_damage: skip"))
    message = "the share of a dataset must be its percent, got the attribute 'weight' (did you mean"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, HEAD + child.replace("ATTRIBUTE", "weight: 2"))
    whole = HEAD + child.replace("ATTRIBUTE", "length: 1") + "seeed: 4\n"
    with pytest.raises(
        ConfigError, match=re.escape("line 5, column 1: arguments of MergedDataset")
    ):
        load(tmp_path, whole)
    # As attributes they would have an effect, but would not be checked.
    for text in (
        HEAD + child.replace("ATTRIBUTE", "shuffle_buffer: -1"),
        HEAD + child.replace("ATTRIBUTE", "length: 1") + 'cyclic: "no"\n',
    ):
        with pytest.raises(
            ConfigError, match=r"line \d, column \d+: arguments of .* move it there"
        ):
            load(tmp_path, text)
    with pytest.raises(ConfigError, match="must not replace one that JsonlIterableDataset compute"):
        load(tmp_path, HEAD + child.replace("ATTRIBUTE", "urls: []"))


def test_mixtures_have_no_epochs_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inner = "  - target: MergedDataset\n    percent: 1\n    max_epochs: 2\n    params:\n"
    whole = HEAD + inner + "      datasets:\n    " + FIRST
    message = "line 6, column 5: max_epochs must be an attribute of a dataset in a cyclic mixture"
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, whole)
    load(tmp_path, whole.replace("max_epochs", "length"))
    assert "zindex reads no attribute 'length' of a MergedDataset;" in caplog.messages[0]
    nested: Any = MergedDataset([Items("a", 3)])
    nested.percent, nested.max_epochs = 1, 2
    with pytest.raises(ConfigError, match="max_epochs must be of a dataset that is no mixture"):
        MergedDataset([nested])


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        (
            "[{inclde: a.yaml, percent: 1}]",
            "a mapping of 'inclde' (did you mean 'include'?), 'percent'",
        ),
        ("[{path: a.jsonl, name: a}]", "got a mapping of 'path', 'name'; correct it"),
        ("[data/a.jsonl]", "got 'data/a.jsonl'; correct it"),
        ("{a: 1}", "got a mapping of 'a'; correct it"),
        ("data", "got 'data'; correct it"),
        ("", "got None; correct it"),
    ],
)
def test_what_is_no_dataset_is_refused(tmp_path: Path, datasets: str, message: str) -> None:
    text = f"target: MergedDataset\nparams:\n  datasets: {datasets}\n"
    with pytest.raises(ConfigError, match="line 3, column 3: datasets must be a list") as error:
        load(tmp_path, text)
    assert message in str(error.value)


@pytest.mark.parametrize("setting", ['cyclic: "no"', "cyclic: 2", 'stop_on_first: "false"'])
def test_a_truth_value_must_be_one(tmp_path: Path, setting: str) -> None:
    name, _, value = setting.partition(": ")
    message = (
        f"{name} of 'MergedDataset' must be true or false, got {value.replace(chr(34), chr(39))}"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, HEAD.replace("  datasets:", f"  {setting}\n  datasets:") + FIRST)
