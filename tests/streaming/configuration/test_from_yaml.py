"""YAML files become objects, by every rule of the format, or errors that name file and line."""

import multiprocessing
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_fresh
from zindex.errors import ConfigError, StoreNotFoundError
from zindex.processing.collate import PadCollate
from zindex.streaming.configuration.from_yaml import instantiate_from_yaml
from zindex.streaming.configuration.registry import register


class Box:
    """Keeps what it is made of."""

    def __init__(self, **params: Any) -> None:
        self.params = params


class Strict:
    """Takes two arguments, has a method, a property and a plain attribute of the class."""

    percent = 1.0

    def __init__(self, path: str, seed: int = 0) -> None:
        if seed < 0:
            raise ValueError(f"seed {seed}")
        self.path = path
        self.seed = seed

    @property
    def size(self) -> int:
        return 3

    def read(self) -> int:
        return 4


class Slotted:
    __slots__ = ()


def make_list(stop: int = 2) -> list[int]:
    return list(range(stop))


TARGETS = {
    "Box": Box,
    "Strict": Strict,
    "Slotted": Slotted,
    "make_list": make_list,
    "seven": 7,
    "give_class": lambda: Box,
}


MORE = {"PadCollate": PadCollate}


def write(folder: Path, text: str, name: str = "a.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(folder: Path, text: str, **settings: Any) -> Any:
    return instantiate_from_yaml(write(folder, text), **({"targets": TARGETS} | settings))


def test_target_and_params_make_an_object_with_attributes(tmp_path: Path) -> None:
    box = load(
        tmp_path,
        """
name: my set
percent: 0.25
length: 4270 # images
target: Box
params:
  path: data/test0{00..35}.tar
  names: ["a", b]
  inner: {target: Strict, params: {path: p}, name: x}
  plain: {seed: 3, inner: {target: make_list, params: {stop: 3}}}
""",
    )
    assert (box.name, box.percent, box.length) == ("my set", 0.25, 4270)
    assert box.params["path"] == "data/test0{00..35}.tar"
    assert box.params["names"] == ["a", "b"]
    assert isinstance(box.params["inner"], Strict)
    assert (box.params["inner"].path, box.params["inner"].name) == ("p", "x")
    assert box.params["plain"] == {"seed": 3, "inner": [0, 1, 2]}


@pytest.mark.parametrize("params", ["null", "{}", "~", ""])
def test_empty_params_call_without_arguments(tmp_path: Path, params: str) -> None:
    assert load(tmp_path, f"target: make_list\nparams: {params}") == [0, 1]


def test_a_target_without_params_is_the_object_itself(tmp_path: Path) -> None:
    assert load(tmp_path, "target: make_list") is make_list
    assert load(tmp_path, "{target: Box, params: {fn: {target: Box}}}").params["fn"] is Box


def test_other_values_are_themselves(tmp_path: Path) -> None:
    text = """
- {a: 1, 2: b, true: ~, 0.5: {}}
- [yes, No, on, OFF, null]
- [1_000, 0x1f, 0o17, 0b11, -5, +5, 0, 18446744073709551615]
- [1.5, 1e-5, 1E5, .5, -.inf, 1., -1.5e3]
- [12:30, 2024-01-01, =, 1.2.3, '5', "yes", v1, 0b, 1__0]
- !!str 5
- !!float 5
"""
    made = load(tmp_path, text)
    assert made[0] == {"a": 1, 2: "b", True: None, 0.5: {}}
    assert made[1] == [True, False, True, False, None]
    assert made[2] == [1000, 31, 15, 3, -5, 5, 0, 2**64 - 1]
    assert made[3] == [1.5, 1e-5, 1e5, 0.5, float("-inf"), 1.0, -1500.0]
    assert made[4] == ["12:30", "2024-01-01", "=", "1.2.3", "5", "yes", "v1", "0b", 10]
    assert made[5:] == ["5", 5.0]
    assert isinstance(made[6], float)


def test_variables_keep_their_types(tmp_path: Path) -> None:
    nested = {"a": [1, (2, None)]}
    variables = {"n": 3, "x": 1e-4, "flag": True, "none": None, "nested": nested, "t": "${x}"}
    variables |= {"root": tmp_path, "with.dots-and_1": 1}
    made = load(
        tmp_path,
        """
- ${variables:n}
- ${variables:x}
- "${ variables : flag }"
- ${variables:none}
- ${variables:nested}
- ${variables:nested}
- ${variables:t}
- a${variables:n}-${variables:t}.tar
- ${variables:root}
- ${variables:root}/x
- ${variables:with.dots-and_1}
""",
        variables=variables,
    )
    assert made[:4] == [3, 1e-4, True, None]
    assert made[4] == nested
    assert made[4] is not nested
    assert made[4]["a"] is not made[5]["a"]
    assert made[6:8] == ["${x}", "a3-${x}.tar"]
    assert made[8:] == [tmp_path, f"{tmp_path}/x", 1]


def test_dynamic_objects_are_handed_on(tmp_path: Path) -> None:
    thing = object()
    made = load(
        tmp_path,
        "[{target: Box, params: {a: '${dynamic_objs:thing}'}, b: '${dynamic_objs:thing}'}]",
        dynamic_objs={"thing": thing},
    )
    assert made[0].params["a"] is made[0].b is thing


def test_include_is_relative_to_its_file_and_attributes_go_over_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        "{target: Box, params: {n: '${variables:n}', m: 1}, name: in, percent: 1}",
        "d/in.yaml",
    )
    write(
        tmp_path, "include: in.yaml\npercent: 2\nextra: {target: make_list, params:}", "d/mid.yaml"
    )
    write(tmp_path, "[1, {a: 2}]", "plain.yaml")
    text = """
target: Box
params:
  datasets:
  - include: d/mid.yaml
    percent: 0.25
  - include: d/in.yaml
    name: other
    params: {m: 5}
  - include: ${variables:file}
"""
    made = load(tmp_path, text, variables={"n": 9, "file": "plain.yaml"}).params["datasets"]
    first, second, third = made
    assert (first.name, first.percent, first.extra, first.params) == (
        "in",
        0.25,
        [0, 1],
        {"n": 9, "m": 1},
    )
    assert (second.name, second.percent, second.params) == ("other", 1, {"n": 9, "m": 5})
    assert third == [1, {"a": 2}]


