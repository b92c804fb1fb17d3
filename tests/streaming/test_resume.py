"""For any ranks and loader workers, a resumed run delivers each epoch exactly once."""

import functools
import json
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.conftest import numbers
from tests.sources.archives import write_jsonl, write_tar
from tests.streaming.simulated_ranks import Run
from tests.streaming.tiny_sources import (
    Items,
    Parts,
    drop_all,
    drop_and_double,
    drop_by_name,
    ids_of,
    late_pairs,
    pack_bins,
    pack_tokens,
    pairs,
    split_in_two,
)
from zindex.errors import StateMismatchError
from zindex.streaming import (
    JsonlIterableDataset,
    MergedDataset,
    MetaDistributedWebDataset,
    gather_states,
    merge_states,
    to_state,
)

Make = Callable[[], MergedDataset]
Sample = dict[str, Any]
SIZES = [(ranks, workers) for ranks in (1, 2, 3, 4) for workers in (0, 1, 2, 3)]
FEW_SIZES = [(1, 0), (1, 2), (2, 3), (3, 1), (4, 0)]


def mixed(**settings: Any) -> MergedDataset:
    """Items, parts of which some give nothing, and packed text."""
    children = [
        Items("items", 11, 0.5),
        Parts("parts", [4, 1, 0, 5], 0.3),
        Parts("text", [5, 3, 4], 0.2, process_fn=pack_tokens, tokens_per_sample=5),
    ]
    return MergedDataset(children, **{"cyclic": False, "seed": 5, **settings})


def nested(**settings: Any) -> MergedDataset:
    """A mixture within a mixture within a mixture."""
    inmost = MergedDataset([Items("a", 5, 1), Parts("b", [3, 2], 2)], cyclic=False, seed=1)
    inmost.percent = 0.4
    inner = MergedDataset([inmost, Parts("c", [1, 1, 1, 1], 0.6)], cyclic=False, seed=2)
    inner.percent = 3
    return MergedDataset([Items("d", 6, 1), inner], **{"cyclic": False, **settings})


def nested_yields() -> MergedDataset:
    """Outputs with look-ahead, of which an outer mixture holds some back again."""
    inner = mixed(customized_yield_fn=late_pairs, yield_segment=7)
    inner.percent = 2
    return MergedDataset(
        [inner, Items("more", 7, 1)], cyclic=False, customized_yield_fn=pack_bins, yield_segment=6
    )


def inner_yields() -> MergedDataset:
    """Outputs of an inner mixture, mixed with plain samples."""
    inner = nested(customized_yield_fn=pack_bins, yield_segment=5)
    inner.percent = 2
    return MergedDataset([Items("more", 7, 1), inner], cyclic=False)


def filtered() -> MergedDataset:
    """Sources that drop and repeat samples, one that is empty, and one that drops them all."""
    children = [
        Parts("some", [7, 1, 4], 1, process_fn=drop_and_double),
        Parts("none", [3, 2], 1, process_fn=drop_all),
        Parts("hollow", [0, 0, 0], 1),
        Items("nothing", 0, 1, items=()),
        Items("one", 1, 5),
        Parts("sole", [1], 0.01),
    ]
    return MergedDataset(children, cyclic=False)


def files(folder: Path) -> MergedDataset:
    """Tar and jsonl files, cut in parts of which some hold no sample."""
    for number in range(2):
        members = [(f"{number}{key}.txt", b"x" * 300 * key) for key in range(5)]
        write_tar(folder / f"{number}.tar", members)
        rows = [{"id": f"jsonl:{number}:{key}", "text": "x" * 9 * key} for key in range(7)]
        write_jsonl(folder / f"{number}.jsonl", rows)
    images = MetaDistributedWebDataset(str(folder), with_id, part_nbytes=1024)
    texts = JsonlIterableDataset(str(folder), part_nbytes=40, shuffle_buffer=3)
    for source, name, percent in ((images, "images", 0.4), (texts, "texts", 0.6)):
        source.name, source.percent = name, percent
        assert source.num_parts > 4
    return MergedDataset([images, texts, Items("items", 4, 0.3)], cyclic=False)


