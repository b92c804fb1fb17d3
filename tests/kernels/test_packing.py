"""Packing: valid samples of whole documents, as plain Python makes them, on any lengths."""

from bisect import bisect_left, insort
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zindex.errors import PlanError
from zindex.kernels import packing as module
from zindex.kernels.packing import DROP, SPLIT, TRUNCATE, FitRules, count_samples, pack_documents
from zindex.plan.packing import PARTITION_LENGTH

POLICIES = st.sampled_from([SPLIT, TRUNCATE, DROP])


def cut_document(length, sequence_length, extra_token, policy):
    """Offsets and lengths of the parts of one document."""
    room = sequence_length + extra_token
    if length <= room:
        return [(0, length)] if length else []
    if policy != SPLIT:
        return [(0, room)] if policy == TRUNCATE else []
    starts = range(0, length - extra_token, sequence_length)
    return [(start, min(room, length - start)) for start in starts]


def naive_packing(lengths, documents, sequence_length, extra_token, max_documents, policy):
    """Best-fit decreasing, one part at a time, with bisect: the samples and their parts."""
    room = sequence_length + extra_token
    parts = [
        (size, document, offset)
        for length, document in zip(lengths, documents, strict=True)
        for offset, size in cut_document(length, sequence_length, extra_token, policy)
    ]
    open_rooms, stacks, samples = [], {}, []
    for place, (size, _, _) in sorted(enumerate(parts), key=lambda item: -item[1][0]):
        at = bisect_left(open_rooms, size)
        if at == len(open_rooms):
            sample, left = len(samples), room
            samples.append([])
        else:
            left = open_rooms.pop(at)
            sample = stacks[left].pop()
        samples[sample].append(place)
        left -= size
        if left and len(samples[sample]) < max_documents:
            insort(open_rooms, left)
            stacks.setdefault(left, []).append(sample)
    return [[parts[place][1:] for place in sorted(sample)] for sample in samples]


def as_lists(packing):
    bounds = packing.sample_offset.tolist()
    rows = [tuple(row) for row in packing.part_index.tolist()]
    return [rows[start:stop] for start, stop in pairwise(bounds)]


@settings(max_examples=300)
@given(
    lengths=st.lists(st.integers(0, 9) | st.integers(0, 60), max_size=60),
    sequence_length=st.integers(1, 24),
    extra_token=st.integers(0, 1),
    max_documents=st.integers(1, 8),
    policy=POLICIES,
    dtype=st.sampled_from([np.int32, np.int64]),
    shift=st.integers(0, 5),
)
def test_every_part_is_in_one_sample_as_plain_python_has_it(
    lengths, sequence_length, extra_token, max_documents, policy, dtype, shift
):
    documents = np.arange(len(lengths), dtype=dtype)[::-1] + shift
    rules = FitRules(sequence_length, extra_token, max_documents, policy)
    packing = pack_documents(np.array(lengths, np.int32), documents, rules)
    samples = as_lists(packing)
    assert samples == naive_packing(lengths, documents.tolist(), *rules)
    assert packing.part_index.dtype == dtype
    cut = {
        document: dict(cut_document(length, sequence_length, extra_token, policy))
        for document, length in zip(documents.tolist(), lengths, strict=True)
    }
    wanted = Counter((document, offset) for document, parts in cut.items() for offset in parts)
    assert Counter(part for sample in samples for part in sample) == wanted
    for sample in samples:
        assert 1 <= len(sample) <= max_documents
        assert sum(cut[document][offset] for document, offset in sample) <= (
            sequence_length + extra_token
        )
    assert packing.num_tokens == sum(sum(parts.values()) for parts in cut.values())


@given(
    length=st.integers(1, 200), sequence_length=st.integers(1, 20), extra_token=st.integers(0, 1)
)
def test_split_documents_lose_nothing(length, sequence_length, extra_token):
    """Every token is there, and with an extra token every one but the first is a label once."""
    rules = FitRules(sequence_length, extra_token, 1, SPLIT)
    packing = pack_documents(np.array([length]), np.array([0]), rules)
    room = sequence_length + extra_token
    offsets = sorted(packing.part_index[:, 1].tolist())
    parts = [range(start, min(start + room, length)) for start in offsets]
    assert set().union(*parts) == set(range(length))
    if extra_token:
        labels = Counter(token for part in parts for token in part[1:])
        assert labels == Counter(range(1, length))
    else:
        assert Counter(token for part in parts for token in part) == Counter(range(length))


