"""The parts of the comparison of streams that need no peer."""

import numpy as np
import pytest

from tests.benchmarks import bench_streams
from tests.benchmarks.peers import streams
from tests.benchmarks.peers.__main__ import MORE, PEERS


def test_entropy_of_windows() -> None:
    labels = np.repeat(np.arange(streams.NUM_FILES), streams.WINDOW)
    assert streams.find_entropy(labels) == 0
    mixed = np.arange(streams.NUM_FILES * streams.WINDOW) % streams.NUM_FILES
    assert streams.find_entropy(mixed) == pytest.approx(np.log2(6), abs=1e-3)
    # A window of one file, and one of two.
    half = np.array([0] * 256 + [1, 2] * 128)
    assert streams.find_entropy(half) == 0.5


def test_every_contender_has_its_environment() -> None:
    assert list(bench_streams.ENVIRONMENTS) == list(streams.READERS)
    environments = {name for name in bench_streams.ENVIRONMENTS.values() if name}
    assert environments <= {*PEERS, *MORE}
    assert {form for form, _ in streams.READERS.values()} == {*streams.WRITERS}


def test_samples_are_those_of_six_files() -> None:
    made = list(streams.make_samples(60))
    assert [number for number, _ in made] == [place // 10 for place in range(60)]
    assert all(content[0] == number for number, content in made)
    assert made == list(streams.make_samples(60))
