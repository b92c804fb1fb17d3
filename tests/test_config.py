"""The run's configuration: parsed once, and every wrong value named."""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from zindex.config import DatasetConfig, RunConfig, as_config, load_config
from zindex.errors import ConfigError
from zindex.formats import yaml_file
from zindex.plan.blend_request import BlendRequest
from zindex.plan.packing import PackingRules
from zindex.store.layout import ChunkGrid

FULL = """
# every setting
sequence_length: 4096
seed: 7
split: "98,1,1"
order: scalable
store: minimal
index: ./index
samples: {train: 1000000, valid: null}
add_extra_token_to_sequence: false
drop_last_partial_validation_sequence: false
grid: {chunk_length: 16, shard_length: 64, codec: zstd}
shuffle: uniform
surplus: 1e-2
packing: {max_documents: 64, long_documents: drop}
datasets:
  - corpora/web.zarr
  - {path: /data/code, samples: {train: 0}}
  - path: file:///data/books.zarr
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_setting(tmp_path: Path) -> None:
    run = load_config(write(tmp_path, FULL))
    assert run == RunConfig(
        datasets=(
            DatasetConfig(f"{tmp_path}/corpora/web.zarr"),
            DatasetConfig("/data/code", {"train": 0}),
            DatasetConfig("file:///data/books.zarr"),
        ),
        sequence_length=4096,
        index=f"{tmp_path}/./index",
        seed=7,
        split="98,1,1",
        samples={"train": 1000000, "valid": None},
        order="scalable",
        store="minimal",
        add_extra_token_to_sequence=False,
        drop_last_partial_validation_sequence=False,
        grid=ChunkGrid(16, 64, "zstd"),
        shuffle="uniform",
        surplus=0.01,
        packing=PackingRules(64, "drop"),
    )
    of_blends = {"blend", "max_epochs"}  # of other runs
    every = {item.name for item in fields(RunConfig)} - of_blends
    assert set(re.findall(r"^(\w+):", FULL, re.M)) == every


def test_defaults(tmp_path: Path) -> None:
    run = load_config(write(tmp_path, "sequence_length: 8\ndatasets: [web]"))
    assert run == RunConfig(
        datasets=(DatasetConfig(f"{tmp_path}/web"),),
        sequence_length=8,
        index=f"{tmp_path}/index",
        seed=1234,
        split="969,30,1",
        samples={},
        order="megatron",
        store="all",
        add_extra_token_to_sequence=True,
        drop_last_partial_validation_sequence=True,
        grid=ChunkGrid(),
    )


def test_a_configuration_is_taken_in_three_forms(tmp_path: Path) -> None:
    values = {"sequence_length": 8, "datasets": ["/web"], "index": "/index"}
    run = RunConfig((DatasetConfig("/web"),), 8, index="/index")
    path = write(tmp_path, "{sequence_length: 8, datasets: [/web], index: /index}")
    for given in (run, values, path, str(path)):
        assert as_config(given) == run


def test_paths_are_taken_from_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    run = RunConfig.from_json(
        {
            "sequence_length": 8,
            "datasets": ["web", "../web", "/web", "~/web", "file:///web", {"path": "code"}],
            "index": "~/index",
        },
        folder="/runs/a",
    )
    assert [os.path.normpath(item.path) for item in run.datasets] == [
        "/runs/a/web",
        "/runs/web",
        "/web",
        "/home/me/web",
        "file:/web",
        "/runs/a/code",
    ]
    assert run.datasets[4].path == "file:///web"
    assert run.index == "/home/me/index"


def test_samples_of_a_dataset_override_those_of_the_run() -> None:
    web, code = DatasetConfig("web"), DatasetConfig("code", {"train": 5})
    run = RunConfig((web, code), 8, samples={"train": 10, "valid": 2})
    assert [run.samples_of(web, split) for split in ("train", "valid", "test")] == [10, 2, None]
    assert [run.samples_of(code, split) for split in ("train", "valid", "test")] == [5, None, None]


@pytest.mark.parametrize(
    ("drop_last", "expected"), [(True, (True, True, True)), (False, (True, False, True))]
)
def test_only_valid_may_keep_a_partial_sample(drop_last: bool, expected: tuple[bool, ...]) -> None:
    run = RunConfig((DatasetConfig("web"),), 8, drop_last_partial_validation_sequence=drop_last)
    assert tuple(run.drop_last(split) for split in ("train", "valid", "test")) == expected


def test_split_matrix() -> None:
    run = RunConfig((DatasetConfig("web"),), 8, split="99,1,0")
    assert run.split_matrix == [(0, 0.99), (0.99, 1.0), None]


GOOD: dict[str, Any] = {"sequence_length": 8, "datasets": ["web"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_len": 8}, "the run configuration has no setting 'sequence_len' (did you mean"),
        ({7: 8}, "the run configuration has no setting '7'"),
        ({"datasets": []}, "datasets must name at least one dataset, got none"),
        ({"datasets": "web"}, "datasets must be a list of paths, got 'web'"),
        ({"datasets": None}, "datasets must be a list of paths, got None"),
        ({"datasets": {"web": 1}}, "datasets must be a list of paths, got {'web': 1}"),
        ({"datasets": [7]}, "a dataset must be a mapping, got 7"),
        ({"datasets": [None]}, "a dataset must be a mapping, got None"),
        ({"datasets": [{}]}, "a dataset must have a path, got {}"),
        ({"datasets": [{"path": 7}]}, "a dataset must have a path, got {'path': 7}"),
        ({"datasets": [{"pth": "a"}]}, "a dataset has no setting 'pth' (did you mean 'path'?)"),
        ({"datasets": [{"path": "/a", "samples": []}]}, "samples of dataset /a must be like"),
        (
            {"datasets": [{"path": "/a", "samples": {"train": -5}}]},
            "samples of dataset /a must be whole numbers or null, got -5 for train",
        ),
        ({"sequence_length": 0}, "sequence_length must be at least 1, got 0"),
        ({"sequence_length": -8}, "sequence_length must be at least 1, got -8"),
        ({"sequence_length": "8"}, "sequence_length must be a whole number, got '8'"),
        ({"sequence_length": 8.0}, "sequence_length must be a whole number, got 8.0"),
        ({"sequence_length": True}, "sequence_length must be a whole number, got True"),
        ({"sequence_length": None}, "sequence_length must be a whole number, got None"),
        ({"seed": "1"}, "seed must be a whole number, got '1'"),
        ({"split": 100}, "split must be a text, got 100"),
        ({"split": "train"}, "split must hold plain numbers with commas between them"),
        ({"split": "0,0,0"}, "split must hold one to three numbers with a sum above 0"),
        ({"split": "1,2,3,4"}, "got '1,2,3,4'"),
        ({"order": 1}, "order must be a text, got 1"),
        ({"store": False}, "store must be a text, got False"),
        ({"index": 5}, "index must be a text, got 5"),
        ({"index": None}, "index must be a text, got None"),
        ({"samples": None}, "samples must be like {train: 1000}, got None"),
        ({"samples": True}, "samples must be like {train: 1000}, got True"),
        ({"samples": "many"}, "train of samples must be a number such as 1.5B, 300M or 2e9, got"),
        ({"samples": {"valid": "1.5"}}, "must be whole numbers or null, got 1.5 for valid"),
        ({"split": [99, True]}, "split must be numbers such as [99, 1, 0], got [99, True]"),
        ({"split": [99, "1"]}, "split must be numbers such as [99, 1, 0], got [99, '1']"),
        ({"split": [-1, 2]}, "split must hold plain numbers with commas between them"),
        ({"samples": {"dev": 1}}, "must name splits of ('train', 'valid', 'test'), got 'dev'"),
        ({"samples": {"train": 1.5}}, "must be whole numbers or null, got 1.5 for train"),
        ({"samples": {"test": -1}}, "must be whole numbers or null, got -1 for test"),
        ({"samples": {"train": True}}, "must be whole numbers or null, got True for train"),
        (
            {"add_extra_token_to_sequence": 1},
            "add_extra_token_to_sequence must be true or false, got 1",
        ),
        ({"drop_last_partial_validation_sequence": "no"}, "must be true or false, got 'no'"),
        ({"grid": 5}, "grid must be a mapping, got 5"),
        ({"grid": {"chunk": 5}}, "grid has no setting 'chunk'; it has chunk_length, shard_length"),
        ({"grid": {"chunk_length": "5"}}, "chunk_length must be a whole number, got '5'"),
        ({"grid": {"chunk_length": 2.5}}, "chunk_length must be a whole number, got 2.5"),
        ({"grid": {"shard_length": None}}, "shard_length must be a whole number, got None"),
        ({"grid": {"codec": 3}}, "codec must be a text, got 3"),
        ({"grid": {"codec": "gzip"}}, "codec must be one of none, zstd, got 'gzip'"),
        ({"grid": {"chunk_length": 7}}, "or --shard-nbytes) must be a multiple of chunk_length"),
    ],
)
def test_wrong_values_are_named(changes: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig.from_json(GOOD | changes)


def test_settings_that_must_be_there() -> None:
    with pytest.raises(ConfigError, match=r"sequence_length must be set: .*4096"):
        RunConfig.from_json({"datasets": ["web"]})
    with pytest.raises(ConfigError, match="datasets must be a list of paths, got None"):
        RunConfig.from_json({"sequence_length": 8})
    with pytest.raises(ConfigError, match=r"the run configuration must be a mapping, got \[\]"):
        RunConfig.from_json([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold a mapping of settings, got nothing"),
        ("- web", "must hold a mapping of settings, got list"),
        ("sequence_length", "must hold a mapping of settings, got str"),
        ("a: [", "must hold YAML: while parsing a flow node"),
        ("a: b: c", "must hold YAML: mapping values are not allowed here"),
        ("a: *b", "must hold YAML: found undefined alias 'b'"),
        ("--- a\n--- b", "must hold YAML: expected a single document"),
        ("{[a]: b}", "must hold YAML: while constructing a mapping"),
        (b"\xff\xfe\xfd", "must hold YAML: "),
        (b"MMIDIDX\0\0", "must hold YAML: unacceptable character"),
        ("a: 2026-99-99", "must hold YAML: month must be in 1..12"),
        ("a: " + "9" * 5000, "must hold YAML: Exceeds the limit"),
        ("a: !!int ''", "must hold YAML: "),
        ("a: !!bool x", "must hold YAML: "),
        ("a: !!float x", "must hold YAML: "),
        ("a: !!timestamp x", "must hold YAML: "),
        ("a: !!python/object/apply:os.system ['exit 1']", "could not determine a constructor"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: !!python/object:os.PathLike {}", "could not determine a constructor"),
        ("a: !env HOME", "could not determine a constructor for the tag '!env'"),
    ],
)
def test_files_that_hold_no_settings_are_refused(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError, match=re.escape(str(path)) + "[ ,].*" + re.escape(message)):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("{GOOD}datsets: []", 3, "no setting 'datsets' (did you mean 'datasets'?)"),
        ("{GOOD}order: scalble", 3, "got 'scalble' (did you mean 'scalable'?)"),
        ("{GOOD}samples: 1X", 3, "train of samples must be a number such as 1.5B"),
        ("{GOOD}grid:\n  chunk_lenght: 5", 4, "no setting 'chunk_lenght' (did you mean"),
        ("{GOOD}packing:\n  max_documents: 0", 4, "max_documents of packing must"),
        ("sequence_length: 8\ndatasets:\n- path: a\n  wieght: 1", 4, "did you mean 'weight'?"),
        ("sequence_length: 8\ndatasets:\n- {path: a, weight: x}", 3, "weight of dataset"),
        ("sequence_length: 8\ndatasets: [a, a]", 2, "datasets must name each path once"),
        ("{GOOD}seed: 1\nseed: 2", 4, "settings must differ, 'seed' is on line 3, too"),
        ("{GOOD}seed: [1", 3, "must hold YAML: while parsing"),
        ("{GOOD}<<: {seed: 1, sead: 2}", 3, "no setting 'sead' (did you mean 'seed'?)"),
    ],
)
def test_errors_have_the_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = write(tmp_path, text.replace("{GOOD}", "sequence_length: 8\ndatasets: [a]\n"))
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert str(caught.value).count(str(path)) == 1


@pytest.mark.parametrize(
    ("text", "split"),
    [("[99, 1, 0]", "99,1,0"), ("[0.99, 0.00001]", "0.99,0.00001"), ("'99,1,0'", "99,1,0")],
)
def test_a_split_may_be_a_list(tmp_path: Path, text: str, split: str) -> None:
    path = write(tmp_path, f"sequence_length: 8\ndatasets: [a]\nsplit: {text}\n")
    assert load_config(path).split == split


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("1M", {"train": 1_000_000}),
        ("5", {"train": 5}),
        ("{train: 1.5K, valid: 2e1, test: null}", {"train": 1500, "valid": 20, "test": None}),
    ],
)
def test_samples_may_have_units(tmp_path: Path, text: str, samples: dict[str, int | None]) -> None:
    path = write(
        tmp_path,
        f"sequence_length: 8\ndatasets: [{{path: a, samples: {text}}}]\nsamples: {text}\n",
    )
    config = load_config(path)
    assert config.samples == config.datasets[0].samples == samples


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "no.yaml", tmp_path):
        message = f"a run needs its YAML file, cannot read {path}"
        with pytest.raises(ConfigError, match=re.escape(message)):
            load_config(path)


def test_a_large_file_is_not_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "corpus.bin"
    with open(path, "wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ConfigError, match=r"corpus.bin must be YAML of at most 4194304 bytes"):
        load_config(path)


def make_bomb(entry: str, *, num_levels: int) -> str:
    """Return YAML whose every level names the one before ten times."""
    lines = ["a0: &a0 {k: lol}"]
    for level in range(1, num_levels):
        names = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {entry.format(names)}")
    return "\n".join(lines)


@pytest.mark.parametrize("entry", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merges"])
def test_a_bomb_of_aliases_is_refused(tmp_path: Path, entry: str) -> None:
    path = write(tmp_path, make_bomb(entry, num_levels=12))
    with pytest.raises(ConfigError, match=r"must hold YAML: it may have at most 20 aliases"):
        load_config(path)


@pytest.mark.parametrize("setting", ["datasets", "samples", "grid", "seed", "surplus", "packing"])
def test_large_values_are_shown_in_short(setting: str) -> None:
    value: Any = ["lol"]
    for _ in range(30):
        value = [value] * 10  # 10^30 of them
    with pytest.raises(ConfigError, match=r"\.\.\.") as caught:
        RunConfig.from_json(GOOD | {setting: [value] if setting == "datasets" else value})
    assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize("content", ["[" * 100_000, "a: " + "{a: " * 10_000, "- " * 50_000])
def test_deep_nesting_is_refused(tmp_path: Path, content: str) -> None:
    """A parser that takes quadratic time would run into the timeout of the tests."""
    with pytest.raises(ConfigError, match=r"must hold YAML that is nested less deeply"):
        load_config(write(tmp_path, content))


def test_a_few_aliases_are_welcome(tmp_path: Path) -> None:
    text = "sequence_length: 8\ndatasets:\n- {path: a, samples: &s {train: 5}}\n"
    text += "- {path: b, samples: *s}\n- {path: c, samples: {<<: *s, valid: 1}}\n"
    run = load_config(write(tmp_path, text))
    assert [item.samples for item in run.datasets] == [
        {"train": 5},
        {"train": 5},
        {"train": 5, "valid": 1},
    ]
    assert yaml_file._MAX_ALIASES >= 3


def test_a_dataset_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="datasets must name each path once, got a twice"):
        RunConfig.from_json({"datasets": ["a", "b", {"path": "a"}], "sequence_length": 8})


SHARES = """
sequence_length: 4
samples: {train: 1000, valid: 10}
max_epochs: 4
add_extra_token_to_sequence: false
datasets:
  - {path: /web, weight: 0.7}
  - {path: /old, weight: 0}
  - {path: /code, weight: 1e-1, max_epochs: 2.5}