def with_id(samples: Iterator[Sample]) -> Iterator[Sample]:
    for sample in samples:
        yield {**sample, "id": f"tar:{sample['__key__']}"}


@pytest.mark.parametrize("size", FEW_SIZES)
def test_files_resume_after_every_sample(tmp_path: Path, size: tuple[int, int]) -> None:
    make = functools.partial(files, tmp_path)
    whole = Run(make, 1, 0).drain().ids()
    assert whole.total() == len(whole) == 2 * 5 + 2 * 7 + 4
    run = Run(make, *size)
    cut = 0
    while run.advance(1):
        cut += 1
        rest = Run(make, *FEW_SIZES[cut % len(FEW_SIZES)], run.merged_states()).drain()
        assert run.ids() + rest.ids() == whole


def few_parts() -> MergedDataset:
    """One part for up to twelve worker slots."""
    return MergedDataset([Parts("sole", [25], 1, shuffle_buffer=8)], cyclic=False)


def ordered() -> MergedDataset:
    """Nothing is shuffled."""
    return mixed(shuffle_unstreaming_subsets=False, shuffle_streaming_subsets=False)


def yielding(function: Any, segment: int) -> Make:
    return functools.partial(mixed, customized_yield_fn=function, yield_segment=segment)


KINDS: dict[str, Make] = {
    "mixed": mixed,
    "nested": nested,
    "ordered": ordered,
    "filtered": filtered,
    "few-parts": few_parts,
    "pairs": yielding(pairs, 6),
    "late-pairs": yielding(late_pairs, 6),
    "bins": yielding(pack_bins, 1024),
    "two-of-each": yielding(split_in_two, 4),
    "inner-yields": inner_yields,
    "nested-yields": nested_yields,
}


@functools.cache
def one_epoch(kind: str) -> Counter[str]:
    """Return the ids of one epoch, as a single rank without loader workers delivers them."""
    ids = Run(KINDS[kind], 1, 0).drain().ids()
    assert ids
    assert set(ids.values()) == {1}
    return ids


def test_an_epoch_is_all_samples() -> None:
    expected = {f"items:{number}" for number in range(11)}
    expected |= {
        f"parts:{part}:{number}" for part, size in enumerate([4, 1, 0, 5]) for number in range(size)
    }
    expected |= {
        f"text:{part}:{number}:{token}"
        for part, size in enumerate([5, 3, 4])
        for number in range(size)
        for token in range(1 + (number * 5 + part) % 5)
    }
    assert one_epoch("mixed") == Counter(expected)
    assert one_epoch("pairs") == one_epoch("late-pairs") == one_epoch("bins") == one_epoch("mixed")
    assert len(one_epoch("filtered")) == 5 + 2 + 1 + 1 + 3 + 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_size_delivers_one_epoch(kind: str, size: tuple[int, int]) -> None:
    assert Run(KINDS[kind], *size).drain().ids() == one_epoch(kind)


def check_every_cut(
    kind: str, size: tuple[int, int], others: list[tuple[int, int]], first: int = 0, step: int = 1
) -> None:
    """Stop a run after each sample, or each `step`-th, and go on at one of the other sizes."""
    run = Run(KINDS[kind], *size)
    cut = 0
    while True:
        other = others[cut % len(others)]
        if cut % step == first:
            rest = Run(KINDS[kind], *other, run.merged_states()).drain()
            assert run.ids() + rest.ids() == one_epoch(kind), f"cut {cut}, {size} -> {other}"
        if not run.advance(1):
            return
        cut += 1


@pytest.mark.parametrize("size", SIZES)
def test_every_cut_resumes_at_another_size(size: tuple[int, int]) -> None:
    start = SIZES.index(size)
    check_every_cut("mixed", size, SIZES[start:] + SIZES[:start])