def test_include_folders_open_more(tmp_path: Path) -> None:
    write(tmp_path, "7", "shared/in.yaml")
    path = write(tmp_path, "[include: ../shared/in.yaml]", "runs/a.yaml")
    with pytest.raises(ConfigError, match="leads out of it; move the file, or open its folder by"):
        instantiate_from_yaml(path)
    assert instantiate_from_yaml(path, include_folders=[tmp_path / "shared"]) == [7]
    assert instantiate_from_yaml(path, include_folders=(str(tmp_path),)) == [7]


def test_the_first_file_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path, "[include: in.yaml]", "versions/1/a.yaml")
    write(tmp_path, "7", "in.yaml")
    (tmp_path / "a.yaml").symlink_to(tmp_path / "versions/1/a.yaml")
    assert instantiate_from_yaml(tmp_path / "a.yaml") == [7]


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "[include: in.yaml]")
    write(tmp_path, "7", "in.yaml")
    monkeypatch.chdir(tmp_path)
    assert instantiate_from_yaml("a.yaml") == [7]


def test_anchors_and_merges_create_separate_objects(tmp_path: Path) -> None:
    made = load(
        tmp_path,
        """
common: &common {a: 1, b: 2}
more: &more {b: 3, c: 4}
first: &first {target: Box, params: {<<: [*common, *more], a: 0}}
second: *first
third: {<<: *first, name: x}
""",
    )
    assert made["first"].params == {"a": 0, "b": 2, "c": 4}
    assert made["second"].params == made["first"].params
    assert made["second"] is not made["first"]
    assert made["third"].name == "x"


def test_the_same_class_each_time_and_objects_pickle(tmp_path: Path) -> None:
    text = "- {target: Strict, params: {path: a}, name: x}\n- {target: Strict, params: {path: b}}"
    first, second = load(tmp_path, text)
    assert type(first) is type(second) is Strict
    again = pickle.loads(pickle.dumps(first))
    assert (again.path, again.name) == ("a", "x")
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.map(read_name, [first]) == ["x"]


def read_name(made: Strict) -> str:
    return made.name  # type: ignore[attr-defined]