"""


def test_weights(tmp_path: Path) -> None:
    run = load_config(write(tmp_path, SHARES))
    web, old, code = run.datasets
    assert (web.weight, old.weight, code.weight) == (0.7, 0, 0.1)
    assert (run.share_kind, run.blend_kind) == ("weight", "weight")
    assert run.members == (web, code)  # a share of 0 leaves a dataset out
    assert run.blend_request == BlendRequest(
        kind="weight",
        datasets=("/web", "/code"),
        shares=(0.7, 0.1),
        max_epochs=(4, 2.5),
        samples={"train": 1000, "valid": 10},
        sequence_length=4,
        extra_token=0,
        order="megatron",
        surplus=0.005,
        drop_last_partial_validation_sequence=True,
    )


def test_tokens(tmp_path: Path) -> None:
    text = "{sequence_length: 4, order: scalable, surplus: 0.1, datasets: ["
    text += "{path: a, tokens: 1.5B}, {path: b, tokens: 2.0e9}, {path: c, tokens: 2.0e+9}, "
    text += "{path: d, tokens: 3_000}, {path: e, tokens: '0'}]}"
    run = load_config(write(tmp_path, text))
    assert run.share_kind == "tokens"
    assert [item.tokens for item in run.datasets] == [1_500_000_000, 2 * 10**9, 2 * 10**9, 3000, 0]
    assert all(type(item.tokens) is int for item in run.datasets)
    request = run.blend_request
    assert request is not None
    assert request.shares == (1_500_000_000, 2 * 10**9, 2 * 10**9, 3000)
    assert request.max_epochs == (None,) * 4
    assert (request.order, request.surplus, request.extra_token) == ("scalable", 0.1, 1)


def test_epochs() -> None:
    values = {"datasets": [{"path": "a", "epochs": "2.5"}, {"path": "b", "epochs": 1}]}
    run = RunConfig.from_json(GOOD | values)
    assert run.share_kind == "epochs"
    assert [item.share for item in run.datasets] == [2.5, 1]


def test_sizes() -> None:
    run = RunConfig.from_json(GOOD | {"blend": "sizes", "datasets": ["a", {"path": "b"}]})
    assert (run.share_kind, run.blend_kind) == (None, "sizes")
    assert run.members == run.datasets
    assert run.blend_request is not None
    assert run.blend_request.shares == (1, 1)


def test_without_shares_there_is_no_blend() -> None:
    run = RunConfig.from_json(GOOD)
    assert (run.share_kind, run.blend_kind, run.blend_request) == (None, None, None)
    assert run.members == run.datasets
    assert (run.datasets[0].share_kind, run.datasets[0].share) == (None, None)


def of(*datasets: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return settings of a run of datasets /a, /b, ..., given without their paths."""
    paths = ({"path": f"/{name}"} for name in "abcdefgh")
    named = [path | dataset for path, dataset in zip(paths, datasets, strict=False)]
    return {"datasets": named, "samples": {"train": 10}} | settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            of({"weight": 1, "tokens": 2}),
            "must have one share, got weight and tokens for /a; leave",
        ),
        (of({"weight": 1, "tokens": 2, "epochs": 0}), "got weight and tokens and epochs for /a"),
        (of({"weight": 1}, {"tokens": 2}), "got weight for /a and tokens for /b; a share of 0"),
        (of({"epochs": 1}, {}), "kind of share, got epochs for /a and no share for /b"),
        (of({}, {}, {"epochs": 1}), "kind of share, got no share for /a and epochs for /c"),
        (of({"weight": 0}, {"weight": 0.0}), "one dataset must have a weight above 0 at least"),
        (of({"tokens": "many"}), "tokens of dataset /a must be a number such as 1.5B, 300M or 2e9"),
        (of({"tokens": 1.5}), "tokens of dataset /a must be a whole number from 0 to 1e+18, got"),
        (of({"weight": -1}), "weight of dataset /a must be a number from 0 to 1e+300, got -1"),
        (of({"weight": float("nan")}), "weight of dataset /a must be a number from 0 to 1e+300"),
        (of({"weight": [1]}), "weight of dataset /a must be a number from 0 to 1e+300, got [1]"),
        (of({"epochs": 1e9}), "epochs of dataset /a must be a number from 0 to 1e+06, got"),
        (of({"weight": 1, "max_epochs": 0}), "max_epochs of dataset /a must be a number above 0"),
        (
            of({"weight": 1, "samples": {"train": 1}}),
            "for the run, got samples of dataset /a; leave",
        ),
        (of({"samples": {}}, blend="sizes"), "are set for the run, got samples of dataset /a"),
        (of({"weight": 1}, samples={}), "a blend by weights needs samples.train, got none; set it"),
        (of({"weight": 1}, samples={"train": None}), "by weights needs samples.train, got none"),
        (of({"weight": 1}, max_epochs=0), "max_epochs must be a number above 0 and at most 1e+06"),
        (of({"weight": 1}, max_epochs="all"), "max_epochs must be a number such as 2.5, got 'all'"),
        (
            of({}, max_epochs=4),
            "max_epochs needs shares, got max_epochs 4 without any; set weight,",
        ),
        (of({}, max_epochs=4, blend="sizes"), "max_epochs needs shares, got max_epochs 4 without"),
        (of({"max_epochs": 4}), "max_epochs needs shares, got it for /a without any; set weight,"),
        (of({"max_epochs": 4}, blend="sizes"), "max_epochs needs shares, got it for /a without"),
        (of({"weight": 1}, surplus=-0.1), "surplus must be a number from 0 to 1, got -0.1"),
        (of({"weight": 1}, surplus=None), "surplus must be a number from 0 to 1, got None"),
        (
            of({"weight": 1}, blend="sizes"),
            "blend: sizes is for datasets without shares, got weight",
        ),
        (of({}, blend="exhaustive"), "blend must be 'sizes', got 'exhaustive'; for other blends"),
        (of({}, blend=True), "blend must be a text, got True"),
        (of({}, shuffle="random"), "shuffle must be one of keyed, uniform, got 'random'"),
        (of({}, shuffle=1), "shuffle must be a text, got 1"),
        (of({}, shuffle="uniform"), "shuffle: uniform needs order: scalable, got order: megatron"),
    ],
)
def test_wrong_blends_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        RunConfig.from_json(GOOD | changes)