@pytest.mark.parametrize("size", FEW_SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixed"])
def test_every_cut_of_other_mixtures_resumes_at_another_size(
    kind: str, size: tuple[int, int]
) -> None:
    # Each cut is that of some size.
    first = FEW_SIZES.index(size) % 3
    check_every_cut(kind, size, [(2, 1), (3, 2), (1, 0), (4, 1)], first, step=3)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_resumes_at_every_size(kind: str, size: tuple[int, int]) -> None:
    for other in SIZES:
        check_every_cut(kind, size, [other])


def check_same_order(
    make: Make, size: tuple[int, int], batch_size: int, first: int = 0, step: int = 1
) -> None:
    """Stop a run after each round of batches: the same size resumes in the same order."""
    whole = Run(make, *size, batch_size=batch_size).drain().orders()
    run = Run(make, *size, batch_size=batch_size)
    for cut in range(200):
        stops = [run.own_states(), run.merged_states()] if cut % step == first else []
        for states in stops:
            rest = Run(make, *size, states, batch_size=batch_size).drain()
            assert [a + b for a, b in zip(run.orders(), rest.orders(), strict=True)] == whole
        if not sum([rank.step() for rank in run.ranks]):
            return
    pytest.fail("the run does not end")


@pytest.mark.parametrize("size", SIZES)
def test_the_same_size_keeps_the_order(size: tuple[int, int]) -> None:
    check_same_order(mixed, size, 1)


@pytest.mark.parametrize("size", FEW_SIZES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixed"])
def test_the_same_size_keeps_the_order_of_other_mixtures(kind: str, size: tuple[int, int]) -> None:
    check_same_order(KINDS[kind], size, 2, FEW_SIZES.index(size) % 2, step=2)


def test_one_seed_has_one_order_and_another_seed_another() -> None:
    orders = [Run(functools.partial(mixed, seed=seed), 2, 2).drain().orders() for seed in (5, 5, 6)]
    assert orders[0] == orders[1] != orders[2]


def test_a_rank_may_be_iterated_from_its_states_directly() -> None:
    whole = [ids_of(sample) for sample in mixed()]
    states: dict[str, Any] = {}
    for cut, sample in enumerate(mixed(), 1):
        states.update(to_state(sample))
        assert [ids_of(rest) for rest in mixed().__iter_from__(states)] == whole[cut:]


def test_a_yield_function_can_be_left_out() -> None:
    dataset = mixed(customized_yield_fn=pairs)
    samples = list(dataset.__iter_from__({}, ignore_customized_yield_fn=True))
    assert [ids_of(sample) for sample in samples] == [ids_of(sample) for sample in mixed()]


@pytest.mark.parametrize("case", numbers(12, 100))
def test_many_resumes_in_a_row_with_ranks_at_different_places(case: int) -> None:
    rng = random.Random(case)
    kind = rng.choice(list(KINDS))
    delivered: Counter[str] = Counter()
    states: Any = None
    for _ in range(50):
        run = Run(
            KINDS[kind],
            *rng.choice(SIZES),
            states,
            batch_size=rng.randint(1, 3),
            ahead=rng.randint(0, 3),
        )
        favourite = rng.random()
        turns = lambda _, ranks, f=favourite: int(ranks * rng.random() ** (4 * f))  # noqa: E731
        count = run.advance(rng.randint(0, 9), turns)
        delivered += run.ids()
        states = run.merged_states()
        if delivered.total() >= one_epoch(kind).total() and not count:
            break
    delivered += Run(KINDS[kind], 1, 0, states).drain().ids()
    assert delivered == one_epoch(kind)


def draw_mixture(rng: random.Random, depth: int = 0, path: str = "r") -> MergedDataset:
    """Return a tree of sources and yield functions, some of them empty or dropping samples."""
    children: list[Any] = []
    for number in range(rng.randint(1, 3)):
        name = f"{path}{number}"
        if depth < 2 and rng.random() < 0.35:
            child: Any = draw_mixture(rng, depth + 1, name)
        elif rng.random() < 0.5:
            size = rng.randint(0, 7)
            child = Items(name, size, items=None if size else ())
        else:
            process_fn = rng.choice([None, None, pack_tokens, drop_and_double, drop_all])
            child = Parts(
                name,
                [rng.choice([0, 1, 2, 5]) for _ in range(rng.randint(1, 4))],
                shuffle_buffer=rng.choice([0, 2, 10]),
                process_fn=process_fn,
                tokens_per_sample=3 if process_fn is pack_tokens else 0,
            )
        child.percent = rng.choice([0.1, 0.3, 1, 2, 7])
        children.append(child)
    yields = [None, None, pairs, late_pairs, pack_bins, split_in_two, drop_by_name]
    return MergedDataset(
        children,
        cyclic=False,
        shuffle_unstreaming_subsets=rng.choice([True, False, "cogdata_block2m"]),
        shuffle_streaming_subsets=rng.choice([True, False]),
        seed=rng.randint(0, 3),
        customized_yield_fn=rng.choice(yields),
        mixing=rng.choice(["exact", "cogdata_mix"]),
        yield_segment=rng.choice([1, 2, 3, 5, 1024]),
    )


@pytest.mark.parametrize("case", numbers(40, 500))
def test_drawn_mixtures_are_one_epoch_over_resumes(case: int) -> None:
    def make() -> MergedDataset:
        return draw_mixture(random.Random(case))

    rng = random.Random(-case - 1)
    expected = Run(make, 1, 0).drain().ids()
    assert set(expected.values()) <= {1}
    delivered: Counter[str] = Counter()
    states: Any = None
    size = rng.choice(SIZES)
    for _ in range(rng.randint(1, 8)):
        settings = {"batch_size": rng.randint(1, 2), "ahead": rng.randint(0, 2)}
        run = Run(make, *size, states, **settings)
        run.advance(rng.randint(0, 7), lambda _, ranks: rng.randrange(ranks))
        delivered += run.ids()
        states = run.merged_states()
        if rng.random() < 0.4:
            # As many ranks and workers go on in the same order.
            states = run.own_states()
            before = run.orders()
            again = Run(make, *size, states, **settings).drain().orders()
            together = [a + b for a, b in zip(before, again, strict=True)]
            assert together == run.drain().orders()
        else:
            size = rng.choice(SIZES)
    delivered += Run(make, *size, states).drain().ids()
    assert delivered == expected


@pytest.mark.parametrize("case", numbers(20, 300))
def test_drawn_mixtures_lose_nothing_from_url_level(case: int) -> None:
    def make() -> MergedDataset:
        return draw_mixture(random.Random(case))

    rng = random.Random(-case - 1)
    size = rng.choice(SIZES)
    expected = set(Run(make, 1, 0).drain().ids())
    run = Run(make, *size)
    run.advance(rng.randint(0, 12), lambda _, ranks: rng.randrange(ranks))
    for other in (size, rng.choice(SIZES)):
        again = Run(make, *other, run.merged_states(), reload_from_url_level=True)
        again.advance(rng.randint(1, 8), lambda _, ranks: rng.randrange(ranks))
        rest = Run(make, *rng.choice(SIZES), again.merged_states()).drain()
        assert set(run.ids() + again.ids() + rest.ids()) == expected
        # Resuming from there is exact as well.
        assert again.ids() + rest.ids() == again.drain().ids()


@pytest.mark.parametrize("case", numbers(20, 300))
def test_drawn_mixtures_are_one_epoch_with_other_segments(case: int) -> None:
    def make(*lengths: int) -> MergedDataset:
        dataset = draw_mixture(random.Random(case))
        waiting, segments = [dataset], random.Random(case)
        while waiting and lengths:
            one = waiting.pop()
            one.yield_segment = segments.choice(lengths)
            waiting += [child for child in one.datasets if isinstance(child, MergedDataset)]
        return dataset

    rng = random.Random(case)
    size = rng.choice(SIZES)
    run = Run(make, *size)
    run.advance(rng.randint(0, 12), lambda _, ranks: rng.randrange(ranks))
    for other in (size, rng.choice(SIZES)):
        rest = Run(functools.partial(make, 1, 3, 9, 1024), *other, run.merged_states()).drain()
        assert run.ids() + rest.ids() == Run(make, 1, 0).drain().ids()


def cycling(kind: str) -> Make:
    """Return a maker of an endless mixture of map-style, partitioned and packed sources."""

    def make() -> MergedDataset:
        children = [
            Items("items", 7, 0.4),
            Parts("parts", [3, 0, 2, 1], 0.3),
            Parts("text", [3, 2], 0.3, process_fn=pack_tokens, tokens_per_sample=3),
        ]
        if kind == "nested":
            inner = MergedDataset(children[1:], seed=3)
            inner.percent = 0.6
            return MergedDataset([children[0], inner])
        if kind == "late-pairs":
            return MergedDataset(children, customized_yield_fn=late_pairs, yield_segment=9)
        if kind == "yields":
            return MergedDataset(children, customized_yield_fn=late_with_epoch, yield_segment=9)
        return MergedDataset(children, seed=2)

    return make


def late_with_epoch(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield each sample, with its place, after the next one has been read."""
    held: Sample | None = None
    for sample in samples:
        if held is not None:
            yield held
        held = {name: sample[name] for name in ("__datasetname__", "__epoch__")}
        held["ids"] = ids_of(sample)
    if held is not None:
        yield held


LEAF_IDS = {
    "items": [f"items:{number}" for number in range(7)],
    "parts": [f"parts:{part}:{n}" for part, size in enumerate([3, 0, 2, 1]) for n in range(size)],
    "text": [
        f"text:{part}:{number}:{token}"
        for part, size in enumerate([3, 2])
        for number in range(size)
        for token in range(1 + (number * 5 + part) % 3)
    ],
}


def check_epochs(samples: list[dict[str, Any]], num_epochs: int) -> None:
    """Each of the first epochs of each source is complete, and no later one has a sample twice."""
    counts: dict[tuple[str, int], Counter[str]] = {}
    for sample in samples:
        place = sample["__datasetname__"], sample["__epoch__"]
        counts.setdefault(place, Counter()).update(ids_of(sample))
    for (name, epoch), ids in counts.items():
        assert set(ids.values()) == {1}, f"epoch {epoch} of {name}"
        if epoch < num_epochs:
            assert sorted(ids) == sorted(LEAF_IDS[name])
    assert all((name, epoch) in counts for name in LEAF_IDS for epoch in range(num_epochs))


@pytest.mark.parametrize("case", numbers(10, 100))
@pytest.mark.parametrize("kind", ["flat", "nested", "yields"])
def test_epochs_stay_whole_over_resumes(kind: str, case: int) -> None:
    rng = random.Random(case)
    make = cycling(kind)
    samples: list[dict[str, Any]] = []
    states: Any = None
    for _ in range(8):
        run = Run(make, *rng.choice(SIZES), states, batch_size=rng.randint(1, 2))
        run.advance(rng.randint(0, 30))
        samples += run.samples()
        states = run.merged_states()
    # Long enough that every worker slot is beyond the third epoch of each source.
    last = Run(make, *rng.choice(SIZES), states)
    last.advance(500)
    check_epochs(samples + last.samples(), 3)


@pytest.mark.parametrize("size", FEW_SIZES)
def test_the_order_is_kept_over_the_end_of_epochs(size: tuple[int, int]) -> None:
    for kind in ("flat", "nested", "late-pairs"):
        make = cycling(kind)
        whole = Run(make, *size)
        whole.advance(80)
        for cut in range(0, 80, 7 * size[0]):
            run = Run(make, *size)
            run.advance(cut)
            for states in (run.own_states(), run.merged_states()):
                rest = Run(make, *size, states)
                rest.advance(80 - cut)
                orders = zip(run.orders(), rest.orders(), strict=True)
                for own, together in zip(whole.orders(), (a + b for a, b in orders), strict=True):
                    assert together[: len(own)] == own[: len(together)]


def test_states_do_not_grow() -> None:
    run = Run(cycling("flat"), 3, 2)
    run.advance(60)
    early = len(str(run.merged_states()))
    run.advance(600)
    assert len(str(run.merged_states())) < early + 200


def test_states_of_many_resumes_do_not_grow() -> None:
    lengths = []
    states: Any = None
    for number in range(24):
        run = Run(cycling("late-pairs"), 1 + number % 3, number % 2, states)
        run.advance(17)
        states = run.merged_states()
        lengths.append(len(str(states)))
    assert max(lengths[12:]) < 2 * max(lengths[:12])


def test_dropped_inputs_are_not_read_again() -> None:
    def only_a(samples: Iterator[Sample]) -> Iterator[Sample]:
        return ({"ids": ids_of(s)} for s in samples if s["__datasetname__"] == "a")

    def make() -> MergedDataset:
        children = [Items("a", 10, 1), Items("b", 30, 3)]
        return MergedDataset(children, False, False, customized_yield_fn=only_a, yield_segment=1)

    # The mixing is b, b, a, b, and a segment with a sample of b has no output.
    for num_outputs, next_b in ((1, "b:2"), (2, "b:5")):
        outputs = list(islice(make(), num_outputs))
        rest = make().__iter_from__(to_state(outputs), ignore_customized_yield_fn=True)
        assert next(sample["id"] for sample in rest if sample["__datasetname__"] == "b") == next_b


# What may change, and what may not


def test_a_long_run_resumes_with_its_lags_and_without() -> None:
    def make() -> MergedDataset:
        return MergedDataset([Items("a", 7, 1 / 3), Items("b", 9, 0.1)], seed=3)

    def names(run: Run) -> list[list[str]]:
        return [[sample["__datasetname__"] for sample in rank.delivered] for rank in run.ranks]

    run = Run(make, 2, 0)
    run.advance(9_000)
    states = run.merged_states()
    assert states["lags / @0/2"][1][0] == 4096
    old = {key: value for key, value in states.items() if not key.startswith("lags ")}
    rests = [Run(make, 2, 0, state) for state in (states, old)]
    for one in (run, *rests):
        one.advance(1_000)
    assert [whole[4500:] for whole in names(run)] == names(rests[0])
    for own in names(rests[1]):
        # Such a state knows no lags, so each picks as if it had had none.
        assert abs(own.count("b") - 500 * 0.3 / 1.3) < 2


def test_percents_and_mixing_may_change() -> None:
    def make(mixing: str, *percents: float) -> MergedDataset:
        dataset = mixed(mixing=mixing)
        for child, percent in zip(dataset.datasets, percents, strict=True):
            child.percent = percent
        return dataset

    run = Run(functools.partial(make, "exact", 0.5, 0.3, 0.2), 2, 1)
    run.advance(9)
    for size in ((2, 1), (3, 0)):
        rest = Run(functools.partial(make, "cogdata_mix", 1, 9, 4), *size, run.merged_states())
        assert run.ids() + rest.drain().ids() == one_epoch("mixed")


@pytest.mark.parametrize("segment", [1, 4, 6, 1024])
def test_segments_of_a_yield_function_may_change(segment: int) -> None:
    make = yielding(late_pairs, 6)
    for size, other in (((1, 0), (1, 0)), ((2, 2), (2, 2)), ((2, 1), (1, 3))):
        run = Run(make, *size)
        while run.advance(1):
            rest = Run(yielding(late_pairs, segment), *other, run.merged_states()).drain()
            assert run.ids() + rest.ids() == one_epoch("mixed")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"seed": 6}, "'items' must be of the same files, seed and order"),
        ({"shuffle_unstreaming_subsets": False}, "'items' must be of the same files, seed"),
        ({"shuffle_streaming_subsets": "cogdata_urlbuffer"}, "'parts' must be of the same files"),
    ],
)
def test_orders_may_not_change(settings: dict[str, Any], problem: str) -> None:
    states = to_state(list(islice(mixed(), 4)))
    with pytest.raises(StateMismatchError, match=problem):
        mixed(**settings).set_dataloader_states(states)


def test_going_on_directly_leaves_the_dataset_as_it_was() -> None:
    states = to_state(list(islice(mixed(), 5)))
    dataset = mixed()
    rest = list(dataset.__iter_from__(states))
    assert [ids_of(s) for s in dataset] == [ids_of(s) for s in mixed()]
    assert len(rest) == len(list(mixed())) - 5


def test_a_rank_that_lost_its_state_is_refused() -> None:
    run = Run(mixed, 2, 1)
    run.advance(8)
    again = Run(mixed, 2, 1, run.merged_states())
    for rank in again.ranks:
        rank.states = {}  # not what was loaded
    again.advance(1)
    with pytest.raises(StateMismatchError, match=r"must give the state that it loaded, got \{\}"):
        again.merged_states()
    # After a change of ranks, only the states of the others are known.
    other = Run(mixed, 3, 0, run.merged_states())
    for rank in other.ranks:
        rank.states = {}
    other.advance(1)
    rest = Run(mixed, 1, 2, other.merged_states()).drain()
    assert run.ids() + other.ids() + rest.ids() == one_epoch("mixed")


@pytest.mark.parametrize("size", FEW_SIZES)
def test_ranks_may_start_a_new_dict_after_resuming(size: tuple[int, int]) -> None:
    for cut in (4, 11):
        run = Run(mixed, *size)
        run.advance(cut)
        again = Run(mixed, *size, run.merged_states())
        for rank in again.ranks:
            rank.states = {}
        again.advance(2 * size[0])
        for other in (size, (2, 1)):
            rest = Run(mixed, *other, again.merged_states()).drain()
            assert run.ids() + again.ids() + rest.ids() == one_epoch("mixed")


# Reading again from the start of files


@pytest.mark.parametrize("kind", ["mixed", "nested", "filtered"])
@pytest.mark.parametrize(("size", "other"), [((1, 0), (2, 1)), ((2, 2), (2, 2)), ((4, 1), (3, 0))])
def test_from_url_level_nothing_is_missing(
    kind: str, size: tuple[int, int], other: tuple[int, int]
) -> None:
    run = Run(KINDS[kind], *size)
    for _ in range(100):
        rest = Run(KINDS[kind], *other, run.merged_states(), reload_from_url_level=True).drain()
        again = run.ids() + rest.ids()
        assert set(again) == set(one_epoch(kind))
        # Only partly read parts of worker slots are repeated.
        urls = Counter(
            (sample["__datasetname__"], sample.get("__url__"))
            for sample in rest.samples()
            if any(again[name] > 1 for name in ids_of(sample))
        )
        assert len(urls) <= size[0] * max(size[1], 1) * 3
        assert max(again.values()) <= 2
        if not run.advance(1):
            break


def test_from_url_level_the_text_may_be_cut_otherwise() -> None:
    states: dict[str, Any] = {}
    delivered: Counter[str] = Counter()
    for sample in islice(mixed(), 15):
        states.update(to_state(sample))
        delivered.update(ids_of(sample))
    dataset = mixed()
    dataset.sources()[2].dataset.process_fn = functools.partial(cut_texts, length=3)
    for sample in dataset.__iter_from__(states, reload_from_url_level=True):
        delivered.update(ids_of(sample))
    assert {name for name in delivered if name.startswith("text")} == {
        name for name in one_epoch("mixed") if name.startswith("text")
    }


def cut_texts(samples: Any, length: int) -> Any:
    """Give each text alone, a few tokens at a time."""
    for sample in samples:
        for start in range(0, len(sample["tokens"]), length):
            key = f"{sample['__key__']}@{start}"
            ids = sample["tokens"][start : start + length]
            yield {"__url__": sample["__url__"], "__key__": key, "ids": ids}


# DataLoaders


def loader_of(make: Make, ranks: int, rank: int, states: Any, **settings: Any) -> DataLoader[Any]:
    dataset = make()
    dataset.set_data_parallel(ranks, rank)
    if states is not None:
        dataset.set_dataloader_states(states)
    return DataLoader(dataset, collate_fn=list, **settings)


@pytest.mark.parametrize(
    ("start_method", "make", "num_batches"),
    [
        pytest.param("fork", mixed, 4, id="fork"),
        pytest.param("fork", nested_yields, 3, id="fork-nested-yields"),
        pytest.param("forkserver", mixed, 3, id="forkserver"),
    ],
)
def test_loaders_resume_at_another_size(start_method: str, make: Make, num_batches: int) -> None:
    settings: dict[str, Any] = {
        "num_workers": 2,
        "batch_size": 3,
        "prefetch_factor": 3,
        "multiprocessing_context": start_method,
    }
    whole = Run(make, 1, 0).drain().ids()
    delivered: Counter[str] = Counter()
    own_states: list[dict[str, Any]] = []
    for rank in range(2 if start_method == "fork" else 1):
        states: dict[str, Any] = {}
        iterator = iter(loader_of(make, 2 if start_method == "fork" else 1, rank, None, **settings))
        for _ in range(num_batches):
            batch = next(iterator)
            states.update(to_state(batch))
            delivered.update(name for sample in batch for name in ids_of(sample))
        own_states.append(states)
        iterator._shutdown_workers()
    merged = merge_states(own_states)
    for rank in range(3):
        for batch in loader_of(make, 3, rank, merged, num_workers=0, batch_size=2):
            delivered.update(name for sample in batch for name in ids_of(sample))
    assert delivered == whole


def test_loaders_of_the_same_size_keep_the_order_after_an_odd_batch() -> None:
    def batches(states: Any) -> list[list[str]]:
        loader = loader_of(mixed, 1, 0, states, num_workers=2, batch_size=2)
        return [[name for sample in batch for name in ids_of(sample)] for batch in loader]

    whole = batches(None)
    run = Run(mixed, 1, 2, batch_size=2)
    for count in range(1, 4):
        run.ranks[0].step()
        if count != 2:
            assert whole[count:] == batches(run.own_states()[0])


def test_simulated_ranks_are_as_loaders() -> None:
    for workers, batch_size in ((0, 3), (1, 1), (2, 2)):
        loader = loader_of(mixed, 2, 1, None, num_workers=workers, batch_size=batch_size)
        ids = [name for batch in loader for sample in batch for name in ids_of(sample)]
        assert ids == Run(mixed, 2, workers, batch_size=batch_size).drain().orders()[1]


def train_rank(folder: Path, rank: int) -> None:
    """Be one of two ranks that are at different places, and write what was delivered."""
    dist.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    states: dict[str, Any] = {}
    ids: list[str] = []
    for sample in islice(mixed(), 3 + 4 * rank):
        states.update(to_state(sample))
        ids += ids_of(sample)
    gathered = gather_states(states)
    (folder / f"{rank}.json").write_text(json.dumps([ids, gathered]))
    dist.destroy_process_group()


def test_ranks_of_a_process_group_gather_one_state(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train_rank, args=(tmp_path, rank)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert told[0][1] == told[1][1]
    rest = Run(mixed, 3, 1, told[0][1]).drain()
    assert Counter(told[0][0]) + Counter(told[1][0]) + rest.ids() == one_epoch("mixed")