def test_calls_within_calls_and_in_threads(tmp_path: Path) -> None:
    inner = write(tmp_path, "${variables:x}", "inner.yaml")

    def nest(depth: int) -> list[Any]:
        if depth == 0:
            return [instantiate_from_yaml(inner, {"x": 1})]
        targets = {"nest": nest}
        text = f"{{target: nest, params: {{depth: {depth - 1}}}}}"
        path = write(tmp_path, text, f"nest{depth}.yaml")
        return [instantiate_from_yaml(path, {"x": 2}, targets=targets)]

    assert nest(3) == [[[[1]]]]
    results: dict[int, Any] = {}

    def run(number: int) -> None:
        results[number] = [instantiate_from_yaml(inner, {"x": number}) for _ in range(10)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [number] * 10 for number in range(4)}


def test_registered_names(tmp_path: Path) -> None:
    register("tests.from_yaml.Strict")(Strict)
    made = instantiate_from_yaml(
        write(tmp_path, "{target: tests.from_yaml.Strict, params: {path: a}}")
    )
    assert isinstance(made, Strict)


def test_allowed_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "", "opened_by_test/__init__.py")
    body = """
import os
from os import system
from json import dumps
from opened_by_test.other import shared
__all__ = ["dumps", "Made"]
class Made:
    class Inner: pass
    def __init__(self, x=0):
        self.x = x
def _hidden(): pass
"""
    write(tmp_path, body, "opened_by_test/sets.py")
    write(tmp_path, "def shared():\n    return 5\n", "opened_by_test/other.py")
    monkeypatch.syspath_prepend(tmp_path)

    def get(target: str, allowed: tuple[str, ...] = ("opened_by_test",)) -> Any:
        return load(tmp_path, f"{{target: {target}, params: }}", allow_imports=allowed)

    first, second = get("opened_by_test.sets.Made"), get("opened_by_test.sets.Made")
    assert type(first) is type(second)
    assert get("opened_by_test.sets.shared") == 5
    assert load(
        tmp_path, "target: opened_by_test.sets.dumps", allow_imports=("opened_by_test.sets",)
    )
    refused = {
        "opened_by_test.sets.system": "'system' of opened_by_test.sets comes from posix",
        "opened_by_test.sets.os": "'os' of opened_by_test.sets comes from elsewhere",
        "opened_by_test.sets.Mad": "it has no 'Mad' (did you mean 'Made'?)",
        "opened_by_test.sets._hidden": "a target must be named by public names joined by dots",
        "opened_by_test.sets.Made.Inner": "no module 'opened_by_test.sets.Made'",
        "opened_by_test.sets.os.system": "no module 'opened_by_test.sets.os'",
        "opened_by_test.no.Made": "there is no module 'opened_by_test.no'; check the name, "
        "and install it or set PYTHONPATH to its folder",
        "opened_by_test2.sets.Made": "give it as targets={'opened_by_test2.sets.Made'",
        "json.dumps": "or its module as allow_imports=('json',) (--allow-import json)",
    }
    for name, message in refused.items():
        with pytest.raises(ConfigError, match=re.escape(message)):
            get(name)
    with pytest.raises(ConfigError, match=r"'shared' of opened_by_test\.sets comes from"):
        get("opened_by_test.sets.shared", ("opened_by_test.sets",))


def test_an_error_of_an_opened_module_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "import no_such_module_at_all", "broken_by_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all") as caught:
        load(tmp_path, "target: broken_by_test.X", allow_imports=("broken_by_test",))
    assert caught.value.__notes__ == [
        f"{tmp_path}/a.yaml, line 1, column 9: of the target 'broken_by_test.X'"
    ]