def test_shares_of_a_configuration_made_in_python_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"weight of dataset a must be a number .*, got 'heavy'"):
        DatasetConfig("a", weight="heavy")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"tokens of dataset a must be a whole number .*, got 2.0"
    ):
        DatasetConfig("a", tokens=2.0)  # type: ignore[arg-type]


PACKED = {"packing": {}, "samples": {"train": 9, "valid": 0, "test": 0}}


def test_packing_needs_no_settings() -> None:
    assert RunConfig.from_json(GOOD).packing is None
    assert RunConfig.from_json(GOOD | {"packing": None}).packing is None
    assert RunConfig.from_json(GOOD | {"packing": {}}).packing == PackingRules(256, "split")


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (True, "packing must be a mapping, got True"),
        ({"max": 3}, "packing has no setting 'max'; it has max_documents, long_documents"),
        ({"max_documents": 0}, r"packing must be a whole number in \[1, 1,048,576\], got 0"),
        ({"max_documents": 2**20 + 1}, "got 1048577"),
        ({"max_documents": 1.5}, r"max_documents of packing must be a whole number .*, got 1.5"),
        ({"max_documents": True}, r"max_documents of packing must be a whole number .*, got True"),
        ({"long_documents": "cut"}, "must be 'split', 'truncate' or 'drop', got 'cut'"),
        ({"long_documents": []}, r"must be 'split', 'truncate' or 'drop', got \[\]"),
    ],
)
def test_wrong_packing(packing: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_json(GOOD | {"packing": packing})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blend": "sizes"}, "packing needs a blend by weights, got one by sizes"),
        ({"datasets": [{"path": "a", "tokens": 9}]}, "needs a blend by weights, got one by tokens"),
        ({"datasets": [{"path": "a", "epochs": 9}]}, "needs a blend by weights, got one by epochs"),
        (
            {"datasets": [{"path": "a", "weight": 1}], "max_epochs": 2},
            "packing takes no max_epochs",
        ),
        (
            {"datasets": [{"path": "a", "weight": 1, "max_epochs": 2}]},
            "packing takes no max_epochs",
        ),
        (
            {"datasets": [{"path": "a", "weight": 1}], "samples": {"train": 9, "test": 0}},
            "a blend with packing needs samples.valid, got none; set it, to 0 for no valid",
        ),
    ],
)
def test_packed_blends_need_to_know_their_size(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_json(GOOD | PACKED | changes)


def test_a_packed_blend_by_weights() -> None:
    datasets = [{"path": "a", "weight": 1}, {"path": "b", "weight": 0}]
    assert RunConfig.from_json(GOOD | PACKED | {"datasets": datasets}).packing is not None