@pytest.mark.parametrize("room", [63, 64, 65, 127, 4095, 4096, 4097, 70_000])
def test_rooms_at_the_edges_of_words(room):
    rng = np.random.default_rng(room)
    lengths = rng.integers(1, room + 1, 500)
    lengths[::7] = rng.integers(1, 4, len(lengths[::7]))
    documents = np.arange(500)
    packing = pack_documents(lengths, documents, FitRules(room, 0, 9, SPLIT))
    assert as_lists(packing) == naive_packing(lengths.tolist(), range(500), room, 0, 9, SPLIT)


def test_python_gives_the_same(monkeypatch):
    rng = np.random.default_rng(5)
    lengths = np.concatenate([rng.integers(0, 90, 120), [600]])
    documents = np.arange(len(lengths))
    for policy in (SPLIT, TRUNCATE, DROP):
        jitted = pack_documents(lengths, documents, FitRules(80, 1, 4, policy))
        with monkeypatch.context() as patch:
            for name, value in vars(module).items():
                if hasattr(value, "py_func"):
                    patch.setattr(module, name, value.py_func)
            patch.setattr(
                module, "find_bit", lambda bits: (int(bits) & -int(bits)).bit_length() - 1
            )
            plain = pack_documents(lengths, documents, FitRules(80, 1, 4, policy))
        for got, want in zip(plain, jitted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_nothing_to_pack():
    packing = pack_documents(np.array([0, 0]), np.array([3, 4]), FitRules(8, 1, 2, SPLIT))
    assert packing.sample_offset.tolist() == [0]
    assert packing.part_index.shape == (0, 2)
    assert packing.num_tokens == 0


@pytest.mark.parametrize("kind", ["lognormal", "uniform", "tiny", "half"])
def test_partitions_cost_a_thousandth_of_the_room_at_most(kind):
    """Of lengths that are equally likely, where partitions cost most, they cost half of that."""
    rng = np.random.default_rng(11)
    size, length = 4 * PARTITION_LENGTH, 4096
    lengths = {
        "lognormal": lambda: np.exp(rng.normal(6, 1.5, size)).astype(np.int32) + 1,
        "uniform": lambda: rng.integers(1, length + 2, size),
        "tiny": lambda: rng.integers(1, 200, size),
        "half": lambda: rng.integers(1900, 2300, size),
    }[kind]()

    def pack(lengths):
        documents = np.arange(len(lengths), dtype=np.int32)
        return pack_documents(lengths, documents, FitRules(length, 1, 256, SPLIT))

    whole = pack(lengths)
    num_samples = sum(len(pack(part).sample_offset) - 1 for part in lengths.reshape(4, -1))
    room = num_samples * (length + 1)
    reference = (len(whole.sample_offset) - 1) * (length + 1)
    padding, reference_padding = (1 - whole.num_tokens / size for size in (room, reference))
    assert reference_padding <= padding <= reference_padding + 0.001


def test_more_parts_than_numbers_are_refused():
    """Two documents of almost 2**31 tokens, cut into single tokens."""
    lengths = np.full(2, 2**31 - 1, np.int32)
    with pytest.raises(PlanError, match="at most 2,147,483,647 parts, got 4,294,967,294 with"):
        pack_documents(lengths, np.arange(2), FitRules(1, 0, 1, SPLIT))


def test_counts_are_those_of_the_packing():
    lengths = np.random.default_rng(3).integers(0, 300, 500)
    packing = pack_documents(lengths, np.arange(500), FitRules(64, 1, 5, SPLIT))
    counted = count_samples(lengths[::-1], FitRules(64, 1, 5, SPLIT))
    sizes = len(packing.sample_offset) - 1, len(packing.part_index), packing.num_tokens
    assert counted == sizes