REFUSED = {
    "a: ${variables:max_txt_len}": "line 1, column 4: ${variables:max_txt_len} must be given, "
    "variables has max_text_len (did you mean 'max_text_len'?); pass variables={'max_txt_len'"
    ": ...} (--set max_txt_len=...), or correct the name",
    "\na:\n- ${dynamic_objs:x}": "line 3, column 3: ${dynamic_objs:x} must be given, dynamic_objs "
    "has thing; pass dynamic_objs={'x': ...} (--object x=MODULE.NAME), or correct",
    "a: x${dynamic_objs:thing}": "line 1, column 4: a dynamic object must be a whole value",
    "a: ${oc.env:HOME}": "${...} must be ${variables:NAME} or ${dynamic_objs:NAME}, got "
    "'${oc.env:HOME}'",
    "a: ${variables:max_text_len}${": "${...} must be",
    "a: x${other.key}": "${...} must be",
    "a: b${variables:nested}": "must be a text or a number, 'nested' is list; use it as a whole",
    "${variables:max_text_len}: 1": "a key must be written out, got '${variables:max_text_len}'",
    "target: Strct\nparams:": "line 1, column 9: a target must be a name that is open to files, "
    "got 'Strct' (did you mean 'Strict'?); give it as targets={'Strct': ...}, or register it",
    "target: zindex.streaming.MergeDataset": "(did you mean 'zindex.streaming.MergedDataset'",
    "target: 5": "a target must be a name, got a value of another kind",
    "target: ${variables:nested}": "a target must be written out, got",
    "target: Box\nname: x": "line 2, column 1: a target without params must be alone, 'Box' "
    "is next to 'name'; all who use the object itself share its attributes",
    "target: Box\nparmas: {}": "is next to 'parmas' (did you mean 'params'?)",
    "params: {}\ntaget: Box": "line 1, column 1: params must be next to a target or an include, "
    "got 'taget' (did you mean 'target'?)",
    "target: Box\nparams: [1]": "line 2, column 9: params must be a mapping of arguments, or null "
    "for none, got a list",
    "target: Box\nparams: 5": "got a single value; name them",
    "target: Box\nparams: {a b: 1}": "named by letters, digits and underscores, beginning with a "
    "letter, got 'a b'",
    "target: Box\nparams: {1: 1}": "beginning with a letter, got 1",
    "target: Box\nparams:\n__class__: x": "line 3, column 1: an argument or an attribute must be",
    "target: Strict\nparams: {path: a, sed: 1}": "line 2, column 19: an argument must be one that "
    "'Strict' takes (path, seed), got 'sed' (did you mean 'seed'?); correct it",
    "target: Strict\nparams:": "line 1, column 9: params must hold all that 'Strict' needs: "
    "missing a required argument: 'path'; add it",
    "target: seven\nparams:": "must be a class or a function, 'seven' names int; remove params",
    "target: Strict\nparams: {path: a}\nread: 1": "line 3, column 1: an attribute must not hide a "
    "method, Strict has 'read'",
    "target: Strict\nparams: {path: a}\nsize: 1": "the object must take the attribute 'size', "
    "Strict does not",
    "target: Slotted\nparams:\nname: x": "Slotted does not: 'Slotted' object has no attribute",
    "target: give_class\nparams:\nname: x": "only an object of its own must be given attributes, "
    "got 'name' for a type that others share",
    "include: a.yaml": "files must not include each other in a circle: a.yaml -> a.yaml",
    "include: no.yaml": "an include must be a file, there is none at",
    "include: .": "an include must be a file, there is none at",
    "include: 5": "an include must be the path of a YAML file, got another value",
    "include: ''": "an include must be the path of a YAML file",
    "include: [a]": "an include must be the path of a YAML file",
    "include: ${dynamic_objs:thing}": "an include must be the path of a YAML file",
    "include: s3://bucket/a.yaml": "an include must be a file of this machine, got 's3://bucket",
    "{include: a.yaml, target: Box}": "a target must not be next to an include",
    "{include: list.yaml, percent: 1}": "what is included must be a target with params, to be "
    "given 'percent', but 'list.yaml' describes something else",
    "{include: shared.yaml, percent: 1}": "'shared.yaml' describes something else",
    "{include: list.yaml, params: 1}": "params must be a mapping of arguments",
    "": "line 1, column 1: must describe a dataset, it is empty",
    "a: 1\nb: 2\na: 3": "line 3, column 1: keys must differ, 'a' is repeated; remove one of them",
    "? [a]\n: b": "a key must be a text or a number, got a list or a mapping",
    "a: [": "line 1, column 5: must be YAML: while parsing a flow node",
    "a: *b": "line 1, column 4: must be YAML: found undefined alias 'b'",
    "--- 1\n--- 2": "expected a single document in the stream but found another document",
    "a: 010": "a number must not begin with 0, got 010; put it in quotes if it is a text, or write "
    "0o10 for base 8",
    "a: !!int x": "'x' must fit its tag 'int'; leave the tag out",
    "a: !!bool 5": "'5' must fit its tag 'bool'",
    "a: !!null 5": "'5' must fit its tag 'null'",
    "a: !!map [1]": "a list must not be tagged as 'tag:yaml.org,2002:map'",
    "a: !!seq {}": "a mapping must not be tagged as 'tag:yaml.org,2002:seq'",
    "a: {<<: 5}": "<< must name a mapping or a list of mappings; use an alias of one",
    "a: {<<: [{}, 5]}": "<< must name a mapping or a list of mappings",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_name_the_line(tmp_path: Path, text: str) -> None:
    write(tmp_path, "[1]", "list.yaml")
    write(tmp_path, "target: Box", "shared.yaml")
    with pytest.raises(ConfigError, match=re.escape(REFUSED[text])) as caught:
        load(
            tmp_path,
            text,
            variables={"max_text_len": 5, "nested": [1]}
            if "nested" in text
            else {"max_text_len": 5},
            dynamic_objs={"thing": object()},
        )
    assert str(caught.value).startswith(f"{tmp_path / 'a.yaml'}, line ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variables": {"x": object()}}, "variables['x'] has object; pass objects by dynamic_objs"),
        ({"variables": {"x": [{1: {2}}]}}, "variables['x'] has set"),
        ({"allow_imports": "os"}, "allow_imports must be a list, got the text 'os'"),
        ({"allow_imports": ("",)}, "a target must be named by public names joined by dots, got ''"),
        ({"allow_imports": ("a._b",)}, "joined by dots, got 'a._b'"),
        ({"include_folders": "/"}, "include_folders must be a list, got the text '/'"),
    ],
)
def test_refused_settings(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, "1", **settings)


