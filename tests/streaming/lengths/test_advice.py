"""Advice: each sentence with its numbers, and sequence lengths against sums by hand."""

import json
from typing import Any

import numpy as np
import pytest

from tests.streaming.tiny_sources import Items, Parts
from zindex.errors import ConfigError
from zindex.execution.executor import SerialExecutor
from zindex.streaming import MergedDataset, advise, count_lengths
from zindex.streaming.lengths.advice import RunAdvice
from zindex.streaming.lengths.draws import epochs_of


def items(name: str, lengths: list[int], percent: float = 1.0, field: str = "tokens") -> Items:
    made = [{field: "x" * n if field == "text" else [0] * n} for n in lengths]
    return Items(name, 0, percent, items=made)


def ask(dataset: Any, **settings: Any) -> RunAdvice:
    lengths = count_lengths(dataset, client=SerialExecutor())
    return advise(lengths, dataset, **settings)


def texts(advice: RunAdvice, kind: str) -> list[str]:
    return [one.text for one in advice if one.kind == kind]


def test_repeated_and_unfinished_sources() -> None:
    mix = MergedDataset([items("small", [9] * 10, 0.5), items("large", [9] * 1000, 0.5)])
    advice = ask(mix, num_samples=100)
    assert texts(advice, "repeats") == [
        "'small' comes 5.00 times, 50 samples drawn of 10: more than 4 epochs, so lower its share "
        "from 0.5 or find more of it."
    ]
    assert texts(advice, "unfinished") == [
        "'large' is never finished: 50 of its 1,000 samples (5.0%) are drawn, and 950 are not."
    ]
    assert texts(advice, "weights") == [
        "With the shares small 0.4, large 0.6 nothing repeats more than 4 times.",
        "Shares in proportion to what there is, small 0.0099, large 0.99, draw 0.10 epochs of "
        "every source.",
    ]
    assert advice.limited == {"small": 0.4, "large": 0.6}
    assert advice.proportional == pytest.approx({"small": 1 / 101, "large": 100 / 101})


def test_the_suggested_shares_keep_their_promise() -> None:
    sizes = {"a": 10, "b": 50, "c": 400}
    given = {"a": 0.6, "b": 0.3, "c": 0.1}

    def make(shares: dict[str, float]) -> MergedDataset:
        return MergedDataset(
            [items(name, [3] * size, shares[name]) for name, size in sizes.items()]
        )

    advice = ask(make(given), num_samples=1000)
    assert advice.limited is not None
    better = make(advice.limited)
    lengths = count_lengths(better, client=SerialExecutor())
    assert max(part.num_epochs for part in epochs_of(lengths, better, num_samples=1000)) <= 4
    even = epochs_of(lengths, make(advice.proportional), num_samples=920)
    assert [part.num_epochs for part in even] == pytest.approx([2, 2, 2])
    # Another limit, and one that all sources together cannot keep to.
    assert (
        "more than 2.5 epochs"
        in texts(ask(make(given), num_samples=1000, max_epochs=2.5), "repeats")[0]
    )
    impossible = ask(make(given), num_samples=2000)
    assert impossible.limited is None
    assert texts(impossible, "weights")[0] == (
        "The run draws 2,000 samples, and 4 epochs of all sources are only 1,840: without more "
        "data it has to repeat 4.35 times."
    )


def test_without_a_run_nothing_is_said_of_repeats() -> None:
    advice = ask(items("a", [5, 9, 40]))
    assert advice.draws == ()
    assert {one.kind for one in advice} == {"sequence_length"}


def mix_mean(function: Any, lengths: dict[str, list[int]]) -> float:
    parts = {name: np.mean([function(n) for n in found]) for name, found in lengths.items()}
    return float(0.25 * parts["a"] + 0.75 * parts["b"])


def test_sequence_lengths_waste_the_expected_shares() -> None:
    rng = np.random.default_rng(5)
    lengths = {"a": rng.integers(1, 60, 400).tolist(), "b": rng.integers(1, 300, 500).tolist()}
    mix = MergedDataset([items("a", lengths["a"], 0.25), items("b", lengths["b"], 0.75)])
    advice = ask(mix, sequence_lengths=[128, 32])
    assert [row.sequence_length for row in advice.sequence_lengths] == [32, 128]
    for row in advice.sequence_lengths:
        limit = row.sequence_length

        kept = mix_mean(lambda n, limit=limit: min(n, limit), lengths)
        assert row.padding == pytest.approx(1 - kept / limit)
        assert row.truncated == pytest.approx(1 - kept / mix_mean(lambda n: n, lengths))
        split = mix_mean(lambda n, limit=limit: n > limit, lengths)
        assert row.split == pytest.approx(split, abs=0.02)
        # Packed, the rests of long samples and short ones fill each other's sequences.
        assert 0 <= row.packed_padding < 0.01


def test_packing_leaves_room_that_no_sample_fits() -> None:
    advice = ask(items("a", [40] * 10), sequence_lengths=[64, 80])
    assert [row.packed_padding for row in advice.sequence_lengths] == [24 / 64, 0]
    [row] = ask(items("a", [33] * 10), sequence_lengths=[64]).sequence_lengths
    assert row.packed_padding == pytest.approx(1 - 33 / 64, abs=1e-3)
    assert row.padding == pytest.approx(1 - 33 / 64)


