"""States of a mixture that has changed since."""

import gzip
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sources.archives import bgzip
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import Items, pairs
from zindex.errors import ConfigError, StateMismatchError
from zindex.io.files import write_once
from zindex.io.objects import ObjectPath
from zindex.sources import opened_files
from zindex.streaming import JsonlIterableDataset, MergedDataset, merge_states, progress, to_state

SIZES = [(1, 0), (2, 2), (3, 1)]


def write(folder: Path, name: str, size: int = 40) -> None:
    rows = (json.dumps({"id": f"{name}:{number}"}) for number in range(size))
    (folder / f"{name}.jsonl").write_text("".join(f"{row}\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "a")
    write(tmp_path, "b")
    return tmp_path


def texts(path: Any, percent: Any = 1, **attributes: Any) -> Any:
    source: Any = JsonlIterableDataset(path)
    source.name, source.percent = "texts", percent
    for name, value in attributes.items():
        setattr(source, name, value)
    return source


def mix(*sources: Any, cyclic: bool = False, **settings: Any) -> Callable[[], MergedDataset]:
    return lambda: MergedDataset(list(sources), cyclic, **settings)


def lines(**sizes: int) -> Counter[str]:
    return Counter(f"{name}:{number}" for name, size in sizes.items() for number in range(size))


def three_epochs(folder: Path) -> Callable[[], MergedDataset]:
    return lambda: MergedDataset([texts(folder, max_epochs=3)])


def by_epoch(*runs: Run) -> list[Counter[str]]:
    """Return how often each line was delivered in each of three epochs."""
    samples = [sample for run in runs for sample in run.samples()]
    return [Counter(s["id"] for s in samples if s["__epoch__"] == epoch) for epoch in range(3)]


@pytest.mark.parametrize("size", SIZES)
def test_sources_are_added_dropped_taken_back_and_reweighted(
    folder: Path, size: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    first = Run(mix(texts(folder), Items("items", 23)), 2, 1)
    first.advance(30)
    second = Run(
        mix(texts(folder, {0: 3, 60: 1}), Items("items", 23), Items("more", 9, 2)),
        *size,
        first.merged_states(),
    )
    second.advance(20)
    logged = [record.getMessage().partition("state: ")[2] for record in caplog.records]
    assert logged == [
        "added 'more' with percent 2",
        "changed the percent of 'texts' from 1 to [[0, 3], [60, 1]]",
    ]
    third = Run(mix(texts(folder), Items("more", 9, 2)), 1, 0, second.merged_states())
    third.advance(15)
    caplog.clear()
    whole = mix(Items("more", 9), texts(folder), Items("items", 23))
    last = Run(whole, 2, 1, third.merged_states()).drain()
    assert "added 'items' with percent 1.0, which continues where it was" in caplog.text
    ids = first.ids() + second.ids() + third.ids() + last.ids()
    assert ids == lines(a=40, b=40, items=23, more=9)
    caplog.clear()
    Run(whole, 1, 0, last.merged_states())
    assert not caplog.records


@pytest.mark.parametrize("size", SIZES)
def test_added_files_are_read_from_the_next_epoch_on(
    folder: Path, size: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    make = three_epochs(folder)
    first = Run(make, 2, 1)
    first.advance(33)
    write(folder, "c", 25)
    second = Run(make, *size, first.merged_states())
    assert "'texts' has 1 more file, from its next epoch on" in caplog.text
    second.advance(90)
    write(folder, "d", 7)
    third = Run(make, 2, 2, second.merged_states())
    found = progress(make(), second.merged_states())["texts"]
    assert found.epochs_begun >= 2
    assert found.num_items > 0
    assert by_epoch(first, second, third.drain()) == [
        lines(a=40, b=40),
        lines(a=40, b=40, c=25),
        lines(a=40, b=40, c=25, d=7),
    ]
    lists = third.merged_states()["origin"]["files"].values()
    assert {listing.count(";") for listing in lists} <= {2, 3}


def test_an_epoch_is_finished_without_added_files_and_the_next_one_has_them(folder: Path) -> None:
    run = Run(mix(texts(folder)), 1, 0)
    run.advance(10)
    write(folder, "c", 5)
    dataset = mix(texts(folder))()
    dataset.set_dataloader_states(run.merged_states())
    assert run.ids() + Counter(s["id"] for s in dataset) == lines(a=40, b=40)
    assert Counter(s["id"] for s in dataset) == lines(a=40, b=40, c=5)


def test_files_that_are_added_before_the_first_sample_are_read_at_once(folder: Path) -> None:
    run = Run(mix(texts(folder, 0), Items("items", 5)), 1, 0)
    run.advance(3)
    write(folder, "c", 5)
    rest = Run(mix(texts(folder), Items("items", 5)), 1, 0, run.merged_states()).drain()
    assert run.ids() + rest.ids() == lines(a=40, b=40, c=5, items=5)


def test_files_may_be_listed_after_those_that_were_there(folder: Path) -> None:
    run = Run(mix(texts([folder / "b.jsonl"])), 1, 0)
    run.advance(10)
    rest = Run(mix(texts([folder / "b.jsonl", folder / "a.jsonl"])), 1, 0, run.merged_states())
    assert run.ids() + rest.drain().ids() == lines(b=40)


@pytest.mark.parametrize("change", ["content", "fewer"])
def test_changed_files_are_refused_also_if_others_are_added(folder: Path, change: str) -> None:
    run = Run(mix(texts(folder)), 1, 0)
    run.advance(10)
    if change == "content":
        write(folder, "c")
        text = (folder / "b.jsonl").read_text().replace("b:7", "b:x")
        (folder / "b.jsonl").write_text(text)
    else:
        (folder / "b.jsonl").unlink()
    fault = (
        "b.jsonl is changed before its former end" if change == "content" else "b.jsonl is missing"
    )
    with pytest.raises(StateMismatchError, match=f"state of 'texts' must be of the .* {fault}"):
        Run(mix(texts(folder)), 1, 0, run.merged_states())


@pytest.mark.parametrize("size", SIZES)
def test_files_and_lines_may_be_added_anywhere(
    folder: Path, size: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    make = three_epochs(folder)
    first = Run(make, 2, 1)
    first.advance(33)
    write(folder, "0", 7)
    write(folder, "aa", 25)
    write(folder, "a", 44)
    second = Run(make, *size, first.merged_states())
    assert "'texts' has 2 more files and more lines in 1 file, from its next" in caplog.text
    second.advance(90)
    (folder / "more").mkdir()
    write(folder / "more", "c", 7)
    write(folder, "0", 9)
    third = Run(make, 2, 2, second.merged_states()).drain()
    assert by_epoch(first, second, third) == [
        lines(a=40, b=40),
        lines(**{"0": 7}, a=44, aa=25, b=40),
        lines(**{"0": 9}, a=44, aa=25, b=40, c=7),
    ]


def test_files_may_be_added_in_a_folder_above(folder: Path) -> None:
    (folder / "1").mkdir()
    for name in "ab":
        (folder / f"{name}.jsonl").rename(folder / "1" / f"{name}.jsonl")
    run = Run(mix(texts(folder)), 1, 0)
    run.advance(10)
    write(folder, "0", 5)
    (folder / "00").mkdir()
    write(folder / "00", "a", 5)
    dataset = mix(texts(folder))()
    dataset.set_dataloader_states(run.merged_states())
    assert run.ids() + Counter(s["id"] for s in dataset) == lines(a=40, b=40)
    assert Counter(s["id"] for s in dataset) == lines(a=40, b=40) + lines(a=5) + lines(**{"0": 5})


def test_files_of_the_same_name_are_told_apart(folder: Path) -> None:
    for name in "123":
        (folder / name).mkdir()
        rows = (json.dumps({"id": f"{name}:{number}"}) for number in range(40))
        (folder / name / "a.jsonl").write_text("".join(f"{row}\n" for row in rows))
    paths = [folder / name / "a.jsonl" for name in "123"]
    run = Run(mix(texts(paths[1:2])), 1, 0)
    run.advance(10)
    last = Run(mix(texts(paths)), 2, 0, run.merged_states()).drain()
    assert run.ids() + last.ids() == lines(**{"2": 40})


def test_files_may_have_another_order(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(mix(texts([folder / "a.jsonl", folder / "b.jsonl"])), 1, 0)
    run.advance(10)
    last = Run(mix(texts([folder / "b.jsonl", folder / "a.jsonl"])), 2, 0, run.merged_states())
    assert "'texts' has its files in another order, from its next epoch on" in caplog.text
    assert run.ids() + last.drain().ids() == lines(a=40, b=40)


@pytest.mark.parametrize("pack", [gzip.compress, lambda content: bgzip(content, 99)[0]])
def test_compressed_files_may_be_continued(
    folder: Path, caches: Path, pack: Callable[[bytes], bytes]
) -> None:
    for name in "ab":
        content = (folder / f"{name}.jsonl").read_bytes()
        (folder / f"{name}.jsonl.gz").write_bytes(pack(content))
        (folder / f"{name}.jsonl").unlink()
    run = Run(mix(texts(folder)), 2, 1)
    run.advance(10)
    with (folder / "a.jsonl.gz").open("ab") as stream:
        stream.write(pack(b'{"id": "a:40"}\n'))
    dataset = mix(texts(folder))()
    dataset.set_dataloader_states(run.merged_states())
    assert run.ids() + Counter(s["id"] for s in dataset) == lines(a=40, b=40)
    assert Counter(s["id"] for s in dataset) == lines(a=41, b=40)


def test_files_read_in_order_may_grow(folder: Path) -> None:
    def make() -> MergedDataset:
        source: Any = JsonlIterableDataset(folder, prepare_nbytes=0)
        source.name, source.percent = "texts", 1
        return MergedDataset([source], cyclic=False)

    for name in "ab":
        content = (folder / f"{name}.jsonl").read_bytes()
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(content))
        (folder / f"{name}.jsonl").unlink()
    run = Run(make, 2, 1)
    run.advance(10)
    for name in ("a", "aa"):
        with (folder / f"{name}.jsonl.gz").open("ab") as stream:
            stream.write(gzip.compress(b'{"id": "a:40"}\n'))
    dataset = make()
    dataset.set_dataloader_states(run.merged_states())
    assert run.ids() + Counter(s["id"] for s in dataset) == lines(a=40, b=40)
    assert Counter(s["id"] for s in dataset) == lines(a=41, b=40) + Counter(["a:40"])


def test_objects_may_grow(
    folder: Path, objects: ObjectPath, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload(*names: str) -> None:
        for name in names:
            content = (folder / f"{name}.jsonl").read_bytes()
            write_once(objects / f"{name}.jsonl", [content], replace=True)

    for limit in (0, 1 << 20):
        monkeypatch.setattr(opened_files, "SMALL_NBYTES", limit)
        write(folder, "a")
        upload("a", "b")
        run = Run(mix(texts(f"{objects}/{{a,b}}.jsonl")), 2, 1)
        run.advance(10)
        write(folder, "0", 5)
        write(folder, "a", 45)
        upload("0", "a")
        dataset = mix(texts(f"{objects}/{{0,a,b}}.jsonl"))()
        dataset.set_dataloader_states(run.merged_states())
        assert run.ids() + Counter(s["id"] for s in dataset) == lines(a=40, b=40)
        assert Counter(s["id"] for s in dataset) == lines(a=45, b=40, **{"0": 5})


def test_a_file_that_is_shorter_is_named(folder: Path) -> None:
    run = Run(mix(texts(folder)), 1, 0)
    run.advance(10)
    write(folder, "a", 39)
    with pytest.raises(StateMismatchError, match=r"of its files a\.jsonl is shorter than before"):
        Run(mix(texts(folder)), 1, 0, run.merged_states())


def test_states_of_earlier_versions_have_numbers_of_files(folder: Path) -> None:
    run = Run(mix(texts(folder)), 2, 1)
    run.advance(10)
    state = run.merged_states()
    files = state["origin"].pop("files")
    state["origin"]["num_files"] = dict.fromkeys(files, 2)
    write(folder, "c")
    rest = Run(mix(texts(folder)), 1, 0, state).drain()
    assert run.ids() + rest.ids() == lines(a=40, b=40)
    (folder / "c.jsonl").unlink()
    (folder / "b.jsonl").unlink()
    with pytest.raises(StateMismatchError, match="of its files only 1 of 2 files are there"):
        Run(mix(texts(folder)), 1, 0, state)


def test_from_url_level_files_may_be_any(folder: Path) -> None:
    run = Run(mix(texts(folder)), 1, 0)
    run.advance(10)
    state = run.merged_states()
    write(folder, "0", 30)
    dataset = mix(texts(folder))()
    dataset.set_dataloader_states(state, reload_from_url_level=True)
    rest = Counter(sample["id"] for sample in dataset)
    assert rest.total() == 110 - 9  # the tenth sample is read again
    assert max(rest.values()) == 1


@pytest.mark.parametrize("size", SIZES)
def test_unfinished_segments_keep_their_mixture(folder: Path, size: tuple[int, int]) -> None:
    function = {"customized_yield_fn": pairs, "yield_segment": 11}
    first = Run(mix(texts(folder), Items("items", 23), **function), 2, 1)
    first.advance(13)
    changed = mix(Items("more", 9, 2), Items("items", 23, 0), texts(folder, 7), **function)
    second = Run(changed, *size, first.merged_states())
    second.advance(6)
    write(folder, "c", 5)
    last = mix(texts(folder), Items("items", 23), Items("more", 9), **function)
    third = Run(last, 1, 1, second.merged_states()).drain()
    assert first.ids() + second.ids() + third.ids() == lines(a=40, b=40, items=23, more=9)
    dropped = mix(texts(folder), Items("more", 9), **function)
    with pytest.raises(StateMismatchError, match="'items' was dropped; keep it with a percent of"):
        Run(dropped, 1, 0, first.merged_states())


def test_nested_mixtures_change_too(folder: Path) -> None:
    def nest(percent: float, *inner: Any) -> Callable[[], MergedDataset]:
        def make() -> MergedDataset:
            nested = MergedDataset([Items("items", 23), *inner], cyclic=False)
            nested.percent = percent
            return MergedDataset([texts(folder), nested], cyclic=False)

        return make

    first = Run(nest(1), 2, 1)
    first.advance(30)
    rest = Run(nest(0.3, Items("more", 9)), 1, 2, first.merged_states()).drain()
    assert first.ids() + rest.ids() == lines(a=40, b=40, items=23, more=9)


@pytest.mark.parametrize("size", [(2, 2), (3, 0)])
@pytest.mark.parametrize("names", ["yx", "zxy", "zyx"])
def test_nested_mixtures_with_an_order_of_their_own_change_places(
    names: str, size: tuple[int, int]
) -> None:
    def make(names: str) -> Callable[[], MergedDataset]:
        def nest(name: str) -> MergedDataset:
            inner = [Items(f"{name}-first", 40), Items(f"{name}-second", 30, 2)]
            nested = MergedDataset(inner, cyclic=False, customized_yield_fn=pairs, yield_segment=7)
            nested.name, nested.percent = name, 1
            return nested

        return lambda: MergedDataset([nest(name) for name in names], cyclic=False)

    first = Run(make("xy"), 2, 2)
    first.advance(30)
    second = Run(make(names), *size, first.merged_states())
    second.advance(20)
    third = Run(make("".join(reversed(names))), 1, 1, second.merged_states()).drain()
    sizes = {f"{name}-{inner}": n for name in names for inner, n in (("first", 40), ("second", 30))}
    assert first.ids() + second.ids() + third.ids() == lines(**sizes)


def test_a_nested_mixture_is_dropped_for_another_one() -> None:
    def make(name: str) -> Callable[[], MergedDataset]:
        def make() -> MergedDataset:
            inner: Any = [Items(name, 40), Items(f"{name}-late", 40)]
            inner[1].percent = {0: 0, 20: 1}
            nested = MergedDataset(inner)
            nested.name, nested.percent = f"nested-{name}", 1
            return MergedDataset([nested, Items("items", 20)])

        return make

    first = Run(make("a"), 1, 0)
    first.advance(60)
    second = Run(make("b"), 1, 0, first.merged_states())
    second.advance(60)
    late = [name for name in second.orders()[0] if name.startswith("b")][:20]
    assert not any(name.startswith("b-late") for name in late)


def test_a_changed_mixture_needs_the_states_of_all_ranks(folder: Path) -> None:
    run = Run(mix(texts(folder), Items("items", 23)), 2, 0)
    run.advance(20)
    with pytest.raises(
        StateMismatchError,
        match=r"a changed mixture \(dropped 'items'\) needs the states of all 2 ranks",
    ):
        Run(mix(texts(folder)), 2, 0, run.own_states())


def test_states_without_their_mixture_are_those_of_the_current_one(folder: Path) -> None:
    run = Run(mix(texts(folder), Items("items", 23)), 2, 0)
    run.advance(20)
    state = run.merged_states()
    for name in ("mixtures", "delivered", "files", "ends"):
        del state["origin"][name]
    rest = Run(mix(texts(folder, 5), Items("items", 23), Items("more", 3)), 1, 0, state).drain()
    assert run.ids() + rest.ids() == lines(a=40, b=40, items=23, more=3)


def test_a_schedule_continues_over_jobs() -> None:
    make = mix(Items("a", 10, {0: 1, 100: 0}), Items("b", 10), cyclic=True)  # type: ignore[arg-type]
    run, state, drawn = Run(make, 2, 1), None, list[str]()
    for size in ((2, 1), (1, 0), (3, 0)):
        run = Run(make, *size, state)
        run.advance(50)
        drawn += [sample["__datasetname__"] for sample in run.samples()]
        state = run.merged_states()
    assert abs(drawn.count("a") - 50) <= 3
    assert "a" not in drawn[110:]


def test_a_source_ends_after_its_epochs() -> None:
    sources: list[Any] = [Items("a", 10), Items("b", 7), Items("c", 3)]
    sources[0].max_epochs, sources[1].max_epochs = 2, 5
    stream = MergedDataset(sources[:2])
    ids = Counter(sample["id"] for sample in stream)
    assert ids == Counter({**{f"a:{n}": 2 for n in range(10)}, **{f"b:{n}": 5 for n in range(7)}})
    run = Run(lambda: MergedDataset(sources), 2, 1)
    run.advance(70)
    rest = Run(lambda: MergedDataset(sources), 3, 0, run.merged_states())
    rest.advance(200)
    both = run.ids() + rest.ids()
    assert {both[f"a:{n}"] for n in range(10)} == {2}
    assert {both[f"b:{n}"] for n in range(7)} == {5}
    assert both["c:0"] > 20


@pytest.mark.parametrize(
    ("cyclic", "value", "text"),
    [
        (True, 0, "must have max_epochs >= 1, got 0; set its percent to 0"),
        (True, 1.5, "must have max_epochs >= 1, got 1.5"),
        (False, 1, "max_epochs of 'a' must be in a mixture with cyclic=True"),
    ],
)
def test_epochs_are_whole_and_of_cyclic_mixtures(cyclic: bool, value: Any, text: str) -> None:
    source: Any = Items("a", 10)
    source.max_epochs = value
    with pytest.raises(ConfigError, match=text):
        MergedDataset([source], cyclic)


def test_a_mixture_is_reported_by_the_first_rank_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = merge_states([to_state(next(iter(mix(Items("a", 3), Items("b", 3))())))])
    with caplog.at_level(logging.WARNING):
        for rank in range(3):
            dataset = mix(Items("a", 3))()
            dataset.set_data_parallel(3, rank)
            dataset.set_dataloader_states(state)
    assert len(caplog.records) == 1


class Identical:
    """A process function with a setting."""

    def __init__(self, setting: str) -> None:
        self.setting = setting

    def fingerprint(self) -> str:
        return self.setting

    def __call__(self, samples: Any) -> Any:
        return samples


def test_a_state_of_another_process_function_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" * 9)

    def make(process_fn: Any, **settings: Any) -> MergedDataset:
        texts: Any = JsonlIterableDataset(str(tmp_path), process_fn)
        texts.name, texts.percent = "texts", 1
        return MergedDataset([texts], **settings)

    state = to_state(next(iter(make(Identical("64")))))
    with pytest.raises(StateMismatchError, match="made alike: its process_fn, or a setting such"):
        make(Identical("32")).set_dataloader_states(state)
    with pytest.raises(StateMismatchError, match=r"it is of \[.*seed 0.*\], these are \[.*seed 5"):
        make(Identical("64"), seed=5).set_dataloader_states(state)