def test_a_variable_that_holds_itself(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match=re.escape("variables['x'] is deeper or holds itself")):
        load(tmp_path, "1", variables={"x": loop})


def test_a_refused_target_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="joined by dots, got 'a b'"):
        instantiate_from_yaml(write(tmp_path, "1"), targets={"a b": 1})


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="datasets need their YAML file, cannot read"):
        instantiate_from_yaml(tmp_path / "a.yaml")


def test_an_error_of_a_target_is_unchanged_with_its_place(tmp_path: Path) -> None:
    text = "- 1\n- {target: Strict, params: {path: a, seed: -1}}"
    with pytest.raises(ValueError, match=r"^seed -1") as caught:
        load(tmp_path, text)
    assert caught.value.__notes__ == [
        f"{tmp_path}/a.yaml, line 2, column 12: of the target 'Strict'"
    ]


def test_an_error_of_zindex_has_the_place_in_its_message(tmp_path: Path) -> None:
    where = f"{tmp_path}/a.yaml, line 1, column 9: of the target "
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "target: PadCollate\nparams: {keys: [a], multiple_of: 0}", targets=MORE)
    assert (
        str(caught.value)
        == f"{where}'PadCollate': multiple_of must be a whole number of at least 1, got 0"
    )
    with pytest.raises(StoreNotFoundError, match=re.escape(f"{where}'ZarrText': ")):
        load(tmp_path, "target: ZarrText\nparams: {path: no.zarr, sequence_length: 2}", targets={})


def test_all_is_checked_before_anything_is_made(tmp_path: Path) -> None:
    made: list[int] = []

    class Counted:
        def __init__(self, number: int) -> None:
            made.append(number)

    first = "- {target: Counted, params: {number: 1}}\n- "
    for last in (
        "${variables:no}",
        "{target: no}",
        "{target: Counted, params: }",
        "{target: Counted, params: {numbr: 1}}",
        "{include: no.yaml}",
        "{target: json.no, params: }",
    ):
        with pytest.raises(ConfigError):
            instantiate_from_yaml(
                write(tmp_path, first + last), targets={"Counted": Counted}, allow_imports=("json",)
            )
    assert made == []


def test_upstream_names_are_ours(tmp_path: Path) -> None:
    for name in ("cogdata.streaming.mixed", "cogdata.streaming.to_state", "zindex.build"):
        with pytest.raises(ConfigError, match="a target must be a name that is open to files"):
            load(tmp_path, f"target: {name}")


def test_other_users_of_yaml_are_left_alone(tmp_path: Path) -> None:
    code = (
        "import yaml; before = str(yaml.SafeLoader.yaml_implicit_resolvers);"
        "from zindex.streaming.configuration.from_yaml import instantiate_from_yaml;"
        f"print(instantiate_from_yaml({str(write(tmp_path, '[1e-5, 2024-01-01]'))!r}));"
        "assert str(yaml.SafeLoader.yaml_implicit_resolvers) == before;"
        "import sys; print(sorted({'torch', 'omegaconf', 'numpy'} & set(sys.modules)))"
    )
    done = run_fresh("-c", code, check=True)
    assert done.stdout == "[1e-05, '2024-01-01']\n[]\n"