def test_the_shortest_length_that_cuts_off_little_is_advised() -> None:
    advice = ask(items("a", [*range(1, 101), 500]))
    assert [row.sequence_length for row in advice.sequence_lengths] == [32, 64, 128, 256, 512]
    assert texts(advice, "sequence_length") == [
        "A sequence length of 512 cuts off 0.00% of the tokens and leaves 89.3% of the places as "
        "padding with one sample a sequence; packed it cuts off nothing, leaves 0.0% as padding, "
        "and splits 0.00% of the samples."
    ]
    cut = ask(items("a", [100] * 10), sequence_lengths=[8, 50])
    assert texts(cut, "sequence_length")[0].startswith("A sequence length of 50 cuts off 50.00% of")


def test_units_that_differ_are_not_compared() -> None:
    mix = MergedDataset([items("a", [5]), items("b", [5], field="text")])
    assert ask(mix).sequence_lengths == ()
    assert ask(MergedDataset([items("a", [0])])).sequence_lengths == ()


def test_parts_too_few_for_the_readers() -> None:
    endless = MergedDataset([Parts("a", [5, 5, 5], tokens_per_sample=9), items("b", [5] * 8)])
    assert texts(ask(endless, num_ranks=2, num_workers=4), "lanes") == [
        "'a' has 3 parts for 8 readers (2 ranks of 4 loader workers), so 3 of its epochs are read "
        "at the same time: make its part_nbytes smaller, or its files more."
    ]
    once = MergedDataset([items("b", [5])], cyclic=False)
    assert texts(ask(once, num_ranks=3), "lanes") == [
        "'b' has 1 item for 3 readers (3 ranks of 1 loader worker), so 2 of them read nothing of "
        "it: add more."
    ]
    files = MergedDataset(
        [Parts("a", [5], tokens_per_sample=9)], shuffle_streaming_subsets="cogdata_urlbuffer"
    )
    assert "'a' has 1 file for 2 readers" in texts(ask(files, num_ranks=2), "lanes")[0]


def test_estimates_damage_and_emptiness_are_noted() -> None:
    parts = Parts("a", [10] * 8, tokens_per_sample=9)
    lengths = count_lengths(parts, client=SerialExecutor(), num_samples=40)
    assert texts(advise(lengths, parts), "estimate") == [
        "The numbers of 'a' are estimates: 50.00% of it was read, 40 samples."
    ]
    empty = MergedDataset([Parts("b", [0, 0]), items("a", [1])])
    assert texts(ask(empty), "empty") == ["'b' gave 0 samples in 2 parts."]
    assert texts(ask(Parts("b", [0])), "empty") == ["'b' gave 0 samples in 1 part."]

    class Damaged(Parts):
        def read_part(self, part: int) -> Any:
            self.num_skipped += 1
            return super().read_part(part)

    assert texts(ask(Damaged("a", [2, 3], tokens_per_sample=9)), "damage") == [
        "'a' lost 2 damaged samples, or rests of files, next to 5 that were read; "
        "restore its files."
    ]


def test_lengths_not_in_tokens_are_noted() -> None:
    mix = MergedDataset(
        [Items("images", 4), *(items(f"t{n}", [5], field="text") for n in range(9))]
    )
    advice = ask(mix, num_samples=40)
    assert texts(advice, "unit") == [
        "'images' is counted in samples only, which have no tokens and no text: give "
        "length_of, which returns the tokens of a sample, to count these too.",
        "The lengths of 't0', 't1', 't2', 't3', 't4', 't5', 't6', 't7' and 1 more are in "
        "characters: give length_of=TextLength(tokenizer) (--tokenizer FILE) to count tokens.",
    ]
    assert [drawn.num_samples for drawn in advice.draws] == [4] * 10
    assert advice.sequence_lengths
    with pytest.raises(ConfigError, match="those of 'images' are in samples; count them with"):
        ask(mix, num_tokens=40)


def test_of_many_sources_the_largest_are_named() -> None:
    mix = MergedDataset([items(f"s{n}", [5] * (n + 1), 0.1) for n in range(12)])
    text = texts(ask(mix, num_samples=10), "weights")[-1]
    assert text.startswith("Shares in proportion to what there is, s4 0.0641, s5 0.0769, ")
    assert " and 4 smaller ones, draw 0.13 epochs of every source." in text


def test_advice_as_json() -> None:
    mix = MergedDataset([items("a", [5, 9, 40]), Parts("b", [2], tokens_per_sample=9)])
    for settings in ({}, {"num_samples": 100, "num_ranks": 9}, {"num_samples": 1}):
        advice = ask(mix, **settings)
        fields = json.loads(json.dumps(advice.to_json()))
        assert fields["proportional"] == advice.proportional
        assert [row["text"] for row in fields["advice"]] == [one.text for one in advice]
        assert [row["name"] for row in fields["draws"]] == [drawn.name for drawn in advice.draws]
        assert len(fields["sequence_lengths"]) == len(advice.sequence_lengths)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_ranks": 0}, "num_ranks must be a whole number of at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be a whole number of at least 1, got -1"),
        ({"max_epochs": 0}, "max_epochs must be > 0, got 0"),
        (
            {"sequence_lengths": [5, 0]},
            "sequence_lengths must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_numbers_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(items("a", [5]), **settings)
